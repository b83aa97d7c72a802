"""What a study costs at each scale, before anything is run."""

from __future__ import annotations

from dataclasses import dataclass

from unhinge.paper.studies.study import Study
from unhinge.training.recipe import Recipe
from unhinge.training.recipes import train_images

__all__ = ["Cost", "cost_of", "flops_of"]

# Operations of a forward pass per image by (model, width, pixels), as nn.backbones.count_flops counts them.
FLOPS = {
    ("convnet", 16, 8): 3.15e5,
    ("glyphnet", 16, 24): 2.19e6,
    ("resnet18", 16, 14): 1.54e7,
    ("resnet18", 16, 16): 1.75e7,
    ("resnet18", 16, 112): 7.17e7,
    ("resnet18", None, 28): 9.14e8,
    ("resnet18", None, 32): 1.11e9,
    ("resnet34", None, 32): 2.32e9,
    ("resnet50", None, 224): 8.17e9,
}
PIXELS = {"digits": 8, "glyphs": 24, "fashion-mnist": 28, "cifar10": 32, "cifar100": 32, "imagenet100": 224}
TEST_IMAGES = {"digits": 360, "glyphs": 3 * 2231, "imagenet100": 5_000} | dict.fromkeys(
    ("fashion-mnist", "cifar10", "cifar100"), 10_000
)
# Operations per second: of one core in training, by network, and of a GPU; a backward pass counts as two forward ones.
ON_A_CORE = {"convnet": 8.0e9, "glyphnet": 4.0e10, "resnet18": 7.0e10}
ON_A_GPU = 1e13


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


def cost_of(study: Study, scale: str) -> Cost:
    """What all cells of a study cost, as if none of its runs were there.

    Example:
        >>> from unhinge.paper.studies.registry import STUDIES
        >>> cost_of(STUDIES["beyond-factors"], "small").runs
        60
    """
    distinct: dict[tuple[Recipe, str | None], int] = {}
    for cell in study.cells(scale):
        distinct[cell.recipe, cell.ood] = max(study.seeds_of(cell, scale), distinct.get((cell.recipe, cell.ood), 0))
    hours = sum(number * _seconds(recipe, scale) for (recipe, _), number in distinct.items()) / 3600
    return Cost(sum(distinct.values()), hours)


def flops_of(recipe: Recipe) -> float:
    """Operations of a forward pass of one image, at the size it is shown in."""
    return FLOPS[recipe.model, recipe.width, PIXELS[recipe.data] // recipe.shrink]


def _seconds(recipe: Recipe, scale: str) -> float:
    measured = -(-recipe.epochs // recipe.measure_every) * TEST_IMAGES[recipe.data]
    passes = 3 * train_images(recipe) * recipe.epochs + measured
    return flops_of(recipe) * passes / (ON_A_GPU if scale == "paper" else ON_A_CORE[recipe.model])
