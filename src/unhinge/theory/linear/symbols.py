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

from unhinge.theory.numerics import HUGE, LAST_STEP, falling, log_abs1p
from unhinge.theory.schedules import MOST_SPANS, Shape, flat_edges
from unhinge.theory.types import Time
from unhinge.theory.validation import check_steps, check_times

__all__ = [
    "DescentSymbol",
    "FlowSymbol",
    "Symbol",
    "accumulate",
    "in_range",
    "step_rates",
    "until_rest",
]


# Of the logarithm of a factor: the largest float is exp(709), and what the factor multiplies has to fit as well.
MOST = 600.0


class Symbol(Protocol):
    """`time` is what :meth:`times` returned; `gap` holds K gaps below `base` (one, or one for each)."""

    @property
    def shape(self) -> Shape: ...
    def times(self, time: Time) -> Tensor: ...
    def log(self, time: Tensor, base: Tensor) -> Tensor:
        r"""A smooth logarithmic scale of :math:`\Pi(base)`, shape of `time`."""

    def factors(self, time: Tensor, base: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        r""":math:`\Pi(base - gap)` as (log relative to the scale of `base`, value), shape :math:`(*, K)`."""

    def slope(self, time: Tensor, base: Tensor) -> Tensor:
        r""":math:`\partial_\omega \Pi` at `base`, on the scale of :meth:`log`, shape :math:`(*, K)`: finite where the
        response itself is zero."""

    def relaxation(self, time: Tensor, rate: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        r"""What a decay and a constant pull make of a number, :math:`x' = \eta\,(\kappa - \lambda x)`: the factors a
        and c of :math:`x(t) = a\,x_0 + c\,\kappa`, shape of `time`. Biases move so, and features towards fixed
        prototypes  [eq: bias], [eq: anchored]."""

    def rest(self, decay: Tensor) -> Tensor:
        """What the factor c of :meth:`relaxation` ends at, if it settles."""

    def memory(self, decay: Tensor, lr: Tensor) -> Tensor:
        """Exponent of the factor a of :meth:`relaxation` per unit of time at a constant rate."""

    def growth(self, base: Tensor, lr: Tensor) -> Tensor:
        r"""Exponent of :math:`\Pi(base)` per unit of time at a constant rate."""

    def fall(self, base: Tensor, gap: Tensor, lr: Tensor) -> Tensor:
        r"""Exponent of :math:`\Pi(base - gap) / \Pi(base)` per unit of time at a constant rate."""


@dataclass(frozen=True)
class FlowSymbol:
    r"""Gradient flow, :math:`\Pi = e^{\omega \zeta(t)}`."""

    shape: Shape

    def times(self, time: Time) -> Tensor:
        return check_times(time)

    def log(self, time: Tensor, base: Tensor) -> Tensor:
        return base * self.shape.integral(time)

    def factors(self, time: Tensor, base: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        log = -gap * self.shape.integral(time)[..., None]
        return log, torch.ones_like(log)

    def slope(self, time: Tensor, base: Tensor) -> Tensor:
        return self.shape.integral(time)[..., None].expand(*time.shape, len(base))

    def relaxation(self, time: Tensor, rate: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        clock = rate * self.shape.integral(time)
        return torch.exp(-decay * clock), clock * falling(decay * clock)

    def rest(self, decay: Tensor) -> Tensor:
        return 1 / decay

    def memory(self, decay: Tensor, lr: Tensor) -> Tensor:
        return self.growth(-decay, lr)

    def fall(self, base: Tensor, gap: Tensor, lr: Tensor) -> Tensor:
        return -gap * lr

    def growth(self, base: Tensor, lr: Tensor) -> Tensor:
        return base * lr


@dataclass(frozen=True)
class DescentSymbol:
    r"""Plain descent, :math:`\Pi = \prod_{j<k}(1 + \eta_j\omega)`; needs :math:`1 + \eta_j\omega > 0` at each base."""

    shape: Shape

    def times(self, time: Time) -> Tensor:
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

    def relaxation(self, time: Tensor, rate: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros_like(rate)
        log, sign = self.factors(time, zero, (rate * decay)[None])
        log, sign = in_range(log[..., 0]), sign[..., 0]
        sums = accumulate(self.shape, time, lambda eta: torch.stack([rate * eta, (rate * eta) ** 2], -1))
        total, squares = sums[..., 0], sums[..., 1]
        if decay.item() == 0:  # value and slope of the quotient below
            return torch.exp(log), total - decay * (total**2 - squares) / 2
        keep = sign * torch.exp(log)
        push = torch.where(sign > 0, -torch.expm1(log), 1 - keep) / decay
        return keep, push

    def rest(self, decay: Tensor) -> Tensor:
        return 1 / decay

    def memory(self, decay: Tensor, lr: Tensor) -> Tensor:
        return self.growth(-decay, lr)

    def fall(self, base: Tensor, gap: Tensor, lr: Tensor) -> Tensor:
        return log_abs1p(-lr * gap / (1 + lr * base))

    def growth(self, base: Tensor, lr: Tensor) -> Tensor:
        return log_abs1p(lr * base)


def in_range(log: Tensor) -> Tensor:
    """The logarithm of what is left of a number under a decay; an error where steps too large have made it grow."""
    largest = log.detach().max().item() if log.numel() else -math.inf
    if largest > MOST:
        raise ValueError(
            f"the steps are too large for the decay: what should shrink has grown by exp({largest:.3g}) at the last of "
            "these steps. Without momentum lr * decay must be below 2. Lower lr or the decay, or ask about earlier "
            "steps."
        )
    return log


def step_rates(shape: Shape, start: int, stop: int) -> Tensor:
    return shape.value(torch.arange(start, stop, dtype=torch.float64))


def until_rest(shape: Shape, steps: Tensor) -> Tensor:
    """Steps after which the rate is zero change nothing: count none of them."""
    return steps.clamp(max=math.ceil(shape.settles)) if shape.floor == 0 else steps


def accumulate(shape: Shape, steps: Tensor, term: Callable[[Tensor], Tensor]) -> Tensor:
    r"""Sums over the steps before each of `steps` of `term(rate)`, shape :math:`(*, K)`.

    A constant rate costs one term, one that changes now and then a term for each change; otherwise one term per step up
    to where the schedule settles, in blocks whose partial sums are added separately, which keeps the rounding error
    near the square root of the number of steps.
    """
    settles = math.ceil(min(shape.settles, LAST_STEP))
    flat = steps.reshape(-1)
    edges = flat_edges(shape, MOST_SPANS)
    if edges is not None and len(edges) > 1:
        starts = torch.tensor(edges)
        stops = torch.cat([starts[1:], torch.tensor([LAST_STEP])])
        terms = term(shape.value(starts.double()))
        counts = (torch.minimum(flat[:, None], stops) - starts).clamp(min=0).double()
        return (counts @ torch.where(torch.isfinite(terms), terms, -HUGE)).reshape(*steps.shape, terms.shape[-1])
    final = shape.final if math.isfinite(shape.floor) else torch.zeros((), dtype=torch.float64)
    tail = term(final[None])
    # A step that takes a part to zero at once has the logarithm minus infinity, and none of these steps would make it
    # 0 * -inf: -HUGE is as good as minus infinity after one step and zero after none.
    beyond = (flat - settles).clamp(min=0)[:, None].double() * torch.where(torch.isfinite(tail), tail, -HUGE)
    last = min(int(flat.max()) if flat.numel() else 0, settles)
    if last == 0:
        return beyond.reshape(*steps.shape, tail.shape[-1])
    inside = flat.clamp(max=last)
    block = 256  # the square root of some 65,000 steps, a usual number: as many blocks as steps in a block
    chunk = block * max(1, (1 << 20) // (block * tail.shape[-1]))  # a million terms at once, 8 MB
    total = torch.zeros_like(tail)[0]
    result = torch.zeros(len(flat), tail.shape[-1], dtype=torch.float64)
    for start in range(0, last, chunk):
        stop = min(start + chunk, last)
        terms = term(step_rates(shape, start, stop))
        padded = torch.nn.functional.pad(terms, (0, 0, 0, -len(terms) % block)).reshape(-1, block, terms.shape[-1])
        ends = torch.cumsum(padded.sum(1), 0)
        before = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
        sums = (before[:, None] + torch.cumsum(padded, 1)).reshape(-1, terms.shape[-1])
        asked = ((inside > start) & (inside <= stop)).nonzero().flatten()
        result = result.index_put((asked,), total + sums[inside[asked] - start - 1])
        total = total + ends[-1]
    return (result + beyond).reshape(*steps.shape, tail.shape[-1])
