"""Thousands of classes: characters in typefaces never seen, and heads whose cost does not grow with the classes."""

from __future__ import annotations

from dataclasses import replace

from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.study import Ordering, Study
from unhinge.paper.studies.tables.classification import CE, COMPARABLE, FNPAL
from unhinge.training.recipe import Recipe
from unhinge.training.recipes import CHARACTERS, CLASSES, Method

__all__ = ["studies"]

TAYLOR, Z_LOSS, FINISHED = Method("many-taylor"), Method("many-z"), Method("many-finished")
RAW = Method("many-unhinged")
# Of the network, and of the classifier of cross-entropy; a many-class head has a rate of its own, which falls alike.
# What suits one is far from what suits another. The raw loss is run at the lowest alone, where it has 6 %, and
# cross-entropy alone above 1.
NETWORK_RATES = {
    "quick": (0.05, 0.5),
    "small": (0.05, 0.2, 0.5, 1.0, 2.0, 4.0),
    "paper": (0.05, 0.2, 0.5, 1.0, 2.0, 4.0),
}
GLYPHS = {  # which characters, epochs and batch: printed ASCII, or all that the embedded typefaces share
    "quick": ("21-7E", 15, 64),
    "small": (None, 6, 256),
    "paper": (None, 40, 256),
}


def _cells(scale: str) -> list[Cell]:
    characters, epochs, batch = GLYPHS[scale]
    classes = CLASSES["glyphs"][1] if characters is None else CHARACTERS[characters]
    cells, rates = [], NETWORK_RATES[scale]
    for rate in rates:
        start = Recipe(
            data="glyphs", characters=characters, model="glyphnet", width=16, epochs=epochs, batch=batch, lr=rate,
            augment=False, measure_every=max(1, epochs // 10),
        )  # fmt: skip
        methods = [CE, FINISHED, TAYLOR, Z_LOSS] if rate <= 1 else [CE]
        if rate == rates[0]:
            methods += [RAW, *([FNPAL] if characters else [])]  # a simplex of more classes than features does not exist
        place = Column(data=f"{classes:,} characters", lr=rate)
        cells += [Cell(method, place, replace(start, **method.changes(batch))) for method in methods]
    return cells


def _orderings() -> tuple[Ordering, ...]:
    """Of practice, not of the theory: nothing here fits every training image of 2,231 classes."""
    seen = "after one rate"  # and one seed of two methods at others
    return (
        Ordering("the Taylor softmax lies above the unhinged loss", TAYLOR, RAW, ours=True, regime=False, tuned=True),
        Ordering("class means and a shortlist lift it further", FINISHED, TAYLOR, ours=True, regime=False, tuned=True),
        Ordering(
            "the Taylor softmax with class means and a shortlist and cross-entropy differ by less than a point",
            FINISHED, CE, ours=True, regime=False, tuned=True, margin=COMPARABLE, asked=seen,
        ),
        Ordering(
            "the Taylor softmax with class means and a shortlist lies above cross-entropy",
            FINISHED, CE, ours=True, regime=False, tuned=True, asked=seen,
        ),
        Ordering("the Z-loss lies above cross-entropy", Z_LOSS, CE, ours=True, regime=False, tuned=True, asked=seen),
    )  # fmt: skip


def studies() -> list[Study]:
    """One table."""
    return [
        Study(
            "beyond-many-classes",
            None,
            "Characters in typefaces never seen: rows that learn at a cost that does not grow with the classes",
            "rates",
            _cells,
            ("accuracy", "best_accuracy", "training.accuracy", "seconds"),
            _orderings(),
            note="Typefaces, not images, are held out. Every method has the same SGD on the network, at several rates. "
            "In the questions a method has, for each seed, the rate that was best for its other seeds. Another "
            "benchmark (benchmarks/glyphs.py) has AdamW and fewer epochs, so its numbers are others. With few classes "
            "the logits are cheap: the time that is saved shows from tens of thousands of classes on.",
        ),
    ]
