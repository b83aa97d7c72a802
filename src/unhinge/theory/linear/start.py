"""An initial state, checked, passed over once, and taken apart into modes. Knows nothing of time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unhinge.theory.linear.summary import HardSummary, SoftSummary, Summary, summarize_in_memory
from unhinge.theory.numerics import safe_sqrt
from unhinge.theory.targets import Targets
from unhinge.theory.types import Matrix, Vector
from unhinge.theory.validation import as_tensors, check_alike, check_shape, check_start

__all__ = ["CheckedStart", "Start", "reduce_start"]


@dataclass(frozen=True)
class CheckedStart:
    """A checked initial state after one pass over it."""

    rows: Tensor  # (r, p), reduced features
    scatter: Tensor  # () float64, |H|^2 outside the modes
    weight: Tensor  # (C, p)
    bias: Tensor | None  # (C,)
    features: Tensor | None  # (n, p), if they are there


def reduce_start(
    features: Matrix | Summary, weight: Matrix, bias: Vector | None, targets: Targets | None, counts: Tensor
) -> CheckedStart:
    """Check the initial state of a problem with these labels, and pass over it once.

    Arguments:
        targets: The labels; None for a problem that was made from a summary, which then takes only summaries.
        counts: Examples per class, (C,).
    """
    classes = len(counts)
    if not isinstance(features, HardSummary | SoftSummary):
        if targets is None:
            raise ValueError(
                "this problem was made from a summary and knows no label per example; pass the summary as features, or "
                "make the problem with LayerPeeled(target, num_classes)."
            )
        start, prototypes, biases = check_start(features, weight, bias, targets.size, classes)
        rows, scatter = summarize_in_memory(start, targets)
        return CheckedStart(rows, scatter, prototypes, biases, start)
    same = features.num_classes == classes
    if same and isinstance(features, HardSummary):
        same = torch.equal(features.counts.double(), counts.double())
    if not same:
        raise ValueError(
            "the summary's class counts are not those of this problem. Make the problem from the same summary: "
            "LayerPeeled.from_summary(summary)."
        )
    rows = features.reduced()
    given = {"features": rows, "weight": weight} | ({} if bias is None else {"bias": bias})
    _, prototypes, *rest = as_tensors(given)
    check_shape("weight", prototypes, (classes, rows.shape[1]))
    biases = check_shape("bias", rest[0], (classes,)) if rest else None
    check_alike(features=rows, weight=prototypes, bias=biases)
    return CheckedStart(rows, features.scatter, prototypes, biases, None)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The initial state in the coordinates of the modes; `features` and `targets` are missing after a streamed pass."""

    rows: Tensor  # (r, p), reduced features
    x: Tensor  # (rows, p)
    y: Tensor  # (rows, p)
    group: Tensor  # (rows,), the group of each row
    scatter: Tensor  # () float64, |H|^2 outside the modes
    aside: Tensor | None  # (C, p), prototypes outside the modes
    weight: Tensor  # (C, p)
    bias: Tensor | None  # (C,)
    features: Tensor | None  # (n, p)
    targets: Targets | None
    counts: Tensor  # (C,), examples per class

    @cached_property
    @torch.enable_grad()
    def factor(self) -> Tensor:
        r"""Triangular factor of each group's rows: coordinates of x and y in a plane, shape (G, side, 2).

        Norms and inner products at any time follow from these alone, and without the cancellation of a Gram matrix.
        """
        x, y = self.x.to("cpu", torch.float64), self.y.to("cpu", torch.float64)
        groups = int(self.group.max()) + 1

        def total(per_row: Tensor) -> Tensor:
            return torch.zeros(groups, dtype=torch.float64).index_add(0, self.group, per_row)

        xx, xy = total(torch.linalg.vecdot(x, x)), total(torch.linalg.vecdot(x, y))
        slope = torch.where(xx > 0, xy / torch.where(xx > 0, xx, 1.0), 0.0)
        apart = y - slope[self.group, None] * x
        long, tall = safe_sqrt(xx), safe_sqrt(total(torch.linalg.vecdot(apart, apart)))
        zero = torch.zeros((), dtype=torch.float64)
        factor = torch.stack([long, torch.zeros_like(long), slope * long, tall], -1)
        aside = zero if self.aside is None else safe_sqrt(self.aside.to("cpu", torch.float64).pow(2).sum())
        rest = torch.stack([safe_sqrt(self.scatter), zero, zero, aside])
        result = torch.cat([factor, rest[None]]).unflatten(-1, (2, 2))
        if not torch.isfinite(result.detach()).all():
            raise ValueError(
                "the squared norm of the start overflows. The dynamics is linear: divide features and weight by one "
                "common factor, and the answers scale with it."
            )
        return result
