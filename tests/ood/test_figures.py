"""The picture has a panel for each score and every set in it."""

from __future__ import annotations

import itertools

import pytest
import torch

from unhinge.ood.figures import draw_scores


@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_one_panel_a_score_and_one_histogram_a_set(count):
    names = [f"score {number}" for number in range(count)]
    known = {name: torch.randn(50) for name in names}
    unknown = {data: {name: torch.randn(40) - 1 for name in names} for data in ("svhn", "noise")}
    figure = draw_scores(known, unknown, "a run")
    assert [axis.get_xlabel() for axis in figure.axes] == names
    assert all(len(axis.patches) == 3 for axis in figure.axes)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["known", "svhn", "noise"]


def test_one_stray_value_does_not_flatten_the_rest():
    values = torch.randn(1000)
    values[0] = 1e9
    figure = draw_scores({"norm": values}, {"svhn": {"norm": torch.randn(1000)}})
    low, high = figure.axes[0].get_xlim()
    assert high - low < 20


def test_huge_scores_that_hardly_differ_are_drawn():
    """As of a run that diverged: between them lie fewer numbers than bins."""
    scores = 1e22 + torch.tensor([0.0, 2.0**21], dtype=torch.float64)
    low, high = draw_scores({"norm": scores}, {"svhn": {"norm": scores}}).axes[0].get_xlim()
    assert low < 1e22 < high


@pytest.mark.parametrize(("middle", "spread"), [(-0.0012, 0.0004), (-12345.0, 3.0), (1000.0, 400.0)])
def test_the_numbers_below_a_panel_stand_apart(middle, spread):
    scores = {name: middle + spread * torch.linspace(-3, 3, 100, dtype=torch.float64) for name in "abcd"}
    figure = draw_scores(scores, {"svhn": scores})
    figure.canvas.draw()
    extents = [label.get_window_extent() for label in figure.axes[1].get_xticklabels()]
    assert all(left.x1 + 4 < right.x0 for left, right in itertools.pairwise(extents))
