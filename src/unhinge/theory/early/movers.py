r"""An optimizer as the certificate sees it: what one block of time does to a difference of two paths.

Everything is in the norm :math:`\|H\|^2/c_1 + \|(W, b)\|^2/c_2`. For proportional rates :math:`c_i` are the rates
themselves: then the linear part of the gradient is a symmetric operator with eigenvalues :math:`\omega_\pm(\sigma_k)`
between :math:`\omega_-` and :math:`\omega_+` of the largest singular value, and a step multiplies differences by at
most :math:`\max|1 + \eta\omega_\pm|`. Otherwise :math:`\sigma_1` itself bounds how much the two sides push each other.

Momentum  [eq: certificate-momentum]: a difference obeys :math:`u \leftarrow \mu u + a(Az + f)`,
:math:`z \leftarrow z + \eta u`. Its response to one push f is a polynomial in A with nonnegative coefficients, so its
norm is at most that polynomial at :math:`\max|\omega|`. At a constant rate the negative eigenvalues do not count: for
them the response is :math:`\mu^{m/2} U_m(x)`, U Chebyshev's polynomial, which is largest at :math:`\omega = 0` while
:math:`\eta a|\omega| \le 2(1 + \mu)`; with Nesterov it is
:math:`\mu^{(m+1)/2}\theta^{(m-1)/2}U_{m+1}(x)`, :math:`\theta = 1 + \eta\omega`, with the same property for
:math:`0 \le \theta \le 1`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from unhinge.theory.linear.momentum import Momentum
from unhinge.theory.numerics import LARGEST_EXPONENT, TINY
from unhinge.theory.schedules import Schedule

__all__ = ["UPWARDS", "AnchoredMover", "Block", "Difference", "Linear", "MomentumMover", "Mover", "PlainMover"]

FINE = 0.02  # inside a block the path moves by at most two percent of itself
PIECES = 5  # blocks between two times at which the path is measured, where it keeps close to a chord
# Blocks start at this part of their full length, so that the first moments are not bounded by later ones.
FIRST = 1 / 64
FAR = 300.0  # turns and fades are cut here: the bounds made of their exponentials are beyond all use, and stay finite
UPWARDS = 1 + 1e-9  # far above the rounding of some thousand operations
LEAST_SWING = 1e-6  # of a squared sine computed as 1 - x^2: its rounding stays below that of UPWARDS
FARTHEST = 2.0**18  # a rate given as a function is asked for every step, several times: these take seconds
PATIENCE = 400.0  # units of 1/omega after which a decaying path is crossed in blocks that lengthen with time


@dataclass(frozen=True)
class Comparison:
    """What a stretch of time does to (e, v), bounds of a difference and of the difference of the buffers (0 without
    momentum); and to a second bound of the same difference, where all modes swing."""

    matrix: tuple[float, float, float, float]  # of (e, v) to (e, v)
    load: tuple[float, float]  # what a forcing of norm 1 adds to them
    top: tuple[float, float, float]  # the highest e inside, from e, v and the forcing
    ring: tuple[float, float] | None = None  # the second bound is multiplied, and a forcing of norm 1 adds

    def end(self, now: Difference, force: float) -> Difference:
        (a, b, c, d), (e, v) = self.matrix, (now.error, now.buffer)
        error, buffer = a * e + b * v + self.load[0] * force, c * e + d * v + self.load[1] * force
        ringing = math.inf if self.ring is None else self.ring[0] * now.ringing + self.ring[1] * force
        # a comparison that decays has a negative buffer: upwards is towards zero there
        return Difference(*(UPWARDS * x if x > 0 else x / UPWARDS for x in (error, buffer, ringing)))

    def highest(self, now: Difference, force: float) -> float:
        swinging = math.inf if self.ring is None else now.ringing + self.ring[1] * force
        return min(swinging, self.top[0] * now.error + self.top[1] * max(now.buffer, 0.0) + self.top[2] * force)


@dataclass(frozen=True)
class Difference:
    """Bounds of one difference of two paths: that of the recurrence in two numbers, and that of modes that swing."""

    error: float = 0.0
    buffer: float = 0.0
    ringing: float = 0.0

    @property
    def size(self) -> float:
        return min(self.error, self.ringing)


@dataclass(frozen=True)
class Block:
    """What a stretch of time does to the differences; the linear part does not couple biases to anything."""

    push: tuple[float, float]  # weights of the forcing on the features and on the prototypes
    state: Comparison  # features and prototypes
    bias: Comparison
    damps: bool  # whether a convex loss in the biases brings their differences no further apart
    bends: bool = False  # if so, for the second derivative at zero only: its change counts


@dataclass(frozen=True)
class Travel:
    """How far the linear path itself moves in a stretch of time."""

    path: np.ndarray  # (5, 3): first and second displacement, norm, buffer and its change from norm, buffer and change
    fade: tuple[float, float]  # the two displacements of the resting part of the features, over its norm
    drift: tuple[float, float]  # the two displacements of the biases, over the constant pull on them
    curve: float  # largest distance from the chord, over the second displacement
    any_norm: bool = True  # whether this comes from the size of the generator alone, and holds in every operator norm
    offset: tuple[float, float] = (0.0, 0.0)  # displacements by a constant pull
    buffered: bool = True  # whether there is a buffer


class Mover(Protocol):
    """`next(start)` ends the leg that begins at `start`; infinite once nothing moves any more."""

    @property
    def linear(self) -> Linear: ...
    @property
    def scales(self) -> tuple[float, float]: ...
    def next(self, start: float) -> float: ...
    def block(self, start: float, stop: float) -> Block: ...
    def travel(self, start: float, stop: float) -> Travel: ...


@dataclass(frozen=True)
class Linear:
    """The linear part: rates, decays, the largest singular value, and what follows from them."""

    schedules: tuple[Schedule, Schedule]
    decays: tuple[float, float]
    sigma: float
    discrete: bool
    steepness: float  # largest second derivative of the loss in the biases
    softness: float  # at most the smallest one at zero: Var_q(u) >= min(q) |u|^2 for all u that sum to zero
    chords: bool = True  # whether legs are crossed in pieces; towards fixed prototypes they are not

    @cached_property
    def peaks(self) -> tuple[float, float]:
        """The factors of the two schedules' shapes."""
        first, second = (schedule.peak.item() for schedule in self.schedules)
        return first, second

    @cached_property
    def floors(self) -> tuple[float, float]:
        """The two rates from where they settle."""
        first, second = (p * schedule.shape.floor for p, schedule in zip(self.peaks, self.schedules, strict=True))
        return first, second

    @cached_property
    def even(self) -> bool:
        """Whether all rates are constant."""
        return self.settles == 0

    @cached_property
    def together(self) -> bool:
        feature_lr, weight_lr = self.schedules
        return feature_lr.proportional_to(weight_lr) and min(self.peaks) > 0

    @cached_property
    def pieces(self) -> int:
        """About how many blocks a leg is crossed in: where the generator only changes its length, and steps do not,
        the path is close to a chord in the integral of the rate."""
        return PIECES if self.chords and self.together and (self.even or not self.discrete) else 1

    @property
    def decays_rest(self) -> bool:
        """Whether the part of the features outside the modes moves too."""
        return self.decays[0] > 0

    def share(self, start: float, middle: float, stop: float) -> float:
        """How far along the chord of a leg from `start` to `stop` the time `middle` lies, if there are pieces."""
        if self.discrete or self.even:
            return (middle - start) / (stop - start)
        whole = self.clocks(start, stop)[0]
        return min(self.clocks(start, middle)[0] / whole, 1.0) if whole > 0 else 0.0

    @cached_property
    def scales(self) -> tuple[float, float]:
        rate_h, rate_w = self.peaks
        if not self.together:
            rate_h, rate_w = (
                p * schedule.shape.highest for p, schedule in zip(self.peaks, self.schedules, strict=True)
            )
            if not (rate_h > 0 and rate_w > 0 and math.isfinite(rate_h + rate_w)):
                return 1.0, 1.0
        return math.sqrt(rate_h), math.sqrt(rate_w)

    def eigenvalues(self, decoupled: bool = False) -> tuple[float, float]:
        """The extreme ones, for proportional rates, per unit of their common shape."""
        rate_h, rate_w = self.peaks
        first, second = (0.0, 0.0) if decoupled else (rate_h * self.decays[0], rate_w * self.decays[1])
        radius = math.hypot((first - second) / 2, math.sqrt(rate_h * rate_w) * self.sigma)
        mean = (first + second) / 2
        # the quotient keeps its digits at the critical decay
        largest = (rate_h * rate_w * self.sigma**2 - first * second) / (radius + mean) if radius + mean > 0 else 0.0
        return largest, -(mean + radius)

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """The same, where decay is part of the gradient."""
        return self.eigenvalues()

    @cached_property
    def settles(self) -> float:
        """After this time no rate changes; infinite if unknown."""
        return max(schedule.shape.settles for schedule in self.schedules)

    @cached_property
    def farthest(self) -> float:
        """How far rates of which only the values are known are followed; infinite where they settle."""
        return math.inf if math.isfinite(self.settles) else FARTHEST

    @cached_property
    def rests(self) -> float:
        """After this time all rates are zero, a whole number of steps for descent; infinite if never."""
        if any(schedule.shape.floor != 0 for schedule in self.schedules) or math.isinf(self.settles):
            return math.inf
        return float(math.ceil(self.settles)) if self.discrete else self.settles

    def rates(self, start: float, stop: float) -> tuple[np.ndarray, np.ndarray]:
        """Descent: the rates of the steps from `start` to `stop`."""
        if start >= self.settles or self.settles == 0:
            return np.array(self.floors[:1]), np.array(self.floors[1:])
        steps = torch.arange(start, stop, dtype=torch.float64)
        of_h, of_w = (schedule(steps).detach().double().numpy() for schedule in self.schedules)
        return of_h, of_w

    def clocks(self, start: float, stop: float) -> tuple[float, float]:
        """Integrals (flow) or sums (descent) of the two rates."""
        if self.even or (self.discrete and start >= self.settles):
            return self.floors[0] * (stop - start), self.floors[1] * (stop - start)
        if self.discrete:
            first, second = (float(rates.sum()) for rates in self.rates(start, stop))
            return first, second
        ends = torch.tensor([start, stop], dtype=torch.float64)
        of_h, of_w = (schedule.integral(ends).diff().item() for schedule in self.schedules)
        return max(of_h, 0.0), max(of_w, 0.0)

    def turn(self, start: float, stop: float) -> float:
        """At least the norm of the generator, summed over the stretch: how far the path can turn."""
        clock_h, clock_w = self.clocks(start, stop)
        if self.together:
            return max(map(abs, self.extremes)) * clock_h / self.peaks[0]
        a, b = self.scales
        return self.decays[0] * clock_h + self.decays[1] * clock_w + self.sigma * (clock_h * b / a + clock_w * a / b)

    def next(self, start: float, slow: float) -> float:
        """The next time at which the path may have turned by `FINE` for each piece; `slow` is 1 / (1 - momentum)."""
        if start >= self.rests:
            return math.inf
        fine = FINE * self.pieces
        unit = 1.0 if self.discrete else self._unit(start, slow)
        turn = slow * self.turn(start, start + unit) / unit
        length = max(unit, start / 4)  # the buffer of a path with momentum must fill, and a rate may rise
        if self.pieces > 1 and slow == 1 and self.even and turn > 0:
            length = max(length, fine / turn)
        # The turn is proportional to the length where the rates are even: no need to search. A little less than the
        # quotient, so that its rounding does not start the search below.
        if self.even and turn * length > fine:
            length = fine / turn * (1 - 1e-12)
        if self.discrete:
            length = max(1.0, math.floor(length))
        while slow * self.turn(start, start + length) > fine and not (self.discrete and length <= 1):
            length = max(1.0, math.floor(length / 1.5)) if self.discrete else length / 1.5
        block = max(1.0, length / self.pieces) if self.discrete else length / self.pieces
        if self.together and start > PATIENCE * block and self.extremes[0] <= 0:
            length = max(length, start / 64)
        stop = start + (max(1.0, math.floor(length)) if self.discrete else length)
        return min(stop, self.rests) if math.isfinite(self.rests) else stop

    def edges(self, start: float, stop: float) -> list[float]:
        """Where the blocks of a leg begin and end: short ones at first, so that the first moments are not bounded by
        later ones."""
        least = (stop - start) / self.pieces
        edges = [start]
        while edges[-1] < stop and self.pieces > 1:
            length = min(least, max(edges[-1] / 4, FIRST * least))
            last = edges[-1] + (max(1.0, math.floor(length)) if self.discrete else length)
            edges.append(last if last < stop - length / 2 else stop)
        return edges if self.pieces > 1 else [start, stop]

    def _unit(self, start: float, slow: float) -> float:
        ahead = 1.0
        while self.turn(start, start + ahead) * slow > FINE * FIRST:
            ahead /= 4
        while self.turn(start, start + 4 * ahead) * slow <= FINE * FIRST and ahead < 1e18:  # beyond all times asked for
            ahead *= 4
        return ahead


@dataclass(frozen=True)
class PlainMover:
    """Gradient flow, and descent without momentum."""

    linear: Linear
    # equal numbers of equal steps do the same, and blocks have few lengths
    blocks: dict[float, Block] = field(default_factory=dict, init=False, repr=False, compare=False)
    travels: dict[float, Travel] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def scales(self) -> tuple[float, float]:
        return self.linear.scales

    def next(self, start: float) -> float:
        return self.linear.next(start, 1.0)

    def block(self, start: float, stop: float) -> Block:
        if not (self.linear.even and self.linear.discrete):
            return self._block(start, stop)
        known = self.blocks.get(stop - start)
        return self.blocks.setdefault(stop - start, self._block(0.0, stop - start)) if known is None else known

    def travel(self, start: float, stop: float) -> Travel:
        if not (self.linear.even and self.linear.discrete):
            return self._travel(start, stop)
        known = self.travels.get(stop - start)
        return self.travels.setdefault(stop - start, self._travel(0.0, stop - start)) if known is None else known

    def _block(self, start: float, stop: float) -> Block:
        linear = self.linear
        clock_h, clock_w = linear.clocks(start, stop)
        growth = math.exp(min(self._log_growth(start, stop), LARGEST_EXPONENT))
        high = max(1.0, growth)
        a, b = linear.scales
        damps, kept = self._biases(start, stop)
        return Block(
            push=(clock_h / a, clock_w / b),
            state=Comparison((growth, 0.0, 0.0, 0.0), (high, 0.0), (high, 0.0, high)),
            bias=Comparison((kept, 0.0, 0.0, 0.0), (clock_w, 0.0), (1.0, 0.0, clock_w)),
            damps=damps,
        )

    def _biases(self, start: float, stop: float) -> tuple[bool, float]:
        """Whether a convex loss brings biases no further apart; and what is left of a difference of them."""
        linear, decay = self.linear, self.linear.decays[1]
        if not linear.discrete:
            return True, math.exp(-min(decay * linear.clocks(start, stop)[1], LARGEST_EXPONENT))
        rates = linear.rates(start, stop)[1]
        damps = bool(rates.max() * (linear.steepness + decay) <= 2)
        kept = np.abs(1 - rates * decay)
        if damps:
            kept = np.maximum(kept, np.abs(1 - rates * (linear.steepness + decay)))
        if rates.max() * decay > 2:
            return damps, math.inf
        return damps, float(np.prod(kept) ** ((stop - start) / len(rates)))

    def _travel(self, start: float, stop: float) -> Travel:
        linear = self.linear
        clock_h, clock_w = linear.clocks(start, stop)
        high = max(1.0, math.exp(min(self._log_growth(start, stop), LARGEST_EXPONENT)))
        turn, fade = min(linear.turn(start, stop), FAR), min(linear.decays[0] * clock_h, FAR)
        first = min(math.expm1(turn), 1 + high)
        second = min(turn**2 * math.exp(turn), 4 * high)
        curve = math.exp(min(4 * turn, LARGEST_EXPONENT)) * (1 / 8 if linear.even or not linear.discrete else 1 / 2)
        if not linear.together:  # the generator itself may turn inside the block: no chord, but the first displacement
            second, curve = first, 1.0
        return Travel(
            path=np.array([[first, 0, 0], [second, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]),
            fade=(min(math.expm1(fade), 2.0), min(fade**2 * math.exp(fade), 4.0)),
            drift=(clock_w, clock_w * min(1.0, linear.decays[1] * clock_w)),
            curve=curve,
            any_norm=turn <= 1,  # beyond, the growth of the Frobenius norm may be the smaller bound
            buffered=False,
        )

    def _log_growth(self, start: float, stop: float) -> float:
        linear = self.linear
        clock_h, clock_w = linear.clocks(start, stop)
        a, b = linear.scales
        if linear.together:
            largest, smallest = linear.extremes
            peak = linear.peaks[0]
            if not linear.discrete:
                return largest * clock_h / peak
            rates = linear.rates(start, stop)[0] / peak
            factors = np.maximum(np.abs(1 + rates * largest), np.abs(1 + rates * smallest))
            return float(np.log(factors).sum()) * (stop - start) / len(rates)
        if not linear.discrete:  # the largest eigenvalue of the symmetric part; decays only help
            return linear.sigma * (clock_h * b / a + clock_w * a / b) / 2
        if any(rate.max() * decay > 2 for rate, decay in zip(linear.rates(start, stop), linear.decays, strict=True)):
            return LARGEST_EXPONENT  # steps that overshoot: nothing is claimed
        return linear.sigma * (clock_h * b / a + clock_w * a / b)


@dataclass(frozen=True)
class AnchoredMover:
    """Gradient flow of features towards fixed prototypes: a convex loss, so differences do not grow by themselves."""

    linear: Linear
    pull: float  # norm of the constant pull on the features

    @property
    def scales(self) -> tuple[float, float]:
        rate_h, rate_w = self.linear.peaks
        if rate_h > 0 and rate_w > 0:
            return math.sqrt(rate_h), math.sqrt(rate_w)
        return max(math.sqrt(rate_h), math.sqrt(TINY)), 1.0

    def next(self, start: float) -> float:
        """Even blocks on a logarithmic scale: the path is a straight line, or bends with the decay."""
        if start >= self.linear.rests:
            return math.inf
        if start == 0:
            return min(FIRST * self._unit, self.linear.rests)
        length = min(start / 16, self._longest)
        if start > PATIENCE * self._longest:  # at rest; blocks of one length would never reach the end of time
            length = max(length, start / 64)
        return min(start + length, self.linear.rests)

    @property
    def _unit(self) -> float:
        highest = self.linear.peaks[0] * max(self.linear.schedules[0].shape.highest, TINY)
        return 1 / highest if math.isfinite(highest) and highest > 0 else 1.0

    @property
    def _longest(self) -> float:
        decay = max(self.linear.decays)
        return self._unit / (4 * decay) if decay > 0 else math.inf

    def block(self, start: float, stop: float) -> Block:
        (a, b), (clock_h, clock_w) = self.scales, self.linear.clocks(start, stop)
        return Block(
            push=(clock_h / a, clock_w / b),
            state=Comparison((1.0, 0.0, 0.0, 0.0), (1.0, 0.0), (1.0, 0.0, 1.0)),
            bias=Comparison((1.0, 0.0, 0.0, 0.0), (0.0, 0.0), (1.0, 0.0, 0.0)),
            damps=True,
        )

    def travel(self, start: float, stop: float) -> Travel:
        linear, a = self.linear, self.scales[0]
        clock_h, clock_w = linear.clocks(start, stop)
        fade = min(linear.decays[0] * clock_h, FAR)
        first, second = min(math.expm1(fade), 2.0), min(fade**2 * math.exp(fade), 4.0)
        return Travel(
            path=np.array([[first, 0, 0], [second, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]),
            fade=(first, second),
            drift=(clock_w, clock_w * min(1.0, linear.decays[1] * clock_w)),
            curve=1 / 8,
            offset=(clock_h * self.pull / a, fade * clock_h * self.pull / a),
        )


@dataclass(frozen=True)
class MomentumMover:
    """``torch.optim.SGD`` with momentum."""

    linear: Linear
    options: Momentum

    @property
    def scales(self) -> tuple[float, float]:
        return self.linear.scales if self.linear.together else (1.0, 1.0)

    def next(self, start: float) -> float:
        return 1.0 if start == 0 else self.linear.next(start, 1 / (1 - self.options.factor))

    def block(self, start: float, stop: float) -> Block:
        linear, options = self.linear, self.options
        rates_h, rates_w = linear.rates(start, stop)
        rate, largest, smallest = self._operator(rates_h, rates_w)
        response = self._response(rate, largest, smallest) if linear.together else (largest, None)
        keeps = [1.0, 1.0]
        if options.decoupled:
            keeps = [float(np.abs(1 - r * d).max()) for r, d in zip((rates_h, rates_w), linear.decays, strict=True)]
        pace, count, begin = float(rates_w.max()), round(stop - start), start == 0
        # a convex loss pulls biases back as a decay does: its second derivative at zero is part of the operator
        decay = 0.0 if options.decoupled else linear.decays[1]
        weakest, strongest = -decay - linear.softness, -decay - linear.steepness
        damps = not options.decoupled and self._steady(pace, strongest)
        own = self._response(pace, weakest, strongest) if damps else (decay, None)
        return Block(
            push=linear.scales if linear.together else (1.0, 1.0),
            state=self._comparison(rate, response, max(keeps), count, begin),
            bias=self._comparison(pace, own, keeps[1], count, begin),
            damps=damps,
            bends=True,
        )

    def travel(self, start: float, stop: float) -> Travel:
        linear, options = self.linear, self.options
        rates_h, rates_w = linear.rates(start, stop)
        rate, largest, smallest = self._operator(rates_h, rates_w)
        shrink = 0.0
        if options.decoupled:
            shrink = max(float((r * d).max()) for r, d in zip((rates_h, rates_w), linear.decays, strict=True))
        pace, count, begin = float(rates_w.max()), round(stop - start), start == 0
        drift = count * pace / (1 - options.factor)
        curve = 1.0 if not linear.together else (1 / 8 if linear.even else 1 / 2)
        # the buffer of biases fills like 1 - mu^k, then changes only by the decay; Nesterov moves at most twice as
        # unevenly
        settling = options.factor ** max(start - 1, 0) + linear.decays[1] * pace / (1 - options.factor) ** 2
        turn = 2 * count**2 * pace * settling if linear.even else drift / curve
        return Travel(
            path=self._path(rate, max(abs(largest), abs(smallest)), shrink, count, begin),
            fade=(0.0, 0.0),
            drift=(drift, min(drift / curve, turn)),
            curve=curve,
        )

    def _operator(self, rates_h: np.ndarray, rates_w: np.ndarray) -> tuple[float, float, float]:
        """The largest rate, and the extreme eigenvalues of what it multiplies: for rates that are not proportional, a
        bound of their size."""
        linear, decoupled = self.linear, self.options.decoupled
        if linear.together:
            return float(rates_h.max()) / linear.peaks[0], *linear.eigenvalues(decoupled)
        first, second = (0.0, 0.0) if decoupled else linear.decays
        size = (first + second) / 2 + math.hypot((first - second) / 2, linear.sigma)
        return float(max(rates_h.max(), rates_w.max())), size, -size

    def _path(self, rate: float, size: float, shrink: float, count: int, begin: bool) -> np.ndarray:
        r"""The two displacements and the new (norm, buffer, change of the buffer) of the linear path itself, bounded.

        The change :math:`w` of the buffer per step obeys :math:`w \leftarrow \mu w + a\eta\gamma u`; after some
        :math:`1/(1-\mu)` steps it is small, and the path as smooth as a flow.
        """
        mu, fresh = self.options.factor, 1 - self.options.dampening
        x, u, w = np.eye(3)
        if begin:
            x, u, w = x, size * x, size * x
            move = rate * (u + (mu * u if self.options.nesterov else 0)) + shrink * x
            return np.stack([move, move, x + move, u, w])
        first, turns = np.zeros(3), []
        for _ in range(count):
            u = mu * u + fresh * size * x
            move = rate * (size * x + mu * u if self.options.nesterov else u) + shrink * x
            w = mu * w + fresh * size * move
            turns.append(rate * (size * move + mu * w if self.options.nesterov else w) + shrink * move)
            x, first = x + move, first + move
        second = count**2 * np.max(turns, 0) if self.linear.together else first
        return np.stack([first, second, x, u, w])

    def _response(self, rate: float, largest: float, smallest: float) -> tuple[float, tuple[float, float] | None]:
        r"""The number at which the comparison recurrence responds at least as much as all eigenvalues do; and, where
        all of them swing, factor and height of the geometric sequence that their responses stay below.

        With momentum :math:`\mu^{m/2}U_m(x)` is even or odd in x and grows with :math:`|x| \ge 1`, so the largest
        :math:`|x|` counts, or the critically damped 1. Where all are below, :math:`x = \cos\varphi` and
        :math:`|U_m| = |\sin(m+1)\varphi| / \sin\varphi`.
        """
        mu, step = self.options.factor, rate * (1 - self.options.dampening)
        if not self._steady(rate, smallest):
            return max(abs(largest), abs(smallest)), None
        if largest >= 0 or self.options.decoupled or step == 0:
            return max(largest, 0.0), None
        if self.options.nesterov:
            theta = 1 + rate * largest  # the largest counts: both theta and x grow with the eigenvalue
            cosine, fade = (1 + mu) * math.sqrt(theta / mu) / 2, math.sqrt(mu * theta)
            height, critical = rate * math.sqrt(mu / theta) if theta > 0 else 0.0, -(((1 - mu) / (1 + mu)) ** 2) / rate
            number = largest
        else:
            ends = [(1 + mu + step * eigenvalue) / (2 * math.sqrt(mu)) for eigenvalue in (largest, smallest)]
            cosine, fade, height, critical = (
                max(map(abs, ends)),
                math.sqrt(mu),
                step,
                -((1 - math.sqrt(mu)) ** 2) / step,
            )
            number = largest if cosine == ends[0] else (2 * math.sqrt(mu) * cosine - 1 - mu) / step
        if cosine >= 1:
            return number, None
        swing = 1 - cosine**2
        return critical / UPWARDS, None if swing < LEAST_SWING else (fade, height / math.sqrt(swing))

    def _steady(self, rate: float, smallest: float) -> bool:
        """Whether negative eigenvalues respond no more than 0 does: a constant rate, and no overshooting."""
        options, shapes = self.options, [schedule.shape for schedule in self.linear.schedules]
        if any(shape.settles != 0 for shape in shapes):
            return False
        if options.nesterov:
            return rate * abs(smallest) <= 1
        return rate * (1 - options.dampening) * abs(smallest) <= 2 * (1 + options.factor)

    def _comparison(
        self, rate: float, response: tuple[float, tuple[float, float] | None], keep: float, count: int, begin: bool
    ) -> Comparison:
        number, sequence = response
        moved = self._power(rate, number, keep, count, begin)
        free = self._power(rate, max(number, 0.0), max(keep, 1.0), count, begin)
        ring = None
        if sequence is not None:
            factor, height = sequence
            later = count - 1 if begin else count
            load = height * (1 - factor**later) / (1 - factor)
            if begin:  # the very first push is undamped
                load += height / (1 - self.options.dampening) * factor**later
            ring = factor**count, load
        return Comparison(
            matrix=(moved[0, 0], moved[0, 1], moved[1, 0], moved[1, 1]),
            load=(moved[0, 2], moved[1, 2]),
            top=(free[0, 0], free[0, 1], free[0, 2]),
            ring=ring,
        )

    def _power(self, rate: float, size: float, keep: float, count: int, begin: bool) -> np.ndarray:
        """`count` steps on (e, v, forcing) of the comparison recurrence; the very first is undamped."""
        mu, fresh = self.options.factor, 1 - self.options.dampening

        def step(fresh: float, mu: float) -> np.ndarray:
            buffer = np.array([fresh * size, mu, fresh])
            used = np.array([size, 0.0, 1.0]) + self.options.factor * buffer if self.options.nesterov else buffer
            return np.stack([np.array([keep, 0.0, 0.0]) + rate * used, buffer, np.array([0.0, 0.0, 1.0])])

        later = np.linalg.matrix_power(step(fresh, mu), count - 1 if begin else count)
        return later @ step(1.0, 0.0) if begin else later
