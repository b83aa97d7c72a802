"""A small, fast network for small grey images of very many classes, such as characters of 24 by 24 pixels."""

from __future__ import annotations

from torch import Tensor, nn

from unhinge.nn.backbones.body import conv_norm_relu, initialize

__all__ = ["GlyphBody"]


class GlyphBody(nn.Module):
    r"""Four 3 by 3 convolutions, the size halved by three of them, then all that is left into :math:`8w` features.

    Where classes are told apart by one stroke, a mean over the pixels would lose where it is: the last maps are read
    whole by a linear layer. The features are batch-normalized without a gain, so their squared norm is about
    :math:`8w`, which is what the rate of a :class:`~unhinge.nn.ManyClassHead` is measured by.

    Arguments:
        in_channels: 1 for grey images.
        image_size: Side in pixels, at least 8.
        width: :math:`w`; the convolutions have :math:`w, 2w, 3w, 5w` channels.
        last_relu: Whether the features end in a ReLU.

    Example:
        >>> import torch
        >>> GlyphBody(width=16)(torch.zeros(2, 1, 24, 24)).shape
        torch.Size([2, 128])
    """

    def __init__(self, in_channels: int = 1, *, image_size: int = 24, width: int = 32, last_relu: bool = False) -> None:
        super().__init__()
        if image_size < 8:
            raise ValueError(f"image_size must be at least 8, got {image_size}: the network halves it three times.")
        layers: list[nn.Module] = []
        inputs, side = in_channels, image_size
        for outputs, stride in ((width, 2), (2 * width, 2), (3 * width, 1), (5 * width, 2)):
            layers += conv_norm_relu(inputs, outputs, stride=stride)
            inputs, side = outputs, -(-side // stride)
        self.feature_dim = 8 * width
        layers += [nn.Flatten(), nn.Linear(inputs * side * side, self.feature_dim, bias=False)]
        layers += [nn.BatchNorm1d(self.feature_dim, affine=False)]
        self.layers = nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if last_relu else []))
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features
