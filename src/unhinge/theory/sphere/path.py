r"""A solved path on the sphere, every question one can ask it, and what the theorem asks of it  [eq: sphere]."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unhinge.theory.keeping import kept
from unhinge.theory.learned import learned
from unhinge.theory.numerics import CHUNK, LAST_STEP, differentiable_time, safe_norm, widened
from unhinge.theory.path import (
    collapse_of_states,
    concatenated,
    described,
    first_passages,
    first_time,
    horizon_of,
    in_pieces,
)
from unhinge.theory.schedules import Constant, Cosine, Exponential, Geometric, Piecewise, Shape, Warmup, steady_rate
from unhinge.theory.sphere.motion import WIDTH, Motion, Position, SphereDescent, final_rate
from unhinge.theory.sphere.planes import Planes
from unhinge.theory.state import State
from unhinge.theory.types import Number, Time
from unhinge.theory.validation import check_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Hypotheses", "SphericalPath"]

LONGEST_WALK = 1e6  # steps that are taken one by one for one answer: some seconds
STOPS = 33  # steps that a search looks at together
LOOKED_AT = 1024  # steps of which time_to() sees each one, or all of them if nothing is known in closed form


@dataclass(frozen=True)
class Hypotheses:
    r"""What Theorem 4 asks of a path, corrected, with the values found here  [eq: sphere-convergence].

    For :math:`\alpha \le 1` at every step, a sum of rates that diverges, no decay and no start opposite to its target,
    every angle falls monotonically to 0. A constant rate of any size converges too, perhaps not monotonically. `None`
    means that a learning rate given as a function does not tell.

    Example:
        >>> from unhinge import Spherical
        >>> path = Spherical([0, 1], [[1.0, 0.0], [0.0, 1.0]]).descent(
        ...     [[0.0, 1.0], [0.0, 0.5]], lr=1.0
        ... )
        >>> told = path.hypotheses()
        >>> # the second feature is short: its step is long
        >>> told.converges, told.monotone, f"{told.first_alpha:.3f}"
        (True, False, '2.828')
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


@dataclass(frozen=True, repr=False)
class SphericalPath:
    r"""The exact path of normalized features; made by `Spherical.flow` and `Spherical.descent`.

    Scalar questions cost O(n) per time, whatever the dimension. Angles and distances stay accurate however small.
    Answers are differentiable; steps that have no closed form are then taken one by one, and remembered.

    Example:
        >>> from unhinge import Spherical
        >>> path = Spherical([0, 1], [[1.0, 0.0], [0.0, 1.0]]).flow(
        ...     [[0.0, 1.0], [0.0, 1.0]], lr=1.0
        ... )
        >>> path.angles(0)  # from (1, -1) and (-1, 1), in radians
        tensor([2.3562, 0.7854], dtype=torch.float64)
        >>> path.hypotheses().monotone, path.rate()
        (True, tensor(-0.7071, dtype=torch.float64))
    """

    features: Tensor  # (n, p), at the start
    weight: Tensor  # (C, p)
    motion: Motion

    def __repr__(self) -> str:
        (classes, dim), size = self.weight.shape, len(self.features)
        kind = ("rescaled " if self.motion.power == 1 else "") + ("descent" if self.discrete else "flow")
        decay = self.motion.decay.item()
        return described("SphericalPath", kind, examples=size, classes=classes, dim=dim, feature_decay=decay)

    @property
    def discrete(self) -> bool:
        """Whether time is counted in steps of a descent."""
        return self.motion.discrete

    # ---- the state ---------------------------------------------------------------------------------------------------

    def at(self, time: Time) -> State:
        """The state at each time (flow) or after each number of steps (descent)."""
        position = self._position(time)
        times = position.norm.shape[:-1]
        features = self._planes.assemble(position.norm * position.cos, position.norm * position.sin)
        if self._planes.lean is not None:
            features = features + self._widening(time)[..., None] * self._planes.lean
        features = features.to(self.features)
        return State(features, self.weight.expand(*times, -1, -1).clone(), None, features.new_zeros(times))

    def direction(self) -> State:
        r"""The limit of the normalized features, one unit row per example: :math:`\hat v_i`, or minus that for a start
        opposite to it. A schedule that falls to zero stops short of it, at :meth:`limit`."""
        self._check_settles("direction")
        return State(self._directions().to(self.features), self.weight.clone())

    def limit(self) -> State:
        r"""The limit of :math:`H`: each feature on its target's ray with the norm of :meth:`limit_norm`."""
        if self._stops:
            return self.at(self._settles)
        self._check_settles("limit")
        return State((self._directions() * self.motion.final_norm()[:, None]).to(self.features), self.weight.clone())

    def limit_norm(self) -> Tensor:
        r"""The limit of each :math:`\|h_i\|`, shape :math:`(n,)`.

        Flow keeps the norm (decay takes it to 0). Rescaled descent ends at
        :math:`\frac12\big(c + \sqrt{(c - 2a)^2 + 4b^2}\big)`, :math:`c = \eta\|v\|`; plain descent near
        :math:`\sqrt{\|h\|^2 + c(1 - \cos\theta)}`, here to all digits.
        """
        if self._stops:
            return self._position(self._settles).norm.to(self.features)
        self._check_settles("limit_norm")
        return self.motion.final_norm().to(self.features)

    # ---- scalar questions --------------------------------------------------------------------------------------------

    def loss(self, time: Time) -> Tensor:
        r"""Mean unhinged loss :math:`-\sum_i \|v_i\| \cos\theta_i`, without the decay term."""
        return (-(self._position(time).cos * self._planes.pull).sum(-1)).to(self.features)

    def angles(self, time: Time) -> Tensor:
        r"""The angle :math:`\theta_i` in :math:`[0, \pi]` between each feature and its target, shape :math:`(*, n)`."""
        position = self._position(time)
        return torch.atan2(position.sin.abs(), position.cos).to(self.features)

    def distance(self, time: Time, per_example: bool = False) -> Tensor:
        r""":math:`\|\hat H - \hat V\| = \big(\sum_i \|h_i/\|h_i\| - v_i/\|v_i\|\|^2\big)^{1/2}`, Frobenius over all
        examples.

        With `per_example` the n terms :math:`\|\hat h_i - \hat v_i\| = 2\sin(\theta_i/2)`, shape :math:`(*, n)`. An
        example that starts opposite to its target keeps its 2 for ever.
        """
        chord = self._position(time).chord()
        return (chord if per_example else safe_norm(chord, 1)).to(self.features)

    def feature_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|H\|`."""
        return safe_norm(self._position(time).norm, 1).to(self.features)

    def weight_norm(self, time: Time) -> Tensor:
        r"""Frobenius norm :math:`\|W\|`, a constant."""
        norm = safe_norm(widened(self.weight), 2)
        return norm.to(self.features).expand(self.motion.times(time).shape)

    def log_norm(self, time: Time) -> Tensor:
        r""":math:`\log\|H\|`."""
        position = self._position(time)
        return (safe_norm(position.size, 1).log() + position.log).to(self.features)

    def growth(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :math:`\|H\|`: :math:`-\eta\lambda` in the flow, 0 for descent without decay, where it
        converges."""
        if self.motion.discrete:
            self._check_no_decay("growth")
        return (-self.motion.decay * steady_rate(self.motion.schedule, lr)).to(self.features)

    def rate(self, lr: Number | None = None) -> Tensor:
        r"""Exponent of :meth:`distance` per unit of time or per step, that of the slowest example; negative
        [eq: sphere-rate].

        :math:`\log|1 - \alpha_\infty|` for descent, :math:`-\alpha` for the flow, at a constant rate: `lr`, or by
        default the one the schedule ends with. 0 if an example is stuck opposite to its target or nothing moves; minus
        infinity if the distance reaches 0 in finitely many steps, or in a flow with decay, where it falls doubly
        exponentially.
        """
        eta = steady_rate(self.motion.schedule, lr)
        if self._planes.opposite.any() or eta.item() == 0:
            return torch.zeros((), dtype=torch.float64).to(self.features)
        if self.motion.discrete:
            self._check_settles("rate")
        moving = self._planes.across > 0
        if not moving.any() or (not self.motion.discrete and self.motion.decay.item() > 0):
            return torch.tensor(-math.inf, dtype=torch.float64).to(self.features)
        return self.motion.exponents(eta)[moving].max().to(self.features)

    def time_to(self, distance: Time) -> Tensor:
        r"""The first time (or step) at which :meth:`distance` is at most `distance`; infinite if never.

        In a flow, and in a descent once every :math:`\alpha \le 1`, the distance only falls, and bisection finds the
        time with some sixty questions. Else every one of the first thousand steps is looked at; beyond, dips shorter
        than a 256th of the time are not seen.
        """
        return first_passages(distance, self._time_to).to(self.features)

    # ---- questions that look at classes ------------------------------------------------------------------------------

    @property
    def labels(self) -> Tensor:
        """The class of each example, the most probable one of soft labels: (n,) int64."""
        return self._planes.pulls.labels

    def correct(self, time: Time) -> Tensor:
        r"""Whether the largest logit of each example is its label's, :math:`(*, n)` bool; costs O(n C) per time."""
        return self._about_examples(time, lambda right: right).to(self.features.device)

    def accuracy(self, time: Time) -> Tensor:
        """Share of examples whose largest logit is their label's: the mean of :meth:`correct`."""
        return self._about_examples(time, lambda right: right.double().mean(-1)).to(self.features)

    def learned(self, fraction: float = 0.5) -> Tensor:
        r"""The first time (or step) at which that share of each class is right, :math:`(C,)`; infinite if never
        [eq: learned]. See :func:`unhinge.theory.learned.learned`."""
        self._check_settles("learned")
        return learned(self, len(self.weight), fraction).to(self.features)

    def collapse(self, time: Time) -> dict[str, Tensor]:
        """Neural-collapse measures of the features: see :func:`unhinge.theory.collapse.collapse_measures`."""
        moments, classes = self.motion.times(time), len(self.weight)
        check_counts(torch.bincount(self.labels, minlength=classes))
        weight = widened(self.weight).cpu()
        weight = weight / weight.detach().abs().max()

        def scaled_state(moment: Tensor) -> State:
            position = self.motion.position(moment)
            # Measures do not depend on the two scales: features without what they share, in units of the longest.
            size = position.size / position.size.detach().max()
            return State(self._planes.assemble(size * position.cos, size * position.sin), weight)

        return concatenated(collapse_of_states(scaled_state, moments, self.labels, classes), moments, self.features)

    def plot(self, times: Time | None = None) -> Figure:
        """Distance, norms, loss and accuracy over time, as a matplotlib figure."""
        from unhinge.theory.plotting import plot_path

        return plot_path(self, times)

    # ---- what the theorem asks ---------------------------------------------------------------------------------------

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
            feature_decay=motion.decay.item(),
            constant=isinstance(schedule.shape, Constant),
            discrete=motion.discrete,
        )

    # ---- inside ------------------------------------------------------------------------------------------------------

    @property
    def _planes(self) -> Planes:
        return self.motion.planes

    @property
    def _stops(self) -> bool:
        return final_rate(self.motion.schedule).item() == 0

    @property
    def _settles(self) -> float:
        """The time from which the rate is constant, rounded up to a step."""
        settles = self.motion.schedule.shape.settles
        return float(math.ceil(settles)) if math.isfinite(settles) else settles

    def _directions(self) -> Tensor:
        cos = torch.where(self._planes.opposite, -1.0, 1.0).double()
        return self._planes.assemble(cos, torch.zeros_like(cos))

    @kept
    def _logits(self) -> tuple[Tensor, Tensor]:
        """The logits of the unit vectors along and across, (n, C) each: those of any angle are its cosine and sine
        times these."""
        head = widened(self.weight.detach()).cpu()
        head = head - head.mean(0)
        pulls = self._planes.pulls
        return (pulls.units.detach() @ head.mT)[pulls.rows], self._planes.units.detach() @ head.mT

    @torch.no_grad()
    def _about_examples(self, time: Time, question: Callable[[Tensor], Tensor]) -> Tensor:
        """`question` of which examples are right, (m, n) bool; all positions first, since a descent walks to them."""
        position, (toward, across) = self._position(time), self._logits
        cos, sin = (part.reshape(-1, len(self.labels), 1) for part in (position.cos, position.sin))

        def asked(index: Tensor) -> Tensor:
            return question((cos[index] * toward + sin[index] * across).argmax(-1) == self.labels)

        index = torch.arange(len(cos)).reshape(position.cos.shape[:-1])
        return in_pieces(asked, index, toward.numel())

    def _widening(self, time: Time) -> Tensor:
        """What a small part across the line of v is multiplied by until each time, (*, n); 0 off the line.

        A feature that starts on the line stays there, but those that start next to it do not stay at their distance.
        """
        beside = replace(self.motion, planes=self._planes.beside_the_line())
        position = beside.position(self.motion.times(time))
        straight = self._planes.across == 0
        return torch.where(
            straight, position.norm * position.sin / torch.where(straight, beside.planes.across, 1.0), 0.0
        )

    def _position(self, time: Time) -> Position:
        return self.motion.position(self.motion.times(time))

    def _check_no_decay(self, question: str) -> None:
        if self.motion.decay.item() > 0:
            raise ValueError(
                f"{question}() of descent on the sphere needs feature_decay = 0, got {self.motion.decay.item():g}: "
                f"decay shrinks the features until steps overshoot, and the angles then burst for ever. Ask distance "
                f"over time, or use flow()."
            )

    def _check_settles(self, question: str) -> None:
        if math.isinf(self._settles):
            raise ValueError(
                f"{question}() needs to know how the learning rate ends, and a function does not tell. "
                "Pass a Schedule, for example piecewise(), or ask at() for a late time."
            )
        if self.motion.discrete:
            self._check_no_decay(question)

    def _time_to(self, wanted: float) -> Tensor:
        motion = self.motion
        if isinstance(motion, SphereDescent):
            with torch.no_grad():
                return torch.tensor(self._step_to(motion, wanted), dtype=torch.float64)

        def measured(moments: Tensor) -> Tensor:
            return safe_norm(motion.position(moments).chord(), 1)

        with torch.no_grad():
            time = _first_time_of_fall(measured, wanted, horizon_of(self._settles if self._stops else None, False))
        return differentiable_time(measured, time)

    def _step_to(self, motion: SphereDescent, wanted: float) -> float:
        closed = motion.decay.item() == 0 and math.isfinite(self._settles)
        if closed and isinstance(motion.schedule.shape, Constant) and motion.monotone:
            return self._checked(_first_step_of_fall(motion, wanted), wanted)
        ends = self._settles if self._stops else None
        horizon = horizon_of(ends, True) if closed or self._stops else LONGEST_WALK
        every = torch.arange(min(LOOKED_AT, int(horizon)) + 1)
        looks = [_chords(motion, every)] if closed else _walked(motion, horizon)
        for block, chords in enumerate(looks):
            below = chords <= wanted
            if below.any():
                return float(block * LOOKED_AT + int(below.int().argmax()))
        if not closed and not self._stops:
            raise ValueError(
                f"the distance {wanted:g} is not reached within a million steps, and a path with feature decay or with "
                f"a learning rate given as a function has no end that could be computed. Ask distance() at chosen "
                f"steps."
            )
        if self._stops and (not closed or horizon <= LOOKED_AT):
            return math.inf  # every step there is has been looked at
        if not self._stops and self._settles <= LOOKED_AT and (later := motion.later(LOOKED_AT)).monotone:
            return self._checked(LOOKED_AT + _first_step_of_fall(later, wanted), wanted)

        def measured(steps: Tensor) -> Tensor:
            return _chords(motion, motion.times(steps))

        return first_time(measured, wanted, horizon, discrete=True).item()

    def _checked(self, step: float, wanted: float) -> float:
        """The step itself where a search that starts anew from time to time was off by one, through rounding."""
        if not math.isfinite(step):
            return step
        near = torch.tensor([max(step - 1, 0), step, step + 1])
        below = _chords(self.motion, self.motion.times(near)) <= wanted
        return near[int(below.int().argmax())].item() if below.any() else step


def _chords(motion: Motion, moments: Tensor) -> Tensor:
    """The distance at each time (m,), of some examples after the other where m n numbers are too many."""
    size = len(motion.planes.pull)
    if size * moments.numel() <= CHUNK:
        return safe_norm(motion.position(moments).chord(), 1)
    parts = [motion.planes.part(slice(first, first + WIDTH)) for first in range(0, size, WIDTH)]
    norms = [safe_norm(replace(motion, planes=part).position(moments).chord(), 1) for part in parts]
    return safe_norm(torch.stack(norms, -1), 1)


def _walked(motion: SphereDescent, horizon: float) -> Iterator[Tensor]:
    """The distance after 0 to `LOOKED_AT` steps, after the next as many, and so on up to the horizon; of fewer where a
    position cannot be computed, and then its error."""
    parts = [motion.planes.part(slice(first, first + WIDTH)) for first in range(0, len(motion.planes.pull), WIDTH)]
    walks = [replace(motion, planes=part).walk(LOOKED_AT) for part in parts]
    for _ in range(0, int(horizon), LOOKED_AT):
        norms = [safe_norm(next(walk).chord(), 1) for walk in walks]
        known = min(map(len, norms))
        yield safe_norm(torch.stack([norm[:known] for norm in norms], -1), 1)


def _first_time_of_fall(measured: Callable[[Tensor], Tensor], wanted: float, horizon: float) -> float:
    """The time at which what never rises is at most `wanted`, to the last digit; infinite if it is not so far."""

    def above(time: float) -> bool:
        return bool(measured(torch.tensor(time, dtype=torch.float64)) > wanted)

    if not above(0.0):
        return 0.0
    # Powers of two: what a float can be. Late times are asked for only if it is above until then, since the integral of
    # a rate that is given as a function may be costly there.
    last = math.frexp(horizon)[1]
    low, high = -1074, min(1, last)
    while above(min(math.ldexp(1.0, high), horizon)):
        if high == last:
            return math.inf
        low, high = high, min(2 * max(high, 1), last)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if above(min(math.ldexp(1.0, middle), horizon)) else (low, middle)
    before, after = math.ldexp(1.0, low), min(math.ldexp(1.0, high), horizon)
    while before < (between := before + (after - before) / 2) < after:
        before, after = (between, after) if above(between) else (before, between)
    return after


def _first_step_of_fall(motion: SphereDescent, wanted: float) -> float:
    """The same for steps at a constant rate: first among powers of two, then in ever narrower rows of steps."""
    if _chords(motion, torch.zeros(1, dtype=torch.int64)) <= wanted:
        return 0.0
    low, steps = 0, 2 ** torch.arange(math.frexp(LAST_STEP)[1])
    while (below := _chords(motion, steps) <= wanted).any():
        place = int(below.int().argmax())
        low, high = int(steps[place - 1]) if place else low, int(steps[place])
        if high - low == 1:
            return float(high)
        steps = low + torch.linspace(0, high - low, STOPS, dtype=torch.float64).round().long().unique()[1:]
    return math.inf if low == 0 else float(steps[-1])  # none of a row whose end was below: rounding


def _non_increasing(shape: Shape) -> bool | None:
    match shape:
        case Constant() | Geometric() | Exponential():
            return True
        case Cosine():
            return shape.floor <= 1
        case Piecewise():
            return all(bool(later <= earlier) for earlier, later in pairwise(shape.values))
        case Warmup():
            return shape.start.item() >= 1 and _non_increasing(shape.after)
        case _:
            return None
