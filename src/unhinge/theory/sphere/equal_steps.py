r"""Many equal steps without decay at once: a Moebius map, a series, a geometric sequence, or a walk that is remembered.

With c = rate * pull. Rescaled steps are a Moebius map  [eq: moebius]. Plain ones follow the series of
:mod:`~unhinge.theory.sphere.series` if they are small, and a geometric sequence once the angle is too small to move the
norm  [eq: sphere-faint]; before that they are taken one by one, each of them once.
"""

from __future__ import annotations

import math
from itertools import pairwise, repeat

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.sphere.series import SMALL_STEP, end_factor, half_tangent, halves, small_steps_after
from unhinge.theory.sphere.steps import KEPT, LEAST_SQUARE, STRIDE, Array, descend, descended

__all__ = ["Trail", "final_norm", "plain_after", "rescaled_after"]

FAINT = 1e-9  # below this angle its square, 1e-18, is nothing beside 1, and the norm stands still
DIM = 3e-5  # below this one its fourth power, 1e-18, is nothing
LONGEST = 10_000_000  # steps taken one by one in search of an end before giving up


def _powers(rho: Tensor, share: Tensor, counts: Tensor) -> Tensor:
    r""":math:`\rho^k` for each count, :math:`\rho` = 1 - `share`: by the logarithm where that is near 1."""
    k, near = counts[:, None], share < 0.5
    by_log = torch.exp(k * torch.log1p(-torch.where(near, share, 0.0)))
    return torch.where(near, by_log, torch.where(near, 0.0, rho) ** k)


def _moebius_norm(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    r"""Final norm :math:`n_\infty = \frac12(c + d)` and spread :math:`d = \sqrt{(c-2a)^2 + 4b^2}`."""
    spread = torch.hypot(c - 2 * a, 2 * b)
    return (c + spread) / 2, spread


def rescaled_after(z: Tensor, c: Tensor, counts: Tensor) -> Tensor:
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


class Trail:
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
            with np.errstate(over="ignore", invalid="ignore"):  # as in descended
                start = _unslowed(known[-1][-1] if known else self.start, self.pull)
                descend(start, self.pull, repeat(1.0, STRIDE), 0.0, 2, block)
            self.blocks = (*known, block)
        return known[place]

    def ready(self, place: int, z: Tensor, c: Tensor) -> tuple[int, int]:
        """How many examples are small, and how many are faint, at the coordinates at which a block starts."""
        if place not in self.looks:
            small, faint = _ready(z, c)
            self.looks[place] = int(small.sum()), int(faint.sum())
        return self.looks[place]


def _unslowed(z: Array, c: Array) -> Array:
    """The same coordinates, with zero for numbers below 2e-308: such subnormal ones slow every step down."""
    tiny = (np.abs(z[1]) < 1e-290) & (z[0] > 0) & (c < 2 * np.square(z[0]))
    return np.stack([z[0], np.where(tiny, 0.0, z[1])]) if tiny.any() else z


def plain_after(z: Tensor, c: Tensor, counts: Tensor, trail: Trail | None = None) -> Tensor:
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
            z = descended(z, c, torch.ones(length, dtype=torch.float64), still, 2)
            reached.append(z)
        return torch.stack(reached, 1)
    pull = c.detach().numpy()
    moving = np.array(_unslowed(z.detach().numpy(), pull))
    walked = np.empty((2, len(lengths), len(pull)))
    with np.errstate(over="ignore", invalid="ignore"):  # as in descended
        for place, length in enumerate(lengths):
            descend(moving, pull, repeat(1.0, length), 0.0, 2)
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


def final_norm(z: Tensor, c: Tensor, power: int, trail: Trail | None = None) -> Tensor:
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
        z = descended(z, c, ones, still, 2) if known is None else torch.from_numpy(known[-1])[:, left]
    slow, (a, b) = 0, z[:, 0].tolist()
    raise ValueError(
        f"an angle is still {math.atan2(abs(b), a):.3g} after {LONGEST} steps: it contracts by "
        f"{abs(1 - c[slow].item() / (a * a + b * b)):.9g} per step. Ask at() for a late step instead."
    )
