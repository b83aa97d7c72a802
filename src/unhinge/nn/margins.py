r"""The unhinged loss on the sphere, with a way out of the antipode  [eq: adjusted-margin].

On normalized features the loss is :math:`-v^\top\hat h` with :math:`v = (1+\gamma) w_y - \gamma\sum_j w_j`. Its
gradient is :math:`\|v\|\sin\theta/\|h\|`, which vanishes where :math:`\hat h = -\hat v`: an example that is as wrong as
can be does not move.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unhinge.nn.angles import unit_rows
from unhinge.nn.contract import check_class_weight, check_features, check_reduction, is_soft, resolve_gamma
from unhinge.nn.precision import full_precision, outcome_dtype, widened
from unhinge.nn.reduction import example_weights, reduce_labelled
from unhinge.nn.unhinged import row_sum
from unhinge.theory.validation import check_number

__all__ = ["adjusted_margin_loss", "check_epsilon"]


def adjusted_margin_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    gamma: float | Tensor | None = None,
    epsilon: float = 0.05,
    *,
    class_weight: Tensor | None = None,
    weight_sum: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Unhinged loss of the normalized features, whose gradient does not fade next to the antipode.

    .. math:: L = -(v + \delta)^\top \hat h,\qquad v = (1+\gamma) w_y - \gamma \sum_j w_j,\qquad \hat h = h/\|h\|,

    where :math:`\delta = 0` as long as :math:`c = \hat v^\top\hat h \ge -1+\varepsilon`, and otherwise, without a
    gradient of its own,

    .. math:: \delta = \|v\|\big(|c|\tan\varphi - \sqrt{1-c^2}\big)\,\hat u,\qquad \cos\varphi = 1-\varepsilon,

    along the unit direction :math:`\hat u` of :math:`v - \hat h\hat h^\top v`; at :math:`c = -1`, where there is none,
    along a fixed unit vector perpendicular to :math:`\hat h`. So :math:`v+\delta` has cosine :math:`-1+\varepsilon`
    with the feature, the value of the loss is unchanged, and the gradient has norm :math:`\|v\|\,|c|\tan\varphi/\|h\|`,
    continuous at the threshold. For prototypes of mean zero :math:`v = (1+\gamma) w_y`, and this is the adjusted sample
    margin loss with its sign corrected (erratum 35); for others the stationary antipode is that of :math:`v`, so it is
    :math:`v` that is adjusted.

    Arguments:
        features: :math:`h`, shape :math:`(*, p)`; they are normalized here. A zero feature has loss 0 and the gradient
            :math:`-v`.
        weight: Prototypes :math:`w_c`, shape :math:`(C, p)`.
        target: Class indices, shape :math:`(*)`.
        gamma: :math:`\gamma \ge 0`; `None` means :math:`1/(C-1)`.
        epsilon: :math:`\varepsilon \in (0, 1)`, the size of the adjusted zone.
        class_weight, weight_sum, ignore_index, reduction: As in :func:`unhinged_loss_from_features`.

    In one dimension the sphere is two points and no gradient can lead from one to the other.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        >>> # exactly opposite to its prototype
        >>> features = torch.tensor([[-2.0, 0.0]], requires_grad=True)
        >>> loss = adjusted_margin_loss(features, weight, torch.tensor([0]))
        >>> loss.backward()
        >>> loss.item(), features.grad
        (2.0, tensor([[ 0.0000, -0.3287]]))
    """
    check_reduction(reduction)
    check_epsilon(epsilon)
    if is_soft(target):
        raise ValueError(f"adjusted_margin_loss takes class indices of an integer dtype, got {target.dtype}.")
    check_features(features, weight, target, weight_sum=weight_sum)
    num_classes = weight.shape[0]
    check_class_weight(class_weight, num_classes, "class_weight")
    gamma = resolve_gamma(gamma, num_classes)
    dtype = widened(features.dtype, weight.dtype)
    with full_precision(features.device):
        labels = target.to(torch.int64)
        kept = labels != ignore_index
        index = torch.where(kept, labels, 0)
        unit = unit_rows(features.to(dtype))
        pull = (1 + gamma) * F.embedding(index, weight).to(dtype) - gamma * row_sum(weight, weight_sum, dtype)
        nudge = _nudge(unit.detach(), pull.detach(), epsilon)
        # two sums: the nudge is perpendicular to the feature and must not round the value
        loss = -(pull * unit).sum(-1) - (nudge * unit).sum(-1)
        weights = example_weights(class_weight, labels, kept, dtype)
        result = reduce_labelled(loss if weights is None else weights * loss, kept, weights, reduction)
    return result.to(outcome_dtype(torch.promote_types(features.dtype, weight.dtype), features.device))


def check_epsilon(epsilon: float) -> None:
    check_number("epsilon", epsilon)
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must lie strictly between 0 and 1, got {epsilon}.")


def _nudge(unit: Tensor, pull: Tensor, epsilon: float) -> Tensor:
    r""":math:`\delta`, perpendicular to the features; zero outside the adjusted zone."""
    aim = unit_rows(pull)
    cosine = (aim * unit).sum(-1, keepdim=True)
    # the part of the aim perpendicular to the feature; near the antipode their sum is small, and cancels nothing
    around = _perpendicular(aim + unit, unit)
    sine = torch.linalg.vector_norm(around, dim=-1, keepdim=True)
    # at the antipode itself: the axis the feature leans on least
    least = unit.abs().argmin(-1, keepdim=True)
    axis = (torch.arange(unit.shape[-1], device=unit.device) == least).to(unit.dtype)
    lost = sine <= 4 * torch.finfo(unit.dtype).eps
    way = unit_rows(torch.where(lost, _perpendicular(axis, unit), around))
    tangent = math.sqrt(1 - (1 - epsilon) ** 2) / (1 - epsilon)
    length = torch.linalg.vector_norm(pull, dim=-1, keepdim=True) * (cosine.abs() * tangent - sine)
    return torch.where(cosine < -1 + epsilon, length * way, 0)


def _perpendicular(x: Tensor, unit: Tensor) -> Tensor:
    return x - unit * (unit * x).sum(-1, keepdim=True)
