r"""Learning-rate schedules that know their integral.

A :class:`Schedule` is a peak times a *shape*. The flow sees only the integral of the shape, its clock; two schedules
with equal shapes are proportional, which is what the closed forms need  [eq: clock]. A shape is a frozen value, so
equality of shapes is equality of their fields.

In continuous time ``schedule(t)`` is the rate at time t; in descent step k (from 0) uses ``schedule(k)``, the
convention of ``torch.optim.lr_scheduler``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.keeping import durable
from unhinge.theory.numerics import falling
from unhinge.theory.types import Number, OneRate, Rate, Time
from unhinge.theory.validation import as_tensor, scalar

__all__ = [
    "MOST_SPANS",
    "Schedule",
    "constant",
    "cosine",
    "exponential",
    "piecewise",
    "as_schedule",
    "flat_edges",
    "needs_gradient",
    "rate_pair",
    "steady_rate",
    "step",
    "warmup",
]

MOST_SPANS = 100  # of a constant rate that are taken one by one: each costs what some dozen steps do
NEGLIGIBLE = 1e-20  # a rate below this fraction of its peak moves nothing in float64


class Shape(Protocol):
    """A schedule of peak 1: its value, its integral from 0, and what it settles on.

    The numbers a shape is made of are tensors and keep their gradients: `value`, `integral`, `edges` and `final` are
    differentiable in them. `settles`, `floor` and `highest` are plain floats, for deciding what to do.
    """

    def value(self, time: Tensor) -> Tensor: ...
    def integral(self, time: Tensor) -> Tensor: ...
    @property
    def parameters(self) -> tuple[Tensor, ...]: ...  # all that gradients may be asked for
    @property
    def edges(self) -> tuple[Tensor, ...]: ...  # where value() or a derivative jumps
    @property
    def settles(self) -> float: ...  # from when on value() is constant; inf if that is not known
    @property
    def final(self) -> Tensor: ...  # the value from then on, (); NaN if that is not known
    @property
    def floor(self) -> float: ...  # the same as a number
    @property
    def highest(self) -> float: ...  # no value is above this


def same_shape(a: Shape, b: Shape) -> bool:
    """Whether two shapes agree at all times, and in all derivatives.

    Equal numbers are not enough where a gradient is asked for: two tensors of one value can be moved apart, so they
    must be one tensor.
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, FromCallable) or isinstance(b, FromCallable):
        return isinstance(a, FromCallable) and isinstance(b, FromCallable) and a.function == b.function
    if isinstance(a, Warmup) and isinstance(b, Warmup) and not same_shape(a.after, b.after):
        return False
    ours, theirs = a.parameters, b.parameters
    return len(ours) == len(theirs) and all(
        x is y or (x.item() == y.item() and not x.requires_grad and not y.requires_grad)
        for x, y in zip(ours, theirs, strict=True)
    )


def needs_gradient(shape: Shape) -> bool:
    """Whether anything that a shape is made of, or that its function closes over, carries a gradient."""
    start = shape.value(torch.zeros(1, dtype=torch.float64))
    return start.requires_grad or any(parameter.requires_grad for parameter in shape.parameters)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _plain(numbers: tuple[Tensor, ...]) -> tuple[float, ...]:
    return tuple(number.item() for number in numbers)


@dataclass(frozen=True, eq=False)
class Constant:
    def value(self, time: Tensor) -> Tensor:
        return torch.ones_like(time)

    def integral(self, time: Tensor) -> Tensor:
        return time

    parameters: ClassVar[tuple[Tensor, ...]] = ()
    edges: ClassVar[tuple[Tensor, ...]] = ()
    settles = 0.0
    floor = 1.0
    highest = 1.0

    @property
    def final(self) -> Tensor:
        return _number(1.0)


@dataclass(frozen=True, eq=False)
class Cosine:
    total: Tensor  # ()
    end: Tensor  # (), the value from `total` on

    def value(self, time: Tensor) -> Tensor:
        angle = math.pi * torch.minimum(time, self.total) / self.total
        return self.end + (1 - self.end) * (1 + torch.cos(angle)) / 2

    def integral(self, time: Tensor) -> Tensor:
        inside = torch.minimum(time, self.total)
        swing = self.total / math.pi * torch.sin(math.pi * inside / self.total)
        wave = torch.where(time < self.total, inside + swing, self.total)
        return self.end * time + (1 - self.end) / 2 * wave

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return self.total, self.end

    @property
    def edges(self) -> tuple[Tensor, ...]:
        return (self.total,)

    @property
    def settles(self) -> float:
        return self.total.item()

    @property
    def final(self) -> Tensor:
        return self.end

    @property
    def floor(self) -> float:
        return self.final.item()

    @property
    def highest(self) -> float:
        return max(1.0, self.end.item())


@dataclass(frozen=True, eq=False)
class Geometric:
    """Multiplied by `factor` once every `every`."""

    every: Tensor  # ()
    factor: Tensor  # ()

    def value(self, time: Tensor) -> Tensor:
        return self.factor ** torch.floor(time / self.every).detach()

    def integral(self, time: Tensor) -> Tensor:
        stage = torch.floor(time / self.every).detach()
        height = self.factor**stage
        gap = 1 - self.factor
        # the sum of factor^j over j < stage; at a factor of 1, which only one with a gradient can have here, the
        # quotient is its own first two terms
        terms = torch.where(
            gap == 0, stage - gap * stage * (stage - 1) / 2, (1 - height) / torch.where(gap == 0, 1.0, gap)
        )
        return self.every * terms + height * (time - stage * self.every)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return self.every, self.factor

    @property
    def edges(self) -> tuple[Tensor, ...]:
        settles = self.settles
        stages = math.ceil(settles / self.every.item()) if math.isfinite(settles) else 0
        return tuple(k * self.every for k in range(1, stages + 1))

    @property
    def settles(self) -> float:
        every, factor = self.every.item(), self.factor.item()
        if factor in (0, 1):
            return every if factor == 0 else math.inf
        return every * math.ceil(math.log(NEGLIGIBLE) / math.log(factor))

    @property
    def final(self) -> Tensor:
        return _number(math.nan if self.factor.item() == 1 else 0.0)

    @property
    def floor(self) -> float:
        return self.final.item()

    highest = 1.0


@dataclass(frozen=True, eq=False)
class Exponential:
    decay: Tensor  # ()

    def value(self, time: Tensor) -> Tensor:
        return torch.exp(self.decay.log() * time)

    def integral(self, time: Tensor) -> Tensor:
        return time * falling(self.decay.log() * -time)  # (e^{ct} - 1) / c, regular at c = 0

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.decay,)

    edges: ClassVar[tuple[Tensor, ...]] = ()

    @property
    def settles(self) -> float:
        decay = self.decay.item()
        return math.inf if decay == 1 else math.log(NEGLIGIBLE) / math.log(decay)

    @property
    def final(self) -> Tensor:
        return _number(math.nan if self.decay.item() == 1 else 0.0)

    @property
    def floor(self) -> float:
        return self.final.item()

    highest = 1.0


@dataclass(frozen=True, eq=False)
class Piecewise:
    """`values[i]` from `boundaries[i - 1]` on."""

    boundaries: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def _stage(self, time: Tensor) -> Tensor:
        edges = time.new_tensor([edge.item() for edge in self.boundaries])
        return torch.bucketize(time.detach().contiguous(), edges, right=True)

    def value(self, time: Tensor) -> Tensor:
        return torch.stack(self.values).to(time)[self._stage(time)]

    def integral(self, time: Tensor) -> Tensor:
        starts = torch.stack([_number(0.0), *self.boundaries]).to(time)
        heights = torch.stack(self.values).to(time)
        area = torch.cat([starts[:1], torch.cumsum(torch.diff(starts) * heights[:-1], 0)])
        stage = self._stage(time)
        return area[stage] + heights[stage] * (time - starts[stage])

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return *self.boundaries, *self.values

    @property
    def edges(self) -> tuple[Tensor, ...]:
        return self.boundaries

    @property
    def settles(self) -> float:
        return self.boundaries[-1].item() if self.boundaries else 0.0

    @property
    def final(self) -> Tensor:
        return self.values[-1]

    @property
    def floor(self) -> float:
        return self.final.item()

    @property
    def highest(self) -> float:
        return max(value.item() for value in self.values)


def flat_edges(shape: Shape, most: float = math.inf) -> list[int] | None:
    """The steps from which on the rate is another, 0 first, of a shape that is constant in between.

    None of other shapes, and where there would be more than `most` steps, which are then not made.

    Example:
        >>> flat_edges(
        ...     Piecewise((torch.tensor(2.5),), (torch.tensor(1.0), torch.tensor(0.1)))
        ... )
        [0, 3]
    """
    if not isinstance(shape, Constant | Geometric | Piecewise):
        return None
    if isinstance(shape, Geometric) and shape.settles / shape.every.item() > most:
        return None
    edges = sorted({0, *map(math.ceil, _plain(shape.edges))})
    return edges if len(edges) <= most else None


@dataclass(frozen=True, eq=False)
class Warmup:
    """A straight line from `start` to the peak of `after` during `duration`, then `after` from its beginning."""

    duration: Tensor  # ()
    start: Tensor  # ()
    after: Shape

    def value(self, time: Tensor) -> Tensor:
        ramp = self.start + (1 - self.start) * time / self.duration
        later = self.after.value((time - self.duration).clamp(min=0))
        return torch.where(time < self.duration, ramp, later)

    def integral(self, time: Tensor) -> Tensor:
        inside = torch.minimum(time, self.duration)
        ramp = self.start * inside + (1 - self.start) * inside**2 / (2 * self.duration)
        return ramp + self.after.integral((time - self.duration).clamp(min=0))

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return self.duration, self.start, *self.after.parameters

    @property
    def edges(self) -> tuple[Tensor, ...]:
        return self.duration, *(self.duration + edge for edge in self.after.edges)

    @property
    def settles(self) -> float:
        return self.duration.item() + self.after.settles

    @property
    def final(self) -> Tensor:
        return self.after.final

    @property
    def floor(self) -> float:
        return self.final.item()

    @property
    def highest(self) -> float:
        return max(1.0, self.start.item(), self.after.highest)


@dataclass(frozen=True, eq=False)
class FromCallable:
    """Any function of time; its integral by adaptive quadrature, differentiable in what `function` closes over.

    Quadrature looks at 48 points of a panel before it believes it: a spike that is narrower than a hundredth of the
    time asked for, between two of them, is not seen. Give the times where such a rate jumps as piecewise() instead.
    """

    function: Callable[..., Number]

    def value(self, time: Tensor) -> Tensor:
        try:
            value = torch.as_tensor(self.function(time), dtype=time.dtype)
            value = value.expand(time.shape)
        except (TypeError, ValueError, RuntimeError):  # a function of plain floats, such as math.cos
            values = [self.function(moment) for moment in time.detach().flatten().tolist()]
            each = [_one_rate(value, time.dtype) for value in values]
            value = torch.stack(each).reshape(time.shape) if each else torch.zeros_like(time)
        plain = value.detach()
        if not torch.isfinite(plain).all() or (plain < 0).any():
            worst = plain[~(torch.isfinite(plain) & (plain >= 0))].flatten()[0].item()
            raise ValueError(
                f"the learning-rate function returned {worst}; it must be finite and not negative "
                "at every time asked for, including t = 0."
            )
        return value

    def integral(self, time: Tensor) -> Tensor:
        moments, back = torch.unique(time.detach(), return_inverse=True)
        edges = torch.cat([moments.new_zeros(1), moments])
        pieces = integrate(self.value, edges[:-1], edges[1:])
        total = torch.cumsum(pieces, 0)[back].reshape(time.shape)
        if time.requires_grad:  # the quadrature knows nothing of it; the slope of an integral is the function
            total = total + self.value(time.detach()) * (time - time.detach())
        return total

    parameters: ClassVar[tuple[Tensor, ...]] = ()
    edges: ClassVar[tuple[Tensor, ...]] = ()
    settles = math.inf
    floor = math.nan
    highest = math.inf

    @property
    def final(self) -> Tensor:
        return _number(math.nan)


def _one_rate(value: Number, dtype: torch.dtype) -> Tensor:
    try:
        return torch.as_tensor(value, dtype=dtype).reshape(())
    except (TypeError, ValueError, RuntimeError):
        came = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"a learning-rate function must return one number for one time, got {came}.") from None


MOST_PANELS = 2**16  # at once; a function of plain floats then takes some seconds


def integrate(function: Callable[[Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
    r"""Integral of `function` over each panel, halving the panels where 16 and 2 x 16 nodes disagree.

    What would need more than `MOST_PANELS` of them is refused: a rate that swings for ever, asked for at a late time.
    """
    nodes, weights = (left.new_tensor(part) for part in np.polynomial.legendre.leggauss(16))

    def rule(a: Tensor, b: Tensor) -> Tensor:
        half, middle = (b - a) / 2, (a + b) / 2
        return half * (function(middle[:, None] + half[:, None] * nodes) @ weights)

    owner = torch.arange(len(left))
    area = left.new_zeros(len(left))
    whole = rule(left, right)
    scale = whole.detach().abs().sum()
    farthest = right.max().item() if len(right) else 0.0
    while True:  # a panel that is halved some thousand times has no middle any more
        if len(left) > MOST_PANELS:
            raise ValueError(
                f"the integral of this learning-rate function up to the time {farthest:.4g} cannot be computed: it "
                "changes too often until then. Ask for earlier times, or give the rate as a Schedule, whose integral "
                "is known."
            )
        middle = left + (right - left) / 2
        first, second = rule(left, middle), rule(middle, right)
        error = (first + second - whole).detach().abs()
        rough = (error > 1e-16 * scale) & (error > 4e-16 * (first + second).detach().abs())
        rough &= (middle > left) & (middle < right)
        area = area.index_add(0, owner[~rough], (first + second)[~rough])
        if not rough.any():
            return area
        left, right = torch.cat([left[rough], middle[rough]]), torch.cat([middle[rough], right[rough]])
        whole = torch.cat([first[rough], second[rough]])
        owner = torch.cat([owner[rough], owner[rough]])


@dataclass(frozen=True)
class Schedule:
    r"""A learning rate over time, :math:`\eta(t)`: `peak` times `shape`.

    Example:
        >>> schedule = cosine(0.1, total=100)
        >>> schedule(0.0), schedule(100.0), schedule.integral(100.0)
        (tensor(0.1000, dtype=torch.float64), tensor(0., dtype=torch.float64),
         tensor(5., dtype=torch.float64))
    """

    peak: Tensor  # () float64
    shape: Shape

    def __call__(self, time: Time) -> Tensor:
        r"""The rate :math:`\eta` at each time."""
        return self.peak * self.shape.value(_as_times(time))

    def integral(self, time: Time) -> Tensor:
        r"""The integrated rate :math:`\zeta(t) = \int_0^t \eta`."""
        return self.peak * self.shape.integral(_as_times(time))

    def __mul__(self, factor: Number) -> Schedule:
        return durable(_multiplied, self, scalar("the factor of a schedule", factor))

    __rmul__ = __mul__

    def proportional_to(self, other: Schedule) -> bool:
        """Whether the two differ only by a constant factor."""
        return same_shape(self.shape, other.shape)


def _multiplied(schedule: Schedule, factor: Tensor) -> Schedule:
    return Schedule(schedule.peak * factor, schedule.shape)


def _as_times(time: Time) -> Tensor:
    return as_tensor("times", time).to(torch.float64)


def steady_rate(schedule: Schedule, lr: Number | None = None) -> Tensor:
    """The constant rate at which exponents per unit of time are asked: `lr`, or what the schedule ends with.

    Example:
        >>> steady_rate(cosine(0.1, total=100, end=0.02))
        tensor(0.0200, dtype=torch.float64)
    """
    if lr is not None:
        return scalar("lr", lr)
    if not schedule.shape.floor > 0:
        raise ValueError(
            "the schedule does not end with a constant positive rate, so there is no exponent per unit of time. "
            "Pass one: growth(lr=...), rate(lr=...); lr=1 gives exponents per unit of the integrated rate."
        )
    return schedule.peak * schedule.shape.final


def constant(lr: Number) -> Schedule:
    r""":math:`\eta(t) = \eta_0`, the same rate at all times.

    Example:
        >>> constant(0.1).integral([0.0, 50.0])
        tensor([0., 5.], dtype=torch.float64)
    """
    return Schedule(scalar("lr", lr), Constant())


def cosine(lr: Number, total: Number, end: Number = 0.0) -> Schedule:
    r"""From `lr` to `end` along half a cosine during `total`, and `end` from then on: ``CosineAnnealingLR``.

    :math:`\eta(t) = \eta_1 + \frac{\eta_0 - \eta_1}2\big(1 + \cos\frac{\pi t}T\big)` for :math:`t \le T`.

    Example:
        >>> cosine(0.1, total=100, end=0.02)([0.0, 50.0, 1000.0])
        tensor([0.1000, 0.0600, 0.0200], dtype=torch.float64)
    """
    peak, duration, last = scalar("lr", lr), scalar("total", total, positive=True), scalar("end", end)
    if last.item() == 0 and not last.requires_grad:
        return Schedule(peak, Cosine(duration, last))
    scalar("lr", peak, positive=True)  # a multiple of the peak needs one
    return durable(_cosine, peak, duration, last)


def _cosine(peak: Tensor, total: Tensor, end: Tensor) -> Schedule:
    return Schedule(peak, Cosine(total, end / peak))


def step(lr: Number, every: Number | Sequence[Number], factor: Number = 0.1) -> Schedule:
    r""":math:`\eta(t) = \eta_0 f^{\lfloor t/T\rfloor}`: multiplied by `factor` each `every`, or at each time of a list:
    ``StepLR`` and ``MultiStepLR``.

    Example:
        >>> step(1.0, every=10)([9, 10, 25])
        tensor([1.0000, 0.1000, 0.0100], dtype=torch.float64)
        >>> step(1.0, every=[10, 15], factor=0.5)([9, 10, 25])
        tensor([1.0000, 0.5000, 0.2500], dtype=torch.float64)
    """
    peak, fall = scalar("lr", lr), scalar("factor", factor)
    if isinstance(every, Sequence):
        return durable(_staircase, peak, _increasing(every), fall)
    if fall.item() > 1:
        raise ValueError(f"a step schedule without end needs factor <= 1, got {fall.item()}; list its times.")
    level = fall.item() == 1 and not fall.requires_grad
    return Schedule(peak, Constant() if level else Geometric(scalar("every", every, positive=True), fall))


def _staircase(peak: Tensor, boundaries: tuple[Tensor, ...], factor: Tensor) -> Schedule:
    return Schedule(peak, Piecewise(boundaries, tuple(factor**k for k in range(len(boundaries) + 1))))


def exponential(lr: Number, decay: Number) -> Schedule:
    r""":math:`\eta(t) = \eta_0 d^t` with :math:`0 < d \le 1`: ``ExponentialLR``.

    Example:
        >>> exponential(1.0, decay=0.5)([0, 1, 2])
        tensor([1.0000, 0.5000, 0.2500], dtype=torch.float64)
    """
    fall = scalar("decay", decay, positive=True)
    if fall.item() > 1:
        raise ValueError(f"an exponential schedule needs decay <= 1, got {fall.item()}.")
    level = fall.item() == 1 and not fall.requires_grad
    return Schedule(scalar("lr", lr), Constant() if level else Exponential(fall))


def piecewise(boundaries: Sequence[Number], values: Sequence[Number]) -> Schedule:
    r""":math:`\eta(t) = v_k` for :math:`b_k \le t < b_{k+1}`, with :math:`b_0 = 0` and one more value than boundaries.

    Example:
        >>> piecewise([10, 20], [0.1, 0.5, 0.0])([9, 10, 20])
        tensor([0.1000, 0.5000, 0.0000], dtype=torch.float64)
    """
    if len(values) != len(boundaries) + 1:
        raise ValueError(
            f"piecewise() needs one more value than boundaries, got {len(values)} values "
            f"and {len(boundaries)} boundaries."
        )
    heights = tuple(scalar("values", value) for value in values)
    peak = max(height.item() for height in heights)
    if peak == 0:
        return constant(0.0)
    return durable(_piecewise, _increasing(boundaries), heights, peak)


def _piecewise(boundaries: tuple[Tensor, ...], heights: tuple[Tensor, ...], peak: float) -> Schedule:
    # The peak is a plain number: gradients are those of the heights, each by its own.
    return Schedule(_number(peak), Piecewise(boundaries, tuple(height / peak for height in heights)))


def warmup(schedule: OneRate, duration: Number, start: Number = 0.0) -> Schedule:
    r"""A straight line from `start` (a fraction of the peak) to the peak during `duration`, then `schedule`.

    :math:`\eta(t) = \eta_0\big(s + (1 - s)\frac tT\big)` for :math:`t \le T`, then the schedule at :math:`t - T`.

    Example:
        >>> warmup(cosine(0.1, total=100), duration=10)([0, 5, 10, 110])
        tensor([0.0000, 0.0500, 0.1000, 0.0000], dtype=torch.float64)
    """
    after = as_schedule(schedule)
    if isinstance(after.shape, FromCallable):  # it has no peak of its own: the line leads to where it begins
        first = after(0.0)
        if first.item() == 0:
            raise ValueError(
                "warmup() leads to the rate at which the function begins, and that is 0. Let the function begin with "
                "the rate that the warm-up is to reach."
            )
        after = Schedule(first, FromCallable(partial(_relative_rate, after.shape.function, first)))
    ramp = scalar("duration", duration, positive=True), scalar("start", start)
    return Schedule(after.peak, Warmup(*ramp, after.shape))


def _relative_rate(function: Callable[..., Number], first: Tensor, time: Tensor) -> Tensor:
    return FromCallable(function).value(time) / first


def _increasing(boundaries: Sequence[Number]) -> tuple[Tensor, ...]:
    times = tuple(scalar("boundaries", time) for time in boundaries)
    plain = _plain(times)
    if any(b <= a for a, b in zip((0.0, *plain), plain, strict=False)):
        shown = [time.item() if isinstance(time, Tensor) else time for time in boundaries]
        raise ValueError(f"boundaries must be positive and increasing, got {shown}.")
    return times


def as_schedule(lr: OneRate) -> Schedule:
    """A float, a tensor, a :class:`Schedule` or a callable, as a :class:`Schedule`."""
    if isinstance(lr, Schedule):
        return lr
    if callable(lr):
        schedule = Schedule(torch.ones((), dtype=torch.float64), FromCallable(lr))
        schedule(0.0)  # a function that fails should fail here, not in the first question
        return schedule
    return constant(lr)


def rate_pair(lr: Rate) -> tuple[Schedule, Schedule]:
    """The rates of the features and of the classifier from `lr`: one for both, or a pair."""
    if isinstance(lr, Sequence) and not isinstance(lr, str):
        if len(lr) != 2:
            raise ValueError(f"lr must be one rate or a pair (lr_features, lr_weight), got {len(lr)} entries.")
        return as_schedule(lr[0]), as_schedule(lr[1])
    both = as_schedule(lr)
    return both, both
