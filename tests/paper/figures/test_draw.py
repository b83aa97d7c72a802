"""The key of a numerical figure tells what is drawn, and to which curve it belongs."""

from __future__ import annotations

from matplotlib.colors import rgb_to_hsv, to_rgb

from unhinge.paper.figures.draw import draw
from unhinge.paper.figures.registry import Panel, Row

PANEL = Panel("loss", "loss", "loss", yscale="linear")
ROWS = [
    *(Row("loss", "exactly", kind, step, 1.0) for kind in ("exact", "sgd", "slope", "level") for step in (0, 1)),
    *(Row("loss", "simulated", "sgd", step, 2.0) for step in (0, 1)),
]


def test_the_key_has_a_line_only_for_a_series_that_is_drawn_as_one():
    key = {handle.get_label(): handle.get_linestyle() for handle in draw(ROWS, [PANEL], "title").legends[0].get_lines()}
    assert key["exactly"] == "-"
    assert key["simulated"] == "None"


def test_a_prediction_has_the_hue_of_its_curve():
    lines = draw(ROWS, [PANEL], "title").axes[0].get_lines()
    hues = [rgb_to_hsv(to_rgb(line.get_color()))[0] for line in lines if line.get_ydata()[0] == 1.0]
    assert len(hues) == 4
    assert max(hues) - min(hues) < 1e-6


def test_an_inset_writes_its_steps_as_its_panel_does():
    rows = [Row("loss", "exactly", "exact", step, 1.0 + step) for step in range(0, 20_001, 1000)]
    figure = draw(rows, [Panel("loss", "loss", "loss", zoom=0.1)], "title")
    figure.canvas.draw()
    (inset,) = figure.axes[0].child_axes
    assert [label.get_text() for label in inset.get_xticklabels()][-1].endswith("k")
