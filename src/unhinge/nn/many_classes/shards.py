r"""Which rows a process owns, and what the processes tell each other: labels, features and sums, never rows by class.

Without a process group every method is the identity, so that the head is written once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Shards"]


@dataclass(frozen=True)
class Shards:
    """Classes split into consecutive ranges over the processes of `group`, the first ones larger, as torch.chunk does.

    Example:
        >>> shards = Shards(10)
        >>> shards.start, shards.stop, shards.size
        (0, 10, 1)
    """

    num_classes: int
    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """Number of processes."""
        return 1 if self.group is None else dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        return 0 if self.group is None else dist.get_rank(self.group)

    @property
    def start(self) -> int:
        return min(self.rank * -(-self.num_classes // self.size), self.num_classes)

    @property
    def stop(self) -> int:
        return min((self.rank + 1) * -(-self.num_classes // self.size), self.num_classes)

    def mine(self, labels: Tensor) -> Tensor:
        """Whether this process owns the rows of `labels`."""
        return (labels >= self.start) & (labels < self.stop)

    def sum(self, local: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        if self.group is not None:
            dist.all_reduce(local, group=self.group)
        return local

    def any(self, local: bool) -> bool:
        """Whether it is so in any process."""
        return local if self.group is None else bool(self.sum(torch.tensor(float(local))) > 0)

    def gather(self, local: Tensor) -> tuple[Tensor, slice]:
        """The rows of all processes, in their order, and where this one's are. They may have different numbers."""
        if self.group is None:
            return local, slice(0, len(local))
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = len(local)
        sizes = self.sum(counts).tolist()
        # Padded to one size: gloo's all_gather takes only equal parts.
        padded = local.new_zeros(max(sizes), *local.shape[1:])
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self.group)
        before = sum(sizes[: self.rank])
        whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        return whole, slice(before, before + len(local))
