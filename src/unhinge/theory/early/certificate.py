r"""How far a real loss can have left its linear path: a comparison equation in one number  [eq: certificate].

Let :math:`\hat X` be the linear path, X the real one from the same start, :math:`e = \|X - \hat X\|` in the norm
:math:`\|H\|^2/c_1 + \|(W, b)\|^2/c_2`. With :math:`c_i` the rates, the linear part moves differences by a symmetric
operator, and

.. math:: e' \le \omega\,e + F(\hat X, e),

:math:`\omega` its largest eigenvalue, F a bound of the difference of the two gradients at distance e. The equation is
carried over blocks of time. The path is measured at the ends of legs of a few blocks each; in between its norms are at
most those on the chord and a little more  [eq: chord-bound], which gives a bound :math:`\bar F(e)` for a whole block.
If :math:`\bar e \ge P e_0 + Q\,\bar F(\bar e)`, P and Q the growth and the summed rates of the block, then e never
leaves :math:`[0, \bar e]` inside it: this is checked, not assumed. Where it fails nothing is proved, and the bound is
infinite from there on.

Descent has the same blocks with sums in place of integrals. Momentum adds the norm of the buffer as a second number
[eq: certificate-momentum].
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.early.loss import LossAtZero
from unhinge.theory.early.movers import UPWARDS, Block, Difference, Mover, Travel
from unhinge.theory.early.norms import Norms, Weights

__all__ = ["BATCH", "Certificate", "Forcing"]

LARGEST_NORM = 1e100  # products of three norms still fit float64; nothing is claimed beyond
BATCH = 256  # nodes measured at once, at most
FIRST_BATCH = 16  # and at first: a large problem may not go further
FROBENIUS = "moving_features", "moving_weight", "resting"  # names of norms
SPECTRAL = "moving_body", "head", "resting_body"
GIVE_UP = 4.0  # relative errors beyond this say nothing
# Where decay is fast and growth slow, a block is no longer than the decay allows, and growth would take 1e8 of them:
# hours. A path that leaves by growing needs some hundreds. This many take seconds.
MOST_BLOCKS = 20_000


@dataclass(frozen=True)
class Forcing:
    """F: how far the two gradients can be apart at a state within `distance` of a measured one."""

    loss: LossAtZero
    weights: Weights
    scales: tuple[float, float]  # square roots of c_1 and c_2
    has_bias: bool
    frozen: bool = False  # fixed prototypes: biases count with the features, and only a lack of convexity adds up

    def __call__(self, at: dict[str, float], distance: float, bias: float, block: Block) -> tuple[float, float]:
        """For (features, prototypes) together, weighted by the push of the block, and for the biases; `bias` is their
        distance."""
        push = block.push
        loss, weights = self.loss, self.weights
        if not (distance < LARGEST_NORM and bias < LARGEST_NORM):
            return math.inf, math.inf
        far_h, far_w = self.scales[0] * distance, self.scales[1] * distance
        head, body, many = at["head"], at["body"], weights.examples**0.5
        if not loss.common:
            bent = loss.curvature(at["largest_logits"]) * at["logits"]
            plain_h, plain_w, plain_b, slopes = head * bent, body * bent, many * bent, bent
        else:
            # beyond lowest order: half the third derivative times the square of the logits
            rest = loss.bend(at["largest_logits"]) / 2 * at["largest_logits"] * at["logits"]
            slopes = at["slopes"] + rest
            plain_h, plain_w = at["features"] + head * rest, at["weight"] + body * rest
            plain_b = at["bias"] + many * rest
        if self.frozen:
            plain_h = min(plain_h, head * loss.farthest * weights.length)
            plain_b = min(plain_b, loss.farthest * weights.total) if self.has_bias else 0.0
            # where the loss is not convex, differences do add: a square of |W| |h| + |b|, as Cauchy's inequality has it
            pulls = (
                weights.largest * head**2 * push[0] * self.scales[0],
                weights.total * push[1] * self.scales[1] if self.has_bias else 0.0,
            )
            reach = at["largest_logits"] + head * far_h + (far_w if self.has_bias else 0.0)
            apart = loss.concavity(reach) * sum(pulls) * distance
            return math.hypot(push[0] * plain_h, push[1] * plain_b) + apart, 0.0
        shift = weights.largest * (head * far_h + body * far_w + far_h * far_w)
        reach = at["largest_logits"] + head * far_h + at["largest_feature"] * far_w + far_h * far_w + bias
        steepness = loss.curvature(reach)
        moved = steepness * (shift + weights.length * bias)
        of_features = plain_h + far_w * (slopes + moved) + head * moved
        of_weight = plain_w + body * moved + far_h * (slopes + moved)
        own = weights.length * bias  # of the biases on themselves, times the change of the gradient
        if not block.damps or (block.bends and not loss.common):
            own = steepness * own
        else:  # the second derivative is symmetric in three vectors, so one direction bounds its change in all
            own = (loss.bend(reach) * reach if block.bends else loss.concavity(reach)) * own
        of_bias = plain_b + many * (steepness * shift + own)
        return math.hypot(push[0] * of_features, push[1] * of_weight), of_bias if self.has_bias else 0.0

    def bulges(self, first: dict[str, float], moved: Displacements, curve: float) -> dict[str, float]:
        r"""How far norms can rise above the chord between the two ends of a leg, from those at its beginning
        [eq: chord-bound].

        A vector that moves is within `curve` times its second displacement of the chord. Logits Z are products of two
        moving factors, the forcing is one of Z and features or prototypes, and their second displacements follow by the
        product rule: in each product one factor is measured in the Frobenius norm, the others in the spectral norm.
        """
        (h1, h2), (w1, w2) = ([scale * part for part in moved.frobenius] for scale in self.scales)
        (flat_h1, flat_h2), (flat_w1, flat_w2) = ([scale * part for part in moved.spectral] for scale in self.scales)
        head, body, long = first["head"] + flat_w1, first["body"] + flat_h1, first["largest_feature"] + flat_h1
        many = self.weights.examples**0.5  # the length of a column of ones, beside which the biases stand
        logits = head * body + (first["shift"] + moved.bias[0]) * many
        logits_1 = w1 * body + head * h1 + moved.bias[0] * many
        logits_2 = w2 * body + 2 * min(w1 * flat_h1, flat_w1 * h1) + head * h2 + moved.bias[1] * many
        unit = self.weights.largest * curve
        steep = self.loss.curvature(0.0) * unit
        return {
            "head": curve * flat_w2,
            "body": curve * flat_h2,
            "largest_feature": curve * flat_h2,
            "largest_logits": curve * (flat_w2 * long + 2 * flat_w1 * flat_h1 + head * flat_h2 + moved.bias[1]),
            "features": steep * (logits_2 * head + 2 * logits_1 * flat_w1 + logits * w2),
            "weight": steep * (logits_2 * body + 2 * logits_1 * flat_h1 + logits * h2),
            "bias": steep * logits_2 * many,
            "slopes": steep * logits_2,
            "logits": unit * logits_2,
        }


@dataclass(frozen=True)
class Displacements:
    """First and second displacement of the path over a leg."""

    frobenius: tuple[float, float]  # features and prototypes together, in the scaled norm
    spectral: tuple[float, float]  # the same with spectral norms of the two
    bias: tuple[float, float]


@dataclass(frozen=True)
class Differences:
    """What the comparison carries."""

    state: Difference = field(default_factory=Difference)  # of features and prototypes: e
    bias: Difference = field(default_factory=Difference)

    def after(self, block: Block, forces: tuple[float, float]) -> Differences:
        return Differences(block.state.end(self.state, forces[0]), block.bias.end(self.bias, forces[1]))


@dataclass(frozen=True)
class Stretch:
    """One block that was crossed: where it starts, norms that hold throughout, and distances never exceeded inside."""

    start: float
    before: Differences
    at: dict[str, float]
    distance: float
    bias: float


@dataclass(frozen=True)
class Node:
    """The linear path at a time at which it was measured."""

    time: float
    norms: dict[str, float]
    log: float  # of the norm of the state
    usable: bool  # whether all norms are finite and their products will be


@dataclass
class Certificate:
    """The bound along one path, extended as far as it is asked."""

    mover: Mover
    forcing: Forcing
    measure: Callable[[Tensor], Norms]
    log_norm: Callable[[Tensor], Tensor]
    drive: float  # norm of the constant pull on the biases
    decay: float  # and their decay
    batch: int = BATCH  # nodes measured at once, as memory allows
    stretches: list[Stretch] = field(default_factory=list)
    ends: float = 0.0  # where the last block ends
    now: Differences = field(default_factory=Differences)  # there
    latest: Node | None = None  # measured there
    # norms of the path's own buffer and of its change per step, there: Frobenius and spectral
    buffer: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0), (0.0, 0.0)])
    longest_bias: float = 0.0  # so far
    alive: bool = True  # whether the bound goes on
    resting: bool = False  # whether all rates are zero from here on
    lock: Any = field(default_factory=RLock, repr=False)  # threads that ask at once extend it in turn

    def __getstate__(self) -> dict[str, object]:
        with self.lock:
            return {**vars(self), "stretches": list(self.stretches), "lock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, lock=RLock())

    def bound(self, time: float) -> float:
        r"""An upper bound of :math:`\|X - \hat X\|_F`, biases included; infinite where nothing is proved."""
        if time == 0:
            return 0.0
        self.extend(time)
        if time >= self.ends:
            return self._size(self.now) if self.resting or time == self.ends else math.inf
        stretch = self.stretches[bisect_right(self.stretches, time, key=lambda part: part.start) - 1]
        if time == stretch.start:
            return self._size(stretch.before)
        block = self.mover.block(stretch.start, time)
        forces = self.forcing(stretch.at, stretch.distance, stretch.bias, block)
        return self._size(stretch.before.after(block, forces))

    def ladder(self) -> tuple[list[float], list[float]]:
        """Where the blocks begin and the last one ends, and :meth:`bound` there."""
        with self.lock:
            starts = [(part.start, self._size(part.before)) for part in self.stretches]
            times, bounds = zip(*starts, (self.ends, self._size(self.now)), strict=True)
        return list(times), [0.0, *bounds[1:]]

    def extend(self, until: float) -> None:
        """Blocks up to the time `until`, or to where nothing is proved any more."""
        if self.ends >= until:  # it only grows, so that no lock is needed to see this
            return
        with self.lock, torch.inference_mode(False):  # what is kept must not be of the mode of whoever asks first
            self._extend(until)

    def _extend(self, until: float) -> None:
        while self.alive and not self.resting and self.ends < until:
            if len(self.stretches) >= MOST_BLOCKS or self.ends >= self.mover.linear.farthest:
                self.alive = False  # what is beyond is not proved, and is reported so
                return
            nodes = [self.ends]
            room = min(self.batch, max(FIRST_BATCH, len(self.stretches) // self.mover.linear.pieces))
            while len(nodes) <= room and nodes[-1] < min(until, self.mover.linear.farthest):
                nodes.append(self.mover.next(nodes[-1]))
                if math.isinf(nodes[-1]):
                    break
            self._advance(nodes)

    def _size(self, differences: Differences) -> float:
        return UPWARDS * math.hypot(max(self.mover.scales) * differences.state.size, differences.bias.size)

    def _advance(self, nodes: list[float]) -> None:
        ends = [node for node in nodes if math.isfinite(node)]
        known = [self.latest] if self.latest is not None and self.latest.time == ends[0] else []
        measured = known + self._measured(ends[len(known) :])
        for first, last in pairwise(measured):
            small = self.forcing.frozen or self._size(self.now) <= GIVE_UP * math.exp(min(first.log, 600.0))
            # a state of zeros is known exactly; one that has nearly vanished is not
            small = small and (first.log > -600 or first.log == -math.inf)
            if not (first.usable and last.usable and small and self._travel(first, last)):
                self.alive = False
                return
        self.latest = measured[-1]
        self.resting = len(ends) < len(nodes)

    def _measured(self, times: list[float]) -> list[Node]:
        if not times:
            return []
        moments = torch.tensor(times, dtype=torch.float64)
        norms = vars(self.measure(moments))
        table = torch.stack([norms[name].double() for name in norms], 1)
        usable = (torch.isfinite(table) & (table < LARGEST_NORM)).all(1).tolist()
        rows = (dict(zip(norms, row, strict=True)) for row in table.tolist())
        return list(map(Node, times, rows, self.log_norm(moments).tolist(), usable))

    def _travel(self, first: Node, last: Node) -> bool:
        """One leg between two measured times, block by block: whether all of it was crossed."""
        start, stop, norms = first.time, last.time, first.norms
        self.longest_bias = max(self.longest_bias, norms["shift"])
        linear, travel = self.mover.linear, self.mover.travel(start, stop)
        if linear.discrete and stop - start == 1 and not travel.buffered:  # all that follows is for longer legs
            return self._cross(norms, start, stop)
        now = [self._carried(norms, travel, names) for names in (FROBENIUS, SPECTRAL)]
        moved = [
            (travel.path @ np.array([moving, *buffer])).tolist()
            for (moving, _), buffer in zip(now, self.buffer, strict=True)
        ]
        bulges: dict[str, float] = {}
        if not (linear.discrete and stop - start == 1):  # one step takes its gradients at its beginning
            whole, narrow = (
                (row[0] + travel.fade[0] * rest + travel.offset[0], row[1] + travel.fade[1] * rest + travel.offset[1])
                for row, (_, rest) in zip(moved, now, strict=True)
            )
            # the constant pull and the decay; the latter of biases that were at most this long so far (Grönwall)
            pull = (self.drive + self.decay * self.longest_bias) * math.exp(min(travel.drift[0] * self.decay, 100.0))
            drift = travel.drift[0] * pull, travel.drift[1] * pull
            displacements = Displacements(whole, narrow if travel.any_norm else whole, drift)
            bulges = self.forcing.bulges(norms, displacements, travel.curve)
        for low, high in pairwise(linear.edges(start, stop)):
            final = high - 1 if linear.discrete else high
            if final == start:
                at = norms
            elif linear.pieces == 1:
                at = _on_chord(norms, last.norms, bulges, 0.0, 1.0)
            else:
                shares = linear.share(start, low, stop), linear.share(start, final, stop)
                at = _on_chord(norms, last.norms, bulges, *shares)
            if not self._cross(at, low, high):
                return False
        self.buffer = [(row[3], row[4]) for row in moved]
        return True

    def _carried(self, norms: dict[str, float], travel: Travel, names: tuple[str, str, str]) -> tuple[float, float]:
        """What the modes move, and the rest of the features; with decays and momentum they move together."""
        (a, b), (features, weight, resting) = self.mover.scales, (norms[name] for name in names)
        moving, rest = math.hypot(features / a, weight / b), resting / a
        return (math.hypot(moving, rest) if travel.fade[0] == 0 and self.mover.linear.decays_rest else moving), rest

    def _cross(self, at: dict[str, float], start: float, stop: float) -> bool:
        """One block: whether distances were found that the differences cannot leave."""
        block, now = self.mover.block(start, stop), self.now
        distance, bias = now.state.size, now.bias.size
        forces = self.forcing(at, distance, bias, block)
        if not (self.mover.linear.discrete and stop - start == 1):  # a step takes its gradients at its beginning
            for _ in range(40):  # each round raises the guess by a thousandth at least, so that rounding cannot stop it
                reached = block.state.highest(now.state, forces[0])
                other = block.bias.highest(now.bias, forces[1])
                if reached <= distance and other <= bias:
                    break
                distance, bias = max(reached * (1 + 1e-3), distance), max(other * (1 + 1e-3), bias)
                forces = self.forcing(at, distance, bias, block)
            else:
                return False
        if not all(map(math.isfinite, forces)):
            return False
        self.stretches.append(Stretch(start, now, at, distance, bias))
        self.ends, self.now = stop, now.after(block, forces)
        return True


def _on_chord(
    first: dict[str, float], last: dict[str, float], bulges: dict[str, float], low: float, high: float
) -> dict[str, float]:
    """Norms that hold between two shares of a leg: at most those on the chord, and the part of the bulge that a
    parabola has there."""
    above = 1.0 if low <= 0.5 <= high else 4 * max(low * (1 - low), high * (1 - high))
    return {
        name: max((1 - low) * first[name] + low * last[name], (1 - high) * first[name] + high * last[name])
        + above * bulge
        for name, bulge in bulges.items()
    }
