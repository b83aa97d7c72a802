"""What a study is said to cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhinge.nn.backbones import build_model, count_flops
from unhinge.paper.catalogue import list_studies
from unhinge.paper.studies.cost import FLOPS, ON_A_CORE, ON_A_GPU, Cost, cost_of
from unhinge.paper.studies.run import _planned
from unhinge.paper.studies.tables import STUDIES, train_images
from unhinge.training import Recipe, material_of


@pytest.mark.parametrize(("model", "size"), [("resnet18", 32), ("resnet34", 32), ("resnet50", 224)])
def test_the_operations_are_those_of_the_networks(model: str, size: int):
    assert count_flops(build_model(model, 100, 3, size), (1, 3, size, size)) == pytest.approx(FLOPS[model], rel=0.01)


@pytest.mark.parametrize("study", list_studies(), ids=lambda study: study.id)
@pytest.mark.parametrize("scale", ["quick", "small", "paper"])
def test_runs_are_the_distinct_ones_a_sweep_would_make(study, scale):
    names = {place.task.name for place in _planned(study, scale, None, Path("runs"), None)}
    assert cost_of(study, scale).runs == len(names)


def test_hours_count_every_image_of_every_epoch():
    study = STUDIES["behaviour-cifar10"]
    assert cost_of(study, "paper", seeds=1).hours == pytest.approx(
        9 * 3 * FLOPS["resnet18"] * 50_000 * 200 / ON_A_GPU / 3600
    )
    assert cost_of(study, "small").hours == pytest.approx(27 * 26 * 50_000 / ON_A_CORE["small"] / 3600)


def test_the_images_of_a_recipe_are_about_those_it_gets():
    for imbalance in (None, "exp:20", "step:10"):
        recipe = Recipe(imbalance=imbalance)
        assert train_images(recipe) == pytest.approx(len(material_of(recipe).train), rel=0.05)


@pytest.mark.parametrize(("hours", "text"), [(0.005, "18 s"), (0.5, "30 min"), (1.9, "114 min"), (7.2, "7 h")])
def test_times_read_well(hours: float, text: str):
    assert str(Cost(1, hours)) == text
