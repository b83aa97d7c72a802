r"""The hinge loss that the unhinged loss is the unhinged version of  [eq: hinge]."""

from __future__ import annotations

import torch
from torch import Tensor

from unhinge.nn.contract import check_not_negative, check_reduction, class_axis, is_soft
from unhinge.nn.lookup import true_logit
from unhinge.nn.precision import outcome_dtype, widened
from unhinge.nn.reduction import example_weights, reduce_labelled

__all__ = ["multiclass_hinge_loss"]


def multiclass_hinge_loss(
    logits: Tensor,
    target: Tensor,
    margin: float = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    *,
    dim: int | None = None,
) -> Tensor:
    r"""The multi-class hinge loss :math:`\sum_{j\ne y}\max(0,\; z_j - z_y + m)`.

    Without the maximum and the margin, and divided by :math:`C-1`, it is the unhinged loss at its default gamma: where
    every class violates the margin, ``multiclass_hinge_loss == (C - 1) * (unhinged_loss + margin)``. It is the sum over
    the classes; :func:`torch.nn.functional.multi_margin_loss` divides it by :math:`C`.

    Arguments:
        logits: Scores, in the shapes of :func:`unhinged_loss`.
        target: Class indices, in any integer dtype.
        margin: :math:`m \ge 0`.
        weight, ignore_index, reduction, dim: As in :func:`unhinged_loss`.

    Example:
        >>> multiclass_hinge_loss(torch.tensor([[3.0, 2.5, 1.0]]), torch.tensor([0]))
        tensor(0.5000)
    """
    check_reduction(reduction)
    check_not_negative("margin", margin)
    if is_soft(target):
        raise ValueError(f"multiclass_hinge_loss takes class indices of an integer dtype, got {target.dtype}.")
    axis = class_axis(logits, target, weight, dim)
    dtype = widened(logits.dtype)
    labels = target.to(torch.int64)
    kept = labels != ignore_index
    picked = true_logit(logits, labels, axis, ignore_index).to(dtype)
    slack = (logits - picked.unsqueeze(axis) + margin).clamp_min(0)
    loss = slack.sum(axis) - margin  # the true class adds exactly max(0, m), with no gradient left
    weights = example_weights(weight, labels, kept, dtype)
    result = reduce_labelled(loss if weights is None else weights * loss, kept, weights, reduction)
    return result.to(outcome_dtype(logits.dtype, logits.device))
