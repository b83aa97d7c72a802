r"""Normalized features and fixed prototypes: two scalars per example (Theorem 4)  [eq: sphere].

The loss is the mean unhinged loss of the logits :math:`W h/\|h\|`, which is :math:`-\sum_i v_i^\top \hat h_i` with the
pull :math:`v_i = \frac1n\big((1+\gamma) w_{y_i} - \gamma\sum_j w_j\big)`. A gradient step moves :math:`h_i` in the
plane of its start and :math:`v_i`, and what decides is :math:`\alpha = \eta\|v\|/\|h\|^\nu`, :math:`\nu = 2` plain and
1 when gradients are rescaled by :math:`\|h\|`. At a constant rate and without decay all three motions are geometric in
one variable, :math:`E_k = E_0\,\rho^k`, which starts as :math:`\tan(\theta/2)`:

- flow: :math:`E = \tan(\theta/2)`, :math:`\rho = e^{-\alpha}` per unit of time, exactly;
- rescaled descent: a Moebius map, exactly, for steps of any size;
- plain descent: a series in :math:`\alpha`, to rounding for :math:`\alpha \le 1/160`; larger steps one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unhinge.theory.collapse import collapse_measures
from unhinge.theory.linear.path import CHUNK, first_time_below
from unhinge.theory.linear.propagators import safe_norm
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
    constant,
)
from unhinge.theory.sphere.motion import Motion, Position, SphereDescent, SphereFlow, final_rate
from unhinge.theory.sphere.planes import Planes, find_planes, find_pulls
from unhinge.theory.state import State
from unhinge.theory.targets import class_sums
from unhinge.theory.validation import check_alike, check_counts, check_num_classes, check_tensor, scalar

__all__ = ["Hypotheses", "Spherical", "SphericalPath"]

LOOKED_AT = 1024  # steps of which time_to() sees each one, or all of them if nothing is known in closed form


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
        self.pulls = find_pulls(target, self.weight, self.gamma)

    def flow(self, features: Tensor, lr: Any = 0.1, rescaled: bool = False) -> SphericalPath:
        r"""Gradient flow, :math:`\tan\frac\theta2 = e^{-\kappa}\tan\frac{\theta_0}2`; the norm only decays, by
        :math:`e^{-\lambda\zeta}`  [eq: sphere-flow].

        Arguments:
            features: Initial features :math:`(n, p)`, none of them zero.
            lr: A rate, a :class:`Schedule` or a function of time.
            rescaled: Multiply the loss gradient of each example by :math:`\|h\|` (the decay is not rescaled).
        """
        motion = SphereFlow(self._planes(features), _schedule(lr), self.feature_decay, 1 if rescaled else 2)
        return SphericalPath(features.detach(), self.weight, motion)

    def descent(self, features: Tensor, lr: Any = 0.1, rescaled: bool = False) -> SphericalPath:
        r"""The iterates of gradient descent on the features: ``at(k)`` is the state after k steps, step k uses
        ``lr(k)``.

        Arguments are those of :meth:`flow`. Steps of any size are right, those that cross the target included.
        """
        motion = SphereDescent(self._planes(features), _schedule(lr), self.feature_decay, 1 if rescaled else 2)
        return SphericalPath(features.detach(), self.weight, motion)

    def _planes(self, features: Tensor) -> Planes:
        check_tensor("features", features, (len(self.pulls.rows), self.weight.shape[1]))
        check_alike(features=features, weight=self.weight)
        return find_planes(features.detach(), self.pulls)


@dataclass(frozen=True)
class Hypotheses:
    r"""What Theorem 4 asks of a path, corrected, with the values found here  [eq: sphere-convergence].

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
    motion: Motion

    # ---- the state ----------------------------------------------------------------------------------------------

    def at(self, time: Any) -> State:
        """The state at each time (flow) or after each number of steps (descent)."""
        here = self._position(time)
        times = here.norm.shape[:-1]
        features = self._planes.assemble(here.norm * here.cos, here.norm * here.sin, like=self.features)
        return State(features, self.weight.expand(*times, -1, -1), None, features.new_zeros(times))

    def direction(self) -> State:
        r"""The limit of the normalized features, one unit row per example: :math:`\hat v_i`, or minus that for a start
        opposite to it. A schedule that falls to zero stops short of it, at :meth:`limit`."""
        self._check_settles("direction")
        cos = torch.where(self._planes.opposite, -1.0, 1.0)
        return State(self._planes.assemble(cos, torch.zeros_like(cos), like=self.features), self.weight)

    def limit(self) -> State:
        r"""The limit of :math:`H`: each feature on its target's ray with the norm of :meth:`limit_norm`."""
        if self._stops:
            return self.at(self._settles)
        return State(self.direction().features * self.limit_norm()[:, None], self.weight)

    def limit_norm(self) -> Tensor:
        r"""The limit of each :math:`\|h_i\|`, shape :math:`(n,)`.

        Flow keeps the norm (decay takes it to 0). Rescaled descent ends at
        :math:`\frac12\big(c + \sqrt{(c - 2a)^2 + 4b^2}\big)`, :math:`c = \eta\|v\|`; plain descent near
        :math:`\sqrt{\|h\|^2 + c(1 - \cos\theta)}`, here to all digits.
        """
        if self._stops:
            return self._like(self._position(self._settles).norm)
        self._check_settles("limit_norm")
        return self._like(self.motion.final_norm())

    # ---- scalar questions -----------------------------------------------------------------------------------------

    def loss(self, time: Any) -> Tensor:
        r"""Mean unhinged loss :math:`-\sum_i \|v_i\| \cos\theta_i`, without the decay term."""
        return self._like(-(self._position(time).cos * self._planes.pull).sum(-1))

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
        return self._like(chord if per_example else safe_norm(chord, 1))

    def feature_norm(self, time: Any) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""
        return self._like(safe_norm(self._position(time).norm, 1))

    def weight_norm(self, time: Any) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`, a constant."""
        return self._like(self.weight.double().norm()).expand(self.motion.times(time).shape)

    def log_norm(self, time: Any) -> Tensor:
        r""":math:`\log\|H\|`."""
        return self._like(safe_norm(self._position(time).norm, 1).log())

    def growth(self, lr: float | None = None) -> Tensor:
        r"""Exponent of :math:`\|H\|`: :math:`-\eta\lambda` in the flow, 0 for descent without decay, where it
        converges."""
        if self.motion.discrete:
            self._check_no_decay("growth")
        return self._like(torch.tensor(-self.motion.decay * self._final_rate(lr), dtype=torch.float64))

    def rate(self, lr: float | None = None) -> Tensor:
        r"""Exponent of :meth:`distance` per unit of time or per step, that of the slowest example; negative
        [eq: sphere-rate].

        :math:`\log|1 - \alpha_\infty|` for descent, :math:`-\alpha` for the flow, at a constant rate: `lr`, or by
        default the one the schedule ends with. 0 if an example is stuck opposite to its target or nothing moves; minus
        infinity if the distance reaches 0 in finitely many steps, or in a flow with decay, where it falls doubly
        exponentially.
        """
        eta = self._final_rate(lr)
        if self._planes.opposite.any() or eta == 0:
            return self._like(torch.zeros((), dtype=torch.float64))
        if self.motion.discrete:
            self._check_settles("rate")
        moving = self._planes.across > 0
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
        here, planes = self._position(time), self._planes
        head = self.weight.double().cpu()
        head = head - head.mean(0)
        toward, across = (planes.pulls.units @ head.mT)[planes.pulls.rows], planes.units @ head.mT
        size = max(1, CHUNK // toward.numel())
        hits = [
            ((cos[..., None] * toward + sin[..., None] * across).argmax(-1) == planes.pulls.labels).double().mean(-1)
            for cos, sin in zip(
                *(part.reshape(-1, part.shape[-1]).split(size) for part in (here.cos, here.sin)), strict=True
            )
        ]
        return self._like(torch.cat(hits).reshape(here.cos.shape[:-1]))

    def collapse(self, time: Any) -> dict[str, Tensor]:
        """Neural-collapse measures of the features: see :func:`unhinge.theory.collapse.collapse_measures`."""
        moments = self.motion.times(time)
        weight, labels = self.weight.double().cpu(), self._planes.pulls.labels
        counts = torch.bincount(labels, minlength=len(weight))
        check_counts(counts)
        rows = []
        for moment in moments.reshape(-1):
            features = self.at(moment).features.double().cpu()
            means = class_sums(features, labels, len(weight)) / counts[:, None]
            apart = features - means[labels]
            within = apart.mT @ apart / len(labels)
            rows.append(collapse_measures(means, weight, within.trace(), within))
        keys = rows[0].keys() if rows else ()
        return {key: self._like(torch.stack([row[key] for row in rows]).reshape(moments.shape)) for key in keys}

    # ---- what the theorem asks ------------------------------------------------------------------------------------

    @property
    def opposite(self) -> Tensor:
        """Indices of the examples that start exactly opposite to their target, and stay there."""
        return self._planes.opposite.nonzero().flatten()

    def hypotheses(self) -> Hypotheses:
        """Which hypotheses of the corrected Theorem 4 hold, with their values."""
        motion, schedule = self.motion, self.motion.schedule
        unit = self._planes.speed(motion.power).max().item() if motion.discrete else 0.0
        return Hypotheses(
            first_alpha=unit * schedule(0.0).item(),
            largest_alpha=unit * schedule.peak.item() * schedule.shape.highest if motion.discrete else 0.0,
            non_increasing=_non_increasing(schedule.shape),
            diverges=None if math.isinf(schedule.shape.settles) else not self._stops,
            opposite=tuple(self.opposite.tolist()),
            feature_decay=motion.decay,
            constant=isinstance(schedule.shape, Constant),
            discrete=motion.discrete,
        )

    # ---- inside -----------------------------------------------------------------------------------------------------

    @property
    def _planes(self) -> Planes:
        return self.motion.planes

    @property
    def _stops(self) -> bool:
        return final_rate(self.motion.schedule) == 0

    @property
    def _settles(self) -> float:
        """The time from which the rate is constant, rounded up to a step."""
        settles = self.motion.schedule.shape.settles
        return float(math.ceil(settles)) if math.isfinite(settles) else settles

    def _like(self, value: Tensor) -> Tensor:
        return value.to(self.features)

    def _position(self, time: Any) -> Position:
        return self.motion.position(self.motion.times(time))

    def _final_rate(self, lr: float | None) -> float:
        if lr is not None:
            return scalar("lr", lr).item()
        if not self.motion.schedule.shape.floor > 0:
            raise ValueError(
                "the schedule does not end with a constant positive rate, so there is no exponent per unit of time. "
                "Pass one: growth(lr=...), rate(lr=...)."
            )
        return final_rate(self.motion.schedule)

    def _check_no_decay(self, question: str) -> None:
        if self.motion.decay > 0:
            raise ValueError(
                f"{question}() of descent on the sphere needs feature_decay = 0, got {self.motion.decay:g}: decay "
                f"shrinks the features until steps overshoot, and the angles then burst for ever. Ask distance over "
                f"time, or use flow()."
            )

    def _check_settles(self, question: str) -> None:
        if math.isinf(self._settles):
            raise ValueError(
                f"{question}() needs to know how the learning rate ends, and a function does not tell. "
                "Pass a Schedule, for example piecewise(), or ask at() for a late time."
            )
        if self.motion.discrete:
            self._check_no_decay(question)

    def _time_to(self, wanted: float) -> float:
        def measured(moments: Tensor) -> Tensor:
            return safe_norm(self._position(moments).chord(), 1)

        discrete = self.motion.discrete
        closed = not discrete or (self.motion.decay == 0 and math.isfinite(self._settles))
        horizon = self._settles if self._stops else 1e300 if not discrete else 2.0**62 if closed else 1e6
        if discrete:
            for first in range(0, LOOKED_AT if closed else int(horizon), LOOKED_AT):
                block = torch.arange(first, min(first + LOOKED_AT, int(horizon)) + 1)
                below = measured(block) <= wanted
                if below.any():
                    return float(block[int(below.int().argmax())])
        if not closed and not self._stops:
            raise ValueError(
                f"the distance {wanted:g} is not reached within a million steps, and a path with feature decay or with "
                f"a learning rate given as a function has no end that could be computed. Ask distance() at chosen "
                f"steps."
            )
        return first_time_below(measured, wanted, horizon, discrete)


def _schedule(lr: Any) -> Schedule:
    schedule = as_schedule(lr)
    return schedule if schedule.peak.item() > 0 else constant(0.0)  # whatever its shape, nothing ever moves


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
