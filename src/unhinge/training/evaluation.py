"""What a trained run can do: accuracy, calibration, neural collapse, out-of-distribution detection."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch.nn.functional import cross_entropy

from unhinge.data import ImageSet, conform, load, shrink
from unhinge.data.load import SIZED
from unhinge.metrics import (
    Reliability,
    after_temperature,
    classwise_calibration_error,
    neural_collapse,
    ood_metrics,
    ood_scores,
    reliability,
    shot_accuracy,
)
from unhinge.nn.backbones import Classifier
from unhinge.ood import CollapseDetector
from unhinge.ood.benchmark import (
    Detection,
    detection_records,
    detections,
    distance_of,
    leaderboard_records,
    openood_records,
)
from unhinge.results.json import JsonRecord, plain
from unhinge.results.sealed import write_sealed
from unhinge.results.tables import write_csv
from unhinge.training.checkpoint import Checkpoint, CheckpointError, read_tensors, write_tensors
from unhinge.training.decisions import adjusted_accuracies, adjusted_record, probabilities
from unhinge.training.loop import Material, material_of
from unhinge.training.machine import using_threads
from unhinge.training.measure import Outputs, outputs, prototype_record
from unhinge.training.network import biases_of, network_of, prototypes_of
from unhinge.training.recipe import Recipe

__all__ = ["INTERPOLATES", "Evaluation", "evaluate", "load_network"]

INTERPOLATES = 0.99  # of the training images of every class: then the network has reached the regime of free features
# Of the measures of collapse, what the record has already under another name (norms and angles in degrees).
REPORTED_ELSEWHERE = ("feature_norm_mean", "weight_norm_min", "weight_norm_ratio", "weight_angle_min")
# Classes whose confusion is recorded: that of 2,231 characters is a file of 15 MB, nearly all zeros, and follows from
# the logits beside the run.
MOST_CONFUSED = 200
_HALF_MAX = 2.0**15  # float16 ends at 65504


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The numbers of a run, and what its figures are drawn from."""

    folder: Path
    numbers: JsonRecord
    reliability: Reliability
    scores: dict[str, tuple[torch.Tensor, torch.Tensor]]  # by name: of the test images, of the first unknown ones
    known: dict[str, torch.Tensor] = field(default_factory=dict)  # every score of the test images, by name
    unknown: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)  # the same for each unknown set
    detections: list[Detection] = field(default_factory=list)  # every score against every unknown set
    posterior: Reliability | None = None  # of the probabilities that a fixed simplex with a radius states


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
    prior: Literal["counts"] | None = None,
    material: Material | None = None,
    unknown: ImageSet | None = None,
) -> Evaluation:
    """Measure a trained run on its test images, and against other data sets if some are named.

    Writes evaluation.json, and test_logits.safetensors (float16) so that later questions need no network; with `ood`
    also ood.csv and leaderboard.csv, in the columns of OpenOOD.

    Arguments:
        folder: What ``unhinge train`` wrote.
        ood: Data sets whose test images play the unknown, separated by commas; shown to the network in the size it
            knows. ``noise`` is one too. Every score of :class:`~unhinge.ood.CollapseDetector` is measured on each.
        data_root: Where the data sets lie.
        which: The weights: `last` or `best`.
        prior: ``"counts"`` also reports decisions adjusted by the training counts, many, medium and few-shot classes
            apart: for test classes that are as frequent as each other.
        material, unknown: The images, where they are loaded already.
    """
    place = Path(folder)
    _, recipe = _stored(_weights(place, which))
    images = material or material_of(recipe, data_root)
    if prior not in (None, "counts"):
        raise ValueError(f'prior must be "counts" (those of the training images) or None, got {prior!r}.')
    with using_threads(recipe.threads):
        network = load_network(place, images.train, which)
        tested, learned = outputs(network, images.test), outputs(network, images.train)
        counts, length = images.train.counts, learned.features.norm(dim=1).mean().item()
        weight, bias = prototypes_of(network).detach(), biases_of(network)
        bins = reliability(tested.logits.softmax(-1), tested.labels)
        numbers: JsonRecord = {
            "weights": which,
            "recipe": recipe.key,
            "test_images": len(images.test),
            "accuracy": tested.accuracy,
            "ece": bins.error,
            "classwise_ece": classwise_calibration_error(tested.logits.softmax(-1), tested.labels),
            "log_loss": cross_entropy(tested.logits.double(), tested.labels).item(),
            "after_temperature": _tempered(tested),
            "shots": shot_accuracy(tested.logits, tested.labels, counts),
            "class_accuracy": _by_class(tested, images.test.num_classes),
            "confusion": _confusion(tested, images.test.num_classes),
            "training": _fit_of(learned, images.train.num_classes),
            "adjusted_accuracy": adjusted_accuracies(tested.logits, tested.labels, counts, recipe, length),
            "feature_norm": tested.features.norm(dim=1).mean().item(),
            "training_feature_norm": length,
            "prototypes": prototype_record(weight),
            "collapse": {
                name: float(value)
                for name, value in neural_collapse(tested.features, weight, tested.labels, bias).items()
                if name not in REPORTED_ELSEWHERE
            },
            "notes": _notes(recipe, ood),
        }
        posterior, stated = probabilities(tested.logits, recipe, counts, length), None
        if posterior is not None:
            # Its logits are affine in the posterior, and their softmax is no probability: its error is an artefact.
            stated = reliability(posterior, tested.labels)
            numbers["posterior_ece"] = stated.error
        if prior is not None:
            numbers["adjusted"] = adjusted_record(tested.logits, tested.labels, counts, recipe, length)
        evaluation = Evaluation(place, numbers, bins, {}, posterior=stated)
        sets = _unknown_sets(ood, unknown, data_root, images.test, recipe.shrink)
        if sets:
            detector = CollapseDetector.fit(learned.features, learned.labels, weight, bias)
            theirs = {name: outputs(network, others) for name, others in sets.items()}
            evaluation = _detected(evaluation, detector, tested, theirs, recipe, ood)
    _write_logits(place / "test_logits.safetensors", tested, recipe.key)
    write_sealed(place / "evaluation.json", plain(numbers, names=True), indent=2)
    return evaluation


def _detected(
    evaluation: Evaluation,
    detector: CollapseDetector,
    tested: Outputs,
    theirs: dict[str, Outputs],
    recipe: Recipe,
    ood: str | None,
) -> Evaluation:
    """With every score against every unknown set, in its numbers and its tables too."""
    numbers, place = evaluation.numbers, evaluation.folder
    known = detector.scores(tested.features)
    unknown = {name: detector.scores(part.features) for name, part in theirs.items()}
    table = detections(known, unknown, {name: distance_of(recipe.data, name) for name in theirs})
    first = next(iter(theirs.values()))
    ours, others = (ood_scores(part.logits.double(), part.features) for part in (tested, first))
    scores = {score: (ours[score], others[score]) for score in ours}
    numbers["ood"] = {"data": ood, "images": len(first.labels)} | {
        score: ood_metrics(*pair) for score, pair in scores.items()
    }
    numbers["detection"] = detection_records(table)
    write_csv(place / "ood.csv", openood_records(table, tested.accuracy))
    write_csv(place / "leaderboard.csv", leaderboard_records(table, tested.accuracy, place.resolve().name))
    return replace(evaluation, scores=scores, known=known, unknown=unknown, detections=table)


def _weights(folder: Path, which: str) -> Path:
    path = folder / f"{which}.safetensors"
    if not path.is_file():
        existing = ", ".join(sorted(file.name for file in folder.glob("*.safetensors"))) or "no weights at all"
        raise FileNotFoundError(
            f"{folder} has no {path.name} (there: {existing}). Name the folder that `unhinge train --out` wrote."
        )
    return path


def _stored(path: Path) -> tuple[Checkpoint, Recipe]:
    stored = read_tensors(path)
    settings = stored.standing.get("recipe")
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} does not say by which recipe it was made: it is a checkpoint, not a result.")
    return stored, Recipe.of(settings)


def _unknown_sets(
    ood: str | None, unknown: ImageSet | None, data_root: str | Path | None, like: ImageSet, factor: int
) -> dict[str, ImageSet]:
    """The unknown images by the name of their set; `unknown` stands for the first name."""
    names = [] if ood is None else list(dict.fromkeys(name.strip() for name in ood.split(",") if name.strip()))
    given = {} if unknown is None else {next(iter(names), "unknown"): unknown}
    return given | {name: _unknown(name, data_root, like, factor) for name in names if name not in given}


def _unknown(name: str, data_root: str | Path | None, like: ImageSet, factor: int) -> ImageSet:
    if name == "noise":
        # Uniform pixels, as many as there are test images, the same each time.
        pixels = torch.randint(like.white + 1, like.images.shape, generator=torch.Generator().manual_seed(0))
        return replace(like, images=pixels.to(torch.uint8), labels=torch.zeros_like(like.labels))
    height, width = like.images.shape[2:]
    any_size = height == width and name.partition(":")[0] in SIZED
    images = load(name, data_root, train=False, image_size=height * factor if any_size else None).test
    same = images.images.shape[1:] == like.images.shape[1:]
    if factor > 1 and not same and all(side % factor == 0 for side in images.images.shape[2:]):
        images = shrink(images, factor)  # as the known images were, not by interpolation
    return conform(images, like)


def _notes(recipe: Recipe, ood: str | None) -> list[str]:
    """What a reader of the numbers should know."""
    names = [name.strip() for name in (ood or "").split(",")]
    if recipe.data not in names:
        return []
    return [
        f"{recipe.data} is what this network was trained on, so its images are not unknown: an AUROC near 50 percent "
        "is what a sound detector gives. Name another data set with --ood."
    ]


def _by_class(outputs: Outputs, num_classes: int) -> list[float | None]:
    """Accuracy of each class; None where there is no test image."""
    seen = torch.bincount(outputs.labels, minlength=num_classes)
    right = torch.bincount(outputs.labels[outputs.logits.argmax(-1) == outputs.labels], minlength=num_classes)
    return [r / n if n else None for r, n in zip(right.tolist(), seen.tolist(), strict=True)]


def _confusion(outputs: Outputs, num_classes: int) -> list[list[int]] | None:
    """How many images of each class (rows) were taken for each class (columns); None for too many classes to list."""
    if num_classes > MOST_CONFUSED:
        return None
    pairs = outputs.labels * num_classes + outputs.logits.argmax(-1)
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes).tolist()


def _tempered(outputs: Outputs) -> JsonRecord | None:
    """None of one image, which cannot both choose a temperature and judge it."""
    return asdict(after_temperature(outputs.logits, outputs.labels)) if len(outputs.labels) > 1 else None


def _fit_of(outputs: Outputs, num_classes: int) -> JsonRecord:
    """How well a network knows its own training images, shown without augmentation."""
    by_class = _by_class(outputs, num_classes)
    return {
        "accuracy": outputs.accuracy,
        "class_accuracy": by_class,
        "interpolated": all(share >= INTERPOLATES for share in by_class if share is not None),
    }


def _write_logits(path: Path, outputs: Outputs, key: str) -> None:
    """Logits as float16, divided by the power of two that makes them fit."""
    largest = outputs.logits.abs().max().item()
    scale = 1.0
    while largest / scale > _HALF_MAX and math.isfinite(largest):
        scale *= 2
    tensors = {"logits": (outputs.logits / scale).half(), "labels": outputs.labels}
    write_tensors(path, tensors, {"recipe": key, "times": scale})
