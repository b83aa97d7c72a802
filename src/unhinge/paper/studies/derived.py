"""Numbers that follow from a run's record: what its curves, classes and histograms say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from json import dumps

from unhinge.results.json import JsonRecord
from unhinge.training.decisions import radius_of, reached, remaining_strength
from unhinge.training.recipe import Recipe

__all__ = ["extended"]

FITTED = 0.99  # of the training images, while they are trained on


def extended(result: JsonRecord) -> JsonRecord:
    """The record of a run with what follows from it.

    ``halfway_accuracy``: the last test accuracy within the first half of the epochs. ``epochs_to_fit``: the first
    epoch in which 99 % of the training images were right while they were trained on, if there is one.
    ``rare_training_accuracy``: mean over the half of the classes with the fewest training images, on those images.
    ``ood.energy.known_spread``: standard deviation of the known images' energies over that of known and unknown
    together. ``decided_accuracy``: that of decisions adjusted by the strength that the theory names for the recipe,
    which no test image chose; the plain one where it names none, as for fixed prototypes without a radius.
    ``halved_accuracy``: the same with half of that strength for a posterior, which networks state too surely.
    ``stated_ece``: calibration error of the probabilities that the recipe states: of the softmax for cross-entropy,
    of the posterior with a radius; without one the unhinged loss states none. A stopped run tells where its norms
    were. Decisions from a posterior that the training features were too short for are left out: see
    :mod:`unhinge.training.decisions`.
    """
    curves = {name: _numbers(curve) for name, curve in result.get("curves", {}).items()}
    if result.get("stopped") is not None:
        norms = curves.get("feature_norm")
        return result | {"feature_norm": norms[-1]} if norms else result
    record = dict(result)
    test = result.get("curves", {}).get("test_accuracy", [])
    if measured := _numbers(test):
        record["halfway_accuracy"] = (_numbers(test[: len(test) // 2]) or measured[:1])[-1]
    shares = result.get("curves", {}).get("train_accuracy", [])
    fitted = (i + 1 for i, share in enumerate(shares) if isinstance(share, float) and share >= FITTED)
    record["epochs_to_fit"] = next(fitted, None)
    by_class = (result.get("training") or {}).get("class_accuracy")
    if by_class:
        # Every profile of the book is largest at class 0 and falls; equal classes make any half as good.
        rare = [share for share in by_class[len(by_class) // 2 :] if share is not None]
        record["rare_training_accuracy"] = sum(rare) / len(rare) if rare else math.nan
    if by_class and "recipe" in result:
        recipe = Recipe.from_json(dumps(result["recipe"]))
        radius = radius_of(recipe, len(by_class))
        norms = curves.get("feature_norm") or [math.nan]  # of the training images, over the last epoch
        if radius is not None and not reached(radius, norms[-1]):
            record |= {"adjusted_accuracy": None, "posterior_ece": None}
        adjusted = record.get("adjusted_accuracy") or {}
        record["stated_ece"] = record.get("ece" if recipe.loss == "ce" else "posterior_ece")
        plain = record.get("accuracy") if radius is None and not adjusted else None
        strength = remaining_strength(recipe)
        record["decided_accuracy"] = adjusted.get(f"{strength:g}", plain)
        record["halved_accuracy"] = adjusted.get(f"{strength if recipe.loss == 'ce' else strength / 2:g}", plain)
    shown = (result.get("histograms") or {}).get("energy")
    spread = _known_spread(shown) if shown else None
    if spread is not None:
        record["ood"] = record["ood"] | {"energy": record["ood"]["energy"] | {"known_spread": spread}}
    return record


def _numbers(curve: Sequence[object]) -> list[float]:
    return [value for value in curve if isinstance(value, (int, float)) and math.isfinite(value)]


def _known_spread(shown: JsonRecord) -> float | None:
    """From the counts of a histogram over both sets; units and offsets of the scores cancel."""
    known, unknown = shown["known"], shown["unknown"]
    both = [a + b for a, b in zip(known, unknown, strict=True)]
    whole = _deviation(both)
    return _deviation(known) / whole if whole else None


def _deviation(counts: Sequence[int]) -> float:
    """Standard deviation, in bins."""
    total = sum(counts)
    mean = sum(i * n for i, n in enumerate(counts)) / total
    return math.sqrt(sum(n * (i - mean) ** 2 for i, n in enumerate(counts)) / total)
