"""Every table and figure of trained networks, the paper's and ours, as cells: which recipe stands where.

At the `paper` scale a cell is the paper's own setting. At `small` it is the same images and methods at 16 pixels with a
network that makes ten thousand steps in minutes; at `quick`, scikit-learn's digits. Strengths of penalties are kept at
the paper's effect per example: it sums over batches of 256, so a batch half as large gets twice the strength.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from unhinge.data import Imbalance
from unhinge.paper.studies.cell import Cell
from unhinge.paper.studies.printed import IMBALANCED_STEP, LONG_TAILED, OOD, OOD_PENALTY, RATIOS, SCORES
from unhinge.paper.studies.study import Ordering, Study
from unhinge.training import Recipe

__all__ = ["NETWORKS", "STUDIES", "base", "find_study", "train_images"]

Changes = Mapping[str, Any]
PAL: Changes = {"loss": "unhinged", "head": "pal"}
FNPAL: Changes = {"loss": "unhinged", "head": "fnpal"}
NETWORKS = {"cifar10": "resnet18", "cifar100": "resnet34", "imagenet100": "resnet50"}
SIZES = {"cifar10": (5000, 10), "cifar100": (500, 100), "imagenet100": (1300, 100), "digits": (139, 10)}
UNKNOWN = {"quick": "patches", "small": "svhn", "paper": "svhn"}
SMALL_STEPS = 10_000
PAPER_BATCH = 256


def base(scale: str, data: str, imbalance: str | None = None, steps: int = SMALL_STEPS) -> Recipe:
    """What all methods on a data set have in common; `steps` is the budget at the `small` scale."""
    if scale == "paper":
        epochs = 100 if data == "imagenet100" else 200
        return Recipe(data=data, imbalance=imbalance, model=NETWORKS[data], batch=PAPER_BATCH, epochs=epochs)
    if scale == "small":
        recipe = Recipe(data=data, shrink=2, imbalance=imbalance, model="tiny-resnet", batch=128)
        return replace(recipe, epochs=max(1, math.ceil(steps / _steps_per_epoch(recipe))))
    return Recipe(data="digits", imbalance=imbalance, model="convnet", width=16, batch=64, lr=0.05, epochs=25)


def train_images(recipe: Recipe) -> int:
    """How many images a recipe trains on (of digits about, since their classes differ by a few)."""
    each, classes = SIZES[recipe.data]
    return sum(Imbalance.parse(recipe.imbalance).counts([each] * classes)) if recipe.imbalance else each * classes


def _steps_per_epoch(recipe: Recipe) -> int:
    return math.ceil(train_images(recipe) / recipe.batch)


def _penalized(recipe: Recipe, strength: float) -> Recipe:
    return replace(recipe, feature_penalty=strength * PAPER_BATCH / recipe.batch)


def _method(recipe: Recipe, row: str) -> Recipe:
    """CE or UL (the unhinged loss on fixed prototypes), with the penalty its name gives."""
    name, _, penalty = row.partition(", λ=")
    recipe = replace(recipe, **(PAL if name == "UL" else {}))
    return _penalized(recipe, float(penalty)) if penalty else recipe


def _pattern(kind: str, ratio: int, scale: str) -> str | None:
    # Digits have 139 images of a class: a tail of 1 in 100 would be one image.
    shown = min(ratio, 20) if scale == "quick" else ratio
    return None if ratio == 1 else f"{kind}:{shown}"


# ---- long tails and steps -------------------------------------------------------------------------------------------


def _long_tailed(data: str, scale: str) -> list[Cell]:
    cells = []
    ratios = (100, 10, 1) if scale == "quick" else RATIOS
    for row, numbers in LONG_TAILED[data].items():
        for ratio, number in zip(RATIOS, numbers, strict=True):
            if ratio in ratios:
                recipe = _method(base(scale, data, _pattern("exp", ratio, scale)), row)
                cells.append(Cell(row, f"ρ={ratio}", recipe, paper=(("accuracy", number),)))
    return cells


def _imbalanced(data: str, scale: str) -> list[Cell]:
    cells = []
    ratios = (100, 10) if scale == "quick" else RATIOS[:-1]
    for kind, name, table in (("exp", "long-tailed", LONG_TAILED), ("step", "step", IMBALANCED_STEP)):
        for row, numbers in table[data].items():
            for ratio, number in zip(RATIOS, numbers, strict=False):
                if row.startswith("CE") and ratio in ratios:
                    recipe = _method(base(scale, data, _pattern(kind, ratio, scale)), row)
                    cells.append(Cell(row, f"{name}, ρ={ratio}", recipe, paper=(("accuracy", number),)))
    return cells


def _reliability(data: str, scale: str) -> list[Cell]:
    return [replace(c, paper=()) for c in _imbalanced(data, scale) if c.column.startswith("long-tailed")]


# What a practitioner would try at a long tail, and what theory asks for.
METHODS: Mapping[str, Changes] = {
    "CE": {},
    "CE, λ=5e-5": {"feature_penalty": 5e-5},
    "CE, 1/√n weights": {"class_weight": 0.5},
    "CE, 1/n weights": {"class_weight": 1.0},
    "CE, logits adjusted": {"logit_adjustment": 1.0},
    "PAL": PAL,
    "PAL, λ=1e-6": {**PAL, "feature_penalty": 1e-6},
    "PAL, radius 10": {**PAL, "radius": 10.0},
    "PAL, 1/√n weights": {**PAL, "class_weight": 0.5},
    "PAL, 1/n weights": {**PAL, "class_weight": 1.0},
    "PAL, radius 10, 1/√n weights": {**PAL, "radius": 10.0, "class_weight": 0.5},
    "FNPAL": FNPAL,
    "FNPAL, rescaled": {**FNPAL, "rescale": True},
    "FNPAL, 1/√n weights": {**FNPAL, "class_weight": 0.5},
    "adjusted margin": {"loss": "adjusted", "head": "fnpal"},
}
# Of these, those whose budget is varied.
STEPS_METHODS = ("CE", "CE, 1/√n weights", "PAL", "PAL, 1/√n weights", "FNPAL, 1/√n weights")
BUDGETS = {"quick": (0.2, 1.0), "small": (0.15, 0.4, 1.0), "paper": (0.1, 0.3, 1.0)}


def _changed(recipe: Recipe, changes: Changes) -> Recipe:
    changes = dict(changes)
    penalty = changes.pop("feature_penalty", 0.0)
    recipe = replace(recipe, **changes)
    return _penalized(recipe, penalty) if penalty else recipe


def _methods(data: str, scale: str) -> list[Cell]:
    start = base(scale, data, _pattern("exp", 100, scale))
    column = f"{start.data}, {start.imbalance}"
    paper = {row.replace("UL", "PAL"): numbers[0] for row, numbers in LONG_TAILED[data].items()}
    return [
        Cell(row, column, _changed(start, changes), paper=(("accuracy", paper[row]),) if row in paper else ())
        for row, changes in METHODS.items()
    ]


def _steps(data: str, scale: str) -> list[Cell]:
    cells = []
    for share in BUDGETS[scale]:
        start = base(scale, data, _pattern("exp", 100, scale))
        start = replace(start, epochs=max(1, round(share * start.epochs)))
        steps = start.epochs * _steps_per_epoch(start)
        for row in STEPS_METHODS:
            cells.append(Cell(row, f"{steps:,} steps", _changed(start, METHODS[row])))
    return cells


# ---- classification, out-of-distribution, behaviour -----------------------------------------------------------------

CLASSIFICATION: Mapping[str, Changes] = {
    "CE": {},
    "CE*": {"feature_penalty": 1e-5},
    "PAL": PAL,
    "PAL*": {**PAL, "feature_penalty": 5e-7},
    "FNPAL": FNPAL,
    "FNPAL*": {**FNPAL, "feature_penalty": 5e-7},
    "FNPAL, rescaled": {**FNPAL, "rescale": True},
    "FNPAL*, rescaled": {**FNPAL, "rescale": True, "feature_penalty": 5e-7},
}


def _classification(data: str, scale: str) -> list[Cell]:
    start = base(scale, data)
    return [Cell(row, start.data, _changed(start, changes)) for row, changes in CLASSIFICATION.items()]


def _ood(table: Mapping[str, Mapping[str, Any]], data: str, scale: str) -> list[Cell]:
    cells = []
    start = base(scale, data)
    for row, numbers in table[data].items():
        paper = tuple(
            (f"ood.{score}.{metric}", values[i])
            for metric, values in zip(("fpr95", "auroc", "aupr_in"), numbers, strict=True)
            for i, score in enumerate(SCORES)
        )
        column = f"{start.data} against {UNKNOWN[scale]}"
        cells.append(Cell(row, column, _method(start, row), ood=UNKNOWN[scale], paper=paper))
    return cells


def _behaviour(data: str, scale: str) -> list[Cell]:
    start = base(scale, data)
    rows: Mapping[str, Changes] = {"CE": {}, "PAL": PAL, "FNPAL": FNPAL}
    return [
        Cell(row, f"weight decay {decay:g}", replace(start, weight_decay=decay, **changes))
        for row, changes in rows.items()
        for decay in (0.0, 1e-4, 5e-4)
    ]


def _collapse(scale: str) -> list[Cell]:
    start = replace(base(scale, "cifar10"), loss="unhinged")
    # Growth is exponential in the integrated rate: here it shows within the epochs there are, and not within the first.
    longer: Mapping[str, Changes] = {
        "quick": {"lr": 0.3},
        "small": {"lr": 0.01, "epochs": 100},
        "paper": {},
    }
    start = replace(start, **longer[scale])
    return [Cell("unhinged, trainable head", start.data, start)]


def _noise(data: str, scale: str) -> list[Cell]:
    cells = []
    for rate in (0.0, 0.2, 0.4, 0.6):
        start = replace(base(scale, data), label_noise=rate)
        for row in ("CE", "PAL", "PAL, radius 10", "FNPAL"):
            cells.append(Cell(row, f"noise {rate:g}", _changed(start, METHODS[row])))
    return cells


RATES = {"quick": (0.05, 0.2, 0.5), "small": (0.05, 0.1, 0.3), "paper": (0.05, 0.1, 0.3)}
RATES_METHODS: Mapping[str, Changes] = {
    "CE": {},
    "PAL": PAL,
    "PAL, radius 5": {**PAL, "radius": 5.0},
    "FNPAL": FNPAL,
    "FNPAL, rescaled": {**FNPAL, "rescale": True},
}


def _rates(data: str, scale: str) -> list[Cell]:
    start = base(scale, data)
    return [
        Cell(row, f"lr {rate:g}", _changed(replace(start, lr=rate), changes))
        for row, changes in RATES_METHODS.items()
        for rate in RATES[scale]
    ]


def _gammas(data: str, scale: str) -> list[Cell]:
    start = base(scale, data)
    default = 1 / (SIZES[start.data][1] - 1)
    cells = []
    for factor in (0.0, 0.5, 1.0, 2.0, 10.0):
        for row, changes in (("trainable head", {"loss": "unhinged"}), ("PAL, radius 10", METHODS["PAL, radius 10"])):
            recipe = replace(start, gamma=None if factor == 1 else factor * default, **changes)
            cells.append(Cell(row, f"γ = {factor:g}/(C-1)", recipe))
    return cells


# ---- the list -------------------------------------------------------------------------------------------------------

ABOVE_CE = Ordering("the unhinged loss lies above cross-entropy under a long tail", "UL", "CE", column="ρ=100")
OOD_QUANTITIES = tuple(f"ood.{score}.{metric}" for score in SCORES for metric in ("fpr95", "auroc", "aupr_in"))


def _ood_orderings() -> tuple[Ordering, ...]:
    return tuple(
        Ordering(f"the penalty lowers the {score} score's FPR95 ({name})", penalized, name, f"ood.{score}.fpr95", False)
        for name, penalized in (("CE", "CE, λ=1e-5"), ("UL", "UL, λ=5e-7"))
        for score in SCORES
    )


def _for(data: str, cells: Callable[[str, str], Sequence[Cell]]) -> Callable[[str], Sequence[Cell]]:
    return partial(cells, data)


def _make() -> list[Study]:
    studies: list[Study] = []
    for data in ("cifar10", "cifar100", "imagenet100"):
        dashed = {"cifar10": "cifar-10", "cifar100": "cifar-100", "imagenet100": "imagenet-100"}[data]
        studies.append(
            Study(
                f"classification-{data}",
                f"fig:{dashed}-accuracy",
                "The unhinged loss with fixed prototypes against cross-entropy, epoch by epoch",
                "curves",
                _for(data, _classification),
                ("accuracy", "best_accuracy"),
                (
                    Ordering("fixed prototypes are at least as good as cross-entropy", "PAL", "CE"),
                    Ordering("rescaling speeds up normalized features", "FNPAL, rescaled", "FNPAL", "halfway_accuracy"),
                ),
                aliases=("classification-results",) if data == "cifar10" else (),
            )
        )
    for data in ("cifar10", "cifar100"):
        number = data.removeprefix("cifar")
        studies += [
            Study(
                f"long-tailed-{data}",
                "tab:lt-cifar",
                "Accuracy under a long tail over penalties, cross-entropy and unhinged loss",
                "table",
                _for(data, _long_tailed),
                ("accuracy",),
                (
                    ABOVE_CE,
                    Ordering("the penalty helps cross-entropy", "CE, λ=5e-5", "CE", column="ρ=100"),
                    Ordering("the penalty helps the unhinged loss", "UL, λ=1e-6", "UL", column="ρ=100"),
                ),
            ),
            Study(
                f"imbalanced-{data}",
                f"tab:imbalanced-cifar-{number}",
                "Cross-entropy over penalties, long-tailed and step imbalance",
                "table",
                _for(data, _imbalanced),
                ("accuracy",),
                (Ordering("the penalty helps", "CE, λ=5e-5", "CE"),),
            ),
            Study(
                f"reliability-{data}",
                f"fig:ece-lt-{data}",
                "Does a larger penalty bring confidence closer to accuracy under a long tail?",
                "reliability",
                _for(data, _reliability),
                ("ece", "accuracy"),
                (Ordering("the penalty lowers the calibration error", "CE, λ=5e-5", "CE", "ece", larger=False),),
                note="The caption names a ResNet-34; the paper's text, and so this, has the other tables' network.",
            ),
            Study(
                f"ood-{data}",
                "tab:ood-cifar-unhinged",
                "Does the feature penalty improve the detection of unknown images?",
                "histograms",
                partial(_ood, OOD, data),
                OOD_QUANTITIES,
                _ood_orderings(),
                aliases=("fig:cifar10-ood-energy-score",) if data == "cifar10" else (),
            ),
            Study(
                f"ood-penalty-{data}",
                "tab:ood-cifar",
                "Detection of unknown images by cross-entropy, over penalties",
                "histograms",
                partial(_ood, OOD_PENALTY, data),
                OOD_QUANTITIES,
                _ood_orderings()[:3],
                aliases=("fig:ood-softmax-score", "fig:ood-energy-score", "fig:ood-feat-norm")
                if number == "10"
                else (),
            ),
        ]
    for data in ("cifar10", "cifar100", "imagenet100"):
        label = "imagenet100" if data == "imagenet100" else f"ce-fsm-asm-{data}"
        studies.append(
            Study(
                f"behaviour-{data}",
                label,
                "Feature norm, loss and accuracy over the weight decay",
                "behaviour",
                _for(data, _behaviour),
                ("accuracy", "feature_norm"),
            )
        )
    studies += [
        Study(
            "collapse",
            "fig:collapse-of-unhinged",
            "The raw loss with a trainable head blows up: norms grow by orders of magnitude, prototypes fall together",
            "collapse",
            _collapse,
            ("epochs", "feature_norm"),
            seeds={"quick": 1, "small": 1, "paper": 1},
        ),
        Study(
            "beyond-long-tailed",
            None,
            "What a practitioner would try under a long tail, and the weights that theory asks for",
            "table",
            _for("cifar10", _methods),
            ("accuracy", "best_accuracy", "train_accuracy", "ece"),
            (
                Ordering("the unhinged loss lies above cross-entropy under a long tail", "PAL", "CE"),
                Ordering("the penalty helps cross-entropy", "CE, λ=5e-5", "CE"),
                Ordering("the penalty helps the unhinged loss", "PAL, λ=1e-6", "PAL"),
                Ordering("rescaling helps normalized features", "FNPAL, rescaled", "FNPAL"),
                Ordering("1/√n weights help the unhinged loss", "PAL, 1/√n weights", "PAL", ours=True),
                Ordering("1/n over-corrects", "PAL, 1/√n weights", "PAL, 1/n weights", ours=True),
                Ordering("weighted unhinged above weighted CE", "PAL, 1/√n weights", "CE, 1/√n weights", ours=True),
                Ordering(
                    "with a radius, weighted unhinged above weighted CE",
                    "PAL, radius 10, 1/√n weights",
                    "CE, 1/√n weights",
                    ours=True,
                ),
            ),
        ),
        Study(
            "beyond-long-tailed-steps",
            None,
            "Does the unhinged loss beat cross-entropy under a long tail, and after how many steps?",
            "steps",
            _for("cifar10", _steps),
            ("accuracy", "train_accuracy"),
            (
                Ordering("the unhinged loss lies above cross-entropy", "PAL", "CE"),
                Ordering("weighted unhinged above weighted CE", "PAL, 1/√n weights", "CE, 1/√n weights", ours=True),
            ),
        ),
        Study(
            "beyond-label-noise",
            None,
            "Wrong labels: cross-entropy against the unhinged loss",
            "table",
            _for("cifar10", _noise),
            ("accuracy", "best_accuracy"),
            (Ordering("the unhinged loss tolerates more wrong labels", "PAL, radius 10", "CE", ours=True),),
        ),
        Study(
            "beyond-rates",
            None,
            "Fixed prototypes come near cross-entropy once they have a radius, normalized features at a larger rate",
            "table",
            _for("cifar10", _rates),
            ("accuracy",),
            (
                Ordering("a radius helps fixed prototypes", "PAL, radius 5", "PAL", ours=True),
                Ordering("rescaling helps normalized features", "FNPAL, rescaled", "FNPAL"),
            ),
            seeds={"quick": 5, "small": 3, "paper": 3},
        ),
        Study(
            "beyond-gamma",
            None,
            "γ away from 1/(C-1): with fixed prototypes of mean zero it only rescales the loss",
            "table",
            _for("cifar10", _gammas),
            ("accuracy",),
        ),
    ]
    return studies


STUDIES = {study.id: study for study in _make()}


def find_study(name: str) -> list[Study]:
    """The studies with that id, LaTeX label or alias (a table over two data sets is two studies); none if unknown."""
    bare = name.removeprefix("fig:").removeprefix("tab:")
    return [
        study
        for study in STUDIES.values()
        if name == study.id
        or bare in {(label or "").removeprefix("fig:").removeprefix("tab:") for label in (study.label, *study.aliases)}
    ]
