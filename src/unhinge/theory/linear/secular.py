r"""Roots of the secular equation :math:`1 + \varrho \sum_t m_t \beta_t / (\beta_t - \tau) = 0`  [eq: secular].

This is the characteristic equation of :math:`\mathrm{diag}(\beta) + \varrho\, \sqrt\beta \sqrt\beta^\top` with
multiplicities :math:`m_t`: the squared singular values of an imbalanced problem. A dense SVD finds them to an
*absolute* error; here each root is found as an offset from its nearest pole, so that the distances of a root to all
poles and to all other roots keep full *relative* accuracy. Differences of exponents are what long times magnify.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from decimal import Decimal, localcontext

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unhinge.theory.numerics import TINY

__all__ = ["ROOM", "SecularRoots", "exact_root", "in_blocks", "solve_secular"]

EXACT_DIGITS = 60
ROOM = 1 << 16  # distances held at once: half a megabyte, so that the operations on them stay in the cache


@dataclass(frozen=True)
class SecularRoots:
    r"""The roots :math:`\tau_k` through their distances :math:`D_{kt} = \beta_t - \tau_k` to the poles.

    A root is kept as an `anchor` (its nearest pole, or zero) and an `offset` from it, so that
    :math:`D_{kt} = (\beta_t - \text{anchor}_k) - \text{offset}_k` has full relative accuracy. That is two numbers a
    root; the T-by-T distances themselves are made where they are needed, a few rows at a time.
    """

    beta: Tensor  # (T,), the poles, descending
    anchor: Tensor  # (T,)
    offset: Tensor  # (T,)
    origin: Tensor  # (T,) int64, the pole next to each root
    at_origin: Tensor  # (T,), varrho / D there by the equation itself: regular at varrho = 0
    regular: Tensor  # (T,) bool, whether to use it
    rho: Tensor  # ()
    above: bool  # whether each root lies above its own pole (varrho > 0)

    @property
    def tau(self) -> Tensor:
        """The roots, (T,) descending."""
        return self.anchor + self.offset

    def distance(self, root: Tensor | int | slice, pole: Tensor | int | slice) -> Tensor:
        """D of these roots and these poles, of the same shape or one of them single."""
        return (self.beta[pole] - self.anchor[root]) - self.offset[root]

    def pull(self, part: slice) -> Tensor:
        """varrho / D of some roots and all poles, (B, T), finite even where both vanish."""
        distance = (self.beta - self.anchor[part, None]) - self.offset[part, None]
        plain = self.rho / torch.where(distance == 0, 1.0, distance)
        at_origin = torch.arange(len(self.beta)) == self.origin[part, None]
        return torch.where(at_origin & self.regular[part, None], self.at_origin[part, None], plain)

    def difference(self, root: int) -> Tensor:
        r""":math:`\tau_r - \tau_k` for all k, as a sum of two terms of one sign through a pole that lies between
        [eq: gaps]."""
        size = len(self.beta)
        k = torch.arange(size)
        pole = torch.where(k > root, root, root - 1) if self.above else torch.where(k > root, root + 1, root)
        pole = pole.clamp(0, size - 1)
        gaps = self.distance(k, pole) - self.distance(root, pole)
        return torch.where(k == root, 0.0, gaps)


def in_blocks(size: int) -> Iterator[slice]:
    """All of `size` rows of length `size`, as many at a time as there is room for."""
    step = max(1, ROOM // size)
    return (slice(first, min(first + step, size)) for first in range(0, size, step))


def solve_secular(beta: Tensor, multiplicity: Tensor, rho: Tensor, nu: Tensor) -> SecularRoots:
    r"""All roots, differentiable in `rho` and `nu`; O(T) memory and a handful of passes over the T^2 distances.

    Arguments:
        beta: Distinct poles :math:`\beta_t > 0`, descending, largest 1, shape :math:`(T,)`.
        multiplicity: :math:`m_t`, shape :math:`(T,)`.
        rho: :math:`\varrho = (\nu^2 - 1) / C`.
        nu: :math:`\nu \ge -1`; the value of the left side at :math:`\tau = 0` is :math:`\nu^2`.
    """
    size = len(beta)
    above = bool(rho > 0)
    own = torch.arange(size)
    mass = multiplicity * beta
    if size == 1:  # balanced: the equation is linear
        everywhere = torch.ones(1, dtype=torch.bool)
        return SecularRoots(beta, beta, rho * mass, own, -1 / mass, everywhere, rho, above)
    other = own - 1 if above else own + 1
    edge = torch.cat([(beta[0] + rho.detach() * mass.sum())[None], beta, beta.new_zeros(1)])
    width = (edge[other + 1] - beta).abs()  # to the other end of the interval that holds the root
    side = 1.0 if above else -1.0
    poles = _Poles(beta, mass)

    with torch.no_grad():
        first, second = poles.sums(beta, side * width / 2, own)
        near_own = 1 + rho * (first - side * mass / (width / 2)) >= 0  # the left side in the middle of the interval
    from_zero = ~near_own & (other == size)  # the last root, nearer to 0 than to its pole
    from_bound = ~near_own & (other == -1)  # the first root has no pole above: keep its own
    origin = torch.where(near_own | from_zero | from_bound, own, other.clamp(0, size - 1))
    anchor = torch.where(from_zero, 0.0, beta[origin])
    resting = (rho == 0) | (from_zero & (nu == 0))  # on the pole, or at zero

    def at_zero(x: Tensor) -> tuple[Tensor, Tensor]:
        """For the last root: measured from 0, where the left side is nu^2; value and slope."""
        away = beta - x
        return nu**2 + rho * x * (multiplicity / away).sum(), rho * (mass / away / away).sum()

    with torch.no_grad():
        direction = torch.where(near_own | from_bound, side, -side)
        search = _Search(
            own=rho * mass[origin] * direction,
            direction=direction,
            far=torch.where(other == (-1 if above else size), torch.inf, width),
            low=torch.zeros_like(beta),
            high=torch.where(from_bound, 2.0, 0.75) * width,  # past the middle, short of the pole beyond
        )
        # the first step needs no sums of its own: those in the middle, with the other pole's term in place of the own
        swap = torch.where(origin == own, 0.0, -mass * 2 / (side * width) - mass[origin] * 2 / (side * width))
        squares = torch.where(origin == own, 0.0, (mass - mass[origin]) * 4 / width**2)
        rest, slope = 1 + rho * (first + swap), direction * rho * (second + squares)
        guess = search.step(own, width / 2, rest, slope)
        chosen = (~resting & ~from_zero).nonzero().flatten()
        offset, others = torch.zeros_like(beta), first.clone()
        z, others[chosen] = _between_poles(
            poles, rho, search.only(chosen), anchor[chosen], origin[chosen], guess[chosen]
        )
        offset[chosen] = direction[chosen] * z
        last = (~resting & from_zero).nonzero().flatten()
        if len(last):
            offset[last] = _bracketed_newton(at_zero, 0.75 * width[last])
    if rho.requires_grad or nu.requires_grad:
        for _ in range(2):  # converged, so each step of Newton's method adds one order of exact derivatives
            first, second = poles.sums(anchor, offset, origin)
            value, slope = offset * (1 + rho * first) - rho * mass[origin], 1 + rho * (first + offset * second)
            step = value / slope
            if len(last):
                value, slope = at_zero(offset[last])
                step = step.index_put((last,), value / slope)
            # one resting at zero moves with nu: nothing divides by the slope of nu^2 there
            offset = offset - torch.where(from_zero & (nu == 0), 0.0, step)

    if offset.requires_grad or bool((resting | from_zero).any()):
        others = poles.sums(anchor, offset, origin)[0]
    at_origin = -(1 + rho * others) / mass[origin]
    regular = ~from_zero & ((rho * others).abs() < 0.1)
    return SecularRoots(beta, anchor, offset, origin, at_origin, regular, rho, above)


@dataclass(frozen=True)
class _Poles:
    """Sums over all poles, for many roots at once and in blocks."""

    beta: Tensor  # (T,)
    mass: Tensor  # (T,)

    def sums(self, anchor: Tensor, offset: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        r""":math:`\sum_t m_t\beta_t / D_t` and :math:`\sum_t m_t\beta_t / D_t^2` without the pole `origin`, one pair
        for each root."""
        rows = max(1, ROOM // len(self.beta))
        parts = [slice(start, start + rows) for start in range(0, len(anchor), rows)]
        if offset.requires_grad and torch.is_grad_enabled():
            large = len(anchor) * len(self.beta) > 16 * ROOM  # all T^2 numbers would be kept: make them again instead
            blocks = [(anchor[part], offset[part], origin[part]) for part in parts]
            pairs = [
                checkpoint(self._block, *block, use_reentrant=False) if large else self._block(*block)
                for block in blocks
            ]
            return torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])
        first, second = torch.empty_like(anchor), torch.empty_like(anchor)
        buffer, other = self.beta.new_empty(2, rows, len(self.beta))
        for part in parts:
            anchors = anchor[part]
            away = torch.sub(self.beta, anchors[:, None], out=buffer[: len(anchors)])
            away.sub_(offset[part, None])
            away[torch.arange(len(anchors)), origin[part]] = torch.inf
            # the mass first: it is no larger than the distance, whose square may be too small for any float
            terms = torch.mul(away.reciprocal_(), self.mass, out=other[: len(anchors)])
            torch.sum(terms, 1, out=first[part])
            torch.linalg.vecdot(terms, away, out=second[part])
        return first, second

    def _block(self, anchor: Tensor, offset: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        away = (self.beta - anchor[:, None]) - offset[:, None]
        skipped = torch.arange(len(self.beta)) == origin[:, None]
        inverse = torch.where(skipped, torch.inf, away).reciprocal()
        terms = inverse * self.mass
        return terms.sum(1), (terms * inverse).sum(1)


@dataclass
class _Search:
    """Roots on their way: distances z from their nearest poles, each in a bracket."""

    own: Tensor  # (K,), s: the nearest pole's own term is s / z
    direction: Tensor  # (K,), the sign of root minus pole
    far: Tensor  # (K,), the distance of the pole at the other end of the interval; infinite if there is none
    low: Tensor  # (K,)
    high: Tensor  # (K,)

    def only(self, which: Tensor) -> _Search:
        return _Search(*(getattr(self, part.name)[which] for part in fields(self)))

    def step(self, which: Tensor, z: Tensor, rest: Tensor, slope: Tensor) -> Tensor:
        r"""The next z of some roots, from all other terms r(z) and their slope there.

        The equation is :math:`r(z) = s/z`. r is matched in value and slope by :math:`c + S/(w - z)`, w being `far` (or
        s/z solved by Newton's method where there is no pole), and the quadratic solved: the fixed-weight method of Li
        (LAPACK Working Note 89). It converges in three or four rounds where Newton's method needs a dozen.
        """
        far, own = self.far[which], self.own[which]
        value = z * rest - own  # the equation times the distance to its nearest pole: smooth there, -s at the pole
        before = torch.sign(value) == -torch.sign(own)
        low, high = torch.where(before, z, self.low[which]), torch.where(before, self.high[which], z)
        self.low[which], self.high[which] = low, high
        bounded = torch.isfinite(far)
        gap = torch.where(bounded, far - z, 1.0)
        step = _rational_root(rest - slope * gap, slope * gap**2, own, torch.where(bounded, far, torch.nan))
        step = torch.where((step > low) & (step < high), step, z - value / (rest + z * slope))
        # a bracket that spans decades is halved in the logarithm
        halved = torch.where(low > 0, torch.sqrt(low) * torch.sqrt(high), high / 64)
        step = torch.where((step >= low) & (step <= high), step, halved)
        # a bracket of a few eps is as narrow as it gets
        return torch.where((value == 0) | (high - low <= 1e-15 * high), z, step)


def _between_poles(
    poles: _Poles, rho: Tensor, search: _Search, anchor: Tensor, origin: Tensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    """Distances of roots from their nearest pole, starting at z; and the sums over all other poles there."""
    result, active = z.clone(), torch.arange(len(z))
    for _ in range(200):
        toward, x = search.direction[active], result[active]
        first, second = poles.sums(anchor[active], toward * x, origin[active])
        step = search.step(active, x, 1 + rho * first, toward * rho * second)
        result[active] = step
        # convergence is quadratic: where the twelfth digit has settled all have, and the root leaves
        active = active[((step - x).abs() > 1e-12 * step) & (step >= TINY)]
        if not len(active):
            break
    # The quadratic's solution has a rounding of its own, some 100 eps where its coefficients span decades; the
    # correction by Newton's method has only that of the equation.
    first, second = poles.sums(anchor, search.direction * result, origin)
    rest, slope = 1 + rho * first, search.direction * rho * second
    change = (result * rest - search.own) / (rest + result * slope)
    # A correction is of the size of that rounding. A larger one is Newton's method led astray beside a pole.
    change = torch.where(change.abs() <= 1e-9 * result, change, 0.0)
    return result - change, first - second * search.direction * change


def _rational_root(level: Tensor, strength: Tensor, own: Tensor, far: Tensor) -> Tensor:
    """z in (0, far) with level + strength / (far - z) = own / z; NaN or outside where there is none."""
    b = level * far + strength + own  # level z^2 - b z + own far = 0
    root = (b * b - 4 * level * own * far).clamp(min=0).sqrt()
    q = (b + torch.where(b < 0, -root, root)) / 2
    small, large = own * far / q, q / level
    return torch.where((small > 0) & (small < far), small, large)


def _bracketed_newton(function: Callable[[Tensor], tuple[Tensor, Tensor]], high: Tensor) -> Tensor:
    """The root of a falling function between 0 and `high`, (1,), by Newton's method that never leaves its bracket."""
    low = torch.zeros_like(high)
    value, slope = function(low)
    x = -value / torch.where(slope == 0, 1.0, slope)
    x = torch.where((x > 0) & (x < high), x, high / 2)
    extra = 2
    for _ in range(100):
        value, slope = function(x)
        before = value > 0
        low, high = torch.where(before, x, low), torch.where(before, high, x)
        step = x - value / torch.where(slope == 0, 1.0, slope)
        inside = (step >= low) & (step <= high)
        halved = torch.where(low > 0, torch.sqrt(low * high), high / 64)
        step = torch.where(value == 0, x, torch.where(inside, step, halved))
        # quadratic: after a change of 1e-9 the next would be 1e-18, below the last digit
        settled = ((step - x).abs() <= 1e-9 * step) | (high - low <= 1e-15 * high) | (step < TINY)
        x = step
        if bool(settled.all()):
            extra -= 1  # quadratic convergence: two more steps reach rounding
            if extra == 0:
                break
    return x


def exact_root(tau: float, beta: list[Decimal], multiplicity: list[int], nu: Decimal) -> Decimal:
    r"""One root to some 50 digits by Newton's method from a double-precision start."""
    with localcontext() as context:
        context.prec = EXACT_DIGITS
        rho = (nu * nu - 1) / sum(multiplicity)
        x = Decimal(tau)
        if rho == 0 or x == 0:
            return min(beta, key=lambda pole: abs(pole - x)) if rho == 0 else x
        for _ in range(6):
            terms = [m * b / (b - x) for m, b in zip(multiplicity, beta, strict=True)]
            value = 1 + rho * sum(terms)
            slope = rho * sum(t / (b - x) for t, b in zip(terms, beta, strict=True))
            change = value / slope
            x -= change
            if abs(change) <= abs(x) * Decimal(10) ** (8 - EXACT_DIGITS):
                break
        return x
