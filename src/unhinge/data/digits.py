"""The embedded default: scikit-learn's 1,797 handwritten digits of 8 by 8 pixels, there without a download."""

from __future__ import annotations

import torch

from unhinge.data.images import ImageSet, Splits, channel_statistics
from unhinge.data.stratify import stratified_split
from unhinge.extras import needed_for

__all__ = ["digits"]


def digits(*, train: bool = True) -> Splits:
    """The digits as they ship, 0 .. 16 per pixel, split once and for all: about 4 of 5 of each class to train on.

    Example:
        >>> splits = digits()
        >>> len(splits.training), len(splits.test), splits.test.images.amax().item()
        (1438, 359, 16)
    """
    with needed_for("the data set digits"):
        from sklearn.datasets import load_digits  # a second to import, and only here

    content = load_digits()
    images = torch.from_numpy(content.images).to(torch.uint8)[:, None]
    labels = torch.from_numpy(content.target).to(torch.int64)
    first, second = stratified_split(labels, share=0.2, seed=0)
    mean, std = channel_statistics(images[first], white=16)
    whole = ImageSet(images, labels, tuple(map(str, content.target_names)), mean, std, white=16, mirrored=False)
    return Splits("digits", whole.subset(first) if train else None, whole.subset(second))
