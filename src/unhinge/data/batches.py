"""The batches of one epoch, each a function of (seed, epoch, step) and of nothing that happened before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from unhinge.data.augment import Augment
from unhinge.data.images import ImageSet

__all__ = ["batches", "generator_of", "num_batches"]

_ORDER, _AUGMENT = 0, 1


def generator_of(*key: int) -> torch.Generator:
    """A CPU generator that depends on `key` alone; keys that differ anywhere give unrelated streams.

    Example:
        >>> torch.randint(100, (3,), generator=generator_of(0, 1)).tolist()
        [83, 14, 86]
    """
    if any(part < 0 for part in key):
        raise ValueError(f"seeds, epochs and steps are not negative, got {key}.")
    # The length goes first: trailing zeros would otherwise be lost, (1,) and (1, 0) being the same entropy.
    state = np.random.SeedSequence([len(key), *key]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def num_batches(images: ImageSet, batch_size: int, *, drop_last: bool = False) -> int:
    """Steps of an epoch.

    Example:
        >>> from unhinge.data import load
        >>> num_batches(load("digits").training, 128)
        12
        >>> num_batches(load("digits").training, 128, drop_last=True)
        11
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    return len(images) // batch_size if drop_last else -(-len(images) // batch_size)


def batches(
    images: ImageSet,
    batch_size: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    augment: Augment | None = None,
    start: int = 0,
    drop_last: bool = False,
    shard: tuple[int, int] = (0, 1),
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Iterator[tuple[Tensor, Tensor]]:
    r"""One epoch as pairs (float images :math:`(b, c, h, w)`, labels :math:`(b,)`), on the device of `images`.

    The order is a function of (seed, epoch), the augmentation of (seed, epoch, step), both drawn on the CPU: an epoch
    entered at step `start` gives the batches an uninterrupted one gives, on any device and over any number of shards.

    Arguments:
        images: What to read.
        batch_size: Images per step, over all shards together.
        seed: Of order and augmentation; None keeps the order of the files, for evaluation.
        epoch: Counted from 0.
        augment: Random changes, or None.
        start: The first step to give.
        drop_last: Leave out a last batch that is not full.
        shard: (rank, processes): of each batch, the images at rank, rank + processes, rank + 2 processes and so on.
        memory_format: Of the images given.

    Example:
        >>> from unhinge.data import load
        >>> for x, y in batches(load("digits").training, 500, seed=0, drop_last=True):
        ...     print(tuple(x.shape), x.dtype, tuple(y.shape))
        (500, 1, 8, 8) torch.float32 (500,)
        (500, 1, 8, 8) torch.float32 (500,)
    """
    steps = num_batches(images, batch_size, drop_last=drop_last)
    rank, processes = shard
    if not 0 <= rank < processes:
        raise ValueError(f"shard must be (rank, processes) with 0 <= rank < processes, got {shard}.")
    if not 0 <= start <= steps:
        raise ValueError(f"start must be a step of this epoch, 0 .. {steps}, got {start}.")
    if augment is not None and seed is None:
        raise ValueError("augment needs a seed; without one the batches are those of evaluation, unchanged.")
    if seed is None:
        order = torch.arange(len(images))
    else:
        order = torch.randperm(len(images), generator=generator_of(seed, _ORDER, epoch))
    order, own_part = order.to(images.images.device), slice(rank, None, processes)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        chosen = order[step * batch_size : (step + 1) * batch_size]
        number, chosen = len(chosen), chosen[own_part]
        x = images.images.index_select(0, chosen)
        if augment is not None and seed is not None:
            # Drawn for the whole batch and then cut, so that an image meets the same change however many share it.
            choices = augment.draw(number, generator_of(seed, _AUGMENT, epoch, step))
            x = augment.apply(x, choices[:, own_part])
        return images.normalize(x).contiguous(memory_format=memory_format), images.labels.index_select(0, chosen)

    return map(batch, range(start, steps))
