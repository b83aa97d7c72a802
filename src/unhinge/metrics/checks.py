"""What the metrics accept: tensors, or anything numpy reads as numbers; finite, not empty, labels in range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unhinge.theory.numerics import widened
from unhinge.theory.validation import check_unmasked

__all__ = ["Labels", "Numbers", "as_labels", "as_numbers", "as_probabilities", "at_least_single"]

Numbers: TypeAlias = Tensor | NDArray[Any] | Sequence[float] | Sequence[Sequence[float]]
Labels: TypeAlias = Tensor | NDArray[Any] | Sequence[int]


def as_numbers(name: str, value: Numbers, shape: tuple[str | int, ...]) -> Tensor:
    """A finite, non-empty float tensor of `shape`, where a word stands for any size; whole numbers become float64."""
    number = _as_tensor(name, value, "numbers")
    if number.is_complex():
        raise ValueError(f"{name} must be real, got {number.dtype}.")
    wanted = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    fits = number.ndim == len(shape) and all(
        isinstance(want, str) or want == have for want, have in zip(shape, number.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(number.shape)}.")
    if number.numel() == 0:
        raise ValueError(f"{name} is empty, shape {tuple(number.shape)}; at least one example is needed.")
    number = number if number.is_floating_point() else number.double()
    bad = int((~torch.isfinite(number.detach())).sum())
    if bad:
        raise ValueError(
            f"{name} contains {bad} NaN or infinite values of {number.numel()}. "
            "Find where they come from (an overflow in half precision?) before measuring."
        )
    return number


def _as_tensor(name: str, value: object, what: str) -> Tensor:
    check_unmasked(name, value)
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(_plain(value))
    except (TypeError, ValueError, RuntimeError):
        came = f"{type(value).__name__} of {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
        raise ValueError(f"{name} must be a tensor or an array of {what}, got {came}.") from None


def _plain(value: object) -> NDArray[Any]:
    """An array of a form that torch takes: no negative strides, the byte order of the machine, and no lock on it."""
    array = np.asarray(value)
    native = array.dtype.newbyteorder("=") if array.dtype.byteorder in "<>" else array.dtype
    plain = np.ascontiguousarray(array, dtype=native).reshape(array.shape)
    return plain if plain.flags.writeable else plain.copy()


def as_labels(name: str, value: Labels, size: int, num_classes: int) -> Tensor:
    """Labels :math:`0 .. C - 1` of `size` examples, as int64."""
    labels = _as_tensor(name, value, "labels")
    if labels.numel() == 0:
        raise ValueError(f"{name} is empty; at least one example is needed.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(
            f"{name} must hold integer labels, got {labels.dtype}. Soft labels: take the class, {name}.argmax(1)."
        )
    if labels.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), one label per example, got {tuple(labels.shape)}.")
    labels = labels.to(torch.int64)  # torch has no minimum of unsigned numbers
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"{name} must lie in 0 .. {num_classes - 1} (there are {num_classes} classes), got values from {low} to "
            f"{high}. Relabel the classes; examples to be ignored must be left out."
        )
    return labels


def as_probabilities(value: Numbers) -> Tensor:
    """Rows that are distributions, up to the rounding of their dtype; logits are told from probabilities."""
    probabilities = as_numbers("probabilities", value, ("n", "C")).detach()
    # An average over models or a softmax in another precision may be off by more than eps; logits are off by far more.
    budget = max(1e-3, 4 * torch.finfo(probabilities.dtype).eps)
    wide = widened(probabilities)
    drift, low = (wide.sum(1) - 1).abs().max().item(), wide.min().item()
    if drift > budget or low < -budget:
        what = f"a row sums to 1 only within {drift:.3g}" if drift > budget else f"one is {low:.3g}"
        raise ValueError(
            f"probabilities must be rows of numbers in [0, 1] that sum to 1, but {what}. "
            "If these are logits, pass logits.softmax(1)."
        )
    return probabilities


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """The dtype of answers to inputs of `dtype`: the same, but for half precision, which would round them away."""
    return dtype if dtype == torch.float64 else torch.float32
