"""Balanced classes: the paper's classification figure, one study for each data set."""

from __future__ import annotations

from functools import partial

from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.study import Ordering, Study
from unhinge.training.recipes import Method, Setting, recipe_of

__all__ = ["CE", "COMPARABLE", "FNPAL", "PAL", "RADIUS", "RESCALED", "studies"]

CE, PAL, FNPAL, RESCALED = Method("ce"), Method("pal"), Method("fnpal"), Method("fnpal", rescale=True)
RADIUS = Method("pal", radius=10.0)  # ours: without it PAL does not fit a hundred classes in the steps that others need
METHODS = (
    CE,
    Method("ce", penalty=1e-5),
    PAL,
    Method("pal", penalty=5e-7),
    RADIUS,
    FNPAL,
    Method("fnpal", penalty=5e-7),
    RESCALED,
    Method("fnpal", penalty=5e-7, rescale=True),
)
LABELS = {
    "cifar10": "fig:cifar-10-accuracy",
    "cifar100": "fig:cifar-100-accuracy",
    "imagenet100": "fig:imagenet-100-accuracy",
}
COMPARABLE = 0.01  # a point of accuracy: what the paper's curves leave between methods it calls comparable


def _cells(data: str, scale: str) -> list[Cell]:
    cells = []
    for method in METHODS:
        recipe = recipe_of(Setting(data), method, scale)
        cells.append(Cell(method, Column(data=recipe.data), recipe))
    return cells


def studies() -> list[Study]:
    """In the paper's order."""
    return [
        Study(
            f"classification-{data}",
            label,
            "The unhinged loss with fixed prototypes against cross-entropy, epoch by epoch",
            "curves",
            partial(_cells, data),
            ("accuracy", "best_accuracy", "halfway_accuracy", "training.accuracy"),
            (
                Ordering("PAL and cross-entropy differ by less than a point", PAL, CE, margin=COMPARABLE),
                Ordering("PAL is better than cross-entropy", PAL, CE),
                Ordering("PAL with a radius is better than cross-entropy", RADIUS, CE, ours=True),
                Ordering("FNPAL and cross-entropy differ by less than a point", FNPAL, CE, margin=COMPARABLE),
                Ordering(
                    "FNPAL is slower than cross-entropy (test accuracy at half time)",
                    CE,
                    FNPAL,
                    "halfway_accuracy",
                ),
                Ordering("rescaling speeds up FNPAL (test accuracy at half time)", RESCALED, FNPAL, "halfway_accuracy"),
            ),
            aliases=("classification-results",) if data == "cifar10" else (),
        )
        for data, label in LABELS.items()
    ]
