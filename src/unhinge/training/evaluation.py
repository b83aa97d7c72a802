"""What a trained run can do: accuracy, calibration, neural collapse, out-of-distribution detection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unhinge.data import ImageSet, conform, load, shrink
from unhinge.metrics import (
    Reliability,
    classwise_calibration_error,
    neural_collapse,
    ood_metrics,
    ood_scores,
    reliability,
    shot_accuracy,
)
from unhinge.nn.backbones import Classifier
from unhinge.results.json import as_json, plain
from unhinge.training.checkpoint import Checkpoint, CheckpointError, read_tensors, write_atomically, write_tensors
from unhinge.training.decisions import adjusted_accuracies, posterior, radius_of
from unhinge.training.loop import Material, material_of
from unhinge.training.machine import using_threads
from unhinge.training.measure import Outputs, outputs, prototype_record
from unhinge.training.network import biases_of, network_of, prototypes_of
from unhinge.training.recipe import Recipe

__all__ = ["INTERPOLATES", "Evaluation", "evaluate", "load_network"]

INTERPOLATES = 0.99  # of the training images of every class: then the network has reached the regime of free features
_HALF_MAX = 2.0**15  # float16 ends at 65504


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The numbers of a run, and what its figures are drawn from."""

    folder: Path
    numbers: dict[str, Any]
    reliability: Reliability
    scores: dict[str, tuple[torch.Tensor, torch.Tensor]]  # by name: of the test images, of the unknown ones


def load_network(folder: str | Path, images: ImageSet, which: str = "last") -> Classifier:
    """The network of a run, ready to be used; nothing in the file is executed.

    Arguments:
        folder: Of the run.
        images: Any set of the kind it was trained on.
        which: `last` or `best`.
    """
    path = _weights(Path(folder), which)
    stored, recipe = _stored(path)
    network = network_of(recipe, images)
    try:
        network.load_state_dict(stored.tensors)
    except RuntimeError:
        raise CheckpointError(
            f"{path} holds other tensors than the network of its recipe on these images ({images.num_classes} classes, "
            f"{images.in_channels} channels) has. Was it trained on other data, or by another version?"
        ) from None
    network.eval()
    return network


def evaluate(
    folder: str | Path,
    ood: str | None = None,
    *,
    data_root: str | Path | None = None,
    which: str = "last",
    material: Material | None = None,
    unknown: ImageSet | None = None,
) -> Evaluation:
    """Measure a trained run on its test images, and against a second data set if one is named.

    Writes evaluation.json, and test_logits.safetensors (float16) so that later questions need no network.

    Arguments:
        folder: What ``unhinge train`` wrote.
        ood: A data set whose test images play the unknown; shown to the network in the size it knows.
        data_root: Where the data sets lie.
        which: The weights: `last` or `best`.
        material, unknown: The images, where they are loaded already.
    """
    place = Path(folder)
    _, recipe = _stored(_weights(place, which))
    images = material or material_of(recipe, data_root)
    with using_threads(recipe.threads):
        return _evaluate(place, recipe, images, ood, data_root, which, unknown)


def _evaluate(
    place: Path,
    recipe: Recipe,
    images: Material,
    ood: str | None,
    data_root: str | Path | None,
    which: str,
    unknown: ImageSet | None,
) -> Evaluation:
    network = load_network(place, images.train, which)
    found = outputs(network, images.test)
    counts = images.train.counts
    weight = prototypes_of(network).detach()
    bins = reliability(found.logits.softmax(-1), found.labels)
    numbers: dict[str, Any] = {
        "accuracy": found.accuracy,
        "ece": bins.error,
        "classwise_ece": classwise_calibration_error(found.logits.softmax(-1), found.labels),
        "shots": shot_accuracy(found.logits, found.labels, counts),
        "class_accuracy": _by_class(found, images.test.num_classes),
        "confusion": _confusion(found, images.test.num_classes),
        "training": _fit_of(outputs(network, images.train), images.train.num_classes),
        "adjusted_accuracy": adjusted_accuracies(found.logits, found.labels, counts, recipe),
        "feature_norm": found.features.norm(dim=1).mean().item(),
        "prototypes": prototype_record(weight),
        "collapse": {
            name: float(value)
            for name, value in neural_collapse(found.features, weight, found.labels, biases_of(network)).items()
        },
    }
    radius = radius_of(recipe, len(counts))
    if radius is not None:
        # Its logits are affine in the posterior: their softmax is no probability, its calibration error an artefact.
        shares = posterior(found.logits.double(), radius, recipe.head_scale).clamp(min=0)
        numbers["posterior_ece"] = reliability(shares / shares.sum(-1, keepdim=True), found.labels).error
    scores: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    if ood is not None or unknown is not None:
        others = unknown if unknown is not None else _unknown(str(ood), data_root, images.test, recipe.shrink)
        theirs = outputs(network, others)
        mine, yours = (ood_scores(one.logits.double(), one.features) for one in (found, theirs))
        scores = {name: (mine[name], yours[name]) for name in mine}
        numbers["ood"] = {"data": ood, "images": len(others)} | {
            name: ood_metrics(*pair) for name, pair in scores.items()
        }
    numbers = {"weights": which, "recipe": recipe.key, "test_images": len(images.test)} | numbers
    _write_logits(place / "test_logits.safetensors", found, recipe.key)
    write_atomically(place / "evaluation.json", (as_json(plain(numbers, names=True)) + "\n").encode())
    return Evaluation(place, numbers, bins, scores)


def _weights(folder: Path, which: str) -> Path:
    path = folder / f"{which}.safetensors"
    if not path.is_file():
        there = ", ".join(sorted(file.name for file in folder.glob("*.safetensors"))) or "no weights at all"
        raise FileNotFoundError(
            f"{folder} has no {path.name} (there: {there}). Name the folder that `unhinge train --out` wrote."
        )
    return path


def _stored(path: Path) -> tuple[Checkpoint, Recipe]:
    stored = read_tensors(path)
    settings = stored.standing.get("recipe")
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} does not say by which recipe it was made: it is a checkpoint, not a result.")
    return stored, Recipe.of(settings)


def _unknown(name: str, data_root: str | Path | None, like: ImageSet, factor: int) -> ImageSet:
    images = load(name, data_root, train=False).test
    same = images.images.shape[1:] == like.images.shape[1:]
    if factor > 1 and not same and all(side % factor == 0 for side in images.images.shape[2:]):
        images = shrink(images, factor)  # as the known images were, not by interpolation
    return conform(images, like)


def _by_class(found: Outputs, num_classes: int) -> list[float | None]:
    """Accuracy of each class; None where there is no test image."""
    seen = torch.bincount(found.labels, minlength=num_classes)
    right = torch.bincount(found.labels[found.logits.argmax(-1) == found.labels], minlength=num_classes)
    return [r / n if n else None for r, n in zip(right.tolist(), seen.tolist(), strict=True)]


def _confusion(found: Outputs, num_classes: int) -> list[list[int]]:
    """How many images of each class (rows) were taken for each class (columns)."""
    pairs = found.labels * num_classes + found.logits.argmax(-1)
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes).tolist()


def _fit_of(found: Outputs, num_classes: int) -> dict[str, Any]:
    """How well a network knows its own training images, shown without augmentation."""
    by_class = _by_class(found, num_classes)
    return {
        "accuracy": found.accuracy,
        "class_accuracy": by_class,
        "interpolated": all(share >= INTERPOLATES for share in by_class if share is not None),
    }


def _write_logits(path: Path, found: Outputs, key: str) -> None:
    """Logits as float16, divided by the power of two that makes them fit."""
    largest = found.logits.abs().max().item()
    scale = 1.0
    while largest / scale > _HALF_MAX and math.isfinite(largest):
        scale *= 2
    tensors = {"logits": (found.logits / scale).half(), "labels": found.labels}
    write_tensors(path, tensors, {"recipe": key, "times": scale})
