"""An initial state, checked, passed over once, and taken apart into modes. Knows nothing of time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.theory.keeping import kept
from unhinge.theory.linear.summary import HardSummary, SoftSummary, Summary, summarize_in_memory
from unhinge.theory.numerics import safe_norm, safe_sqrt, unit_of, widened
from unhinge.theory.targets import Targets
from unhinge.theory.types import Matrix, Vector
from unhinge.theory.validation import as_tensors, check_alike, check_shape, check_start

__all__ = ["CheckedStart", "Start", "reduce_start"]


@dataclass(frozen=True)
class CheckedStart:
    """A checked initial state after one pass over it, in float64 and in a unit in which squares fit."""

    rows: Tensor  # (r, p), reduced features
    spread: Tensor  # (), |H| outside the modes
    weight: Tensor  # (C, p)
    bias: Tensor | None  # (C,), as it came
    features: Tensor | None  # (n, p), in their dtype, if they are there
    unit: float  # a power of two that all but the bias was divided by; 1 for all but starts whose squares do not fit
    like: Tensor  # (0,), of the dtype and on the device of the answers


def reduce_start(
    features: Matrix | Summary,
    weight: Matrix,
    bias: Vector | None,
    targets: Targets | None,
    counts: Tensor,
    factor: Tensor | None,
) -> CheckedStart:
    """Check the initial state of a problem with these labels, and pass over it once.

    Arguments:
        targets: The labels; None for a problem that was made from a summary, which then takes only summaries.
        counts: Examples per class, (C,).
        factor: R of soft labels, (r, C), in whose basis their reduced features are; None for integer labels.
    """
    classes = len(counts)
    if not isinstance(features, HardSummary | SoftSummary):
        if targets is None:
            raise ValueError(
                "this problem was made from a summary and knows no label per example; pass the summary as features, or "
                "make the problem with LayerPeeled(target, num_classes)."
            )
        start, prototypes, biases = check_start(features, weight, bias, targets.size, classes)
        rows, spread = summarize_in_memory(start, targets)
        return _in_units(rows, spread, prototypes, biases, start, start)
    if isinstance(features, HardSummary):
        same = factor is None and torch.equal(features.counts.double(), counts.double())
    else:  # other labels, or the same ones summed in other parts, have another basis
        same = factor is not None and torch.equal(features.factor, factor)
    if not same:
        raise ValueError(
            "the summary is not the one that this problem was made from: its class counts, or the basis of its soft "
            "labels, are others. Make the problem from it, LayerPeeled.from_summary(summary), or pass the features."
        )
    rows = features.wide_rows()
    like = rows.new_empty(0, dtype=features.dtype)
    given = {"features": like, "weight": weight} | ({} if bias is None else {"bias": bias})
    _, prototypes, *rest = as_tensors(given)
    check_shape("weight", prototypes, (classes, rows.shape[1]))
    biases = check_shape("bias", rest[0], (classes,)) if rest else None
    check_alike(features=like, weight=prototypes, bias=biases)
    biases = None if biases is None else biases.clone()  # copies, as check_start() makes them
    return _in_units(rows, features.spread, prototypes.clone(), biases, None, like)


def _in_units(
    rows: Tensor, spread: Tensor, weight: Tensor, bias: Tensor | None, features: Tensor | None, like: Tensor
) -> CheckedStart:
    wide, some = widened(weight), like.detach().new_empty(0)
    unit = unit_of(rows, wide, spread)
    if unit == 1:
        return CheckedStart(rows, spread, wide, bias, features, unit, some)
    scaled = None if features is None else features / unit
    return CheckedStart(rows / unit, spread / unit, wide / unit, bias, scaled, unit, some)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The initial state in the coordinates of the modes; `features` and `targets` are missing after a streamed pass."""

    rows: Tensor  # (r, p), reduced features
    x: Tensor  # (rows, p)
    y: Tensor  # (rows, p)
    group: Tensor  # (rows,), the group of each row
    spread: Tensor  # (), |H| outside the modes
    aside: Tensor | None  # (C, p), prototypes outside the modes
    weight: Tensor  # (C, p)
    bias: Tensor | None  # (C,), as it came
    features: Tensor | None  # (n, p), in their dtype
    targets: Targets | None
    counts: Tensor  # (C,), examples per class
    by_class: bool  # whether the reduced features are the scaled class means, as for integer labels
    unit: float  # as in :class:`CheckedStart`
    like: Tensor  # (0,), of the dtype and on the device of the answers

    @property
    def scatter(self) -> Tensor:
        r""":math:`\|H\|^2` outside the modes."""
        return (self.unit * self.spread) ** 2

    @kept
    def factor(self) -> Tensor:
        r"""Triangular factor of each group's rows: coordinates of x and y in a plane, shape (G, side, 2).

        Norms and inner products at any time follow from these alone, and without the cancellation of a Gram matrix.
        """
        x, y = self.x.cpu(), self.y.cpu()
        groups = int(self.group.max()) + 1

        def total(per_row: Tensor) -> Tensor:
            return torch.zeros(groups, dtype=torch.float64).index_add(0, self.group, per_row)

        # One side may be far smaller than the other, as features next to large prototypes: squares on its own scale.
        size = x.detach().abs().max() if x.numel() else torch.ones((), dtype=torch.float64)
        size = torch.where(size > 0, size, 1.0)
        x = x / size
        xx, xy = total(torch.linalg.vecdot(x, x)), total(torch.linalg.vecdot(x, y))

        def plane(first: Tensor, second: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """The length of the first along itself, and the second along and across it."""
            slope = torch.where(square > 0, xy / torch.where(square > 0, square, 1.0), 0.0)
            apart = second - slope[self.group, None] * first
            return safe_sqrt(square), slope * safe_sqrt(square), safe_sqrt(total(torch.linalg.vecdot(apart, apart)))

        zero = torch.zeros((), dtype=torch.float64)
        long, along, across = plane(x, y, xx)
        factor = torch.stack([size * long, torch.zeros_like(long), along, across], -1)
        if not bool((xx > 0).all()):
            # Features of zero have no direction to measure by, but a slope along the prototypes: measure by those.
            tall, leaning, beside = plane(y, x, total(torch.linalg.vecdot(y, y)))
            turned = torch.stack([size * leaning, size * beside, tall, torch.zeros_like(tall)], -1)
            factor = torch.where((xx > 0)[:, None], factor, turned)
        aside = zero if self.aside is None else safe_norm(self.aside.cpu(), 2)
        rest = torch.stack([self.spread.cpu(), zero, zero, aside])
        return torch.cat([factor, rest[None]]).unflatten(-1, (2, 2))
