r"""Softmax over a shortlist of classes, with all others summed to second order  [eq: shortlist-softmax]."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["shortlist_softmax_rule"]


def shortlist_softmax_rule(
    own: Tensor, near: Tensor, counted: Tensor, total: Tensor, squares: Tensor, num_classes: int
) -> Tensor:
    r"""Cross-entropy in which only the classes of a shortlist are looked at one by one.

    .. math:: \ell = -z_y + \log\Big(e^{z_y} + \sum_{j\in L} e^{z_j}
        + n\,e^{\mu}\big(1 + \tfrac12\varsigma^2\big)\Big),

    where :math:`n`, :math:`\mu` and :math:`\varsigma^2` are the number, mean and variance of the logits of all other
    classes, which follow from the sum and the sum of squares of all. If the shortlist holds all classes it is
    cross-entropy; if the others are close together it is nearly so.

    Arguments:
        own: :math:`z_y`, shape :math:`(*)`.
        near: Logits of the shortlist, :math:`(*, k)`.
        counted: Which of them count, :math:`(*, k)`: not the true class, and none twice.
        total, squares: Sum and sum of squares of the logits of all classes, :math:`(*)`.
        num_classes: :math:`C`.

    Example:
        >>> z = torch.tensor([[2.0, 1.0, 0.0, 0.0]])
        >>> shortlist_softmax_rule(
        ...     z[:, 0],
        ...     z[:, 1:2],
        ...     torch.tensor([[True]]),
        ...     z.sum(1),
        ...     z.square().sum(1),
        ...     4,
        ... )
        tensor([0.4938])
        >>> torch.nn.functional.cross_entropy(z, torch.tensor([0]))
        tensor(0.4938)
    """
    kept = torch.where(counted, near, 0.0)
    others = num_classes - 1 - counted.sum(-1)
    many = others.clamp_min(1).to(total.dtype)
    mean = (total - own - kept.sum(-1)) / many
    # Rounding may leave a variance just below zero.
    variance = ((squares - own.square() - kept.square().sum(-1)) / many - mean.square()).clamp_min(0)
    tail = torch.where(others > 0, many.log() + mean + torch.log1p(variance / 2), -torch.inf)
    each = torch.cat([own[..., None], near.masked_fill(~counted, -torch.inf), tail[..., None]], -1)
    return torch.logsumexp(each, -1) - own
