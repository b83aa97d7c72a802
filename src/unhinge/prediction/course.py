r"""The way to the limit: which classes are right after how many steps, and when float32 gives out.

Accuracy is that of the class means: the share of the examples whose class has its mean on the right side. It is what
class sums alone can tell, and the same measure as the accuracy of the limit. Biases are left out, as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from unhinge.prediction.measured import Measured
from unhinge.prediction.representatives import one_per_class
from unhinge.theory.linear.path import LinearPath

__all__ = ["Course", "course_of", "overflow_step"]

LARGEST_FLOAT32 = float(torch.finfo(torch.float32).max)
MOMENTS = 161  # looked at, evenly spread over the logarithm of the step
BUDGET = 4e8  # logits of class means in all: fewer moments where there are many classes


@dataclass(frozen=True)
class Course:
    """Steps, and the accuracy of the class means at each."""

    steps: list[float]
    accuracy: list[float]

    @property
    def peak(self) -> float:
        """The best accuracy on the way."""
        return max(self.accuracy)

    @property
    def window(self) -> tuple[float, float]:
        """The first and the last step looked at with the best accuracy, in one piece from the first."""
        first = self.accuracy.index(self.peak)
        last = first
        while last + 1 < len(self.accuracy) and self.accuracy[last + 1] == self.peak:
            last += 1
        return self.steps[first], self.steps[last]


def course_of(
    measured: Measured, gamma: float, feature_decay: float, weight_decay: float, lr: float, until: float
) -> Course:
    """The course from now until some step.

    Example:
        >>> from unhinge.prediction.measured import measure_arrays
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0]])
        >>> course_of(
        ...     measure_arrays(features, torch.tensor([0, 0, 1, 1])),
        ...     1.0,
        ...     0.0,
        ...     0.0,
        ...     0.1,
        ...     100.0,
        ... ).peak
        1.0
    """
    classes = measured.num_classes
    moments = int(min(MOMENTS, max(11, BUDGET / classes**2)))
    late = max(math.log10(until), 0.0) if math.isfinite(until) and until > 0 else 3.0
    times = torch.cat((torch.zeros(1, dtype=torch.float64), torch.logspace(0, late, moments, dtype=torch.float64)))
    path = one_per_class(measured, gamma, feature_decay, weight_decay, lr=lr)
    counts = measured.counts.double()
    shares = [float((path.correct(time).double() @ counts) / counts.sum()) for time in times]
    return Course(times.tolist(), shares)


def overflow_step(path: LinearPath) -> float:
    r"""The first step from which a logit can be too large for float32; infinite if none ever is.

    No logit is larger than :math:`|Z|^2/2`, so that before this step none overflows.
    """
    wanted = (math.log(LARGEST_FLOAT32) + math.log(2)) / 2
    if path.log_norm(0.0).item() >= wanted:
        return 0.0
    if not path.growth().item() > 0:
        return math.inf
    low, high = 0.0, 1.0
    while path.log_norm(high).item() < wanted:
        low, high = high, 2 * high
        if high > 1e300:
            return math.inf
    while high - low > 0.5:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if path.log_norm(middle).item() >= wanted else (middle, high)
    return float(math.ceil(high))
