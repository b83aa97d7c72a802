"""Sums over the processes of a ``torch.distributed`` group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["sum_over_processes"]


def sum_over_processes(value: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The sum of `value` over all processes, on each of them, where `value` was; `value` itself is left as it is."""
    # NCCL moves tensors of the GPU only, gloo and MPI those of the CPU.
    device = torch.device("cuda") if dist.get_backend(group) == "nccl" else value.device
    total = value.detach().to(device, copy=True)
    dist.all_reduce(total, group=group)
    return total.to(value.device)
