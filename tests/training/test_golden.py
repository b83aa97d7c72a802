"""The first losses of tiny seeded runs, as they were when they were last looked at.

A change here is a change of what every recipe trains: of initial weights, order, augmentation, loss or step. Meant, it
is written anew by ``python tests/training/test_golden.py``.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from unhinge.training import Material, Recipe, fit, material_of

FILE = Path(__file__).parents[1] / "golden" / "first_losses.txt"
TINY = Recipe(width=8, epochs=2, batch=256, lr=0.05)
RECIPES = {
    "ce": TINY,
    "ce-sqrt-smooth": replace(TINY, class_weight=0.5, imbalance="exp:10", label_smoothing=0.1),
    "ce-adjusted-noise": replace(TINY, logit_adjustment=1.0, imbalance="step:5", label_noise=0.2),
    "unhinged": replace(TINY, loss="unhinged"),
    "pal-radius": replace(TINY, loss="unhinged", head="pal", radius=5.0),
    "fnpal-rescale": replace(TINY, loss="unhinged", head="fnpal", rescale=True),
    "adjusted-penalty": replace(TINY, loss="adjusted", head="fnpal", feature_penalty=1e-4),
    "hinge-etf": replace(TINY, loss="hinge", head="etf-init"),
    "mse-resnet8": replace(TINY, loss="mse", model="resnet8", width=4),
}


def losses(recipe: Recipe, folder: Path) -> list[float]:
    whole = material_of(recipe)
    part = Material(whole.train, whole.test.subset(whole.test.labels.new_tensor([0, 1, 2])), whole.kept)
    return [record["train_loss"] for record in fit(recipe, folder, material=part).records]


def stored() -> dict[str, list[float]]:
    lines = (line.split() for line in FILE.read_text().splitlines() if not line.startswith("#"))
    return {name: [float(value) for value in values] for name, *values in lines}


def test_every_recipe_here_has_its_line():
    assert list(stored()) == list(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_the_first_losses_are_what_they_were(tmp_path, name):
    """To 3 digits: sums in another order (one thread or two) move the fourth after a dozen steps, in the worst case."""
    assert losses(RECIPES[name], tmp_path) == pytest.approx(stored()[name], rel=2e-3, abs=1e-4)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        rows = {name: losses(recipe, Path(folder) / name) for name, recipe in RECIPES.items()}
    text = "".join(f"{name} {' '.join(f'{value:.7g}' for value in values)}\n" for name, values in rows.items())
    FILE.write_text("# mean training loss of the first epochs; see tests/training/test_golden.py\n" + text)
