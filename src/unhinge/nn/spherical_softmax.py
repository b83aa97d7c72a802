r"""The spherical softmax: squares in the place of exponentials  [eq: spherical-softmax]."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from unhinge.nn.contract import check_positive, class_axis
from unhinge.nn.precision import outcome_dtype, widened
from unhinge.nn.three_numbers import loss_from_logits

__all__ = [
    "EPSILON",
    "check_offset_of_squares",
    "spherical_softmax_loss",
    "spherical_softmax_rule",
    "squares_softmax_loss",
]

EPSILON = 1.0  # of the loss, its module and the many-class head alike


def spherical_softmax_rule(
    own: Tensor, total: Tensor, squares: Tensor, num_classes: int, epsilon: float = EPSILON
) -> Tensor:
    r"""The loss from three numbers, :math:`\log(R + C\varepsilon) - \log(z_y^2 + \varepsilon)`; the sum is not needed.

    Example:
        >>> # logits 2 and 0
        >>> spherical_softmax_rule(
        ...     torch.tensor(2.0), torch.tensor(2.0), torch.tensor(4.0), 2
        ... )
        tensor(0.1823)
    """
    return torch.log(squares.clamp_min(0) + num_classes * epsilon) - torch.log(own.square() + epsilon)


def spherical_softmax_loss(
    logits: Tensor,
    target: Tensor,
    epsilon: float = EPSILON,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    dim: int | None = None,
) -> Tensor:
    r"""The negative log-likelihood of the spherical softmax, called as :func:`torch.nn.functional.cross_entropy` is.

    .. math:: \ell(z, y) = -\log\frac{z_y^2 + \varepsilon}{\sum_c (z_c^2 + \varepsilon)}

    A class is likely if its logit is far from zero, on either side. The Taylor softmax is the same with :math:`z + 1`
    for :math:`z` and :math:`\varepsilon = 1`. From de Brébisson and Vincent (arXiv 1511.05042).

    Arguments:
        logits: :math:`z`, shape :math:`(*, C)`.
        target: Classes :math:`(*,)` or probabilities :math:`(*, C)`.
        epsilon: :math:`\varepsilon > 0`. It sets the scale of the logits: multiplying them by s and it by s squared
            changes nothing.
        weight, ignore_index, reduction, label_smoothing, dim: As in :func:`~unhinge.nn.functional.unhinged_loss`.

    Example:
        >>> # -log(5/6)
        >>> spherical_softmax_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.1823)
    """
    check_offset_of_squares(epsilon)
    return squares_softmax_loss(0.0, epsilon, logits, target, weight, ignore_index, reduction, label_smoothing, dim=dim)


def squares_softmax_loss(
    shift: float, epsilon: float, logits: Tensor, target: Tensor, weight: Tensor | None, *options: Any, dim: int | None
) -> Tensor:
    r""":math:`-\log\frac{x_y^2 + \varepsilon}{\sum_c (x_c^2 + \varepsilon)}` with :math:`x = z + \text{shift}`.

    Also where the squares overflow, in float32 from logits of 1e19 on: they are taken in units of the largest, which
    change neither the value nor, as constants, the gradient.
    """
    axis = class_axis(logits, target, weight, dim)
    given = torch.promote_types(logits.dtype, target.dtype) if target.is_floating_point() else logits.dtype
    x = logits.to(widened(given)) + shift
    root = math.sqrt(epsilon)
    # Not up to the largest number there is, whose inverse times the root is too small to be divided by.
    unit = x.detach().abs().amax(axis, keepdim=True).clamp(root, torch.finfo(x.dtype).max / 1024)

    def rule(own: Tensor, total: Tensor, squares: Tensor, num_classes: int) -> Tensor:
        least = root / unit
        return torch.log(squares + num_classes * least.square()) - 2 * torch.log(torch.hypot(own, least))

    result = loss_from_logits(rule, x / unit, target, weight, *options, dim=axis)
    return result.to(outcome_dtype(given, logits.device))


def check_offset_of_squares(epsilon: float = EPSILON) -> None:
    check_positive("epsilon", epsilon, ": it keeps the logarithm of 0 away.")
