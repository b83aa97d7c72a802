"""What a trained run can do: accuracy, calibration, neural collapse, out-of-distribution detection."""

from __future__ import annotations

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
from unhinge.training.checkpoint import Checkpoint, CheckpointError, read_tensors, write_atomically
from unhinge.training.loop import Material, material_of
from unhinge.training.measure import Outputs, outputs, prototype_record
from unhinge.training.network import biases_of, network_of, prototypes_of
from unhinge.training.recipe import Recipe

__all__ = ["Evaluation", "evaluate", "load_network"]


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
    network = load_network(place, images.train, which)
    found = outputs(network, images.test)
    weight = prototypes_of(network).detach()
    bins = reliability(found.logits.softmax(-1), found.labels)
    numbers: dict[str, Any] = {
        "accuracy": found.accuracy,
        "ece": bins.error,
        "classwise_ece": classwise_calibration_error(found.logits.softmax(-1), found.labels),
        "shots": shot_accuracy(found.logits, found.labels, images.train.counts),
        "class_accuracy": _by_class(found, images.test.num_classes),
        "feature_norm": found.features.norm(dim=1).mean().item(),
        "prototypes": prototype_record(weight),
        "collapse": {
            name: float(value)
            for name, value in neural_collapse(found.features, weight, found.labels, biases_of(network)).items()
        },
    }
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
