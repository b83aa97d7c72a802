r"""How the examples move in their planes: flow in closed form, descent by the shortest way there is  [eq: sphere-step].

A step moves the coordinates (a, b) along and across :math:`\hat v` by

.. math:: a^+ = r a + g\, b^2/q, \qquad b^+ = b\,(r - g\, a/q), \qquad q = a^2 + b^2, \quad r = 1 - \eta\lambda,

with :math:`g = \eta\|v\|/\sqrt q` for plain descent and :math:`g = \eta\|v\|` when gradients are rescaled by
:math:`\|h\|`. Equal steps without decay are a Moebius map if rescaled; plain ones follow the series of
:mod:`~unhinge.theory.sphere.series` if small, and a geometric sequence once the angle is too small to move the norm.
All others are taken one by one, in numpy: in place on small arrays is all there is to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, repeat

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unhinge.theory.numerics import falling, log_abs1p
from unhinge.theory.schedules import Geometric, Piecewise, Schedule
from unhinge.theory.sphere.planes import Planes
from unhinge.theory.sphere.series import (
    SMALL_STEP,
    Array,
    Counts,
    end_factor,
    half_tangent,
    halves,
    small_steps_after,
    turned,
)
from unhinge.theory.types import Time
from unhinge.theory.validation import check_steps, check_times

__all__ = ["Motion", "Position", "SphereDescent", "SphereFlow", "final_rate"]

FAINT = 1e-9  # below this angle its square, 1e-18, is nothing beside 1, and the norm stands still
STRIDE = 256  # steps between two looks at whether a closed form can take over
SERIES_COST = 200  # one evaluation of the series costs about as much as this many steps
LONGEST = 10_000_000  # steps taken one by one in search of an end before giving up
WIDTH = 8192  # examples stepped together: their arrays stay in the cache


@dataclass(frozen=True)
class Position:
    """Where the examples are, shape (*, n) each; cosine and sine keep angles near 0 and pi accurate."""

    cos: Tensor
    sin: Tensor  # signed: negative on the other side of v than at the start
    norm: Tensor

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
    decay: float
    power: int  # nu: 2, or 1 if rescaled

    discrete = False

    def times(self, time: Time) -> Tensor:
        return check_times(time)

    def position(self, moments: Tensor) -> Position:
        clock = self.schedule.integral(moments).detach()[..., None]
        # With decay the angle falls doubly exponentially; what is beyond the largest float has long been zero.
        stretched = (clock * falling(-self.power * self.decay * clock)).clamp(max=1e300)
        kappa = torch.where(self.planes.opposite, 0.0, self.planes.speed(self.power) * stretched)
        first = half_tangent(self.planes.along.numpy(), self.planes.across.numpy())
        cos, sin = turned(first * torch.exp(-kappa).numpy())
        norm = self.planes.norm * torch.exp(-self.decay * clock)
        return Position(torch.from_numpy(cos), torch.from_numpy(sin), norm)

    def final_norm(self) -> Tensor:
        return self.planes.norm if self.decay == 0 else torch.zeros_like(self.planes.norm)

    def exponents(self, lr: float) -> Tensor:
        """Of each example's angle at a constant rate, (n,)."""
        return -lr * self.planes.speed(self.power)


@dataclass(frozen=True)
class SphereDescent:
    r"""Gradient descent. Lengths are counted in each example's own unit, so that no scale over- or underflows."""

    planes: Planes
    schedule: Schedule
    decay: float
    power: int
    latest: dict[bytes, Array] = field(default_factory=dict, repr=False, compare=False)

    discrete = True

    def __post_init__(self) -> None:
        # Squares of coordinates in units of the larger length must not underflow: 1e-100 leaves 1e-200, and room.
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
        highest = self.schedule.peak.item() * self.schedule.shape.highest
        reach = (highest if math.isfinite(highest) else self.schedule(0.0).item()) * self.planes.pull
        return torch.maximum(self.planes.norm, reach if self.power == 1 else reach.sqrt())

    def times(self, time: Time) -> Tensor:
        return check_steps(time)

    def position(self, moments: Tensor) -> Position:
        steps, back = np.unique(moments.numpy(), return_inverse=True)
        a, b = self._walked(steps)[:, back.reshape(-1)]
        norm = np.hypot(a, b)
        parts = (a / norm, b / norm, norm * self.unit.numpy())
        return Position(*(torch.from_numpy(part).reshape(*moments.shape, len(self.unit)) for part in parts))

    def final_norm(self) -> Tensor:
        return torch.from_numpy(self._settled()) * self.unit

    def exponents(self, lr: float) -> Tensor:
        """Of each example's angle at a constant rate, (n,)."""
        return log_abs1p(torch.from_numpy(-self._pull * lr / self._settled() ** self.power))

    @property
    def _pull(self) -> Array:
        """c per unit of learning rate."""
        pull = self.planes.pull / self.unit
        return (pull if self.power == 1 else pull / self.unit).numpy()

    def _settled(self) -> Array:
        """The norms that the constant rate at the end leads to."""
        z = self._walked(np.array([math.ceil(self.schedule.shape.settles)]))[:, 0]
        return _final_norm(z, self._pull * final_rate(self.schedule), self.power)

    def _walked(self, steps: Counts) -> Array:
        """Coordinates after each of the sorted steps, (2, K, n); kept for the next question about the same steps."""
        key = steps.tobytes()
        if key not in self.latest:
            z, pull = (torch.stack([self.planes.along, self.planes.across]) / self.unit).numpy(), self._pull
            parts = [slice(first, first + WIDTH) for first in range(0, len(pull), WIDTH)]
            self.latest.clear()
            self.latest[key] = np.concatenate([self._walk(z[:, part], pull[part], steps) for part in parts], -1)
        return self.latest[key]

    def _walk(self, z: Array, pull: Array, steps: Counts) -> Array:
        positions = np.empty((2, len(steps), len(pull)))
        for first, stop, rate in self._spans():
            inside, over = (steps >= first) & (steps < stop), (steps >= stop).any()
            stops = np.append(steps[inside], int(stop)) if over else steps[inside]
            if rate is None or self.decay > 0:
                reached = self._stepped(z, pull, first, stops)
            elif rate == 0:
                reached = np.repeat(z[:, None], len(stops), 1)
            else:
                reached = (_rescaled_after if self.power == 1 else _plain_after)(z, pull * rate, stops - first)
            positions[:, inside] = reached[:, : inside.sum()]
            if not over:
                break
            z = reached[:, -1]
        return positions

    def _spans(self) -> Iterator[tuple[int, float, float | None]]:
        """(first step, end, rate): with the rate where it is constant over the span, else None."""
        shape = self.schedule.shape
        if math.isinf(shape.settles):
            return iter([(0, math.inf, None)])
        flat = isinstance(shape, Piecewise | Geometric)
        edges = sorted({0, *(math.ceil(at) for at in (shape.breaks if flat else (shape.settles,)))})
        rates = self.schedule(torch.tensor(edges)).tolist() if flat else [None] * len(edges)
        return zip(edges, [*edges[1:], math.inf], [*rates[:-1], final_rate(self.schedule)], strict=True)

    def _stepped(self, z: Array, pull: Array, now: int, stops: Counts) -> Array:
        z, rates, positions = z.copy(), self._rates(now), np.empty((2, len(stops), len(pull)))
        for place, stop in enumerate(stops.tolist()):
            _descend(z, pull, islice(rates, stop - now), self.decay, self.power)
            positions[:, place], now = z, stop
        if (z == 0).all(0).any():
            raise ValueError(
                "the decay takes a feature on the line of its target to zero, where the normalized loss has no "
                "gradient: at once if lr * feature_decay = 1. Choose another lr or feature_decay, or ask earlier."
            )
        return positions

    def _rates(self, first: int) -> Iterator[float]:
        while True:
            yield from self.schedule(torch.arange(first, first + 4096, dtype=torch.float64)).tolist()
            first += 4096


Motion = SphereFlow | SphereDescent


def final_rate(schedule: Schedule) -> float:
    """The rate that a schedule ends with; NaN if that is not known."""
    return schedule.peak.item() * schedule.shape.floor


def _descend(z: Array, pull: Array, rates: Iterable[float], decay: float, power: int) -> None:
    """One step in place for each rate; with `out=`, since for a thousand examples allocations would cost as much."""
    (a, b), (q, t, s) = z, np.empty((3, len(pull)))
    for rate in rates:
        fade = rate * decay
        np.multiply(a, a, out=q)
        np.multiply(b, b, out=t)
        np.add(q, t, out=q)
        np.maximum(q, 1e-200, out=q)  # only a feature that does not turn ever gets there
        if power == 2:
            np.sqrt(q, out=s)
            np.multiply(s, q, out=q)
        np.divide(pull, q, out=s)
        np.multiply(s, rate, out=s)
        np.multiply(t, s, out=t)
        np.multiply(s, a, out=s)
        if fade > 0:
            np.add(s, fade, out=s)
            np.subtract(t, fade * a, out=t)
        np.add(a, t, out=a)
        np.multiply(s, b, out=s)  # b - s b and not (1 - s) b, whose rounding would go the same way at every step
        np.subtract(b, s, out=b)


def _powers(rho: Array, share: Array, counts: Counts) -> Array:
    r""":math:`\rho^k` for each count, :math:`\rho` = 1 - `share`, by the logarithm of whichever is smaller."""
    k = counts[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.where(share < 0.5, np.log1p(-np.minimum(share, 0.5)), np.log(np.abs(rho)))
        size = np.where(k == 0, 1.0, np.exp(k * log))
    return np.where((k % 2 == 1) & (rho < 0), -size, size)


# ---- equal steps without decay, c = rate * pull ----------------------------------------------------------------------


def _moebius_norm(z: Array, c: Array) -> tuple[Array, Array]:
    r"""Final norm :math:`n_\infty = \frac12(c + d)` and spread :math:`d = \sqrt{(c-2a)^2 + 4b^2}`."""
    spread = np.hypot(c - 2 * z[0], 2 * z[1])
    return (c + spread) / 2, spread


def _rescaled_after(z: Array, c: Array, counts: Counts) -> Array:
    r"""Coordinates after each number of rescaled steps, (2, K, n)  [eq: moebius].

    With :math:`I = \|h\|^2 - ca` conserved, :math:`\rho = I/n_\infty^2 = 1 - c/n_\infty` and
    :math:`E_0 = (n_\infty - a)/b = b/(a + \rho n_\infty)`:

    .. math:: a_k = n_\infty \frac{1 - \rho E_k^2}{1 + E_k^2}, \qquad b_k = d \frac{E_k}{1 + E_k^2}, \qquad
              E_k = E_0 \rho^k.
    """
    a, b = z
    final, spread = _moebius_norm(z, c)
    share = c / final
    rho = np.where(share < 0.5, 1 - share, (b * b + a * (a - c)) / final**2)  # whichever rounds less
    first = half_tangent(2 * a - c, 2 * b)  # E_0: half the angle at the fixed center (c/2, 0)
    cos, sin = halves(first * _powers(rho, share, counts))
    still = (counts[:, None] == 0) | (b == 0)  # the start itself, and the line of v, without rounding
    return np.where(still, z[:, None], np.stack([final * (cos**2 - rho * sin**2), spread * cos * sin]))


def _faint_after(z: Array, c: Array, counts: Counts) -> Array:
    """Plain steps once the angles are so small that norms stand still."""
    a, b = z
    share = np.where(b == 0, 0.0, c / np.maximum(a * a, 1e-200))
    powers = _powers(1 - share, share, counts)
    return np.stack([np.broadcast_to(a, powers.shape), b * powers])


def _ready(z: Array, c: Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which examples the series describes, and which are faint."""
    a, b = z
    alpha = c / np.maximum(a * a + b * b, 1e-200)
    faint = (b == 0) | ((np.abs(b) <= FAINT * a) & (alpha < 2))
    return (alpha <= SMALL_STEP) & ~faint, faint


def _plain_after(z: Array, c: Array, counts: Counts) -> Array:
    """Coordinates after each of the sorted numbers of plain steps, (2, K, n).

    Steps are taken one by one as long as some example's step is large, or many of the steps are asked for anyway.
    """
    z, now, look = z.copy(), 0, 0
    positions = np.empty((2, len(counts), len(c)))
    for place, count in enumerate(counts.tolist()):
        while now < count:
            if now == look:
                small, faint = _ready(z, c)
                worth = faint.all() or (len(counts) - place) * SERIES_COST < counts[-1] - now
                if worth and (small | faint).all():
                    for rule, which in ((_faint_after, faint), (small_steps_after, small)):
                        positions[:, place:, which] = rule(z[:, which], c[which], counts[place:] - now)
                    return positions
                z[1, faint & (np.abs(z[1]) < 1e-290)] = 0.0  # subnormal numbers would slow every later step
                look += STRIDE
            stop = min(count, look)
            _descend(z, c, repeat(1.0, stop - now), 0.0, 2)
            now = stop
        positions[:, place] = z
    return positions


def _final_norm(z: Array, c: Array, power: int) -> Array:
    """The norm that these steps lead to."""
    if power == 1:
        return np.where(z[1] == 0, np.abs(z[0]), _moebius_norm(z, c)[0])
    z = z.copy()
    for _ in range(0, LONGEST, STRIDE):
        small, faint = _ready(z, c)
        if (small | faint).all():
            norm = np.hypot(*z)
            norm[small] *= end_factor(z[:, small], c[small])
            return norm
        _descend(z, c, repeat(1.0, STRIDE), 0.0, 2)
    slow = int((~(small | faint)).argmax())
    raise ValueError(
        f"an angle is still {math.atan2(abs(z[1, slow]), z[0, slow]):.3g} after {LONGEST} steps: it contracts by "
        f"{abs(1 - c[slow] / (z[:, slow] ** 2).sum()):.9g} per step. Ask at() for a late step instead."
    )
