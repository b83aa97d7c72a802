r"""How the examples move in their planes: flow in closed form, descent by the shortest way there is  [eq: sphere-step].

A step moves the coordinates (a, b) along and across :math:`\hat v` by

.. math:: a^+ = r a + g\, b^2/q, \qquad b^+ = b\,(r - g\, a/q), \qquad q = a^2 + b^2, \quad r = 1 - \eta\lambda,

with :math:`g = \eta\|v\|/\sqrt q` for plain descent and :math:`g = \eta\|v\|` when gradients are rescaled by
:math:`\|h\|`. Equal steps without decay have shorter ways (:mod:`~unhinge.theory.sphere.equal_steps`); all others are
taken one by one (:mod:`~unhinge.theory.sphere.steps`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unhinge.theory.keeping import kept, tensors_in
from unhinge.theory.numerics import HUGE, falling, log_abs1p
from unhinge.theory.schedules import Schedule, constant, flat_edges, needs_gradient
from unhinge.theory.sphere.equal_steps import Trail, final_norm, plain_after, rescaled_after
from unhinge.theory.sphere.planes import Planes
from unhinge.theory.sphere.series import half_tangent, turned
from unhinge.theory.sphere.steps import STRIDE, Stones, descended
from unhinge.theory.types import Time
from unhinge.theory.validation import check_steps, check_times

__all__ = ["WIDTH", "Motion", "Position", "SphereDescent", "SphereFlow", "final_rate"]

RATES_AT_ONCE = 4096  # rates of a schedule asked for together: one call of it for many steps
# Squares of coordinates in units of the larger length must not underflow: 1e-100 leaves 1e-200, and room.
LEAST_LENGTH = 1e-100
WIDTH = 8192  # examples stepped together: their arrays stay in the cache
FARTHEST = 690.0  # exp of it is finite, and exp of minus exp of it zero


@dataclass(frozen=True)
class Position:
    """Where the examples are, shape (*, n) each; cosine and sine keep angles near 0 and pi accurate."""

    cos: Tensor
    sin: Tensor  # signed: negative on the other side of v than at the start
    size: Tensor  # the norm but for a factor that all examples share
    log: Tensor  # (*), the logarithm of that factor: decay takes the norms below the smallest float

    @property
    def norm(self) -> Tensor:
        return self.size * torch.exp(self.log)[..., None]

    def chord(self) -> Tensor:
        r""":math:`2\sin(\theta/2)`  [eq: chord]."""
        near = self.sin.abs() * torch.sqrt(2 / (1 + self.cos.clamp(min=0)))
        return torch.where(self.cos > 0, near, torch.sqrt(2 - 2 * self.cos.clamp(max=0)))


@dataclass(frozen=True)
class SphereFlow:
    r"""Gradient flow: :math:`\kappa = \frac{\|v\|}{\|h_0\|^\nu}\,\frac{e^{\nu\lambda\zeta}-1}{\nu\lambda}`  [eq:
    sphere-flow]."""

    planes: Planes
    schedule: Schedule
    decay: Tensor  # ()
    power: int  # nu: 2, or 1 if rescaled

    discrete = False

    def times(self, time: Time) -> Tensor:
        return check_times(time)

    def position(self, moments: Tensor) -> Position:
        clock = self.schedule.integral(moments)[..., None]
        # With decay the angle falls doubly exponentially; what is beyond the largest float has long been zero.
        growth = falling((-self.power * self.decay * clock).clamp(min=-FARTHEST))
        stretched = (clock * growth).clamp(max=HUGE)
        kappa = torch.where(self.planes.opposite, 0.0, self.planes.speed(self.power) * stretched)
        cos, sin = turned(half_tangent(self.planes.along, self.planes.across) * torch.exp(-kappa))
        size = self.planes.norm.expand(cos.shape)
        return Position(cos, sin, size, -self.decay * clock[..., 0])

    def final_norm(self) -> Tensor:
        return self.planes.norm if self.decay.item() == 0 else torch.zeros_like(self.planes.norm)

    def exponents(self, lr: Tensor) -> Tensor:
        """Of each example's angle at a constant rate, (n,)."""
        return -lr * self.planes.speed(self.power)


@dataclass(frozen=True)
class SphereDescent:
    r"""Gradient descent. Lengths are counted in each example's own unit, so that no scale over- or underflows."""

    planes: Planes
    schedule: Schedule
    decay: Tensor  # ()
    power: int
    latest: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False, compare=False)
    trails: dict[int, Trail] = field(default_factory=dict, init=False, repr=False, compare=False)  # by the first step
    stones: dict[int, Stones] = field(default_factory=dict, init=False, repr=False, compare=False)  # likewise

    discrete = True

    def __post_init__(self) -> None:
        far = (self.planes.norm / self.unit < LEAST_LENGTH) & (self.planes.across > 0)
        if far.any():
            example = int(far.int().argmax())
            raise ValueError(
                f"the first step throws feature {example} more than 1e100 times its own norm away (|h| = "
                f"{self.planes.norm[example].item():.3g}, |v| = {self.planes.pull[example].item():.3g}). Lower lr, or "
                f"rescale the features."
            )

    @kept
    def unit(self) -> Tensor:
        """The norm at the start, or the length that makes alpha 1 if that is longer; a number, without a gradient."""
        highest = self.schedule.peak.item() * self.schedule.shape.highest
        reach = (highest if math.isfinite(highest) else self.schedule(0.0).item()) * self.planes.pull
        return torch.maximum(self.planes.norm, reach if self.power == 1 else reach.sqrt()).detach()

    def times(self, time: Time) -> Tensor:
        return check_steps(time)

    def position(self, moments: Tensor) -> Position:
        steps, back = torch.unique(moments, return_inverse=True)
        return self._placed(self._coordinates_after(steps)[:, back.reshape(-1)], moments.shape)

    def walk(self, width: int) -> Iterator[Position]:
        """Position after 0 to `width` steps, then after `width` to twice as many, and so on: each step taken once.

        Where a feature fades or leaves the range of floats, the positions before, and then the error.
        """
        z, now = torch.stack([self.planes.along, self.planes.across]) / self.unit, 0
        while True:
            reached = self._taken(z, self._pull, now, torch.arange(now, now + width + 1))
            usable = torch.isfinite(reached).all(-1).all(0) & (reached != 0).any(0).all(-1)
            known = int(usable.cumprod(0).sum())
            yield self._placed(reached[:, :known], torch.Size([known]))
            z, now = reached[:, -1], now + width
            self._check_range(z)

    def _placed(self, coordinates: Tensor, shape: torch.Size) -> Position:
        """The position at coordinates (2, K, n), as moments of this shape."""
        a, b = coordinates
        norm = torch.hypot(a, b)
        parts = (a / norm, b / norm, norm * self.unit)
        cos, sin, size = (part.reshape(*shape, len(self.unit)) for part in parts)
        if not torch.isfinite(size.detach()).all():
            raise self._too_far()
        return Position(cos, sin, size, torch.zeros(shape, dtype=torch.float64))

    def final_norm(self) -> Tensor:
        return self._settled * self.unit

    def exponents(self, lr: Tensor) -> Tensor:
        """Of each example's angle at a constant rate, (n,)."""
        return log_abs1p(-self._pull * lr / self._settled**self.power)

    def later(self, steps: int) -> SphereDescent:
        """The same descent from where it is after these steps, at the rate it ends with."""
        position = self.position(torch.tensor(steps))
        planes = replace(self.planes, along=position.norm * position.cos, across=position.norm * position.sin)
        return replace(self, planes=planes, schedule=constant(final_rate(self.schedule)))

    @property
    def monotone(self) -> bool:
        r"""Whether the constant rate that it ends with only makes angles smaller: :math:`\alpha \le 1`; norms grow."""
        turning = self.planes.across != 0
        alpha = final_rate(self.schedule) * self.planes.speed(self.power)
        return self.decay.item() == 0 and not bool((alpha > 1)[turning].any())

    @property
    def _pull(self) -> Tensor:
        """c per unit of learning rate."""
        pull = self.planes.pull / self.unit
        return pull if self.power == 1 else pull / self.unit

    @kept
    def _settled(self) -> Tensor:
        """The norms that the constant rate at the end leads to."""
        first = math.ceil(self.schedule.shape.settles)
        z, c = self._coordinates_after(torch.tensor([first]))[:, 0], self._pull * final_rate(self.schedule)
        return final_norm(z, c, self.power, self._trail(first, z, c))

    @property
    def _carries_gradients(self) -> bool:
        known = tensors_in((self.planes, self.decay, self.schedule))
        return any(tensor.requires_grad for tensor in known) or needs_gradient(self.schedule.shape)

    def _trail(self, first: int, z: Tensor, c: Tensor) -> Trail | None:
        """The plain steps from `first` on, at a constant rate, of which each is taken once; None where numpy cannot."""
        if self.power == 1 or len(c) > WIDTH or self._carries_gradients:
            return None
        return self.trails.setdefault(first, Trail(z, c))

    def _coordinates_after(self, steps: Tensor) -> Tensor:
        """Coordinates after each of the sorted steps, (2, K, n); kept for the next question about the same steps.

        Unless they carry gradients: then every question has a graph of its own. One assignment replaces what is kept,
        and the answer is returned from here: another thread may ask for other steps meanwhile.
        """
        latest = self.latest
        # The very same: formulas of many steps at once round a little differently than those of one, and an answer must
        # not depend on what was asked before.
        if latest is not None and torch.equal(latest[0], steps):
            return latest[1]
        if self._carries_gradients:
            return self._walk_all(steps)
        with torch.inference_mode(False):
            known = steps.clone()
            walked = self._walk_all(known)
        self.__dict__["latest"] = known, walked
        return walked

    def _walk_all(self, steps: Tensor) -> Tensor:
        z, pull = torch.stack([self.planes.along, self.planes.across]) / self.unit, self._pull
        parts = [slice(first, first + WIDTH) for first in range(0, len(pull), WIDTH)]
        return torch.cat([self._walk(z[:, part], pull[part], steps) for part in parts], -1)

    def _walk(self, z: Tensor, pull: Tensor, steps: Tensor) -> Tensor:
        positions, slope = [], torch.is_grad_enabled()
        # Without decay there are closed forms; its gradient at 0 has none.
        faded = self.decay.item() > 0 or (slope and self.decay.requires_grad)
        for first, stop, rate in self._spans():
            inside, over = steps[(steps >= first) & (steps < stop)], bool((steps >= stop).any())
            stops = torch.cat([inside, torch.tensor([int(stop)])]) if over else inside
            whole = len(z[0]) == len(self.planes.pull)
            if rate is None or faded:
                stones = self.stones.setdefault(first, Stones()) if whole and not self._carries_gradients else None
                reached = self._stepped(z, pull, first, stops, stones)
            elif rate.item() == 0 and not (slope and rate.requires_grad):
                reached = z[:, None].expand(-1, len(stops), -1)
            elif self.power == 1:
                reached = rescaled_after(z, pull * rate, stops - first)
            else:
                trail = self._trail(first, z, pull * rate) if whole else None
                reached = plain_after(z, pull * rate, stops - first, trail)
            positions.append(reached[:, : len(inside)])
            if not over:
                break
            z = reached[:, -1]
        return torch.cat(positions, 1)

    def _spans(self) -> Iterator[tuple[int, float, Tensor | None]]:
        """(first step, end, rate): with the rate where it is constant over the span, else None."""
        shape = self.schedule.shape
        if math.isinf(shape.settles):
            return iter([(0, math.inf, None)])
        edges = flat_edges(shape)
        if edges is None:
            edges = sorted({0, math.ceil(shape.settles)})
            rates: list[Tensor | None] = [None] * len(edges)
        else:
            rates = list(self.schedule(torch.tensor(edges)).unbind())
        return zip(edges, [*edges[1:], math.inf], [*rates[:-1], final_rate(self.schedule)], strict=True)

    def _stepped(self, z: Tensor, pull: Tensor, now: int, stops: Tensor, stones: Stones | None = None) -> Tensor:
        """Coordinates after each of these steps, taken one by one, (2, K, n); an error where there are none."""
        reached = self._taken(z, pull, now, stops, stones)
        if len(stops):
            self._check_range(reached[:, -1])
        return reached

    def _taken(self, z: Tensor, pull: Tensor, now: int, stops: Tensor, stones: Stones | None = None) -> Tensor:
        reached, rates, known, marks = [], torch.zeros(0), range(0), stops.tolist()
        for stop in marks:
            if stones is not None and (stone := stones.before(stop)) is not None and stone[0] > now:
                now, z = stone
            while now < stop:
                if now not in known:
                    known = range(now, min(now + RATES_AT_ONCE, marks[-1]))
                    rates = self.schedule(torch.arange(known.start, known.stop, dtype=torch.float64))
                until = min(stop, known.stop, now + STRIDE - now % STRIDE)
                z = descended(z, pull, rates[now - known.start : until - known.start], self.decay, self.power)
                now = until
                if stones is not None and now % STRIDE == 0:
                    stones.add(now, z)
            reached.append(z)
        return torch.stack(reached, 1) if reached else z[:, None][:, :0]

    def _check_range(self, z: Tensor) -> None:
        """What has faded, or left the range of floats, stays so: it is seen in the last coordinates."""
        if (z == 0).all(0).any():
            raise ValueError(
                "the decay takes a feature on the line of its target to zero, where the normalized loss has no "
                "gradient: at once if lr * feature_decay = 1. Choose another lr or feature_decay, or ask earlier."
            )
        if not torch.isfinite(z.detach()).all():
            raise self._too_far()

    def _too_far(self) -> ValueError:
        fade = self.schedule.peak.item() * self.schedule.shape.highest * self.decay.item()
        return ValueError(
            f"the features leave the range of floats within these steps: lr * feature_decay is {fade:g} and must be "
            f"below 2, since each step multiplies a feature by 1 - lr * feature_decay. Lower lr or feature_decay, or "
            f"ask about earlier steps."
        )


Motion = SphereFlow | SphereDescent


def final_rate(schedule: Schedule) -> Tensor:
    """The rate that a schedule ends with, (); NaN if that is not known."""
    return schedule.peak * schedule.shape.final
