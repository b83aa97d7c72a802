"""One pass over features and labels: all that the predictions need, in memory that does not depend on n."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from unhinge.metrics.collapse import WIDEST_COVARIANCE, CollapseSummary
from unhinge.prediction.files import FeatureFile, check_classes, checked
from unhinge.theory.linear.summary import HardSummary
from unhinge.theory.types import Labels, Matrix, Vector
from unhinge.theory.validation import check_counts

__all__ = ["Measured", "measure", "measure_arrays", "measure_file", "measure_summary"]

BATCH = 8192  # examples of a file looked at together

Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Measured:
    """Class sums and scatter of the features, the head on them, and how far they have collapsed."""

    classes: HardSummary  # float64
    weight: Tensor | None  # (C, p) float64, CPU; None if there was no head
    bias: Tensor | None  # (C,) float64, CPU
    collapse: dict[str, float]
    accuracy: float | None  # of the head, now

    @property
    def counts(self) -> Tensor:
        return self.classes.counts

    @property
    def num_classes(self) -> int:
        return len(self.classes.counts)

    @property
    def size(self) -> int:
        return self.classes.size

    @property
    def dim(self) -> int:
        return self.classes.sums.shape[1]

    @property
    def start_weight(self) -> Tensor:
        """The head, or zeros in its place: the class means alone then decide where the path goes."""
        return torch.zeros_like(self.classes.sums) if self.weight is None else self.weight

    @property
    def head_words(self) -> str:
        """Which head the predictions start from, and why."""
        if self.weight is not None:
            return "the weight given" + ("" if self.bias is None else ", with its bias")
        return (
            "none was given, so a head of zeros was taken: it adds nothing of its own, and the class means alone "
            "decide the path. What a head alone can tell now (NC3, NC4, accuracy) is left out"
        )


@torch.no_grad()
def measure(
    batches: Callable[[], Batches],
    num_classes: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    nc4: bool = True,
) -> Measured:
    """Stream `(features (b, p), labels (b,))`: once for sums, and once more for ``nc4``, which needs the class means.

    Arguments:
        batches: Called for each pass; yields pairs of tensors.
        num_classes: :math:`C`.
        weight: Prototypes :math:`(C, p)`.
        bias: Biases :math:`(C,)`; only together with `weight`.
        nc4: Make the second pass.

    Example:
        >>> x, y = torch.randn(12, 3), torch.arange(12) % 4
        >>> measured = measure(lambda: zip(x.split(5), y.split(5)), num_classes=4)
        >>> measured.size, measured.counts.tolist(), measured.accuracy
        (12, [3, 3, 3, 3], None)
    """
    head = None if weight is None else weight.detach().to("cpu", torch.float64)
    offset = None if bias is None or head is None else bias.detach().to("cpu", torch.float64)
    whole: CollapseSummary | None = None
    right = 0
    for features, labels in batches():
        keep = features.shape[-1] <= WIDEST_COVARIANCE
        part = CollapseSummary.of(features, labels, num_classes, covariance=keep)
        whole = part if whole is None else whole + part
        if head is not None:
            right += int((_logits(features, head, offset).argmax(1) == labels.cpu()).sum())
    if whole is None:
        raise ValueError("there are no batches; at least one pair (features, labels) is needed.")
    measured = measure_summary(whole, head, offset)
    if head is None:
        return measured
    if nc4:
        apart = sum(int(whole.disagrees(features.cpu(), head, offset).sum()) for features, _ in batches())
        measured.collapse["nc4"] = apart / measured.size
    return replace(measured, accuracy=right / measured.size)


@torch.no_grad()
def measure_summary(whole: CollapseSummary, weight: Tensor | None = None, bias: Tensor | None = None) -> Measured:
    """What the sums of one pass say by themselves: everything but the accuracy and ``nc4``."""
    check_counts(whole.counts)
    check_classes(len(whole.counts), whole.classes.sums.shape[1])
    # answers in float64, whatever the features came in
    sums = whole.classes.sums.cpu()
    classes = replace(whole.classes, counts=whole.counts.cpu(), sums=sums, dtype=torch.float64)
    whole = replace(whole, classes=classes, directions=whole.directions.cpu(), norms=whole.norms.cpu())
    collapse = {key: float(value) for key, value in whole.measures(weight).items()}
    return Measured(classes, weight, bias, collapse, None)


def measure_file(file: FeatureFile) -> Measured:
    """What a file that :func:`~unhinge.prediction.files.read_features` read has to say."""

    def batches() -> Batches:
        return zip(file.features.split(BATCH), file.labels.split(BATCH), strict=True)

    return measure(batches, file.num_classes, file.weight, file.bias)


def measure_arrays(
    features: Matrix, labels: Labels, weight: Matrix | None = None, bias: Vector | None = None
) -> Measured:
    r"""What features, labels and maybe a head in memory have to say.

    Arguments:
        features: :math:`H`, shape :math:`(n, p)`.
        labels: :math:`y`, shape :math:`(n,)`; every class from 0 to the largest has an example.
        weight: Prototypes, shape :math:`(C, p)`.
        bias: Biases, shape :math:`(C,)`.

    Example:
        >>> measured = measure_arrays(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> measured.size, measured.num_classes, measured.weight
        (4, 2, None)
    """
    given = {"features": features, "labels": labels, "weight": weight, "bias": bias}
    arrays = {  # what a data frame hands out must not be written to, and torch warns of that: copied
        name: value if value is None or isinstance(value, Tensor) else np.require(value, None, "W")
        for name, value in given.items()
    }
    return measure_file(checked(arrays))


def _logits(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = features.to("cpu", torch.float64) @ weight.mT
    return logits if bias is None else logits + bias
