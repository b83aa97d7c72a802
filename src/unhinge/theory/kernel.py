r"""Features that share parameters: gradient flow through a constant kernel (Theorem 5, replaced)  [eq: kernel-flow].

A network moves its features by :math:`\mathrm{vec}(H)' = -\eta_1 K \nabla_H` with the neural tangent kernel
:math:`K`; where K stays constant the flow is linear: :math:`h' = \eta_1 K(m w - \lambda_1 h)`,
:math:`w' = \eta_2(m^\top h - \lambda_2 w)`, :math:`m` the action of the targets :math:`M^\top` on prototypes. Without
feature decay it closes on :math:`G = m^\top K m`, of the size of the prototypes, and needs neither an inverse nor a
root of K: singular K is fine.

Everything reduces to *modes*: :math:`h = h_0 + R\,j(t)`, :math:`w = B\,x(t)` with fixed `response` R and `basis` B, and
coordinates j, x that move independently. An example kernel :math:`K_x \otimes I_p` moves all p columns of the
features alike, so its modes are those of a C-by-C matrix with p columns; a full kernel has pC modes with one column.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unhinge.theory.collapse import collapse_measures
from unhinge.theory.path import CHUNK, first_time_below
from unhinge.theory.propagators import safe_divide, safe_sqrt
from unhinge.theory.schedules import Schedule, rate_pair
from unhinge.theory.spectrum import Spectrum
from unhinge.theory.state import State, fitting_scale
from unhinge.theory.symbols import FlowSymbol, falling
from unhinge.theory.targets import Targets, class_sums
from unhinge.theory.validation import check_alike, check_start, check_tensor

__all__ = ["KernelPath", "solve_kernel"]

EPS = torch.finfo(torch.float64).eps


# ---- the targets as an action --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coupling:
    r"""The target matrix :math:`M = A B^\top` as an action; for integer labels by class sums, nothing is C by n."""

    targets: Targets
    matrix: Tensor  # (C, r) float64, A

    def gather(self, rows: Tensor) -> Tensor:
        r""":math:`M H`, shape :math:`(C, q)` from :math:`(n, q)`."""
        return self.matrix.to(rows) @ self.targets.reduce(rows)

    def scatter(self, weight: Tensor) -> Tensor:
        r""":math:`M^\top W`, shape :math:`(*, n, q)` from :math:`(*, C, q)`."""
        return self.targets.expand(self.matrix.to(weight).mT @ weight)


def couple(targets: Targets, spectrum: Spectrum) -> Coupling:
    """The small factor of M from its modes, with the class weights and the exact gamma they carry."""
    size = targets.reduce(torch.zeros(targets.size, 1, dtype=torch.float64, device=targets.labels.device)).shape[0]
    eye = torch.eye(size, dtype=torch.float64)
    rows, _ = spectrum.analyze(eye, torch.zeros(targets.num_classes, size, dtype=torch.float64))
    _, matrix = spectrum.synthesize(rows, spectrum.sigma[spectrum.group, None] * rows)
    return Coupling(targets, matrix.detach())


# ---- the kernel as a product ---------------------------------------------------------------------------------------


def kernel_kind(kernel: Any, size: int, dim: int) -> str:
    """``"example"`` for (n, n), ``"full"`` for (n p, n p); an operator without a shape says it by its `kind`."""
    shape = tuple(kernel.shape) if isinstance(kernel, Tensor) or _speaks_numpy(kernel) else None
    if shape is None:
        if not callable(kernel):
            raise ValueError(
                f"kernel must be a tensor, a function of the features' shape or a linear operator, got "
                f"{type(kernel).__name__}. Convert an array with torch.as_tensor(kernel)."
            )
        kind = getattr(kernel, "kind", "full")
        if kind not in ("example", "full"):
            raise ValueError(f'the kind of a kernel operator must be "example" or "full", got {kind!r}.')
        return str(kind)
    if shape == (size, size):
        return "example"
    if shape == (size * dim, size * dim):
        return "full"
    raise ValueError(
        f"kernel must have shape (n, n) = {(size, size)} or (n p, n p) = {(size * dim, size * dim)} for features "
        f"{(size, dim)}, got {shape}. A full kernel is indexed by features.reshape(-1): the p entries of one "
        "example are neighbors."
    )


def _speaks_numpy(kernel: Any) -> bool:
    """A scipy LinearOperator or sparse matrix: has a shape and multiplies arrays."""
    return not isinstance(kernel, Tensor) and hasattr(kernel, "shape") and hasattr(kernel, "__matmul__")


def product(kernel: Any, size: int) -> Callable[[Tensor], Tensor]:
    """`kernel` as a function of rows (n, q) to rows (`size`, q), whatever it is made of."""

    def apply(rows: Tensor) -> Tensor:
        if isinstance(kernel, Tensor):
            flat = kernel.shape[1] != len(rows)
            out = kernel @ (rows.reshape(-1) if flat else rows)
        elif _speaks_numpy(kernel):
            flat = kernel.shape[1] != len(rows)
            plain = rows.detach().cpu().numpy()
            out = torch.as_tensor(kernel @ (plain.reshape(-1) if flat else plain)).to(rows)
        else:
            out = _call(kernel, rows, size)
        if out.numel() != size * rows.shape[1]:
            raise ValueError(
                f"the kernel must turn {tuple(rows.shape)} into {(size, rows.shape[1])}, but it returned "
                f"{tuple(out.shape)}."
            )
        if not bool(torch.isfinite(out).all()):
            raise ValueError(
                "a product with the kernel is NaN or infinite; check the operator on a single example first."
            )
        return out.reshape(size, rows.shape[1])

    return apply


def _call(kernel: Callable[[Tensor], Any], rows: Tensor, size: int) -> Tensor:
    """A function of rows, or of the same numbers in one vector."""
    try:
        out = kernel(rows)
        if isinstance(out, Tensor) and out.numel() == size * rows.shape[1]:
            return out.detach()
        trouble = f"returned {tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__}"
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        trouble = f"raised {type(error).__name__}: {error}"
    try:
        out = kernel(rows.reshape(-1))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"the kernel could be applied neither to rows {tuple(rows.shape)} (it {trouble}) nor to one vector of "
            f"{rows.numel()} numbers (it raised {type(error).__name__}: {error})."
        ) from error
    return torch.as_tensor(out).detach()


def respond(kernel: Any, kind: str, coupling: Coupling, like: Tensor) -> Tensor:
    r""":math:`K m`: how the features answer a unit of each prototype entry, shape (n, C) or (n p, C p), float64."""
    (size, dim), classes = like.shape, coupling.targets.num_classes
    if isinstance(kernel, Tensor):
        # K m = (m^T K)^T by class sums over its rows, in double precision a block of columns at a time
        wide = kernel.detach().reshape(size, -1)
        blocks = wide.split(max(1, CHUNK // size), dim=1)
        gathered = torch.cat([coupling.gather(block.double()) for block in blocks], 1)
        return gathered.mT if kind == "example" else gathered.reshape(classes * dim, size * dim).mT
    apply = product(kernel, size)
    pulls = coupling.scatter(torch.eye(classes, dtype=torch.float64, device=like.device)).to(like)  # (n, C)
    if kind == "example":
        return apply(pulls).double()
    columns = []
    for entry in range(classes * dim):
        rows = torch.zeros_like(like)
        rows[:, entry % dim] = pulls[:, entry // dim]
        columns.append(apply(rows).reshape(-1).double())
    return torch.stack(columns, 1)


def check_symmetric(name: str, matrix: Tensor, eps: float) -> None:
    """Kernels are sums of many products, so the budget is a generous power of the precision they were summed in."""
    largest = matrix.abs().max().item()
    uneven = (matrix - matrix.mT).abs().max().item()
    if uneven > eps ** (2 / 3) * largest:
        raise ValueError(
            f"{name} must be symmetric, but entries differ from their mirror image by up to {uneven:.3g} (largest "
            f"entry {largest:.3g}). A kernel of gradients is J J^T; if this is rounding, pass (kernel + kernel.mT) / 2."
        )


def eigen(name: str, matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Eigenvalues, descending, and eigenvectors of a matrix that must have none below 0; rounding-level ones are 0."""
    check_symmetric(name, matrix, eps)
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    values, vectors = values.flip(0), vectors.flip(1)
    size = values.abs().max()
    if values[-1] < -(eps ** (2 / 3)) * size:
        raise ValueError(
            f"the kernel must be positive semidefinite, but {name} has the eigenvalue {values[-1].item():.6g} "
            f"(largest: {values[0].item():.6g}). Pass a kernel of the form J J^T."
        )
    noise = 4 * len(values) * EPS * size
    values = torch.where(values > noise, values, 0.0)
    # values that differ by rounding only share one: otherwise a tie would break after a long time
    opens = torch.cat([torch.ones(1, dtype=torch.bool, device=values.device), values[:-1] - values[1:] > noise])
    group = torch.cumsum(opens, 0) - 1
    members = torch.bincount(group).to(values)
    return (torch.zeros_like(members).index_add(0, group, values) / members)[group], vectors


# ---- how the modes move --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Motion:
    r"""Coordinates at the asked times; the true ones are :math:`e^{\text{exponent} \cdot u}` times these, by mode."""

    features: Tensor  # (*, k, q), j
    weight: Tensor  # (*, k, q), x


@dataclass(frozen=True)
class Parts:
    r"""The same motion as a sum of exponentials, a constant and a linear part: what limits and rates are read from."""

    exponent: Tensor  # (P, k)
    features: Tensor  # (P, k, q)
    weight: Tensor  # (P, k, q)
    present: Tensor  # (P, k) bool, beyond rounding
    constant: tuple[Tensor, Tensor]  # (k, q) each: features, weight
    linear: tuple[Tensor, Tensor]  # (k, q) each, factors of u
    blur: Tensor  # (k,), relative uncertainty of `constant`


@dataclass(frozen=True)
class FreeModes:
    r"""No feature decay: eigenmodes of G, each a 2 x 2 system in :math:`(y, w)`, :math:`y = m^\top h`.

    :math:`y' = sg\,w`, :math:`w' = y - \lambda_2 w` per unit of :math:`u = \zeta_2`, with roots
    :math:`-\mu \pm \delta`, :math:`\mu = \lambda_2/2`, :math:`\delta = \sqrt{\mu^2 + sg}`; the features follow
    :math:`j = s\int w`.
    """

    gain: Tensor  # (k,), s g
    ratio: Tensor  # (), s
    decay: Tensor  # (), lambda_2
    weight: Tensor  # (k, q), w at the start
    pulled: Tensor  # (k, q), y at the start
    growing: Tensor  # (k,) bool, whether the start has a part on the larger root

    @property
    def _half(self) -> Tensor:
        return self.decay / 2

    @cached_property
    def _radius(self) -> Tensor:
        return safe_sqrt(self._half**2 + self.gain)

    @cached_property
    def _upper(self) -> Tensor:
        """The larger root, without cancellation."""
        return safe_divide(self.gain, self._radius + self._half)

    @property
    def exponent(self) -> Tensor:
        """Of each mode as :meth:`motion` scales it."""
        return torch.where(self.growing, self._upper, 0.0)

    def motion(self, clock: Tensor) -> Motion:
        u = clock[..., None]
        half, radius, upper = self._half, self._radius, self._upper
        lower = radius + half
        # relative to e^{upper u}: w = keep w0 + push y0, integral of w = push w0 + pile y0
        tilt = safe_divide(half, radius)
        small = torch.where(radius > 0, safe_divide(self.gain, radius * lower), 1.0)  # 1 - mu / delta
        fade = torch.exp(-2 * radius * u)
        keep = torch.where(radius > 0, (small + fade * (1 + tilt)) / 2, 1.0)
        push = u * falling(2 * radius * u)
        near = 2 * radius * u < 1
        late = u * safe_divide(falling(upper * u) - torch.exp(-upper * u) * falling(lower * u), 2 * radius)
        early = torch.where(near, u, 0.0)
        pile = torch.where(near, early**2 * second_difference(upper * early, 2 * radius * early), late)
        moves = self.gain > 0
        weight = keep[..., None] * self.weight + push[..., None] * self.pulled
        piled = torch.where(moves, pile, 0.0)[..., None] * self.pulled
        features = self.ratio * (torch.where(moves, push, 0.0)[..., None] * self.weight + piled)
        # a mode without its growing part: only the smaller root and a constant, or else rounding would grow
        down = torch.exp(-lower * u)[..., None]
        minus, fixed = self._minus, self._fixed
        lone = (moves & ~self.growing)[:, None]
        weight = torch.where(lone, -lower[:, None] * minus * down, weight)
        features = torch.where(lone, self.ratio * minus * down + fixed, features)
        return Motion(features, weight)

    @property
    def _plus(self) -> Tensor:
        upper = self._upper[:, None]
        return safe_divide(self.pulled + upper * self.weight, self.gain[:, None] + upper**2)

    @property
    def _minus(self) -> Tensor:
        lower = -(self._radius + self._half)[:, None]
        return safe_divide(self.pulled + lower * self.weight, self.gain[:, None] + lower**2)

    @property
    def _fixed(self) -> Tensor:
        """What the features of a mode move around: -y0 / g."""
        return -self.ratio * safe_divide(self.pulled, self.gain[:, None])

    def parts(self) -> Parts:
        moves, damped = (self.gain > 0)[:, None], (self._radius > 0)[:, None]
        up = torch.where(moves & self.growing[:, None], self._plus, 0.0)
        down = torch.where(damped, self._minus, 0.0)
        lower = -(self._radius + self._half)
        exponent = torch.stack([self._upper, lower])
        features = self.ratio * torch.stack([up, torch.where(moves, down, 0.0)])
        weight = exponent[..., None] * torch.stack([up, down])
        present = torch.stack([self.growing & moves[:, 0], weight[1].detach().norm(dim=-1) > self._noise])
        zero = torch.zeros_like(self.weight)
        resting = torch.where(damped, safe_divide(self.pulled, self.decay), self.weight)
        constant = self._fixed, torch.where(moves, 0.0, resting)
        linear = zero, torch.where(moves | damped, 0.0, self.pulled)
        blur = 32 * EPS * safe_divide(self.gain.max(), self.gain)
        return Parts(exponent, features, weight, present, constant, linear, blur)

    @property
    def _noise(self) -> Tensor:
        noise: Tensor = 32 * EPS * self.weight.detach().norm()
        return noise


@dataclass(frozen=True)
class DampedModes:
    r"""Feature decay too: :math:`h = h_0 + K^{1/2} g`, and :math:`(g, \sqrt s\,w)` obeys :math:`x' = S x + c` with a
    symmetric S, so each eigenmode is one exponential and a constant drive."""

    exponent_all: Tensor  # (k,), theta
    start: Tensor  # (k, q)
    drive: Tensor  # (k, q)
    growing: Tensor  # (k,) bool

    @property
    def exponent(self) -> Tensor:
        return torch.where(self.growing, self.exponent_all, 0.0)

    def motion(self, clock: Tensor) -> Motion:
        u = clock[..., None]
        theta = self.exponent_all
        rising = torch.where(self.growing, theta, 0.0)
        sinking = theta.clamp(max=0)
        push = torch.where(self.growing, u * falling(rising * u), u * falling(-sinking * u))
        keep = torch.exp(sinking * u)
        value = keep[..., None] * self.start + push[..., None] * self.drive
        lone = (theta > 0) & ~self.growing
        value = torch.where(lone[:, None], -safe_divide(self.drive, theta[:, None]), value)
        return Motion(value, value)

    def parts(self) -> Parts:
        theta = self.exponent_all[:, None]
        fixed = -safe_divide(self.drive, theta)
        moving = torch.where((theta == 0) | ((theta > 0) & ~self.growing[:, None]), 0.0, self.start - fixed)
        size = self.start.detach().norm() + self.drive.detach().norm() / theta.abs().max().clamp(min=1e-300)
        present = moving.detach().norm(dim=-1) > 32 * EPS * size
        constant = torch.where(theta == 0, self.start, fixed)
        linear = torch.where(theta == 0, self.drive, 0.0)
        blur = 32 * EPS * safe_divide(theta.abs().max(), theta[:, 0].abs())
        both = constant, constant
        return Parts(self.exponent_all[None], moving[None], moving[None], present[None], both, (linear, linear), blur)


def second_difference(a: Tensor, c: Tensor) -> Tensor:
    r"""The second divided difference of exp at :math:`0, -a, -c` for :math:`0 \le a \le c \le 1`, by its power series.

    :math:`\sum_k h_k(-a, -c) / (k+2)!` with the complete symmetric polynomials h; 1/2 at zero.
    """
    total = torch.full_like(c, 0.5)
    symmetric, power = torch.ones_like(c), torch.ones_like(c)
    factorial = 2.0
    for k in range(1, 18):
        power = -a * power
        symmetric = -c * symmetric + power
        factorial *= k + 2
        total = total + symmetric / factorial
    return total


# ---- the path ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelPath:
    """The exact path of features that move through a constant kernel; made by `LayerPeeled.kernel_flow`.

    `Z` is (H, W) as everywhere. Answers are differentiable in the initial features, prototypes and biases, not in the
    kernel, gamma or the decays.
    """

    modes: FreeModes | DampedModes
    response: Tensor  # (rows, k), R, rows = n (example kernel) or n p (full)
    basis: Tensor  # (C or C p, k) float64, B
    pull: Tensor | None  # (rows, k), K^{-1/2} of the modes; None: the pull is that of the prototypes, by class sums
    coupling: Coupling
    features: Tensor  # (n, p), at the start
    weight: Tensor  # (C, p), at the start
    start_bias: Tensor | None  # (C,)
    drive: Tensor  # (C,) float64, constant pull on the biases
    weight_decay: Tensor  # ()
    schedule: Schedule  # of the prototypes

    # ---- the state -------------------------------------------------------------------------------------------

    def at(self, time: Any) -> State:
        r"""The state at each time."""
        moments = self._times(time)
        lead, keep, moved, weight = self._relative(moments)
        scale = fitting_scale(self._log_norm(moments).detach(), self._dtype)
        factor = torch.exp(lead - scale)[..., None, None]
        return State(
            self._features(keep * factor[..., 0, 0], moved * factor),
            self._weight(weight * factor),
            None if self.start_bias is None else self._like(self._bias(moments)),
            self._like(scale),
        )

    def predict(self, cross_kernel: Any, features: Tensor, time: Any) -> Tensor:
        r"""Features of unseen inputs, :math:`h_	ext{new}(t) = h_	ext{new}(0) + K_	ext{new,train}\,j(t)`.

        Arguments:
            cross_kernel: :math:`K_	ext{new,train}` in the form of `kernel`: shape :math:`(n', n)` or
                :math:`(n' p, n p)`, or an operator that turns rows (n, p) into rows (n', p).
            features: Initial features of the unseen inputs, shape :math:`(n', p)`.
            time: When; a scalar or a tensor.

        Returns:
            Shape :math:`(*, n', p)`, on the scale of :meth:`at`: divided by the exponential of its `log_scale`.

        Example:
            >>> from unhinge import LayerPeeled
            >>> x = torch.tensor([[0.0], [1.0], [5.0], [6.0]], dtype=torch.float64)
            >>> kernel = torch.exp(-(torch.cdist(x, x) ** 2))
            >>> problem = LayerPeeled(torch.tensor([0, 0, 1, 1]), num_classes=2)
            >>> weight = torch.eye(2, dtype=torch.float64)
            >>> path = problem.kernel_flow(torch.zeros(4, 2, dtype=torch.float64), weight, kernel, lr=0.1)
            >>> new = torch.tensor([[0.4], [5.7]], dtype=torch.float64)
            >>> moved = path.predict(
            ...     torch.exp(-(torch.cdist(new, x) ** 2)), torch.zeros(2, 2, dtype=torch.float64), 20.0
            ... )
            >>> (moved @ path.at(20.0).weight.mT).argmax(1)
            tensor([0, 1])
        """
        size, dim = self.features.shape
        check_tensor("features", features, (None, dim))
        check_alike(features=self.features, new=features)
        self._check_cross(cross_kernel, len(features))
        moments = self._times(time)
        lead, _, moved, _ = self._relative(moments)
        scale = fitting_scale(self._log_norm(moments).detach(), self._dtype)
        moved = moved * torch.exp(lead - scale)[..., None, None]
        apply = product(cross_kernel, len(features))
        drives = self._pull(moved).reshape(-1, size, dim)
        pushed = [apply(drive) for drive in drives]
        shift = torch.stack(pushed) if pushed else features.new_zeros(0, *features.shape)
        return self._like(torch.exp(-scale))[..., None, None] * features + shift.reshape(
            *moments.shape, *features.shape
        )

    def direction(self) -> State:
        r"""The limit of :math:`Z / \|Z\|` as the integrated rate grows without bound: the top eigenspace of G that the
        start has a part in."""
        self._check_start()
        keep, moved, weight = self._lead
        return State(self._features(keep, moved), self._weight(weight)).normalized()

    def limit(self) -> State:
        r"""The limit of :math:`Z` itself; an error if it diverges."""
        shape = self.schedule.shape
        if shape.floor == 0 and math.isfinite(shape.settles):
            return self.at(shape.settles)
        growth = self._reference.item()
        if growth > 0 or self._linear:
            how = f"exp({growth:.6g} x integrated rate)" if growth > 0 else "the integrated rate"
            raise ValueError(f"Z diverges: its norm grows as {how}. Ask direction() for the limit of Z/|Z|.")
        keep, moved, weight = self._lead
        alive = 1.0 if growth == 0 else 0.0
        return State(self._features(alive * keep, alive * moved), self._weight(alive * weight), self._bias_limit())

    # ---- scalar questions: nothing of size n -----------------------------------------------------------------

    def loss(self, time: Any) -> Tensor:
        r"""Mean unhinged loss :math:`-\langle M H, W\rangle - \kappa^\top b`, without the decay terms."""
        moments = self._times(time)
        lead, keep, moved, weight = self._relative(moments)
        base, through = self._pulled
        pulled = keep[..., None, None] * base + through @ moved
        inner = -(pulled * (self.basis @ weight)).sum((-2, -1))
        value = _grown(inner, 2 * lead)
        if self.start_bias is not None:
            value = value - self._bias(moments) @ self.drive
        return self._like(value)

    def feature_norm(self, time: Any) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""
        return self._side_norm(time, 0)

    def weight_norm(self, time: Any) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`."""
        return self._side_norm(time, 1)

    def log_norm(self, time: Any) -> Tensor:
        r""":math:`\log\|Z\|`, finite where :math:`\|Z\|` itself overflows."""
        return self._like(self._log_norm(self._times(time)))

    def distance(self, time: Any) -> Tensor:
        r""":math:`\| Z/\|Z\| - \text{direction} \|`, accurate however small."""
        self._check_start()
        return self._like(self._distance(self._times(time)))

    def growth(self, lr: float | None = None) -> Tensor:
        r"""Exponent of :math:`\|Z\|` per unit of time at a constant rate; without decay
        :math:`\sqrt{s g}\,\eta_2` for the largest eigenvalue g of G that the start has a part in.

        Arguments:
            lr: The rate of the prototypes; by default the one the schedule ends with.
        """
        return self._like(self._reference * self._steady(lr))

    def rate(self, lr: float | None = None) -> Tensor:
        r"""Exponent of :meth:`distance`, negative; 0 where it falls only as 1 over the integrated rate, minus
        infinity if nothing but the direction is there."""
        self._check_start()
        parts, reference = self._parts, self._reference
        falls = torch.where(parts.present & ~self._leads, parts.exponent - reference, -torch.inf).amax()
        constant, linear = self._standing
        if constant and (reference > 0 or linear):
            falls = torch.maximum(falls, -reference)
        return self._like(falls * self._steady(lr))

    def time_to(self, distance: Any) -> Tensor:
        """The first time at which :meth:`distance` is at most `distance`; infinite if never."""
        self._check_start()
        shape = self.schedule.shape
        horizon = shape.settles if shape.floor == 0 and math.isfinite(shape.settles) else 1e300
        wanted = torch.as_tensor(distance, dtype=torch.float64)
        if bool((wanted <= 0).any()):
            raise ValueError("the distance must be positive; zero is reached only in the limit.")
        with torch.no_grad():
            found = [
                first_time_below(lambda t: self._distance(self._times(t)), value, horizon, False)
                for value in wanted.reshape(-1).tolist()
            ]
        return self._like(torch.tensor(found, dtype=torch.float64).reshape(wanted.shape))

    # ---- questions that look at classes or examples ----------------------------------------------------------

    def accuracy(self, time: Any) -> Tensor:
        r"""Share of examples whose largest logit is their label's (soft labels: their most probable class).

        Uses prototypes minus their mean, at their own scale, so that a common part does not drown the differences.
        """
        moments = self._times(time)
        pieces = moments.reshape(-1).split(max(1, CHUNK // self.features.numel()))
        with torch.no_grad():
            hits = [self._accuracy(piece) for piece in pieces]
        return self._like(torch.cat(hits).reshape(moments.shape))

    def collapse(self, time: Any) -> dict[str, Tensor]:
        """Neural-collapse measures at each time: see :func:`unhinge.theory.collapse.collapse_measures`."""
        moments = self._times(time)
        labels = self.coupling.targets.labels
        classes = len(self.weight)
        counts = torch.bincount(labels, minlength=classes).clamp(min=1).to(self.features)[:, None].double()
        rows = []
        for moment in moments.reshape(-1):
            lead = self._relative(moment)
            features, weight = self._features(*lead[1:3]).double(), self._weight(lead[3]).double()
            means = class_sums(features, labels, classes) / counts
            apart = features - means[labels.to(means.device)]
            within = apart.mT @ apart / len(labels)
            rows.append(collapse_measures(means, weight, within.trace(), within))
        keys = rows[0].keys() if rows else ()
        return {key: self._like(torch.stack([row[key] for row in rows]).reshape(moments.shape)) for key in keys}

    # ---- reduced coordinates: kept with their gradients, whoever asks first ---------------------------------

    @property
    def _dtype(self) -> torch.dtype:
        return self.features.dtype

    def _like(self, value: Tensor) -> Tensor:
        return value.to(self.features.device, self._dtype)

    def _times(self, time: Any) -> Tensor:
        return FlowSymbol(self.schedule.shape).times(time)

    @cached_property
    @torch.enable_grad()
    def _parts(self) -> Parts:
        return self.modes.parts()

    @cached_property
    @torch.enable_grad()
    def _axes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Triangular factor of the response, the start on its axes, and the norm of the start outside them."""
        turn, factor = torch.linalg.qr(self.response.double().cpu())
        start = self.features.double().cpu().reshape(len(turn), -1)
        along = turn.mT @ start
        return factor, along, safe_sqrt((start - turn @ along).pow(2).sum())

    @cached_property
    @torch.enable_grad()
    def _pulled(self) -> tuple[Tensor, Tensor]:
        r""":math:`M H` of the start and of each mode's features, in the layout of the prototypes."""
        size = len(self.features)
        base = self.coupling.gather(self.features.double()).cpu()
        through = self.coupling.gather(self.response.double().reshape(size, -1)).cpu()
        rows = len(self.basis)
        return base.reshape(rows, -1), through.reshape(rows, -1)

    def _sides(self, keep: Tensor, moved: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Features and prototypes on orthonormal axes, flattened: norms and angles are those of the state."""
        factor, along, outside = self._axes
        inside = factor @ moved + keep[..., None, None] * along
        features = torch.cat([inside.flatten(-2), (keep * outside)[..., None]], -1)
        return features, (self.basis @ weight).flatten(-2)

    @cached_property
    def _standing(self) -> tuple[bool, bool]:
        """Whether the start has a constant part and one that grows linearly, beyond rounding."""
        parts, one = self._parts, torch.ones((), dtype=torch.float64)
        with torch.no_grad():
            factor, along, outside = self._axes
            constant = torch.cat(self._sides(one, *parts.constant)).norm()
            size = torch.hypot(along.norm(), outside) + (self.basis @ parts.constant[1]).norm()
            blurred = (parts.blur * factor.norm(dim=0) * parts.constant[0].norm(dim=1)).sum()
            linear = torch.cat(self._sides(0 * one, *parts.linear)).norm()
        return bool(constant > 32 * EPS * size + blurred), bool(linear > 0)

    @property
    def _linear(self) -> bool:
        return self._standing[1] and self._reference.item() == 0

    @cached_property
    def _reference(self) -> Tensor:
        """The exponent of the fastest part that the start has, per unit of the integrated rate."""
        parts = self._parts
        fastest = torch.where(parts.present, parts.exponent, -torch.inf).amax()
        if any(self._standing) or not bool(parts.present.any()):
            fastest = fastest.clamp(min=0)
        return fastest

    @cached_property
    def _leads(self) -> Tensor:
        parts = self._parts
        return parts.present & (parts.exponent >= self._reference)

    @cached_property
    @torch.enable_grad()
    def _lead(self) -> tuple[Tensor, Tensor, Tensor]:
        """Coordinates of the direction: factor of the start, features and prototypes of the modes."""
        parts = self._parts
        zero = torch.zeros((), dtype=torch.float64)
        if bool(self._leads.any()):
            leads = self._leads[..., None]
            return zero, torch.where(leads, parts.features, 0.0).sum(0), torch.where(leads, parts.weight, 0.0).sum(0)
        if self._linear:
            return zero, *parts.linear
        return zero + 1, *parts.constant

    def _relative(self, moments: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The logarithmic scale, and divided by it: factor of the start, features and prototypes of the modes."""
        clock = self.schedule.integral(moments)
        reference = self._reference
        lead = reference * clock
        motion = self.modes.motion(clock)
        factor = torch.exp(((self.modes.exponent - reference) * clock[..., None]).clamp(max=1))[..., None]
        keep, moved, weight = torch.exp(-lead.clamp(min=-1)), factor * motion.features, factor * motion.weight
        if reference < 0:  # nothing stands still: late, only the exponentials, or a constant of rounding would win
            late = lead < -1
            fading = self._moving(clock, self._parts.present)
            keep = torch.where(late, 0.0, keep)
            moved = torch.where(late[..., None, None], fading[0], moved)
            weight = torch.where(late[..., None, None], fading[1], weight)
        return lead, keep, moved, weight

    def _moving(self, clock: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the chosen exponentials, relative to the reference."""
        parts = self._parts
        gaps = torch.where(chosen, self._reference - parts.exponent, torch.inf)
        factor = torch.exp(-gaps * clock[..., None, None])
        factor = torch.where(chosen, factor, 0.0)[..., None]
        return (factor * parts.features).sum(-3), (factor * parts.weight).sum(-3)

    def _rest(self, clock: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All but the direction, relative to the leading scale; no cancellation, however small it has become."""
        parts, reference = self._parts, self._reference
        others = parts.present & ~self._leads
        still = torch.exp(-reference * clock) if reference >= 0 else torch.zeros_like(clock)
        moved, weight = self._moving(clock, others)
        if reference > 0:
            fixed, resting = (still[..., None, None] * part for part in parts.constant)
            motion = self.modes.motion(clock)
            factor = torch.exp((self.modes.exponent - reference).clamp(max=0) * clock[..., None])[..., None]
            apart = self._leads.any(0)[:, None]  # only modes of the direction are taken apart
            moved = torch.where(apart, moved + fixed, factor * motion.features)
            weight = torch.where(apart, weight + resting, factor * motion.weight)
            return still, moved, weight
        if self._linear:
            return still, moved + parts.constant[0], weight + parts.constant[1]
        return torch.zeros_like(clock), moved, weight

    def _log_norm(self, moments: Tensor) -> Tensor:
        lead, keep, moved, weight = self._relative(moments)
        squares = sum(side.pow(2).sum(-1) for side in self._sides(keep, moved, weight))
        assert isinstance(squares, Tensor)
        positive = squares > 0
        return torch.where(positive, lead + torch.where(positive, squares, 1.0).log() / 2, -torch.inf)

    def _side_norm(self, time: Any, side: int) -> Tensor:
        lead, keep, moved, weight = self._relative(self._times(time))
        squares = self._sides(keep, moved, weight)[side].pow(2).sum(-1)
        return self._like(_grown(safe_sqrt(squares), lead))

    def _distance(self, moments: Tensor) -> Tensor:
        clock = self.schedule.integral(moments)
        final = torch.cat(self._sides(*self._lead), -1)
        square = final.pow(2).sum()
        rest = torch.cat(self._sides(*self._rest(clock)), -1)
        along = (rest * final).sum(-1) / square
        across = safe_sqrt((rest - along[..., None] * final).pow(2).sum(-1))
        share = clock if self._linear else torch.ones_like(clock)
        return 2 * torch.sin(torch.atan2(across, (share + along) * square.sqrt()) / 2)

    def _accuracy(self, moments: Tensor) -> Tensor:
        labels = self.coupling.targets.labels
        clock = self.schedule.integral(moments)
        lead, keep, moved, _ = self._relative(moments)
        classes, dim = self.weight.shape
        wide = self.basis.reshape(classes, -1)
        centered = (wide - wide.mean(0)).reshape(self.basis.shape)
        seen = centered.norm(dim=0) > 32 * EPS * self.basis.norm(dim=0)
        if self._reference < 0:
            own, weight = lead, self._relative(moments)[3]
        else:
            log = torch.where(seen, self.modes.exponent, -torch.inf)
            top = log.amax() if bool(seen.any()) else torch.zeros((), dtype=torch.float64)
            own = top * clock
            factor = torch.exp((log - top) * clock[..., None].clamp(min=1e-300))[..., None]
            weight = factor * self.modes.motion(clock).weight
        head = (torch.where(seen, centered, 0.0) @ torch.where(seen[:, None], weight, 0.0)).reshape(-1, classes, dim)
        features = self._features(keep, moved).double()
        logits = features @ head.to(features).mT
        if self.start_bias is not None:
            scale = (lead + own).to(logits)
            bias = self._bias(moments).to(logits)
            logits = torch.exp(scale.clamp(max=0))[:, None, None] * logits
            logits = logits + (torch.exp(-scale.clamp(min=0))[:, None] * bias)[:, None]
        return (logits.argmax(-1) == labels.to(logits.device)).double().mean(-1)

    # ---- assembly --------------------------------------------------------------------------------------------

    def _features(self, keep: Tensor, moved: Tensor) -> Tensor:
        shift = self.response @ self._like(moved)
        shape = (*shift.shape[:-2], *self.features.shape)
        return self._like(keep)[..., None, None] * self.features + shift.reshape(shape)

    def _weight(self, coordinates: Tensor) -> Tensor:
        weight = self.basis @ coordinates
        return self._like(weight.reshape(*weight.shape[:-2], *self.weight.shape))

    def _pull(self, moved: Tensor) -> Tensor:
        """What the kernel multiplies: rows (*, n, p) such that the features have moved by the kernel times them."""
        if self.pull is None:
            return self.coupling.scatter(self._weight(moved))
        shift = self.pull @ self._like(moved)
        return shift.reshape(*shift.shape[:-2], *self.features.shape)

    def _bias(self, moments: Tensor) -> Tensor:
        assert self.start_bias is not None
        keep, push = FlowSymbol(self.schedule.shape).bias(moments, self.schedule.peak, self.weight_decay)
        return keep[..., None] * self.start_bias.double().cpu() + push[..., None] * self.drive

    def _bias_limit(self) -> Tensor | None:
        if self.start_bias is None:
            return None
        if self.weight_decay.item() > 0:
            return self._like(self.drive / self.weight_decay)
        bias = self.start_bias.double().cpu()
        return self._like(torch.where(self.drive == 0, bias, torch.sign(self.drive) * torch.inf))

    def _steady(self, lr: float | None) -> Tensor:
        if lr is not None:
            return torch.as_tensor(lr, dtype=torch.float64)
        floor = self.schedule.shape.floor
        if not floor > 0:
            raise ValueError(
                "the schedule does not end with a constant positive rate, so there is no exponent per unit of time. "
                "Pass one: growth(lr=...), rate(lr=...); lr=1 gives exponents per unit of the integrated rate."
            )
        return self.schedule.peak * floor

    def _check_start(self) -> None:
        if not bool((self.features != 0).any()) and not bool((self.weight != 0).any()):
            raise ValueError(
                "the start is zero and stays zero: Z/|Z| has no limit. Start from features or prototypes that are "
                "not all 0."
            )

    def _check_cross(self, cross: Any, size: int) -> None:
        if not isinstance(cross, Tensor):
            return
        train, dim = self.features.shape
        if tuple(cross.shape) not in ((size, train), (size * dim, train * dim)):
            raise ValueError(
                f"cross_kernel must have shape (n', n) = {(size, train)} or (n' p, n p) = {(size * dim, train * dim)}: "
                f"new inputs by training inputs. Got {tuple(cross.shape)}."
            )
        check_tensor("cross_kernel", cross, (None, None))
        check_alike(features=self.features, cross_kernel=cross)


def _grown(value: Tensor, log: Tensor) -> Tensor:
    """value * exp(log), infinite where that overflows but never 0 * inf."""
    return torch.where(value == 0, value, value * torch.exp(torch.where(value == 0, 0.0, log)))


# ---- solving -------------------------------------------------------------------------------------------------------


def solve_kernel(
    targets: Targets | None,
    spectrum: Spectrum,
    drive: Tensor,
    decays: tuple[Tensor, Tensor],
    features: Tensor,
    weight: Tensor,
    kernel: Any,
    lr: Any,
    bias: Tensor | None,
) -> KernelPath:
    """Check the input, find the modes, and hand out the path: what `LayerPeeled.kernel_flow` calls."""
    if targets is None or not isinstance(features, Tensor):
        raise ValueError(
            "a kernel joins single examples, so kernel_flow needs labels and features in memory: "
            "make the problem with LayerPeeled(target, num_classes) and pass features (n, p)."
        )
    check_start(features, weight, bias, targets.size, targets.num_classes)
    schedules = rate_pair(lr)
    ratio = _check_rates(schedules)
    kind = kernel_kind(kernel, *features.shape)
    if isinstance(kernel, Tensor):
        check_tensor("kernel", kernel, (None, None))
        check_alike(features=features, kernel=kernel)
        check_symmetric("kernel", kernel.detach(), torch.finfo(kernel.dtype).eps)
    coupling = couple(targets, spectrum)
    feature_decay, weight_decay = (decay.detach() for decay in decays)
    solve = _solve_free if feature_decay.item() == 0 else _solve_damped
    modes, response, basis, pull = solve(kernel, kind, coupling, features, weight, ratio, (feature_decay, weight_decay))
    return KernelPath(
        modes, response, basis, pull, coupling, features, weight, bias, drive.detach(), weight_decay, schedules[1]
    )


Solved = tuple[FreeModes | DampedModes, Tensor, Tensor, Tensor | None]


def _solve_free(
    kernel: Any,
    kind: str,
    coupling: Coupling,
    features: Tensor,
    weight: Tensor,
    ratio: Tensor,
    decays: tuple[Tensor, Tensor],
) -> Solved:
    size = len(features)
    answer = respond(kernel, kind, coupling, features)
    side = answer.shape[1]
    gram = coupling.gather(answer.reshape(size, -1)).reshape(side, side)
    values, vectors = eigen("G = m^T K m", gram, torch.finfo(features.dtype).eps)
    response = torch.where(values > 0, answer @ vectors, 0.0).to(features)
    values, vectors = values.cpu(), vectors.cpu()
    start = weight.double().cpu().reshape(side, -1)
    pulled = coupling.gather(features.double()).cpu().reshape(side, -1)
    gain = ratio * values
    radius = (decays[1] ** 2 / 4 + gain).sqrt()
    upper = safe_divide(gain, radius + decays[1] / 2)[:, None]
    x, y = vectors.mT @ start, vectors.mT @ pulled
    blur = 32 * EPS * coupling.matrix.norm() * features.detach().double().norm().cpu()
    y = torch.where((gain[:, None] == 0) & (y.detach().norm(dim=1, keepdim=True) <= blur), 0.0, y)
    with torch.no_grad():
        growing = (y + upper * x).norm(dim=1) > blur + 32 * EPS * upper[:, 0] * start.norm()
    modes = FreeModes(gain, ratio, decays[1], x, y, growing & (gain > 0))
    return modes, response, vectors, None


def _solve_damped(
    kernel: Any,
    kind: str,
    coupling: Coupling,
    features: Tensor,
    weight: Tensor,
    ratio: Tensor,
    decays: tuple[Tensor, Tensor],
) -> Solved:
    if not isinstance(kernel, Tensor):
        raise ValueError(
            "feature_decay pulls on every feature through the kernel, which needs all eigenvectors of the kernel; an "
            "operator has none to give. Pass the kernel as a matrix, (n, n) or (n p, n p), or set feature_decay=0."
        )
    size, classes = len(features), len(weight)
    values, vectors = eigen("the kernel", kernel.detach().double(), torch.finfo(kernel.dtype).eps)
    kept = values > 0
    roots, vectors = values[kept].sqrt(), vectors[:, kept]
    rank = len(roots)
    start = features.double().reshape(len(vectors), -1)
    side = classes if kind == "example" else weight.numel()
    # K^{1/2} m, from class sums of the eigenvectors
    touch = coupling.gather(vectors.reshape(size, -1)).reshape(side, rank).mT * roots[:, None]
    root_ratio = ratio.sqrt().to(start)
    feature_decay, weight_decay = (decay.to(start) for decay in decays)
    system = torch.zeros(rank + side, rank + side).to(start)
    system[:rank, :rank] = torch.diag(-ratio.to(start) * feature_decay * roots**2)
    system[:rank, rank:] = root_ratio * touch
    system[rank:, :rank] = root_ratio * touch.mT
    system[rank:, rank:] = -weight_decay * torch.eye(side).to(start)
    theta, turn = torch.linalg.eigh(system)
    theta = torch.where(theta.abs() > 4 * len(theta) * EPS * theta.abs().max(), theta, 0.0)
    pulled = coupling.gather(features.double()).reshape(side, -1)
    push = torch.cat([-ratio.to(start) * feature_decay * roots[:, None] * (vectors.mT @ start), root_ratio * pulled])
    head = root_ratio * weight.double().reshape(side, -1)
    begin = turn.mT[:, rank:] @ head
    push = turn.mT @ push
    with torch.no_grad():
        amplitude = (begin + safe_divide(push, theta[:, None])).norm(dim=1)
        growing = (theta > 0) & (amplitude > 32 * EPS * (head.norm() + safe_divide(push.norm(), theta.abs())))
    modes = DampedModes(theta.cpu(), begin.cpu(), push.cpu(), growing.cpu())
    response = (vectors * roots) @ turn[:rank]
    pull = (vectors / roots) @ turn[:rank]
    return modes, response.to(features), (turn[rank:] / root_ratio).cpu(), pull.to(features)


def _check_rates(schedules: tuple[Schedule, Schedule]) -> Tensor:
    """The constant ratio s of the two rates."""
    peaks = [schedule.peak.detach() for schedule in schedules]
    if not schedules[0].proportional_to(schedules[1]):
        raise ValueError(
            "kernel_flow needs proportional rates for features and prototypes, but the two schedules have different "
            "shapes. Pass one schedule, or multiples of one: lr=(2 * schedule, schedule)."
        )
    if min(peak.item() for peak in peaks) <= 0:
        raise ValueError(
            f"kernel_flow needs positive rates, got {peaks[0].item():g} for the features and {peaks[1].item():g} for "
            "the prototypes. To hold the prototypes nearly still, make their rate small."
        )
    return peaks[0] / peaks[1]
