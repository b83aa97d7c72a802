r"""The Taylor softmax: the exponential of softmax cut after its second order  [eq: taylor-softmax]."""

from __future__ import annotations

import torch
from torch import Tensor

from unhinge.nn.spherical_softmax import squares_softmax_loss

__all__ = ["taylor_softmax_loss", "taylor_softmax_rule"]


def taylor_softmax_rule(own: Tensor, total: Tensor, squares: Tensor, num_classes: int) -> Tensor:
    r"""The loss from three numbers, :math:`\log(C + S + R/2) - \log(1 + z_y + z_y^2/2)`.

    Example:
        >>> # logits 2 and 0
        >>> taylor_softmax_rule(
        ...     torch.tensor(2.0), torch.tensor(2.0), torch.tensor(4.0), 2
        ... )
        tensor(0.1823)
    """
    # 1 + z + z^2/2 = ((1 + z)^2 + 1) / 2, which never cancels; its sum over the classes is at least C / 2.
    numerator = ((1 + own).square() + 1) / 2
    denominator = (num_classes + total + squares / 2).clamp_min(num_classes / 2)
    return torch.log(denominator) - torch.log(numerator)


def taylor_softmax_loss(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    dim: int | None = None,
) -> Tensor:
    r"""The negative log-likelihood of the Taylor softmax, called as :func:`torch.nn.functional.cross_entropy` is.

    .. math:: \ell(z, y) = -\log\frac{1 + z_y + z_y^2/2}{\sum_c (1 + z_c + z_c^2/2)}

    The terms are positive for every :math:`z`, so it is a probability; near zero logits it agrees with softmax up to
    second order (the first order is the unhinged loss). It grows again below :math:`z = -1`: a class far below zero is
    as likely as one far above. From Vincent, de Brébisson and Bouthillier (arXiv 1412.7091) and de Brébisson and
    Vincent (arXiv 1511.05042).

    Arguments:
        logits: :math:`z`, shape :math:`(*, C)`.
        target: Classes :math:`(*,)` or probabilities :math:`(*, C)`.
        weight, ignore_index, reduction, label_smoothing, dim: As in :func:`~unhinge.nn.functional.unhinged_loss`.

    Example:
        >>> # -log(5/6)
        >>> taylor_softmax_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.1823)
    """
    # 1 + z + z^2/2 = ((1 + z)^2 + 1) / 2: the squares of the spherical softmax, shifted by 1.
    return squares_softmax_loss(1.0, 1.0, logits, target, weight, ignore_index, reduction, label_smoothing, dim=dim)
