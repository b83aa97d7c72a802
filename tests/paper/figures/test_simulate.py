"""The simulation is written from the definition of the loss, and scales keep the shape of the curves."""

from __future__ import annotations

import pytest
import torch

from unhinge.paper.figures.curves import read_rows, write_rows
from unhinge.paper.figures.registry import Row
from unhinge.paper.figures.scale import PAPER, QUICK
from unhinge.paper.figures.simulate import anchored_loss, deviation, free_loss, grid


def _start():
    generator = torch.Generator().manual_seed(3)
    target = torch.tensor([0, 1, 1, 2, 2, 2])
    features = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    return features, weight, target


def _by_definition(features, weight, labels, gamma, example_weight):
    logits = features @ weight.T
    losses = -(1 + gamma) * (labels * logits).sum(1) + gamma * logits.sum(1)
    return (example_weight * losses).sum() / example_weight.sum()


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.5])
def test_the_grouped_loss_is_the_mean_unhinged_loss(gamma):
    features, weight, target = _start()
    labels = torch.nn.functional.one_hot(target, 3).double()
    ones = torch.ones(6, dtype=torch.float64)
    expected = _by_definition(features, weight, labels, gamma, ones)
    torch.testing.assert_close(free_loss(features, weight, target, gamma), expected, rtol=1e-14, atol=1e-14)


def test_class_weights_and_noise_enter_the_mean():
    features, weight, target = _start()
    class_weight = torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)
    noise = torch.full((3, 3), 0.1, dtype=torch.float64) + 0.7 * torch.eye(3, dtype=torch.float64)
    expected = _by_definition(features, weight, noise[target], 0.5, class_weight[target])
    actual = free_loss(features, weight, target, 0.5, class_weight, noise)
    torch.testing.assert_close(actual, expected, rtol=1e-14, atol=1e-14)


def test_the_anchored_loss_is_the_same_for_fixed_prototypes():
    features, weight, target = _start()
    pull = (1.5 * weight[target] - 0.5 * weight.sum(0)) / 6
    torch.testing.assert_close(anchored_loss(features, pull), free_loss(features, weight, target, 0.5))


def test_scales_keep_the_number_of_e_foldings():
    for steps in (5_000, 20_000):
        assert QUICK.steps(steps) * QUICK.critical() == pytest.approx(steps * PAPER.critical(), rel=2e-3)
    assert PAPER.steps(20_000) == 20_000
    assert PAPER.gamma(0.05) == 0.05
    assert QUICK.gamma(0.05) > 2 / (QUICK.num_classes - 2)


def test_a_grid_has_both_ends():
    assert grid(1000, 11)[0] == 0
    assert grid(1000, 11)[-1] == 1000
    assert grid(1000, 11, log=True)[0] == 1


def test_a_deviation_is_relative_and_leaves_out_what_rounding_decides():
    assert deviation([1.1, 2.0], [1.0, 2.0]) == pytest.approx(0.1)
    assert deviation([1.0, 2e-13], [1.0, 1e-13]) == 0
    assert deviation([0.5], [0.25], relative=False) == 0.25


def test_rows_come_back_to_the_same_bits(tmp_path):
    rows = [Row("a", "gamma=1/(C-1)", "exact", 3.0, 1 / 3), Row("b", "x, y", "sgd", 0.1, 5e-324, 0.1)]
    write_rows(rows, tmp_path / "data.csv")
    assert read_rows(tmp_path / "data.csv") == rows
