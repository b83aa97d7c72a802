"""A split that takes the same share of every class."""

from __future__ import annotations

import torch
from torch import Tensor

from unhinge.data.batches import generator_of

__all__ = ["stratified_split"]


def stratified_split(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    r"""Ascending indices of two parts, the second with about `share` of each class, and no class left without.

    A class of one goes to the first part.

    Example:
        >>> first, second = stratified_split(
        ...     torch.tensor([0, 1] * 5), share=0.2, seed=0
        ... )
        >>> len(first), sorted((second % 2).tolist())
        (8, [0, 1])
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie between 0 and 1, got {share}.")
    first, second = [], []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().squeeze(1).cpu()
        shuffled = members[torch.randperm(len(members), generator=generator_of(seed, label))]
        taken = min(max(round(share * len(members)), 1), len(members) - 1)
        second.append(shuffled[:taken])
        first.append(shuffled[taken:])
    empty = [torch.empty(0, dtype=torch.int64)]
    return torch.cat(first or empty).sort().values, torch.cat(second or empty).sort().values
