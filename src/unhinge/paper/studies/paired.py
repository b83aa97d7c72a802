"""The statistics of seeds: mean and spread, Student's test on paired differences, and Holm's correction of a family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LEVEL", "Paired", "holm", "mean_and_spread", "paired"]

LEVEL = 0.05
AGREE = 1e-12  # a smaller spread is rounding: seeds that agree leave nothing to compare with


@dataclass(frozen=True)
class Paired:
    """What differences say; interval and p-value are None with fewer than two of them, or if all are the same."""

    mean: float
    low: float | None  # of the 95 % interval
    high: float | None
    p_value: float | None


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
        p = 2 * float(stats.t.sf(abs(mean) / error, count - 1))
    else:
        p = max(float(stats.t.sf((margin + sign * mean) / error, count - 1)) for sign in (1, -1))
    return Paired(mean, mean - reach, mean + reach, p)


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
