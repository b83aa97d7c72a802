r"""Labels as a linear map: the targets :math:`Q = B R` with orthonormal columns of :math:`B`.

All the dynamics sees of the labels is the small factor :math:`R`  [eq: reduced-target], and all it sees of the features
is :math:`B^\top H` and the part of :math:`H` outside the range of :math:`B`. For integer labels :math:`B` holds the
scaled class indicators and :math:`R = \mathrm{diag}(\sqrt{n_c})`, so that :math:`B^\top H` are the scaled class means
and nothing of size n by C is ever built.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.theory.types import Labels
from unhinge.theory.validation import as_label_tensor, check_counts, check_labels, check_num_classes, check_soft_labels

__all__ = ["HardTargets", "SoftTargets", "Targets", "as_targets", "class_sums"]


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    r"""Sum of the rows of each class, shape :math:`(C, p)`."""
    sums = features.new_zeros(num_classes, features.shape[1])
    return sums.index_add(0, labels.to(features.device), features)


@dataclass(frozen=True)
class HardTargets:
    """Integer labels in any order."""

    labels: Tensor  # (n,) int64
    counts: Tensor  # (C,) int64, CPU

    @property
    def size(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.counts)

    def reduce(self, features: Tensor) -> Tensor:
        r"""Scaled class means :math:`B^\top H`, :math:`x_c = \sqrt{n_c}\,\bar h_c`, shape :math:`(C, p)`."""
        return class_sums(features, self.labels, self.num_classes) / self._roots(features)

    def expand(self, rows: Tensor) -> Tensor:
        r"""One row per example, :math:`B X`, shape :math:`(*, n, p)`."""
        return (rows / self._roots(rows)).index_select(-2, self.labels.to(rows.device))

    def _roots(self, like: Tensor) -> Tensor:
        return self.counts.to(torch.float64).sqrt().to(like)[:, None]


@dataclass(frozen=True)
class SoftTargets:
    """A distribution over the classes for each example."""

    basis: Tensor  # (n, r), B
    factor: Tensor  # (r, C), R, CPU float64
    labels: Tensor  # (n,) int64, the most probable class

    @property
    def size(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return self.factor.shape[1]

    def reduce(self, features: Tensor) -> Tensor:
        r""":math:`B^\top H`, shape :math:`(r, p)`."""
        return self.basis.to(features).mT @ features

    def expand(self, rows: Tensor) -> Tensor:
        r""":math:`B X`, shape :math:`(*, n, p)`."""
        return self.basis.to(rows) @ rows


Targets = HardTargets | SoftTargets


def as_targets(target: Labels, num_classes: int | None = None) -> Targets:
    """Checked targets from integer labels (n,) or soft labels (n, C).

    `num_classes=None` means one more than the largest label, or the number of columns.
    """
    tensor = as_label_tensor(target)
    if tensor.is_floating_point():
        columns = tensor.shape[1] if tensor.ndim == 2 else 2  # of another shape it is refused, whatever the number
        return _soft(check_soft_labels(tensor, check_num_classes(columns if num_classes is None else num_classes)))
    if tensor.ndim != 1:
        raise ValueError(
            f"integer labels must have shape (n,), got {tuple(tensor.shape)}. "
            "Soft labels have shape (n, C) and a floating dtype."
        )
    if num_classes is None and tensor.numel():
        num_classes = int(tensor.max()) + 1
    classes = check_num_classes(2 if num_classes is None else num_classes)
    labels = check_labels(tensor, classes)
    counts = torch.bincount(labels, minlength=classes).cpu()
    check_counts(counts)
    return HardTargets(labels, counts)


def _soft(target: Tensor) -> SoftTargets:
    basis, factor = torch.linalg.qr(target.detach().to("cpu", torch.float64))
    return SoftTargets(basis, factor, target.argmax(1))
