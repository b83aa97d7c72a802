"""How to set up training for a wanted distance: each value with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from unhinge.prediction.analysis import Prediction, as_measured
from unhinge.prediction.cure import Cure, cure_for
from unhinge.prediction.measured import Measured
from unhinge.prediction.words import number
from unhinge.results.json import JsonRecord, plain
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
    decision_strength: float  # of UF.balanced_decision after training with these weights; 0: decide as always
    distance: float
    reasons: dict[str, str]

    def as_dict(self) -> JsonRecord:
        """For JSON."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}


def recommend(
    source: Prediction | Measured | nn.Module | str | Path,
    loader: Iterable[tuple[object, Tensor]] | None = None,
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
        >>> measured = measure_arrays(
        ...     frame.repeat(4, 1), torch.arange(12) % 3, weight=2 * frame
        ... )
        >>> advice = recommend(measured, distance=0.01)
        >>> advice.gamma, advice.weight_decay, advice.lr, advice.steps
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
    weighting = None if int(counts.min()) == int(counts.max()) else "sqrt"
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
    cure = cure_for(counts, gamma, rate)
    reasons = {
        "gamma": f"1/(C-1) = 1/{classes - 1}: with equal decays no other gamma converges faster, and symmetric label "
        "noise then only slows training down",
        "decay": f"both decays at the critical value {number(critical)}: equal decays do not change the direction and "
        "its rate; with more decay everything shrinks to zero, with less the norms grow without bound",
        "lr": _why_this_rate(rate, critical, size, chosen=lr is None),
        "class_weight": _why_these_weights(cure),
        "decision": _why_this_decision(cure),
        "epochs": f"{steps:,} steps of gradient descent from this start reach the distance {distance:g}"
        + f", which is {epochs:,} epoch{'s' if epochs != 1 else ''} of {size:,} examples"
        + ("" if batch == size else f" in batches of {batch:,} (the mean over the choice of batches)"),
    }
    return Recommendation(
        gamma=gamma,
        feature_decay=critical,
        weight_decay=critical,
        lr=rate,
        steps=steps,
        epochs=epochs,
        class_weight=cure.class_weight,
        decision_strength=cure.strength_with_weights,
        distance=distance,
        reasons=reasons,
    )


def _why_this_rate(rate: float, critical: float, size: int, chosen: bool) -> str:
    largest = 1 / (2 * critical)
    if chosen:
        return (
            f"1/(2 critical decay), the largest rate at which no mode changes its sign from step to step; the distance "
            f"then halves at every step. This rate is for free features, whose gradients have the factor 1/n = "
            f"1/{size:,}; give lr to keep the rate of a network"
        )
    if rate > largest:
        return f"the given rate; beyond 1/(2 critical decay) = {number(largest)} some modes change sign at every step"
    return f"the given rate; training gets faster in proportion to the rate, up to {number(largest)}"


def _why_these_weights(cure: Cure) -> str:
    if cure.class_weight is None:
        return "the classes have equal counts and need no weights"
    return (
        f"the largest class has {number(cure.imbalance)} times the examples of the smallest, so the leading singular "
        f"value {number(cure.leading)} is larger than the next, {number(cure.following)}; n_c^(-1/2) makes them equal "
        "and gives class means and prototypes exactly the balanced dynamics; 1/n_c is too strong"
    )


def _why_this_decision(cure: Cure) -> str:
    if cure.class_weight is None:
        return "the largest logit; with equal counts nothing has to be adjusted"
    return (
        "if all classes are equally important at test time, divide the posterior by the class frequencies to the power "
        f"{cure.strength_with_weights:g} (UF.balanced_decision); the weights have done the other half. After training "
        f"without weights, use the power {cure.strength_without_weights:g}"
    )
