"""Several finished runs against the same unknown sets: each one's table, and what a run is called in the common one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unhinge.ood.comparison import Compared, compare_scores
from unhinge.results.json import JsonRecord
from unhinge.results.sealed import read_sealed
from unhinge.training.checkpoint import read_tensors
from unhinge.training.evaluation import evaluate
from unhinge.training.recipe import Recipe

__all__ = ["compare_runs", "method_of"]


def method_of(recipe: Recipe) -> str:
    """Loss, head and what was added to them, in words.

    Example:
        >>> method_of(Recipe(loss="unhinged", head="pal", radius=10.0, seed=3))
        'unhinged, pal head, radius 10'
    """
    parts = [recipe.loss, f"{recipe.head} head"]
    parts += [f"radius {recipe.radius:g}"] if recipe.radius is not None else []
    for name in ("feature_penalty", "class_weight", "logit_adjustment"):
        value = getattr(recipe, name)
        parts += [f"{name.replace('_', ' ')} {value:g}"] if value else []
    parts += ["weighted penalty"] if recipe.weighted_penalty else []
    parts += ["rescaled"] if recipe.rescale else []
    parts += [recipe.imbalance] if recipe.imbalance else []
    return ", ".join(parts)


def compare_runs(places: Sequence[Path], ood: str, data_root: Path | None = None) -> list[Compared]:
    """The scores of several runs against the sets named in `ood`, seeds of one recipe taken together.

    Arguments:
        places: Folders that ``unhinge train`` wrote, or records (``KEY.json``) of studies, which are read and not
            measured again. A folder whose last evaluation was on these sets is not measured again either.
        ood: Names of the unknown sets, separated by commas.
        data_root: Where the data sets lie.
    """
    runs = []
    for place in places:
        record = _record(place, ood)
        if record is None:
            if not place.is_dir():
                raise ValueError(f"{place} has no detection of {ood}. Name a run's folder, or a record that has it.")
            evaluation = evaluate(place, ood, data_root=data_root)
            record = {"detection": evaluation.numbers["detection"], "recipe": _recipe(place)}
        recipe = Recipe.of(record["recipe"])
        runs.append((method_of(recipe), recipe.seed, record["detection"]))
    return compare_scores(runs)


def _record(place: Path, ood: str) -> JsonRecord | None:
    """What is known already of a run on these sets."""
    path = place / "evaluation.json" if place.is_dir() else place
    if not path.is_file():
        return None
    stored = read_sealed(path)
    if "detection" not in stored or stored.get("ood", {}).get("data") != ood:
        return None
    return {"detection": stored["detection"], "recipe": _recipe(place) if place.is_dir() else stored["recipe"]}


def _recipe(place: Path) -> JsonRecord:
    """Of its weights, whose checksum covers it."""
    settings: JsonRecord = read_tensors(place / "last.safetensors").standing["recipe"]
    return settings
