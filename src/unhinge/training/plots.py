"""Figures of a run: its curves over epochs, its reliability diagram, its scores on the unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from unhinge.metrics import reliability_diagram, score_histogram
from unhinge.results.json import JsonRecord
from unhinge.results.look import COLORS, head_line, new_figure, styled
from unhinge.training.evaluation import Evaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_curves", "draw_evaluation"]

Panel: TypeAlias = tuple[str, bool, tuple[tuple[str, str], ...]]  # title, logarithmic or not, keys and their labels
PANELS: tuple[Panel, ...] = (
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
    """Loss, accuracy, norms, angles and neural collapse over epochs; of prototypes only where they move."""
    panels = _moving(records)
    columns = len(panels) // 2
    with styled():
        figure = new_figure(3.4 * columns, 6.2)
        for axis, (name, log, lines) in zip(figure.subplots(2, columns).flat, panels, strict=True):
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
        head_line(figure, title)
    return figure


def _moving(records: Sequence[JsonRecord]) -> list[Panel]:
    """All panels, without those of the prototypes where these are fixed: nothing but their rounding would move."""
    about = {key for _, _, lines in PANELS for key, _ in lines if key.startswith("prototype")}
    curves = [[r[key] for r in records if isinstance(r.get(key), (int, float))] for key in about]
    known = [curve for curve in curves if len(curve) > 1]
    fixed = bool(known) and all(0 < max(curve) < (1 + 1e-6) * min(curve) for curve in known)
    return [panel for panel in PANELS if not (fixed and panel[2][0][0] in about)]


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
