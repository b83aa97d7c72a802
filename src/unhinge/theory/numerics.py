r"""Small functions that stay exact where floats are not: removable singularities, scales apart, first passages.

Several rooms use each of them. A function that only one room needs lives there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "CHUNK",
    "EPS",
    "NOISE",
    "differentiable_time",
    "falling",
    "first_time_below",
    "log_abs1p",
    "safe_divide",
    "safe_norm",
    "safe_sqrt",
    "scaled",
]

EPS = torch.finfo(torch.float64).eps

# A part of the start that cancels in exact arithmetic is left with a few eps of the terms it is a difference of: class
# sums, vectors of modes and projectors are rounded once each. So many eps of these terms count as nothing. Rounding
# that is taken for a part wins in the end and makes noise of the direction; a real part that is smaller than this
# cannot be told from rounding in its dtype.
NOISE = 32

# Numbers held at once by questions that look at every example: 32 MB in float64, whatever number of times is asked.
CHUNK = 1 << 22


def safe_sqrt(x: Tensor) -> Tensor:
    """Square root with slope 0 at 0, for roots that enter only through even functions.

    The slope of a plain root is infinite there, and infinity times the zero that follows makes every gradient NaN.
    """
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


def safe_norm(x: Tensor, dims: int) -> Tensor:
    """The norm over the last `dims` axes, where squares would underflow too; its gradient at zero is zero.

    Distances fall to 1e-200 and below, and their squares are zero: the largest entry is divided out first.
    """
    axes = tuple(range(-dims, 0))
    size = x.detach().abs().amax(axes, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    return size.reshape(size.shape[:-dims]) * safe_sqrt((x / size).pow(2).sum(axes))


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0, for the value and for the gradient."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


def scaled(value: Tensor, log: Tensor) -> Tensor:
    """value * exp(log), infinite where that overflows but never 0 * inf."""
    return torch.where(value == 0, value, value * torch.exp(torch.where(value == 0, 0.0, log)))


def falling(x: Tensor) -> Tensor:
    r""":math:`(1 - e^{-x}) / x`, with value 1 and slope -1/2 at zero  [eq: falling].

    Below 1e-5 two terms of the series leave :math:`x^3/24 < 10^{-16}`, less than rounding, and the quotient of two
    small numbers would have a gradient that is noise.
    """
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


def first_time_below(measured: Callable[[Tensor], Tensor], wanted: float, horizon: float, discrete: bool) -> float:
    """The first time at which `measured` is at most `wanted`, by growing and then dividing a bracket.

    Dips narrower than a 256th of the bracket are not seen. Infinite if `measured` is above `wanted` at the `horizon`.
    """
    start = torch.zeros((), dtype=torch.float64)
    if measured(start) <= wanted:
        return 0.0
    low, high = 0.0, 1.0
    while measured(torch.tensor(min(high, horizon), dtype=torch.float64)) > wanted:
        if high >= horizon:
            return math.inf
        high *= 16
    high = min(high, horizon)
    # Each round divides the bracket by 256, so seven reach the last of 53 bits; forty cover a start at 1e300 as well.
    for _ in range(40):
        grid = torch.linspace(low, high, 257, dtype=torch.float64)
        if discrete:
            grid = grid.round().unique()
        below = measured(grid) <= wanted
        first = int(below.double().argmax())
        low, high = grid[max(first - 1, 0)].item(), grid[first].item()
        if (discrete and high - low <= 1) or high - low <= 4e-16 * high:
            break
    return high


def differentiable_time(measured: Callable[[Tensor], Tensor], time: float) -> Tensor:
    """`time` with its derivative in all that `measured` depends on: one Newton step, which leaves the value alone."""
    moment = torch.tensor(time, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(measured(moment).log(), moment)
    now = measured(moment.detach()).log()
    return moment.detach() - (now - now.detach()) / slope
