"""Module shells for what acts on the features."""

from __future__ import annotations

from torch import Tensor, nn

from unhinge.nn.contract import check_not_negative
from unhinge.nn.penalty import check_penalty_reduction, feature_norm_penalty, penalty_strength
from unhinge.nn.rescaling import rescale_gradient

__all__ = ["FeatureNormPenalty", "RescaledGradient"]


class FeatureNormPenalty(nn.Module):
    r"""Explicit feature regularization :math:`\lambda\sum_i\|h_i\|^2`; see
    :func:`~unhinge.nn.functional.feature_norm_penalty`.

    **Sum or mean.** The sum over the batch is how the method was published, and the default. Next to a loss that is a
    mean, it is batch-size times stronger than its mean: doubling the batch doubles the penalty, and the smaller last
    batch of an epoch has a smaller one. With ``reduction="mean"`` the strength means the same at any batch size.

    **Which strength.** With the unhinged loss on fixed prototypes, loss and penalty together are a squared error with
    the prototypes, scaled to a certain radius. So choose the radius: :meth:`for_radius`. Without a penalty there is
    none, and the features grow as long as one trains.

    **With class weights.** If the loss weighs its examples by their class, call the penalty with the same weights,
    ``penalty(features, class_weight[target])``. Then every class has the radius asked for, and the logits are read by
    :func:`~unhinge.nn.functional.posterior` as before. Otherwise each class has a radius of its own, :math:`a_c r`.

    Arguments:
        strength: :math:`\lambda \ge 0`.
        reduction: ``"sum"`` or ``"mean"`` over the examples.

    Example:
        >>> import torch
        >>> penalty = FeatureNormPenalty.for_radius(5.0, num_classes=10)
        >>> penalty
        FeatureNormPenalty(strength=0.11111111111111112, reduction='mean')
        >>> penalty(torch.tensor([[3.0, 4.0]]))
        tensor(2.7778)
    """

    def __init__(self, strength: float, reduction: str = "sum") -> None:
        super().__init__()
        check_not_negative("strength", strength)
        check_penalty_reduction(reduction)
        self.strength = float(strength)
        self.reduction = reduction

    @classmethod
    def for_radius(
        cls,
        radius: float,
        num_classes: int | None = None,
        gamma: float | None = None,
        prototype_norm: float = 1.0,
        reduction: str = "mean",
        batch_size: int | None = None,
        loss_reduction: str = "mean",
    ) -> FeatureNormPenalty:
        r"""The penalty under which the unhinged loss asks for features of norm `radius`,
        :math:`\lambda = (1+\gamma)\|w\|/(2r)`.

        Arguments:
            radius: :math:`r > 0`.
            num_classes: :math:`C`; needed when gamma is `None`.
            gamma: That of the loss; `None` means :math:`1/(C-1)`.
            prototype_norm: :math:`\|w\|`, the norm of one of the (fixed, zero-mean) prototypes.
            reduction: That of the penalty.
            batch_size: Examples in a batch; needed when the reductions of loss and penalty differ.
            loss_reduction: That of the loss.
        """
        strength = penalty_strength(
            radius, num_classes, gamma, prototype_norm, reduction, batch_size, loss_reduction=loss_reduction
        )
        return cls(strength, reduction)

    def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
        return feature_norm_penalty(features, self.strength, self.reduction, weight)

    def extra_repr(self) -> str:
        return f"strength={self.strength}, reduction={self.reduction!r}"


class RescaledGradient(nn.Module):
    r"""The identity, whose gradient is multiplied by :math:`\|h\|` per example: a learning rate rescaled by the feature
    norm.

    For heads that normalize their features; put it right before them. It speeds up features longer than 1 and slows
    down shorter ones. Features have the shape :math:`(*, p)`. See :func:`~unhinge.nn.functional.rescale_gradient`.

    Example:
        >>> import torch
        >>> features = torch.tensor([[3.0, 4.0]], requires_grad=True)
        >>> RescaledGradient()(features).sum().backward()
        >>> features.grad
        tensor([[5., 5.]])
    """

    def forward(self, features: Tensor) -> Tensor:
        return rescale_gradient(features)
