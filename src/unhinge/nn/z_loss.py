r"""The Z-loss: how many standard deviations the true logit lies above the mean of all  [eq: z-loss]."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from unhinge.nn.contract import check_positive, class_axis
from unhinge.nn.precision import outcome_dtype, widened
from unhinge.nn.three_numbers import loss_from_logits
from unhinge.theory.validation import check_number

__all__ = ["OFFSET", "SLOPE", "check_z", "z_loss", "z_rule"]

SLOPE, OFFSET = 1.0, 10.0  # of the loss, its module and the many-class head alike


def z_rule(
    own: Tensor, total: Tensor, squares: Tensor, num_classes: int, slope: float = SLOPE, offset: float = OFFSET
) -> Tensor:
    r"""The loss from three numbers, with :math:`\mu = S/C` and :math:`\varsigma^2 = R/C - \mu^2`.

    Example:
        >>> # u = 1
        >>> z_rule(
        ...     torch.tensor(2.0),
        ...     torch.tensor(2.0),
        ...     torch.tensor(4.0),
        ...     2,
        ...     slope=1.0,
        ...     offset=1.0,
        ... )
        tensor(0.6931)
    """
    mean, moment = total / num_classes, squares / num_classes
    # Where all logits are equal they have no variance, and the loss would be 0/0: the rounding of the difference is
    # added, which is the least that a variance can be told from, whatever the unit of the logits.
    variance = (moment - mean.square()).clamp_min(0) + torch.finfo(moment.dtype).eps * moment
    variance = torch.where(moment > 0, variance, 1.0)
    score = (own - mean) * torch.rsqrt(variance)
    return F.softplus(slope * (offset - score)) / slope


def z_loss(
    logits: Tensor,
    target: Tensor,
    slope: float = SLOPE,
    offset: float = OFFSET,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    dim: int | None = None,
) -> Tensor:
    r"""The Z-loss of de Brébisson and Vincent (arXiv 1604.08859), called as ``F.cross_entropy`` is.

    .. math:: \ell(z, y) = \frac1a\,\mathrm{softplus}\big(a(b - u)\big),\qquad u = \frac{z_y - \mu}{\varsigma},

    with :math:`\mu` and :math:`\varsigma^2` the mean and the variance of the logits over the classes. Shifting or
    scaling all logits changes nothing: like the rank of the true class, the loss asks how far it stands out. It is not
    a probability. Where all logits are equal it has no direction; start from weights that are not zero.

    Arguments:
        logits: :math:`z`, shape :math:`(*, C)`.
        target: Classes :math:`(*,)`, or probabilities :math:`(*, C)`, which give the expected loss.
        slope: :math:`a > 0`, how sharply the loss bends at the offset.
        offset: :math:`b`, the score that is enough. No score exceeds :math:`\sqrt{C-1}`, so for few classes take less.
        weight, ignore_index, reduction, label_smoothing, dim: As in :func:`~unhinge.nn.functional.unhinged_loss`.

    Example:
        >>> # u = 1
        >>> z_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), slope=1.0, offset=1.0)
        tensor(0.6931)
    """
    check_z(slope, offset)
    axis = class_axis(logits, target, weight, dim)
    # The loss does not see a common shift, and without one the variance does not cancel: 1e4 + z is as good as z.
    z = logits.to(widened(logits.dtype))
    centered = z - z.mean(axis, keepdim=True)
    # Nor a common factor: in units of the largest the squares are neither zero nor infinite. The gradient is that of
    # the logits, since the loss has the same value.
    largest = centered.detach().abs().amax(axis, keepdim=True) if logits.shape[axis] else centered
    centered = centered / torch.where(largest > 0, largest, 1.0)
    rule = partial(z_rule, slope=slope, offset=offset)
    result = loss_from_logits(rule, centered, target, weight, ignore_index, reduction, label_smoothing, dim=axis)
    given = torch.promote_types(logits.dtype, target.dtype) if target.is_floating_point() else logits.dtype
    return result.to(outcome_dtype(given, logits.device))


def check_z(slope: float = SLOPE, offset: float = OFFSET) -> None:
    check_positive("slope", slope)
    check_number("offset", offset)
    if not math.isfinite(offset):
        raise ValueError(f"offset must be finite, got {offset}.")
