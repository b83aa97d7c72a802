"""A recipe followed once, and what was measured, kept in a file that a table can be drawn from.

A run is named by its recipe, so tables that share a network share the run, and what is done is never run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch

from unhinge.results.environment import commit
from unhinge.results.json import JsonRecord, plain
from unhinge.results.sealed import read_sealed, write_sealed
from unhinge.training import Evaluation, Recipe, RecipeError, evaluate, fit, material_of
from unhinge.training.machine import machine, using_threads
from unhinge.training.records import epoch_seconds, seconds_spent

__all__ = ["Task", "follow", "measured", "read_run"]

BINS = 60  # of a histogram of scores
CURVES = (
    "train_loss",
    "train_accuracy",
    "test_accuracy",
    "feature_norm",
    "prototype_norm_min",
    "prototype_norm_ratio",
    "prototype_angle_min",
    "nc1_ratio",
    "nc3",
)


@dataclass(frozen=True)
class Task:
    """A recipe to be followed and measured, whichever tables want it."""

    recipe: Recipe
    ood: str | None  # unknown images, by name; several with commas between
    runs: str  # folder
    data_root: str | None

    @property
    def name(self) -> str:
        return self.recipe.key if self.ood is None else f"{self.recipe.key}-{self.ood.replace(',', '+')}"

    @property
    def path(self) -> Path:
        return Path(self.runs) / f"{self.name}.json"


def measured(task: Task) -> JsonRecord | None:
    """What was measured of it, if that lies there whole; one with unknown images answers for one without."""

    def paths() -> Iterator[Path]:
        yield task.path
        if task.ood is None:  # looked for only then: there may be hundreds
            yield from sorted(task.path.parent.glob(f"{task.name}-*.json"))

    stored = (found for path in paths() if (found := _stored(path)) is not None)
    return next((result for result, recipe in stored if recipe == task.recipe), None)


def read_run(path: Path) -> JsonRecord | None:
    """A file of results, None where there is none; one that was changed is a :class:`SealError` that names it."""
    found = _stored(path)
    return None if found is None else found[0]


def _stored(path: Path) -> tuple[JsonRecord, Recipe | None] | None:
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return _read(path, about.st_ino, about.st_size, about.st_mtime_ns)


@cache  # plans, tables and verdicts ask for the same runs again and again: five hundred take four seconds to read
def _read(path: Path, *stamp: int) -> tuple[JsonRecord, Recipe | None] | None:
    """A result and its recipe, in which settings that came later have the defaults they had then; None of no recipe."""
    result = read_sealed(path)
    if not isinstance(result.get("recipe"), dict):
        return None
    try:
        return result, Recipe.of(result["recipe"])
    except RecipeError:
        return result, None


def follow(task: Task) -> JsonRecord:
    """Train, evaluate, and write the result; a run that was interrupted is continued."""
    folder = Path(task.runs) / task.recipe.key
    material = material_of(task.recipe, task.data_root)
    version = commit()  # of the code as it is now, not as it may be when the run ends
    run = fit(task.recipe, folder, material=material)
    with using_threads(task.recipe.threads):
        where = machine()
    result: JsonRecord = {
        "recipe": asdict(task.recipe),
        "machine": where,
        "commit": version,
        "stopped": run.stopped,
        "epochs": len(run.records),
        "steps": -(-len(material.train) // task.recipe.batch) * len(run.records),
        "train_images": len(material.train),
        "seconds": round(seconds_spent(folder), 2),
        "curves": {name: [record.get(name) for record in run.records] for name in CURVES},
        "epoch_seconds": [round(duration, 3) for duration in epoch_seconds(folder)],
    }
    if run.stopped is None:
        evaluation = evaluate(folder, task.ood, data_root=task.data_root, material=material)
        result |= _lasting(evaluation, [record["test_accuracy"] for record in run.records if "test_accuracy" in record])
    result = plain(result, names=True)
    write_sealed(task.path, result)
    # The last one stays: if another table asks the same network about unknown images, nothing is trained again.
    for file in sorted(folder.glob("checkpoint-*.safetensors"))[:-1]:
        file.unlink()
    return result


def _lasting(evaluation: Evaluation, accuracies: list[float]) -> JsonRecord:
    bins = evaluation.reliability
    kept: JsonRecord = {key: value for key, value in evaluation.numbers.items() if key not in ("recipe", "weights")}
    kept["best_accuracy"] = max(accuracies)
    kept["reliability"] = {name: getattr(bins, name).tolist() for name in ("counts", "hits", "totals")}
    kept["histograms"] = {name: _histogram(*pair) for name, pair in evaluation.scores.items()}
    return kept


def _histogram(known: torch.Tensor, unknown: torch.Tensor) -> JsonRecord:
    low = min(known.min().item(), unknown.min().item())
    high = max(known.max().item(), unknown.max().item())
    counts = [torch.histc(scores.double(), BINS, low, high).int().tolist() for scores in (known, unknown)]
    return {"range": [low, high], "known": counts[0], "unknown": counts[1]}
