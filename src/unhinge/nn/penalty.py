r"""What the squared norm of the features costs, and the radius it asks for  [eq: radius]."""

from __future__ import annotations

from torch import Tensor

from unhinge.nn.contract import as_tensor, check_floating, check_gamma, check_positive, check_size, default_gamma
from unhinge.nn.precision import widened

__all__ = ["check_penalty_reduction", "feature_norm_penalty", "penalty_strength"]


def feature_norm_penalty(
    features: Tensor, strength: float, reduction: str = "sum", weight: Tensor | None = None
) -> Tensor:
    r""":math:`\lambda\sum_i a_i\|h_i\|^2`, or the mean over the examples instead of the sum.

    There is no factor 1/2. Next to a loss that is a mean over the batch, a summed penalty is as many times stronger as
    the batch has examples; see :class:`~unhinge.nn.FeatureNormPenalty`.

    Arguments:
        features: :math:`h`, shape :math:`(*, p)`, one example per row.
        strength: :math:`\lambda \ge 0`.
        reduction: ``"sum"`` or ``"mean"`` over all rows.
        weight: Weight :math:`a_i` of each example, shape :math:`(*)`; the mean is then divided by their sum. None: 1.
            Pass here what the loss weighs its examples by, so that every class keeps the same radius.

    The result is at least float32: the sum of the squares of a batch of halves does not fit into a half.

    Example:
        >>> import torch
        >>> feature_norm_penalty(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), strength=0.5)
        tensor(13.)
    """
    check_penalty_reduction(reduction)
    check_floating("features", features, "p")
    squares = features.to(widened(features.dtype)).square().sum(-1)
    if weight is None:
        return strength * (squares.sum() if reduction == "sum" else squares.mean())
    if as_tensor("weight", weight).shape != squares.shape:
        raise ValueError(
            f"weight must have one number for each example, shape {tuple(squares.shape)}, got {tuple(weight.shape)}. "
            "For weights of classes pass class_weight[target]."
        )
    each = weight.to(squares.dtype)
    total = (squares * each).sum()
    return strength * (total if reduction == "sum" else total / each.sum())


def penalty_strength(
    radius: float,
    num_classes: int | None = None,
    gamma: float | None = None,
    prototype_norm: float = 1.0,
    reduction: str = "mean",
    batch_size: int | None = None,
    loss_reduction: str = "mean",
) -> float:
    r"""The strength with which unhinged loss and penalty ask for features of norm `radius`.

    For fixed prototypes of mean zero and norm :math:`\|w\|`, the two together are a squared error,

    .. math:: -(1+\gamma) w_y^\top h + \lambda\|h\|^2 = \lambda\|h - r\,\hat w_y\|^2 + \text{const},\qquad
              r = \frac{(1+\gamma)\|w\|}{2\lambda},

    with loss and penalty reduced alike. If one is a mean and the other a sum, the batch size comes in as well.

    Arguments:
        radius: :math:`r > 0`, the norm the features shall have.
        num_classes: :math:`C`; needed when gamma is `None`.
        gamma: That of the loss; `None` means :math:`1/(C-1)`.
        prototype_norm: :math:`\|w\|`, the norm of one prototype (the scale of the head).
        reduction: That of the penalty, ``"mean"`` or ``"sum"``.
        batch_size: Examples in a batch; needed when the two reductions differ.
        loss_reduction: That of the loss, ``"mean"`` or ``"sum"``.

    Example:
        >>> round(penalty_strength(5.56, num_classes=10), 3)
        0.1
        >>> summed = penalty_strength(5.56, 10, reduction="sum", batch_size=100)
        >>> round(summed, 5)
        0.001
    """
    check_penalty_reduction(reduction)
    check_penalty_reduction(loss_reduction, "loss_reduction")
    check_positive("radius", radius)
    check_positive("prototype_norm", prototype_norm)
    check_gamma(gamma)
    if gamma is None and num_classes is None:
        raise ValueError("the radius depends on the loss: pass its gamma, or num_classes for the default 1/(C-1).")
    if gamma is None:
        assert num_classes is not None
        check_size("num_classes", num_classes, 2)
        gamma = default_gamma(num_classes)
    alike = (1 + gamma) * prototype_norm / (2 * radius)
    if reduction == loss_reduction:
        return alike
    if batch_size is None:
        raise ValueError(
            f"with the loss reduced by {loss_reduction} and the penalty by {reduction}, the radius depends on the "
            "batch: pass batch_size, or reduce both alike."
        )
    check_size("batch_size", batch_size)
    return alike / batch_size if reduction == "sum" else alike * batch_size


def check_penalty_reduction(reduction: str, name: str = "reduction") -> None:
    if reduction not in ("sum", "mean"):
        raise ValueError(f'{name} must be "sum" or "mean", got {reduction!r}.')
