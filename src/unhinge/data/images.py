"""Images as one tensor: the value every reader returns and every loop asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from unhinge.data.errors import DataError, MissingFile

__all__ = ["ImageSet", "Splits", "channel_statistics", "conform", "shrink"]


@dataclass(frozen=True, eq=False)
class ImageSet:
    r"""A whole data set in memory, :math:`(n, c, h, w)` bytes and :math:`(n,)` labels.

    A pixel :math:`x` enters a network as :math:`(x / \text{white} - \text{mean}) / \text{std}`, channel by channel.

    Example:
        >>> pixels = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
        >>> pair = ImageSet(
        ...     pixels,
        ...     torch.tensor([0, 1]),
        ...     ("black", "white"),
        ...     mean=(0.5,),
        ...     std=(0.25,),
        ... )
        >>> pair.normalize(pair.images).flatten()
        tensor([-2.,  2.])
    """

    images: Tensor  # (n, c, h, w) uint8
    labels: Tensor  # (n,) int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # (c,), of pixels divided by `white`
    std: tuple[float, ...]
    white: int = 255  # the brightest pixel
    mirrored: bool = True  # whether a mirror image shows the same class: of a frog it does, of a digit it does not

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or 0 in self.images.shape[1:]:
            raise ValueError(
                f"images must be uint8 of shape (n, c, h, w), got {self.images.dtype} of {tuple(self.images.shape)}."
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels must be int64 of shape ({len(self.images)},), one per image, "
                f"got {self.labels.dtype} of {tuple(self.labels.shape)}."
            )
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ValueError(
                f"labels must lie in 0 .. {len(self.classes) - 1}, one class name each, "
                f"got values from {int(self.labels.min())} to {int(self.labels.max())}."
            )
        if not len(self.mean) == len(self.std) == self.images.shape[1] or not all(s > 0 for s in self.std):
            raise ValueError(
                f"mean and std need one number for each of the {self.images.shape[1]} channels, std above 0, "
                f"got {self.mean} and {self.std}."
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def in_channels(self) -> int:
        return self.images.shape[1]

    @property
    def image_size(self) -> int:
        """The longer side, in pixels."""
        return max(self.images.shape[2:])

    @property
    def counts(self) -> Tensor:
        """Images of each class, :math:`(C,)`."""
        return torch.bincount(self.labels, minlength=self.num_classes)

    def normalize(self, images: Tensor) -> Tensor:
        """Bytes :math:`(b, c, h, w)` as the float32 numbers a network is given."""
        shape = (1, len(self.mean), 1, 1)
        offset = torch.tensor(self.mean, device=images.device).mul_(self.white).view(shape)
        scale = torch.tensor(self.std, device=images.device).mul_(self.white).reciprocal_().view(shape)
        # Subtracting from bytes directly would convert them inside the arithmetic loop, which is 20 times slower.
        return images.float().sub_(offset).mul_(scale)

    def subset(self, indices: Tensor) -> ImageSet:
        """The images at `indices`, in that order; the same classes and statistics."""
        return replace(self, images=self.images[indices], labels=self.labels[indices])

    def to(self, device: torch.device | str) -> ImageSet:
        """The same set on another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set as loaded: what to train on and what to test on.

    `train` is None where its files are not there or were not asked for; that is enough for a set that only plays the
    unknown in out-of-distribution detection.
    """

    name: str
    train: ImageSet | None
    test: ImageSet
    absent: str = ""  # why there is no `train`

    @property
    def training(self) -> ImageSet:
        """`train`, or the error that says why it is not there."""
        if self.train is None:
            raise MissingFile(f"{self.name} has no training images here. {self.absent}".strip())
        return self.train

    @property
    def classes(self) -> tuple[str, ...]:
        return self.test.classes

    @property
    def num_classes(self) -> int:
        return self.test.num_classes


def channel_statistics(images: Tensor, white: int = 255) -> tuple[tuple[float, ...], tuple[float, ...]]:
    r"""Mean and standard deviation of each channel of :math:`(n, c, h, w)` bytes, in units of `white`.

    Counted, not summed: the histogram of bytes is exact whatever n is.

    Example:
        >>> channel_statistics(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        ((0.5,), (0.5,))
    """
    if images.numel() == 0:
        raise DataError("an empty set of images has no mean; at least one image is needed.")
    values = torch.arange(256, dtype=torch.float64) / white
    means, stds = [], []
    for channel in range(images.shape[1]):
        # In parts: bincount takes int64, eight times the bytes.
        parts = [torch.bincount(part.flatten(), minlength=256) for part in images[:, channel].split(1024)]
        share = torch.stack(parts).sum(0).double().cpu() / (images.numel() // images.shape[1])
        mean = torch.dot(share, values)
        means.append(mean.item())
        stds.append(torch.dot(share, (values - mean) ** 2).sqrt().item())
    return tuple(means), tuple(stds)


def shrink(images: ImageSet, factor: int) -> ImageSet:
    """Each `factor` by `factor` block of pixels replaced by its mean: 32 pixels become 16.

    Example:
        >>> block = torch.tensor([[[[0, 100], [100, 200]]]], dtype=torch.uint8)
        >>> image = ImageSet(block, torch.tensor([0]), ("a",), (0.5,), (0.5,))
        >>> shrink(image, factor=2).images
        tensor([[[[100]]]], dtype=torch.uint8)
    """
    height, width = images.images.shape[2:]
    if factor < 1 or height % factor or width % factor:
        raise ValueError(f"the factor to shrink by must divide the image's {height} by {width} pixels, got {factor}.")
    parts = [F.avg_pool2d(part.float(), factor).round_().to(torch.uint8) for part in images.images.split(4096)]
    return replace(images, images=torch.cat(parts) if parts else images.images[:, :, ::factor, ::factor])


def conform(images: ImageSet, like: ImageSet) -> ImageSet:
    """`images` as a network trained on `like` would be shown them: its channels, size and normalization.

    Grey becomes three equal channels, color becomes its luma (ITU-R 601), and sizes are matched by antialiased
    bilinear interpolation. Labels and class names stay. For out-of-distribution detection.
    """
    channels, size = like.in_channels, tuple(like.images.shape[2:])
    if images.in_channels not in (1, 3, channels) or channels not in (1, 3, images.in_channels):
        raise ValueError(f"images with {images.in_channels} channels cannot be shown with {channels}; 1 and 3 can.")
    parts = [_redraw(part, channels, size, like.white / images.white) for part in images.images.split(4096)]
    return replace(
        images,
        images=torch.cat(parts) if parts else images.images.new_empty(0, channels, *size),
        mean=like.mean,
        std=like.std,
        white=like.white,
        mirrored=like.mirrored,
    )


def _redraw(part: Tensor, channels: int, size: Sequence[int], gain: float) -> Tensor:
    if part.shape[1] == channels and tuple(part.shape[2:]) == tuple(size) and gain == 1:
        return part
    x = part.float() * gain
    if part.shape[1] == 3 and channels == 1:
        x = (x * x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    if tuple(part.shape[2:]) != tuple(size):
        x = F.interpolate(x, size=tuple(size), mode="bilinear", antialias=True, align_corners=False)
    return x.round_().clamp_(0, 255).to(torch.uint8).expand(-1, channels, -1, -1).contiguous()
