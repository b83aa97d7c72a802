r"""A detector of unknown inputs from one pass over the training features: eight scores that share their statistics.

Class means, the covariance within the classes and the head are all that the scores of :mod:`unhinge.ood.formulas` need,
so :class:`~unhinge.metrics.CollapseSummary` carries them: batches, files and processes add up. Two scores need more.
``vim`` matches the sizes of residuals and logits, which takes a second pass. ``knn`` keeps the features themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from numbers import Real

import torch
import torch.distributed as dist
from torch import Tensor

from unhinge.metrics.checks import Labels, Numbers, as_numbers, at_least_single
from unhinge.metrics.collapse import CHUNK, CollapseSummary
from unhinge.metrics.ood import log_odds
from unhinge.nn.angles import unit_rows
from unhinge.nn.contract import check_not_negative
from unhinge.ood.formulas import (
    energy_score,
    fdbd_score,
    knn_score,
    mahalanobis_score,
    nci_score,
    neco_score,
    norm_score,
    vim_score,
)
from unhinge.theory.numerics import float64_device, safe_norm
from unhinge.theory.processes import sum_over_processes

__all__ = ["SCORES", "CollapseDetector"]

SCORES = ("softmax", "energy", "norm", "mahalanobis", "neco", "nci", "fdbd", "vim", "knn")


def _computed_once(function: Callable[[CollapseDetector], Tensor]) -> cached_property[Tensor]:
    """A cached property that autograd may use later, whoever asks first: also inside ``torch.inference_mode``."""

    @wraps(function)
    def outside(detector: CollapseDetector) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():
            return _usable(function(detector))

    return cached_property(outside)


def _usable(value: Tensor) -> Tensor:
    """A tensor of inference mode cannot be saved for a gradient; its copy, made outside of that mode, can."""
    with torch.inference_mode(False):
        return value.clone() if value.is_inference() else value


@dataclass(frozen=True, eq=False, repr=False)
class CollapseDetector:
    r"""Scores of features, higher for in-distribution ones, each as its paper defines it.

    ================ =========================================================================== =======================
    ``softmax``      log-odds of the largest softmax probability                                 Hendrycks, Gimpel 2017
    ``energy``       :math:`\log\sum_c e^{z_c}`                                                  Liu et al. 2020
    ``norm``         :math:`\|h\|`
    ``mahalanobis``  :math:`\max_c -(h-\mu_c)^\top\Sigma_W^+(h-\mu_c)`                           Lee et al. 2018
    ``neco``         :math:`\|Ph\|/\|h\|`                                                        Ben Ammar et al. 2024
    ``nci``          :math:`w_{\hat y}^\top(h-\mu)/\|h-\mu\| + \alpha\|h\|_1`                    Liu, Qin 2025
    ``fdbd``         mean distance to the decision boundaries over :math:`\|h-\mu\|`             Liu, Qin 2024
    ``vim``          energy minus the scaled residual outside of the principal subspace          Wang et al. 2022
    ``knn``          minus the distance to the k-th nearest training feature (where asked for)   Sun et al. 2022
    ================ =========================================================================== =======================

    Logits are :math:`Wh + b` of the features as they are. For a head that normalizes them in training
    (``ETFHead(normalize=True)``) this scores unnormalized, which is how such networks detect best (T2FNorm): the
    length of a feature, which training has left free, tells known from unknown.

    Make one with :meth:`fit`, :meth:`from_batches` or :meth:`from_summary`.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> weight, target = torch.eye(3, 8), torch.arange(60) % 3
        >>> known = 5 * weight[target] + torch.randn(60, 8, generator=g)
        >>> detector = CollapseDetector.fit(known, target, weight)
        >>> scores = detector.scores(known)
        >>> unknown = detector.scores(torch.randn(60, 8, generator=g))
        >>> list(scores)
        ['softmax', 'energy', 'norm', 'mahalanobis', 'neco', 'nci', 'fdbd', 'vim']
        >>> all(scores[name].mean() > unknown[name].mean() for name in scores)
        True
    """

    summary: CollapseSummary  # of the training features
    weight: Tensor  # (C, p) float64
    bias: Tensor  # (C,) float64
    principal: int  # D, the dimension of ViM's principal subspace
    neco_dim: int  # d, the dimension of NECO's subspace
    nci_strength: float
    vim_scale: float | None = None  # None: the second pass is still to come, and there is no vim
    bank: Tensor | None = None  # (m, p) float64, training features of length 1, for knn
    neighbors: int = 50

    @classmethod
    def fit(
        cls,
        features: Numbers,
        target: Labels,
        weight: Numbers,
        bias: Numbers | None = None,
        *,
        principal: int | None = None,
        neco_dim: int | None = None,
        nci_strength: float = 1e-4,
        neighbors: int | None = None,
    ) -> CollapseDetector:
        r"""From training features in memory.

        Arguments:
            features: :math:`H`, shape :math:`(n, p)`: what enters the head, of the training set without augmentation.
            target: Labels :math:`y`, shape :math:`(n,)`.
            weight: Prototypes :math:`W` of the head, shape :math:`(C, p)`.
            bias: Its biases, shape :math:`(C,)`.
            principal: Dimension :math:`D < p` of ViM's principal subspace. By default as its authors have it, 1,000 for
                :math:`p \ge 2048` and 512 from 768 on; below, half of the dimensions, as OpenOOD has it for
                :math:`p = 512`.
            neco_dim: Dimension :math:`d` of NECO's subspace; by default :math:`C - 1`, that of a simplex.
            nci_strength: :math:`\alpha` of NCI; its authors choose it from 1e-4, 1e-3, 1e-2, 1e-1 on validation data.
            neighbors: :math:`k` of ``knn``; None leaves that score out. The authors take 50 for CIFAR-10.
        """
        rows = as_numbers("features", features, ("n", "p")).detach()
        prototypes = as_numbers("weight", weight, ("C", rows.shape[1]))
        summary = CollapseSummary.of(rows, target, len(prototypes))
        detector = cls.from_summary(
            summary, prototypes, bias, principal=principal, neco_dim=neco_dim, nci_strength=nci_strength
        ).with_vim([rows])
        return detector if neighbors is None else detector.with_neighbors(rows, neighbors)

    @classmethod
    def from_batches(
        cls,
        batches: Callable[[], Iterable[tuple[Numbers, Labels]]],
        weight: Numbers,
        bias: Numbers | None = None,
        *,
        principal: int | None = None,
        neco_dim: int | None = None,
        nci_strength: float = 1e-4,
        group: dist.ProcessGroup | None = None,
        reduce: bool = False,
    ) -> CollapseDetector:
        """From batches of `(features, target)`, in memory that does not depend on their number.

        Arguments:
            batches: Called twice, once for the sums and once for ViM; yields the batches of this process.
            reduce: Sum over the processes of `group` (``torch.distributed``); all must call, and all get the same.
            weight, bias, principal, neco_dim, nci_strength: As in :meth:`fit`.

        Example:
            >>> x, y, weight = torch.randn(30, 4), torch.arange(30) % 3, torch.randn(3, 4)
            >>> streamed = CollapseDetector.from_batches(
            ...     lambda: zip(x.split(7), y.split(7)), weight
            ... )
            >>> whole = CollapseDetector.fit(x, y, weight)
            >>> torch.allclose(streamed.scores(x)["vim"], whole.scores(x)["vim"])
            True
        """
        if not callable(batches):
            raise ValueError(
                "batches must be a function that returns the batches, since they are gone through twice, "
                f"got {type(batches).__name__}. For a loader: lambda: loader."
            )
        prototypes = as_numbers("weight", weight, ("C", "p"))
        num_classes, dim = prototypes.shape
        device = float64_device(prototypes)
        summary = CollapseSummary.empty(num_classes, dim, dtype=prototypes.dtype, device=device)
        for features, target in batches():
            summary = summary + CollapseSummary.of(features, target, len(prototypes))
        if reduce:
            summary = summary.all_reduce(group)
        detector = cls.from_summary(
            summary, prototypes, bias, principal=principal, neco_dim=neco_dim, nci_strength=nci_strength
        )
        return detector.with_vim((features for features, _ in batches()), group=group, reduce=reduce)

    @classmethod
    def from_summary(
        cls,
        summary: CollapseSummary,
        weight: Numbers,
        bias: Numbers | None = None,
        *,
        principal: int | None = None,
        neco_dim: int | None = None,
        nci_strength: float = 1e-4,
    ) -> CollapseDetector:
        """From sums of one pass, which may have been added up over files or processes; without ``vim``.

        Arguments:
            summary: With its covariance, of at least two classes.
            weight, bias, principal, neco_dim, nci_strength: As in :meth:`fit`.
        """
        num_classes, dim = summary.directions.shape
        if summary.within is None:
            raise ValueError("the summary has no covariance, which mahalanobis, neco and vim need: covariance=True.")
        if int((summary.counts > 0).sum()) < 2:
            raise ValueError("a detector needs training examples of at least 2 classes. Add more batches.")
        device = summary.within.device
        prototypes = as_numbers("weight", weight, (num_classes, dim)).detach().to(device, torch.float64)
        offsets = prototypes.new_zeros(num_classes)
        if bias is not None:
            offsets = as_numbers("bias", bias, (num_classes,)).detach().to(offsets)
        check_not_negative("nci_strength", nci_strength)
        return cls(
            summary=summary,
            weight=_usable(prototypes),
            bias=_usable(offsets),
            principal=_dimension("principal", principal, _usual_principal(dim), dim),
            neco_dim=_dimension("neco_dim", neco_dim, min(num_classes - 1, dim), dim),
            nci_strength=float(nci_strength),
        )

    def with_vim(
        self, batches: Iterable[Numbers], *, group: dist.ProcessGroup | None = None, reduce: bool = False
    ) -> CollapseDetector:
        """The same with ``vim``: its scale is taken from the training features, which are needed once more.

        Arguments:
            batches: Of features, shape :math:`(n, p)` each, those of the summary.
            reduce: Sum over the processes of `group`.
        """
        # How many there are, and the sums of the largest logits, of the norms of the residuals and of the whole.
        sums = self.weight.new_zeros(4)
        for batch in batches:
            for h in self._chunks(as_numbers("features", batch, ("n", self.weight.shape[1])).detach()):
                apart = h - self.vim_origin
                norms = [safe_norm(x, 1).sum() for x in (apart @ self.residual_basis, apart)]
                sums = sums + torch.stack([sums.new_tensor(len(h)), self._logits(h).amax(1).sum(), *norms])
        count, logits, residuals, whole = (sum_over_processes(sums, group) if reduce else sums).tolist()
        if not count:
            raise ValueError("there are no features in the second pass, which vim needs: let the batches begin anew.")
        # Features without any residual (fewer examples than dimensions) have nothing to be matched. The published code
        # divides by zero there; without a virtual logit, the score is the energy. Eigenvalues below p eps of the
        # largest are rounding (as in `whitening`), and they are squares of residuals.
        least = math.sqrt(len(self.residual_basis) * torch.finfo(self.weight.dtype).eps) * whole
        return replace(self, vim_scale=logits / residuals if residuals > least else 0.0)

    def with_neighbors(self, features: Numbers, neighbors: int = 50) -> CollapseDetector:
        """The same with ``knn``, which keeps these training features, shape :math:`(m, p)`; :math:`k \\le m`."""
        rows = as_numbers("features", features, ("n", self.weight.shape[1])).detach()
        if not _whole(neighbors) or not 1 <= neighbors <= len(rows):
            raise ValueError(
                f"neighbors must be a whole number between 1 and {len(rows)}, the training features, got {neighbors}."
            )
        return replace(self, bank=_usable(unit_rows(rows.to(self.weight))), neighbors=int(neighbors))

    def __repr__(self) -> str:
        num_classes, dim = self.weight.shape
        size = int(self.summary.counts.sum())
        return (
            f"CollapseDetector({num_classes} classes, {dim} dimensions, {size:,} examples: {', '.join(self.available)})"
        )

    @property
    def available(self) -> tuple[str, ...]:
        """The names of the scores this detector has."""
        missing = {"vim"} if self.vim_scale is None else set()
        missing |= {"knn"} if self.bank is None else set()
        return tuple(name for name in SCORES if name not in missing)

    def scores(self, features: Numbers, names: Sequence[str] | str | None = None) -> dict[str, Tensor]:
        r"""Every score of each example, higher for in-distribution ones; differentiable.

        Computed in float64, in chunks; given in the dtype of the features (at least float32), on their device.

        Arguments:
            features: :math:`h`, shape :math:`(n, p)`, as they enter the head.
            names: Some of :attr:`available`, or one; by default all.
        """
        wanted = self.available if names is None else (names,) if isinstance(names, str) else tuple(names)
        unknown = [name for name in wanted if name not in self.available]
        if unknown:
            raise ValueError(
                f"there is no score {', '.join(map(repr, unknown))}; there are {', '.join(self.available)}. "
                "vim takes with_vim(batches), knn takes with_neighbors(features)."
            )
        rows = as_numbers("features", features, ("n", self.weight.shape[1]))
        dtype = at_least_single(rows.dtype)
        parts = [self._scores_of(h, wanted, torch.finfo(dtype).max) for h in self._chunks(rows)]
        return {name: torch.cat([part[name] for part in parts]).to(rows.device, dtype) for name in wanted}

    def _scores_of(self, h: Tensor, names: Sequence[str], largest: float) -> dict[str, Tensor]:
        z = self._logits(h)
        formulas: dict[str, Callable[[], Tensor]] = {
            "softmax": lambda: log_odds(z),
            "energy": lambda: energy_score(z),
            "norm": lambda: norm_score(h),
            "mahalanobis": lambda: mahalanobis_score(h, self.class_means, self.whitening).clamp(min=-largest),
            "neco": lambda: neco_score(h, self.neco_basis),
            "nci": lambda: nci_score(h, z, self.weight, self.global_mean, self.nci_strength),
            "fdbd": lambda: fdbd_score(h, z, self.row_distances, self.global_mean, largest=largest),
            "vim": lambda: vim_score(h, z, self.vim_origin, self.residual_basis, self.vim_scale or 0.0),
            "knn": lambda: knn_score(h, self._kept_bank, self.neighbors),
        }
        return {name: formulas[name]() for name in names}

    def _logits(self, h: Tensor) -> Tensor:
        return h @ self.weight.mT + self.bias

    def _chunks(self, rows: Tensor) -> Iterable[Tensor]:
        widest = max(*self.weight.shape, 0 if self.bank is None else len(self.bank))
        return (chunk.to(self.weight) for chunk in rows.split(max(1, CHUNK // widest)))

    @property
    def _kept_bank(self) -> Tensor:
        assert self.bank is not None
        return self.bank

    # ---- what the scores share, computed when a score first asks for it ----------------------------------------------

    @_computed_once
    def class_means(self) -> Tensor:
        """Of the classes with examples, shape :math:`(K, p)`."""
        return self.summary.means[(self.summary.counts > 0).to(self.weight.device)].to(self.weight)

    @_computed_once
    def global_mean(self) -> Tensor:
        """Mean of all training features, shape :math:`(p,)`; a class counts as often as it has examples."""
        return (self.summary.classes.sums.sum(0) / self.summary.counts.sum()).to(self.weight)

    @_computed_once
    def whitening(self) -> Tensor:
        r""":math:`A`, shape :math:`(p, r)`, where :math:`AA^\top` inverts the covariance within the classes."""
        assert self.summary.within is not None
        values, vectors = torch.linalg.eigh(self.summary.within / self.summary.counts.sum())
        # The cutoff of scipy.linalg.pinvh, and so of scikit-learn's precision matrix that others use: what lies below
        # is rounding of the largest, and its inverse would drown every other direction.
        kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
        return vectors[:, kept] * values[kept].rsqrt() / self.summary.classes.unit

    @_computed_once
    def neco_basis(self) -> Tensor:
        r"""Orthonormal columns of NECO's subspace, shape :math:`(p, d)`.

        The leading principal components of the training features. Where the head is a simplex, features end in its
        span (or are driven there from the start, where it is fixed): then that span, without any estimate.
        """
        if self.neco_dim == len(self.weight) - 1 and is_simplex(self.weight):
            return torch.linalg.svd(self.weight, full_matrices=False).Vh[: self.neco_dim].mT
        return _leading(self._scatter_about(self.global_mean), self.neco_dim)

    @_computed_once
    def row_distances(self) -> Tensor:
        r""":math:`\|w_i - w_j\|`, shape :math:`(C, C)`."""
        # By differences: from Gram matrices, close prototypes would lose half of their digits.
        return torch.cdist(self.weight, self.weight, compute_mode="donot_use_mm_for_euclid_dist")

    @_computed_once
    def vim_origin(self) -> Tensor:
        r""":math:`-W^+b`, where all logits are as near to zero as they get, shape :math:`(p,)`."""
        return -torch.linalg.pinv(self.weight) @ self.bias

    @_computed_once
    def residual_basis(self) -> Tensor:
        """Orthonormal columns outside of ViM's principal subspace, shape :math:`(p, p - D)`."""
        values, vectors = torch.linalg.eigh(self._scatter_about(self.vim_origin))
        return vectors[:, : len(values) - self.principal]

    def _scatter_about(self, point: Tensor) -> Tensor:
        """Sum of (h - point)(h - point)^T over the training features: within the classes, and of their means.

        In squares of the summary's unit; only directions are read from it.
        """
        assert self.summary.within is not None
        apart = (self.class_means - point) / self.summary.classes.unit
        counts = self.summary.counts[self.summary.counts > 0].to(apart)
        return self.summary.within + apart.mT @ (counts[:, None] * apart)


def is_simplex(weight: Tensor) -> bool:
    r"""Whether the rows form a simplex ETF, up to the rounding of a float32 head.

    Example:
        >>> is_simplex(torch.eye(3) - 1 / 3), is_simplex(torch.eye(3))
        (True, False)
    """
    num_classes, dim = weight.shape
    if not 2 <= num_classes <= dim + 1:
        return False
    gram = weight @ weight.mT
    size = gram.diagonal().mean()
    # A frame that was rounded to float32 is off by some 1e-7 of its size: 1e-5 allows for that, and for little else.
    simplex = (num_classes * torch.eye(num_classes, dtype=gram.dtype, device=gram.device) - 1) / (num_classes - 1)
    return bool(size > 0) and bool((gram - size * simplex).abs().max() <= 1e-5 * size)


def _leading(scatter: Tensor, dim: int) -> Tensor:
    return torch.linalg.eigh(scatter)[1][:, len(scatter) - dim :]


def _usual_principal(dim: int) -> int:
    if dim >= 768:  # as the authors of ViM (Wang et al. 2022) have it; they say nothing about smaller ones
        return 1000 if dim >= 2048 else 512
    return max(1, dim // 2)


def _dimension(name: str, given: int | None, usual: int, dim: int) -> int:
    if given is None:
        return usual
    if not _whole(given) or not 1 <= given <= dim:
        raise ValueError(
            f"{name} must be a whole number and lie between 1 and the dimension {dim} of the features, got {given}."
        )
    return int(given)


def _whole(number: object) -> bool:
    """Whether it is a whole number, which may come as a float of numpy or Python."""
    return not isinstance(number, bool) and isinstance(number, Real) and float(number).is_integer()
