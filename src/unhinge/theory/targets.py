r"""Labels as a linear map: the targets :math:`Q = B R` with orthonormal columns of :math:`B`.

All the dynamics sees of the labels is the small factor :math:`R`  [eq: reduced-target], and all it sees of the features
is :math:`B^\top H` and the part of :math:`H` outside the range of :math:`B`. For integer labels :math:`B` holds the
scaled class indicators and :math:`R = \mathrm{diag}(\sqrt{n_c})`, so that :math:`B^\top H` are the scaled class means
and nothing of size n by C is ever built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.theory.numerics import CHUNK, widened
from unhinge.theory.types import Labels
from unhinge.theory.validation import as_label_tensor, check_counts, check_labels, check_num_classes, check_soft_labels

__all__ = ["HardTargets", "SoftTargets", "Targets", "as_targets", "class_sums", "combined", "parts_of"]


BLOCK = 1 << 18  # numbers turned to float64 at once: two megabytes, which stay in the cache


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    r"""Sum of the rows of each class, shape :math:`(C, p)`, in float64.

    A float32 sum of 40,000 rows with mean 30 is off by 0.7 %: each row is rounded at the size of the sum.
    """
    labels = labels.to(features.device)
    if features.requires_grad and torch.is_grad_enabled():
        wide = widened(features)
        return wide.new_zeros(num_classes, features.shape[1]).index_add(0, labels.to(wide.device), wide)
    sums = widened(features.new_zeros(num_classes, features.shape[1]))
    for part in parts_of(features):
        sums.index_add_(0, labels[part].to(sums.device), widened(features[part]))
    return sums


def parts_of(rows: Tensor, room: int = BLOCK) -> Iterator[slice]:
    """All rows of a matrix, so many at a time that about `room` numbers are held."""
    size = max(1, room // max(1, rows.shape[-1]))
    return (slice(start, start + size) for start in range(0, len(rows), size))


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

    def part(self, some: Tensor) -> HardTargets:
        """Some of the examples, by their places, as :meth:`expand` sees them: the counts stay those of all."""
        return HardTargets(self.labels[some], self.counts)

    def reduce(self, features: Tensor) -> Tensor:
        r"""Scaled class means :math:`B^\top H`, :math:`x_c = \sqrt{n_c}\,\bar h_c`, shape :math:`(C, p)` float64."""
        sums = class_sums(features, self.labels, self.num_classes)
        return sums / self._roots(sums)

    def expand(self, rows: Tensor) -> Tensor:
        r"""One row per example, :math:`B X`, shape :math:`(*, n, p)`."""
        return self.pick(self.prepare(rows), slice(None))

    def expand_columns(self, columns: Tensor) -> Tensor:
        r"""One column per example, :math:`X B^\top`, shape :math:`(*, p, n)`, contiguous."""
        return (columns / self._roots(columns)[:, 0]).index_select(-1, self.labels.to(columns.device))

    def prepare(self, rows: Tensor) -> Tensor:
        """What :meth:`pick` takes, made once for many parts of the examples."""
        return rows / self._roots(rows)

    def pick(self, prepared: Tensor, part: slice) -> Tensor:
        r"""The rows of :math:`B X` of a part of the examples."""
        return prepared.index_select(-2, self.labels[part].to(prepared.device))

    def _roots(self, like: Tensor) -> Tensor:
        return self.counts.to(torch.float64).sqrt().to(like)[:, None]


@dataclass(frozen=True)
class SoftTargets:
    r"""A distribution over the classes for each example. :math:`B` is kept as `basis` times a small `turn`."""

    basis: Tensor  # (n, r), orthonormal up to `turn`
    turn: Tensor | None  # (r, r), near the identity; None where it is
    factor: Tensor  # (r, C), R, CPU float64
    labels: Tensor  # (n,) int64, the most probable class

    @property
    def size(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return self.factor.shape[1]

    def part(self, some: Tensor) -> SoftTargets:
        """Some of the examples, by their places, as :meth:`expand` sees them."""
        return SoftTargets(self.basis[some], self.turn, self.factor, self.labels[some])

    def reduce(self, features: Tensor) -> Tensor:
        r""":math:`B^\top H`, shape :math:`(r, p)` float64."""
        wide = widened(features)
        rows = self.basis.to(wide).mT @ wide
        return rows if self.turn is None else self.turn.to(wide).mT @ rows

    def expand(self, rows: Tensor) -> Tensor:
        r""":math:`B X`, shape :math:`(*, n, p)`."""
        return self.pick(self.prepare(rows), slice(None))

    def expand_columns(self, columns: Tensor) -> Tensor:
        r""":math:`X B^\top`, shape :math:`(*, p, n)`, contiguous."""
        turned = columns if self.turn is None else columns @ self.turn.to(columns).mT
        return (turned.flatten(0, -2) @ self.basis.to(columns).mT).unflatten(0, columns.shape[:-1])

    def prepare(self, rows: Tensor) -> Tensor:
        """What :meth:`pick` takes, made once for many parts of the examples."""
        return rows if self.turn is None else self.turn.to(rows) @ rows

    def pick(self, prepared: Tensor, part: slice) -> Tensor:
        r"""The rows of :math:`B X` of a part of the examples."""
        return self.basis[part].to(prepared) @ prepared


Targets = HardTargets | SoftTargets


def combined(targets: Targets, keep: Tensor, features: Tensor, rows: Tensor, factor: float = 1.0) -> Tensor:
    r""":math:`(a H + B X)` times a factor, shape :math:`(*, n, p)`, in the dtype and on the device of the features.

    Rounded once, at the end. Without gradients it is written block by block into the answer, and nothing else of its
    size is made.

    Arguments:
        keep: a, shape :math:`(*, 1, 1)`.
        features: H, shape :math:`(n, p)`.
        rows: X, shape :math:`(*, r, p)`, in float64.
    """
    plain = not (torch.is_grad_enabled() and (keep.requires_grad or features.requires_grad or rows.requires_grad))
    if not plain:
        whole = keep * factor * widened(features) + targets.expand(rows * factor)
        return whole.to(features)
    # float32 keeps its digits through one product and one sum; halves would round at every step
    dtype = torch.promote_types(features.dtype, torch.float32)
    working = "cpu" if features.device.type == "mps" and dtype == torch.float64 else features.device
    kept, moved = (keep * factor).to(working, dtype), targets.prepare(rows * factor).to(working, dtype)
    answer = features.new_empty(*moved.shape[:-2], *features.shape)
    for part in parts_of(features, max(1, BLOCK // max(1, kept.numel()))):
        answer[..., part, :] = targets.pick(moved, part).addcmul_(kept, features[part].to(working, dtype))
    return answer


def as_targets(target: Labels, num_classes: int | None = None) -> Targets:
    """Checked targets from integer labels (n,) or soft labels (n, C).

    `num_classes=None` means one more than the largest label, or the number of columns.
    """
    tensor = as_label_tensor(target).clone()  # whoever changes the labels afterwards does not change these
    if tensor.is_floating_point() and tensor.ndim == 1:
        raise ValueError(
            f"labels of shape {tuple(tensor.shape)} must be integers, got {tensor.dtype}. Convert them: target.long(), "
            "or target.astype(int) of an array. Soft labels have shape (n, C)."
        )
    if tensor.is_floating_point():
        columns = tensor.shape[1] if tensor.ndim == 2 else 2  # of another shape it is refused, whatever the number
        return _soft(check_soft_labels(tensor, check_num_classes(columns if num_classes is None else num_classes)))
    if tensor.ndim != 1:
        raise ValueError(
            f"integer labels must have shape (n,), got {tuple(tensor.shape)}. "
            "Soft labels have shape (n, C) and a floating dtype."
        )
    if num_classes is None and tensor.numel():
        num_classes = max(int(tensor.max()) + 1, 2 if int(tensor.min()) < 0 else 0)  # then the labels are what is wrong
    classes = check_num_classes(2 if num_classes is None else num_classes)
    labels = check_labels(tensor, classes)
    counts = torch.bincount(labels, minlength=classes).cpu()
    check_counts(counts)
    return HardTargets(labels, counts)


def _soft(target: Tensor) -> SoftTargets:
    r"""The factors of checked soft labels, :math:`Q = B R`.

    By Cholesky factors of Gram matrices, twice: products of matrices only, in half the memory and time of
    Householder's method. The first factor has lost digits in proportion to the square of the condition of Q, which
    leaves :math:`Q R_1^{-1}` not quite orthonormal; its own Gram matrix is next to the identity and repairs that to
    rounding (Yamamoto et al. 2015). Labels that nearly depend on each other, or that are fewer than the classes, take
    the long way.
    """
    rows = target.detach().to("cpu", torch.float64)
    labels = target.argmax(1)
    first, failed = torch.linalg.cholesky_ex(rows.mT @ rows)
    sizes = first.diagonal()
    # squared, 1e-5 is still 1e6 times rounding; of fewer rows than columns some may depend on each other as exactly
    if len(rows) < rows.shape[1] or bool(failed > 0) or bool(sizes.min() < 1e-5 * sizes.max()):
        basis, factor = torch.linalg.qr(rows)
        return SoftTargets(basis, None, factor, labels)
    basis = torch.empty_like(rows)
    for part in parts_of(rows, room=CHUNK):
        basis[part] = torch.linalg.solve_triangular(first.mT, rows[part], upper=True, left=False)
    second = torch.linalg.cholesky(basis.mT @ basis).mT
    eye = torch.eye(len(second), dtype=torch.float64)
    return SoftTargets(basis, torch.linalg.solve_triangular(second, eye, upper=True), second @ first.mT, labels)
