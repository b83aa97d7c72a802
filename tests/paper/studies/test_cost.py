"""What a study is said to cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhinge.nn.backbones import build_model, count_flops
from unhinge.paper.catalogue import list_studies
from unhinge.paper.studies.cost import FLOPS, ON_A_CORE, ON_A_GPU, Cost, cost_of, flops_of
from unhinge.paper.studies.registry import STUDIES
from unhinge.paper.studies.run import planned


@pytest.mark.parametrize(("model", "width", "size"), FLOPS)
def test_the_operations_are_those_of_the_networks(model: str, width: int | None, size: int):
    channels = 1 if model in ("convnet", "glyphnet") else 3
    network = build_model(model, 10 if channels == 1 else 100, channels, size, width=width)
    wanted = FLOPS[model, width, size]
    assert count_flops(network, (1, channels, size, size)) == pytest.approx(wanted, rel=0.01)


def test_larger_images_cost_what_they_cost():
    cifar, imagenet = (STUDIES[f"behaviour-{data}"].cells("small")[0].recipe for data in ("cifar100", "imagenet100"))
    assert flops_of(imagenet) > 4 * flops_of(cifar)


@pytest.mark.parametrize("study", list_studies(), ids=lambda study: study.id)
@pytest.mark.parametrize("scale", ["quick", "small", "paper"])
def test_runs_are_the_distinct_ones_a_sweep_would_make(study, scale):
    names = {place.task.name for place in planned(study, scale, None, Path("runs"), None)}
    assert cost_of(study, scale).runs == len(names)


def test_hours_count_every_image_of_every_epoch():
    study = STUDIES["behaviour-cifar10"]
    images, tests = 200 * 50_000, 200 * 10_000
    wanted = 12 * (3 * images + tests) * FLOPS["resnet18", None, 32] / ON_A_GPU / 3600
    assert cost_of(study, "paper").hours == pytest.approx(wanted)
    images, tests = 50 * 5_000, 10 * 10_000
    wanted = 12 * (3 * images + tests) * FLOPS["resnet18", 16, 16] / ON_A_CORE["resnet18"] / 3600
    assert cost_of(study, "small").hours == pytest.approx(wanted)


def test_a_cell_that_no_ordering_asks_about_has_one_seed():
    study = STUDIES["beyond-long-tailed"]
    seeds = {(cell.row, cell.column): study.seeds_of(cell, "small") for cell in study.cells("small")}
    first, other = "long-tailed, ρ=100", "step, ρ=10"
    assert seeds["PAL", other] == seeds["PAL, radius 10", other] == 3  # of orderings over all columns
    assert seeds["FNPAL", first] == 3
    assert seeds["FNPAL", other] == 1
    cases = STUDIES["long-tailed-cifar10"]
    assert {cases.seeds_of(cell, "small") for cell in cases.cells("small")} == {3}


@pytest.mark.parametrize(("hours", "text"), [(0.005, "18 s"), (0.5, "30 min"), (1.9, "114 min"), (7.2, "7 h")])
def test_times_read_well(hours: float, text: str):
    assert str(Cost(1, hours)) == text
