r"""Residual networks of He et al. 2016, for 32 and for 224 pixels, with the width as a knob.

Two families. ResNet-18/34/50 have four stages of widths :math:`w, 2w, 4w, 8w` (times 4 with bottlenecks) and projection
shortcuts (option B); on small images the stem is one 3 by 3 convolution without pooling. ResNet-20/32/56 have three
stages of widths :math:`w, 2w, 4w` and shortcuts without parameters (option A): subsampled and filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from unhinge.nn.backbones.body import conv, conv_norm_relu, initialize

__all__ = ["BasicBlock", "Bottleneck", "ResNetBody", "deep_body", "thin_body"]


class BasicBlock(nn.Module):
    """Two 3 by 3 convolutions beside a shortcut; `last_relu` is the one after their sum."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, shortcut: str = "B", last_relu: bool = True) -> None:
        super().__init__()
        self.conv1 = conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride, shortcut)
        self.last_relu = last_relu

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        return F.relu(out, inplace=True) if self.last_relu else out


class Bottleneck(nn.Module):
    """A 3 by 3 convolution between two of 1 by 1, the last of them four times as wide; the 3 by 3 has the stride."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, shortcut: str = "B", last_relu: bool = True) -> None:
        super().__init__()
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, 4 * width, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = _shortcut(inputs, 4 * width, stride, shortcut)
        self.last_relu = last_relu

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out)) + self.shortcut(x)
        return F.relu(out, inplace=True) if self.last_relu else out


class _PadShortcut(nn.Module):
    """Option A: every `stride`-th pixel, and zero channels on both sides of those there are."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class ResNetBody(nn.Module):
    r"""Images :math:`(b, c, h, w)` to features :math:`(b, p)`: stem, stages, mean over the pixels.

    Arguments:
        stem: Images to maps of `width` channels.
        block: :class:`BasicBlock` or :class:`Bottleneck`.
        depths: Blocks of each stage; each stage after the first halves the size and doubles the width.
        width: Channels of the first stage.
        shortcut: "A" (padding) or "B" (projection) where a block changes its shape.
        last_relu: False leaves out the ReLU after the last block, so that features may have any sign. That is what
            fixed heads need: prototypes at more than a right angle cannot all be reached by features without signs.
    """

    def __init__(
        self,
        stem: nn.Module,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        width: int,
        shortcut: str,
        last_relu: bool,
    ) -> None:
        super().__init__()
        self.stem = stem
        inputs = width
        blocks: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                final = stage == len(depths) - 1 and position == depth - 1
                blocks.append(block(inputs, width << stage, stride, shortcut, last_relu or not final))
                inputs = (width << stage) * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.feature_dim = inputs
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.blocks(self.stem(images))
        return maps.mean((2, 3))


def deep_body(
    depth: int, in_channels: int = 3, *, width: int = 64, large_images: bool = False, last_relu: bool = True
) -> ResNetBody:
    """ResNet-18, -34 or -50 without its head; `large_images` is the stem for 224 pixels.

    Example:
        >>> import torch
        >>> deep_body(18, width=16)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 128])
    """
    if depth not in (18, 34, 50):
        raise ValueError(f"these networks have 18, 34 or 50 layers, got {depth}.")
    block: type[BasicBlock] | type[Bottleneck] = Bottleneck if depth == 50 else BasicBlock
    depths = (2, 2, 2, 2) if depth == 18 else (3, 4, 6, 3)
    stem = conv_norm_relu(in_channels, width, *((7, 2) if large_images else (3, 1)))
    if large_images:
        stem.append(nn.MaxPool2d(3, stride=2, padding=1))
    return ResNetBody(nn.Sequential(*stem), block, depths, width, "B", last_relu)


def thin_body(
    depth: int, in_channels: int = 3, *, width: int = 16, early_stride: int = 1, last_relu: bool = True
) -> ResNetBody:
    """ResNet-8, -20, -32, -56, or any 6 n + 2, without its head; `early_stride` shrinks the image in the stem.

    Example:
        >>> import torch
        >>> thin_body(8, in_channels=1, early_stride=2)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 64])
    """
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"these networks have 6 n + 2 layers: 8, 14, 20, 32, 44, 56, 110; got {depth}.")
    stem = nn.Sequential(*conv_norm_relu(in_channels, width, stride=early_stride))
    return ResNetBody(stem, BasicBlock, ((depth - 2) // 6,) * 3, width, "A", last_relu)


def _shortcut(inputs: int, outputs: int, stride: int, kind: str) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if kind == "A":
        return _PadShortcut(inputs, outputs, stride)
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
