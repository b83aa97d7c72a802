"""Uneven classes: the paper's tables over ratios and penalties, and its reliability diagrams."""

from __future__ import annotations

from functools import partial

from unhinge.paper.studies.cell import Cell, Column
from unhinge.paper.studies.printed import IMBALANCED_STEP, LONG_TAILED, RATIOS
from unhinge.paper.studies.study import Ordering, Study
from unhinge.paper.studies.tables.classification import CE, PAL
from unhinge.training.recipes import Method, Setting, recipe_of

__all__ = ["studies"]

LOWERS, RAISES = "the penalty lowers the calibration error", "the penalty raises the accuracy with it"
CE_PENALTIES, PAL_PENALTIES = (5e-6, 1e-5, 5e-5), (1e-7, 5e-7, 1e-6, 5e-6)


def _long_tailed(data: str, scale: str) -> list[Cell]:
    cells = []
    for method, numbers in LONG_TAILED[data].items():
        for ratio, number in zip(RATIOS, numbers, strict=True):
            if ratio in _shown(scale):
                recipe = recipe_of(Setting(data, "exp", ratio), method, scale)
                cells.append(Cell(method, Column(ratio=ratio), recipe, paper=(("accuracy", number),)))
    return cells


def _imbalanced(data: str, scale: str) -> list[Cell]:
    uneven = _shown(scale)[:-1]
    cells = []
    for profile, table in (("exp", LONG_TAILED), ("step", IMBALANCED_STEP)):
        for method, numbers in table[data].items():
            for ratio, number in zip(RATIOS, numbers, strict=False):
                if method.kind == "ce" and ratio in uneven:
                    recipe = recipe_of(Setting(data, profile, ratio), method, scale)  # type: ignore[arg-type]
                    place = Column(profile=profile, ratio=ratio)
                    cells.append(Cell(method, place, recipe, paper=(("accuracy", number),)))
    return cells


def _reliability(data: str, scale: str) -> list[Cell]:
    methods = [method for method in LONG_TAILED[data] if method.kind == "ce"]
    return [
        Cell(method, Column(ratio=ratio), recipe_of(Setting(data, "exp", ratio), method, scale))
        for method in methods
        for ratio in _shown(scale)
    ]


def _shown(scale: str) -> tuple[int, ...]:
    """The ratios that are run: all of the paper's at its own scale, else the ends and one between, at half the cost."""
    return RATIOS if scale == "paper" else (100, 10, 1)


def _pairs(kind: str, penalties: tuple[float, ...]) -> tuple[tuple[Method, Method], ...]:
    return tuple((Method(kind, penalty=penalty), Method(kind)) for penalty in penalties)


def studies() -> list[Study]:
    """For each data set the table over ratios, that over profiles, and the diagrams."""
    made = []
    strong, ours = Method("ce", penalty=5e-5), Method("pal", penalty=1e-6)
    for data in ("cifar10", "cifar100"):
        number = data.removeprefix("cifar")
        made += [
            Study(
                f"long-tailed-{data}",
                "tab:lt-cifar",
                "Accuracy under a long tail over penalties, cross-entropy and unhinged loss",
                "table",
                partial(_long_tailed, data),
                ("accuracy", "training.accuracy"),
                (
                    Ordering("PAL lies above cross-entropy under a long tail", PAL, CE, column=Column(ratio=100)),
                    Ordering("PAL lies above cross-entropy at 10 : 1 too", PAL, CE, column=Column(ratio=10)),
                    Ordering("the penalty helps cross-entropy at 100 : 1", strong, CE, column=Column(ratio=100)),
                    Ordering("the penalty helps PAL at 100 : 1", ours, PAL, column=Column(ratio=100)),
                    Ordering(
                        "the penalty helps cross-entropy in most cases", strong, CE, cases=_pairs("ce", CE_PENALTIES)
                    ),
                    Ordering("the penalty helps PAL in most cases", ours, PAL, cases=_pairs("pal", PAL_PENALTIES)),
                ),
                note='The paper calls the row PAL "UL", for unhinged loss.',
            ),
            Study(
                f"imbalanced-{data}",
                f"tab:imbalanced-cifar-{number}",
                "Cross-entropy over penalties, long-tailed and step imbalance",
                "table",
                partial(_imbalanced, data),
                ("accuracy", "training.accuracy"),
                (
                    Ordering("the penalty helps", strong, CE),
                    Ordering(
                        "the penalty helps, on average over kinds of imbalance",
                        strong,
                        CE,
                        averaged=True,
                        asked="after three seeds",
                    ),
                    Ordering("the penalty helps in most cases", strong, CE, cases=_pairs("ce", CE_PENALTIES)),
                ),
            ),
            Study(
                f"reliability-{data}",
                f"fig:ece-lt-{data}",
                "Does a larger penalty bring confidence closer to accuracy under a long tail, and raise accuracy too?",
                "reliability",
                partial(_reliability, data),
                ("ece", "accuracy", "training.accuracy"),
                tuple(
                    ordering
                    for ratio in (100, 10)  # the paper has no diagram of balanced classes, and claims nothing of them
                    for ordering in (
                        Ordering(LOWERS, strong, CE, "ece", larger=False, column=Column(ratio=ratio)),
                        Ordering(RAISES, strong, CE, column=Column(ratio=ratio)),
                    )
                ),
                note="The caption names a ResNet-34; the paper's text, and so this, has the other tables' network. "
                "The balanced classes (ρ=1) are ours.",
            ),
        ]
    return made
