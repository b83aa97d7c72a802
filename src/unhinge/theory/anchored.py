r"""Prototypes held fixed: each feature is pulled towards one point  [eq: anchored].

:math:`H(t) = a(t) H_0 + c(t)\, V` with the constant pull :math:`V = M^\top W`; a and c are the same two scalars for all
features, under flow and under every variant of SGD. Here :math:`Z` is :math:`H` alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unhinge.theory.collapse import collapse_measures
from unhinge.theory.keeping import kept
from unhinge.theory.learned import learned
from unhinge.theory.linear.biases import Biases
from unhinge.theory.linear.momentum import MomentumSymbol, stalled
from unhinge.theory.linear.summary import streamed_away
from unhinge.theory.linear.symbols import Symbol
from unhinge.theory.numerics import CHUNK, EPS, NOISE, safe_divide, safe_norm, spanned, widened
from unhinge.theory.path import collapse_of_states, concatenated, described, in_pieces, passages, share_of
from unhinge.theory.schedules import Schedule, steady_rate
from unhinge.theory.state import State
from unhinge.theory.targets import Targets, combined
from unhinge.theory.types import Number, Time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AnchoredPath"]


@dataclass(frozen=True, kw_only=True, repr=False)
class AnchoredPath:
    r"""The exact path of the features towards fixed prototypes: `LayerPeeled.anchored` and `anchored_descent`.

    :math:`H(t) = a(t)\,H_0 + c(t)\,V`, under flow :math:`a = e^{-\lambda\zeta}` and
    :math:`c = (1 - e^{-\lambda\zeta})/\lambda`  [eq: anchored].

    Example:
        >>> from unhinge import LayerPeeled
        >>> problem = LayerPeeled([0, 1], feature_decay=1.0)
        >>> path = problem.anchored(
        ...     [[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], lr=0.1
        ... )
        >>> path.limit().features
        tensor([[ 0.5000, -0.5000],
                [-0.5000,  0.5000]], dtype=torch.float64)
        >>> path.accuracy([0, 20])
        tensor([0., 1.], dtype=torch.float64)
    """

    rows: Tensor  # (r, p), reduced features at the start
    pull: Tensor  # (r, p), reduced V
    spread: Tensor  # (), |H| outside the modes
    weight: Tensor  # (C, p)
    features: Tensor | None  # (n, p), in their dtype; missing after a streamed pass
    targets: Targets | None
    counts: Tensor  # (C,)
    by_class: bool  # whether the reduced features are the scaled class means, as for integer labels
    biases: Biases | None
    symbol: Symbol  # of the features
    schedule: Schedule  # of the features
    decay: Tensor  # (), of the features
    discrete: bool
    unit: float  # a power of two that rows, pull, weight and features were divided by; 1 unless squares would not fit
    like: Tensor  # (0,), of the dtype and on the device of the answers

    def __repr__(self) -> str:
        classes, dim = self.weight.shape
        kind, size = "descent" if self.discrete else "flow", round(self.counts.sum().item())
        decay = self.decay.item()
        return described("AnchoredPath", kind, examples=size, classes=classes, dim=dim, feature_decay=decay)

    def at(self, time: Time) -> State:
        """The state at each time (flow) or after each number of steps (descent)."""
        moments = self._times(time)
        keep, push = self.coefficients(moments)
        zero = torch.zeros_like(keep)
        return State(
            self._assemble(keep, push, self.unit),
            self._weight.expand(*moments.shape, *self.weight.shape),
            None if self.biases is None else self.biases.at(moments).to(self.like),
            zero.to(self.like),
        )

    def direction(self) -> State:
        r"""The limit of :math:`H / \|H\|`: along the pull, or along the start if the prototypes exert none."""
        self._check_converges()
        pulled = self._plane[0] > 0
        keep, push = torch.tensor([0.0, 1.0] if bool(pulled) else [1.0, 0.0], dtype=torch.float64)
        size, along, across = self._plane
        norm = size if bool(pulled) else torch.hypot(along, across)
        if norm == 0:
            raise ValueError("features and pull are both zero: H/|H| has no limit.")
        return State(self._assemble(keep / norm, push / norm), self._weight)

    def limit(self) -> State:
        r"""The limit of :math:`H`: :math:`V / \lambda_1`; an error if it diverges.

        With momentum :math:`\mu` and a decoupled decay, which works against all that the buffer has gathered, it is
        :math:`(1-\tau)/(1-\mu)` times that, or :math:`(1-\mu\tau)/(1-\mu)` times with Nesterov.
        """
        if self._ends is not None:
            return self.at(math.ceil(self._ends) if self.discrete else self._ends)
        self._check_converges()
        decay = self.decay
        if decay.item() == 0 and bool(self._plane[0] > 0):
            raise ValueError(
                "H diverges: without feature decay it grows in proportion to the integrated rate. "
                "Ask direction() for the limit of H/|H|, or set feature_decay."
            )
        zero = torch.zeros_like(decay)
        # the start stays, or the pull wins
        keep, push = (zero + 1, zero) if decay.item() == 0 else (zero, self.symbol.rest(decay))
        bias = None if self.biases is None else self.biases.limit().to(self.like)
        return State(self._assemble(keep, push, self.unit), self._weight, bias)

    def loss(self, time: Time) -> Tensor:
        r"""Mean unhinged loss :math:`-\langle V, H\rangle - \kappa^\top b`, without the decay terms."""
        moments = self._times(time)
        size, along, _ = self._plane
        keep, push = self.coefficients(moments)
        value = self.unit * (self.unit * -size * (push * size + keep * along))
        if self.biases is not None:
            value = value - self.biases.at(moments) @ self.biases.drive
        return value.to(self.like)

    @property
    def labels(self) -> Tensor:
        """The class of each example, the most probable one of soft labels: (n,) int64."""
        if self.targets is None:
            raise streamed_away("the label of each example")
        return self.targets.labels

    def correct(self, time: Time) -> Tensor:
        r"""Whether the largest logit of each example is its label's, :math:`(*, n)` bool; costs O(n C) per time."""
        moments, size = self._times(time), self._logits[0].numel()
        return in_pieces(self._correct, moments, size).to(self.like.device)

    def accuracy(self, time: Time) -> Tensor:
        """Share of examples whose largest logit is their label's: the mean of :meth:`correct`."""
        moments, size = self._times(time), self._logits[0].numel()
        return share_of(self._correct, moments, size).to(self.like)

    def learned(self, fraction: float = 0.5) -> Tensor:
        r"""The first time (or step) at which that share of each class is right, :math:`(C,)`; infinite if never
        [eq: learned]. See :func:`unhinge.theory.learned.learned`."""
        return learned(self, len(self.weight), fraction, self._ends).to(self.like)

    def feature_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""
        return (self.unit * self._size(self._times(time))).to(self.like)

    def weight_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`, a constant."""
        norm = self.unit * safe_norm(self.weight, 2).cpu()
        return norm.expand(self._times(time).shape).to(self.like)

    def log_norm(self, time: Time) -> Tensor:
        r""":math:`\log\|H\|`."""
        return (self._size(self._times(time)).log() + math.log(self.unit)).to(self.like)

    def distance(self, time: Time) -> Tensor:
        r""":math:`\| H/\|H\| - \text{direction} \|`."""
        self._check_converges()
        return self._distance(self._times(time)).to(self.like)

    def collapse(self, time: Time) -> dict[str, Tensor]:
        """Neural-collapse measures at each time: see :func:`unhinge.theory.collapse.collapse_measures`."""
        moments = self._times(time)
        if not self.by_class:  # soft labels: the classes are those of the most probable
            states = collapse_of_states(self.at, moments, self.labels, len(self.weight))
            return concatenated(states, moments, like=self.like)
        roots = self.counts.double().sqrt()[:, None]
        stacked = torch.cat([self.rows, self.pull, self.weight]).double().cpu()
        small, basis = spanned(stacked)
        rows, pull, weight = small.split([len(self.rows), len(self.pull), len(self.weight)])
        size = self.counts.sum().double()
        within = None
        if self.features is not None and self.targets is not None:
            apart = (widened(self.features) - self.targets.expand(self.rows)).cpu()
            apart = apart if basis is None else apart @ basis
            within = apart.mT @ apart / size
        parts = []
        for piece in moments.reshape(-1).split(max(1, CHUNK // (8 * small.numel()))):
            keep, push = (part[:, None, None] for part in self.coefficients(piece))
            spread = (keep[:, 0, 0] * self.spread) ** 2 / size
            cover = None if within is None else keep**2 * within
            means = (keep * rows + push * pull) / roots
            parts.append(collapse_measures(means, weight.expand(len(piece), *weight.shape), spread, cover))
        return concatenated(parts, moments, like=self.like)

    def growth(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :math:`\|H\|`: 0, since it converges (with decay) or grows linearly (without)."""
        self._check_converges()
        return torch.zeros((), dtype=torch.float64).to(self.like)

    def rate(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :meth:`distance`, negative; 0 without feature decay, where it falls as 1 / integrated rate
        [eq: anchored-rate]."""
        self._check_converges()
        return self._fall(lr).to(self.like)

    def time_to(self, distance: Time) -> Tensor:
        """The first time (or step) at which :meth:`distance` is at most `distance`; infinite if never."""
        self._check_converges()
        times = passages(distance, lambda time: self._distance(self._times(time)), self._ends, self.discrete)
        return times.to(self.like)

    def plot(self, times: Time | None = None) -> Figure:
        """Distance, norms, loss and accuracy over time, as a matplotlib figure."""
        from unhinge.theory.plotting import plot_path

        return plot_path(self, times)

    # ---- reduced coordinates -----------------------------------------------------------------------------------------

    def _times(self, time: Time) -> Tensor:
        return self.symbol.times(time)

    @property
    def _ends(self) -> float | None:
        """The time after which the features rest; None if their rate stays positive."""
        shape = self.schedule.shape
        return shape.settles if shape.floor == 0 and math.isfinite(shape.settles) else None

    def coefficients(self, moments: Tensor) -> tuple[Tensor, Tensor]:
        """The two scalars a and c of the features at checked times."""
        return self.symbol.relaxation(moments, self.schedule.peak, self.decay)

    @property
    def scatter(self) -> Tensor:
        r""":math:`\|H\|^2` outside the modes."""
        return (self.unit * self.spread) ** 2

    @property
    def _weight(self) -> Tensor:
        return (self.unit * self.weight).to(self.like)

    @kept
    def _plane(self) -> tuple[Tensor, Tensor, Tensor]:
        """|V|, the part of the start along V, and the norm of the part across; without a pull, along the start."""
        rows, pull = self.rows, self.pull
        size = safe_norm(pull, 2)
        noise = NOISE * EPS * self.weight.detach().norm() / self.counts.sum().sqrt()
        size = torch.where(size > noise, size, 0.0)  # prototypes that cancel but for rounding exert no pull
        if bool(size > 0):
            unit = pull / size
            along = (rows * unit).sum()
            across = safe_norm(rows - along * unit, 2)
        else:  # no pull to measure by, but one that may come has a slope along the start: measure by that
            along, across = safe_norm(rows, 2), torch.zeros_like(size)
            slope = (pull * rows.detach()).sum() / torch.where(along > 0, along, 1.0).detach()
            size = slope - slope.detach()
        return size.cpu(), along.cpu(), safe_norm(torch.stack([across.cpu(), self.spread.cpu()]), 1)

    def _size(self, moments: Tensor) -> Tensor:
        """The norm of H; not by hypot, whose slope at zero is not a number."""
        return safe_norm(torch.stack(self._position(moments), -1), 1)

    def _position(self, moments: Tensor) -> tuple[Tensor, Tensor]:
        """Components of H along V and across."""
        size, along, across = self._plane
        keep, push = self.coefficients(moments)
        return push * size + keep * along, keep * across

    def _distance(self, moments: Tensor) -> Tensor:
        along, across = self._position(moments)
        if not bool(self._plane[0] > 0):
            return torch.zeros_like(along)
        return 2 * torch.sin(torch.atan2(across.abs(), along) / 2)

    @kept
    def _logits(self) -> tuple[Tensor, Tensor]:
        """The logits of the start and of the pull, (n, C) each: those of any time are two scalars times these."""
        if self.features is None or self.targets is None:
            raise streamed_away("accuracy")
        weight = self.weight.detach()
        head = weight - weight.mean(0)  # centered, as everywhere: a common part may be far larger
        pulled = self.targets.expand(self.pull.detach() @ head.mT)
        return (widened(self.features.detach()) @ head.mT).cpu(), pulled.cpu()

    @torch.no_grad()
    def _correct(self, moments: Tensor) -> Tensor:
        """Whether each example is right at each of the times (m,): (m, n) bool."""
        start, pulled = self._logits
        keep, push = self.coefficients(moments)
        logits = keep[:, None, None] * start + push[:, None, None] * pulled
        if self.biases is not None:
            logits = logits + self.biases.apart(moments)[:, None] / self.unit / self.unit
        return logits.argmax(-1) == self.labels.cpu()

    def _fall(self, lr: Number | None) -> Tensor:
        schedule = self.schedule
        multiple = safe_divide(steady_rate(schedule, lr), schedule.peak)  # a frozen feature stays where it is
        return self.symbol.memory(schedule.peak * self.decay, multiple)

    def _check_converges(self) -> None:
        if isinstance(self.symbol, MomentumSymbol) and self.symbol.options.stalls:
            raise stalled()
        floor = self.schedule.shape.floor
        if self.decay.item() > 0 and floor > 0 and self._fall(None).item() >= 0:
            rate = self.schedule.peak.item() * floor
            raise ValueError(
                f"the step is too large: lr * feature_decay = {rate * self.decay.item():g} must be below 2 "
                "(without momentum) for the features to settle. Lower lr or feature_decay."
            )

    def _assemble(self, keep: Tensor, push: Tensor, factor: float = 1.0) -> Tensor:
        if self.features is None or self.targets is None:
            raise streamed_away("the full state")
        keep, push = (part.to(self.pull.device)[..., None, None] for part in (keep, push))
        return combined(self.targets, keep, self.features, push * self.pull, factor)
