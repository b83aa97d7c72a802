"""What the public door accepts. Each check says what was expected, what came, and what to do.

Tensors, numpy arrays and lists become tensors here and nowhere else: see :mod:`unhinge.theory.types` for the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "as_label_tensor",
    "as_tensor",
    "as_tensors",
    "check_alike",
    "check_counts",
    "check_distances",
    "check_labels",
    "check_number",
    "check_num_classes",
    "check_shape",
    "check_soft_labels",
    "check_start",
    "check_steps",
    "check_times",
    "check_unmasked",
    "scalar",
]

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def as_tensor(name: str, value: object) -> Tensor:
    """A tensor as it is; an array, or anything that numpy reads as one, with its own dtype; a list as int64 or float64.

    Example:
        >>> as_tensor("bias", [0.5, 1.0]).dtype
        torch.float64
        >>> as_tensor("bias", np.ones(2, dtype=np.float32)).dtype
        torch.float32
    """
    if isinstance(value, Tensor):
        return value
    check_unmasked(name, value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, for one
        array = np.asarray(None)
    if array.dtype.kind not in "biufc":
        raise ValueError(
            f"{name} must be a torch.Tensor, a numpy array or a list of numbers, got {_described(value)}. "
            f"Every entry must be a number, and all rows must have one length."
        )
    # torch reads neither unsigned integers beyond a byte, nor another machine's byte order, nor long doubles.
    plain = {"u": np.dtype(np.int64), "f": np.dtype(np.float64)}
    native = array.dtype.newbyteorder("=")
    unknown = array.dtype.kind in plain and native not in (np.uint8, np.float16, np.float32, np.float64)
    # It warns about arrays that must not be written to, and refuses negative strides: those are copied.
    array = np.require(array, dtype=plain[array.dtype.kind] if unknown else native, requirements=["C", "W"])
    return torch.from_numpy(array)


def check_unmasked(name: str, value: object) -> None:
    """No masked array with something masked: as a tensor it would show what its mask hides.

    Example:
        >>> check_unmasked("target", np.ma.masked_equal([0, 1, 9], 9))
        Traceback (most recent call last):
        ValueError: target has 1 masked entry. Leave out the examples it belongs to.
    """
    if isinstance(value, np.ma.MaskedArray) and (count := int(np.asarray(value.mask).sum())):
        entries, owners = ("entry", "it belongs") if count == 1 else ("entries", "they belong")
        raise ValueError(f"{name} has {count} masked {entries}. Leave out the examples {owners} to.")


def as_tensors(values: Mapping[str, object]) -> list[Tensor]:
    """All values as tensors. Lists have no dtype or device of their own: they take those of what stands beside them."""
    given = {name: as_tensor(name, value) for name, value in values.items()}
    typed = [
        given[name] for name, value in values.items() if hasattr(value, "dtype") and given[name].is_floating_point()
    ]
    like = typed[0] if typed else torch.empty(0, dtype=torch.float64)
    return [tensor if hasattr(values[name], "dtype") else _list_like(tensor, like) for name, tensor in given.items()]


def _list_like(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.bool or tensor.is_complex() else tensor.to(like)


def as_label_tensor(target: object) -> Tensor:
    """Labels of either kind as a tensor: integers (n,) or probabilities (n, C)."""
    tensor = as_tensor("target", target)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"target must hold integer labels or probabilities, got {tensor.dtype}.")
    return tensor


def _described(value: object) -> str:
    """What came, in a few words."""
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 else type(value).__name__


def scalar(name: str, value: object, *, positive: bool = False) -> Tensor:
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
        reverses = plain < 0 and name in ("lr", "gamma", "feature_decay", "weight_decay")
        advice = " Under the unhinged loss a negative value reverses the dynamics; pass its size." if reverses else ""
        raise ValueError(f"{name} must be finite and not negative, got {plain}.{advice}")
    if positive and plain == 0:
        raise ValueError(f"{name} must be greater than 0, got 0.")
    return number


def check_number(name: str, value: object) -> None:
    """A number, or a tensor that holds one; who asks says in which range it must lie.

    Example:
        >>> check_number("radius", None)
        Traceback (most recent call last):
        ValueError: radius must be a number, got NoneType.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} must be one number, got a tensor of shape {tuple(value.shape)}.")
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {type(value).__name__}.")


def check_num_classes(num_classes: Any) -> int:
    """A whole number of at least 2."""
    whole = isinstance(num_classes, int | float | np.number) and not isinstance(num_classes, bool)
    if not whole or not num_classes == num_classes // 1 or num_classes < 2:
        raise ValueError(f"num_classes must be a whole number of at least 2, got {num_classes!r}.")
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
    """Rows of target distributions; returns them as they are, or in float64 and divided by sums that were rounded."""
    if target.ndim != 2 or target.shape[1] != num_classes:
        raise ValueError(
            f"soft labels must have shape (n, {num_classes}) (num_classes={num_classes}), "
            f"got {tuple(target.shape)}. Integer labels have shape (n,) and an integer dtype."
        )
    if target.shape[0] == 0:
        raise ValueError("target is empty; at least one example is needed.")
    if not torch.isfinite(target).all():
        raise ValueError("soft labels contain NaN or infinite values; clean them first.")
    sums = target.sum(1, dtype=torch.float64)
    drift = (sums - 1).abs().max().item()
    # A softmax in float32 that was cast to float64 is as good a distribution as one that was not.
    budget = 16 * num_classes * max(torch.finfo(target.dtype).eps, torch.finfo(torch.float32).eps)
    if drift > budget:
        raise ValueError(
            f"each row of soft labels must sum to 1, but one is off by {drift:.3g}. "
            "Divide each row by its sum: target / target.sum(1, keepdim=True)."
        )
    # The spectrum takes sums of 1 for granted, in float64.
    exact = drift <= 16 * num_classes * torch.finfo(torch.float64).eps
    return target if exact else target.double() / sums[:, None]


def check_shape(name: str, value: Tensor, shape: tuple[int | None, ...], finite: bool = True) -> Tensor:
    """A float tensor of the given shape (None: any size), of finite numbers unless `finite` is False."""
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
    # A sum is one fast pass and shows any NaN or infinity; only a suspicious one is worth a closer look.
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
                f"Convert them with .to(...), arrays with .astype(...), so that the answer's {what} is yours to choose."
            )


def check_start(
    features: object, weight: object, bias: object | None, size: int | None, num_classes: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The initial state as tensors of its own, with shapes, dtypes, devices and entries checked.

    Copies: whoever trains the same tensors in place and then asks the path would get an answer of both.
    """
    named = {"features": features, "weight": weight} | ({} if bias is None else {"bias": bias})
    rows, prototypes, *biases = as_tensors(named)
    check_shape("features", rows, (size, None))
    check_shape("weight", prototypes, (num_classes, rows.shape[1]))
    offsets = check_shape("bias", biases[0], (num_classes,)) if biases else None
    check_alike(features=rows, weight=prototypes, bias=offsets)
    return rows.clone(), prototypes.clone(), None if offsets is None else offsets.clone()


def _numbers(name: str, value: object) -> Tensor:
    # Through numpy, where Python's floats keep their 64 bits whatever torch's default dtype is.
    tensor = as_tensor(name, value)
    if tensor.is_complex():
        raise ValueError(f"{name} must be real numbers, got {tensor.dtype}.")
    return tensor


def check_times(time: object) -> Tensor:
    """Times as a float64 CPU tensor, finite and not negative."""
    value = _numbers("times", time).to("cpu", torch.float64)
    if not torch.isfinite(value).all():
        raise ValueError("times must be finite numbers. For infinite time ask limit() or direction().")
    if value.numel() and value.min() < 0:
        raise ValueError(f"times must not be negative, got {value.min().item():g}.")
    return value


def check_steps(time: object) -> Tensor:
    """Step counts as an int64 CPU tensor; whole numbers in a float tensor are accepted."""
    value = _numbers("steps", time).to("cpu")
    if value.dtype == torch.bool:
        raise ValueError("descent counts whole steps, got booleans.")
    if value.is_floating_point():
        check_times(value)
        if (value != value.round()).any():
            odd = value[value != value.round()].flatten()[0].item()
            raise ValueError(f"descent counts whole steps, got {odd:g}. Round it, or use flow() for continuous time.")
        if value.numel() and value.max() >= 2.0**63:  # int64 would turn it into a negative number
            raise ValueError(f"descent counts fewer than 2^63 steps, got {value.max().item():g}. Ask limit(), or less.")
    steps = value.to(torch.int64)
    if steps.numel() and steps.min() < 0:
        raise ValueError(f"steps must not be negative, got {int(steps.min())}.")
    return steps


def check_distances(distance: object) -> Tensor:
    """Distances to be reached as a float64 CPU tensor, all positive."""
    value = _numbers("distances", distance).detach().to("cpu", torch.float64)
    if not bool((value > 0).all()):
        worst = value[~(value > 0)].flatten()[0].item()
        raise ValueError(f"the distance must be positive, got {worst:g}; zero is reached only in the limit.")
    return value
