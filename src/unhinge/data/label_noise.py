"""One fixed wrong labelling, drawn once with a seed of its own."""

from __future__ import annotations

from dataclasses import replace

import torch

from unhinge.data.batches import generator_of
from unhinge.data.images import ImageSet

__all__ = ["with_label_noise"]


def with_label_noise(images: ImageSet, rate: float, *, seed: int) -> ImageSet:
    r"""Each label kept with probability :math:`1 - \rho`, else any *other* class alike.

    The convention of :func:`unhinge.theory.symmetric_noise`, whose row is the distribution of a label here. Where both
    are wanted, imbalance comes first: the tail is one of true classes. The wrong ones are where the labels differ.

    Example:
        >>> from unhinge.data import load
        >>> clean = load("digits").training
        >>> noisy = with_label_noise(clean, 0.25, seed=0)
        >>> round((noisy.labels != clean.labels).float().mean().item(), 2)
        0.26
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie in [0, 1], got {rate:g}. It is a probability, not a percentage.")
    if images.num_classes < 2:
        raise ValueError("a wrong label needs a second class, and there is only one.")
    generator = generator_of(seed)
    wrong = torch.rand(len(images), generator=generator, dtype=torch.float64) < rate
    # A step of 1 .. C - 1 around the circle of classes is a uniform choice among the others.
    step = torch.randint(1, images.num_classes, (len(images),), generator=generator)
    moved = (images.labels + (step * wrong).to(images.labels.device)) % images.num_classes
    return replace(images, labels=moved)
