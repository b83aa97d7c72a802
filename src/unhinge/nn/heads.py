"""A classifier whose prototypes are a simplex ETF: fixed (PAL), on normalised features (FNPAL), or only to start."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unhinge.nn.angles import unit_rows
from unhinge.nn.contract import as_tensor, check_dtype, check_positive, check_size
from unhinge.nn.frames import simplex_etf

__all__ = ["ETFHead"]


class ETFHead(nn.Module):
    r"""A linear classifier without bias, in the place of ``nn.Linear``, whose rows form a simplex ETF  [eq: simplex].

    .. math:: z = W h, \qquad W W^\top = \mathrm{scale}^2 \left(\tfrac{C}{C-1} I - \tfrac{1}{C-1} 1 1^\top\right)

    Fixed by default: prototype-anchored learning (PAL). With ``normalize=True`` the features are scaled to length 1
    first (FNPAL). ``weight`` is a buffer under the name a Linear has, so checkpoints of either load into the other;
    optimizers do not see it.

    With ``trainable=True`` it is a parameter and the ETF is only where training starts; a larger `scale` then gives the
    prototypes more say, beside the initial features, in where training ends.

    Arguments:
        in_features: Dimension :math:`p` of the features.
        num_classes: :math:`C`, from 2 to :math:`p + 1` for an exact ETF.
        normalize: Scale each feature to length 1. A zero feature stays zero, with a finite gradient. With
            ``"training"``, in training mode only: the predicted class is the same in both modes, and in evaluation mode
            the logits keep the length of the feature, by which unknown inputs are told (T2FNorm).
        scale: Length of the prototypes.
        trainable: Make `weight` a parameter.
        generator: Draws the rotation of the frame; ``None`` uses torch's global generator.
        weight: Other prototypes to use instead, shape :math:`(C, p)`, multiplied by `scale`; for more than
            :math:`p + 1` classes pass ``prototypes(num_classes, in_features)``.
        device, dtype: Of `weight`, as in ``nn.Linear``. The frame is built in float64 and then rounded.

    Shape: :math:`(*, p)` to :math:`(*, C)`.

    Example:
        >>> head = ETFHead(16, 10, generator=torch.Generator().manual_seed(0))
        >>> head(torch.randn(4, 16)).shape
        torch.Size([4, 10])
        >>> [name for name, _ in head.named_parameters()]
        []
        >>> list(head.state_dict())
        ['weight']
        >>> head.weight_sum.norm()
        tensor(0.)
    """

    weight: Tensor
    bias: None
    _summed: tuple[Tensor, int, Tensor] | None  # the weight, its version and its sum

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        normalize: bool | Literal["training"] = False,
        scale: float = 1.0,
        trainable: bool = False,
        generator: torch.Generator | None = None,
        *,
        weight: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_size("in_features", in_features)
        check_size("num_classes", num_classes)
        check_dtype(dtype)
        check_positive("scale", scale, ". It is the length of the prototypes.")
        if normalize not in (False, True, "training"):
            raise ValueError(f'normalize must be True, False or "training", got {normalize!r}.')
        if weight is None:
            weight = simplex_etf(num_classes, in_features, generator, dtype=torch.float64)
        elif as_tensor("weight", weight).shape != (num_classes, in_features):
            raise ValueError(
                f"weight must have shape ({num_classes}, {in_features}), one row per class, got {tuple(weight.shape)}."
            )
        self.in_features = in_features
        self.out_features = num_classes
        self.normalize = normalize
        self.scale = scale
        self.trainable = trainable
        frame = (scale * weight.detach().double()).to(
            torch.get_default_device() if device is None else device,
            torch.get_default_dtype() if dtype is None else dtype,
        )
        if trainable:
            self.register_parameter("weight", nn.Parameter(frame))
        else:
            self.register_buffer("weight", frame)
        self.register_parameter("bias", None)
        self._summed = None

    @property
    def num_classes(self) -> int:
        """:math:`C`, another name of `out_features`."""
        return self.out_features

    @property
    def weight_sum(self) -> Tensor:
        r"""The sum of the prototypes, shape :math:`(p)`, for ``unhinged_loss_from_features``.

        Cached if they are fixed, until they are changed in place or replaced. A sum that is only rounding, as that of
        an ETF, is exactly zero. Writing through ``weight.data`` is the one change that torch does not count.
        """
        weight = self.weight
        if self.trainable or weight.requires_grad:  # a zero in the place of rounding would have no gradient
            return weight.sum(0)
        # Neither a graph that is being traced nor a tensor of inference mode has a version to compare.
        if torch.compiler.is_compiling() or weight.is_inference():
            return _sum_of_rows(weight)
        if self._summed is None or self._summed[0] is not weight or self._summed[1] != weight._version:
            self._summed = weight, weight._version, _sum_of_rows(weight)
        return self._summed[2]

    def _apply(self, *args: Any, **options: Any) -> ETFHead:
        self._summed = None  # .to() and its kin make a new weight: let go of the old one
        super()._apply(*args, **options)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_summed": None}

    def embed(self, features: Tensor) -> Tensor:
        """The features as the prototypes see them: of length 1 where `normalize` asks for it, else as they are."""
        return unit_rows(features) if self.normalizes else features

    @property
    def normalizes(self) -> bool:
        """Whether features are scaled to length 1 in the mode the head is in."""
        return self.training if self.normalize == "training" else bool(self.normalize)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(self.embed(features), self.weight)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, normalize={self.normalize}, "
            f"scale={self.scale:g}, trainable={self.trainable}"
        )


def _sum_of_rows(weight: Tensor) -> Tensor:
    """Summed in float64; zero where it is no more than the rounding of the entries leaves."""
    if weight.is_meta:
        return weight.new_empty(weight.shape[1])
    rows = weight.double()
    total = rows.sum(0)
    # What building the frame in float64 and rounding its entries can leave; the sum of independent rows is as large as
    # their joint norm, thirty times more even in bfloat16.
    noise = (4 * torch.finfo(weight.dtype).eps + 1e-13) * torch.linalg.vector_norm(rows, dim=0)
    return torch.where(total.abs() <= noise, 0.0, total).to(weight.dtype)
