"""The logit of the true class, looked up the way torch's negative log likelihood looks it up."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

__all__ = ["true_logit"]


def true_logit(logits: Tensor, labels: Tensor, axis: int, ignore_index: int) -> Tensor:
    """The logit of each label, 0 for an ignored one, in the shape of `labels`.

    ``F.nll_loss`` takes every shape with the classes in axis 1 (or alone), knows what to ignore, and calls an
    impossible label an IndexError. Its backward pass wants plain strides beyond two axes, hence the two rearrangements,
    both free in the usual layouts.

    Example:
        >>> import torch
        >>> true_logit(
        ...     torch.tensor([[3.0, 1.0], [2.0, 5.0]]),
        ...     torch.tensor([0, -100]),
        ...     axis=1,
        ...     ignore_index=-100,
        ... )
        tensor([3., -0.])
    """
    shape = labels.shape
    if axis != logits.ndim - 1:
        logits = logits.movedim(axis, 1).contiguous()
    elif logits.ndim > 2:
        logits, labels = logits.flatten(0, -2), labels.flatten()
    return -F.nll_loss(logits, labels, ignore_index=ignore_index, reduction="none").reshape(shape)
