r"""Small functions that stay exact where floats are not: removable singularities, scales apart, first passages.

Several rooms use each of them. A function that only one room needs lives there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

__all__ = [
    "CHUNK",
    "EPS",
    "HUGE",
    "LARGEST_EXPONENT",
    "LAST_STEP",
    "NOISE",
    "RESOLUTION",
    "TINY",
    "differentiable_time",
    "falling",
    "first_time_below",
    "float64_device",
    "levels",
    "log_abs1p",
    "merged",
    "safe_divide",
    "safe_norm",
    "safe_sqrt",
    "scaled",
    "spanned",
    "squares_fit",
    "unit_of",
    "widened",
]

EPS = torch.finfo(torch.float64).eps
RESOLUTION = 4e-16  # two eps and less: times whose relative distance is smaller than this have no float64 between them

# In the place of a zero that something is divided by, or whose logarithm is taken, and of an infinity that may meet a
# zero. Nothing that is asked for is smaller or larger, and float64 (2.2e-308 to 1.8e308) has room beyond both.
TINY, HUGE = 1e-300, 1e300

LARGEST_EXPONENT = 700.0  # e^709.8 is the largest float64
LAST_STEP = 2**62  # half of what int64 counts, so that the sum of two numbers of steps still fits

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
    if 0 in x.shape[-dims:]:
        return x.new_zeros(x.shape[:-dims])
    axes = tuple(range(-dims, 0))
    size = x.detach().abs().amax(axes, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    return size.reshape(size.shape[:-dims]) * safe_sqrt((x / size).pow(2).sum(axes))


def widened(x: Tensor) -> Tensor:
    """The same numbers in float64, on the same device where that has float64 and on the CPU where it has not.

    Whatever decides is decided here: rounded to eight bits, a part that the start does have looks like rounding.
    """
    return x.to(float64_device(x), torch.float64)


def float64_device(x: Tensor) -> torch.device:
    """Where to compute in float64: where the values are, or the CPU if their device has no float64."""
    return torch.device("cpu") if x.device.type == "mps" else x.device


def unit_of(*tensors: Tensor | None) -> float:
    """A power of two near the largest entry, for numbers whose squares do not fit; 1 for all others.

    What is linear is solved for the numbers divided by it, which rounds nothing, and multiplied back.

    Example:
        >>> unit_of(torch.tensor([3e5]))
        1.0
        >>> unit_of(torch.tensor([3e-200], dtype=torch.float64)) < 3e-200
        True
    """
    largest, dtype = 0.0, torch.float64
    for x in tensors:
        if x is not None and x.numel():
            low, high = x.detach().aminmax()  # without a copy of absolute values
            largest = max(largest, -low.item(), high.item())
            dtype = dtype if x.dtype == torch.float64 else x.dtype
    if largest == 0 or squares_fit(largest, dtype) or not math.isfinite(largest):
        return 1.0
    return 2.0 ** (math.frexp(largest)[1] - 1)


def squares_fit(size: float, dtype: torch.dtype) -> bool:
    """Whether the squares of numbers whose largest is `size`, and sums of very many of them, keep all their digits."""
    # float64 sums 1e20 squares of 1e130; the others are squared in float32, and float16 is always between.
    room = 1e130 if dtype == torch.float64 else 1e12
    return 1 / room < size < room


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0, for the value and for the gradient."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


def spanned(rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows (r, p) in an orthonormal basis of their span, and that basis (p, r); as they are, and None, unless r < p."""
    basis = torch.linalg.qr(rows.mT)[0] if rows.shape[0] < rows.shape[1] else None
    return (rows if basis is None else rows @ basis), basis


def levels(strengths: Tensor) -> tuple[Tensor, Tensor]:
    """The level of each class, strongest first, and one class of each; strengths that differ by rounding are equal."""
    order = torch.argsort(strengths, descending=True, stable=True)
    ranked = strengths[order]
    # Weights are numbers of the user, rounded once or twice: n_c^(-1/2) squared times n_c is 1 to some 2 eps. Sixteen
    # is well above that and far below any difference of strengths that is meant (1 / n at least).
    opens = torch.cat([torch.tensor([True]), ranked[1:] < ranked[:-1] * (1 - 16 * EPS)])
    level = torch.empty_like(order)
    level[order] = torch.cumsum(opens, 0) - 1
    return level, order[opens]


def merged(values: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Means of sorted values, those taken together that differ by the noise at most; and which mean each is part of."""
    opens = values.detach().diff().abs() > noise
    group = torch.nn.functional.pad(opens.cumsum(0), (1, 0))
    members = torch.bincount(group).to(values.detach())
    return torch.zeros_like(members).index_add(0, group, values) / members, group


def scaled(value: Tensor, log: Tensor) -> Tensor:
    """value * exp(log), infinite where that overflows but never 0 * inf; a zero keeps its slope."""
    return value * torch.exp(torch.where(value == 0, log.clamp(max=700.0), log))


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


# Times looked at per doubling: neighbors are 1.1 % apart. Sums of exponentials change on scales of their own time, and
# where two of them cross after n decades the dip is about 1/n of the time wide.
PER_DOUBLING = 64
FORESEEN = 1e-11  # of the time: brackets wider than this are cut without looking at every point of the next grid
AT_ONCE = 512  # times asked for in one call
EARLIEST = 2.0**-60  # of a flow: 1e-18, before which no learning rate in use moves anything


def first_time_below(
    measured: Callable[[Tensor], Tensor], wanted: float, horizon: float, discrete: bool, speed: float = math.inf
) -> float:
    """The first time at which `measured` is at most `wanted`; infinite if it is not up to the `horizon`.

    Time is walked through from the beginning on a grid of equal ratios, every step of the first few hundred where time
    is discrete. Where the grid shows a minimum above `wanted`, the minimum itself is searched for. So a dip is missed
    only if it is narrower than a hundredth of its time and leaves no minimum on the grid. Where it is known that
    `measured` falls by no more than `speed` per unit of time, a flow is not looked at before it can be there.
    """
    above = measured(torch.zeros((), dtype=torch.float64)).item() - wanted
    if above <= 0:
        return 0.0
    earliest = max(EARLIEST, above / (2 * speed)) if speed > 0 else EARLIEST  # half: rounding has no say
    tail: list[tuple[float, float]] = []  # the last two times of the piece before, and what was measured there
    for times in _grid(horizon, discrete, earliest):
        values = measured(times)
        below = (values <= wanted).nonzero().flatten()
        stop = int(below[0]) if len(below) else len(times)
        points = tail + list(zip(times[: stop + 1].tolist(), values[: stop + 1].tolist(), strict=True))
        for (low, a), (_, b), (high, c) in zip(points, points[1:], points[2:], strict=False):
            # A parabola through the three points falls short of this by far; on a flat stretch rounding makes minima.
            if b <= a and b <= c and 0 < b - wanted <= 8 * (max(a, c) - b):
                dip = _refined(measured, wanted, low, high, discrete)
                if dip is not None:
                    return dip
        if len(below):
            low = points[-2][0] if len(points) > 1 else 0.0
            refined = _refined(measured, wanted, low, points[-1][0], discrete, reached=True)
            return points[-1][0] if refined is None else refined
        tail = points[-2:]
    return math.inf


def _grid(horizon: float, discrete: bool, earliest: float) -> Iterator[Tensor]:
    """Times from the beginning to the horizon, in pieces."""
    if discrete:
        first = torch.arange(1, min(AT_ONCE, int(horizon)) + 1, dtype=torch.float64)
        yield first
        start = float(AT_ONCE)
    else:
        start = min(earliest, horizon)
    begun = discrete
    while start < horizon or not begun:
        powers = torch.arange(int(begun), AT_ONCE + 1, dtype=torch.float64) / PER_DOUBLING
        times = (start * torch.exp2(powers)).clamp(max=horizon)
        start, begun = times[-1].item(), True
        yield (times.round() if discrete else times).unique()


def _refined(
    measured: Callable[[Tensor], Tensor], wanted: float, low: float, high: float, discrete: bool, reached: bool = False
) -> float | None:
    """The first time in (low, high] at which `measured` is at most `wanted`, to the last digit; None if there is none.

    A grid inside; around its first entry below, or around its smallest as long as none is, another one. Once it was
    `reached` at the end of the bracket it stays so: asked for among other times, the same time may have another last
    digit, as where the integral of a rate is a sum over all the times before.
    """
    for _ in range(40):  # each divides the bracket by 128 or more: seven reach the last of 53 bits
        grid = torch.linspace(low, high, 257, dtype=torch.float64)
        if discrete:
            grid = grid.round().unique()
        values = measured(grid)
        inside = (values <= wanted).nonzero().flatten()
        place = int(inside[0]) if len(inside) else len(grid) - 1 if reached else int(values.argmin())
        reached |= len(inside) > 0
        if len(inside) and place == 0:
            return low
        before, after = max(place - 1, 0), place if reached else min(place + 1, len(grid) - 1)
        low, high = grid[before].item(), grid[after].item()
        if (discrete and high - low <= (1 if reached else 2)) or high - low <= RESOLUTION * high:
            return high if reached else None
        if len(inside) and not discrete:
            low, high = _foreseen(measured, wanted, low, high, grid, values, place)
    return high if reached else None


def _foreseen(
    measured: Callable[[Tensor], Tensor],
    wanted: float,
    low: float,
    high: float,
    grid: Tensor,
    values: Tensor,
    place: int,
) -> tuple[float, float]:
    """The bracket that the next grids would lead to, found with one question about its ends instead of theirs.

    A cubic through four neighbors of the crossing says where each grid would be cut. The cut is taken only where the
    ends then lie on both sides, and only while they are far enough apart that rounding has no say.
    """
    first = min(max(place - 2, 0), len(grid) - 4)
    xs = grid[first : first + 4].tolist()
    ys = [value - wanted for value in values[first : first + 4].tolist()]
    if not all(a > b for a, b in pairwise(ys)):
        return low, high
    crossing = 0.0
    for i, x in enumerate(xs):  # Lagrange's formula for the time as a function of the value, at zero
        crossing += (x - low) * math.prod(ys[j] / (ys[j] - ys[i]) for j in range(4) if j != i)
    brackets = [(low, high)]
    while (width := brackets[-1][1] - brackets[-1][0]) > FORESEEN * high:
        cut = torch.linspace(*brackets[-1], 257, dtype=torch.float64)
        after = min(max(math.ceil((low + crossing - brackets[-1][0]) / width * 256), 1), 256)
        brackets.append((cut[after - 1].item(), cut[after].item()))
    if len(brackets) == 1:
        return low, high
    sides = (measured(torch.tensor(brackets[1:], dtype=torch.float64)) <= wanted).tolist()
    right = 0
    while right < len(sides) and sides[right] == [False, True]:
        right += 1
    return brackets[right]


def differentiable_time(measured: Callable[[Tensor], Tensor], time: float) -> Tensor:
    """`time` with its derivative in all that `measured` depends on: one Newton step, which leaves the value alone."""
    if not torch.is_grad_enabled() or not math.isfinite(time) or time == 0:
        return torch.tensor(time, dtype=torch.float64)
    moment = torch.tensor(time, dtype=torch.float64, requires_grad=True)
    now = measured(moment.detach())
    if not now.requires_grad or now.item() == 0:  # nothing to differentiate; or it jumps to zero, at a time of its own
        return moment.detach()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(measured(moment).log(), moment)
    now = now.log()
    return moment.detach() - (now - now.detach()) / slope
