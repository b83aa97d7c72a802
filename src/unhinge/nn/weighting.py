r"""Weights that restore balance  [eq: class-weights].

With examples weighted by :math:`a_c \propto n_c^{-1/2}`, classifier and scaled class means of an imbalanced set move
exactly as those of a balanced one. Weights :math:`1/n_c`, often recommended, over-correct: the smallest classes then
dominate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from unhinge.theory.validation import check_number

__all__ = ["class_weights"]


def class_weights(counts: Tensor | Sequence[int], power: float = 0.5) -> Tensor:
    r"""Class weights :math:`a_c \propto n_c^{-\text{power}}` of mean 1 over the examples, shape :math:`(C,)`.

    .. math:: a_c = n_c^{-q}\,\frac{\sum_k n_k}{\sum_k n_k^{1-q}},\qquad \frac1n\sum_c n_c a_c = 1.

    The mean 1 keeps a learning rate and a penalty that were tuned without weights. A class without examples gets weight
    0: nothing in the data asks for it.

    Arguments:
        counts: Examples per class :math:`n_c`, such as ``torch.bincount(target, minlength=C)``; fractions are welcome.
        power: :math:`q`; 1/2 makes the dynamics balanced, 0 leaves all weights 1, 1 is the inverse frequency.

    Example:
        >>> class_weights([90, 10])
        tensor([0.8333, 2.5000])
        >>> from unhinge.nn import UnhingedLoss
        >>> UnhingedLoss(weight=class_weights([90, 10]))
        UnhingedLoss(weight=tensor([0.8333, 2.5000]))
    """
    if isinstance(counts, str):
        raise ValueError(f"counts must hold the examples of each class, got the word {counts!r}.")
    try:
        given = torch.as_tensor(counts)
    except (TypeError, RuntimeError, ValueError):
        raise ValueError(f"counts must hold the examples of each class, got {type(counts).__name__}.") from None
    if given.ndim != 1 or given.is_complex() or given.dtype == torch.bool:
        raise ValueError(
            f"counts must hold one number per class, shape (C,), got {tuple(given.shape)} of {given.dtype}. "
            "From labels: torch.bincount(target, minlength=num_classes)."
        )
    check_number("power", power)
    if not math.isfinite(power):
        raise ValueError(f"power must be finite, got {power}.")
    numbers = given.to(torch.float64)
    if not (torch.isfinite(numbers) & (numbers >= 0)).all() or not (numbers > 0).any():
        raise ValueError(
            "counts must be finite, not negative and not all zero, got "
            f"{numbers.tolist() if len(numbers) <= 8 else [*numbers[:8].tolist(), '...']}."
        )
    seen = numbers > 0
    if not bool(seen.all()):
        empty = (~seen).nonzero().flatten().tolist()
        warnings.warn(
            f"{len(empty)} of {len(numbers)} classes have no examples and get weight 0, the first of them class "
            f"{empty[0]}. If they occur later, count them first.",
            stacklevel=2,
        )
    # relative to the class of the largest weight, so that powers may vanish but not overflow
    present = numbers[seen]
    share = torch.where(seen, numbers, 1.0) / (present.min() if power > 0 else present.max())
    weights = torch.where(seen, share**-power, 0.0)
    weights = weights * (numbers.sum() / (numbers * weights).sum())
    return weights.to(given.dtype if given.is_floating_point() else torch.get_default_dtype())
