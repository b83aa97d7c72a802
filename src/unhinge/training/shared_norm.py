"""Batch norm over the whole batch where several processes share it, so that they train what one process trains.

torch's SyncBatchNorm does this on GPUs only; on CPUs the sums go through differentiable all-reduces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["SharedBatchNorm2d", "share_batch_norm"]


class SharedBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose training statistics are those of all processes' images together."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not torch.distributed.is_initialized():
            return super().forward(input)
        axes = (0, 2, 3)
        size = _total(input.new_tensor(float(input.numel() // input.shape[1])))
        mean = _total(input.sum(axes)) / size
        apart = input - mean[:, None, None]
        variance = _total(apart.square().sum(axes)) / size
        if self.track_running_stats:
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            assert self.momentum is not None
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * (size / (size - 1)), self.momentum)
        scaled = apart * torch.rsqrt(variance + self.eps)[:, None, None]
        return scaled * self.weight[:, None, None] + self.bias[:, None, None] if self.affine else scaled


def share_batch_norm(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with every batch norm shared; parameters and their names stay."""
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    for name, module in list(model.named_modules()):
        if type(module) is nn.BatchNorm2d:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], _shared(module))
    return model


def _shared(norm: nn.BatchNorm2d) -> SharedBatchNorm2d:
    twin = SharedBatchNorm2d(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    twin.weight, twin.bias = norm.weight, norm.bias
    twin.running_mean, twin.running_var = norm.running_mean, norm.running_var
    twin.num_batches_tracked = norm.num_batches_tracked
    return twin.train(norm.training)


class _SumOverProcesses(torch.autograd.Function):
    """Sum over the processes; each one's gradient is the sum of all gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.detach().clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone()
        torch.distributed.all_reduce(total)
        return total


def _total(value: Tensor) -> Tensor:
    total: Tensor = _SumOverProcesses.apply(value)  # type: ignore[no-untyped-call]
    return total
