"""What the public door accepts. Each check says what was expected, what came, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["check_labels", "check_soft_labels", "check_start", "check_steps", "check_times", "scalar"]

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def scalar(name: str, value: Any, *, positive: bool = False) -> Tensor:
    r"""One finite, non-negative number as a float64 CPU tensor that keeps its autograd graph."""
    try:
        number = torch.as_tensor(value, dtype=torch.float64).to("cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{name} must be a number, got {type(value).__name__}. Pass a float or a tensor with one element."
        ) from None
    if number.numel() != 1:
        raise ValueError(
            f"{name} must be one number, got a tensor of shape {tuple(number.shape)}. Solve one problem per value."
        )
    number = number.reshape(())
    plain = number.item()
    if not plain >= 0 or plain == float("inf"):
        raise ValueError(
            f"{name} must be finite and not negative, got {plain}. "
            "Under the unhinged loss a negative value reverses the dynamics; pass its size."
        )
    if positive and plain == 0:
        raise ValueError(f"{name} must be greater than 0, got 0.")
    return number


def check_num_classes(num_classes: int) -> int:
    """A whole number of at least 2."""
    if isinstance(num_classes, bool) or int(num_classes) != num_classes or num_classes < 2:
        raise ValueError(f"num_classes must be a whole number of at least 2, got {num_classes}.")
    return int(num_classes)


def check_labels(target: Tensor, num_classes: int) -> Tensor:
    """Integer labels of every example; returns them as int64."""
    if target.numel() == 0:
        raise ValueError("target is empty; at least one example per class is needed.")
    low, high = int(target.min()), int(target.max())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must lie in 0 .. {num_classes - 1} (num_classes={num_classes}), "
            f"got values from {low} to {high}. Relabel the classes or raise num_classes."
        )
    return target.to(torch.int64)


def check_counts(counts: Tensor) -> None:
    """No class may be empty: its scaled mean would be 0/0."""
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        shown = ", ".join(map(str, empty[:8])) + (", ..." if len(empty) > 8 else "")
        raise ValueError(
            f"every class needs at least one example, but {len(empty)} of {counts.numel()} classes "
            f"have none: {shown}. Drop these classes and relabel, or pass soft labels."
        )


def check_soft_labels(target: Tensor, num_classes: int) -> Tensor:
    """Rows of target distributions; returns them as float64 or in their own dtype."""
    if target.ndim != 2 or target.shape[1] != num_classes:
        raise ValueError(
            f"soft labels must have shape (n, {num_classes}) (num_classes={num_classes}), "
            f"got {tuple(target.shape)}. Integer labels have shape (n,) and an integer dtype."
        )
    if target.shape[0] == 0:
        raise ValueError("target is empty; at least one example is needed.")
    if not torch.isfinite(target).all():
        raise ValueError("soft labels contain NaN or infinite values; clean them first.")
    drift = (target.sum(1, dtype=torch.float64) - 1).abs().max().item()
    budget = 16 * num_classes * torch.finfo(target.dtype).eps
    if drift > budget:
        raise ValueError(
            f"each row of soft labels must sum to 1, but one is off by {drift:.3g}. "
            "Divide each row by its sum: target / target.sum(1, keepdim=True)."
        )
    return target


def check_tensor(name: str, value: Any, shape: tuple[int | None, ...], finite: bool = True) -> Tensor:
    """A float tensor of the given shape (None: any size), of finite numbers unless `finite` is False."""
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}. Convert it: torch.as_tensor({name})."
        )
    wanted = str(tuple("any" if size is None else size for size in shape)).replace("'", "")
    fits = value.ndim == len(shape) and all(
        want is None or want == have for want, have in zip(shape, value.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{name} must have shape {wanted}, got {tuple(value.shape)}. "
            "Vectors are rows, as in nn.Linear: features (n, p), weight (C, p), bias (C,)."
        )
    if value.dtype not in FLOATS:
        raise ValueError(f"{name} must have a floating dtype, got {value.dtype}. Call {name}.double() or .float().")
    # a sum is one fast pass and shows any NaN or infinity; only a suspicious one is worth a closer look
    if finite and not torch.isfinite(value.detach().sum()) and not torch.isfinite(value).all():
        bad = int((~torch.isfinite(value)).sum())
        raise ValueError(
            f"{name} contains {bad} NaN or infinite values; the dynamics is linear in it, so every "
            "answer would be NaN. Find where they come from before asking."
        )
    return value


def check_alike(**tensors: Tensor | None) -> None:
    """All tensors share one dtype and one device."""
    given = {name: value for name, value in tensors.items() if value is not None}
    for what in ("dtype", "device"):
        kinds = {name: getattr(value, what) for name, value in given.items()}
        if len(set(kinds.values())) > 1:
            listing = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
            raise ValueError(
                f"all tensors must share one {what}, but {listing}. "
                f"Convert them with .to(...) so that the answer's {what} is yours to choose."
            )


def check_start(features: Tensor, weight: Tensor, bias: Tensor | None, size: int | None, num_classes: int) -> None:
    """The initial state: shapes, dtypes, devices and finite entries."""
    check_tensor("features", features, (size, None))
    check_tensor("weight", weight, (num_classes, features.shape[1]))
    if bias is not None:
        check_tensor("bias", bias, (num_classes,))
    check_alike(features=features, weight=weight, bias=bias)


def _numbers(time: Any) -> Tensor:
    try:
        # through numpy, where Python's floats keep their 64 bits whatever torch's default dtype is
        return time if isinstance(time, Tensor) else torch.as_tensor(np.asarray(time))
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"times must be numbers or a tensor of them, got {time!r}.") from None


def check_times(time: Any) -> Tensor:
    """Times as a float64 CPU tensor, finite and not negative."""
    value = _numbers(time).to("cpu", torch.float64)
    if not torch.isfinite(value).all():
        raise ValueError("times must be finite numbers. For infinite time ask limit() or direction().")
    if value.numel() and value.min() < 0:
        raise ValueError(f"times must not be negative, got {value.min().item():g}.")
    return value


def check_steps(time: Any) -> Tensor:
    """Step counts as an int64 CPU tensor; whole numbers in a float tensor are accepted."""
    value = _numbers(time).to("cpu")
    if value.dtype == torch.bool:
        raise ValueError("descent counts whole steps, got booleans.")
    if value.is_floating_point():
        check_times(value)
        if (value != value.round()).any():
            odd = value[value != value.round()].flatten()[0].item()
            raise ValueError(f"descent counts whole steps, got {odd:g}. Round it, or use flow() for continuous time.")
    steps = value.to(torch.int64)
    if steps.numel() and steps.min() < 0:
        raise ValueError(f"steps must not be negative, got {int(steps.min())}.")
    return steps
