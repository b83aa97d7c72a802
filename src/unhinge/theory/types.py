"""What the public door of the theory accepts, as types: a string in the place of a rate is an error before it runs.

Tensors, numpy arrays and lists are accepted alike. A tensor or an array keeps its dtype. A list has none: it takes that
of the tensors and arrays beside it, and float64 where there are none, because Python's own floats have 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

if TYPE_CHECKING:
    from unhinge.theory.schedules import Schedule

__all__ = ["Kernel", "Labels", "Matrix", "Number", "OneRate", "Operator", "Rate", "Time", "Vector"]

# One number. `float` includes int, as everywhere in Python's typing; a tensor with one element keeps its gradient.
Number: TypeAlias = "float | np.integer[Any] | np.floating[Any] | Tensor"

# Rows of vectors, (n, p), and one vector, (C,).
Matrix: TypeAlias = "Tensor | npt.NDArray[Any] | Sequence[Sequence[float]]"
Vector: TypeAlias = "Tensor | npt.NDArray[Any] | Sequence[float]"

# Integer labels (n,), or soft labels (n, C).
Labels: TypeAlias = "Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[Sequence[float]]"

# Times of a flow, steps of a descent, distances: one of them, or any number in any shape.
Time: TypeAlias = "Number | npt.NDArray[Any] | Sequence[float] | Sequence[Sequence[float]]"

# A learning rate: a number, a schedule, or any function of time. A function may be written for tensors or for floats.
OneRate: TypeAlias = "Number | Schedule | Callable[[Tensor], Tensor | float] | Callable[[float], float]"

# One rate for everything, or a pair (features, classifier).
Rate: TypeAlias = "OneRate | Sequence[OneRate]"


class Operator(Protocol):
    """What multiplies arrays without being one: a scipy ``LinearOperator``, a sparse matrix."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __matmul__(self, other: Any, /) -> Any: ...


# A kernel: a matrix, an operator, or a function of rows.
Kernel: TypeAlias = "Matrix | Operator | Callable[[Tensor], Tensor]"
