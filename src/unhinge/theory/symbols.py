r"""What an optimizer does to one eigenvalue: the scalar :math:`\Pi(\omega, t)` with :math:`z(t) = \Pi(\omega, t)\,z(0)`
for :math:`z' = \omega z`  [eq: symbol].

When the rates of features and prototypes are proportional, all steps share their eigenvectors, and an optimizer is
known by this one function: :math:`e^{\omega t}` for the flow, :math:`\prod_j (1 + \eta_j\omega)` for descent, a
two-term recurrence for momentum. Everything is returned relative to a reference eigenvalue and in logarithms, so no
time is too long; the gap to the reference enters directly, so that no digits are lost in a difference of exponents.
Knows nothing of data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unhinge.theory.products import ordered_products
from unhinge.theory.schedules import Constant, Shape
from unhinge.theory.validation import check_steps, check_times

__all__ = ["DescentSymbol", "FlowSymbol", "Momentum", "MomentumSymbol", "Symbol", "falling"]


HUGE = 600.0  # biases that diverge under too large a step saturate at exp(600) instead of turning into inf - inf


def falling(x: Tensor) -> Tensor:
    r""":math:`(1 - e^{-x}) / x`, with value 1 and slope -1/2 at zero  [eq: falling]."""
    small = x.abs() < 1e-5
    safe = torch.where(small, 1.0, x)
    return torch.where(small, 1 - x / 2 * (1 - x / 3), -torch.expm1(-safe) / safe)


def log_abs1p(x: Tensor) -> Tensor:
    r""":math:`\log|1 + x|`, accurate near 0; :math:`-\infty` at -1."""
    ordinary = x > -1
    return torch.where(
        ordinary,
        torch.log1p(torch.where(ordinary, x, 0.0)),
        torch.log(torch.where(ordinary, 1.0, -1 - x)),
    )


class Symbol(Protocol):
    """`time` is what :meth:`times` returned; `gap` holds K gaps below `base` (one, or one for each)."""

    @property
    def shape(self) -> Shape: ...
    def times(self, time: object) -> Tensor: ...
    def log(self, time: Tensor, base: Tensor) -> Tensor:
        r"""A smooth logarithmic scale of :math:`\Pi(base)`, shape of `time`."""

    def factors(self, time: Tensor, base: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        r""":math:`\Pi(base - gap)` as (log relative to the scale of `base`, value), shape :math:`(*, K)`."""

    def slope(self, time: Tensor, base: Tensor) -> Tensor:
        r""":math:`\partial_\omega \log \Pi` at `base`, shape :math:`(*, K)`."""

    def bias(self, time: Tensor, rate: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        r"""Factors of :math:`b_0` and of the constant drive :math:`\kappa` in the bias."""

    def growth(self, base: Tensor, lr: Tensor) -> Tensor:
        r"""Exponent of :math:`\Pi(base)` per unit of time at a constant rate."""

    def fall(self, base: Tensor, gap: Tensor, lr: Tensor) -> Tensor:
        r"""Exponent of :math:`\Pi(base - gap) / \Pi(base)` per unit of time at a constant rate."""


@dataclass(frozen=True)
class FlowSymbol:
    r"""Gradient flow, :math:`\Pi = e^{\omega \zeta(t)}`."""

    shape: Shape

    def times(self, time: object) -> Tensor:
        return check_times(time)

    def log(self, time: Tensor, base: Tensor) -> Tensor:
        return base * self.shape.integral(time)

    def factors(self, time: Tensor, base: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        log = -gap * self.shape.integral(time)[..., None]
        return log, torch.ones_like(log)

    def slope(self, time: Tensor, base: Tensor) -> Tensor:
        return self.shape.integral(time)[..., None].expand(*time.shape, len(base))

    def bias(self, time: Tensor, rate: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        clock = rate * self.shape.integral(time)
        return torch.exp(-decay * clock), clock * falling(decay * clock)

    def fall(self, base: Tensor, gap: Tensor, lr: Tensor) -> Tensor:
        return -gap * lr

    def growth(self, base: Tensor, lr: Tensor) -> Tensor:
        return base * lr


@dataclass(frozen=True)
class DescentSymbol:
    r"""Plain descent, :math:`\Pi = \prod_{j<k}(1 + \eta_j\omega)`; needs :math:`1 + \eta_j\omega > 0` at each base."""

    shape: Shape

    def times(self, time: object) -> Tensor:
        return check_steps(time)

    def log(self, time: Tensor, base: Tensor) -> Tensor:
        return accumulate(self.shape, time, lambda rate: torch.log1p(rate * base)[:, None])[..., 0]

    def factors(self, time: Tensor, base: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        def drop(rate: Tensor) -> Tensor:
            rate = rate[:, None]
            return -rate * gap / (1 + rate * base)

        log = accumulate(self.shape, time, lambda rate: log_abs1p(drop(rate)))
        if bool((self.shape.highest * gap < 1 + self.shape.highest * base).all()):
            return log, torch.ones_like(log)  # no step is long enough to change a sign
        flips = accumulate(self.shape, time, lambda rate: (drop(rate.detach()).detach() < -1).double())
        return log, torch.where(flips % 2 == 0, 1.0, -1.0)

    def slope(self, time: Tensor, base: Tensor) -> Tensor:
        return accumulate(self.shape, time, lambda rate: rate[:, None] / (1 + rate[:, None] * base))

    def bias(self, time: Tensor, rate: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros_like(rate)
        log, sign = self.factors(time, zero, (rate * decay)[None])
        log, sign = log[..., 0].clamp(max=HUGE), sign[..., 0]
        sums = accumulate(self.shape, time, lambda eta: torch.stack([rate * eta, (rate * eta) ** 2], -1))
        total, squares = sums[..., 0], sums[..., 1]
        if decay.item() == 0:  # value and slope of the quotient below
            return torch.exp(log), total - decay * (total**2 - squares) / 2
        keep = sign * torch.exp(log)
        push = torch.where(sign > 0, -torch.expm1(log), 1 - keep) / decay
        return keep, push

    def fall(self, base: Tensor, gap: Tensor, lr: Tensor) -> Tensor:
        return log_abs1p(-lr * gap / (1 + lr * base))

    def growth(self, base: Tensor, lr: Tensor) -> Tensor:
        return log_abs1p(lr * base)


@dataclass(frozen=True)
class Momentum:
    """Options of ``torch.optim.SGD`` beyond its rate; a `decoupled` decay multiplies and stays out of the gradient."""

    factor: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    decoupled: bool = False


@dataclass(frozen=True)
class MomentumSymbol:
    r"""``torch.optim.SGD`` with momentum, in one eigenvalue.

    Buffer :math:`b \leftarrow \mu b - (1-\tau)\omega z` (the first step: :math:`b = -\omega z`, undamped), then
    :math:`z \leftarrow (1-\eta\varsigma) z - \eta b`, or with Nesterov
    :math:`z \leftarrow (1-\eta\varsigma) z - \eta(\mu b - \omega z)`, where :math:`\varsigma` is a decoupled decay.
    """

    shape: Shape
    options: Momentum
    shrink: Tensor  # (), decoupled decay common to features and prototypes; 0 if coupled

    def times(self, time: object) -> Tensor:
        return check_steps(time)

    def matrices(self, rate: Tensor, omega: Tensor) -> Tensor:
        r"""One later step on :math:`(z, b)`, shape :math:`(\#rate, K, 2, 2)`."""
        rate = rate[:, None]
        fresh = (1 - self.options.dampening) * omega
        keep = 1 - rate * self.shrink
        if self.options.nesterov:
            top = keep + rate * (omega + self.options.factor * fresh), -rate * self.options.factor**2
        else:
            top = keep + rate * fresh, -rate * self.options.factor
        rows = [*top, -fresh, torch.full_like(fresh, self.options.factor)]
        return torch.stack([row.expand(len(rate), len(omega)) for row in rows], -1).unflatten(-1, (2, 2))

    def first(self, rate: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        """The state after the special first step from z = 1."""
        push = 1 + self.options.factor if self.options.nesterov else 1.0
        return 1 - rate * self.shrink + rate * push * omega, -omega

    def values(self, time: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        """(log-scale, value) of the response at each time and eigenvalue, shape (*, K) each."""
        time = until_rest(self.shape, time)
        rate = self.shape.value(torch.zeros(1, dtype=torch.float64))[0]
        z, b = self.first(rate, omega)
        later = (time - 1).clamp(min=0)
        if self.shape.settles == 0:
            log, value = self._power(later, rate, omega, z, b)
        else:
            log, product = ordered_products(
                lambda start, stop: self.matrices(_rates(self.shape, start + 1, stop + 1), omega),
                later,
                max(0, math.ceil(min(self.shape.settles, 2.0**62)) - 1),
            )
            value = product[..., 0, 0] * z + product[..., 0, 1] * b
        started = (time > 0)[..., None]
        return torch.where(started, log, 0.0), torch.where(started, value, 1.0)

    def oscillates(self, base: Tensor) -> bool:
        """Whether the response to `base` turns at the last rate instead of growing or decaying."""
        floor = self.shape.floor if math.isfinite(self.shape.floor) else 0.0
        matrix = self.matrices(torch.full((1,), floor, dtype=torch.float64), base.detach()[None])[0, 0]
        trace, det = matrix.trace(), matrix.det()
        return bool(trace**2 < 4 * det) or bool(trace < 0)

    def _power(self, later: Tensor, rate: Tensor, omega: Tensor, z: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The same step repeated, through its two roots: 1 + small for the slow one, found without cancellation."""
        matrix = self.matrices(rate[None], omega)[0]
        trace = matrix[:, 0, 0] + self.options.factor
        det = matrix[:, 0, 0] * self.options.factor - matrix[:, 0, 1] * matrix[:, 1, 0]
        fresh = (1 - self.options.dampening) * omega
        push = (
            rate * (omega * (1 - self.options.factor) + self.options.factor * fresh)
            if self.options.nesterov
            else rate * fresh
        )
        at_one = (1 - self.options.factor) * rate * self.shrink - push  # characteristic polynomial at 1
        slope = 2 - trace
        square = slope**2 - 4 * at_one
        real = square >= 0
        root = torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)
        small = torch.where(slope > 0, -2 * at_one / (slope + root).clamp(min=1e-300), (root - slope) / 2)
        mirrored = trace < 0  # then the other root is the larger
        lead = torch.where(mirrored, (trace - root) / 2, 1 + small)
        log_lead = torch.where(mirrored, log_abs1p(lead - 1), torch.log1p(torch.where(mirrored, 0.0, small)))
        half_det = torch.where(real, 1.0, det).log() / 2
        j = later[..., None].double()
        log = j * torch.where(real, log_lead, half_det)
        swept = matrix[:, 0, 0] * z + matrix[:, 0, 1] * b  # the top entry after one more step
        # real roots: lead^j z + (lead^j - rest^j) / (lead - rest) (swept - lead z)
        safe_lead = torch.where(real & (lead != 0), lead, 1.0)
        gap = torch.where(real, torch.where(mirrored, -root, root), 0.0)
        odd = (later % 2 == 1)[..., None]
        fall = j * log_abs1p(-gap / safe_lead)
        fall = torch.where(j == 0, 0.0, fall)
        flipped = odd & (gap / safe_lead > 1)
        decayed = torch.where(flipped, -1.0, 1.0) * torch.exp(fall)
        drop = torch.where(flipped, 1 - decayed, -torch.expm1(fall))
        spread = torch.where(gap == 0, j / safe_lead, drop / torch.where(gap == 0, 1.0, gap))
        turn = torch.where(odd & (lead < 0), -1.0, 1.0)
        plain = turn * (z + spread * (swept - lead * z))
        # a complex pair turns by an angle in each step
        modulus = torch.exp(half_det)
        width = torch.where(real, 1.0, -square).sqrt()
        angle = torch.atan2(width, trace)
        sine = torch.where(real, 1.0, width / (2 * modulus))
        wave = z * torch.cos(j * angle) + (swept - trace / 2 * z) / modulus * torch.sin(j * angle) / sine
        return log, torch.where(real, plain, wave)

    def log(self, time: Tensor, base: Tensor) -> Tensor:
        return self.values(time, base[None])[0][..., 0]

    def factors(self, time: Tensor, base: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        reference = self.values(time, base.expand(gap.shape))[0]
        log, value = self.values(time, base - gap)
        return log - reference, value

    def slope(self, time: Tensor, base: Tensor) -> Tensor:
        # only asked where two eigenvalues coincide; the response is a polynomial, so a symmetric difference is safe
        width = 1e-5 / (1 + time.max().double() if time.numel() else 1.0)
        log, value = self.values(time, base)
        up_log, up = self.values(time, base + width)
        down_log, down = self.values(time, base - width)
        return (up * torch.exp(up_log - log) - down * torch.exp(down_log - log)) / (2 * width * value)

    def bias(self, time: Tensor, rate: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        time = until_rest(self.shape, time)
        coupled = not self.options.decoupled
        eta = rate.reshape(1, 1)

        def step(rates: Tensor, fresh: float, first: bool) -> Tensor:
            """One step on (bias, buffer, 1) with gradient decay * bias - 1 (or -1 alone if decoupled)."""
            pull = decay if coupled else torch.zeros_like(decay)
            keep = 1 - rates * (0.0 if coupled else decay)
            mu = 0.0 if first else self.options.factor
            zero, one = torch.zeros_like(rates), torch.ones_like(rates)
            buffer = [fresh * pull * one, mu * one, -fresh * one]
            if self.options.nesterov:
                used = [
                    pull * one + self.options.factor * buffer[0],
                    self.options.factor * buffer[1],
                    -one + self.options.factor * buffer[2],
                ]
            else:
                used = buffer
            top = [keep - rates * used[0], -rates * used[1], -rates * used[2]]
            rows = [*top, *buffer, zero, zero, one]
            return torch.stack(rows, -1).unflatten(-1, (3, 3))

        def later(start: int, stop: int) -> Tensor:
            return step(_rates(self.shape, start + 1, stop + 1)[:, None] * eta, 1 - self.options.dampening, False)

        settles = max(0, math.ceil(min(self.shape.settles, 2.0**62)) - 1)
        log, product = ordered_products(later, (time - 1).clamp(min=0), settles)
        start = step(_rates(self.shape, 0, 1)[:, None] * eta, 1.0, True)[0, 0]
        whole = torch.exp(log.clamp(max=HUGE))[..., 0, None, None] * (product[..., 0, :, :] @ start)
        started = time > 0
        keep = torch.where(started, whole[..., 0, 0], 1.0)
        push = torch.where(started, whole[..., 0, 2], 0.0)
        return keep, push

    def fall(self, base: Tensor, gap: Tensor, lr: Tensor) -> Tensor:
        return self.growth(base - gap, lr) - self.growth(base.expand(gap.shape), lr)

    def growth(self, base: Tensor, lr: Tensor) -> Tensor:
        omega = base.reshape(-1) * lr
        steady = MomentumSymbol(Constant(), self.options, self.shrink * lr)
        z, b = steady.first(torch.ones((), dtype=torch.float64), omega)
        log, _ = steady._power(torch.ones((), dtype=torch.int64), torch.ones((), dtype=torch.float64), omega, z, b)
        return log.reshape(base.shape)


def _rates(shape: Shape, start: int, stop: int) -> Tensor:
    return shape.value(torch.arange(start, stop, dtype=torch.float64))


def until_rest(shape: Shape, steps: Tensor) -> Tensor:
    """Steps after which the rate is zero change nothing: count none of them."""
    return steps.clamp(max=math.ceil(shape.settles)) if shape.floor == 0 else steps


def accumulate(shape: Shape, steps: Tensor, term: Callable[[Tensor], Tensor]) -> Tensor:
    r"""Sums over the steps before each of `steps` of `term(rate)`, shape :math:`(*, K)`.

    A constant rate costs one term; otherwise one term per step up to where the schedule settles, in blocks whose
    partial sums are added separately, which keeps the rounding error near the square root of the number of steps.
    """
    settles = math.ceil(min(shape.settles, 2.0**62))
    flat = steps.reshape(-1)
    floor = shape.floor if math.isfinite(shape.floor) else 0.0
    tail = term(torch.full((1,), floor, dtype=torch.float64))
    beyond = (flat - settles).clamp(min=0)[:, None].double() * torch.where(torch.isfinite(tail), tail, -1e300)
    last = min(int(flat.max()) if flat.numel() else 0, settles)
    if last == 0:
        return beyond.reshape(*steps.shape, -1)
    inside = flat.clamp(max=last)
    block = 256
    chunk = block * max(1, (1 << 20) // (block * tail.shape[-1]))
    total = torch.zeros_like(tail)[0]
    result = torch.zeros(len(flat), tail.shape[-1], dtype=torch.float64)
    for start in range(0, last, chunk):
        stop = min(start + chunk, last)
        terms = term(_rates(shape, start, stop))
        padded = torch.nn.functional.pad(terms, (0, 0, 0, -len(terms) % block)).reshape(-1, block, terms.shape[-1])
        ends = torch.cumsum(padded.sum(1), 0)
        before = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
        sums = (before[:, None] + torch.cumsum(padded, 1)).reshape(-1, terms.shape[-1])
        asked = ((inside > start) & (inside <= stop)).nonzero().flatten()
        result = result.index_put((asked,), total + sums[inside[asked] - start - 1])
        total = total + ends[-1]
    return (result + beyond).reshape(*steps.shape, -1)
