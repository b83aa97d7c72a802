r"""Losses that know the logits by three numbers only: the true one, their sum and their sum of squares.

Vincent, de Brébisson and Bouthillier (arXiv 1412.7091, 1606.08061) call them the spherical family. A member is written
once, as a rule :math:`f(z_y, S, R, C)` with :math:`S = \sum_c z_c` and :math:`R = \sum_c z_c^2`. From logits (here) it
is called as ``nn.CrossEntropyLoss`` is; from features :class:`~unhinge.nn.ManyClassHead` asks for the three numbers
without forming any logit  [eq: three-numbers].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unhinge.nn.contract import check_reduction, check_smoothing, class_axis, is_soft, refuse_ignoring
from unhinge.nn.lookup import true_logit
from unhinge.nn.precision import outcome_dtype, widened
from unhinge.nn.reduction import example_weights, reduce_labelled, reduce_loss

__all__ = ["Rule", "loss_from_logits"]

# (own, total, squares, num_classes) -> losses; the three tensors broadcast against each other
Rule = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def loss_from_logits(
    rule: Rule,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    dim: int | None = None,
) -> Tensor:
    r"""The loss :math:`\sum_c q_c f(z_c, S, R, C)` of targets :math:`q`, as ``F.cross_entropy`` treats its own terms.

    Class weights, ignored examples, smoothing and the denominator of the mean are those of cross-entropy, with the
    rule in the place of :math:`-\log\mathrm{softmax}(z)_c`.

    Arguments:
        rule: :math:`f`, applied to tensors that broadcast and have an axis for the classes, of size 1 or C.
        logits, target, weight, ignore_index, reduction, label_smoothing, dim: As in
            :func:`~unhinge.nn.functional.unhinged_loss`.

    Example:
        >>> squared = lambda own, total, squares, num_classes: squares - 2 * own + 1
        >>> loss_from_logits(
        ...     squared, torch.tensor([[3.0, 1.0, 1.0]]), torch.tensor([0])
        ... )
        tensor(6.)
    """
    check_reduction(reduction)
    check_smoothing(label_smoothing)
    axis = class_axis(logits, target, weight, dim)
    soft = is_soft(target)
    num_classes = logits.shape[axis]
    dtype = widened(logits.dtype, target.dtype) if soft else widened(logits.dtype)
    z = logits.to(dtype)
    total, squares = z.sum(axis, keepdim=True), z.square().sum(axis, keepdim=True)

    def spread(shares: Tensor) -> Tensor:
        """The loss of targets that are spread over the classes."""
        return (shares * rule(z, total, squares, num_classes)).sum(axis)

    along = None if weight is None else weight.to(dtype).reshape(-1, *[1] * (logits.ndim - axis - 1))
    if soft:
        refuse_ignoring(ignore_index)
        shares = (1 - label_smoothing) * target.to(dtype) + label_smoothing / num_classes
        loss = spread(shares if along is None else shares * along)
        result = reduce_loss(loss, reduction, total.numel())
    else:
        labels = target.to(torch.int64)
        kept = labels != ignore_index
        weights = example_weights(weight, labels, kept, dtype)
        own = true_logit(z, labels, axis, ignore_index).unsqueeze(axis)
        loss = rule(own, total, squares, num_classes).squeeze(axis)
        loss = loss if weights is None else weights * loss
        if label_smoothing > 0:
            even = spread(z.new_ones(()) if along is None else along) / num_classes
            loss = (1 - label_smoothing) * loss + label_smoothing * even
        result = reduce_labelled(loss, kept, weights, reduction)
    given = torch.promote_types(logits.dtype, target.dtype) if soft else logits.dtype
    return result.to(outcome_dtype(given, logits.device))
