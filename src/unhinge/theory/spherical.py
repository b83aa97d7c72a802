r"""Normalized features and fixed prototypes: two scalars per example (Theorem 4)  [eq: sphere].

The loss is the mean unhinged loss of the logits :math:`W h/\|h\|`, which is :math:`-\sum_i v_i^\top \hat h_i` with the
pull :math:`v_i = \frac1n\big((1+\gamma) w_{y_i} - \gamma\sum_j w_j\big)`. A gradient step moves :math:`h_i` in the
plane of its start and :math:`v_i`, so an example is its coordinates (a, b) along and across :math:`\hat v_i`:

.. math:: a^+ = r a + g\, b^2/q, \qquad b^+ = b\,(r - g\, a/q), \qquad q = a^2 + b^2, \quad r = 1 - \eta\lambda,

with :math:`g = \eta\|v\|/\sqrt q` for plain descent and :math:`g = \eta\|v\|` when gradients are rescaled by
:math:`\|h\|`. What decides is :math:`\alpha = \eta\|v\|/\|h\|^\nu`, :math:`\nu = 2` plain and 1 rescaled. At a
constant rate and without decay all three motions are geometric in one variable, :math:`E_k = E_0\,\rho^k`, which
starts as :math:`\tan(\theta/2)`:

- flow: :math:`E = \tan(\theta/2)`, :math:`\rho = e^{-\alpha}` per unit of time, exactly;
- rescaled descent: a Moebius map, exactly, for steps of any size;
- plain descent: a series in :math:`\alpha`, to rounding for :math:`\alpha \le 1/128`; larger steps are taken one by
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unhinge.theory.collapse import collapse_measures
from unhinge.theory.path import CHUNK, first_time_below
from unhinge.theory.schedules import (
    Constant,
    Cosine,
    Exponential,
    Geometric,
    Piecewise,
    Schedule,
    Shape,
    Warmup,
    as_schedule,
)
from unhinge.theory.state import State
from unhinge.theory.validation import (
    check_alike,
    check_labels,
    check_num_classes,
    check_soft_labels,
    check_steps,
    check_tensor,
    check_times,
    scalar,
)

__all__ = ["Hypotheses", "Spherical", "SphericalPath"]

Array = npt.NDArray[np.float64]

EPS = torch.finfo(torch.float64).eps
SMALL_STEP = 1 / 128  # the largest alpha at which eight terms of the series leave less than rounding
FAINT = 1e-9  # below this angle its square is nothing beside 1, and the norm stands still
STRIDE = 256  # steps between two looks at whether a closed form can take over
SERIES_COST = 300  # one evaluation of the series costs about as much as this many steps
LONGEST = 10_000_000  # steps taken one by one in search of an end before giving up
WIDTH = 8192  # examples stepped together: their arrays stay in the cache


class Spherical:
    r"""Features on rays, classified by fixed prototypes: mean unhinged loss of :math:`W h/\|h\|`, solved exactly.

    Arguments:
        target: Integer labels :math:`(n,)` in any order, or soft labels :math:`(n, C)` whose rows sum to 1.
        weight: Fixed prototypes :math:`W`, shape :math:`(C, p)`; any, their mean need not be zero.
        gamma: Weight :math:`\gamma \ge 0` of the other logits; `None` means :math:`1/(C-1)`.
        feature_decay: :math:`\lambda`, of the term :math:`\frac\lambda2\|H\|^2`.

    Example:
        >>> weight = torch.eye(3, dtype=torch.float64)
        >>> features = torch.tensor([[1.0, 2, 0], [0, 1, 1], [2, 0, 0]], dtype=torch.float64)
        >>> path = Spherical(torch.tensor([0, 1, 2]), weight).descent(features, lr=1.0)
        >>> path.distance(torch.tensor([0, 10, 100, 1000]))
        tensor([2.4978e+00, 1.3092e+00, 8.1043e-04, 1.8111e-34], dtype=torch.float64)
    """

    def __init__(
        self,
        target: Tensor,
        weight: Tensor,
        gamma: float | Tensor | None = None,
        feature_decay: float | Tensor = 0.0,
    ) -> None:
        self.weight = check_tensor("weight", weight, (None, None)).detach()
        self.num_classes = check_num_classes(len(weight))
        self.gamma = scalar("gamma", 1 / (self.num_classes - 1) if gamma is None else gamma).item()
        self.feature_decay = scalar("feature_decay", feature_decay).item()
        self.pulls = _pulls(target, self.weight, self.gamma)

    def flow(self, features: Tensor, lr: Any = 0.1, rescaled: bool = False) -> SphericalPath:
        r"""Gradient flow, :math:`\tan\frac\theta2 = e^{-\kappa}\tan\frac{\theta_0}2`; the norm only decays, by
        :math:`e^{-\lambda\zeta}`.

        Arguments:
            features: Initial features :math:`(n, p)`, none of them zero.
            lr: A rate, a :class:`Schedule` or a function of time.
            rescaled: Multiply the loss gradient of each example by :math:`\|h\|` (the decay is not rescaled).
        """
        planes = self._planes(features)
        motion = SphereFlow(planes, as_schedule(lr), self.feature_decay, 1 if rescaled else 2)
        return self._path(features, planes, motion)

    def descent(self, features: Tensor, lr: Any = 0.1, rescaled: bool = False) -> SphericalPath:
        r"""The iterates of gradient descent on the features: ``at(k)`` is the state after k steps, step k uses
        ``lr(k)``.

        Arguments are those of :meth:`flow`. Steps of any size are right, those that cross the target included.
        """
        planes = self._planes(features)
        motion = SphereDescent(planes, as_schedule(lr), self.feature_decay, 1 if rescaled else 2)
        motion.check_range()
        return self._path(features, planes, motion)

    def _path(self, features: Tensor, planes: Planes, motion: Motion) -> SphericalPath:
        return SphericalPath(features.detach(), self.weight, self.pulls, planes, motion)

    def _planes(self, features: Tensor) -> Planes:
        check_tensor("features", features, (len(self.pulls.rows), self.weight.shape[1]))
        check_alike(features=features, weight=self.weight)
        return _planes(features.detach(), self.pulls)


@dataclass(frozen=True)
class Hypotheses:
    r"""What Theorem 4 asks of a path, corrected, with the values found here.

    For :math:`\alpha \le 1` at every step, a sum of rates that diverges, no decay and no start opposite to its target,
    every angle falls monotonically to 0. A constant rate of any size converges too, perhaps not monotonically. `None`
    means that a learning rate given as a function does not tell.
    """

    first_alpha: float  # largest over the examples at the first step
    largest_alpha: float  # no alpha of any step is above this; 0 for a flow
    non_increasing: bool | None  # the rate; with it first_alpha <= 1 is enough
    diverges: bool | None  # the sum (integral) of the rates
    opposite: tuple[int, ...]  # examples that start exactly opposite to their target, and stay there
    feature_decay: float
    constant: bool  # the rate
    discrete: bool

    @property
    def monotone(self) -> bool:
        """Whether the theorem applies: all angles fall monotonically to 0."""
        small = self.largest_alpha <= 1 or (self.first_alpha <= 1 and self.non_increasing is True)
        return small and self.diverges is True and not self.opposite and (self.feature_decay == 0 or not self.discrete)

    @property
    def converges(self) -> bool:
        """Whether all angles are known to tend to 0, monotonically or not."""
        steady = self.constant and self.diverges is True and not self.opposite and self.feature_decay == 0
        return self.monotone or steady


@dataclass(frozen=True)
class SphericalPath:
    r"""The exact path of normalized features; made by `Spherical.flow` and `Spherical.descent`.

    Scalar questions cost O(n) per time, whatever the dimension. Angles and distances stay accurate however small.
    Answers are not differentiable.
    """

    features: Tensor  # (n, p), at the start
    weight: Tensor  # (C, p)
    pulls: Pulls
    planes: Planes
    motion: Motion

    # ---- the state ----------------------------------------------------------------------------------------------

    def at(self, time: Any) -> State:
        """The state at each time (flow) or after each number of steps (descent)."""
        here = self._position(time)
        features = self._assemble(here.norm * here.cos, here.norm * here.sin)
        return State(features, self._fixed(here.norm.shape[:-1]), None, self._like(torch.zeros(here.norm.shape[:-1])))

    def direction(self) -> State:
        r"""The limit of the normalized features, one unit row per example: :math:`\hat v_i`, or minus that for a start
        opposite to it. A schedule that falls to zero stops short of it, at :meth:`limit`."""
        self._check_settles("direction")
        cos = torch.where(self.planes.opposite, -1.0, 1.0).double()
        return State(self._assemble(cos, torch.zeros_like(cos)), self.weight)

    def limit(self) -> State:
        r"""The limit of :math:`H`: each feature on its target's ray with the norm of :meth:`limit_norm`."""
        if self._stops:
            return self.at(self._horizon)
        return State(self.direction().features * self.limit_norm()[:, None], self.weight)

    def limit_norm(self) -> Tensor:
        r"""The limit of each :math:`\|h_i\|`, shape :math:`(n,)`.

        Flow keeps the norm (decay takes it to 0). Rescaled descent ends at
        :math:`\frac12\big(c + \sqrt{(c - 2a)^2 + 4b^2}\big)`, :math:`c = \eta\|v\|`; plain descent near
        :math:`\sqrt{\|h\|^2 + c(1 - \cos\theta)}`, here to all digits.
        """
        if self._stops:
            return self._like(self.motion.position(self.motion.times(self._horizon)).norm)
        self._check_settles("limit_norm")
        return self._like(self.motion.final_norm())

    # ---- scalar questions -----------------------------------------------------------------------------------------

    def loss(self, time: Any) -> Tensor:
        r"""Mean unhinged loss :math:`-\sum_i \|v_i\| \cos\theta_i`, without the decay term."""
        return self._like(-(self._position(time).cos * self.planes.pull).sum(-1))

    def angles(self, time: Any) -> Tensor:
        r"""The angle :math:`\theta_i` in :math:`[0, \pi]` between each feature and its target, shape :math:`(*, n)`."""
        here = self._position(time)
        return self._like(torch.atan2(here.sin.abs(), here.cos))

    def distance(self, time: Any, per_example: bool = False) -> Tensor:
        r""":math:`\|\hat H - \hat V\| = \big(\sum_i \|h_i/\|h_i\| - v_i/\|v_i\|\|^2\big)^{1/2}`, Frobenius over all
        examples.

        With `per_example` the n terms :math:`\|\hat h_i - \hat v_i\| = 2\sin(\theta_i/2)`, shape :math:`(*, n)`. An
        example that starts opposite to its target keeps its 2 for ever.
        """
        chord = self._position(time).chord()
        return self._like(chord if per_example else _length(chord))

    def feature_norm(self, time: Any) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""
        return self._like(_length(self._position(time).norm))

    def weight_norm(self, time: Any) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`, a constant."""
        norm = self.weight.double().norm().cpu()
        return self._like(norm.expand(self.motion.times(time).shape))

    def log_norm(self, time: Any) -> Tensor:
        r""":math:`\log\|H\|`."""
        return self._like(_length(self._position(time).norm).log())

    def growth(self, lr: float | None = None) -> Tensor:
        r"""Exponent of :math:`\|H\|`: :math:`-\eta\lambda` in the flow, 0 for descent without decay, where it
        converges."""
        if self.motion.discrete:
            self._check_no_decay("growth")
        return self._like(torch.tensor(-self.motion.decay * self._final_rate(lr), dtype=torch.float64))

    def rate(self, lr: float | None = None) -> Tensor:
        r"""Exponent of :meth:`distance` per unit of time or per step, that of the slowest example; negative.

        :math:`\log|1 - \alpha_\infty|` for descent, :math:`-\alpha` for the flow, at a constant rate: `lr`, or by
        default the one the schedule ends with. 0 if an example is stuck opposite to its target or nothing moves; minus
        infinity if the distance reaches 0 in finitely many steps, or in a flow with decay, where it falls doubly
        exponentially.
        """
        eta = self._final_rate(lr)
        if self.planes.opposite.any() or eta == 0:
            return self._like(torch.zeros((), dtype=torch.float64))
        if self.motion.discrete:
            self._check_no_decay("rate")
            self._check_settles("rate")
        moving = self.planes.across > 0
        if not moving.any() or (not self.motion.discrete and self.motion.decay > 0):
            return self._like(torch.tensor(-math.inf, dtype=torch.float64))
        return self._like(self.motion.exponents(eta)[moving].max())

    def time_to(self, distance: Any) -> Tensor:
        """The first time (or step) at which :meth:`distance` is at most `distance`; infinite if never.

        Every one of the first thousand steps is looked at; beyond, dips shorter than a 256th of the time are not seen.
        """
        wanted = torch.as_tensor(distance, dtype=torch.float64)
        if not bool((wanted > 0).all()):
            raise ValueError("the distance must be positive; zero is reached only in the limit.")
        found = [self._time_to(value) for value in wanted.reshape(-1).tolist()]
        return self._like(torch.tensor(found, dtype=torch.float64).reshape(wanted.shape))

    # ---- questions that look at classes ---------------------------------------------------------------------------

    def accuracy(self, time: Any) -> Tensor:
        """Share of examples whose largest logit is their label's (soft labels: most probable class); O(n C) per
        time."""
        here = self._position(time)
        head = self.weight.double().cpu()
        head = head - head.mean(0)
        toward = (self.pulls.units @ head.mT)[self.pulls.rows]
        across = self.planes.units @ head.mT
        shape = here.cos.shape[:-1]
        cos, sin = (part.reshape(-1, part.shape[-1]) for part in (here.cos, here.sin))
        size = max(1, CHUNK // toward.numel())
        hits = [
            ((c[..., None] * toward + s[..., None] * across).argmax(-1) == self.pulls.labels).double().mean(-1)
            for c, s in zip(cos.split(size), sin.split(size), strict=True)
        ]
        return self._like(torch.cat(hits).reshape(shape))

    def collapse(self, time: Any) -> dict[str, Tensor]:
        """Neural-collapse measures of the features: see :func:`unhinge.theory.collapse.collapse_measures`."""
        moments = self.motion.times(time)
        labels = self.pulls.labels
        weight = self.weight.double().cpu()
        counts = torch.bincount(labels, minlength=len(weight)).double()
        if bool((counts == 0).any()):
            raise ValueError(
                "collapse needs at least one example of every class; drop the prototypes of empty classes."
            )
        rows = []
        for moment in moments.reshape(-1):
            features = self.at(moment).features.double().cpu()
            means = torch.zeros_like(weight).index_add(0, labels, features) / counts[:, None]
            apart = features - means[labels]
            within = apart.mT @ apart / len(labels)
            rows.append(collapse_measures(means, weight, within.trace(), within))
        keys = rows[0].keys() if rows else ()
        return {key: self._like(torch.stack([row[key] for row in rows]).reshape(moments.shape)) for key in keys}

    # ---- what the theorem asks ------------------------------------------------------------------------------------

    @property
    def opposite(self) -> Tensor:
        """Indices of the examples that start exactly opposite to their target, and stay there."""
        return self.planes.opposite.nonzero().flatten()

    def hypotheses(self) -> Hypotheses:
        """Which hypotheses of the corrected Theorem 4 hold, with their values."""
        motion, shape = self.motion, self.motion.schedule.shape
        unit = self.planes.speed(motion.power).max().item()
        first, highest = motion.schedule(0.0).item(), motion.schedule.peak.item() * shape.highest
        return Hypotheses(
            first_alpha=unit * first if motion.discrete else 0.0,
            largest_alpha=unit * highest if motion.discrete else 0.0,
            non_increasing=_non_increasing(shape),
            diverges=None if math.isinf(shape.settles) else shape.floor > 0 and motion.schedule.peak.item() > 0,
            opposite=tuple(self.opposite.tolist()),
            feature_decay=motion.decay,
            constant=isinstance(shape, Constant),
            discrete=motion.discrete,
        )

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _like(self, value: Tensor) -> Tensor:
        return value.to(self.features.device, self.features.dtype)

    def _position(self, time: Any) -> Position:
        return self.motion.position(self.motion.times(time))

    def _fixed(self, shape: torch.Size) -> Tensor:
        return self.weight.expand(*shape, *self.weight.shape)

    def _assemble(self, along: Tensor, across: Tensor) -> Tensor:
        """Features from their coordinates (*, n), shape (*, n, p)."""
        toward = self._like(self.pulls.units)[self.pulls.rows.to(self.features.device)]
        return self._like(along)[..., None] * toward + self._like(across)[..., None] * self._like(self.planes.units)

    @property
    def _stops(self) -> bool:
        schedule = self.motion.schedule
        return schedule.peak.item() == 0 or (schedule.shape.floor == 0 and math.isfinite(schedule.shape.settles))

    @property
    def _horizon(self) -> float:
        """The time after which nothing moves."""
        settles = self.motion.schedule.shape.settles if self.motion.schedule.peak.item() > 0 else 0.0
        return float(math.ceil(settles)) if self.motion.discrete else settles

    def _final_rate(self, lr: float | None) -> float:
        if lr is not None:
            return scalar("lr", lr).item()
        schedule = self.motion.schedule
        if not schedule.shape.floor > 0:
            raise ValueError(
                "the schedule does not end with a constant positive rate, so there is no exponent per unit of time. "
                "Pass one: growth(lr=...), rate(lr=...)."
            )
        return schedule.peak.item() * schedule.shape.floor

    def _check_no_decay(self, question: str) -> None:
        if self.motion.decay > 0:
            raise ValueError(
                f"{question}() of descent on the sphere needs feature_decay = 0, got {self.motion.decay:g}: decay "
                f"shrinks the features until steps overshoot, and the angles then burst for ever. Ask distance over "
                f"time, or use flow()."
            )

    def _check_settles(self, question: str) -> None:
        if math.isinf(self.motion.schedule.shape.settles):
            raise ValueError(
                f"{question}() needs to know how the learning rate ends, and a function does not tell. "
                "Pass a Schedule, for example piecewise(), or ask at() for a late time."
            )
        if self.motion.discrete:
            self._check_no_decay(question)

    def _time_to(self, wanted: float) -> float:
        motion = self.motion

        def measured(moments: Tensor) -> Tensor:
            return _length(motion.position(motion.times(moments)).chord())

        if not motion.discrete:
            return first_time_below(measured, wanted, self._horizon if self._stops else 1e300, False)
        closed = motion.decay == 0 and math.isfinite(motion.schedule.shape.settles)
        horizon = self._horizon if self._stops else 2.0**62 if closed else 1e6
        step = 4 * STRIDE
        for first in range(0, step if closed else int(horizon), step):
            block = torch.arange(first, min(first + step, int(horizon)) + 1)
            below = measured(block) <= wanted
            if below.any():
                return float(block[int(below.int().argmax())])
        if not closed and not self._stops:
            raise ValueError(
                f"the distance {wanted:g} is not reached within a million steps, and a path with feature decay or with "
                f"a learning rate given as a function has no end that could be computed. Ask distance() at chosen "
                f"steps."
            )
        if self.planes.opposite.any() and wanted < 2:
            return math.inf
        return first_time_below(measured, wanted, horizon, True)


# ---- each example in its plane --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pulls:
    r"""The targets :math:`v`: one row per class for integer labels, per example for soft ones."""

    units: Tensor  # (r, p) float64, v / |v|
    sizes: Tensor  # (r,), |v|
    noise: Tensor  # (r, p), what the entries of v are sums of, relative to |v|: their rounding
    rows: Tensor  # (n,), the row of each example
    labels: Tensor  # (n,), the class of each example


@dataclass(frozen=True)
class Planes:
    """Each example in the plane of its start and its target."""

    pull: Tensor  # (n,) float64, |v|
    along: Tensor  # (n,), coordinate along v
    across: Tensor  # (n,), coordinate across, not negative; exactly 0 on the line of v
    units: Tensor  # (n, p), unit vector across; 0 on the line of v

    @property
    def norm(self) -> Tensor:
        return torch.hypot(self.along, self.across)

    @property
    def opposite(self) -> Tensor:
        return (self.across == 0) & (self.along < 0)

    @property
    def tangent(self) -> Tensor:
        r""":math:`\tan(\theta/2)`, infinite for an opposite start."""
        near = self.across / torch.where(self.along > 0, self.norm + self.along, 1.0)
        return torch.where(self.along > 0, near, (self.norm - self.along) / self.across)

    def speed(self, power: int) -> Tensor:
        r""":math:`\alpha` per unit of learning rate, :math:`\|v\| / \|h\|^\nu`."""
        speed = self.pull / self.norm
        return (speed if power == 1 else speed / self.norm).clamp(max=1e300)


@dataclass(frozen=True)
class Position:
    """Where the examples are, shape (*, n) each: the angle by cosine and sine, as accurate near 0 and pi, and the
    norm."""

    cos: Tensor
    sin: Tensor  # signed: negative on the other side of v than at the start
    norm: Tensor

    def chord(self) -> Tensor:
        r""":math:`2\sin(\theta/2)`."""
        near = self.sin.abs() * torch.sqrt(2 / (1 + self.cos.clamp(min=0)))
        return torch.where(self.cos > 0, near, torch.sqrt(2 - 2 * self.cos.clamp(max=0)))


def _pulls(target: Any, weight: Tensor, gamma: float) -> Pulls:
    if not isinstance(target, Tensor) or target.is_complex() or target.dtype == torch.bool:
        came = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise ValueError(f"target must be a tensor of integer labels (n,) or of soft labels (n, C), got {came}.")
    classes = len(weight)
    if target.is_floating_point():
        shares = check_soft_labels(target, classes).detach().to("cpu", torch.float64)
        rows, labels = torch.arange(len(shares)), shares.argmax(1)
    elif target.ndim != 1:
        raise ValueError(
            f"integer labels must have shape (n,), got {tuple(target.shape)}. "
            "Soft labels have shape (n, C) and a floating dtype."
        )
    else:
        labels = check_labels(target, classes).cpu()
        shares, rows = torch.eye(classes, dtype=torch.float64), labels
    prototypes = weight.to("cpu", torch.float64)
    scale = prototypes.abs().max().clamp(min=torch.finfo(torch.float64).tiny)
    prototypes = prototypes / scale
    mine = prototypes if rows is labels else shares @ prototypes
    pull = (1 + gamma) * mine - gamma * prototypes.sum(0)
    terms = (1 + gamma) * (mine.abs() if rows is labels else shares.abs() @ prototypes.abs())
    terms = terms + gamma * prototypes.abs().sum(0)
    sizes = pull.norm(dim=1)
    zero = (sizes <= 8 * EPS * terms.norm(dim=1))[rows]
    if zero.any():
        example = int(zero.int().argmax())
        raise ValueError(
            f"example {example} (class {int(labels[example])}) has no target: (1 + gamma) w_y - gamma sum_j w_j is "
            f"zero, so no direction is better than another; {int(zero.sum())} of {len(rows)} examples are such. Pass "
            f"prototypes that differ from their mean, or another gamma."
        )
    safe = torch.where(sizes > 0, sizes, 1.0)[:, None]
    return Pulls(pull / safe, sizes * (scale / len(rows)), terms / safe, rows, labels)


def _planes(features: Tensor, pulls: Pulls) -> Planes:
    h = features.to("cpu", torch.float64)
    scale = h.abs().amax(1, keepdim=True)
    zero = scale[:, 0] == 0
    if zero.any():
        raise ValueError(
            f"feature {int(zero.int().argmax())} is zero, and a zero vector has no direction to normalize; "
            f"{int(zero.sum())} of {len(h)} are. Drop these examples, or start them anywhere else."
        )
    h = h / scale
    toward = pulls.units[pulls.rows]
    along = (h * toward).sum(1, keepdim=True)
    apart = h - along * toward
    again = (apart * toward).sum(1, keepdim=True)  # once more, or a start near the line of v would not end orthogonal
    along, apart = along + again, apart - again * toward
    # a residue of rounding in every entry is no residue: a start meant to be opposite is opposite
    rounding = 4 * torch.finfo(features.dtype).eps * (h.abs() + along.abs() * pulls.noise[pulls.rows])
    apart = torch.where((apart.abs() <= rounding).all(1, keepdim=True), 0.0, apart)
    across = apart.norm(dim=1, keepdim=True)
    units = apart / torch.where(across > 0, across, 1.0)
    pull = pulls.sizes[pulls.rows]
    return Planes(pull, (along * scale)[:, 0], (across * scale)[:, 0], units)


def _length(parts: Tensor) -> Tensor:
    """Euclidean norm over the last axis, at any scale."""
    largest = parts.abs().amax(-1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    return largest[..., 0] * (parts / largest).pow(2).sum(-1).sqrt()


def _non_increasing(shape: Shape) -> bool | None:
    match shape:
        case Constant() | Geometric() | Exponential():
            return True
        case Cosine():
            return shape.floor <= 1
        case Piecewise():
            return all(later <= earlier for earlier, later in zip(shape.values, shape.values[1:], strict=False))
        case Warmup():
            return shape.start >= 1 and _non_increasing(shape.after)
        case _:
            return None


# ---- how the examples move ------------------------------------------------------------------------------------------


class Motion(Protocol):
    """The examples' coordinates as functions of time."""

    @property
    def planes(self) -> Planes: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def decay(self) -> float: ...
    @property
    def power(self) -> int: ...  # nu: 2, or 1 if rescaled
    @property
    def discrete(self) -> bool: ...
    def times(self, time: Any) -> Tensor: ...
    def position(self, moments: Tensor) -> Position: ...
    def final_norm(self) -> Tensor: ...  # (n,)
    def exponents(self, lr: float) -> Tensor: ...  # (n,), of each example's angle at a constant rate


@dataclass(frozen=True)
class SphereFlow:
    r"""Gradient flow: :math:`\kappa = \frac{\|v\|}{\|h_0\|^\nu}\,\frac{e^{\nu\lambda\zeta}-1}{\nu\lambda}`  [eq:
    sphere-flow]."""

    planes: Planes
    schedule: Schedule
    decay: float
    power: int

    discrete = False

    def times(self, time: Any) -> Tensor:
        return check_times(time)

    def position(self, moments: Tensor) -> Position:
        clock = self.schedule.integral(moments).detach()[..., None]
        pace = self.power * self.decay
        stretched = torch.expm1(pace * clock) / pace if pace > 0 else clock
        kappa = self.planes.speed(self.power) * stretched.clamp(max=1e300)
        tangent = torch.where(self.planes.opposite, torch.inf, self.planes.tangent * torch.exp(-kappa))
        flip = torch.where(tangent > 1, -1.0, 1.0)
        small = torch.where(tangent > 1, 1 / tangent, tangent)  # tan(theta/2) or its inverse, at most 1
        norm = self.planes.norm * torch.exp(-self.decay * clock)
        cos = flip * (1 - small) * (1 + small) / (1 + small**2)
        return Position(cos, 2 * small / (1 + small**2), norm)

    def final_norm(self) -> Tensor:
        return self.planes.norm if self.decay == 0 else torch.zeros_like(self.planes.norm)

    def exponents(self, lr: float) -> Tensor:
        return -lr * self.planes.speed(self.power)


@dataclass(frozen=True)
class SphereDescent:
    r"""Gradient descent. Lengths are counted in each example's own unit, so that no scale over- or underflows."""

    planes: Planes
    schedule: Schedule
    decay: float
    power: int
    latest: dict[bytes, tuple[Array, Array]] = field(default_factory=dict, repr=False, compare=False)

    discrete = True

    def times(self, time: Any) -> Tensor:
        return check_steps(time)

    def check_range(self) -> None:
        far = (self.planes.norm / self.unit < 1e-100) & (self.planes.across > 0)
        if far.any():
            example = int(far.int().argmax())
            raise ValueError(
                f"the first step throws feature {example} more than 1e100 times its own norm away (|h| = "
                f"{self.planes.norm[example].item():.3g}, |v| = {self.planes.pull[example].item():.3g}). Lower lr, or "
                f"rescale the features."
            )

    @cached_property
    def unit(self) -> Tensor:
        """The norm at the start, or the length that makes alpha 1 if that is longer."""
        shape = self.schedule.shape
        highest = (
            self.schedule.peak.item() * shape.highest if math.isfinite(shape.highest) else self.schedule(0.0).item()
        )
        reach = highest * self.planes.pull
        return torch.maximum(self.planes.norm, reach if self.power == 1 else reach.sqrt())

    def position(self, moments: Tensor) -> Position:
        steps, back = np.unique(moments.numpy(), return_inverse=True)
        along, across = self._walked(steps)
        norm = np.hypot(along, across)
        # decay can take a feature that never turns below the smallest float; its direction remains
        lost = norm == 0
        safe = np.where(lost, 1.0, norm)
        line = np.copysign(1.0, self.planes.along.numpy())
        cos, sin = np.where(lost, line, along / safe), across / safe
        shape = (*moments.shape, -1)
        pick = back.reshape(-1)
        found = (torch.from_numpy(part[pick]).reshape(shape) for part in (cos, sin, norm * self.unit.numpy()))
        return Position(*found)

    def final_norm(self) -> Tensor:
        along, across, pull, rate = self._settled()
        return torch.from_numpy(_final_norm(along, across, pull * rate, self.power) * self.unit.numpy())

    def exponents(self, lr: float) -> Tensor:
        along, across, pull, rate = self._settled()
        if self.power == 1 and lr == rate:
            return torch.from_numpy(_moebius(along, across, pull * rate)[2])
        norm = _final_norm(along, across, pull * rate, self.power)
        return torch.from_numpy(_log_abs1p(-pull * lr / norm**self.power))

    # ---- in the examples' own units: numpy, because a step in place on small arrays is all there is to it -----------

    def _start(self) -> tuple[Array, Array, Array]:
        """Coordinates, and alpha times the power of the norm per unit of learning rate."""
        unit = self.unit
        pull = self.planes.pull / unit if self.power == 1 else self.planes.pull / unit / unit
        return (self.planes.along / unit).numpy(), (self.planes.across / unit).numpy(), pull.numpy()

    def _walked(self, steps: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Coordinates after each of the sorted steps, (K, n); the last answer is kept, for the next question about
        it."""
        key = steps.tobytes()
        if key not in self.latest:
            along, across, pull = self._start()
            found = np.empty((len(steps), len(along))), np.empty((len(steps), len(along)))
            for first in range(0, len(along), WIDTH):
                part = slice(first, first + WIDTH)
                self._walk(
                    along[part].copy(), across[part].copy(), pull[part], steps, found[0][:, part], found[1][:, part]
                )
            self.latest.clear()
            self.latest[key] = found
        return self.latest[key]

    def _walk(self, a: Array, b: Array, pull: Array, steps: npt.NDArray[np.int64], along: Array, across: Array) -> None:
        """Fills `along` and `across`, span by span of the schedule; a and b are spent."""
        last = int(steps[-1]) if len(steps) else 0
        for first, stop, rate in self._spans():
            asked = np.flatnonzero((steps >= first) & (steps < stop))
            if rate is not None and self.decay == 0:
                counts = steps[asked] - first
                end = None if last < stop else stop - first
                a, b = self._constant(a, b, pull * rate, counts, end, asked, along, across)
            else:
                stops = np.append(steps[asked], min(stop, last)).astype(np.int64) if last >= stop else steps[asked]
                now = first
                for place, until in enumerate(stops.tolist()):
                    self._advance(a, b, pull, now, until)
                    now = until
                    if place < len(asked):
                        along[asked[place]], across[asked[place]] = a, b
            if last < stop:
                return

    def _spans(self) -> Iterator[tuple[int, int | float, float | None]]:
        """(first step, end, rate): with the rate where it is constant over the span, else None."""
        shape, peak = self.schedule.shape, self.schedule.peak.item()
        if isinstance(shape, Piecewise | Geometric):
            edges = [0, *sorted({math.ceil(at) for at in shape.breaks})]
            rates = self.schedule(torch.tensor(edges, dtype=torch.float64)).tolist()
            rates[-1] = peak * shape.floor
            yield from zip(edges, [*edges[1:], math.inf], rates, strict=True)
        elif math.isinf(shape.settles):
            yield 0, math.inf, None
        else:
            settles = math.ceil(shape.settles)
            if settles > 0:
                yield 0, settles, None
            yield settles, math.inf, peak * shape.floor

    def _advance(self, a: Array, b: Array, pull: Array, now: int, until: int) -> None:
        while now < until:
            stop = min(until, now + 4096)
            rates = self.schedule(torch.arange(now, stop, dtype=torch.float64)).tolist()
            _descend(a, b, pull, rates, self.decay, self.power)
            now = stop
        if self.decay > 0 and bool(((a == 0) & (b == 0)).any()):
            raise ValueError(
                "lr * feature_decay = 1 takes a feature on the line of its target exactly to zero, where the "
                "normalized loss has no gradient. Choose another lr or feature_decay."
            )

    def _constant(
        self,
        a: Array,
        b: Array,
        c: Array,
        counts: npt.NDArray[np.int64],
        end: int | float | None,
        asked: npt.NDArray[np.intp],
        along: Array,
        across: Array,
    ) -> tuple[Array, Array]:
        """A span of equal steps without decay, :math:`c = \\eta\\|v\\|`: fills the asked counts, returns the state at
        `end`."""
        stops = counts if end is None else np.append(counts, int(end))
        if self.power == 1:
            found_a, found_b = _rescaled_after(a, b, c, stops)
        else:
            found_a, found_b = _plain_after(a, b, c, stops)
        along[asked], across[asked] = found_a[: len(counts)], found_b[: len(counts)]
        return (a, b) if end is None else (found_a[-1].copy(), found_b[-1].copy())

    def _settled(self) -> tuple[Array, Array, Array, float]:
        """The state when the rate becomes constant, the pulls, and that rate."""
        settles = math.ceil(self.schedule.shape.settles) if self.schedule.peak.item() > 0 else 0
        along, across = self._walked(np.array([settles], dtype=np.int64))
        return along[0], across[0], self._start()[2], self.schedule.peak.item() * self.schedule.shape.floor


# ---- one step, and many ---------------------------------------------------------------------------------------------


def _descend(a: Array, b: Array, pull: Array, rates: list[float], decay: float, power: int) -> None:
    """One step in place for each rate. Written with `out=`: for a thousand examples the allocations would cost as
    much."""
    q, t, s, c = (np.empty_like(a) for _ in range(4))
    keep, previous = 1.0, math.nan
    for rate in rates:
        if rate != previous:
            np.multiply(pull, rate, out=c)
            keep, previous = 1 - rate * decay, rate
        np.multiply(a, a, out=q)
        np.multiply(b, b, out=t)
        np.add(q, t, out=q)
        if decay > 0:
            np.maximum(q, 1e-200, out=q)  # only a feature that does not turn ever gets there
        if power == 2:
            np.sqrt(q, out=s)
            np.multiply(s, q, out=s)
            np.divide(c, s, out=s)
        else:
            np.divide(c, q, out=s)
        np.multiply(t, s, out=t)
        np.multiply(s, a, out=s)
        if decay > 0:
            np.multiply(a, keep, out=a)
            np.add(a, t, out=a)
            np.subtract(keep, s, out=s)
            np.multiply(b, s, out=b)
        else:
            np.add(a, t, out=a)
            np.multiply(s, b, out=s)
            np.subtract(b, s, out=b)


def _log_abs1p(x: Array) -> Array:
    """log|1 + x|, accurate for small x."""
    with np.errstate(divide="ignore"):
        return np.where(np.abs(x) < 0.5, np.log1p(np.clip(x, -0.5, 0.5)), np.log(np.abs(1 + x)))


def _moebius(a: Array, b: Array, c: Array) -> tuple[Array, Array, Array, Array, Array]:
    r"""Rescaled descent as a Moebius map  [eq: moebius]: final norm, spread, log|rho|, rho and the first :math:`E`.

    With :math:`I = \|h\|^2 - ca` conserved, :math:`n_\infty = \frac12(c + d)`, :math:`d = \sqrt{(c-2a)^2 + 4b^2}`,
    :math:`\rho = I/n_\infty^2 = 1 - c/n_\infty` and :math:`E = (n_\infty - a)/b = b/(a + \rho n_\infty)`:

    .. math:: a_k = n_\infty \frac{1 - \rho E_k^2}{1 + E_k^2}, \qquad b_k = d \frac{E_k}{1 + E_k^2}, \qquad E_k = E_0
    \rho^k.
    """
    spread = np.hypot(c - 2 * a, 2 * b)
    final = (c + spread) / 2
    share = c / final
    rho = np.where(share < 0.5, 1 - share, (b * b + a * (a - c)) / final**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.where(share < 0.5, np.log1p(-np.minimum(share, 0.5)), np.log(np.abs(rho)))
        # two equal forms of E, each a sum of positive terms
        near = b / ((spread + (2 * a - c)) / 2)
        far = ((spread + (c - 2 * a)) / 2) / b
    first = np.where(2 * a > c, near, np.where(b == 0, np.inf, far))
    # b = 0: on the line of v, ahead of it or behind
    return final, spread, log, rho, np.where(b == 0, np.where(a > 0, 0.0, np.inf), first)


def _rescaled_after(a: Array, b: Array, c: Array, counts: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """Coordinates after each number of equal rescaled steps, (K, n)."""
    final, spread, log, rho, first = _moebius(a, b, c)
    k = counts[:, None].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        size = np.where(k == 0, 1.0, np.exp(k * log))
        sign = np.where((counts[:, None] % 2 == 1) & (rho < 0), -1.0, 1.0)
        e = np.where(np.isinf(first), first, first * size * sign)
        small = np.where(np.abs(e) > 1, 1 / e, e)
    below = np.abs(e) > 1
    total = 1 + small**2
    along = final * np.where(below, small**2 - rho, 1 - rho * small**2) / total
    across = spread * small / total
    still = (counts[:, None] == 0) | (b == 0)  # the start itself, and the line of v, without rounding
    return np.where(still, a, along), np.where(still, b, across)


# Plain descent at a constant rate. There is a formal invariant q F(alpha, beta), beta = cos(theta), alpha = c/q, with
# F = 1 + (1 - beta) sum_m alpha^m F_m(beta): the squared norm at the end. And a phase: E = tan(theta/2) exp(S) is
# multiplied by exactly 1 - epsilon at each step, epsilon = alpha/F, with
# S = sum_m alpha^m S_m(beta) + epsilon^m L_m log((1 + beta)/2).
# The coefficients (of 1, beta, beta^2, ...) follow order by order from F(alpha+, beta+) (1 + alpha^2 sin^2) = F and
# the like.
NORM_SERIES = (
    (1, (1,)),
    (4, (1, 1)),
    (12, (1, 1, 1)),
    (48, (0, 8, -1, -1)),
    (144, (5, -10, 32, -9, -9)),
    (576, (-5, 99, -156, 116, -18, -18)),
    (12096, (340, -1592, 5548, -6681, 2034, 270, 270)),
    (48384, (-721, 10463, -30655, 43097, -36472, 14432, 117, 117)),
)
PHASE_SERIES = (
    (1, (0,)),
    (4, (-1, 1)),
    (48, (5, -30, 25)),
    (288, (-7, 120, -363, 250)),
    (1440, (73, -410, 1773, -3265, 1829)),
    (86400, (-4231, 38130, -111690, 254710, -324345, 147426)),
    (1209600, (53372, -567924, 2549555, -4868080, 7227945, -7069062, 2674194)),
    (16934400, (-716941, 9476656, -42625205, 121333590, -170578730, 182083776, -147719306, 48746160)),
)
PHASE_LOGS = (1 / 2, 1 / 4, 7 / 24, 7 / 16, 119 / 160, 437 / 320, 320029 / 120960, 1289539 / 241920)


def _series(table: tuple[tuple[int, tuple[int, ...]], ...], alpha: Array, beta: Array, terms: int) -> Array:
    """Sum of alpha^m P_m(beta) over the first polynomials of a table, by Horner's rule in both."""
    total = np.zeros(np.broadcast_shapes(alpha.shape, beta.shape))
    for denominator, numerators in reversed(table[:terms]):
        inner = np.zeros_like(beta)
        for numerator in reversed(numerators):
            inner = inner * beta + numerator / denominator
        total = (total + inner) * alpha
    return total


def _terms(alpha: Array) -> int:
    """Terms of the series beyond which nothing reaches the last digit; they shrink about as (2 alpha)^m."""
    largest = float(alpha.max(initial=1e-300))
    return min(len(PHASE_LOGS), 1 + math.ceil(37 / -math.log(2 * max(largest, 1e-300))))


def _half_angle(a: Array, b: Array) -> Array:
    """tan(theta/2) with the sign of b; infinite behind."""
    norm = np.hypot(a, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead = b / (norm + a)
        behind = (norm - a) / b
    return np.where(a > 0, ahead, np.where(b == 0, np.inf, behind))


def _cosine(tangent: Array) -> tuple[Array, Array]:
    """cos(theta) and 1 - cos(theta) from tan(theta/2), at any size."""
    with np.errstate(over="ignore", divide="ignore"):
        square = tangent * tangent
        fall = 2 / (1 + 1 / square)
    return 1 - fall, fall


def _growth_factor(alpha: Array, beta: Array, fall: Array, terms: int) -> Array:
    """F: the final squared norm over the present one."""
    return 1 + fall * _series(NORM_SERIES, alpha, beta, terms)


def _phase(alpha: Array, beta: Array, tangent: Array, epsilon: Array, terms: int) -> Array:
    with np.errstate(over="ignore"):
        log_half = -np.where(
            np.abs(tangent) < 1e100, np.log1p(tangent**2), 2 * np.log(np.maximum(np.abs(tangent), 1.0))
        )
    logs = np.zeros_like(epsilon)
    for coefficient in reversed(PHASE_LOGS[:terms]):
        logs = (logs + coefficient) * epsilon
    return _series(PHASE_SERIES, alpha, beta, terms) + logs * log_half


def _small_steps_after(a: Array, b: Array, c: Array, counts: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """Coordinates after each number of equal plain steps of alpha <= SMALL_STEP, (K, n), by the series."""
    start = a * a + b * b
    alpha = c / start
    terms = _terms(alpha)
    tangent = _half_angle(a, b)
    moving = np.isfinite(tangent) & (b != 0)
    tangent = np.where(moving, tangent, 1.0)  # on the line of v nothing moves; any finite value will do
    beta, fall = _cosine(tangent)
    final = start * _growth_factor(alpha, beta, fall, terms)
    epsilon = c / final
    drop = counts[:, None].astype(np.float64) * np.log1p(-epsilon) + _phase(alpha, beta, tangent, epsilon, terms)
    now = tangent * np.exp(drop)
    factor = np.ones_like(drop)
    for _ in range(terms + 1):  # the series changes little with the unknowns: each round gains the factor epsilon
        beta, fall = _cosine(now)
        for _ in range(2):
            factor = _growth_factor(epsilon * factor, beta, fall, terms)
        now = tangent * np.exp(drop - _phase(epsilon * factor, beta, now, epsilon, terms))
    beta, fall = _cosine(now)
    factor = _growth_factor(epsilon * factor, beta, fall, terms)
    norm = np.sqrt(final / factor)
    with np.errstate(over="ignore", divide="ignore"):
        sine = 2 / (now + 1 / now)
    still = (counts[:, None] == 0) | ~moving
    return np.where(still, a, norm * beta), np.where(still, b, norm * sine)


def _faint_after(a: Array, b: Array, c: Array, counts: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """The same once the angles are so small that norms stand still."""
    contraction = np.where(b == 0, 0.0, 1 - c / (a * a))
    with np.errstate(divide="ignore"):
        log = np.log(np.abs(contraction))
    k = counts[:, None].astype(np.float64)
    with np.errstate(invalid="ignore"):
        size = np.where(k == 0, 1.0, np.exp(k * log))
    sign = np.where((counts[:, None] % 2 == 1) & (contraction < 0), -1.0, 1.0)
    return np.broadcast_to(a, size.shape), b * size * sign


def _ready(a: Array, b: Array, c: Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which examples the series describes, and which are faint."""
    alpha = c / (a * a + b * b)
    return alpha <= SMALL_STEP, (b == 0) | ((np.abs(b) <= FAINT * a) & (alpha < 2))


def _onward(a: Array, b: Array, c: Array, counts: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    small, faint = _ready(a, b, c)
    along, across = np.empty((len(counts), len(a))), np.empty((len(counts), len(a)))
    for rule, which in ((_faint_after, faint), (_small_steps_after, small & ~faint)):
        if which.any():
            along[:, which], across[:, which] = rule(a[which], b[which], c[which], counts)
    return along, across


def _plain_after(a: Array, b: Array, c: Array, counts: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """Coordinates after each of the sorted numbers of equal plain steps, (K, n).

    Steps are taken one by one as long as some example's step is large, or many of the steps are asked for anyway.
    """
    a, b = a.copy(), b.copy()
    along, across = np.empty((len(counts), len(a))), np.empty((len(counts), len(a)))
    if not c.any():
        along[:], across[:] = a, b
        return along, across
    now, place = 0, 0
    while place < len(counts):
        small, faint = _ready(a, b, c)
        left = len(counts) - place
        worth = bool(faint.all()) or left * SERIES_COST < int(counts[-1]) - now
        if worth and bool((small | faint).all()):
            along[place:], across[place:] = _onward(a, b, c, counts[place:] - now)
            break
        b[faint & (np.abs(b) < 1e-290)] = 0.0  # subnormal numbers would slow every later step
        stop = now + STRIDE
        while place < len(counts) and counts[place] <= stop:
            _descend(a, b, c, [1.0] * int(counts[place] - now), 0.0, 2)
            now = int(counts[place])
            along[place], across[place] = a, b
            place += 1
        if place < len(counts):
            _descend(a, b, c, [1.0] * (stop - now), 0.0, 2)
            now = stop
    return along, across


def _final_norm(a: Array, b: Array, c: Array, power: int) -> Array:
    """The norm that equal steps without decay lead to."""
    still = b == 0
    if power == 1:
        return np.where(still, np.abs(a), _moebius(a, b, c)[0])
    a, b = a.copy(), b.copy()
    for _ in range(0, LONGEST, STRIDE):
        small, faint = _ready(a, b, c)
        if bool((small | faint).all()):
            break
        _descend(a, b, c, [1.0] * STRIDE, 0.0, 2)
    else:
        slow = int((~(small | faint)).argmax())
        raise ValueError(
            f"an angle is still {math.atan2(abs(b[slow]), a[slow]):.3g} after {LONGEST} steps: it contracts by "
            f"{abs(1 - c[slow] / (a[slow] ** 2 + b[slow] ** 2)):.9g} per step. Ask at() for a late step instead."
        )
    alpha = c / (a * a + b * b)
    beta, fall = _cosine(np.where(still, 0.0, _half_angle(a, b)))
    factor = _growth_factor(np.where(small, alpha, 0.0), beta, fall, _terms(np.where(small, alpha, 0.0)))
    return np.hypot(a, b) * np.where(faint, 1.0, np.sqrt(factor))
