r"""Calibration: is what is predicted with confidence 0.8 right in 8 cases of 10?

Bins have equal width and are closed on the right: bin b of B holds the confidences in :math:`((b-1)/B, b/B]`, the first
one also 0. An edge is the number b/B as the dtype of the probabilities has it, so a float32 confidence of ``7 / 15``
lies on the edge and not a rounding error beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from unhinge.metrics.checks import Labels, Numbers, as_labels, as_probabilities
from unhinge.theory.numerics import float64_device
from unhinge.theory.processes import sum_over_processes
from unhinge.theory.validation import check_number

__all__ = [
    "Reliability",
    "classwise_calibration_error",
    "classwise_reliability",
    "expected_calibration_error",
    "reliability",
]


@dataclass(frozen=True)
class Reliability:
    r"""What the bins hold. Those of two parts of a data set add up to those of the whole (``a + b``).

    So a loop can evaluate batch by batch and keep nothing else. `counts`, `hits` and `totals` have the shape
    :math:`(B,)`, or :math:`(C, B)` where each class has bins of its own.

    Example:
        >>> p = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]])
        >>> y = torch.tensor([0, 1, 1])
        >>> whole = Reliability.empty(bins=5)
        >>> for rows, labels in zip(p.split(2), y.split(2)):
        ...     whole = whole + reliability(rows, labels, bins=5)
        >>> whole.counts.tolist()
        [0, 0, 0, 2, 1]
        >>> round(whole.error, 4) == round(expected_calibration_error(p, y, bins=5), 4)
        True
    """

    counts: Tensor  # (*, B) int64, predictions in each bin
    hits: Tensor  # (*, B) int64, how many of them are right
    totals: Tensor  # (*, B) float64, the sum of their confidences

    @classmethod
    def empty(cls, bins: int = 15, num_classes: int | None = None) -> Reliability:
        """Bins without predictions, where a sum starts; `num_classes` for class-wise bins."""
        shape = (_check_bins(bins),) if num_classes is None else (num_classes, _check_bins(bins))
        counts = torch.zeros(shape, dtype=torch.int64)
        return cls(counts, counts.clone(), counts.double())

    @property
    def edges(self) -> Tensor:
        r"""The :math:`B + 1` edges of the bins, from 0 to 1."""
        bins = self.counts.shape[-1]
        return torch.arange(bins + 1, dtype=torch.float64) / bins

    @property
    def accuracy(self) -> Tensor:
        """Share of right predictions in each bin, NaN where a bin is empty."""
        return self.hits.double() / self.counts

    @property
    def confidence(self) -> Tensor:
        """Mean confidence in each bin, NaN where a bin is empty."""
        return self.totals / self.counts

    @property
    def errors(self) -> Tensor:
        r""":math:`\sum_b \frac{|S_b|}{N} |acc(S_b) - conf(S_b)|`, of all predictions, or of each class."""
        size = self.counts.sum(-1)
        if bool((size == 0).any()):
            raise ValueError("the calibration error of no predictions is undefined; add at least one batch.")
        # |S| |acc - conf| = |hits - sum of confidences|: an empty bin adds nothing, without a division
        return (self.hits - self.totals).abs().sum(-1) / size

    @property
    def error(self) -> float:
        """The expected calibration error; of class-wise bins, its mean over the classes."""
        return self.errors.mean().item()

    def __getitem__(self, index: int) -> Reliability:
        """The bins of one class, of class-wise ones."""
        return Reliability(self.counts[index], self.hits[index], self.totals[index])

    def __add__(self, other: Reliability) -> Reliability:
        if self.counts.shape != other.counts.shape:
            raise ValueError(
                f"cannot add bins of shape {tuple(self.counts.shape)} and {tuple(other.counts.shape)}; "
                "use the same number of bins (and classes) for all parts."
            )
        return Reliability(self.counts + other.counts, self.hits + other.hits, self.totals + other.totals)

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> Reliability:
        """The sum over all processes of a ``torch.distributed`` group, on each of them."""
        return Reliability(*(sum_over_processes(part, group) for part in (self.counts, self.hits, self.totals)))


def reliability(probabilities: Numbers, target: Labels, bins: int = 15) -> Reliability:
    r"""Predictions, right ones and confidences in each bin of the confidence :math:`\max_c p_c`.

    Arguments:
        probabilities: Rows :math:`p` that sum to 1, shape :math:`(n, C)`; of equal largest entries the first counts.
        target: True classes :math:`y`, shape :math:`(n,)`.
        bins: The number :math:`B` of bins.

    Example:
        >>> binned = reliability(
        ...     torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]]),
        ...     torch.tensor([0, 0, 0]),
        ...     bins=2,
        ... )
        >>> binned.counts.tolist(), binned.hits.tolist(), round(binned.error, 4)
        ([0, 3], [0, 2], 0.0667)
    """
    rows = as_probabilities(probabilities)
    labels = as_labels("target", target, *rows.shape).to(rows.device)
    confidence, guess = rows.max(1)
    return _binned(confidence[None], (guess == labels)[None], bins)[0]


def classwise_reliability(probabilities: Numbers, target: Labels, bins: int = 15) -> Reliability:
    r"""The same for each class c: all n predictions by :math:`p_c`, right when :math:`y = c`; shape :math:`(C, B)`.

    Arguments:
        probabilities: Rows that sum to 1, shape :math:`(n, C)`.
        target: True classes, shape :math:`(n,)`.
        bins: The number of bins :math:`B`.

    Example:
        >>> bins = classwise_reliability(
        ...     [[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]], [0, 1, 1], bins=2
        ... )
        >>> bins.counts.tolist(), bins.hits.tolist()
        ([[1, 2], [2, 1]], [[0, 1], [1, 1]])
    """
    rows = as_probabilities(probabilities)
    labels = as_labels("target", target, *rows.shape).to(rows.device)
    classes = torch.arange(rows.shape[1], device=rows.device)
    return _binned(rows.mT, classes[:, None] == labels, bins)


def expected_calibration_error(probabilities: Numbers, target: Labels, bins: int = 15) -> float:
    r""":math:`ECE = \sum_b \frac{|S_b|}{N} |acc(S_b) - conf(S_b)|`, a fraction in [0, 1]
    [eq: calibration].

    N predictions in bins of equal width (not of equal number) in confidence; see :func:`reliability`.

    Arguments:
        probabilities: Rows that sum to 1, shape :math:`(n, C)`.
        target: True classes, shape :math:`(n,)`.
        bins: The number of bins.

    Example:
        >>> p = torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.25, 0.75], [0.25, 0.75]])
        >>> expected_calibration_error(p, torch.tensor([0, 0, 1, 0]))
        0.0
        >>> expected_calibration_error(p, [0, 0, 1, 1])
        0.25
    """
    return reliability(probabilities, target, bins).error


def classwise_calibration_error(probabilities: Numbers, target: Labels, bins: int = 15) -> float:
    r"""Mean over the classes of the calibration error of :math:`p_c` as a prediction of :math:`y = c` (Kull, 2019).

    .. math:: \frac1C\sum_c\sum_b \frac{|S_{cb}|}{n}\,\Big|\frac{\#\{i \in S_{cb}: y_i = c\}}{|S_{cb}|}
              - \overline{p_c}(S_{cb})\Big|

    Arguments:
        probabilities: Rows that sum to 1, shape :math:`(n, C)`.
        target: True classes, shape :math:`(n,)`.
        bins: The number of bins, of equal width.

    Example:
        >>> classwise_calibration_error(
        ...     torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1])
        ... )
        0.0
    """
    return classwise_reliability(probabilities, target, bins).error


def _binned(confidence: Tensor, right: Tensor, bins: int) -> Reliability:
    """Counts of (K, n) confidences, in K rows of bins."""
    bins = _check_bins(bins)
    rows, device = len(confidence), float64_device(confidence)
    inner = (torch.arange(1, bins, dtype=torch.float64) / bins).to(confidence.dtype).to(device, torch.float64)
    wide = confidence.to(device, torch.float64).contiguous()
    place = torch.bucketize(wide, inner, right=False)  # edge[i - 1] < x <= edge[i]
    place = (place + bins * torch.arange(rows, device=device)[:, None]).flatten()
    counts = torch.bincount(place, minlength=rows * bins)
    hits = torch.bincount(place[right.to(device).flatten()], minlength=rows * bins)
    totals = torch.zeros(rows * bins, dtype=torch.float64, device=device).index_add_(0, place, wide.flatten())
    return Reliability(*(part.cpu().reshape(rows, bins) for part in (counts, hits, totals)))


def _check_bins(bins: int) -> int:
    check_number("bins", bins)
    if not 1 <= bins < math.inf or int(bins) != bins:
        raise ValueError(f"bins must be a whole number of at least 1, got {bins}.")
    return int(bins)
