r"""How the examples move in their planes: flow in closed form, descent by the shortest way there is  [eq: sphere-step].

A step moves the coordinates (a, b) along and across :math:`\hat v` by

.. math:: a^+ = r a + g\, b^2/q, \qquad b^+ = b\,(r - g\, a/q), \qquad q = a^2 + b^2, \quad r = 1 - \eta\lambda,

with :math:`g = \eta\|v\|/\sqrt q` for plain descent and :math:`g = \eta\|v\|` when gradients are rescaled by
:math:`\|h\|`. Equal steps without decay are a Moebius map if rescaled; plain ones follow the series of
:mod:`~unhinge.theory.sphere.series` if small, and a geometric sequence once the angle is too small to move the norm.
All others are taken one by one: in place, in numpy, unless a gradient is asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unhinge.theory.keeping import kept, tensors_in
from unhinge.theory.numerics import HUGE, falling, log_abs1p
from unhinge.theory.schedules import Schedule, constant, flat_edges, needs_gradient
from unhinge.theory.sphere.planes import Planes
from unhinge.theory.sphere.series import SMALL_STEP, end_factor, half_tangent, halves, small_steps_after, turned
from unhinge.theory.types import Time
from unhinge.theory.validation import check_steps, check_times

__all__ = ["WIDTH", "Motion", "Position", "SphereDescent", "SphereFlow", "final_rate"]

FAINT = 1e-9  # below this angle its square, 1e-18, is nothing beside 1, and the norm stands still
DIM = 3e-5  # below this one its fourth power, 1e-18, is nothing
STRIDE = 256  # steps between two looks at whether a closed form can take over
LONGEST = 10_000_000  # steps taken one by one in search of an end before giving up
KEPT = 2**24  # bytes of steps that a path remembers: a hundred examples for ten thousand steps
STONES = 512  # places on a walk at a changing rate that it remembers
RATES_AT_ONCE = 4096  # rates of a schedule asked for together: one call of it for many steps
# Squares of coordinates in units of the larger length must not underflow: 1e-100 leaves 1e-200, and room.
LEAST_LENGTH = 1e-100
LEAST_SQUARE = 1e-200
WIDTH = 8192  # examples stepped together: their arrays stay in the cache
FARTHEST = 690.0  # exp of it is finite, and exp of minus exp of it zero

Array = npt.NDArray[np.float64]


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
    trails: dict[int, _Trail] = field(default_factory=dict, init=False, repr=False, compare=False)  # by the first step
    stones: dict[int, _Stones] = field(default_factory=dict, init=False, repr=False, compare=False)  # likewise

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
        """Position after 0 to `width` steps, then after `width` to twice as many, and so on: each step taken once."""
        z, now = torch.stack([self.planes.along, self.planes.across]) / self.unit, 0
        while True:
            reached = self._stepped(z, self._pull, now, torch.arange(now, now + width + 1))
            yield self._placed(reached, torch.Size([width + 1]))
            z, now = reached[:, -1], now + width

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
        return _final_norm(z, c, self.power, self._trail(first, z, c))

    @property
    def _carries_gradients(self) -> bool:
        known = tensors_in((self.planes, self.decay, self.schedule))
        return any(tensor.requires_grad for tensor in known) or needs_gradient(self.schedule.shape)

    def _trail(self, first: int, z: Tensor, c: Tensor) -> _Trail | None:
        """The plain steps from `first` on, at a constant rate, of which each is taken once; None where numpy cannot."""
        if self.power == 1 or len(c) > WIDTH or self._carries_gradients:
            return None
        return self.trails.setdefault(first, _Trail(z, c))

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
                stones = self.stones.setdefault(first, _Stones()) if whole and not self._carries_gradients else None
                reached = self._stepped(z, pull, first, stops, stones)
            elif rate.item() == 0 and not (slope and rate.requires_grad):
                reached = z[:, None].expand(-1, len(stops), -1)
            elif self.power == 1:
                reached = _rescaled_after(z, pull * rate, stops - first)
            else:
                trail = self._trail(first, z, pull * rate) if whole else None
                reached = _plain_after(z, pull * rate, stops - first, trail)
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

    def _stepped(self, z: Tensor, pull: Tensor, now: int, stops: Tensor, stones: _Stones | None = None) -> Tensor:
        reached, rates, known, marks = [], torch.zeros(0), range(0), stops.tolist()
        for stop in marks:
            if stones is not None and (stone := stones.before(stop)) is not None and stone[0] > now:
                now, z = stone
            while now < stop:
                if now not in known:
                    known = range(now, min(now + RATES_AT_ONCE, marks[-1]))
                    rates = self.schedule(torch.arange(known.start, known.stop, dtype=torch.float64))
                until = min(stop, known.stop, now + STRIDE - now % STRIDE)
                z = _descended(z, pull, rates[now - known.start : until - known.start], self.decay, self.power)
                now = until
                if stones is not None and now % STRIDE == 0:
                    stones.add(now, z)
            reached.append(z)
        if (z == 0).all(0).any():
            raise ValueError(
                "the decay takes a feature on the line of its target to zero, where the normalized loss has no "
                "gradient: at once if lr * feature_decay = 1. Choose another lr or feature_decay, or ask earlier."
            )
        if not torch.isfinite(z.detach()).all():
            raise self._too_far()
        return torch.stack(reached, 1) if reached else z[:, None][:, :0]

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


def _descended(z: Tensor, pull: Tensor, rates: Tensor, decay: Tensor, power: int) -> Tensor:
    """The coordinates after one step for each rate."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (z, pull, rates, decay)):
        for rate in rates.unbind():
            z = _step(z, pull, rate, decay, power)
        return z
    z = z.detach().clone()
    with np.errstate(over="ignore", invalid="ignore"):  # features that are thrown out of range are refused afterwards
        _descend(z.numpy(), pull.detach().numpy(), rates.tolist(), decay.item(), power)
    return z


def _step(z: Tensor, pull: Tensor, rate: Tensor, decay: Tensor, power: int) -> Tensor:
    """One step as a new value, for autograd; the operations of `_descend`, one for one."""
    a, b = z
    fade = rate * decay
    q = (a * a + b * b).clamp(min=LEAST_SQUARE)
    if power == 2:
        q = q.sqrt() * q
    strength = pull / q * rate
    along = a + (strength * b * b - fade * a)
    across = b - (strength * a * b + fade * b)
    return torch.stack([along, across])


def _descend(
    z: Array, pull: Array, rates: Iterable[float], decay: float, power: int, every: Array | None = None
) -> None:
    """One step for each rate, in place, or with the coordinates after every step in `every` (m, 2, n).

    Both coordinates at once and with `out=`: of a hundred examples calls cost most, of a thousand allocations would.
    """
    both, (q, t) = np.stack([pull, -pull]), np.empty((2, len(pull)))
    turn, square = np.empty_like(z), np.empty_like(z)
    # Only a feature that does not turn is ever so short; without decay no norm falls.
    short = decay > 0 or bool((np.square(z).sum(0) < LEAST_SQUARE).any())
    now = z
    for rate, after in zip(rates, repeat(z) if every is None else every):  # noqa: B905  # the rows may be endless
        np.multiply(now, now, out=square)
        np.add(square[0], square[1], out=q)
        if short:
            np.maximum(q, LEAST_SQUARE, out=q)
        if power == 2:
            np.sqrt(q, out=t)
            np.multiply(t, q, out=q)
        np.divide(both, q, out=turn)
        if rate != 1:
            np.multiply(turn, rate, out=turn)
        np.multiply(turn, now[::-1], out=turn)
        np.multiply(turn, now[1], out=turn)
        if decay > 0:
            np.multiply(now, rate * decay, out=square)
            np.subtract(turn, square, out=turn)
        np.add(now, turn, out=after)  # b - s b and not (1 - s) b, whose rounding would go the same way at every step
        now = after


def _powers(rho: Tensor, share: Tensor, counts: Tensor) -> Tensor:
    r""":math:`\rho^k` for each count, :math:`\rho` = 1 - `share`: by the logarithm where that is near 1."""
    k, near = counts[:, None], share < 0.5
    by_log = torch.exp(k * torch.log1p(-torch.where(near, share, 0.0)))
    return torch.where(near, by_log, torch.where(near, 0.0, rho) ** k)


# ---- equal steps without decay, c = rate * pull ----------------------------------------------------------------------


def _moebius_norm(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    r"""Final norm :math:`n_\infty = \frac12(c + d)` and spread :math:`d = \sqrt{(c-2a)^2 + 4b^2}`."""
    spread = torch.hypot(c - 2 * a, 2 * b)
    return (c + spread) / 2, spread


def _rescaled_after(z: Tensor, c: Tensor, counts: Tensor) -> Tensor:
    r"""Coordinates after each number of rescaled steps, (2, K, n)  [eq: moebius].

    With :math:`I = \|h\|^2 - ca` conserved, :math:`\rho = I/n_\infty^2 = 1 - c/n_\infty` and
    :math:`E_0 = (n_\infty - a)/b = b/(a + \rho n_\infty)`:

    .. math:: a_k = n_\infty \frac{1 - \rho E_k^2}{1 + E_k^2}, \qquad b_k = d \frac{E_k}{1 + E_k^2}, \qquad
              E_k = E_0 \rho^k.
    """
    # The start itself, and the line of v, without rounding: the formula is 0/0 there, and not used.
    a, b = z[0], torch.where(z[1] == 0, 1.0, z[1])
    still = (counts[:, None] == 0) | (z[1] == 0)
    final, spread = _moebius_norm(a, b, c)
    share = c / final
    rho = torch.where(share < 0.5, 1 - share, (b * b + a * (a - c)) / final**2)  # whichever rounds less
    first = half_tangent(2 * a - c, 2 * b)  # E_0: half the angle at the fixed center (c/2, 0)
    cos, sin = halves(first * _powers(rho, share, counts))
    return torch.where(still, z[:, None], torch.stack([final * (cos**2 - rho * sin**2), spread * cos * sin]))


def _faint_after(z: Tensor, c: Tensor, counts: Tensor) -> Tensor:
    r"""Plain steps once the fourth power of the angle is nothing beside 1  [eq: sphere-faint].

    With :math:`\varepsilon = c/\|h_\infty\|^2`, :math:`\rho = 1 - \varepsilon` and
    :math:`g_k = \theta_0^2 (1 - \rho^{2k})/(2 - \varepsilon)`

    .. math:: a_k = a_0\,(1 + g_k), \qquad
              b_k = b_0\,\rho^k \Big(1 + \frac{2 - 3\varepsilon}{2(1 - \varepsilon)(2 - \varepsilon)}\, g_k\Big).
    """
    a, b = z
    q = (a * a).clamp(min=LEAST_SQUARE)
    still = b.abs() <= FAINT * a.abs()  # where even the square of the angle is nothing, and alpha may be up to 2
    angle = torch.where(still, 0.0, b * b / q)
    share = torch.where(b == 0, 0.0, c / q)
    share = share / ((1 + angle) * (1 + share / (2 - torch.where(still, 0.0, share)) * angle))
    powers = _powers(1 - share, share, counts)
    safe = torch.where(still, 0.0, share)
    gone = angle / (2 - safe) * (1 - powers * powers)
    return torch.stack([a * (1 + gone), b * powers * (1 + (2 - 3 * safe) / (2 * (1 - safe) * (2 - safe)) * gone)])


@torch.no_grad()
def _ready(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Which examples the series describes, and which are faint."""
    a, b = z
    alpha, angle = c / (a * a + b * b).clamp(min=LEAST_SQUARE), b.abs()
    faint = (b == 0) | ((angle <= FAINT * a) & (alpha < 2)) | ((angle <= DIM * a) & (alpha <= 0.5))
    return (alpha <= SMALL_STEP) & ~faint, faint


class _Trail:
    """Coordinates after every plain step from a start, as far as somebody has walked, so that nobody walks them again.

    In blocks of `STRIDE` steps, and no more of them than fit into `KEPT` bytes. A step is the same number whoever takes
    it, so that no answer depends on what was asked before. Two threads that walk at once append equal blocks.
    """

    def __init__(self, z: Tensor, c: Tensor) -> None:
        self.start, self.pull = z.detach().numpy(), c.detach().numpy()
        self.blocks: tuple[Array, ...] = ()  # (STRIDE, 2, n): after each step
        self.looks: dict[int, tuple[int, int]] = {}

    def walk(self, place: int) -> Array | None:
        """Coordinates after each step of a block; None where there is no room for them."""
        while place >= len(known := self.blocks):
            if (len(known) + 1) * STRIDE * self.start.nbytes > KEPT:
                return None
            block = np.empty((STRIDE, *self.start.shape))
            with np.errstate(over="ignore", invalid="ignore"):  # as in _descended
                start = _unslowed(known[-1][-1] if known else self.start, self.pull)
                _descend(start, self.pull, repeat(1.0, STRIDE), 0.0, 2, block)
            self.blocks = (*known, block)
        return known[place]

    def ready(self, place: int, z: Tensor, c: Tensor) -> tuple[int, int]:
        """How many examples are small, and how many are faint, at the coordinates at which a block starts."""
        if place not in self.looks:
            small, faint = _ready(z, c)
            self.looks[place] = int(small.sum()), int(faint.sum())
        return self.looks[place]


class _Stones:
    """Where a walk at a changing rate was after some of its steps, so that the next question goes on from there.

    Every `apart` steps, which doubles when `STONES` of them, or `KEPT` bytes, are full. As in `_Trail`, a step is the
    same number whoever takes it; a thread that adds at the same time as another may lose a stone, and walks instead.
    """

    def __init__(self) -> None:
        self.apart = STRIDE
        self.known: tuple[tuple[int, Tensor], ...] = ()

    def before(self, step: int) -> tuple[int, Tensor] | None:
        """The last stone that is not behind this step."""
        known = self.known
        place = bisect_right(known, step, key=itemgetter(0))
        return known[place - 1] if place else None

    def add(self, step: int, z: Tensor) -> None:
        """Remember the coordinates after a step, if there is a place for a stone."""
        known = self.known
        if step % self.apart or (known and step <= known[-1][0]):
            return
        room = min(STONES, KEPT / (z.numel() * z.element_size()))
        if len(known) >= room:
            self.apart *= 2
            known = tuple(stone for stone in known if stone[0] % self.apart == 0)
        self.known = (*known, (step, z)) if step % self.apart == 0 and len(known) < room else known


def _unslowed(z: Array, c: Array) -> Array:
    """The same coordinates, with zero for numbers below 2e-308: such subnormal ones slow every step down."""
    tiny = (np.abs(z[1]) < 1e-290) & (z[0] > 0) & (c < 2 * np.square(z[0]))
    return np.stack([z[0], np.where(tiny, 0.0, z[1])]) if tiny.any() else z


def _plain_after(z: Tensor, c: Tensor, counts: Tensor, trail: _Trail | None = None) -> Tensor:
    """Coordinates after each of the sorted numbers of plain steps, (2, K, n).

    Steps are taken one by one for the examples whose step is large, and if many of the steps are asked for anyway.
    """
    positions = z.new_empty(2, len(counts), len(c))
    now, place = 0, int((counts == 0).sum())
    positions[:, :place] = z[:, None]
    while trail is not None and place < len(counts):  # of which all examples take part
        later, block = counts[place:] - now, now // STRIDE
        ready = trail.ready(block, z, c)
        closed = sum(ready) == len(c) and _series_pays(len(later), int(later[-1]), len(c), *ready)
        if ready[1] == len(c) or closed or (known := trail.walk(block)) is None:
            break
        stops = later[later <= STRIDE].numpy()
        positions[:, place : place + len(stops)] = torch.from_numpy(known[stops - 1]).transpose(0, 1)
        now, place, z = now + STRIDE, place + len(stops), torch.from_numpy(known[-1])
    left = torch.arange(len(c))
    while place < len(counts):
        later = counts[place:] - now
        small, faint = _ready(z, c)
        if faint.all() or _series_pays(len(later), int(later[-1]), len(c), int(small.sum()), int(faint.sum())):
            for rule, which in ((_faint_after, faint), (small_steps_after, small)):
                if which.any():
                    positions[:, place:, left[which]] = rule(z[:, which], c[which], later)
            rest = ~(small | faint)
            z, c, left = z[:, rest], c[rest], left[rest]
            if len(left) == 0:
                return positions
        inside = int((later <= STRIDE).sum())
        walked = _walked(z, c, later[:inside].tolist() + [STRIDE] * (inside < len(later)))
        positions[:, place : place + inside, left] = walked[:, :inside]
        now, place, z = now + STRIDE, place + inside, walked[:, -1]
    return positions


def _walked(z: Tensor, c: Tensor, stops: list[int]) -> Tensor:
    """Coordinates after each of the sorted numbers of plain steps, (2, K, n), one step after the other."""
    lengths = [stop - before for before, stop in pairwise([0, *stops])]
    if torch.is_grad_enabled() and (z.requires_grad or c.requires_grad):
        still, reached = torch.zeros((), dtype=torch.float64), []
        for length in lengths:
            z = _descended(z, c, torch.ones(length, dtype=torch.float64), still, 2)
            reached.append(z)
        return torch.stack(reached, 1)
    pull = c.detach().numpy()
    moving = np.array(_unslowed(z.detach().numpy(), pull))
    walked = np.empty((2, len(lengths), len(pull)))
    with np.errstate(over="ignore", invalid="ignore"):  # as in _descended
        for place, length in enumerate(lengths):
            _descend(moving, pull, repeat(1.0, length), 0.0, 2)
            walked[:, place] = moving
    return torch.from_numpy(walked)


def _series_pays(stops: int, steps: int, examples: int, small: int, faint: int) -> bool:
    """Whether closed forms for the small and the faint are cheaper than to let them walk with the rest.

    By measured times in microseconds, of which only the ratio counts: a step of few examples is mostly calls, so that
    nothing is saved while any others walk.
    """
    rest = examples - small - faint
    saved = (5 + examples / 260) - (5 + rest / 260 if rest else 0)
    return stops * (10 + 0.55 * small) < steps * saved


def _dim_factor(z: Tensor, c: Tensor) -> Tensor:
    r"""How many times longer a faint feature will be in the end.

    A step multiplies the angle by :math:`1 - \alpha` and the square of the norm by :math:`1 + \alpha^2\theta^2`, both
    but for :math:`\theta^2`: together :math:`1 + \alpha\theta^2/(2 - \alpha)`, but for :math:`\theta^4`.
    """
    a, b = z
    still = b.abs() <= FAINT * a.abs()  # alpha may be up to 2, and the square of the angle is nothing
    alpha = torch.where(still, 0.0, c / (a * a + b * b).clamp(min=LEAST_SQUARE))
    return torch.sqrt(1 + alpha / (2 - alpha) * torch.where(still, 0.0, b / a) ** 2)


def _final_norm(z: Tensor, c: Tensor, power: int, trail: _Trail | None = None) -> Tensor:
    """The norm that these steps lead to."""
    if power == 1:
        straight = z[1] == 0
        return torch.where(straight, z[0].abs(), _moebius_norm(z[0], torch.where(straight, 1.0, z[1]), c)[0])
    ones, still = torch.ones(STRIDE, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    norms, left = torch.empty_like(c), torch.arange(len(c))
    for block in range(LONGEST // STRIDE):
        small, faint = _ready(z, c)
        for rule, which in ((end_factor, small), (_dim_factor, faint)):
            if which.any():
                norms[left[which]] = torch.hypot(*z[:, which]) * rule(z[:, which], c[which])
        rest = ~(small | faint)
        z, c, left = z[:, rest], c[rest], left[rest]  # the others have left the walk
        if len(left) == 0:
            return norms
        known = None if trail is None else trail.walk(block)
        z = _descended(z, c, ones, still, 2) if known is None else torch.from_numpy(known[-1])[:, left]
    slow, (a, b) = 0, z[:, 0].tolist()
    raise ValueError(
        f"an angle is still {math.atan2(abs(b), a):.3g} after {LONGEST} steps: it contracts by "
        f"{abs(1 - c[slow].item() / (a * a + b * b)):.9g} per step. Ask at() for a late step instead."
    )
