r"""What one pass over the features leaves: all that scalar questions need, in memory that does not depend on n.

Summaries of two parts of a data set add up to the summary of the whole (``a + b``), so the pass can be split over
files, processes or machines. The within-class scatter is carried as a sum of squared deviations and merged by Chan's
update, never as a difference of large sums: it stays accurate when the features have almost collapsed
[eq: merged-scatter].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from unhinge.theory.processes import sum_over_processes
from unhinge.theory.targets import HardTargets, SoftTargets, Targets, as_targets
from unhinge.theory.types import Labels, Matrix
from unhinge.theory.validation import (
    as_label_tensor,
    as_tensors,
    check_counts,
    check_labels,
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
        counts, sums = sum_over_processes(self.counts, group), sum_over_processes(self.sums, group)
        whole = replace(self, counts=counts, sums=sums)
        # Each part adds its own distance from the common means, so a plain sum merges the scatter too.
        shift = (self.means() - whole.means()).double().pow(2).sum(1).cpu()
        scatter = self.scatter + (self.counts.double() * shift).sum()
        return replace(whole, scatter=sum_over_processes(scatter, group))


@dataclass(frozen=True)
class SoftSummary:
    """Soft labels: the triangular factor of the targets, the features in its basis, and the rest of them.

    Example:
        >>> summary = summarize([([[1.0], [3.0]], [[0.5, 0.5], [0.5, 0.5]])], num_classes=2)
        >>> summary.size, summary.num_classes, f"{summary.scatter:.4f}"
        (2, 2, '0.0000')
    """

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


def streamed_away(question: str) -> ValueError:
    """The error of a question that needs the examples themselves."""
    return ValueError(
        f"{question} cannot be given after a streamed pass: it needs every example, and the pass kept only class sums. "
        "Ask loss, norms, distance or collapse, or solve the problem from features in memory."
    )


def summarize_in_memory(features: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    r"""The reduced features :math:`B^\top H` and the squared norm of the rest, differentiable in `features`."""
    rows = targets.reduce(features)
    if isinstance(targets, HardTargets) and not features.requires_grad:
        centers = rows / targets.counts.to(rows).sqrt()[:, None]
        return rows, scatter_around(centers, features, targets.labels)
    rest = features - targets.expand(rows)
    return rows, rest.to("cpu", torch.float64).pow(2).sum()


def scatter_around(centers: Tensor, features: Tensor, labels: Tensor, sums: Tensor | None = None) -> Tensor:
    """Sum of the squared distances of the features from the center of their class, in float64.

    In blocks of about two megabytes, so that the differences stay in the processor's cache: one pass over memory. With
    `sums` given, the differences (center minus feature) of each class are added to it in the same pass.
    """
    count, width = features.shape
    size = max(1, min(count, (1 << 21) // max(1, width * features.element_size())))
    buffer = features.new_empty(size, width)
    labels = labels.to(features.device)
    total = 0.0
    for start in range(0, count, size):
        rows, kinds = features[start : start + size], labels[start : start + size]
        apart = torch.index_select(centers, 0, kinds, out=buffer[: len(rows)]).sub_(rows)
        for part in apart.view(-1).split(1 << 16):  # short sums: float32 rounding stays at its own level
            total += torch.dot(part, part).item()
        if sums is not None:
            sums.index_add_(0, kinds, apart)
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
        >>> torch.allclose(whole.reduced(), parts.reduced()), torch.allclose(whole.scatter, parts.scatter)
        (True, True)
    """
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
        raise ValueError("the iterable of batches is empty; it must yield (features, labels) pairs.")
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
    rows, scatter = summarize_in_memory(features, targets)
    return SoftSummary(targets.factor, rows, scatter, len(features), features.dtype)


class _HardPass:
    """The running sums of one pass, in place: differences from the first feature seen of each class.

    A class's first feature lies within its scatter, so neither the sums nor the squares cancel when the means are read
    off at the end, even if the features have almost collapsed.
    """

    def __init__(self, like: Tensor, num_classes: int) -> None:
        self.counts = torch.zeros(num_classes, dtype=torch.int64)
        self.centers = like.new_zeros(num_classes, like.shape[1])
        self.sums = torch.zeros_like(self.centers)
        self.squares = torch.zeros((), dtype=torch.float64)

    def add(self, features: Tensor, labels: Tensor) -> None:
        if features.dtype != self.centers.dtype or features.shape[1] != self.centers.shape[1]:
            raise ValueError(
                f"all batches must have features of one dtype and width, got {features.dtype} of width "
                f"{features.shape[1]} after {self.centers.dtype} of width {self.centers.shape[1]}."
            )
        here = torch.bincount(labels.cpu(), minlength=len(self.counts))
        new = ((self.counts == 0) & (here > 0)).to(labels.device)
        if bool(new.any()):
            order = torch.arange(len(labels) - 1, -1, -1, device=labels.device)
            first = torch.zeros(len(here), dtype=torch.int64, device=labels.device)
            first[labels[order]] = order
            self.centers[new] = features[first[new]]
        self.squares += scatter_around(self.centers, features, labels, self.sums)
        if not torch.isfinite(self.squares):
            check_shape("features", features, (None, None))
            raise ValueError("the squared norm of the features overflows; divide features and weight by one factor.")
        self.counts += here

    def summary(self) -> HardSummary:
        counts = self.counts.double().to(self.sums.device)[:, None]
        shift = self.sums.double() / counts.clamp(min=1)  # center minus mean
        scatter = self.squares - (counts * shift.pow(2)).sum().cpu()
        sums = counts * (self.centers.double() - shift)
        return HardSummary(self.counts, sums, scatter.clamp(min=0), self.centers.dtype)
