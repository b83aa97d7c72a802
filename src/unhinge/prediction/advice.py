"""How to set up training for a wanted distance: each value with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from unhinge.nn.weighting import class_weights
from unhinge.prediction.analysis import Prediction, as_measured
from unhinge.prediction.measured import Measured
from unhinge.prediction.words import number
from unhinge.results.json import plain
from unhinge.theory.problem import LayerPeeled
from unhinge.theory.validation import scalar

__all__ = ["Recommendation", "recommend"]


@dataclass(frozen=True)
class Recommendation:
    """Values to train with, and why each of them."""

    gamma: float
    feature_decay: float
    weight_decay: float
    lr: float
    steps: int
    epochs: int
    class_weight: list[float] | None  # None: balanced classes need none
    distance: float
    reasons: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}


def recommend(
    source: Prediction | Measured | nn.Module | str | Path,
    loader: Iterable[Any] | None = None,
    *,
    distance: float = 0.1,
    lr: float | None = None,
    batch: int | None = None,
    head: nn.Module | str | None = None,
) -> Recommendation:
    r"""Gamma, decays, rate, class weights and epochs that bring the direction within `distance` of its limit.

    Arguments:
        source, loader, head: As in :func:`~unhinge.prediction.predict`, or its result.
        distance: The wanted :math:`\|Z/\|Z\| - \text{direction}\|`.
        lr: Keep this rate (a network's backbone has its own bound on it); by default the largest useful one.
        batch: Examples per step; by default all of them, so that an epoch is one step.

    The number of steps is that of the exact gradient descent from this start, found by bisection on its closed form.

    Example:
        >>> import torch
        >>> from unhinge.prediction import measure_arrays
        >>> frame = torch.eye(3, dtype=torch.float64)
        >>> found = recommend(measure_arrays(frame.repeat(4, 1), torch.arange(12) % 3, weight=2 * frame), distance=0.01)
        >>> found.gamma, found.weight_decay, found.lr, found.steps
        (0.5, 0.25, 2.0, 7)
    """
    if not 0 < distance < 2:
        raise ValueError(f"distance must lie between 0 and 2, got {distance:g}.")
    measured = source.measured if isinstance(source, Prediction) else as_measured(source, loader, head=head, nc4=False)
    size = measured.size
    batch = size if batch is None else batch
    if isinstance(batch, bool) or int(batch) != batch or batch < 1:
        raise ValueError(f"batch must be a whole number of at least 1, got {batch}.")
    batch = min(int(batch), size)
    counts = measured.counts
    even = int(counts.min()) == int(counts.max())
    weighting = None if even else "sqrt"
    classes = measured.num_classes
    gamma = 1 / (classes - 1)
    critical = LayerPeeled.from_summary(measured.classes, gamma, class_weight=weighting).critical_decay.item()
    rate = 1 / (2 * critical) if lr is None else scalar("lr", lr, positive=True).item()
    problem = LayerPeeled.from_summary(measured.classes, gamma, critical, critical, weighting)
    path = problem.descent(measured.classes, measured.start_weight, measured.bias, lr=rate)
    needed = path.time_to(distance).item()
    if math.isinf(needed):
        raise ValueError(
            f"at the rate {rate:g} the direction never comes within {distance:g}: the steps are too large, or the "
            f"start has nothing in the leading modes. Use a rate of at most {1 / (2 * critical):g}, or a larger "
            "distance."
        )
    steps = int(needed)
    epochs = math.ceil(steps * batch / size)
    return Recommendation(
        gamma,
        critical,
        critical,
        rate,
        steps,
        epochs,
        None if even else class_weights(counts.double()).tolist(),
        distance,
        _reasons(classes, critical, rate, lr is None, steps, epochs, batch, size, even, distance),
    )


def _reasons(
    classes: int,
    critical: float,
    rate: float,
    chosen: bool,
    steps: int,
    epochs: int,
    batch: int,
    size: int,
    even: bool,
    distance: float,
) -> dict[str, str]:
    largest = 1 / (2 * critical)
    if chosen:
        why = (
            f"1/(2 critical decay), the largest rate at which no mode changes its sign from step to step; the distance "
            f"then halves every step. It is that of free features, whose gradients carry 1/n = 1/{size:,}; pass lr= to "
            "keep the rate of a network"
        )
    elif rate > largest:
        why = f"the rate given; beyond 1/(2 critical decay) = {number(largest)} some modes change sign at every step"
    else:
        why = f"the rate given; up to {number(largest)} would be faster in proportion"
    return {
        "gamma": f"1/(C-1) = 1/{classes - 1}: with equal decays no other converges faster, and symmetric label noise "
        "then only slows the path down",
        "decay": f"both decays at the critical value {number(critical)}: equal decays leave the direction and its rate "
        "untouched, more lets everything shrink to zero, less lets norms grow without bound",
        "lr": why,
        "class_weight": "the classes have equal counts and need none"
        if even
        else "n_c^(-1/2) gives class means and prototypes exactly the balanced dynamics; without it the smaller "
        "classes collapse, and 1/n_c over-corrects",
        "epochs": f"{steps:,} steps of gradient descent from this start reach the distance {distance:g}"
        + ("" if batch == size else f" (the mean path of batches of {batch:,}), {size:,} examples each epoch")
        + f": {epochs:,} epoch{'s' if epochs != 1 else ''}",
    }
