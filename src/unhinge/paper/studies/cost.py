"""What a study costs at each scale, before anything is run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unhinge.paper.studies.cell import Cell
from unhinge.paper.studies.study import Study
from unhinge.paper.studies.tables import NETWORKS, train_images

__all__ = ["Cost", "cost_of"]

# Images trained on per second, measurements included, on one core of the machine of benchmarks/results.
ON_A_CORE = {"quick": 5000.0, "small": 6500.0}
# Operations of a forward pass per image at the paper's sizes, as nn.backbones.count_flops counts them.
FLOPS = {"resnet18": 1.11e9, "resnet34": 2.32e9, "resnet50": 8.17e9}
ON_A_GPU = 1e13  # operations per second that a GPU sustains in training; backward counts as two forward passes


@dataclass(frozen=True)
class Cost:
    """Distinct trainings, and their hours on one core (on one GPU at the paper's scale), one after another."""

    runs: int
    hours: float

    def __str__(self) -> str:
        if self.hours < 1 / 60:
            return f"{3600 * self.hours:.0f} s"
        if self.hours < 2:
            return f"{60 * self.hours:.0f} min"
        return f"{self.hours:.0f} h"


def cost_of(study: Study, scale: str, seeds: int | None = None) -> Cost:
    """What all cells of a study cost, as if none of its runs were there.

    Example:
        >>> from unhinge.paper.studies.tables import STUDIES
        >>> cost = cost_of(STUDIES["beyond-long-tailed"], "small")
        >>> cost.runs, str(cost)
        (45, '2 h')
    """
    number = study.seeds[scale] if seeds is None else seeds
    distinct = {replace(cell, row="", column="", paper=()) for cell in study.cells(scale)}
    return Cost(number * len(distinct), number * sum(_seconds(cell, scale) for cell in distinct) / 3600)


def _seconds(cell: Cell, scale: str) -> float:
    recipe = cell.recipe
    images = train_images(recipe) * recipe.epochs
    if scale == "paper":
        return 3 * FLOPS[NETWORKS[recipe.data]] * images / ON_A_GPU
    return images / ON_A_CORE[scale]
