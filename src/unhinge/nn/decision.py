r"""Deciding by what distinguishes the classes  [eq: centered-logits].

Training adds to all prototypes a common vector, and to all features another, which no class owns. The first changes no
decision but can be large enough to drown the differences in rounding; the second does change decisions.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from unhinge.nn.precision import widened

__all__ = ["centered_logits"]


def centered_logits(
    features: Tensor, weight: Tensor, bias: Tensor | None = None, *, feature_mean: Tensor | None = None
) -> Tensor:
    r"""Logits :math:`(w_c - \bar w)^\top (h - \bar h) + b_c` from centred prototypes, shape :math:`(*, C)`.

    Centring the prototypes moves all logits of an example by the same amount: the predicted class stays (up to
    rounding), and logits of different examples become comparable. Of a shift :math:`\Delta` common to all features, the
    term :math:`w_c^\top\Delta` is left, which favours some classes; pass the mean feature of the (balanced) training
    set as `feature_mean` to remove it.

    Arguments:
        features: :math:`h`, shape :math:`(*, p)`.
        weight: Prototypes, shape :math:`(C, p)`.
        bias: Shape :math:`(C)`, added as it is.
        feature_mean: :math:`\bar h`, shape :math:`(p)`; `None` leaves the features as they are.

    Example:
        >>> import torch
        >>> weight = torch.tensor([[1.0, 5.0], [-1.0, 5.0]])
        >>> centered_logits(torch.tensor([[2.0, 1.0]]), weight)
        tensor([[ 2., -2.]])
    """
    if features.ndim == 0 or weight.ndim != 2 or features.shape[-1] != weight.shape[1]:
        raise ValueError(
            "features and weight must be rows of one length, shapes (..., p) and (C, p), "
            f"got {tuple(features.shape)} and {tuple(weight.shape)}."
        )
    wide = weight.to(widened(weight.dtype))
    centered = (wide - wide.mean(0)).to(weight.dtype)
    if feature_mean is not None:
        if feature_mean.shape != weight.shape[1:]:
            raise ValueError(
                f"feature_mean must have shape {tuple(weight.shape[1:])}, got {tuple(feature_mean.shape)}."
            )
        features = features - feature_mean.to(features.dtype)
    return F.linear(features, centered, bias)
