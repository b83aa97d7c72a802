r"""When each class becomes right: the first time at which a share of its examples is classified correctly
[eq: learned]."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from unhinge.theory.numerics import RESOLUTION
from unhinge.theory.path import Path
from unhinge.theory.validation import check_number

__all__ = ["first_learned", "learned"]

GRID = 256  # times looked at before a crossing is narrowed down
EARLY_DECADES = 8  # below a hundredth of the end: a path that settles as 1/t has its end at a million times its scale
AT_ONCE = 64  # of them: classes that are right by then are not asked about any more
FINE_GRID = 17
MOST_DOUBLINGS = 22  # of the rounding by which a crossing is late: to 1e-9 of the time
SETTLED = 1e-6  # so near to its direction, a path changes no decision but those at a tie
LATEST = 4e15  # where a path has no direction, or never comes near it


def learned(
    path: Path,
    num_classes: int,
    fraction: float,
    ends: float | None = None,
    correct: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """The first time at which at least `fraction` of each class is right, (C,) float64; infinite if never.

    Looked for up to where the path has come within a millionth of its direction, and some time beyond. A class that is
    right only for a short while, between two of the 640 times looked at (or after the first 256 steps), is not seen.

    Arguments:
        ends: The time after which all rates are zero; None if some rate stays positive.
        correct: As for :func:`first_learned`, where a path has a shorter way than to ask about all examples.
    """
    labels = path.labels  # first: of a streamed start they are gone
    try:
        with torch.no_grad():
            settled = path.time_to(SETTLED).item()
    except ValueError:  # no direction: a start of zeros, steps that oscillate
        settled = math.inf
    until = 4 * settled if 0 < settled < LATEST / 4 else LATEST
    if ends is not None and math.isfinite(ends):
        until = min(until, max(float(math.ceil(ends)) if path.discrete else ends, 1.0))
    with torch.no_grad():
        asked = correct or (lambda moments, some: path.correct(moments).cpu()[:, some])
        return first_learned(asked, labels, num_classes, fraction, until, path.discrete)


def first_learned(
    correct: Callable[[Tensor, Tensor], Tensor],
    labels: Tensor,
    num_classes: int,
    fraction: float,
    until: float,
    discrete: bool,
) -> Tensor:
    """The first time at which at least `fraction` of each class is right, (C,) float64; infinite if never.

    Classes are looked at on a grid of times that is even on a logarithmic scale, and even on a linear one too below a
    hundredth of `until` (a millionth of one time unit, where `until` is :data:`LATEST`, of which nothing is known).
    Each crossing is then narrowed down to rounding (to the step, if discrete). A class that is right only between two
    neighbors of the grid is not seen.

    Arguments:
        correct: From times (m,) and places (k,) of some examples to whether each of these is right, (m, k) bool.
        labels: The class of each example, (n,).
        num_classes: The number of classes.
        fraction: A number in (0, 1].
        until: The last time to look at.
        discrete: Whether times are whole steps.
    """
    check_number("fraction", fraction)
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must lie in (0, 1], got {fraction}: it is a share of the examples of a class.")
    labels = labels.cpu()
    counts = torch.bincount(labels, minlength=num_classes).double()
    wanted = fraction * counts * (1 - 1e-12)  # 0.3 of 10 examples are 3, whatever 0.3 rounds to

    def reached(moments: Tensor, asked: Tensor) -> Tensor:
        """Whether each class is, (m, C) bool; of classes that are not asked for, (C,) bool, nothing is computed."""
        some = asked[labels].nonzero().flatten()
        hits = correct(moments, some).cpu().double()
        sums = torch.zeros(len(moments), num_classes, dtype=torch.float64).index_add(1, labels[some], hits)
        return (sums >= wanted) & asked

    bend = until / 100 if until < LATEST else 1e-6
    even = torch.linspace(0, bend, GRID, dtype=torch.float64)
    middle = math.log10(bend)
    early = torch.logspace(middle - EARLY_DECADES, middle, 16 * EARLY_DECADES, dtype=torch.float64)
    late = torch.logspace(middle, math.log10(until), GRID, dtype=torch.float64)
    grid = torch.cat([even, early, late])
    if discrete:  # every one of the first steps: momentum may make a class right for one step only
        grid = torch.cat([torch.arange(min(GRID, until) + 1, dtype=torch.float64), grid.round()])
    grid = grid.unique()
    known, missing = torch.zeros(0, num_classes, dtype=torch.bool), counts > 0
    for piece in grid.split(AT_ONCE):
        known = torch.cat([known, reached(piece, missing)])
        missing = missing & ~known.any(0)  # of the others later times cannot be the first
        if not bool(missing.any()):
            break
    times = torch.full((num_classes,), math.inf, dtype=torch.float64)
    found = known.any(0).nonzero().flatten().tolist()
    first = [int(known[:, index].double().argmax()) for index in found]
    # Where each class may cross; all of them are narrowed down together, since many cross at about the same time.
    brackets = {c: (grid[max(k - 1, 0)].item(), grid[k].item()) for c, k in zip(found, first, strict=True)}
    times[found] = torch.tensor([high for _, high in brackets.values()], dtype=torch.float64)
    while brackets:
        inner = {c: _between(low, high, discrete) for c, (low, high) in brackets.items() if _open(low, high, discrete)}
        if not inner:
            break
        moments = torch.cat(list(inner.values())).unique()
        narrowed = torch.zeros(num_classes, dtype=torch.bool)
        narrowed[list(inner)] = True
        right, brackets = reached(moments, narrowed), {c: brackets[c] for c in inner}
        for c, times_of in inner.items():
            seen = right[torch.searchsorted(moments, times_of), c]
            where = int(seen.double().argmax())
            narrower = times_of[max(where - 1, 0)].item(), times_of[where].item()
            if not bool(seen.any()) or narrower == brackets[c]:  # a tie that rounding decides, here and there otherwise
                del brackets[c]
            else:
                brackets[c], times[c] = narrower, narrower[1]
    if not discrete:  # a step is no tie, but a crossing is one: there it must be right as a path says that is asked
        for c in found:
            times[c] = _confirmed(partial(_right_alone, reached, counts > 0, c), times[c].item())
    return times


def _right_alone(reached: Callable[[Tensor, Tensor], Tensor], asked: Tensor, index: int, moment: Tensor) -> bool:
    return bool(reached(moment, asked)[0, index])


def _confirmed(right: Callable[[Tensor], bool], time: float) -> float:
    """The time, or as many roundings later as it takes until it is right when it is asked about alone: products of
    matrices round a little differently when other times, or only some examples, are asked about with it."""
    later = time
    for doubling in range(MOST_DOUBLINGS):
        if right(torch.tensor([later], dtype=torch.float64)):
            return later
        later = time * (1 + 2**doubling * RESOLUTION)
    return time


def _open(low: float, high: float, discrete: bool) -> bool:
    """Whether there are further times between the two."""
    return high > low and high - low > (1 if discrete else RESOLUTION * high)


def _between(low: float, high: float, discrete: bool) -> Tensor:
    inner = torch.linspace(low, high, FINE_GRID, dtype=torch.float64)
    return (inner.round() if discrete else inner).unique()
