r"""How far a real loss can have left its linear path: a comparison equation in one number  [eq: certificate].

Let :math:`\hat X` be the linear path, X the real one from the same start, :math:`e = \|X - \hat X\|` in the norm
:math:`\|H\|^2/c_1 + \|(W, b)\|^2/c_2`. With :math:`c_i` the rates, the linear part moves differences by a symmetric
operator, and

.. math:: e' \le \omega\,e + F(\hat X, e),

:math:`\omega` its largest eigenvalue, F a bound of the difference of the two gradients at distance e. The equation is
carried over blocks of time. Inside a block the path is within :math:`\delta` of its first state, so
:math:`F(\hat X(t), e) \le F(\hat X(t_0), e + \delta)`. If :math:`\bar e \ge P e_0 + Q\,F(\bar e + \delta)`, P and Q the
growth and the sum of the rates over the block, then e never leaves :math:`[0, \bar e]` inside it: this is checked, not
assumed. Where it fails nothing is proved, and the bound is infinite from there on.

Descent has the same blocks with sums in place of integrals. Momentum adds the norm of the buffer as a second number
[eq: certificate-momentum].
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.early.loss import LossAtZero
from unhinge.theory.early.movers import Block, Mover
from unhinge.theory.early.norms import Norms, Weights

__all__ = ["BATCH", "Certificate", "Forcing"]

LARGEST_NORM = 1e100  # products of three norms still fit float64; nothing is claimed beyond
BATCH = 256  # nodes measured at once, at most
FIRST_BATCH = 16  # and at first: a large problem may not go further
GIVE_UP = 4.0  # relative errors beyond this say nothing
UPWARDS = 1 + 1e-9  # far above the rounding of some thousand operations


@dataclass(frozen=True)
class Forcing:
    """F: how far the two gradients can be apart at a state within `distance` of a measured one."""

    loss: LossAtZero
    weights: Weights
    scales: tuple[float, float]  # square roots of c_1 and c_2
    has_bias: bool
    convex: bool = False  # fixed prototypes: differences do not add to the forcing, and biases count with the features

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
        if self.convex:
            plain_h = min(plain_h, head * loss.farthest * weights.length)
            plain_b = min(plain_b, loss.farthest * weights.total) if self.has_bias else 0.0
            return math.hypot(push[0] * plain_h, push[1] * plain_b), 0.0
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
            own = loss.bend(reach) * reach * own if block.bends else 0.0
        of_bias = plain_b + many * (steepness * shift + own)
        return math.hypot(push[0] * of_features, push[1] * of_weight), of_bias if self.has_bias else 0.0

    def between(
        self,
        first: dict[str, float],
        last: dict[str, float],
        displaced: tuple[float, float],
        drift: tuple[float, float],
        curve: float,
    ) -> dict[str, float]:
        r"""Norms that hold throughout a block, from those at its two ends  [eq: chord-bound].

        A vector that moves is within `curve` times its second displacement of the chord between the two ends, and on a
        chord norms are at most those of the ends. The forcing is a product of three moving factors, and its second
        displacement follows by the product rule. Biases count as one more column of the prototypes, beside a constant
        feature 1.
        """
        far_h, far_w = ([scale * part for part in displaced] for scale in self.scales)
        head, body = first["head"] + far_w[0], first["body"] + far_h[0]
        tall = first["largest_logits"] + head * far_h[0] + first["largest_feature"] * far_w[0] + drift[0]
        at = dict(first, head=head, body=body, largest_logits=tall)
        at["largest_feature"] += far_h[0]
        if self.has_bias:
            head = math.hypot(head, first["shift"] + drift[0] + far_w[0])
            body = math.hypot(body, self.weights.examples**0.5)
            far_w = [x + y for x, y in zip(far_w, drift, strict=True)]
        unit = self.weights.largest * curve
        steep = self.loss.curvature(0.0) * unit
        (w1, w2), (h1, h2) = far_w, far_h
        product = w2 * body + 2 * w1 * h1 + head * h2
        added = {
            "features": steep * (2 * w2 * head * body + 2 * w1**2 * body + 4 * w1 * h1 * head + head**2 * h2),
            "weight": steep * (w2 * body**2 + 4 * w1 * h1 * body + 2 * head * h2 * body + 2 * head * h1**2),
            "bias": steep * self.weights.examples**0.5 * product,
            "slopes": steep * product,
            "logits": unit * product,
        }
        for name, extra in added.items():
            at[name] = max(first[name], last[name]) + extra
        return at


@dataclass(frozen=True)
class Differences:
    """What the comparison carries: bounds of the differences of states and buffers, and of the path's own buffer."""

    error: float = 0.0  # e, of features and prototypes
    buffer: float = 0.0
    bias: float = 0.0
    bias_buffer: float = 0.0
    speed: float = 0.0  # norm of the path's buffer
    jolt: float = 0.0  # and of its change per step


@dataclass(frozen=True)
class Stretch:
    """One block that was crossed: where it starts, norms that hold throughout, and distances never exceeded inside."""

    start: float
    before: Differences
    at: dict[str, float]
    distance: float
    bias: float


@dataclass
class Certificate:
    """The bound along one path, extended as far as it is asked."""

    mover: Mover
    forcing: Forcing
    measure: Callable[[Tensor], Norms]
    log_norm: Callable[[Tensor], Tensor]
    drive: float  # norm of the constant pull on the biases
    batch: int = BATCH  # nodes measured at once, as memory allows
    stretches: list[Stretch] = field(default_factory=list)
    ends: float = 0.0  # where the last block ends
    now: Differences = field(default_factory=Differences)  # there
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
        return self._size(self._after(stretch.before, block, forces))

    def extend(self, until: float) -> None:
        """Blocks up to the time `until`, or to where nothing is proved any more."""
        with self.lock, torch.inference_mode(False):  # what is kept must not be of the mode of whoever asks first
            self._extend(until)

    def _extend(self, until: float) -> None:
        while self.alive and not self.resting and self.ends < until:
            nodes = [self.ends]
            room = min(self.batch, max(FIRST_BATCH, len(self.stretches)))
            while len(nodes) <= room and nodes[-1] < until:
                nodes.append(self.mover.next(nodes[-1]))
                if math.isinf(nodes[-1]):
                    break
            self._advance(nodes)

    def _size(self, differences: Differences) -> float:
        return UPWARDS * math.hypot(max(self.mover.scales) * differences.error, differences.bias)

    def _advance(self, nodes: list[float]) -> None:
        moments = torch.tensor([node for node in nodes if math.isfinite(node)], dtype=torch.float64)
        logs = self.log_norm(moments).tolist()
        norms = vars(self.measure(moments))
        table = torch.stack([norms[name].double() for name in norms], 1)
        usable = (torch.isfinite(table).all(1) & (table < LARGEST_NORM).all(1)).tolist()
        rows = [dict(zip(norms, row, strict=True)) for row in table.tolist()]
        for k, (start, stop) in enumerate(pairwise(nodes)):
            if math.isinf(stop):
                self.resting = True
                return
            small = self.forcing.convex or self._size(self.now) <= GIVE_UP * math.exp(min(logs[k], 600.0))
            small = small and logs[k] > -600
            if not (usable[k] and usable[k + 1] and small and self._cross(rows[k], rows[k + 1], start, stop)):
                self.alive = False
                return

    def _cross(self, first: dict[str, float], last: dict[str, float], start: float, stop: float) -> bool:
        """One block: whether distances were found that the differences cannot leave."""
        block, scales, now = self.mover.block(start, stop), self.mover.scales, self.now
        moving = math.hypot(first["moving_features"] / scales[0], first["moving_weight"] / scales[1])
        rest = first["resting"] / scales[0]
        carried = math.hypot(moving, rest) if block.fade[0] == 0 and self.mover.decays_rest else moving
        moved = block.path @ np.array([carried, now.speed, now.jolt])
        distance, bias = now.error, now.bias
        if self.mover.discrete and stop - start == 1:  # one step: the gradients are those at its beginning
            at = first
            forces = self.forcing(at, distance, bias, block)
        else:
            first_order, second_order = (float(moved[k]) + block.fade[k] * rest + block.offset[k] for k in range(2))
            drift = block.drift[0] * self.drive, block.drift[1] * self.drive
            at = self.forcing.between(first, last, (first_order, second_order), drift, block.curve)
            forces = self.forcing(at, distance, bias, block)
            for _ in range(40):  # each round raises the guess by a thousandth at least, so that rounding cannot stop it
                reached = block.highest(now.error, now.buffer, forces[0])
                other = max(now.bias, block.bias_end(now.bias, now.bias_buffer, forces[1])[0])
                if reached <= distance and other <= bias:
                    break
                distance, bias = max(reached * (1 + 1e-3), distance), max(other * (1 + 1e-3), bias)
                forces = self.forcing(at, distance, bias, block)
            else:
                return False
        if not all(map(math.isfinite, forces)):
            return False
        self.stretches.append(Stretch(start, now, at, distance, bias))
        after = self._after(now, block, forces)
        self.ends, self.now = stop, replace(after, speed=float(moved[3]), jolt=float(moved[4]))
        return True

    @staticmethod
    def _after(now: Differences, block: Block, forces: tuple[float, float]) -> Differences:
        error, buffer = block.end(now.error, now.buffer, forces[0])
        bias, bias_buffer = block.bias_end(now.bias, now.bias_buffer, forces[1])
        # a comparison that decays has a negative buffer: upwards is towards zero there
        upwards = (UPWARDS * x if x > 0 else x / UPWARDS for x in (error, buffer, bias, bias_buffer))
        return Differences(*upwards)
