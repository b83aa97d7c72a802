r"""The scale that turns scores into probabilities, by the log loss of predictions for examples not trained on
[eq: temperature].

:math:`p = \mathrm{softmax}(\beta z)` with one :math:`\beta > 0`, as temperature scaling of networks (Guo, 2017). The
log losses of a fixed grid of :math:`\beta` are summed, so that parts of the data add up, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.utils import gen_batches

from unhinge.sklearn.sums import Array

__all__ = ["HeldOutLosses", "digest_of", "enough_of", "fold_of"]

GRID = np.logspace(-2, 4, 61)  # beta, in units of 1/scale
FOLDS = 5
ENOUGH = 4096  # examples to fit one number to


@dataclass(frozen=True)
class HeldOutLosses:
    """The log loss at each beta of the grid, summed over held-out examples."""

    scale: float | None  # a typical size of the first scores: the unit of 1/beta
    totals: Array  # (len(GRID),)

    @classmethod
    def empty(cls) -> HeldOutLosses:
        """Of no examples yet."""
        return cls(None, np.zeros(len(GRID)))

    def add(self, scores: Array, kinds: Array, weight: Array) -> HeldOutLosses:
        """With more examples: scores (n, C) from a classifier that has not seen them."""
        scale = _size(scores, weight) if self.scale is None else self.scale
        if not scale:  # no examples, or a classifier that tells nothing apart
            return self
        # a row shifted by a constant has the same probabilities, and stays in range
        z = (scores - scores.max(1, keepdims=True)) / scale
        own_score = z[np.arange(len(z)), kinds]
        logs = np.array([weight @ (np.log(np.exp(beta * z).sum(1)) - beta * own_score) for beta in GRID])
        return HeldOutLosses(scale, self.totals + logs)

    @property
    def beta(self) -> float:
        """The best beta: vertex of the parabola, in log beta, through the lowest point of the grid; 1 of nothing."""
        if self.scale is None:
            return 1.0
        low = int(np.argmin(self.totals))
        shift = 0.0
        if 0 < low < len(GRID) - 1:
            left, middle, right = self.totals[low - 1 : low + 2]
            bend = left - 2 * middle + right
            shift = 0.5 * (left - right) / bend if bend > 0 else 0.0
        step = np.log(GRID[1] / GRID[0])
        return float(GRID[low] * np.exp(np.clip(shift, -0.5, 0.5) * step) / self.scale)


def _size(scores: Array, weight: Array) -> float:
    """Root of the weighted mean square of the scores around the mean of their row."""
    if not weight.sum() > 0:
        return 0.0
    apart = scores - scores.mean(1, keepdims=True)
    largest = float(np.abs(apart).max())
    if not 0 < largest < np.inf:
        return 0.0
    return largest * float(np.sqrt(weight @ ((apart / largest) ** 2).mean(1) / weight.sum()))  # squares stay in range


def digest_of(x: Array) -> Array:
    """64 bits of each row, of its content alone: equal rows share them, wherever they stand.

    Example:
        >>> x = np.array([[0.0, 1.0], [1.0, 0.0], [-0.0, 1.0]])
        >>> first, second, third = digest_of(x)
        >>> bool(first == third), bool(first == second)
        (True, False)
    """
    count, width = x.shape
    odd = np.random.default_rng(0).integers(0, 2**63, width, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    total = np.empty(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for rows in gen_batches(count, max(1, (1 << 15) // width)):  # in the processor's cache
            # + 0.0 makes -0.0 the zero it equals; the shift lets the high bits of short numbers reach the low ones
            words = (np.asarray(x[rows], dtype=np.float64, order="C") + 0.0).view(np.uint64)
            words ^= words >> np.uint64(29)
            total[rows] = words @ odd
        for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # splitmix64: every bit reaches every bit
            total = (total ^ (total >> np.uint64(31))) * np.uint64(factor)
    return total ^ (total >> np.uint64(31))


def fold_of(digest: Array) -> Array:
    """One of five folds for each row, by its content, so that none is held out from a copy of itself.

    The order of the rows and copies of them therefore change nothing: weights count as repetitions do.
    """
    return ((digest >> np.uint64(48)) % np.uint64(FOLDS)).astype(np.int64)


def enough_of(digest: Array, weight: Array) -> Array:
    """Places of the rows to calibrate on: all, or some `ENOUGH` different ones, again chosen by their content.

    Example:
        >>> digest = digest_of(np.random.default_rng(0).normal(size=(20_000, 3)))
        >>> 3800 < len(enough_of(digest, np.ones(20_000))) < 4400
        True
    """
    weighted = np.flatnonzero(weight > 0)
    low = digest[weighted] & np.uint64(0xFFFFFFFF)  # other bits than the fold's
    different = len(np.unique(low)) if len(weighted) > ENOUGH else 0
    return weighted if different <= ENOUGH else weighted[low < np.uint64(2**32 * ENOUGH // different)]
