"""The statistics of seeds: mean and spread, Student's test on paired differences, a count of cases against all
arrangements of their runs, and Holm's correction of a family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEVEL", "Paired", "holm", "majority", "mean_and_spread", "paired"]

LEVEL = 0.05
ARRANGEMENTS = 1 << 18  # of the runs of a group: all of them up to here, else as many at random
AGREE = 1e-12  # a smaller spread is rounding: seeds that agree leave nothing to compare with


@dataclass(frozen=True)
class Paired:
    """What differences say; interval and p-value are None with fewer than two of them, or if all are the same."""

    mean: float
    low: float | None  # of the 95 % interval
    high: float | None
    p_value: float | None
    apart: float | None = None  # with a margin: p-value of the opposite, that they differ by more


def paired(differences: Sequence[float], margin: float | None = None) -> Paired:
    """Mean, 95 % interval and p-value: two-sided against 0, or with a margin two one-sided tests against its ends.

    Example:
        >>> found = paired([1.0, 2.0, 3.0])
        >>> found.mean, round(found.low, 2), round(found.high, 2)
        (2.0, -0.48, 4.48)
        >>> round(found.p_value, 3)
        0.074
    """
    mean, spread = mean_and_spread(differences)
    count = len(differences)
    if count < 2 or not spread > AGREE:
        return Paired(mean, None, None, None)
    from scipy import stats

    error = spread / math.sqrt(count)
    reach = float(stats.t.ppf(1 - LEVEL / 2, count - 1)) * error
    if margin is None:
        return Paired(mean, mean - reach, mean + reach, 2 * float(stats.t.sf(abs(mean) / error, count - 1)))
    p = max(float(stats.t.sf((margin + sign * mean) / error, count - 1)) for sign in (1, -1))
    apart = min(1.0, 2 * float(stats.t.sf((abs(mean) - margin) / error, count - 1)))
    return Paired(mean, mean - reach, mean + reach, p, apart)


def majority(groups: Sequence[NDArray[np.float64]]) -> tuple[int, int, float]:
    """In how many cases a method is better than the first one of its group, of how many, and a two-sided p-value.

    Cases of a group share the runs of its first method, so they are not independent and a sign test would be too sure.
    But if the methods do not differ, the runs of one seed could as well be exchanged: the count is compared with those
    of all arrangements of the runs within their seeds. However many seeds there are, p is at least twice the product of
    1 / m over the groups: so rarely is the first of m methods the best, or the worst, of every group by chance.

    Arguments:
        groups: Numbers of each method and seed, (m, s); larger is better, and groups share no runs.

    Example:
        >>> lost = np.array([[5.0, 5.0], [4.0, 4.5], [3.0, 4.0]])
        >>> majority([lost, lost])
        (0, 4, 0.228...)
    """
    wins = cases = 0
    chances = np.ones(1)
    for group in groups:
        methods = len(group) - 1
        wins, cases = wins + int((group.sum(1)[1:] > group.sum(1)[0]).sum()), cases + methods
        counts = _wins(_arranged(group)).ravel()
        chances = np.convolve(chances, np.bincount(counts, minlength=methods + 1) / len(counts))
    as_far = np.abs(np.arange(cases + 1) - cases / 2) >= abs(wins - cases / 2)
    return wins, cases, float(min(1.0, chances[as_far].sum()))


def _wins(sums: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many of the other methods have a larger sum than the first, which is the last axis."""
    found: NDArray[np.int64] = (sums[..., 1:] > sums[..., :1]).sum(-1)
    return found


def _arranged(group: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums over the seeds of each method, (..., m), for the arrangements of the runs within each seed."""
    methods, seeds = group.shape
    if methods * math.factorial(methods) ** (seeds - 1) <= ARRANGEMENTS:
        # of the first seed only which run is the first method's: the names of the others can be exchanged in all seeds
        turns = [[(k + shift) % methods for k in range(methods)] for shift in range(methods)]
        sums = group[np.array(turns), 0]
        for seed in range(1, seeds):
            sums = sums[..., None, :] + group[np.array(list(permutations(range(methods)))), seed]
        return sums
    drawn = np.random.default_rng(0).permuted(np.broadcast_to(group.T, (ARRANGEMENTS, seeds, methods)), axis=2)
    summed: NDArray[np.float64] = drawn.sum(1)
    return summed


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (with n - 1) of the seeds; nan where there are too few.

    Example:
        >>> mean_and_spread([0.5, 0.7])
        (0.6, 0.1414...)
    """
    if not values:
        return math.nan, math.nan
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for being a family, in their order (Holm 1979).

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = largest
    return corrected
