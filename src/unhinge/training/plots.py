"""Figures of a run: its curves over epochs, its reliability diagram, its scores on the unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unhinge.extras import needed_for
from unhinge.metrics import reliability_diagram, score_histogram
from unhinge.training.evaluate import Evaluation

__all__ = ["draw_curves", "draw_evaluation", "save"]

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
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


def draw_curves(records: Sequence[Mapping[str, Any]], title: str) -> Any:
    """Loss, accuracy, norms, angles and neural collapse over epochs."""
    with needed_for("a figure"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), layout="constrained")
    for axis, (name, log, lines) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        for color, (key, label) in zip(COLORS, lines, strict=False):
            points = [(r["epoch"], r[key]) for r in records if isinstance(r.get(key), (int, float))]
            if points:
                axis.plot(*zip(*points, strict=True), color=color, marker="o", ms=2.5, lw=1.3, label=label)
        values = [value for line in axis.lines for value in line.get_ydata()]
        if log and values and min(values) > 0 and max(values) > 5 * min(values):
            axis.set_yscale("log")
        axis.set_title(name, loc="left", fontsize=9)
        axis.set_xlabel("epoch", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(color="#DDDDDD", lw=0.5)
        axis.spines[["top", "right"]].set_visible(False)
        if len(lines) > 1 and axis.lines:
            axis.legend(frameon=False, fontsize=7.5)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def draw_evaluation(evaluation: Evaluation, title: str) -> Any:
    """The reliability diagram, and a histogram of each score if there was an unknown set."""
    with needed_for("a figure"):
        from matplotlib.figure import Figure

    count = 1 + len(evaluation.scores)
    figure = Figure(figsize=(3.6 * count, 3.8), layout="constrained")
    first, *others = figure.subplots(1, count, squeeze=False)[0]
    reliability_diagram(evaluation.reliability, first, "reliability")
    for axis, (name, (known, unknown)) in zip(others, evaluation.scores.items(), strict=True):
        score_histogram(known, unknown, axis, label=f"{name} score")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """`name`.png and `name`.pdf, without dates, so that the same figure is the same file."""
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    figure.savefig(paths[0], dpi=150, metadata={"Software": None})
    figure.savefig(paths[1], metadata={"CreationDate": None, "Producer": None, "Creator": None})
    return paths
