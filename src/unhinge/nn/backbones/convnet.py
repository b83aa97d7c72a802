"""A small plain network for small, mostly grey images."""

from __future__ import annotations

from torch import Tensor, nn

from unhinge.nn.backbones.body import conv_norm_relu, initialize

__all__ = ["ConvBody"]


class ConvBody(nn.Module):
    r"""Three 3 by 3 convolutions of widths :math:`w, 2w, 4w`, the size halved before the second and third.

    Any size from 1 pixel on, as the features are a mean over whatever pixels are left; made for the 8 by 8 digits.

    Arguments:
        in_channels: 1 for grey images.
        width: :math:`w`; there are :math:`4w` features.
        last_relu: Whether the last convolution ends in a ReLU.

    Example:
        >>> import torch
        >>> ConvBody(in_channels=1, width=16)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 64])
    """

    def __init__(self, in_channels: int = 1, *, width: int = 32, last_relu: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = in_channels
        for stage in range(3):
            outputs = width << stage
            layers += conv_norm_relu(inputs, outputs, stride=1 if stage == 0 else 2)
            inputs = outputs
        self.layers = nn.Sequential(*(layers if last_relu else layers[:-1]))
        self.feature_dim = inputs
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps.mean((2, 3))
