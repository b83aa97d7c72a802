"""From one loss per example to what the caller asked for, with the weights and omissions of cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["example_weights", "reduce_labelled", "reduce_loss"]


def reduce_loss(loss: Tensor, reduction: str, size: Tensor | int) -> Tensor:
    """Each, their sum, or their sum over `size`: the total weight of the examples, or how many there are.

    A size of 0 (an empty batch, or nothing but ignored examples) gives NaN for the mean, as in torch.
    """
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / size


def reduce_labelled(loss: Tensor, kept: Tensor, weights: Tensor | None, reduction: str) -> Tensor:
    """The reduction of losses of class indices: without the ignored ones, the mean over the total of the weights."""
    # where, not a product: an ignored example may hold NaN
    size = kept.sum() if weights is None else torch.where(kept, weights, 0).sum()
    return reduce_loss(torch.where(kept, loss, 0), reduction, size)


def example_weights(class_weight: Tensor | None, labels: Tensor, kept: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The weight of the class of each example; `None` if all weigh the same. Ignored examples get any."""
    if class_weight is None:
        return None
    # not class_weight[labels]: indexing by a label without axes reads it, which vmap forbids
    index = torch.where(kept, labels, 0)
    return class_weight.index_select(0, index.reshape(-1)).reshape(index.shape).to(dtype)
