r"""What one pass keeps: weights, sums and second moments per class, mergeable  [eq: linear-classifier].

Everything is taken relative to a fixed origin, so that a large common offset of the data costs no digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

__all__ = ["Array", "Sums"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Sums:
    """Sums over examples x - origin of weight w; those of two parts add up, and a part can be taken away."""

    mass: Array  # (C,), sum of w
    sums: Array  # (C, p), sum of w (x - origin)
    second: Array | None  # (p, p), sum of w (x - origin)(x - origin)^T over all classes

    @classmethod
    def of(cls, x: Array, kinds: Array, weight: Array, num_classes: int, origin: Array, second: bool) -> Sums:
        """Of one batch of examples x (n, p) with classes `kinds` and weights."""
        return cls.by_fold(x, kinds, weight, num_classes, origin, second, np.zeros(len(x), dtype=np.int64), 1)[0]

    @classmethod
    def by_fold(
        cls,
        x: Array,
        kinds: Array,
        weight: Array,
        num_classes: int,
        origin: Array,
        second: bool,
        fold: Array,
        num_folds: int,
    ) -> list[Sums]:
        """Of each fold of a batch, in one pass over it."""
        cells, count = fold * num_classes + kinds, num_folds * num_classes
        apart = np.subtract(x, origin, dtype=np.float64)
        rows = sparse.csr_array((weight, (cells, np.arange(len(x)))), shape=(count, len(x)))
        sums = (rows @ apart).reshape(num_folds, num_classes, -1)
        mass = np.bincount(cells, weight, count).reshape(num_folds, num_classes)
        parts = []
        for number in range(num_folds):
            moment = None
            if second:
                here = apart if num_folds == 1 else apart[fold == number]
                theirs = weight if num_folds == 1 else weight[fold == number]
                moment = here.T @ (theirs[:, None] * here)
            parts.append(cls(mass[number], sums[number], moment))
        return parts

    def __add__(self, other: Sums) -> Sums:
        second = None if self.second is None or other.second is None else self.second + other.second
        return Sums(self.mass + other.mass, self.sums + other.sums, second)

    def __sub__(self, other: Sums) -> Sums:
        second = None if self.second is None or other.second is None else self.second - other.second
        # What cancels must cancel: a class that is gone has no mean, not one of rounding. Weights that were added and
        # taken away again in a thousand calls leave some 1e-13 of themselves.
        left = self.mass - other.mass
        gone = left <= 1e-12 * self.mass
        sums = np.where(gone[:, None], 0.0, self.sums - other.sums)
        return Sums(np.where(gone, 0.0, left), sums, second)
