r"""What one pass over the features leaves: all that scalar questions need, in memory that does not depend on n.

Summaries of two parts of a data set add up to the summary of the whole (``a + b``), so the pass can be split over
files, processes or machines. The within-class scatter is carried as a sum of squared deviations and merged by Chan's
update, never as a difference of large sums: it stays accurate when the features have almost collapsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from unhinge.theory.targets import SoftTargets, Targets, as_targets, class_sums
from unhinge.theory.validation import check_counts, check_labels, check_soft_labels, check_tensor

__all__ = ["HardSummary", "SoftSummary", "Summary", "summarize", "summarize_in_memory"]


@dataclass(frozen=True)
class HardSummary:
    """Integer labels: counts, class sums and the scatter around the class means."""

    counts: Tensor  # (C,) int64, CPU
    sums: Tensor  # (C, p), in the features' dtype, or wider
    scatter: Tensor  # () float64, sum of |h_i - mean of its class|^2
    dtype: torch.dtype  # of the features

    @property
    def num_classes(self) -> int:
        return len(self.counts)

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    def reduced(self) -> Tensor:
        r"""Scaled class means :math:`\sqrt{n_c}\,\bar h_c`, shape :math:`(C, p)`."""
        check_counts(self.counts)
        return (self.sums / self.counts.to(self.sums).sqrt()[:, None]).to(self.dtype)

    def means(self) -> Tensor:
        return self.sums / self.counts.clamp(min=1).to(self.sums)[:, None]

    def __add__(self, other: HardSummary) -> HardSummary:
        _check_mergeable(self, other)
        counts = self.counts + other.counts
        # Chan, Golub & LeVeque: n_a n_b / (n_a + n_b) |mean_a - mean_b|^2 joins two scatters without cancellation.
        share = self.counts.double() * other.counts.double() / counts.double().clamp(min=1)
        gap = (self.means() - other.means()).double().pow(2).sum(1).cpu()
        scatter = self.scatter + other.scatter + (share * gap).sum()
        return replace(self, counts=counts, sums=self.sums + other.sums, scatter=scatter)

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> HardSummary:
        """The sum of the summaries of all processes of a ``torch.distributed`` group, on each of them."""
        counts, sums = self.counts.clone(), self.sums.clone()
        dist.all_reduce(counts, group=group)
        dist.all_reduce(sums, group=group)
        whole = replace(self, counts=counts, sums=sums)
        # Each part adds its own distance from the common means, so a plain sum merges the scatter too.
        shift = (self.means() - whole.means()).double().pow(2).sum(1).cpu()
        scatter = self.scatter + (self.counts.double() * shift).sum()
        dist.all_reduce(scatter, group=group)
        return replace(whole, scatter=scatter)


@dataclass(frozen=True)
class SoftSummary:
    """Soft labels: the triangular factor of the targets, the features in its basis, and the rest of them."""

    factor: Tensor  # (r, C) float64, CPU
    rows: Tensor  # (r, p)
    scatter: Tensor  # () float64, |H|^2 outside the basis
    count: int
    dtype: torch.dtype

    @property
    def num_classes(self) -> int:
        return self.factor.shape[1]

    @property
    def size(self) -> int:
        return self.count

    def reduced(self) -> Tensor:
        return self.rows.to(self.dtype)

    def __add__(self, other: SoftSummary) -> SoftSummary:
        _check_mergeable(self, other)
        basis, factor = torch.linalg.qr(torch.cat([self.factor, other.factor]))
        stacked = torch.cat([self.rows, other.rows])
        rows = basis.to(stacked).mT @ stacked
        lost = (stacked - basis.to(stacked) @ rows).double().pow(2).sum().cpu()
        scatter = self.scatter + other.scatter + lost
        return replace(self, factor=factor, rows=rows, scatter=scatter, count=self.count + other.count)

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> SoftSummary:
        """The sum of the summaries of all processes of a ``torch.distributed`` group, on each of them."""
        parts: list[SoftSummary | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, self, group=group)
        first, *others = [part for part in parts if part is not None]
        for part in others:
            first = first + part
        return first


Summary = HardSummary | SoftSummary


def _check_mergeable(a: Summary, b: Summary) -> None:
    if type(a) is not type(b):
        raise ValueError("cannot merge a summary of integer labels with one of soft labels.")
    if a.num_classes != b.num_classes:
        raise ValueError(
            f"cannot merge summaries of {a.num_classes} and {b.num_classes} classes; "
            "pass the same num_classes to both passes."
        )


def summarize_in_memory(features: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    r"""The reduced features :math:`B^\top H` and the squared norm of the rest, differentiable in `features`."""
    rows = targets.reduce(features)
    rest = features - targets.expand(rows)
    return rows, rest.double().pow(2).sum().cpu()


def summarize(batches: Iterable[tuple[Tensor, Tensor]], num_classes: int, block: int = 256) -> Summary:
    r"""One pass over `batches` of `(features, labels)`; memory does not depend on the number of examples.

    Arguments:
        batches: Any iterable of pairs, for example a ``DataLoader`` or slices of a memory-mapped file. Features
            :math:`(b, p)`, labels :math:`(b,)` integers or :math:`(b, C)` probabilities.
        num_classes: The number of classes :math:`C`.
        block: Rows taken together; the default keeps a block of common width in the processor's cache.

    Example:
        >>> x, y = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 4
        >>> whole = summarize([(x, y)], num_classes=4)
        >>> parts = summarize([(x[:5], y[:5])], 4) + summarize([(x[5:], y[5:])], 4)
        >>> torch.allclose(whole.reduced(), parts.reduced()), torch.allclose(whole.scatter, parts.scatter)
        (True, True)
    """
    total: Summary | None = None
    for features, labels in batches:
        if not isinstance(labels, Tensor) or len(labels) != len(features):
            raise ValueError(
                "each batch must be a pair (features, labels) of tensors of the same length, "
                f"got {type(labels).__name__} for {len(features)} features."
            )
        check_tensor("features", features, (None, None))
        if labels.is_floating_point():
            total = _add_soft(total, features, labels, num_classes)
        else:
            total = _add_hard(total, features, check_labels(labels, num_classes), num_classes, block)
    if total is None:
        raise ValueError("the iterable of batches is empty; it must yield (features, labels) pairs.")
    return total


def _add_soft(total: Summary | None, features: Tensor, labels: Tensor, num_classes: int) -> Summary:
    targets = as_targets(check_soft_labels(labels, num_classes), num_classes)
    assert isinstance(targets, SoftTargets)
    rows, scatter = summarize_in_memory(features, targets)
    part = SoftSummary(targets.factor, rows, scatter, len(features), features.dtype)
    if total is None:
        return part
    _check_mergeable(total, part)
    assert isinstance(total, SoftSummary)
    return total + part


def _add_hard(total: Summary | None, features: Tensor, labels: Tensor, num_classes: int, block: int) -> Summary:
    counts = torch.bincount(labels.cpu(), minlength=num_classes)
    sums = class_sums(features, labels, num_classes)
    center = sums / counts.clamp(min=1).to(sums)[:, None]
    scatter = features.new_zeros((), dtype=torch.float64)
    for rows, kinds in zip(features.split(block), labels.split(block), strict=True):
        scatter = scatter + (rows - center[kinds]).double().pow(2).sum()
    part = HardSummary(counts, sums.double(), scatter.cpu(), features.dtype)
    if total is None:
        return part
    _check_mergeable(total, part)
    assert isinstance(total, HardSummary)
    return total + part
