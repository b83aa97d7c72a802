"""What else the paper does not have: rates, steps, few images, wrong labels, gamma, a simplex to start from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.study import Ordering, Study
from unhinge.paper.studies.tables.classification import CE, COMPARABLE, FNPAL, PAL, RADIUS, RESCALED
from unhinge.paper.studies.tables.tails import LONG_TAIL, weighted
from unhinge.training.recipe import Recipe
from unhinge.training.recipes import (
    CLASSES,
    Method,
    Setting,
    Settings,
    of_steps,
    recipe_of,
    train_images,
)

__all__ = ["studies"]

# ---- few images -----------------------------------------------------------------------------------------------------

# Data, images of each class, steps at the small scale. The first is the balanced setting of the paper's tables, and
# shares their runs. Each is run at two rates, because the one that suits cross-entropy need not suit the others.
FEW = (("cifar10", 500, 2000), ("cifar10", 100, 1200), ("fashion-mnist", 100, 1200), ("cifar100", 20, 2400))
SMOOTHED = Method("ce", label_smoothing=0.1)
FEW_METHODS = (CE, SMOOTHED, PAL)
TUNED = (
    "For each seed a method has the rate that was best for its other seeds, of those at which it fits all of its "
    "training images."
)
OWN_RATES = {"quick": (0.05, 0.2), "small": (0.1, 0.3), "paper": (0.1, 0.3)}


def _few(scale: str) -> list[Cell]:
    cells = []
    for data, each, steps in FEW if scale != "quick" else (("digits", 20, 0),):
        sized = {"largest": each, "augment": False}
        for cell in _at_rates(Setting(data), FEW_METHODS, OWN_RATES[scale], Column(data=data, each=each), scale, sized):
            cells.append(replace(cell, recipe=of_steps(cell.recipe, steps)) if scale == "small" else cell)
    return cells


# With 500 images of each class FNPAL misses some of one class, also after twice the steps; with 100 it fits them all.
NORMALIZED = (CE, FNPAL, RESCALED)


def _normalized(scale: str) -> list[Cell]:
    each, steps = (20, 0) if scale == "quick" else (100, 1200)
    sized = {"largest": each, "augment": False}
    cells = _at_rates(Setting("cifar10"), NORMALIZED, OWN_RATES[scale], Column(each=each), scale, sized)
    if scale != "small":
        return cells
    return [replace(cell, recipe=of_steps(cell.recipe, steps)) for cell in cells]


# ---- over steps and rates -------------------------------------------------------------------------------------------

BUDGETS = {"quick": (0.2, 1.0), "small": (0.15, 0.4, 1.0), "paper": (0.1, 0.3, 1.0)}
STEPS_METHODS = (CE, weighted(CE), PAL, weighted(PAL), weighted(FNPAL))
RATES = {"quick": (0.05, 0.2, 0.5), "small": (0.05, 0.1, 0.3, 1.0), "paper": (0.05, 0.1, 0.3)}
RATES_METHODS = (CE, PAL, Method("pal", radius=5.0), FNPAL, RESCALED)
TAIL_RATES = (0.01, 0.03, 0.1, 0.3)
# On even classes the larger of two rates was the better one for cross-entropy, so a still larger one is tried there.
OWN_RATE_SETTINGS: tuple[tuple[Literal["exp", "step"] | None, int, tuple[float, ...]], ...] = (
    ("exp", 100, ()),
    ("exp", 10, ()),
    ("step", 10, ()),
    (None, 1, (0.5,)),
)


def _steps_of(recipe: Recipe) -> int:
    return recipe.epochs * math.ceil(train_images(recipe) / recipe.batch)


def _steps(scale: str) -> list[Cell]:
    cells = []
    whole = recipe_of(LONG_TAIL, CE, scale)
    for share in BUDGETS[scale]:
        epochs = max(1, round(share * whole.epochs))
        for method in STEPS_METHODS:
            recipe = recipe_of(LONG_TAIL, method, scale, epochs=epochs)
            cells.append(Cell(method, Column(steps=_steps_of(recipe)), recipe))
    return cells


def _at_rates(
    setting: Setting,
    methods: Sequence[Method],
    rates: Sequence[float],
    place: Column,
    scale: str,
    changes: Settings | None = None,
) -> list[Cell]:
    """Each method at each rate, in columns that have the rate beside what `place` has."""
    return [
        Cell(method, replace(place, lr=rate), recipe_of(setting, method, scale, lr=rate, **(changes or {})))
        for rate in rates
        for method in methods
    ]


# Where the steps of the paper's tables did not suffice. FNPAL had 98.6 % of one class of CIFAR-10, with the rescaled
# rate 96.8 %; PAL had 99.5 % of all images of CIFAR-100 under its long tail, but not 99 % of each class. Balanced
# CIFAR-100 is left out: after twice the steps PAL had 92 % of its images, and was right on fewer test images.
MORE_STEPS: Sequence[tuple[Setting, Sequence[Method]]] = (
    (Setting("cifar10"), (CE, PAL, FNPAL, RESCALED)),
    (Setting("cifar100", "exp", 100), (CE, PAL, RADIUS)),
)


def _more_steps(scale: str) -> list[Cell]:
    cells = []
    for setting, methods in MORE_STEPS:
        for method in methods:
            recipe = recipe_of(setting, method, scale)
            recipe = replace(recipe, epochs=2 * recipe.epochs, measure_every=2 * recipe.measure_every)
            place = Column(data=recipe.data, profile=setting.profile, ratio=setting.ratio, steps=_steps_of(recipe))
            cells.append(Cell(method, place, recipe))
    return cells


def _rates(scale: str) -> list[Cell]:
    return _at_rates(Setting("cifar10"), RATES_METHODS, RATES[scale], Column(), scale)


def _tail_rates(scale: str) -> list[Cell]:
    return _at_rates(LONG_TAIL, (CE, PAL, FNPAL), TAIL_RATES, Column(), scale)


def _own_rates(scale: str) -> list[Cell]:
    cells = []
    for profile, ratio, more in OWN_RATE_SETTINGS:
        setting, place = Setting("cifar10", profile, ratio), Column(profile=profile, ratio=ratio)
        cells += _at_rates(setting, (CE, PAL), (*OWN_RATES[scale], *more), place, scale)
    return cells


# ---- wrong labels, gamma, a simplex to start from, and one pair at full size --------------------------------------


def _noise(scale: str) -> list[Cell]:
    return [
        Cell(method, Column(label_noise=rate), recipe_of(Setting("cifar10", label_noise=rate), method, scale))
        for rate in (0.0, 0.2, 0.4, 0.6)
        for method in (CE, PAL, RADIUS, FNPAL)
    ]


def _gammas(scale: str) -> list[Cell]:
    cells = []
    for factor in (0.0, 0.5, 1.0, 2.0, 10.0):
        for method in (Method("unhinged"), RADIUS):
            recipe = recipe_of(Setting("cifar10"), method, scale)
            default = 1 / (CLASSES[recipe.data][1] - 1)
            recipe = replace(recipe, gamma=None if factor == 1 else factor * default)
            cells.append(Cell(method, Column(gamma=factor), recipe))
    return cells


STARTS = (
    Method("unhinged"),
    Method("unhinged-etf"),
    Method("unhinged-etf", head_scale=10.0),
    CE,
    Method("ce-etf"),
    Method("ce-etf", head_scale=10.0),
)


def _starts(scale: str) -> list[Cell]:
    cells = []
    for method in STARTS:
        recipe = recipe_of(Setting("cifar10"), method, scale, lr=0.01)
        cells.append(Cell(method, Column(data=recipe.data, lr=0.01), recipe))
    return cells


def _full_size(scale: str) -> list[Cell]:
    changes = {"largest": None, "augment": True, "epochs": 200, "measure_every": 10} if scale == "small" else {}
    cells = []
    for method in (CE, PAL):
        recipe = recipe_of(LONG_TAIL, method, scale, **changes)
        cells.append(Cell(method, Column(data=recipe.data, profile="exp", ratio=100), recipe))
    return cells


# ---- the list -------------------------------------------------------------------------------------------------------


def studies() -> list[Study]:
    """Rates and steps first."""
    tempered = ("after_temperature.ece", "after_temperature.log_loss")
    return [
        Study(
            "beyond-long-tailed-rates",
            None,
            "A long tail at other rates: does a method that is behind not fit, or not generalize?",
            "table",
            _tail_rates,
            ("accuracy", "training.accuracy"),
            (Ordering("PAL lies above cross-entropy", PAL, CE),),
        ),
        Study(
            "beyond-own-rates",
            None,
            "Fixed prototypes against cross-entropy, each at the rate that suits it",
            "table",
            _own_rates,
            ("accuracy", "training.accuracy", *tempered),
            (
                Ordering("PAL lies above cross-entropy", PAL, CE, tuned=True),
                Ordering("PAL lies above cross-entropy, on average", PAL, CE, tuned=True, averaged=True),
            ),
            note=TUNED,
            seeds={"quick": 3, "small": 5, "paper": 3},
        ),
        Study(
            "beyond-long-tailed-steps",
            None,
            "Does the unhinged loss beat cross-entropy under a long tail, and after how many steps?",
            "lines",
            _steps,
            ("accuracy", "training.accuracy"),
            (
                Ordering("PAL lies above cross-entropy", PAL, CE),
                Ordering("weighted PAL above weighted cross-entropy", weighted(PAL), weighted(CE), ours=True),
            ),
        ),
        Study(
            "beyond-more-steps",
            None,
            "Twice the steps of the paper's tables here: what do they say once every image is fitted?",
            "table",
            _more_steps,
            ("accuracy", "halfway_accuracy", "training.accuracy", *tempered),
            (
                Ordering("PAL lies above cross-entropy", PAL, CE),
                Ordering("PAL with a radius lies above cross-entropy", RADIUS, CE, ours=True),
                Ordering("FNPAL and cross-entropy differ by less than a point", FNPAL, CE, margin=COMPARABLE),
                Ordering("FNPAL is slower than cross-entropy (at half time)", CE, FNPAL, "halfway_accuracy"),
                Ordering("rescaling speeds up FNPAL (at half time)", RESCALED, FNPAL, "halfway_accuracy"),
            ),
        ),
        Study(
            "beyond-few-images",
            None,
            "Few images of each class, no augmentation: fixed prototypes against cross-entropy, with and without label "
            "smoothing",
            "table",
            _few,
            ("accuracy", "best_accuracy", "training.accuracy", "stated_ece", *tempered),
            (
                # more seeds of a hundred classes, and of 100 images of ten, after a look at the first
                Ordering(
                    "PAL lies above cross-entropy",
                    PAL,
                    CE,
                    tuned=True,
                    ours=True,
                    asked="in part again, with more seeds",
                ),
                Ordering("PAL lies above cross-entropy with smoothed labels", PAL, SMOOTHED, tuned=True, ours=True),
                Ordering("PAL lies above cross-entropy, on average", PAL, CE, tuned=True, averaged=True, ours=True),
                Ordering(
                    "PAL lies above cross-entropy with smoothed labels, on average",
                    PAL,
                    SMOOTHED,
                    tuned=True,
                    averaged=True,
                    ours=True,
                ),
            ),
            note=TUNED,
        ),
        Study(
            "beyond-normalized",
            None,
            "Normalized features where they fit every image: as good as cross-entropy, and slower?",
            "table",
            _normalized,
            ("accuracy", "halfway_accuracy", "epochs_to_fit", "training.accuracy", *tempered),
            (
                Ordering(
                    "FNPAL and cross-entropy differ by less than a point",
                    FNPAL,
                    CE,
                    margin=COMPARABLE,
                    tuned=True,
                    asked="again after five seeds",
                ),
                Ordering("FNPAL lies above cross-entropy", FNPAL, CE, tuned=True, ours=True),
                Ordering(
                    "FNPAL fits its training images later than cross-entropy does",
                    CE,
                    FNPAL,
                    "epochs_to_fit",
                    larger=False,
                    tuned=True,
                    asked="after one seed",
                ),
                Ordering(
                    "rescaling lets FNPAL fit its training images earlier",
                    RESCALED,
                    FNPAL,
                    "epochs_to_fit",
                    larger=False,
                    tuned=True,
                    asked="after one seed",
                ),
                Ordering("rescaling helps FNPAL", RESCALED, FNPAL, tuned=True, ours=True),
            ),
            note="CIFAR-10, 100 images of each class. " + TUNED,
            seeds={"quick": 2, "small": 5, "paper": 3},
        ),
        Study(
            "beyond-full-size",
            None,
            "One pair on all 12,406 images of long-tailed CIFAR-10, augmented, for the paper's 200 epochs",
            "curves",
            _full_size,
            ("accuracy", "training.accuracy"),
            (Ordering("PAL lies above cross-entropy", PAL, CE),),
            seeds={"quick": 1, "small": 1, "paper": 1},
        ),
        Study(
            "beyond-label-noise",
            None,
            "Wrong labels: cross-entropy against the unhinged loss",
            "table",
            _noise,
            ("accuracy", "best_accuracy", "training.accuracy"),
            (Ordering("PAL with a radius lies above cross-entropy", RADIUS, CE, ours=True, regime=False),),
        ),
        Study(
            "beyond-rates",
            None,
            "Fixed prototypes against cross-entropy over rates: what a radius and a larger rate bring",
            "table",
            _rates,
            ("accuracy", "training.accuracy"),
            (
                Ordering("a radius helps fixed prototypes", Method("pal", radius=5.0), PAL, ours=True),
                Ordering("rescaling helps normalized features", RESCALED, FNPAL),
            ),
            seeds={"quick": 5, "small": 3, "paper": 3},
        ),
        Study(
            "beyond-gamma",
            None,
            "γ away from 1/(C-1): with fixed prototypes of mean zero it only rescales the loss",
            "table",
            _gammas,
            ("accuracy", "training.accuracy"),
        ),
        Study(
            "beyond-simplex-start",
            None,
            "A trainable head that starts as a simplex, as large as usual or ten times that",
            "table",
            _starts,
            ("accuracy", "epochs", "feature_norm", "training.accuracy"),
            (
                Ordering("a simplex start helps the raw loss", STARTS[1], STARTS[0]),
                Ordering("larger prototypes help it further", STARTS[2], STARTS[1]),
            ),
            note="At a rate of 0.01, where the raw loss lasts long enough to be compared.",
        ),
    ]
