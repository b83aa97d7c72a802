r"""Losses from their definitions, one example and one class at a time; nothing here shares algebra with the package.

Everything is made of scalar tensors, so that autograd can differentiate the oracle too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "adjusted_margin",
    "adjusted_shift",
    "cross_entropy_term",
    "hinge_term",
    "loop_loss",
    "spherical_gradient",
    "unhinged_term",
]

Term = Callable[[Tensor, int], Tensor]  # the loss of one row of logits, were this class the true one


def unhinged_term(gamma: float | None) -> Term:
    def term(z: Tensor, y: int) -> Tensor:
        others = [z[j] for j in range(len(z)) if j != y]
        share = gamma if gamma is not None else (1 / len(others) if others else 0.0)
        loss = -z[y]
        for other in others:
            loss = loss + share * other
        return loss

    return term


def hinge_term(margin: float) -> Term:
    def term(z: Tensor, y: int) -> Tensor:
        loss = 0 * z[y]
        for j in range(len(z)):
            if j != y and (z[j] - z[y] + margin).item() > 0:
                loss = loss + z[j] - z[y] + margin
        return loss

    return term


def cross_entropy_term(z: Tensor, y: int) -> Tensor:
    """For judging the loop itself: with this term it must be ``F.cross_entropy``."""
    return -(z[y] - torch.log(sum(torch.exp(zj) for zj in z)))


def loop_loss(
    term: Term,
    logits: Tensor,
    target: Tensor,
    axis: int,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """What ``nn.CrossEntropyLoss`` does with targets, weights, ignored labels and smoothing, for any loss per class."""
    rows = logits.movedim(axis, -1)
    leading, classes = rows.shape[:-1], rows.shape[-1]
    rows = rows.reshape(-1, classes)
    soft = target.is_floating_point()
    aims = target.movedim(axis, -1).reshape(-1, classes) if soft else target.reshape(-1)
    shares = [1.0] * classes if weight is None else [w.item() for w in weight]
    losses, size = [], 0.0
    for z, aim in zip(rows, aims, strict=True):
        if soft:
            probabilities = [(1 - label_smoothing) * q.item() + label_smoothing / classes for q in aim]
            losses.append(sum(shares[c] * probabilities[c] * term(z, c) for c in range(classes)))
            size += 1
        elif aim.item() == ignore_index:
            losses.append(torch.zeros((), dtype=logits.dtype))
        else:
            y = int(aim)
            loss = (1 - label_smoothing) * shares[y] * term(z, y)
            if label_smoothing:
                loss = loss + label_smoothing / classes * sum(shares[c] * term(z, c) for c in range(classes))
            losses.append(loss)
            size += shares[y]
    each = torch.stack(losses) if losses else rows.sum(-1)
    if reduction == "none":
        return each.reshape(leading)
    return each.sum() if reduction == "sum" else each.sum() / size


def adjusted_shift(w: Tensor, unit: Tensor, epsilon: float) -> Tensor:
    r"""The shift :math:`\delta` as published, with the corrected sign in the last factor (erratum 35)."""
    c = (w @ unit / w.norm()).item()
    ratio = c * math.sqrt(1 - (1 - epsilon) ** 2) / ((1 - epsilon) * math.sqrt(1 - c**2))
    return -(1 + ratio) * (w - unit * (unit @ w))


def adjusted_margin(h: Tensor, weight: Tensor, y: int, gamma: float, epsilon: float) -> tuple[Tensor, Tensor]:
    """Value and gradient by h for prototypes of mean zero, away from the antipode itself."""
    unit = h / h.norm()
    aim = weight[y]
    if (aim @ unit / aim.norm()).item() < -1 + epsilon:
        aim = aim + adjusted_shift(aim, unit, epsilon)
    return -(1 + gamma) * (aim @ unit), spherical_gradient(-(1 + gamma) * aim, h)


def spherical_gradient(v: Tensor, h: Tensor) -> Tensor:
    r"""Gradient of :math:`v^\top h/\|h\|` by h, with v held fixed."""
    jacobian = torch.zeros(len(h), len(h), dtype=h.dtype)
    norm = h.norm().item()
    for i in range(len(h)):
        for j in range(len(h)):
            jacobian[i, j] = (float(i == j) - (h[i] * h[j]).item() / norm**2) / norm
    return jacobian @ v
