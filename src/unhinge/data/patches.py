"""Patches of two photographs: an unknown for digits that needs no download."""

from __future__ import annotations

import numpy as np
import torch

from unhinge.data.images import ImageSet, Splits, channel_statistics
from unhinge.extras import needed_for

__all__ = ["patches"]

_SIDE = 8
_SPACING = 24  # pixels between two patches


def patches(*, train: bool = True) -> Splits:
    """Grey 8 by 8 patches of the two photographs scikit-learn ships, in the range of its digits; never to train on.

    Example:
        >>> patches().test.images.shape
        torch.Size([972, 1, 8, 8])
    """
    with needed_for("the data set patches"):
        from sklearn.datasets import load_sample_images

    parts, labels = [], []
    for label, photo in enumerate(load_sample_images().images):
        grey = np.asarray(photo, dtype=np.float64) @ [0.299, 0.587, 0.114]
        for top in range(0, grey.shape[0] - _SIDE, _SPACING):
            for left in range(0, grey.shape[1] - _SIDE, _SPACING):
                parts.append(grey[top : top + _SIDE, left : left + _SIDE])
                labels.append(label)
    images = torch.from_numpy(np.stack(parts) * (16 / 255)).round().to(torch.uint8)[:, None]
    mean, std = channel_statistics(images, white=16)
    known = ImageSet(images, torch.tensor(labels), ("temple", "flower"), mean, std, white=16)
    return Splits("patches", None, known, "They only play the unknown.")
