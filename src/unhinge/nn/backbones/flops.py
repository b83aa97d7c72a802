"""What a forward pass costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["count_flops", "count_parameters"]


def count_flops(model: nn.Module, shape: Sequence[int]) -> int:
    """Floating-point operations of one forward pass on zeros of `shape`; a multiplication and its addition are two.

    Example:
        >>> count_flops(nn.Linear(4, 3), (1, 4))
        24
    """
    parameter = next(model.parameters(), torch.empty(0))
    images = torch.zeros(tuple(shape), dtype=parameter.dtype, device=parameter.device)
    was_training = model.training
    model.eval()  # a counted pass should not move the running statistics
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(images)
    finally:
        model.train(was_training)
    return counter.get_total_flops()


def count_parameters(model: nn.Module) -> int:
    """Numbers that training changes.

    Example:
        >>> count_parameters(nn.Linear(4, 3))
        15
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
