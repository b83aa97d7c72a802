r"""What one pass over the features leaves: all that scalar questions need, in memory that does not depend on n.

Summaries of two parts of a data set add up to the summary of the whole (``a + b``), so the pass can be split over
files, processes or machines. The within-class scatter is carried as a sum of squared deviations and merged by Chan's
update, never as a difference of large sums: it stays accurate when the features have almost collapsed
[eq: merged-scatter].
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from unhinge.theory.numerics import safe_sqrt, squares_fit, unit_of, widened
from unhinge.theory.processes import sum_over_processes
from unhinge.theory.targets import HardTargets, SoftTargets, Targets, as_targets, parts_of
from unhinge.theory.types import Labels, Matrix
from unhinge.theory.validation import (
    as_label_tensor,
    as_tensors,
    check_counts,
    check_labels,
    check_num_classes,
    check_shape,
    check_soft_labels,
)

Item = TypeVar("Item")

__all__ = ["HardSummary", "SoftSummary", "Summary", "streamed_away", "summarize", "summarize_in_memory"]


@dataclass(frozen=True)
class HardSummary:
    """Integer labels: counts, class sums and the scatter around the class means.

    Example:
        >>> summary = summarize([([[1.0], [3.0], [5.0]], [0, 0, 1])], num_classes=2)
        >>> summary.counts, summary.means(), summary.scatter
        (tensor([2, 1]), tensor([[2.],
                [5.]], dtype=torch.float64), tensor(2., dtype=torch.float64))
    """

    counts: Tensor  # (C,) int64, CPU
    sums: Tensor  # (C, p) float64
    scatter: Tensor  # () float64, sum of |h_i - mean of its class|^2, in squares of `unit`
    dtype: torch.dtype  # of the features
    unit: float = 1.0  # a power of two; not 1 only for features whose squares would over- or underflow

    @property
    def num_classes(self) -> int:
        return len(self.counts)

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    def reduced(self) -> Tensor:
        r"""Scaled class means :math:`\sqrt{n_c}\,\bar h_c`, shape :math:`(C, p)`, in the dtype of the features."""
        return self.wide_rows().to(self.dtype)

    def wide_rows(self) -> Tensor:
        """The same before rounding, in float64."""
        check_counts(self.counts)
        return self.sums / self.counts.to(self.sums).sqrt()[:, None]

    def spread_out(self, ratio: float) -> bool:
        """Whether the squared norm of all features is at most `ratio` times the scatter."""
        squares = self.scatter + (self.sums * self.means() / self.unit / self.unit).sum().cpu()
        return bool(squares <= ratio * self.scatter)

    def means(self) -> Tensor:
        return self.sums / self.counts.clamp(min=1).to(self.sums)[:, None]

    def __radd__(self, other: int) -> HardSummary:
        """For ``sum``, which begins with 0."""
        return self if other == 0 else NotImplemented

    def __add__(self, other: HardSummary) -> HardSummary:
        _check_mergeable(self, other)
        counts = self.counts + other.counts
        # Chan, Golub & LeVeque: n_a n_b / (n_a + n_b) |mean_a - mean_b|^2 joins two scatters without cancellation.
        share = self.counts.double() * other.counts.double() / counts.double().clamp(min=1)
        unit = max([part.unit for part in (self, other) if part.sums.any() or part.scatter], default=1.0)
        gap = ((self.means() - other.means()) / unit).double().pow(2).sum(1).cpu()
        scatter = self.in_units(unit) + other.in_units(unit) + (share * gap).sum()
        dtype = torch.promote_types(self.dtype, other.dtype)
        return replace(self, counts=counts, sums=self.sums + other.sums, scatter=scatter, dtype=dtype, unit=unit)

    def in_units(self, unit: float) -> Tensor:
        """The scatter in squares of another unit."""
        return self.scatter * (self.unit / unit) * (self.unit / unit)  # the square of a ratio alone may overflow

    @property
    def spread(self) -> Tensor:
        """The root of the scatter: the norm of what the modes do not see."""
        return self.unit * safe_sqrt(self.scatter)

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> HardSummary:
        """The sum of the summaries of all processes of a ``torch.distributed`` group, on each of them."""
        counts, sums = sum_over_processes(self.counts, group), sum_over_processes(self.sums, group)
        whole = replace(self, counts=counts, sums=sums, unit=unit_of(sums))  # the same on all processes
        # Each part adds its own distance from the common means, so a plain sum merges the scatter too.
        shift = ((self.means() - whole.means()) / whole.unit).double().pow(2).sum(1).cpu()
        scatter = self.in_units(whole.unit) + (self.counts.double() * shift).sum()
        return replace(whole, scatter=sum_over_processes(scatter, group))


@dataclass(frozen=True)
class SoftSummary:
    """Soft labels: the triangular factor of the targets, the features in its basis, and the rest of them.

    Example:
        >>> summary = summarize(
        ...     [([[1.0], [3.0]], [[0.5, 0.5], [0.5, 0.5]])], num_classes=2
        ... )
        >>> summary.size, summary.num_classes, f"{summary.scatter:.4f}"
        (2, 2, '0.0000')
    """

    factor: Tensor  # (r, C) float64, CPU
    rows: Tensor  # (r, p) float64
    scatter: Tensor  # () float64, |H|^2 outside the basis, in squares of `unit`
    count: int
    dtype: torch.dtype
    unit: float = 1.0

    @property
    def num_classes(self) -> int:
        return self.factor.shape[1]

    @property
    def size(self) -> int:
        return self.count

    def reduced(self) -> Tensor:
        """The features in the basis of the labels, in their dtype."""
        return self.rows.to(self.dtype)

    def wide_rows(self) -> Tensor:
        """The same before rounding, in float64."""
        return self.rows

    def in_units(self, unit: float) -> Tensor:
        """The scatter in squares of another unit."""
        return self.scatter * (self.unit / unit) * (self.unit / unit)  # the square of a ratio alone may overflow

    @property
    def spread(self) -> Tensor:
        """The root of the scatter: the norm of what the modes do not see."""
        return self.unit * safe_sqrt(self.scatter)

    def __radd__(self, other: int) -> SoftSummary:
        """For ``sum``, which begins with 0."""
        return self if other == 0 else NotImplemented

    def __add__(self, other: SoftSummary) -> SoftSummary:
        _check_mergeable(self, other)
        basis, factor = torch.linalg.qr(torch.cat([self.factor, other.factor]))
        stacked = torch.cat([self.rows, other.rows])
        rows = basis.to(stacked).mT @ stacked
        unit = max([part.unit for part in (self, other) if part.rows.any() or part.scatter], default=1.0)
        lost = ((stacked - basis.to(stacked) @ rows) / unit).double().pow(2).sum().cpu()
        scatter = self.in_units(unit) + other.in_units(unit) + lost
        count, dtype = self.count + other.count, torch.promote_types(self.dtype, other.dtype)
        return replace(self, factor=factor, rows=rows, scatter=scatter, count=count, dtype=dtype, unit=unit)

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
    if not isinstance(b, HardSummary | SoftSummary):
        raise ValueError(f"a summary can only be added to another summary, got {type(b).__name__}.")
    if type(a) is not type(b):
        raise ValueError("cannot merge a summary of integer labels with one of soft labels.")
    if a.num_classes != b.num_classes:
        raise ValueError(
            f"cannot merge summaries of {a.num_classes} and {b.num_classes} classes; "
            "pass the same num_classes to both passes."
        )
    widths = [(part.sums if isinstance(part, HardSummary) else part.rows).shape[1] for part in (a, b)]
    if widths[0] != widths[1]:
        raise ValueError(
            f"cannot merge summaries of features of {widths[0]} and {widths[1]} dimensions; "
            "they must come from one network."
        )


def streamed_away(question: str) -> ValueError:
    """The error of a question that needs the examples themselves."""
    return ValueError(
        f"{question} cannot be given after a streamed pass: it needs every example, and the pass kept only class sums. "
        "Ask loss, norms or distance (of integer labels also collapse), or solve the problem from features in memory."
    )


def summarize_in_memory(features: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    r"""The reduced features :math:`B^\top H` and the norm of the rest, in float64, differentiable in `features`."""
    rows, scatter = _one_pass(features, targets)
    # One pass tells whether its squares have kept their digits; only where they have not is there another.
    size = max(rows.detach().abs().max().item(), math.sqrt(scatter.item()))
    if not squares_fit(size, features.dtype):
        unit = unit_of(features)
        scatter = _one_pass(features / unit, targets)[1]
        return rows, unit * safe_sqrt(scatter)
    return rows, safe_sqrt(scatter)


def _one_pass(features: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    rows = targets.reduce(features)
    if isinstance(targets, HardTargets) and not features.requires_grad:
        means = rows / targets.counts.to(rows).sqrt()[:, None]
        centers = means.to(features)
        scatter = scatter_around(centers, features, targets.labels)
        # The sum is around centers that were rounded to the dtype of the features; around the means it is less by this.
        shift = (widened(centers) - means).pow(2).sum(1).cpu()
        return rows, (scatter - (targets.counts * shift).sum()).clamp(min=0)
    rest = widened(features) - targets.expand(rows)
    return rows, rest.cpu().pow(2).sum()


def scatter_around(centers: Tensor, features: Tensor, labels: Tensor, sums: _ClassSums | None = None) -> Tensor:
    """Sum of the squared distances of the features from the center of their class, in float64.

    In blocks of about two megabytes, so that the differences stay in the processor's cache: one pass over memory. With
    `sums` given, the differences (center minus feature) of each class are added to it in the same pass. Half precision
    is turned to float32 a block at a time: it could neither hold the squares nor sum them.
    """
    count, width = features.shape
    dtype = torch.promote_types(features.dtype, torch.float32)
    centers = centers.to(dtype)
    size = max(1, min(count, (1 << 21) // max(1, width * dtype.itemsize)))
    buffer = features.new_empty(size, width, dtype=dtype)
    labels = labels.to(features.device)
    total = 0.0
    for start in range(0, count, size):
        rows, kinds = features[start : start + size], labels[start : start + size]
        apart = torch.index_select(centers, 0, kinds, out=buffer[: len(rows)]).sub_(rows)
        for part in apart.view(-1).split(1 << 16):  # short sums: float32 rounding stays at its own level
            total += torch.dot(part, part).item()
        if sums is not None:
            sums.add(apart, kinds)
    return torch.tensor(total, dtype=torch.float64)


def summarize(batches: Iterable[tuple[Matrix, Labels]], num_classes: int, prefetch: int = 0) -> Summary:
    r"""One pass over `batches` of `(features, labels)`; memory does not depend on the number of examples.

    Arguments:
        batches: Any iterable of pairs, for example a ``DataLoader`` or slices of a memory-mapped file. Features
            :math:`(b, p)`, labels :math:`(b,)` integers or :math:`(b, C)` probabilities.
        num_classes: The number of classes :math:`C`.
        prefetch: Batches fetched ahead by a second thread, so that reading and summing overlap. Needs an iterable that
            yields a new tensor each time, not one buffer filled again and again.

    Example:
        >>> x, y = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 4
        >>> whole = summarize([(x, y)], num_classes=4)
        >>> parts = summarize([(x[:5], y[:5])], 4) + summarize([(x[5:], y[5:])], 4)
        >>> torch.allclose(whole.reduced(), parts.reduced())
        True
        >>> torch.allclose(whole.scatter, parts.scatter)
        True
    """
    num_classes = check_num_classes(num_classes)
    hard: _HardPass | None = None
    soft: SoftSummary | None = None
    for batch, target in fetched_ahead(batches, prefetch) if prefetch else batches:
        features, labels = as_tensors({"features": batch})[0], as_label_tensor(target)
        check_shape("features", features, (None, None), finite=False)  # the sums will tell, without a second pass
        if labels.ndim == 0 or len(labels) != len(features):
            raise ValueError(
                "each batch must be a pair (features, labels) of the same length, "
                f"got labels of shape {tuple(labels.shape)} for {len(features)} features."
            )
        if len(labels) == 0:
            continue  # such as the last one of a filtered stream
        if (hard if labels.is_floating_point() else soft) is not None:
            raise ValueError("all batches must have the same kind of labels: integers, or all probabilities.")
        if labels.is_floating_point():
            part = _soft_summary(features.detach(), labels, num_classes)
            soft = part if soft is None else soft + part
        else:
            hard = _HardPass(features, num_classes) if hard is None else hard
            hard.add(features.detach(), check_labels(labels, num_classes))
    if soft is not None:
        return soft
    if hard is None:
        raise ValueError("there are no examples: the iterable must yield pairs (features, labels), not all empty.")
    return hard.summary()


def fetched_ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """The same items, up to `count` of them fetched in advance by a background thread."""
    with ThreadPoolExecutor(1) as reader:
        iterator, end = iter(items), object()
        waiting = deque(reader.submit(next, iterator, end) for _ in range(count))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(reader.submit(next, iterator, end))
            yield cast(Item, item)


def _soft_summary(features: Tensor, labels: Tensor, num_classes: int) -> SoftSummary:
    check_shape("features", features, (None, None))
    targets = as_targets(check_soft_labels(labels, num_classes), num_classes)
    assert isinstance(targets, SoftTargets)
    rows, spread = summarize_in_memory(features, targets)
    unit = unit_of(rows, spread)
    return SoftSummary(targets.factor, rows, (spread / unit) ** 2, len(features), features.dtype, unit)


class _HardPass:
    """The running sums of one pass over batches, by one of two ways.

    *Careful*: differences from the first feature seen of each class. That lies within the scatter of its class, so
    neither the sums nor the squares cancel when the means are read off at the end, even if the features have almost
    collapsed. *Quick*: sums and squares of the features as they are, which touch each number twice instead of four
    times; their difference loses the digits of :attr:`RATIO`. The first batch is tried quickly, and tells: rounding is
    no scatter, so features that have collapsed look even more collapsed than the limit.
    """

    # Quick while the squares are at most this many times the scatter. Rounding in float32 is some 1e-8 of the squares
    # (each product 6e-8, in random directions), so the scatter keeps six digits, as careful float32 sums do.
    RATIO = 30.0

    def __init__(self, like: Tensor, num_classes: int) -> None:
        self.like, self.num_classes = like[:0], num_classes
        self.plain: _Totals | None = None  # both are made when they are first needed: each is a table of all classes
        self.careful: _Deviations | None = None
        quick = like.dtype == torch.float32 and like.device.type == "cpu"
        self.may_be_quick = self.quick = quick and unit_of(like) == 1  # squares of others are no numbers of float32
        self.batches, self.next_look = 0, 1

    def add(self, features: Tensor, labels: Tensor) -> None:
        known = self.like
        if features.dtype != known.dtype or features.shape[1] != known.shape[1]:
            raise ValueError(
                f"all batches must have features of one dtype and width, got {features.dtype} of width "
                f"{features.shape[1]} after {known.dtype} of width {known.shape[1]}."
            )
        self._add(features, labels)
        self.batches += 1
        if self.may_be_quick and self.batches >= self.next_look:
            self.next_look *= 4  # a look costs as much as a batch: seldom
            sums = self.plain if self.quick and self.plain else self.summary()
            self.quick = sums.spread_out(self.RATIO)
            if self.batches == 1 and not self.quick:
                self.plain = None
                self._add(features, labels)
        if self.plain and not math.isfinite(self.plain.squares):
            check_shape("features", features, (None, None))
            raise ValueError("the squared norm of the features overflows; divide features and weight by one factor.")

    def _add(self, features: Tensor, labels: Tensor) -> None:
        if self.quick:
            self.plain = self.plain or _Totals(features, self.num_classes)
            self.plain.add(features, labels)
        else:
            self.careful = self.careful or _Deviations(features, self.num_classes)
            self.careful.add(features, labels)

    def summary(self) -> HardSummary:
        first, *others = [part.summary() for part in (self.careful, self.plain) if part]
        return first + others[0] if others else first


class _ClassSums:
    """Sums of the rows of each class, in float64, and their counts.

    A float64 sum takes twice the memory of a float32 one and a conversion of each row besides. So rows are added in
    their own dtype (float32 at least), and the sum of a class moves to float64 after :attr:`FEW` of them, or after
    :attr:`BLOCK` if they come at once: float32 rounding stays near its own level, however many rows there are.
    """

    FEW, BLOCK = 32, 1 << 10
    ROOM = 1 << 18  # numbers that are worked on at a time: a megabyte of float32, the second cache of a small core

    def __init__(self, like: Tensor, num_classes: int) -> None:
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.recent = like.new_zeros(num_classes, like.shape[1], dtype=dtype)
        self.moved = self.recent if dtype == torch.float64 else widened(torch.zeros_like(self.recent))
        self.counts = torch.zeros(num_classes, dtype=torch.int64)
        self.waiting = torch.zeros(num_classes, dtype=torch.int64)  # rows in `recent`

    def add(self, rows: Tensor, kinds: Tensor, lengths: Tensor | None = None) -> None:
        """Add the rows; their norms are written into `lengths` by the way, while they are in the cache."""
        for start in range(0, len(rows), self.BLOCK):
            block = slice(start, start + self.BLOCK)
            some, labels = rows[block], kinds[block]
            for part in parts_of(some, self.ROOM):
                if lengths is not None:
                    torch.linalg.vector_norm(some[part], dim=1, out=lengths[block][part])
                self.recent.index_add_(0, labels[part], some[part])
            self._count(labels.cpu())

    def _count(self, kinds: Tensor) -> None:
        ones = torch.ones_like(kinds)
        self.counts.index_add_(0, kinds, ones)
        if self.moved is self.recent:
            return
        self.waiting.index_add_(0, kinds, ones)
        full = self.waiting[kinds] > self.FEW  # nothing here has the length of the number of classes
        if bool(full.any()):
            chosen = kinds[full].unique()
            self.waiting.index_fill_(0, chosen, 0)
            for some in chosen.split(max(1, self.ROOM // max(1, self.recent.shape[1]))):
                place = some.to(self.recent.device)
                self.moved.index_add_(0, some.to(self.moved.device), widened(self.recent.index_select(0, place)))
                self.recent.index_fill_(0, place, 0.0)

    def total(self) -> Tensor:
        """All sums, (C, p) float64."""
        if self.moved is not self.recent:
            for part in parts_of(self.recent, self.ROOM):
                self.moved[part] += self.recent[part].to(self.moved.device)
            self.recent.zero_()
            self.waiting.zero_()
        return self.moved


class _Deviations:
    """Sums of differences from the first feature of each class, and of their squares."""

    def __init__(self, like: Tensor, num_classes: int) -> None:
        self.centers = like.new_zeros(num_classes, like.shape[1])
        self.sums = _ClassSums(like, num_classes)  # in `unit`
        self.squares = torch.zeros((), dtype=torch.float64)
        self.unit = unit_of(like)

    @property
    def counts(self) -> Tensor:
        return self.sums.counts

    def add(self, features: Tensor, labels: Tensor) -> None:
        new = self.counts[labels.cpu()] == 0
        if bool(new.any()):
            order = new.nonzero().flatten().flip(0).to(labels.device)  # of equal labels the first is written last
            first = torch.zeros(len(self.counts), dtype=torch.int64, device=labels.device)
            first[labels[order]] = order
            kinds = labels[order].unique()
            self.centers[kinds] = features[first[kinds]]
        plain = self.unit == 1
        centers, rows = (self.centers, features) if plain else (self.centers / self.unit, features / self.unit)
        self.squares += scatter_around(centers, rows, labels, self.sums)
        if not torch.isfinite(self.squares):
            check_shape("features", features, (None, None))
            raise ValueError(
                "the squared norm of the features overflows: they are 1e150 times larger than the first batch. Divide "
                "features and weight by one factor."
            )

    def summary(self) -> HardSummary:
        sums = self.sums.total()
        counts = self.counts.double().to(sums.device)[:, None]
        shift = sums / counts.clamp(min=1)  # center minus mean
        scatter = self.squares - (counts * shift.pow(2)).sum().cpu()
        whole = counts * (widened(self.centers) - shift * self.unit)
        return HardSummary(self.counts.clone(), whole, scatter.clamp(min=0), self.centers.dtype, self.unit)


class _Totals:
    """Sums of the features of each class as they are, and of all squares."""

    def __init__(self, like: Tensor, num_classes: int) -> None:
        self.sums = _ClassSums(like, num_classes)
        self.squares = 0.0
        self.dtype = like.dtype

    @property
    def counts(self) -> Tensor:
        return self.sums.counts

    def add(self, features: Tensor, labels: Tensor) -> None:
        # by rows: short sums, so that float32 rounding stays at its own level
        lengths = features.new_empty(len(features))
        self.sums.add(features, labels, lengths)
        self.squares += lengths.double().square().sum().item()

    def spread_out(self, ratio: float) -> bool:
        """As that of the summary, without one."""
        return self.squares <= ratio * self._scatter().item()

    def summary(self) -> HardSummary:
        return HardSummary(self.counts.clone(), self.sums.total().clone(), self._scatter().clamp(min=0), self.dtype)

    def _scatter(self) -> Tensor:
        between = torch.linalg.vector_norm(self.sums.total(), dim=1).square() / self.counts.clamp(min=1)
        return self.squares - between.sum()
