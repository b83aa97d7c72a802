"""What one number chosen on other images does for a network: a temperature for its probabilities softmax(logits / T),
and a strength for its decision, which takes the class frequencies out of it.

    python benchmarks/calibration.py RUNS [RUNS ...] [--data cifar10 --imbalance step:10 --epochs 91] [--json]

RUNS are folders of `unhinge reproduce`, with KEY.json and KEY/test_logits.safetensors for each run; runs whose logits
are gone are passed over. T is fitted to one half of the test images by the log loss and judged on the other half, both
ways (temperature scaling: Guo et al., 2017). "Stated" is the error without it, of the posterior with a radius and else
of the softmax. "Adjusted" is the accuracy with the strength that is best for the other half, both ways; it reads PAL
without a radius as if the mean norm of its training features were one. Differences are to cross-entropy of the same
seed, with a 95 % interval by Student's t.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from unhinge.metrics import after_temperature, strength_curve
from unhinge.paper.studies.paired import paired
from unhinge.results.json import JsonRecord
from unhinge.training.checkpoint import read_tensors
from unhinge.training.decisions import radius_of
from unhinge.training.recipe import Recipe

BASE = "cross-entropy"
MEASURES = "accuracy", "adjusted", "strength", "stated_ece", "ece", "log_loss", "temperature"


def measured(record: JsonRecord, logits: Tensor, labels: Tensor, counts: Tensor) -> dict[str, float]:
    """The numbers of one run; shares in percent."""
    stated = record.get("posterior_ece") or record["ece"]
    scaled = after_temperature(logits, labels)
    decided = adjusted(record, logits, labels, counts)
    numbers = 100 * record["accuracy"], *decided, 100 * stated, 100 * scaled.ece, scaled.log_loss, scaled.temperature
    return dict(zip(MEASURES, numbers, strict=True))


def adjusted(record: JsonRecord, logits: Tensor, labels: Tensor, counts: Tensor) -> tuple[float, float]:
    """Accuracy in percent with the strength that suits the other half of the images, and the mean of both strengths."""
    recipe, radius = Recipe.of(record["recipe"]), None
    if recipe.loss != "ce":
        radius = radius_of(recipe, logits.shape[1]) or record["curves"]["feature_norm"][-1]
    even = torch.arange(len(labels)) % 2 == 0
    curves = [strength_curve(logits[half], labels[half], counts, radius=radius) for half in (even, ~even)]
    shares = [
        judge.example_accuracy[judge.strengths == chooser.best].item() for chooser, judge in (curves, curves[::-1])
    ]
    return 100 * fmean(shares), fmean(curve.best for curve in curves)


def named(recipe: JsonRecord) -> str:
    """A run's row."""
    if recipe["loss"] == "ce":
        name = BASE + (", logits adjusted" if recipe["logit_adjustment"] else "")
    else:
        name = str(recipe["head"]).upper() + (f", radius {recipe['radius']:g}" if recipe["radius"] else "")
    penalty, weight = recipe["feature_penalty"], recipe["class_weight"]
    return name + (f", penalty {penalty:g}" if penalty else "") + (f", weights n^-{weight:g}" if weight else "")


def difference(ours: dict[int, dict[str, float]], theirs: dict[int, dict[str, float]], measure: str) -> str:
    """Mean over the seeds that both have, and its interval from three of them on."""
    seeds = sorted(ours.keys() & theirs.keys())
    gaps = [ours[seed][measure] - theirs[seed][measure] for seed in seeds]
    if len(gaps) < 3:
        return ""
    found = paired(gaps)
    interval = "" if found.low is None else f" ({found.low:+.3g} to {found.high:+.3g})"
    return f"{found.mean:+.3g}{interval}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--imbalance", default="step:10")
    parser.add_argument("--epochs", type=int, default=91)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for path in sorted(path for folder in asked.runs for path in folder.glob("*.json")):
        kept = path.with_suffix("") / "test_logits.safetensors"
        record = json.loads(path.read_text())
        recipe = record["recipe"]
        wanted = all(recipe[key] == getattr(asked, key) for key in ("data", "imbalance", "epochs"))
        if not wanted or not kept.exists() or recipe["augment"] or recipe["lr"] != 0.1:
            continue
        stored = read_tensors(kept)
        logits = stored.tensors["logits"].double() * stored.standing["times"]
        data = json.loads((kept.parent / "data.json").read_text())
        counts = torch.tensor(data["counts"])
        rows[named(recipe)][recipe["seed"]] = measured(record, logits, stored.tensors["labels"], counts)
    if asked.json:
        print(json.dumps(rows))
        return
    print(
        "| method | seeds | "
        + " | ".join(MEASURES)
        + " | adjusted, difference | log_loss, difference | ece, difference |"
    )
    print("|---" * (len(MEASURES) + 5) + "|")
    for name, seeds in rows.items():
        cells = [name, str(len(seeds))]
        cells += [f"{fmean(each[measure] for each in seeds.values()):.4g}" for measure in MEASURES]
        for measure in ("adjusted", "log_loss", "ece"):
            cells.append("" if name == BASE else difference(seeds, rows.get(BASE, {}), measure))
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
