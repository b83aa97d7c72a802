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
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.types import Number, OneRate, Rate, Time
from unhinge.theory.validation import as_tensor, scalar

__all__ = [
    "Schedule",
    "constant",
    "cosine",
    "exponential",
    "piecewise",
    "as_schedule",
    "rate_pair",
    "steady_rate",
    "step",
    "warmup",
]

NEGLIGIBLE = 1e-20  # a rate below this fraction of its peak moves nothing in float64


class Shape(Protocol):
    """A schedule of peak 1: its value, its integral from 0, and the time from which it stays at `floor`."""

    def value(self, time: Tensor) -> Tensor: ...
    def integral(self, time: Tensor) -> Tensor: ...
    @property
    def breaks(self) -> tuple[float, ...]: ...  # where value() or a derivative jumps
    @property
    def settles(self) -> float: ...  # from when on value() is constant; inf if that is not known
    @property
    def floor(self) -> float: ...  # the value from then on
    @property
    def highest(self) -> float: ...  # no value is above this


@dataclass(frozen=True)
class Constant:
    def value(self, time: Tensor) -> Tensor:
        return torch.ones_like(time)

    def integral(self, time: Tensor) -> Tensor:
        return time

    breaks = ()
    settles = 0.0
    floor = 1.0
    highest = 1.0


@dataclass(frozen=True)
class Cosine:
    total: float
    floor: float

    def value(self, time: Tensor) -> Tensor:
        angle = math.pi * time.clamp(max=self.total) / self.total
        return self.floor + (1 - self.floor) * (1 + torch.cos(angle)) / 2

    def integral(self, time: Tensor) -> Tensor:
        inside = time.clamp(max=self.total)
        swing = self.total / math.pi * torch.sin(math.pi * inside / self.total)
        wave = torch.where(time < self.total, inside + swing, self.total)
        return self.floor * time + (1 - self.floor) / 2 * wave

    @property
    def breaks(self) -> tuple[float, ...]:
        return (self.total,)

    @property
    def settles(self) -> float:
        return self.total

    @property
    def highest(self) -> float:
        return max(1.0, self.floor)


@dataclass(frozen=True)
class Geometric:
    """Multiplied by `factor` once every `every`."""

    every: float
    factor: float

    def value(self, time: Tensor) -> Tensor:
        return self.factor ** torch.floor(time / self.every)

    def integral(self, time: Tensor) -> Tensor:
        stage = torch.floor(time / self.every)
        height = self.factor**stage
        if self.factor == 1:
            return time
        return self.every * (1 - height) / (1 - self.factor) + height * (time - stage * self.every)

    @property
    def breaks(self) -> tuple[float, ...]:
        stages = math.ceil(self.settles / self.every) if math.isfinite(self.settles) else 0
        return tuple(self.every * k for k in range(1, stages + 1))

    @property
    def settles(self) -> float:
        if self.factor == 0:
            return self.every
        return self.every * math.ceil(math.log(NEGLIGIBLE) / math.log(self.factor))

    floor = 0.0
    highest = 1.0


@dataclass(frozen=True)
class Exponential:
    decay: float

    def value(self, time: Tensor) -> Tensor:
        return torch.exp(math.log(self.decay) * time)

    def integral(self, time: Tensor) -> Tensor:
        speed = math.log(self.decay)
        return torch.expm1(speed * time) / speed

    breaks = ()

    @property
    def settles(self) -> float:
        return math.log(NEGLIGIBLE) / math.log(self.decay)

    floor = 0.0
    highest = 1.0


@dataclass(frozen=True)
class Piecewise:
    """`values[i]` from `boundaries[i - 1]` on."""

    boundaries: tuple[float, ...]
    values: tuple[float, ...]

    def _stage(self, time: Tensor) -> Tensor:
        return torch.bucketize(time.detach(), time.new_tensor(self.boundaries), right=True)

    def value(self, time: Tensor) -> Tensor:
        return time.new_tensor(self.values)[self._stage(time)]

    def integral(self, time: Tensor) -> Tensor:
        starts = np.concatenate([[0.0], self.boundaries])
        area = np.concatenate([[0.0], np.cumsum(np.diff(starts) * np.array(self.values[:-1]))])
        stage = self._stage(time)
        return time.new_tensor(area)[stage] + self.value(time) * (time - time.new_tensor(starts)[stage])

    @property
    def breaks(self) -> tuple[float, ...]:
        return self.boundaries

    @property
    def settles(self) -> float:
        return self.boundaries[-1] if self.boundaries else 0.0

    @property
    def floor(self) -> float:
        return self.values[-1]

    @property
    def highest(self) -> float:
        return max(self.values)


@dataclass(frozen=True)
class Warmup:
    """A straight line from `start` to the peak of `after` during `duration`, then `after` from its beginning."""

    duration: float
    start: float
    after: Shape

    def value(self, time: Tensor) -> Tensor:
        ramp = self.start + (1 - self.start) * time / self.duration
        later = self.after.value((time - self.duration).clamp(min=0))
        return torch.where(time < self.duration, ramp, later)

    def integral(self, time: Tensor) -> Tensor:
        inside = time.clamp(max=self.duration)
        ramp = self.start * inside + (1 - self.start) * inside**2 / (2 * self.duration)
        return ramp + self.after.integral((time - self.duration).clamp(min=0))

    @property
    def breaks(self) -> tuple[float, ...]:
        return (self.duration, *(self.duration + at for at in self.after.breaks))

    @property
    def settles(self) -> float:
        return self.duration + self.after.settles

    @property
    def floor(self) -> float:
        return self.after.floor

    @property
    def highest(self) -> float:
        return max(1.0, self.start, self.after.highest)


@dataclass(frozen=True)
class FromCallable:
    """Any function of time; its integral by adaptive quadrature, differentiable in what `function` closes over."""

    function: Callable[..., Any]

    def value(self, time: Tensor) -> Tensor:
        try:
            value = torch.as_tensor(self.function(time), dtype=time.dtype)
            value = value.expand(time.shape)
        except (TypeError, ValueError, RuntimeError):  # a function of plain floats, such as math.cos
            plain = [float(self.function(moment)) for moment in time.detach().flatten().tolist()]
            value = time.new_tensor(plain).reshape(time.shape)
        if not torch.isfinite(value).all() or (value < 0).any():
            worst = value[~(torch.isfinite(value) & (value >= 0))].flatten()[0].item()
            raise ValueError(
                f"the learning-rate function returned {worst}; it must be finite and not negative "
                "at every time asked for, including t = 0."
            )
        return value

    def integral(self, time: Tensor) -> Tensor:
        moments, back = torch.unique(time.detach(), return_inverse=True)
        edges = torch.cat([moments.new_zeros(1), moments])
        pieces = integrate(self.value, edges[:-1], edges[1:])
        return torch.cumsum(pieces, 0)[back].reshape(time.shape)

    breaks = ()
    settles = math.inf
    floor = math.nan
    highest = math.inf


def integrate(function: Callable[[Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
    r"""Integral of `function` over each panel, halving the panels where 16 and 2 x 16 nodes disagree."""
    nodes, weights = (left.new_tensor(part) for part in np.polynomial.legendre.leggauss(16))

    def rule(a: Tensor, b: Tensor) -> Tensor:
        half, middle = (b - a) / 2, (a + b) / 2
        return half * (function(middle[:, None] + half[:, None] * nodes) @ weights)

    owner = torch.arange(len(left))
    area = left.new_zeros(len(left))
    whole = rule(left, right)
    scale = whole.detach().abs().sum()
    for _ in range(80):
        middle = (left + right) / 2
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
    return area.index_add(0, owner, whole)


@dataclass(frozen=True)
class Schedule:
    r"""A learning rate over time, :math:`\eta(t)`: `peak` times `shape`.

    Example:
        >>> schedule = cosine(0.1, total=100)
        >>> schedule(0.0), schedule(100.0), schedule.integral(100.0)
        (tensor(0.1000, dtype=torch.float64), tensor(0., dtype=torch.float64), tensor(5., dtype=torch.float64))
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
        return Schedule(self.peak * scalar("the factor of a schedule", factor), self.shape)

    __rmul__ = __mul__

    def proportional_to(self, other: Schedule) -> bool:
        """Whether the two differ only by a constant factor."""
        return self.shape == other.shape


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
    return schedule.peak * schedule.shape.floor


def _duration(name: str, value: float) -> float:
    return scalar(name, value, positive=True).item()


def constant(lr: Number) -> Schedule:
    """The same rate at all times.

    Example:
        >>> constant(0.1).integral([0.0, 50.0])
        tensor([0., 5.], dtype=torch.float64)
    """
    return Schedule(scalar("lr", lr), Constant())


def cosine(lr: Number, total: float, end: float = 0.0) -> Schedule:
    r"""From `lr` to `end` along half a cosine during `total`, and `end` from then on: ``CosineAnnealingLR``.

    Example:
        >>> cosine(0.1, total=100, end=0.02)([0.0, 50.0, 1000.0])
        tensor([0.1000, 0.0600, 0.0200], dtype=torch.float64)
    """
    peak = scalar("lr", lr)
    if end == 0:
        return Schedule(peak, Cosine(_duration("total", total), 0.0))
    share = scalar("end", end).item() / scalar("lr", peak, positive=True).item()
    return Schedule(peak, Cosine(_duration("total", total), share))


def step(lr: Number, every: float | Sequence[float], factor: float = 0.1) -> Schedule:
    """Multiplied by `factor` each `every`, or at each time of a list: ``StepLR`` and ``MultiStepLR``.

    Example:
        >>> step(1.0, every=10)([9, 10, 25]), step(1.0, every=[10, 15], factor=0.5)([9, 10, 25])
        (tensor([1.0000, 0.1000, 0.0100], dtype=torch.float64), tensor([1.0000, 0.5000, 0.2500], dtype=torch.float64))
    """
    fall = scalar("factor", factor).item()
    if isinstance(every, Sequence):
        values = [fall**k for k in range(len(every) + 1)]
        return Schedule(scalar("lr", lr), Piecewise(_increasing(every), tuple(values)))
    if fall > 1:
        raise ValueError(f"a step schedule without end needs factor <= 1, got {fall}; list its times.")
    shape = Constant() if fall == 1 else Geometric(_duration("every", every), fall)
    return Schedule(scalar("lr", lr), shape)


def exponential(lr: Number, decay: float) -> Schedule:
    r"""`lr` times `decay` to the power t: ``ExponentialLR``.

    Example:
        >>> exponential(1.0, decay=0.5)([0, 1, 2])
        tensor([1.0000, 0.5000, 0.2500], dtype=torch.float64)
    """
    fall = scalar("decay", decay, positive=True).item()
    if fall > 1:
        raise ValueError(f"an exponential schedule needs decay <= 1, got {fall}.")
    return Schedule(scalar("lr", lr), Constant() if fall == 1 else Exponential(fall))


def piecewise(boundaries: Sequence[float], values: Sequence[float]) -> Schedule:
    """`values[0]` until `boundaries[0]`, `values[1]` until `boundaries[1]`, ...; one more value than boundaries.

    Example:
        >>> piecewise([10, 20], [0.1, 0.5, 0.0])([9, 10, 20])
        tensor([0.1000, 0.5000, 0.0000], dtype=torch.float64)
    """
    if len(values) != len(boundaries) + 1:
        raise ValueError(
            f"piecewise() needs one more value than boundaries, got {len(values)} values "
            f"and {len(boundaries)} boundaries."
        )
    heights = [scalar("values", value).item() for value in values]
    peak = max(heights)
    if peak == 0:
        return constant(0.0)
    shape = Piecewise(_increasing(boundaries), tuple(height / peak for height in heights))
    return Schedule(scalar("values", peak), shape)


def warmup(schedule: OneRate, duration: float, start: float = 0.0) -> Schedule:
    """A straight line from `start` (a fraction of the peak) to the peak during `duration`, then `schedule`.

    Example:
        >>> warmup(cosine(0.1, total=100), duration=10)([0, 5, 10, 110])
        tensor([0.0000, 0.0500, 0.1000, 0.0000], dtype=torch.float64)
    """
    after = as_schedule(schedule)
    return Schedule(after.peak, Warmup(_duration("duration", duration), scalar("start", start).item(), after.shape))


def _increasing(boundaries: Sequence[float]) -> tuple[float, ...]:
    times = tuple(scalar("boundaries", time).item() for time in boundaries)
    if any(b <= a for a, b in zip((0.0, *times), times, strict=False)):
        raise ValueError(f"boundaries must be positive and increasing, got {list(boundaries)}.")
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
