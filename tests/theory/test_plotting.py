"""Every path and every problem can be drawn, and says in one line what it is."""

from __future__ import annotations

import pytest
import torch

from strategies import make_case
from unhinge import LayerPeeled, Spherical, cosine, summarize, warmup

CASE = make_case([3, 2, 2], bias=True, gamma=0.3, feature_decay=0.01)
PATHS = {
    "flow": (lambda: CASE.flow(), "LinearPath(flow, examples=7, classes=3, dim=3, growth=0.0298798, rate=-"),
    "descent": (lambda: CASE.descent(momentum=0.9), "LinearPath(descent, examples=7, classes=3, dim=3, growth="),
    "ending": (lambda: CASE.flow(lr=cosine(0.1, total=50)), "LinearPath(flow, examples=7, classes=3, dim=3)"),
    "unrelated": (
        lambda: CASE.descent(lr=(cosine(0.2, total=50, end=0.05), warmup(0.1, duration=3))),
        "LinearPath(descent, examples=7, classes=3, dim=3)",
    ),
    "anchored": (
        lambda: CASE.problem().anchored(CASE.features, CASE.weight, CASE.bias),
        "AnchoredPath(flow, examples=7, classes=3, dim=3, feature_decay=0.01)",
    ),
    "kernel": (
        lambda: LayerPeeled(CASE.target).kernel_flow(CASE.features, CASE.weight, torch.eye(7).double()),
        "KernelPath(flow, examples=7, classes=3, dim=3, modes=3)",
    ),
    "sphere": (
        lambda: Spherical(CASE.target, CASE.weight).descent(CASE.features, rescaled=True),
        "SphericalPath(rescaled descent, examples=7, classes=3, dim=3, feature_decay=0)",
    ),
    "oscillating": (
        lambda: make_case([2, 2], feature_decay=15.0, weight_decay=15.0).descent(),
        "LinearPath(descent, examples=4, classes=2, dim=3)",
    ),
}


@pytest.mark.parametrize(("make", "line"), PATHS.values(), ids=PATHS)
def test_a_path_says_what_it_is_in_one_line(make, line):
    assert repr(make()).startswith(line)
    assert len(repr(make())) < 120


@pytest.mark.parametrize(("make", "line"), PATHS.values(), ids=PATHS)
def test_a_path_can_be_drawn(make, line, tmp_path):
    path = make()
    figure = path.plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["distance to the direction", "norm", "loss", "accuracy"]
    loss = figure.axes[2].lines[0]
    times = torch.as_tensor(loss.get_xdata())
    assert times[0] == 0
    torch.testing.assert_close(torch.as_tensor(loss.get_ydata()), path.loss(times))
    figure.savefig(tmp_path / "path.png")
    assert torch.as_tensor(path.plot([3, 1, 2]).axes[2].lines[0].get_xdata()).tolist() == [1, 2, 3]
    assert torch.as_tensor(path.plot([]).axes[2].lines[0].get_xdata()).tolist() == []


def test_a_streamed_path_is_drawn_without_its_accuracy(tmp_path):
    summary = summarize([(CASE.features, CASE.target)], 3)
    path = LayerPeeled.from_summary(summary).flow(summary, CASE.weight)
    figure = path.plot()
    assert not figure.axes[3].lines
    assert "in memory" in figure.axes[3].texts[0].get_text()
    figure.savefig(tmp_path / "path.png")


def test_the_predicted_slope_is_the_rate():
    line = CASE.flow().plot().axes[0].lines[1]
    x, y = torch.as_tensor(line.get_xdata()), torch.as_tensor(line.get_ydata()).log()
    assert ((y[-1] - y[0]) / (x[-1] - x[0])).item() == pytest.approx(CASE.flow().rate().item())


def test_a_problem_can_be_drawn_and_says_what_it_is(tmp_path):
    problem = LayerPeeled([0, 0, 0, 1, 1, 2], feature_decay=0.04, weight_decay=0.01)
    figure = problem.plot()
    values = torch.as_tensor(figure.axes[0].lines[0].get_ydata())
    torch.testing.assert_close(values, problem.singular_values)
    assert figure.axes[0].lines[1].get_ydata()[0] == pytest.approx(0.02)
    figure.savefig(tmp_path / "modes.png")
    assert repr(problem).startswith("LayerPeeled(imbalanced, examples=6, num_classes=3, gamma=0.5, ")
    assert repr(Spherical([0, 1], torch.eye(2))).startswith("Spherical(examples=2, num_classes=2, dim=2, gamma=1")
