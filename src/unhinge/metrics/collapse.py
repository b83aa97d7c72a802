r"""Neural collapse of real features, in one pass over batches  [eq: collapse].

The measures are those of :func:`unhinge.theory.collapse_measures`, which a path's ``collapse()`` gives along training,
under the same names; here they are taken of a network's features, with a few more that the paper plots.

What one pass can keep is bounded: class means, the within-class covariance (:math:`p \times p`, for ``nc1``) and the
sums of norms and directions. NC4 asks which class mean is nearest to each example, and the means are known only after
the last batch: it takes a second pass, :meth:`CollapseSummary.disagrees`, which :func:`neural_collapse` makes itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from unhinge.metrics.checks import Labels, Numbers, as_labels, as_numbers, at_least_single
from unhinge.nn.angles import smallest_angle, unit_rows
from unhinge.nn.contract import check_size
from unhinge.theory.collapse import collapse_measures
from unhinge.theory.linear.summary import HardSummary
from unhinge.theory.numerics import float64_device, safe_norm, unit_of
from unhinge.theory.processes import sum_over_processes

__all__ = ["WIDEST_COVARIANCE", "CollapseSummary", "neural_collapse", "summarize_collapse"]

WIDEST_COVARIANCE = 4096  # beyond it a stream leaves nc1 out, which needs p x p numbers: 128 MB here

# Numbers turned to float64 at once: 32 MB, so that a large batch in half precision does not grow fourfold.
CHUNK = 1 << 22
OF_FEATURES = ("nc1", "nc1_ratio", "nc2_norm_features", "nc2_angle_features", "nc2_etf_features")
OF_WEIGHT = ("nc2_norm_weight", "nc2_angle_weight", "nc2_etf_weight")


@dataclass(frozen=True)
class CollapseSummary:
    """What a pass over batches keeps. Summaries of two parts add up to the summary of the whole (``a + b``).

    All sums are float64, deviations are taken from class means and merged without cancellation, and every step is
    differentiable in the features (but for :meth:`all_reduce`).

    Example:
        >>> x, y = torch.randn(12, 3), torch.arange(12) % 4
        >>> whole = CollapseSummary.of(x, y, num_classes=4)
        >>> first = CollapseSummary.of(x[:5], y[:5], 4)
        >>> parts = first + CollapseSummary.of(x[5:], y[5:], 4)
        >>> torch.allclose(whole.measures()["nc1"], parts.measures()["nc1"])
        True
    """

    classes: HardSummary  # counts, class sums, scatter around the class means
    within: Tensor | None  # (p, p), sum of (h - mean of its class)(h - mean of its class)^T, in squares of classes.unit
    directions: Tensor  # (C, p), class sums of h / |h|
    norms: Tensor  # (), sum of |h|

    @classmethod
    def empty(
        cls,
        num_classes: int,
        dim: int,
        covariance: bool = True,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> CollapseSummary:
        """The summary of no examples, where a sum starts, and what a process without data brings to a reduction."""
        zeros = torch.zeros(num_classes, dim, dtype=torch.float64, device=device)
        nothing = torch.zeros((), dtype=torch.float64)
        classes = HardSummary(torch.zeros(num_classes, dtype=torch.int64), zeros, nothing, dtype)
        return cls(classes, zeros.new_zeros(dim, dim) if covariance else None, zeros, zeros.new_zeros(()))

    @classmethod
    def of(cls, features: Numbers, target: Labels, num_classes: int, covariance: bool = True) -> CollapseSummary:
        r"""The summary of one batch.

        Arguments:
            features: :math:`H`, shape :math:`(n, p)`, of any float dtype.
            target: Labels :math:`y`, shape :math:`(n,)`.
            num_classes: The number of classes :math:`C`.
            covariance: Keep the :math:`p \times p` matrix that ``nc1`` needs.
        """
        check_size("num_classes", num_classes)
        rows = as_numbers("features", features, ("n", "p"))
        labels = as_labels("target", target, len(rows), num_classes).to(float64_device(rows))
        size = max(1, CHUNK // rows.shape[1])
        chunks = zip(rows.split(size), labels.split(size), strict=True)
        return reduce(add, (cls._of_chunk(chunk, part, num_classes, covariance) for chunk, part in chunks))

    @classmethod
    def _of_chunk(cls, features: Tensor, labels: Tensor, num_classes: int, covariance: bool) -> CollapseSummary:
        h = features.to(labels.device, torch.float64)
        counts = torch.bincount(labels, minlength=num_classes)
        zeros = h.new_zeros(num_classes, h.shape[1])
        sums = zeros.index_add(0, labels, h)
        unit = unit_of(h)
        apart = (h - (sums / counts.clamp(min=1)[:, None])[labels]) / unit
        return cls(
            HardSummary(counts.cpu(), sums, apart.pow(2).sum().cpu(), features.dtype, unit),
            apart.mT @ apart if covariance else None,
            zeros.index_add(0, labels, unit_rows(h)),
            safe_norm(h, 1).sum(),
        )

    @property
    def counts(self) -> Tensor:
        """Examples of each class, shape :math:`(C,)`."""
        return self.classes.counts

    @property
    def means(self) -> Tensor:
        r"""Class means, shape :math:`(C, p)`; zero for a class without examples."""
        return self.classes.means()

    def __add__(self, other: CollapseSummary) -> CollapseSummary:
        if self.directions.shape != other.directions.shape or (self.within is None) != (other.within is None):
            raise ValueError(
                f"cannot add summaries of (classes, dimensions) {tuple(self.directions.shape)} and "
                f"{tuple(other.directions.shape)}, or one with and one without a covariance; make all parts alike."
            )
        classes, within = self.classes + other.classes, None
        if self.within is not None and other.within is not None:
            # Chan, Golub & LeVeque, as for the scatter of the classes; only classes in both parts have moved
            share = self.counts.double() * other.counts / (self.counts + other.counts).clamp(min=1)
            both = share > 0
            gap = (self.means - other.means)[both.to(self.means.device)] / classes.unit
            own = _in_units(self.within, self.classes.unit, classes.unit)
            others = _in_units(other.within, other.classes.unit, classes.unit)
            within = own + others + gap.mT @ (share[both].to(gap)[:, None] * gap)
        return CollapseSummary(
            replace(classes, dtype=_wider(self, other)),
            within,
            self.directions + other.directions,
            self.norms + other.norms,
        )

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> CollapseSummary:
        """The sum over all processes of a ``torch.distributed`` group, on each of them; cuts the gradient."""
        whole, within = self.classes.all_reduce(group), None
        if self.within is not None:
            # Each part adds its own distance from the common means, so a plain sum merges the covariance too.
            shift = ((self.means - whole.means()) / whole.unit).detach()
            own = _in_units(self.within, self.classes.unit, whole.unit)
            within = sum_over_processes(own + shift.mT @ (self.counts.to(shift)[:, None] * shift), group)
        return CollapseSummary(
            whole,
            within,
            sum_over_processes(self.directions, group),
            sum_over_processes(self.norms, group),
        )

    def measures(self, weight: Numbers | None = None) -> dict[str, Tensor]:
        r"""All measures of :func:`neural_collapse` but ``nc4``, which needs the examples again.

        Arguments:
            weight: Prototypes :math:`W`, shape :math:`(C, p)`; without them only the measures of features are given.
        """
        present = self.counts > 0
        if int(present.sum()) < 2:
            raise ValueError(
                f"neural collapse needs examples of at least 2 classes, got {int(present.sum())}. "
                "Add more batches, or shuffle the data."
            )
        size = int(self.counts.sum())
        means = self.means.cpu()[present] / self.classes.unit
        within = None if self.within is None else self.within.cpu() / size
        scatter = self.classes.scatter / size
        rows = None if weight is None else as_numbers("weight", weight, tuple(self.directions.shape))
        if rows is None:
            alone = _measured(means, means, scatter, within)
            measures = {key: alone[key] for key in OF_FEATURES if key in alone}
        else:
            rows = rows.to("cpu", torch.float64)
            measures = _against_prototypes(means, rows, present, scatter, within)
            measures |= _of_prototypes(rows)
            measures["feature_alignment"] = (unit_rows(rows) * self.directions.cpu()).sum() / size
        measures["feature_norm_mean"] = self.norms.cpu() / size
        return {key: value.to(at_least_single(self.classes.dtype)) for key, value in measures.items()}

    @torch.no_grad()
    def disagrees(self, features: Numbers, weight: Numbers, bias: Numbers | None = None) -> Tensor:
        r"""Where :math:`\arg\max_c (w_c^\top h + b_c) \ne \arg\min_c \|h - \mu_c\|`, the second pass that NC4 needs.

        Arguments:
            features: Examples, shape :math:`(n, p)`, of the pass that made this summary, or of a test set.
            weight: Prototypes, shape :math:`(C, p)`.
            bias: Biases, shape :math:`(C,)`.

        Returns:
            Booleans of shape :math:`(n,)`: NC4 is their mean, over as many batches and processes as there are. Of
            equal logits or distances the first class counts; classes without examples have no center.
        """
        num_classes, dim = self.directions.shape
        h = as_numbers("features", features, ("n", dim))
        w = as_numbers("weight", weight, (num_classes, dim)).to(float64_device(h), torch.float64)
        b = 0.0 if bias is None else as_numbers("bias", bias, (num_classes,)).to(w)
        if bias is None:  # then the length of the prototypes does not matter, nor do products that vanish
            w = w / unit_of(w)
        unit = unit_of(h)
        means, present = self.means.to(w) / unit, (self.counts > 0).to(w.device)
        # Distances from a point amid the centers: the squares cancel least, and the nearest stays the nearest.
        middle = means[present].mean(0)
        centers = means - middle
        lengths = torch.where(present, centers.pow(2).sum(1) / 2, torch.inf)
        parts = []
        for chunk in h.split(max(1, CHUNK // max(dim, num_classes))):
            wide = chunk.to(w) / unit
            nearest = ((wide - middle) @ centers.mT - lengths).argmax(1)
            logits = wide @ w.mT if bias is None else (unit * wide) @ w.mT + b
            parts.append(logits.argmax(1) != nearest)
        return torch.cat(parts).to(h.device)


def summarize_collapse(
    batches: Iterable[tuple[Numbers, Labels]], num_classes: int, covariance: bool = True
) -> CollapseSummary:
    r"""One pass over `batches` of `(features, target)`; memory does not depend on the number of examples.

    Kept are the class sums :math:`\sum_{y_i=c} h_i`, the scatter within the classes and sums of directions and norms.

    Arguments:
        batches: Pairs of features :math:`(b, p)` and labels :math:`(b,)`.
        num_classes: :math:`C`.
        covariance: Whether to keep the :math:`(p, p)` matrix that NC1 needs.

    Example:
        >>> x, y = torch.randn(12, 3), torch.arange(12) % 4
        >>> summary = summarize_collapse(zip(x.split(5), y.split(5)), num_classes=4)
        >>> summary.counts.tolist(), sorted(summary.measures())[:3]
        ([3, 3, 3, 3], ['feature_norm_mean', 'nc1', 'nc1_ratio'])
    """
    whole: CollapseSummary | None = None
    for features, target in batches:
        part = CollapseSummary.of(features, target, num_classes, covariance)
        whole = part if whole is None else whole + part
    if whole is None:
        raise ValueError("the iterable of batches is empty; it must yield (features, target) pairs.")
    return whole


def neural_collapse(
    features: Numbers,
    weight: Numbers | None,
    target: Labels,
    bias: Numbers | None = None,
    num_classes: int | None = None,
) -> dict[str, Tensor]:
    r"""How far features and prototypes have collapsed; differentiable in both, but for ``nc4``.

    Arguments:
        features: :math:`H`, shape :math:`(n, p)`, of any float dtype; all sums are taken in float64.
        weight: Prototypes :math:`W`, shape :math:`(C, p)`, or None for the measures of features alone.
        target: Labels :math:`y`, shape :math:`(n,)`.
        bias: Biases, shape :math:`(C,)`; only ``nc4`` asks for them.
        num_classes: :math:`C`, where there is no `weight` to tell it; else the largest label plus one.

    Returns:
        Scalars in the dtype of the features (at least float32) and on their device. Zero at collapse:

        - ``nc1``: :math:`\operatorname{tr}(\Sigma_W\Sigma_B^\dagger) / C`, and
          ``nc1_ratio``: :math:`\operatorname{tr}\Sigma_W / \operatorname{tr}\Sigma_B`;
        - ``nc2_norm_*``, ``nc2_angle_*``, ``nc2_etf_*`` for ``features`` (centered class means) and ``weight``:
          spread of the norms, mean :math:`|\cos + 1/(C-1)|`, distance of the Gram matrix from a simplex ETF's;
        - ``nc3``: :math:`\| W/\|W\| - \bar M/\|\bar M\| \|`;
        - ``nc4``: share of examples that the classifier and the nearest class mean put into different classes.

        One at collapse: ``alignment``, mean cosine of each prototype and its centered class mean;
        ``feature_alignment``, mean cosine :math:`\kappa` of each example and its prototype (the paper's
        :math:`\|\hat H - \hat W (I \otimes 1^\top)\|` is :math:`\sqrt{2n(1 - \kappa)}`); ``weight_norm_ratio``,
        :math:`\max_c\|w_c\| / \min_c\|w_c\|`.

        What the paper watches besides: ``feature_norm_mean``, the mean of :math:`\|h_i\|`; ``weight_norm_min``,
        :math:`\min_c\|w_c\|`; ``weight_angle_min``, :math:`\min_{i \ne j}\angle(w_i, w_j)` in radians.

        A class without examples is left out: measures of features go by the classes there are, those of prototypes
        alone by all, and ``nc3`` and ``alignment`` compare both over the classes there are, centered anew (vertices
        of a simplex, centered, are a simplex again, so collapse still reads as collapse).

    Example:
        >>> frame = torch.eye(3) - 1 / 3
        >>> measures = neural_collapse(
        ...     5 * frame.repeat(4, 1), frame, torch.arange(3).repeat(4)
        ... )
        >>> zeros = [
        ...     value.item() for key, value in measures.items() if key.startswith("nc")
        ... ]
        >>> max(zeros) < 1e-6, round(measures["alignment"].item(), 6)
        (True, 1.0)
    """
    rows = as_numbers("features", features, ("n", "p"))
    if weight is not None and np.ndim(weight) == 1 and np.ndim(target) == 2:
        raise ValueError(
            "weight has one dimension and target two: the order is neural_collapse(features, weight, target)."
        )
    if weight is not None:
        prototypes = as_numbers("weight", weight, ("C", rows.shape[1]))
        if num_classes is not None and num_classes != len(prototypes):
            raise ValueError(
                f"num_classes={num_classes}, but weight has {len(prototypes)} rows; leave num_classes out."
            )
        num_classes = len(prototypes)
    elif num_classes is None:
        labels = as_labels("target", target, len(rows), torch.iinfo(torch.int64).max)
        num_classes = int(labels.max()) + 1
    summary = CollapseSummary.of(rows, target, num_classes)
    measures = summary.measures(weight)
    if weight is not None:
        measures["nc4"] = summary.disagrees(rows, weight, bias).to(measures["nc3"]).mean()
    return {key: value.to(rows.device) for key, value in measures.items()}


def _against_prototypes(
    means: Tensor, weight: Tensor, present: Tensor, scatter: Tensor, within: Tensor | None
) -> dict[str, Tensor]:
    """Measures of the means of the present classes and of the prototypes; those of prototypes alone go by all."""
    if bool(present.all()):
        return _measured(means, weight, scatter, within)
    rows = weight[present]
    alone = _measured(weight, weight, torch.zeros_like(scatter), None)
    return _measured(means, rows - rows.mean(0), scatter, within) | {key: alone[key] for key in OF_WEIGHT}


def _measured(means: Tensor, weight: Tensor, scatter: Tensor, within: Tensor | None) -> dict[str, Tensor]:
    """The measures, on the span of means and prototypes where that is smaller than the feature space."""
    stacked = torch.cat([means, weight])
    turns = stacked.requires_grad or (within is not None and within.requires_grad)
    # No shortcut for gradients: a fixed basis loses the part that turns the span, a moving one has none at collapse,
    # where means and prototypes are dependent.
    if len(stacked) < stacked.shape[1] and not turns:
        basis = torch.linalg.qr(stacked.mT)[0]
        means, weight = means @ basis, weight @ basis
        within = None if within is None else basis.mT @ within @ basis
    return collapse_measures(means, weight, scatter, within)


def _of_prototypes(weight: Tensor) -> dict[str, Tensor]:
    """Norms of the prototypes, and the angle between the closest two."""
    lengths = safe_norm(weight, 1)
    low, high = lengths.min(), lengths.max()
    ratio = torch.where(low > 0, high / torch.where(low > 0, low, 1.0), torch.inf if high > 0 else 1.0)
    return {"weight_norm_ratio": ratio, "weight_norm_min": low, "weight_angle_min": smallest_angle(weight)}


def _in_units(within: Tensor, unit: float, wanted: float) -> Tensor:
    """Products of two lengths, given in squares of `unit`, in squares of another."""
    return within if unit == wanted else within * (unit / wanted) * (unit / wanted)


def _wider(a: CollapseSummary, b: CollapseSummary) -> torch.dtype:
    """The dtype of a sum: that of the parts that have examples."""
    dtypes = [part.classes.dtype for part in (a, b) if int(part.counts.sum())]
    return torch.promote_types(dtypes[0], dtypes[-1]) if dtypes else a.classes.dtype
