r"""Roots of the secular equation :math:`1 + \varrho \sum_t m_t \beta_t / (\beta_t - \tau) = 0`  [eq: secular].

This is the characteristic equation of :math:`\mathrm{diag}(\beta) + \varrho\, \sqrt\beta \sqrt\beta^\top` with
multiplicities :math:`m_t`: the squared singular values of an imbalanced problem. A dense SVD finds them to an
*absolute* error; here each root is found as an offset from its nearest pole, so that the distances of a root to all
poles and to all other roots keep full *relative* accuracy. Differences of exponents are what long times magnify.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext

import torch
from torch import Tensor

__all__ = ["SecularRoots", "exact_root", "solve_secular"]

EXACT_DIGITS = 60


@dataclass(frozen=True)
class SecularRoots:
    r"""The roots :math:`\tau_k` through their distances :math:`D_{kt} = \beta_t - \tau_k` to the poles."""

    tau: Tensor  # (T,) descending
    distance: Tensor  # (T, T), D
    pull: Tensor  # (T, T), varrho / D, finite even where both vanish
    above: bool  # whether each root lies above its own pole (varrho > 0)

    def difference(self, root: int) -> Tensor:
        r""":math:`\tau_r - \tau_k` for all k, as a sum of two terms of one sign through a pole that lies between
        [eq: gaps]."""
        size = len(self.tau)
        k = torch.arange(size)
        pole = torch.where(k > root, root, root - 1) if self.above else torch.where(k > root, root + 1, root)
        pole = pole.clamp(0, size - 1)
        gaps = self.distance[k, pole] - self.distance[root, pole]
        return torch.where(k == root, 0.0, gaps)


def solve_secular(beta: Tensor, multiplicity: Tensor, rho: Tensor, nu: Tensor) -> SecularRoots:
    r"""All roots, differentiable in `rho` and `nu`.

    Arguments:
        beta: Distinct poles :math:`\beta_t > 0`, descending, largest 1, shape :math:`(T,)`.
        multiplicity: :math:`m_t`, shape :math:`(T,)`.
        rho: :math:`\varrho = (\nu^2 - 1) / C`.
        nu: :math:`\nu \ge -1`; the value of the left side at :math:`\tau = 0` is :math:`\nu^2`.
    """
    size = len(beta)
    above = bool(rho > 0)
    if size == 1:  # balanced: the equation is linear
        span = rho * multiplicity * beta
        return SecularRoots(beta + span, -span[:, None], -1 / (multiplicity * beta)[:, None], above)
    mass = multiplicity * beta
    own = torch.arange(size)
    other = own - 1 if above else own + 1
    edge = torch.cat([(beta[0] + rho.detach() * mass.sum())[None], beta, beta.new_zeros(1)])
    width = (edge[other + 1] - beta).abs()  # to the other end of the interval that holds the root
    side = 1.0 if above else -1.0

    with torch.no_grad():
        middle = beta + side * width / 2
        value = 1 + (rho * mass / (beta - middle[:, None])).sum(1)
        near_own = value >= 0
    from_zero = ~near_own & (other == size)  # the last root, nearer to 0 than to its pole
    from_bound = ~near_own & (other == -1)  # the first root has no pole above: keep its own
    origin = torch.where(near_own | from_zero | from_bound, own, other.clamp(0, size - 1))
    shift = beta - beta[origin][:, None]  # (T, T), beta_t - beta_o
    is_origin = torch.arange(size) == origin[:, None]
    pole_mass = mass[origin]

    def residual(mu: Tensor) -> tuple[Tensor, Tensor]:
        """The equation multiplied by the distance to its nearest pole: smooth there; and its slope."""
        away = torch.where(is_origin, 1.0, shift - mu[:, None])
        terms = torch.where(is_origin, 0.0, mass / away)
        slopes = torch.where(is_origin, 0.0, mass * shift / away**2)
        value = mu * (1 + rho * terms.sum(1)) - rho * pole_mass
        return value, 1 + rho * slopes.sum(1)

    def residual_at_zero(tau: Tensor) -> tuple[Tensor, Tensor]:
        """For the last root: measured from 0, where the left side is nu^2."""
        away = beta - tau[:, None]
        value = nu**2 + rho * tau * (multiplicity / away).sum(1)
        return value, rho * (multiplicity * beta / away**2).sum(1)

    def newton(x: Tensor) -> tuple[Tensor, Tensor]:
        a, a_slope = residual(torch.where(from_zero, beta[origin] * side / 4, x))
        b, b_slope = residual_at_zero(torch.where(from_zero, x, 0.0))
        value, slope = torch.where(from_zero, b, a), torch.where(from_zero, b_slope, a_slope)
        return value, value / torch.where(slope == 0, 1.0, slope)

    from_own = near_own | from_bound
    direction = torch.where(from_zero, 1.0, torch.where(from_own, side, -side))
    resting = (rho == 0) | (from_zero & (nu == 0))  # on the pole, or at zero
    reach = torch.where(from_bound, 2.0, 0.75) * width  # past the middle, short of the pole beyond
    # the sign of the residual at the origin: nu^2 at zero, -rho times the pole's mass at a pole
    start_sign = torch.where(from_zero, 1.0, 1.0 if rho < 0 else -1.0)
    with torch.no_grad():
        x = direction * _bracketed_newton(
            lambda z: newton(direction * z), direction, start_sign, reach.masked_fill(resting, 0.0)
        )
        x = torch.where(resting, 0.0, x)
    if rho.requires_grad or nu.requires_grad:
        for _ in range(2):  # converged, so each step adds one order of exact derivatives
            x = x - newton(x)[1]

    tau_from_pole = beta[origin] + x
    distance = torch.where(from_zero[:, None], beta - x[:, None], shift - x[:, None])
    tau = torch.where(from_zero, x, tau_from_pole)
    plain = rho / torch.where(distance == 0, 1.0, distance)
    others = torch.where(is_origin, 0.0, mass / torch.where(is_origin, 1.0, distance)).sum(1)
    at_origin = -(1 + rho * others) / pole_mass  # rho / D there, by the equation itself: regular at rho = 0
    regular = is_origin & (~from_zero & ((rho * others).abs() < 0.1))[:, None]
    pull = torch.where(regular, at_origin[:, None], plain)
    return SecularRoots(tau, distance, pull, above)


def _bracketed_newton(
    newton: Callable[[Tensor], tuple[Tensor, Tensor]], direction: Tensor, start_sign: Tensor, reach: Tensor
) -> Tensor:
    """Distances from the origins, 0 to `reach`, by Newton's method that never leaves its bracket."""
    low, high = torch.zeros_like(reach), reach
    first = -direction * newton(low)[1]
    x = torch.where((first > 0) & (first < reach), first, reach / 2)
    extra = 2
    for _ in range(100):
        value, change = newton(x)
        before = value * start_sign > 0
        low, high = torch.where(before, x, low), torch.where(before, high, x)
        step = x - direction * change
        inside = (step >= low) & (step <= high)
        # a bracket that spans decades is halved in the logarithm
        halved = torch.where(low > 0, torch.sqrt(low * high), high / 64)
        step = torch.where(value == 0, x, torch.where(inside, step, halved))
        settled = ((step - x).abs() <= 1e-9 * step) | (high - low <= 1e-15 * high) | (step < 1e-300)
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
