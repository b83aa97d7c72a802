"""Figures of a run: its curves over epochs, its reliability diagram, its scores on the unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unhinge.metrics import reliability_diagram, score_histogram
from unhinge.results.json import JsonRecord
from unhinge.results.look import COLORS, head_line, new_figure, styled
from unhinge.training.evaluation import Evaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_curves", "draw_evaluation"]

PANELS: tuple[tuple[str, bool, tuple[tuple[str, str], ...]], ...] = (
    ("training loss", False, (("train_loss", "loss"),)),
    ("accuracy", False, (("train_accuracy", "training, augmented"), ("test_accuracy", "test"))),
    ("mean feature norm", True, (("feature_norm", "|h|"),)),
    ("smallest prototype angle (degrees)", False, (("prototype_angle_min", "angle"),)),
    ("prototype norms", True, (("prototype_norm_ratio", "largest / smallest"), ("prototype_norm_min", "smallest"))),
    (
        "neural collapse on training images",
        True,
        (("nc1_ratio", "NC1, trace ratio"), ("nc2_angle_features", "NC2, angles"), ("nc3", "NC3"), ("nc4", "NC4")),
    ),
)

STYLES = ("-", "--", "-.", ":")  # of two curves that coincide, both are seen


def draw_curves(records: Sequence[JsonRecord], title: str) -> Figure:
    """Loss, accuracy, norms, angles and neural collapse over epochs."""
    with styled():
        figure = new_figure(10, 6.2)
        for axis, (name, log, lines) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
            for color, style, (key, label) in zip(COLORS, STYLES, lines, strict=False):
                points = [(r["epoch"], r[key]) for r in records if isinstance(r.get(key), (int, float))]
                if points:
                    axis.plot(*zip(*points, strict=True), color=color, ls=style, marker="o", ms=2.5, label=label)
            values = [value for line in axis.lines for value in line.get_ydata()]
            if log and values and min(values) > 0 and max(values) > 5 * min(values):
                axis.set_yscale("log")
            axis.set_title(name, loc="left")
            axis.set_xlabel("epoch")
            axis.xaxis.get_major_locator().set_params(integer=True)
            if len(lines) > 1 and axis.lines:
                axis.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.22))  # below: never on the curves
            if values and 0 < max(values) < (1 + 1e-6) * min(values):
                axis.set_ylim(0.5 * min(values), 1.5 * max(values))  # what does not move, without its rounding
        head_line(figure, title)
    return figure


def draw_evaluation(evaluation: Evaluation, title: str) -> Figure:
    """The reliability diagram, and a histogram of each score if there was an unknown set."""
    count = 1 + len(evaluation.scores)
    first_set = next(iter(evaluation.unknown), "unknown images")
    with styled():
        figure = new_figure(3.6 * count, 3.8)
        first, *others = figure.subplots(1, count, squeeze=False)[0]
        stated = evaluation.posterior or evaluation.reliability
        words = "softmax" if evaluation.posterior is None else "posterior"
        reliability_diagram(stated, first, f"reliability of the {words}")
        for axis, (name, (known, unknown)) in zip(others, evaluation.scores.items(), strict=True):
            score_histogram(known, unknown, axis, label=f"{name} score, against {first_set}")
        head_line(figure, title)
    return figure
