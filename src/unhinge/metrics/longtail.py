"""Accuracy over the classes with many, some and few training examples."""

from __future__ import annotations

import math
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from unhinge.metrics.checks import Labels, Numbers, as_labels, as_numbers

__all__ = ["shot_accuracy"]


def shot_accuracy(
    predictions: Numbers | Labels,
    target: Labels,
    counts: Numbers,
    many: int = 100,
    few: int = 20,
    average: Literal["example", "class"] = "example",
) -> dict[str, float]:
    r"""Accuracy over all classes and over three groups of them, by their number of training examples.

    Arguments:
        predictions: Predicted classes, integers of shape :math:`(n,)`, or logits of shape :math:`(n, C)`.
        target: True classes :math:`y`, shape :math:`(n,)`.
        counts: Training examples of each class, shape :math:`(C,)`. Not those of the set that is evaluated.
        many: A class is many-shot above this count (not at it).
        few: A class is few-shot below this count (not at it). The defaults are those of Liu et al. (2019).
        average: ``"example"``: the share of the group's examples that are right. ``"class"``: the mean of the
            accuracies of its classes (those with an example). Both are the same on a balanced test set, as the
            benchmarks have it.

    Returns:
        ``all``, ``many``, ``medium``, ``few``: fractions in [0, 1]; NaN for a group without any example, which is
        neither right nor wrong and shows as such in tables (``numpy.nanmean`` skips it).

    Example:
        >>> shot_accuracy([0, 0, 1, 2], [0, 0, 1, 1], counts=[500, 50, 100])
        {'all': 0.75, 'many': 1.0, 'medium': 0.5, 'few': nan}
    """
    shots = as_numbers("counts", counts, ("C",)).detach().to("cpu", torch.float64)
    if bool((shots < 0).any()):
        raise ValueError(f"counts must not be negative, got {shots.min().item():g}.")
    if not few <= many + 1:
        raise ValueError(f"few must not lie above many: a class would belong to both, got few={few}, many={many}.")
    if average not in ("example", "class"):
        raise ValueError(f'average must be "example" or "class", got {average!r}.')
    guesses = _classes(predictions, len(shots))
    labels = as_labels("target", target, len(guesses), len(shots)).cpu()
    seen = torch.bincount(labels, minlength=len(shots)).double()
    right = torch.bincount(labels[guesses == labels], minlength=len(shots)).double()
    groups = {
        "all": torch.ones_like(shots, dtype=torch.bool),
        "many": shots > many,
        "medium": (shots >= few) & (shots <= many),
        "few": shots < few,
    }
    result = {}
    for name, group in groups.items():
        chosen = group & (seen > 0)
        if not bool(chosen.any()):
            result[name] = math.nan
        elif average == "example":
            result[name] = (right[chosen].sum() / seen[chosen].sum()).item()
        else:
            result[name] = (right[chosen] / seen[chosen]).mean().item()
    return result


def _classes(predictions: Numbers | Labels, num_classes: int) -> Tensor:
    if np.ndim(predictions) == 2:
        return as_numbers("logits", predictions, ("n", num_classes)).detach().argmax(1).cpu()
    size = len(predictions) if np.ndim(predictions) else 0
    return as_labels("predictions", cast(Labels, predictions), size, num_classes).cpu()
