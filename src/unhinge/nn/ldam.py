r"""Cross-entropy with a margin that grows with the rarity of a class (LDAM; Cao et al., 2019), as a baseline.

It is what long-tailed recognition is often compared with. It belongs on *cosines*: features and prototypes of length 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unhinge.nn.contract import (
    as_class_weight,
    check_class_weight,
    check_floating,
    check_not_negative,
    check_positive,
    check_reduction,
    is_soft,
)
from unhinge.nn.precision import widened

__all__ = ["LDAMLoss", "ldam_loss", "ldam_margins"]


def ldam_margins(counts: Tensor, largest: float = 0.5) -> Tensor:
    r"""Margins :math:`m_c \propto n_c^{-1/4}`, the largest (of the rarest class) as given; shape :math:`(C)`, float64.

    Example:
        >>> import torch
        >>> ldam_margins(torch.tensor([1600, 100, 100]))
        tensor([0.2500, 0.5000, 0.5000], dtype=torch.float64)
    """
    given = as_class_weight(counts, "counts", torch.float64)
    if given is None:
        raise ValueError("counts must be positive and finite, one number per class, got None.")
    counts = given
    if counts.ndim != 1 or not len(counts) or not bool(((counts > 0) & counts.isfinite()).all()):
        came = counts.tolist() if counts.ndim == 1 else f"shape {tuple(counts.shape)}"
        raise ValueError(
            f"counts must be positive and finite, one number per class, got {came}. torch.bincount(labels) makes them."
        )
    check_not_negative("the largest margin", largest)
    wide = counts.double()
    return largest * (wide.min() / wide) ** 0.25


def ldam_loss(
    cosines: Tensor,
    target: Tensor,
    margins: Tensor,
    scale: float = 30.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Cross-entropy of :math:`s\,(z_c - m_c\,1[c = y])`.

    Arguments:
        cosines: :math:`z`, shape :math:`(n, C)`, of a head on normalized features with prototypes of length 1.
        target: Labels :math:`y`, shape :math:`(n)`.
        margins: :math:`m`, shape :math:`(C)`; see :func:`ldam_margins`.
        scale: :math:`s`, the inverse temperature; 30 in the paper.
        weight: Weight of each class, shape :math:`(C)`.
        ignore_index: Examples with this label count for nothing.
        reduction: ``"mean"`` (over the weights of the examples), ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> ldam_loss(
        ...     torch.tensor([[0.5, 0.0]]),
        ...     torch.tensor([0]),
        ...     torch.tensor([0.5, 0.5]),
        ...     scale=1.0,
        ... )
        tensor(0.6931)
    """
    check_reduction(reduction)
    check_scale(scale)
    check_floating("cosines", cosines, "C")
    if is_soft(target):
        raise ValueError(f"target must hold class indices in an integer dtype, got {target.dtype}.")
    target = target.long()
    if cosines.ndim != 2 or target.shape != cosines.shape[:1]:
        raise ValueError(
            f"cosines must have shape (n, C) and target (n,), got {tuple(cosines.shape)} and {tuple(target.shape)}."
        )
    check_class_weight(margins, cosines.shape[1], "margins")
    check_class_weight(weight, cosines.shape[1])
    wide = cosines.to(widened(cosines.dtype))
    own = target[:, None] == torch.arange(cosines.shape[1], device=target.device)
    lowered = wide - torch.where(own, margins.to(wide), 0)
    emphasis = None if weight is None else weight.to(wide)
    return F.cross_entropy(scale * lowered, target, emphasis, ignore_index=ignore_index, reduction=reduction)


def check_scale(scale: float) -> None:
    check_positive("scale", scale, ": it is an inverse temperature.")


class LDAMLoss(nn.Module):
    r"""Cross-entropy with margins :math:`m_c \propto n_c^{-1/4}` on cosines; see :func:`ldam_loss`.

    Arguments:
        counts: Training examples of each class, shape :math:`(C)`.
        largest: The margin of the rarest class.
        scale: :math:`s`.
        weight: Weight of each class, shape :math:`(C)`.
        ignore_index, reduction: As in ``nn.CrossEntropyLoss``.

    Example:
        >>> import torch
        >>> from unhinge.nn import ETFHead
        >>> head = ETFHead(8, 3, normalize=True)
        >>> loss = LDAMLoss(torch.tensor([500, 50, 5]))
        >>> loss(head(torch.randn(6, 8)), torch.arange(6) % 3).ndim
        0
    """

    margins: Tensor
    weight: Tensor | None

    def __init__(
        self,
        counts: Tensor,
        largest: float = 0.5,
        scale: float = 30.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        check_scale(scale)
        self.scale = scale
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.register_buffer("margins", ldam_margins(counts, largest), persistent=False)
        self.register_buffer("weight", as_class_weight(weight), persistent=False)

    def forward(self, cosines: Tensor, target: Tensor) -> Tensor:
        return ldam_loss(cosines, target, self.margins, self.scale, self.weight, self.ignore_index, self.reduction)

    def extra_repr(self) -> str:
        return f"classes={len(self.margins)}, largest={self.margins.max().item():g}, scale={self.scale:g}"
