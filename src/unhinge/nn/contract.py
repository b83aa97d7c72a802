"""What the losses accept, and how they read it: gamma, class weights, targets, the axis of the classes.

Every check looks at shapes, dtypes and Python numbers only, and at the entries of a tensor only through :func:`read`,
so that the losses compile to one graph, run under vmap and never wait for a GPU. Entries are checked where torch itself
checks them: a label out of range is an `IndexError` on the CPU and a device-side assertion on CUDA, as with
``nn.CrossEntropyLoss``.
"""

from __future__ import annotations

import math
from numbers import Integral, Real

import torch
from torch import Tensor

from unhinge.theory.validation import check_number

__all__ = [
    "as_class_weight",
    "as_tensor",
    "check_class_weight",
    "check_dtype",
    "check_features",
    "check_floating",
    "check_gamma",
    "check_not_negative",
    "check_positive",
    "check_prior",
    "check_prior_mean",
    "check_prior_sum",
    "check_reduction",
    "check_size",
    "check_smoothing",
    "check_widths",
    "class_axis",
    "default_gamma",
    "is_soft",
    "read",
    "refuse_ignoring",
    "resolve_gamma",
]

REDUCTIONS = ("none", "mean", "sum")


def default_gamma(num_classes: int) -> float:
    r""":math:`1/(C-1)`; a single class has no other logits to weigh, and gets 0."""
    return 1 / (num_classes - 1) if num_classes > 1 else 0.0


def check_size(name: str, value: object, least: int = 1) -> None:
    """A whole number, also of numpy, of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def check_positive(name: str, value: float, reason: str = ".") -> None:
    """A positive, finite number; `reason` ends the message."""
    check_number(name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}{reason}")


def check_not_negative(name: str, value: float) -> None:
    """A finite number of at least 0."""
    check_number(name, value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and not negative, got {value}.")


def check_dtype(dtype: torch.dtype | None) -> None:
    """Of parameters and prototypes: a floating one, or None for the default."""
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating one, got {dtype}: the entries are fractions.")


def check_gamma(gamma: float | Tensor | None) -> None:
    """`None`, a finite non-negative number, or a tensor with one element (taken on trust, so as not to read it)."""
    if gamma is None:
        return
    if isinstance(gamma, Tensor):
        if gamma.numel() != 1:
            raise ValueError(f"gamma must be one number, got a tensor of shape {tuple(gamma.shape)}.")
        return
    if isinstance(gamma, bool) or not isinstance(gamma, Real):
        raise ValueError(f"gamma must be a number or None, got {type(gamma).__name__}. None means 1/(C-1).")
    if not 0 <= gamma < math.inf:
        raise ValueError(
            f"gamma must be finite and not negative, got {gamma}. It weighs the other logits; None means 1/(C-1)."
        )


def check_prior(prior: object, num_classes: int | None, gamma: float | Tensor | None) -> None:
    """`None`, or a tensor of one entry per class, without a gamma beside it; that it sums to 1 is taken on trust."""
    if prior is None:
        return
    if gamma is not None:
        raise ValueError("pass either gamma or prior: the loss is -z_y + gamma * (other logits), or -z_y + prior . z.")
    if not isinstance(prior, Tensor) or not prior.is_floating_point() or prior.ndim != 1:
        came = f"{prior.dtype} of shape {tuple(prior.shape)}" if isinstance(prior, Tensor) else type(prior).__name__
        raise ValueError(f"prior must be a floating tensor with one entry per class that sums to 1, got {came}.")
    if num_classes is not None and len(prior) != num_classes:
        raise ValueError(f"prior must have one entry for each of the {num_classes} classes, got {len(prior)}.")


def check_prior_sum(prior: Tensor | None) -> None:
    """That a prior sums to 1. For constructors, which read it once; a function called at every step does not."""
    if prior is None or prior.is_meta:
        return
    total = prior.detach().double().sum().item()
    # Frequencies printed with four digits are off by up to 1e-4, and each one by the rounding of its dtype.
    if not abs(total - 1) < 1e-4 + torch.finfo(prior.dtype).eps:
        raise ValueError(f"prior must sum to 1, got a sum of {total:g}. Divide it by its sum.")


def check_prior_mean(prior: Tensor | None, prior_mean: Tensor | None, weight: Tensor) -> None:
    """The cached ``prior @ weight``: only beside a prior, and as wide as a row."""
    if prior_mean is None:
        return
    if prior is None:
        raise ValueError("prior_mean is prior @ weight, computed once: pass the prior as well.")
    if prior_mean.shape != weight.shape[1:]:
        raise ValueError(
            f"prior_mean must have shape {tuple(weight.shape[1:])}, that of prior @ weight, "
            f"got {tuple(prior_mean.shape)}."
        )


def resolve_gamma(gamma: float | Tensor | None, num_classes: int) -> float | Tensor:
    check_gamma(gamma)
    if gamma is None:
        return default_gamma(num_classes)
    return gamma.reshape(()) if isinstance(gamma, Tensor) else float(gamma)


def check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f'reduction must be "none", "mean" or "sum", got {reduction!r}.')


def check_smoothing(label_smoothing: float) -> None:
    check_number("label_smoothing", label_smoothing)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must lie between 0 and 1, got {label_smoothing}.")


def as_tensor(name: str, value: object) -> Tensor:
    """The value itself: losses do not convert, since a copy made at every step would be easy to overlook."""
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}. Convert: torch.as_tensor({name})."
        )
    return value


def read(number: Tensor) -> float | None:
    """A tensor of one number, where reading it is free: on the CPU, outside of compiled, traced and mapped code."""
    if torch.compiler.is_compiling() or number.device.type != "cpu":
        return None
    try:
        return float(number.detach())
    except RuntimeError:  # under vmap, or a tensor without data
        return None


def is_soft(target: object) -> bool:
    """Whether the targets are probabilities; otherwise they are class indices."""
    target = as_tensor("target", target)
    if target.is_complex() or target.dtype == torch.bool:
        raise ValueError(f"target must hold class indices (integers) or probabilities (floats), got {target.dtype}.")
    return target.is_floating_point()


def refuse_ignoring(ignore_index: int) -> None:
    """For targets that are probabilities: a label to be ignored there is none, unless it names no class."""
    if ignore_index >= 0:
        raise ValueError(
            f"ignore_index={ignore_index} names a class, but the targets are probabilities. "
            "Give the examples to ignore a row of zeros, or pass class indices."
        )


def as_class_weight(weight: object, name: str = "weight", dtype: torch.dtype | None = None) -> Tensor | None:
    """The weights of a module: a tensor as it is, numbers in a list or an array as a tensor; an error for the rest."""
    if weight is None or isinstance(weight, Tensor):
        return weight
    if isinstance(weight, str) and name != "prior":
        raise ValueError(
            f"{name}={weight!r} needs the class counts, which a loss does not see. Pass class_weights(counts), or "
            "class_weights(counts, power=1) for the inverse frequencies."
        )
    try:
        return torch.as_tensor(weight, dtype=dtype or torch.get_default_dtype())
    except (TypeError, ValueError, RuntimeError):
        maker = "counts / counts.sum()" if name == "prior" else "class_weights(counts)"
        raise ValueError(
            f"{name} must hold one number per class, in a tensor, a list or an array, got {type(weight).__name__}. "
            f"{maker} makes one."
        ) from None


def check_class_weight(class_weight: object, num_classes: int, name: str = "weight") -> None:
    if class_weight is not None and (not isinstance(class_weight, Tensor) or class_weight.shape != (num_classes,)):
        came = tuple(class_weight.shape) if isinstance(class_weight, Tensor) else type(class_weight).__name__
        raise ValueError(
            f"{name} must be a tensor of one number per class, shape ({num_classes},), got {came}. "
            "class_weights(counts) makes one."
        )


def class_axis(logits: Tensor, target: Tensor, weight: Tensor | None, dim: int | None) -> int:
    """The axis of `logits` that holds the classes.

    Up to two axes there is no choice: the last. With more, axis 1 as in ``nn.CrossEntropyLoss`` where the shapes of
    target and weight allow it, and the last axis where only that fits. `dim` decides by hand.
    """
    if as_tensor("logits", logits).ndim == 0:
        raise ValueError("logits must have an axis of classes, got a tensor without axes.")
    if not logits.is_floating_point():
        raise ValueError(f"logits must have a floating dtype, got {logits.dtype}.")
    soft = is_soft(target)
    if dim is not None:
        if not -logits.ndim <= dim < logits.ndim:
            raise ValueError(f"dim must name one of the {logits.ndim} axes of logits, got {dim}.")
        candidates = [dim % logits.ndim]
    else:
        candidates = [logits.ndim - 1] if logits.ndim <= 2 else [1, logits.ndim - 1]
    fitting = [axis for axis in candidates if target.shape == _target_shape(logits, axis, soft)]
    if not fitting:
        wanted = " or ".join(str(tuple(_target_shape(logits, axis, soft))) for axis in dict.fromkeys(candidates))
        kind, other = ("probabilities", "Class indices") if soft else ("class indices", "Probabilities")
        dtype = "an integer" if soft else "a floating"
        raise ValueError(
            f"for logits of shape {tuple(logits.shape)}, {kind} must have shape {wanted}, got {tuple(target.shape)}. "
            f"{other} need {dtype} dtype."
        )
    if isinstance(weight, Tensor) and len(fitting) > 1:
        fitting = [axis for axis in fitting if weight.shape == (logits.shape[axis],)] or fitting
    check_class_weight(weight, logits.shape[fitting[0]])
    return fitting[0]


def _target_shape(logits: Tensor, axis: int, soft: bool) -> torch.Size:
    return logits.shape if soft else torch.Size((*logits.shape[:axis], *logits.shape[axis + 1 :]))


def check_widths(features: Tensor, weight: Tensor) -> None:
    """Features (..., p) beside a weight (C, p)."""
    if features.ndim == 0 or weight.ndim != 2 or features.shape[-1] != weight.shape[1]:
        raise ValueError(
            "features and weight must be rows of one length, shapes (..., p) and (C, p), "
            f"got {tuple(features.shape)} and {tuple(weight.shape)}."
        )


def check_floating(name: str, value: Tensor, last: str) -> None:
    """A floating tensor with at least one axis, the last of which is called `last`."""
    value = as_tensor(name, value)
    if value.ndim == 0 or not value.is_floating_point():
        raise ValueError(
            f"{name} must be a floating tensor of shape (..., {last}), got {tuple(value.shape)} of {value.dtype}."
        )


def check_features(features: Tensor, weight: Tensor, target: Tensor, **rows: Tensor | None) -> bool:
    """Features (..., p), weight (C, p) and fitting targets; `rows` are further (p,) or (C,) tensors by name.

    Returns whether the targets are probabilities.
    """
    features, weight = as_tensor("features", features), as_tensor("weight", weight)
    check_widths(features, weight)
    if not (features.is_floating_point() and weight.is_floating_point()):
        raise ValueError(f"features and weight must have floating dtypes, got {features.dtype} and {weight.dtype}.")
    soft = is_soft(target)
    leading = tuple(features.shape[:-1])
    wanted = (*leading, weight.shape[0]) if soft else leading
    if tuple(target.shape) != wanted:
        kind = "probabilities (a floating dtype)" if soft else "class indices (an integer dtype)"
        raise ValueError(
            f"for features of shape {tuple(features.shape)} and {weight.shape[0]} classes, {kind} must have shape "
            f"{wanted}, got {tuple(target.shape)}."
        )
    sizes = {"weight_sum": weight.shape[1:], "bias": weight.shape[:1], "bias_sum": torch.Size(())}
    for name, value in rows.items():
        if value is not None and as_tensor(name, value).shape != sizes[name]:
            raise ValueError(f"{name} must have shape {tuple(sizes[name])}, got {tuple(value.shape)}.")
    return soft
