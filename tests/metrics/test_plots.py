"""Figures show the numbers they are given."""

from __future__ import annotations

import io

import pytest
import torch
from matplotlib.figure import Figure

from unhinge.metrics import (
    Reliability,
    classwise_reliability,
    reliability,
    reliability_diagram,
    score_histogram,
    strength_curve,
    strength_plot,
)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: reliability_diagram(reliability(torch.randn(50, 3).softmax(1), torch.randint(3, (50,)))),
        lambda: score_histogram(torch.randn(50), torch.randn(50)),
        lambda: strength_plot(strength_curve(torch.randn(50, 3), torch.randint(3, (50,)), torch.tensor([5, 3, 2]))),
    ],
    ids=["reliability", "scores", "strength"],
)
def test_the_legend_lies_outside_of_the_axes(draw):
    axes = draw()
    axes.figure.canvas.draw()
    legend = axes.get_legend()
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_bars_stand_at_the_accuracy_and_end_at_the_confidence():
    p = torch.randn(200, 3).mul(2).softmax(1)
    bins = reliability(p, torch.randint(3, (200,)), bins=10)
    axes = reliability_diagram(bins, title="a network")
    filled = bins.counts > 0
    accuracy, gaps = axes.containers
    assert [bar.get_height() for bar in accuracy] == pytest.approx(bins.accuracy[filled].tolist())
    tops = [bar.get_y() + bar.get_height() for bar in gaps]
    assert tops == pytest.approx(bins.confidence[filled].tolist())
    assert [bar.get_x() for bar in accuracy] == pytest.approx(bins.edges[:-1][filled].tolist())
    assert axes.get_title(loc="left") == f"a network\nECE {100 * bins.error:.2f} %, n = 200"
    axes.figure.savefig(io.BytesIO(), format="png")


def test_a_diagram_goes_on_the_axes_it_is_given():
    axes = Figure().subplots()
    bins = reliability(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    assert reliability_diagram(bins, axes) is axes
    assert score_histogram([1.0, 2.0], [0.0], axes) is axes


def test_a_diagram_shows_one_set_of_bins():
    p, y = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="one set of bins"):
        reliability_diagram(classwise_reliability(p, y))
    with pytest.raises(ValueError, match="no predictions"):
        reliability_diagram(Reliability.empty())


def test_histograms_are_densities_over_common_bins():
    inside, outside = torch.randn(300) + 2, torch.randn(100)
    axes = score_histogram(inside, outside, bins=20, label="energy")
    first, second = axes.containers
    assert [bar.get_x() for bar in first] == pytest.approx([bar.get_x() for bar in second])
    for bars in (first, second):
        assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(1.0)
    assert "FPR95" in axes.get_title(loc="left")
    assert axes.get_xlabel() == "energy"


def test_huge_scores_that_hardly_differ_are_drawn():
    """As of a run that diverged: between them lie fewer numbers than bins."""
    scores = 1e22 + torch.tensor([0.0, 2.0**21], dtype=torch.float64)
    for bars in score_histogram(scores, scores.flip(0), bins=60).containers:
        assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(1.0)
