"""Half precision holds the numbers, single precision adds them up; autocast decides what comes out."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["full_precision", "outcome_dtype", "widened"]

HALVES = (torch.float16, torch.bfloat16)


def widened(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype to accumulate in: the widest one given, and never less than float32.

    A thousand float16 logits of size 100 already add up to infinity.

    Example:
        >>> widened(torch.float16), widened(torch.float32, torch.float64)
        (torch.float32, torch.float64)
    """
    widest = dtypes[0]
    for dtype in dtypes[1:]:
        widest = torch.promote_types(widest, dtype)
    return torch.float32 if widest in HALVES else widest


def outcome_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype ``nn.CrossEntropyLoss`` returns: that of the logits, but float32 from halves under autocast."""
    return widened(dtype) if _autocasting(device) else dtype


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Inside, autocast does not turn our float32 products into half precision ones."""
    return torch.autocast(device.type, enabled=False) if _autocasting(device) else nullcontext()


def _autocasting(device: torch.device) -> bool:
    # asking a device that has no autocast (meta) whether it is on is an error
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
