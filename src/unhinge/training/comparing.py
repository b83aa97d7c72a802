"""Several finished runs against the same unknown sets: each one's table, and what a run is called in the common one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from unhinge.ood.comparison import Compared, compare_scores
from unhinge.results.json import JsonRecord
from unhinge.results.sealed import read_sealed
from unhinge.training.checkpoint import read_tensors
from unhinge.training.evaluation import evaluate
from unhinge.training.recipe import Recipe

__all__ = ["compare_runs", "method_of", "names_of"]


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


def names_of(recipes: Sequence[Recipe]) -> list[str]:
    """What each is called beside the others: its method, and whatever else tells it from others of that method.

    Recipes that differ in their seeds alone have one name.

    Example:
        >>> names_of([Recipe(lr=0.1), Recipe(lr=0.3)])
        ['ce, linear head, lr 0.1', 'ce, linear head, lr 0.3']
    """
    seedless = [replace(recipe, seed=0, seed_data=None, seed_init=None, seed_order=None) for recipe in recipes]
    names = []
    for recipe in seedless:
        alike = [other for other in seedless if method_of(other) == method_of(recipe)]
        settings = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
        apart = [name for name, value in settings.items() if any(getattr(other, name) != value for other in alike)]
        names.append(", ".join([method_of(recipe), *(f"{name.replace('_', ' ')} {settings[name]}" for name in apart)]))
    return names


def compare_runs(places: Sequence[Path], ood: str, data_root: Path | None, which: str) -> list[Compared]:
    """The scores of several runs against the sets named in `ood`, seeds of one recipe taken together.

    Arguments:
        places: Folders that ``unhinge train`` wrote, or records (``KEY.json``) of studies, which are read and not
            measured again. A folder whose last evaluation was of these weights on these sets is not measured again
            either.
        ood: Names of the unknown sets, separated by commas.
        data_root: Where the data sets lie.
        which: The weights: `last` or `best`; records of studies are of the last.
    """
    recipes, found = [], []
    for place in places:
        if which != "last" and not place.is_dir():
            raise ValueError(f"{place} is a record of the last weights, not of the {which} ones. Name a run's folder.")
        record = _record(place, ood, which)
        if record is None:
            if not place.is_dir():
                raise ValueError(f"{place} has no detection of {ood}. Name a run's folder, or a record that has it.")
            evaluation = evaluate(place, ood, data_root=data_root, which=which)
            record = {"detection": evaluation.numbers["detection"], "recipe": _recipe(place, which)}
        recipes.append(Recipe.of(record["recipe"]))
        found.append(record["detection"])
    seeds = [recipe.seed for recipe in recipes]
    return compare_scores(list(zip(names_of(recipes), seeds, found, strict=True)))


def _record(place: Path, ood: str, which: str) -> JsonRecord | None:
    """What is known already of these weights of a run on these sets."""
    path = place / "evaluation.json" if place.is_dir() else place
    if not path.is_file():
        return None
    stored = read_sealed(path)
    if "detection" not in stored or stored.get("ood", {}).get("data") != ood:
        return None
    if not place.is_dir():
        return {"detection": stored["detection"], "recipe": stored["recipe"]}
    recipe = _recipe(place, which)
    if (stored.get("weights"), stored.get("recipe")) != (which, Recipe.of(recipe).key):
        return None  # of other weights, or of a run that was here before
    return {"detection": stored["detection"], "recipe": recipe}


def _recipe(place: Path, which: str) -> JsonRecord:
    """Of its weights, whose checksum covers it."""
    settings: JsonRecord = read_tensors(place / f"{which}.safetensors").standing["recipe"]
    return settings
