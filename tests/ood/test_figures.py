"""The picture has a panel for each score and every set in it."""

from __future__ import annotations

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
