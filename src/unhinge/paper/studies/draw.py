"""Figures of trained networks: one way of drawing for each kind of study, in the look of the numerical figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from unhinge.metrics import Reliability, reliability_diagram
from unhinge.paper.studies.paired import mean_and_spread
from unhinge.paper.studies.study import StudyResult
from unhinge.results.json import JsonRecord
from unhinge.results.look import COLORS, MARKERS, PlotOptions, head_line, new_figure, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_study"]

OF_KIND = {"ce": COLORS[0], "pal": COLORS[1], "fnpal": COLORS[2]}  # one color for all variants of a method
UNFITTED = "not every class of the training images is fitted."
SCORED = {"softmax": "log-odds of the largest probability", "energy": "energy score", "norm": "norm of the features"}
NAMED = {
    "accuracy": "test accuracy",
    "training.accuracy": "training accuracy",
    "rare_training_accuracy": "training accuracy, rarer half",
}


def draw_study(result: StudyResult, folder: Path) -> None:
    """figure.png and figure.pdf of a study, from what is measured so far."""
    with styled():
        begun = result.begun()
        figure = DRAWN[result.study.kind](begun)
        few = len(begun.columns) == 1 < len(result.columns)
        head = f"{result.study.claim} (so far one of {len(result.columns)} columns)" if few else result.study.claim
        lines = textwrap.wrap(head, int(11 * figure.get_figwidth()))
        figure.set_figheight(figure.get_figheight() + 0.2 * (len(lines) - 1))
        head_line(figure, "\n".join(lines))
        save(figure, folder)


def _figure(columns: int, rows: int = 1, width: float = 3.3, height: float = 2.7) -> tuple[Figure, np.ndarray]:
    figure = new_figure(width * columns, height * rows + 0.6)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _footnote(figure: Figure, result: StudyResult, more: str = "", spread: str = "bars") -> None:
    """Scale, data and seeds; `spread`: what shows their standard deviation, if anything does."""
    done = len(result.measured)
    part = "" if done == result.wanted else f" {done} of {result.wanted} runs so far."
    data = ", ".join(dict.fromkeys(cell.recipe.data for cell in result.cells))
    counts = {len(runs) for cell in result.cells if (runs := result.of(cell.row, cell.column))} or {0}
    few, most = min(counts), max(counts)
    seeds = "1 seed" if most == 1 else f"{most} seeds" if few == most else f"{few} to {most} seeds"
    shown = f"; {spread}: standard deviation over seeds" if most > 1 and spread else ""
    text = f"Scale {result.scale} ({data}), {seeds}{shown}.{part}{more}"
    stops = [str(run["stopped"]) for run in result.measured.values() if run.get("stopped")]
    if stops:
        text += f" {len(stops)} of {done} runs stopped ({stops[0]})."
    lines = textwrap.wrap(text, int(16 * figure.get_figwidth()))
    figure.set_figheight(figure.get_figheight() + 0.15 * (len(lines) - 1))
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=8, color="#333333")


# ---- tables ---------------------------------------------------------------------------------------------------------


def _dots(result: StudyResult) -> Figure:
    """A table as dots: a row of the table is a line of dots, with the paper's number as a cross where there is one."""
    columns = result.columns
    wide = len(columns) if len(columns) < 6 else 4
    width = {1: 6.2, 5: 2.3}.get(len(columns), 2.9)
    figure, axes = _figure(wide, -(-len(columns) // wide), width, 0.32 * len(result.rows) + 0.9)
    for axis, column in zip(axes.flat, columns, strict=False):
        _dots_of(axis, result, column, result.study.quantities[0], axis in axes[:, 0])
        axis.set_title(textwrap.fill(column, int(9.5 * width)), loc="left")
    shown = list(axes.flat)[: len(columns)]
    ranges = [axis.get_xlim() for axis in shown]
    widest = max(2.0, *(high - low for low, high in ranges))
    for axis, (low, high) in zip(shown, ranges, strict=True):  # a point is as wide in every panel
        axis.set_xlim((low + high - widest) / 2, (low + high + widest) / 2)
    for axis in list(axes.flat)[len(columns) :]:
        axis.set_axis_off()
    _footnote(figure, result, _unfitted(result, "Hollow"))
    return figure


def _fit(result: StudyResult) -> Figure:
    """The first three quantities one above the other, so that one sees with what a test accuracy goes together."""
    shown = result.study.quantities[:3]
    figure, axes = _figure(len(result.columns), len(shown), 2.7, 0.3 * len(result.rows) + 0.8)
    for line, quantity in zip(axes, shown, strict=True):
        for axis, column in zip(line, result.columns, strict=True):
            _dots_of(axis, result, column, quantity, axis is line[0])
            if quantity == shown[0]:
                axis.set_title(column, loc="left")
        seen = [100 * value for cell in result.cells for value in result.values(cell.row, cell.column, quantity)]
        if seen:  # one axis for all columns: they are to be compared
            room = 0.06 * (max(seen) - min(seen)) + 0.5
            for axis in line:
                axis.set_xlim(min(seen) - room, max(seen) + room)
    _footnote(figure, result, _unfitted(result, "Hollow"))
    return figure


def _unfitted(result: StudyResult, mark: str) -> str:
    """What a mark of networks out of the regime means, if there is one."""
    drawn = [(cell.row, cell.column) for cell in result.cells if result.of(cell.row, cell.column)]
    return "" if all(result.interpolated(*place) for place in drawn) else f" {mark}: {UNFITTED}"


def _dots_of(axis: Axes, result: StudyResult, column: str, quantity: str, named: bool) -> None:
    names = result.rows[::-1]
    for height, row in enumerate(names):
        cell = result.cell(row, column)
        if cell is None:
            continue
        mean, spread = mean_and_spread(result.values(row, column, quantity))
        if not math.isnan(mean):
            look: PlotOptions = {"color": OF_KIND.get(cell.method.kind, COLORS[3]), "marker": "o", "lw": 1.2}
            look["capsize"] = 0 if math.isnan(spread) else 2
            look["ms"] = 3 if math.isnan(spread) else 5  # one seed: no bar, and the least certain
            look["fillstyle"] = "full" if result.interpolated(row, column) else "none"
            axis.errorbar(100 * mean, height, xerr=0.0 if math.isnan(spread) else 100 * spread, **look)
        elif runs := result.of(row, column):  # trained, but stopped before there was a number
            halfway = axis.get_yaxis_transform()
            axis.text(0.5, height, f"{len(runs)} stopped", transform=halfway, ha="center", va="center", fontsize=7)
        paper = dict(cell.paper).get(quantity)
        if paper is not None and result.scale == "paper":
            axis.plot(paper, height, color="#000000", marker="x", ms=5, ls="")
    axis.set_yticks(range(len(names)), names if named else [""] * len(names), fontsize=8)
    axis.set_xlabel(f"{NAMED.get(quantity, quantity.replace('_', ' '))} (%)")
    axis.set_ylim(-0.6, len(names) - 0.4)
    axis.locator_params(axis="x", nbins=4)


def _lines(result: StudyResult) -> Figure:
    """Accuracy over the number of steps, one line for each method; dots while there is one number of steps only."""
    if len(result.columns) == 1:
        return _dots(result)
    figure, axes = _figure(1, 1, 6.2, 3.8)
    axis = axes[0, 0]
    steps = {cell.column: cell.place.steps or 0 for cell in result.cells}
    for index, row in enumerate(result.rows):
        points = [
            (steps[column], *mean_and_spread(result.values(row, column, "accuracy")))
            for column in result.columns
            if result.values(row, column, "accuracy")
        ]
        if points:
            x, mean, spread = (list(values) for values in zip(*points, strict=True))
            bars = [0.0 if math.isnan(share) else 100 * share for share in spread]
            look = {"color": COLORS[index % 7], "marker": MARKERS[index % 7], "ms": 5, "capsize": 2}
            axis.errorbar(x, [100 * share for share in mean], yerr=bars, label=row, **look)
    axis.set(xscale="log", xlabel="steps of training", ylabel="test accuracy (%)")
    axis.set_xticks(sorted(steps.values()), [f"{n:,}" for n in sorted(steps.values())])
    axis.minorticks_off()
    axis.legend(frameon=False)
    _footnote(figure, result)
    return figure


# ---- curves ---------------------------------------------------------------------------------------------------------


def _band(
    axis: Axes, runs: Sequence[JsonRecord], key: str, color: str, label: str, factor: float, style: str = "-"
) -> None:
    """The mean over seeds, and its spread, of a curve over epochs."""
    curves = [[v if isinstance(v, (int, float)) else math.nan for v in run["curves"][key]] for run in runs]
    if not curves:
        return
    table = factor * torch.tensor([curve[: min(map(len, curves))] for curve in curves], dtype=torch.float64)
    known = ~table.isnan().any(0)  # test images are not looked at after every epoch
    table, epochs = table[:, known], 1 + known.nonzero().squeeze(1)
    mean = table.mean(0)
    axis.plot(epochs, mean, color=color, label=label, ls=style)
    if len(table) > 1:
        spread = table.std(0)
        axis.fill_between(epochs, mean - spread, mean + spread, color=color, alpha=0.18, lw=0)


def _curves(result: StudyResult) -> Figure:
    """Test accuracy over epochs, and its last quarter again."""
    column = result.columns[0]
    figure, axes = _figure(2, 1, 4.6, 3.4)
    whole, end = axes[0]
    variants: dict[str, int] = {}  # drawn so far, of each kind of method
    for row in result.rows:
        cell = result.cell(row, column)
        assert cell is not None
        kind = cell.method.kind
        style = ("-", "--", ":", "-.")[variants.setdefault(kind, 0) % 4]
        variants[kind] += 1
        label = row if result.interpolated(row, column) else f"{row} †"
        for axis in (whole, end):
            _band(axis, result.of(row, column), "test_accuracy", OF_KIND.get(kind, COLORS[3]), label, 100.0, style)
    _zoom_to_end(end, whole)
    whole.set_title(f"{column}: test accuracy", loc="left")
    end.set_title("the last quarter", loc="left")
    for axis in (whole, end):
        axis.set(xlabel="epoch", ylabel="test accuracy (%)")
    whole.legend(frameon=False, fontsize=7.5)
    _footnote(figure, result, _unfitted(result, "†"), spread="bands")
    return figure


def _rates(result: StudyResult) -> Figure:
    """Test accuracy over the rate, and over epochs at the rate that was best for each method."""
    figure, axes = _figure(2, 1, 4.6, 3.4)
    ends, way = axes[0]
    for index, row in enumerate(result.rows):
        color, marker = COLORS[index % 7], MARKERS[index % 7]
        points = {
            cell.column: (cell.place.lr, *mean_and_spread(result.values(row, cell.column, "accuracy")))
            for cell in result.cells
            if cell.row == row and cell.place.lr is not None and result.values(row, cell.column, "accuracy")
        }
        if not points:
            continue
        rates, means, spreads = zip(*points.values(), strict=True)
        look: PlotOptions = {"color": color, "marker": marker, "ms": 5, "capsize": 2, "label": row}
        bars = [0.0 if math.isnan(spread) else 100 * spread for spread in spreads]
        ends.errorbar(rates, [100 * mean for mean in means], yerr=bars, **look)
        best = max(points, key=lambda column: points[column][1])
        _band(way, result.of(row, best), "test_accuracy", color, f"{row}, lr {points[best][0]:g}", 100.0)
    ends.set(xscale="log", xlabel="learning rate", ylabel="test accuracy (%)")
    known = sorted({cell.place.lr for cell in result.cells if cell.place.lr is not None})
    ends.set_xticks(known, [f"{rate:g}" for rate in known])
    ends.minorticks_off()
    ends.set_title("at the end", loc="left")
    way.set(xlabel="epoch")
    way.set_title("on the way, at the best rate", loc="left")
    for axis in (ends, way):
        handles, labels = axis.get_legend_handles_labels()
        axis.legend(handles, labels, frameon=False, fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    _footnote(figure, result, spread="bars and bands")
    return figure


def _zoom_to_end(end: Axes, whole: Axes) -> None:
    last = max((np.asarray(line.get_xdata())[-1] for line in whole.lines), default=1)
    first = last - max(1, last // 4)
    drawn = [np.asarray(line.get_data()).T for line in end.lines]
    drawn += [np.asarray(path.vertices) for band in end.collections for path in band.get_paths()]
    points = ((float(x), float(y)) for curve in drawn for x, y in curve)
    seen = [y for x, y in points if x >= first and not math.isnan(y)]
    if seen:
        room = 0.08 * (max(seen) - min(seen)) + 0.05
        end.set(xlim=(first, last), ylim=(min(seen) - room, max(seen) + room))


def _behaviour(result: StudyResult) -> Figure:
    """A line of panels for each method: feature norm, loss and accuracy, one curve for each decay."""
    kinds = (
        ("feature_norm", "feature norm", 1.0),
        ("train_loss", "training loss", 1.0),
        ("test_accuracy", "test accuracy (%)", 100.0),
        ("train_accuracy", "training accuracy (%)", 100.0),
    )
    figure, axes = _figure(4, len(result.rows), 3.0, 2.3)
    for line, row in zip(axes, result.rows, strict=True):
        for axis, (key, name, factor) in zip(line, kinds, strict=True):
            own = [column for column in result.columns if result.cell(row, column) is not None]
            for color, column in zip(COLORS, own, strict=False):
                _band(axis, result.of(row, column), key, color, column, factor)
            axis.set_title(f"{row}: {name}", loc="left")
            axis.set_xlabel("epoch")
            low, high = axis.get_ylim()
            if key == "feature_norm" and high > 10 * max(low, 1e-9):
                axis.set_yscale("log")
        line[0].legend(frameon=False, fontsize=7.5)  # methods have coefficients of their own
    _footnote(figure, result, spread="bands")
    return figure


def _collapse(result: StudyResult) -> Figure:
    """Accuracy, feature norm, prototype norms and angle until the numbers end."""
    kinds = (
        ("train_accuracy", "training accuracy (%)", 100.0, False),
        ("feature_norm", "feature norm", 1.0, True),
        ("prototype_norm_ratio", "prototype norms, largest / smallest", 1.0, True),
        ("prototype_norm_min", "smallest prototype norm", 1.0, True),
        ("prototype_angle_min", "smallest angle (degrees)", 1.0, False),
    )
    figure, axes = _figure(5, 1, 2.7, 2.5)
    for axis, (key, name, factor, log) in zip(axes[0], kinds, strict=True):
        for color, column in zip(COLORS, result.columns, strict=False):
            _band(axis, result.of(result.rows[0], column), key, color, column, factor)
        axis.set_title(name, loc="left", fontsize=8)
        axis.set_xlabel("epoch")
        if log:
            axis.set_yscale("log")
    axes[0, 0].legend(frameon=False, fontsize=7.5)
    _footnote(figure, result, spread="bands")
    return figure


# ---- grids of diagrams ----------------------------------------------------------------------------------------------


def _reliability(result: StudyResult) -> Figure:
    """A diagram for each cell, over all seeds together: rows are ratios, columns are penalties."""
    figure, axes = _figure(len(result.rows), len(result.columns), 2.6, 2.6)
    for line, column in zip(axes, result.columns, strict=True):
        for axis, row in zip(line, result.rows, strict=True):
            runs = [run for run in result.of(row, column) if "reliability" in run]
            if not runs:
                axis.set_axis_off()
                continue
            parts = [{name: torch.tensor(values) for name, values in run["reliability"].items()} for run in runs]
            totals = {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}
            bins = Reliability(**totals)
            reliability_diagram(bins, axis, f"{row}, {column}")
            axis.legend(frameon=False, fontsize=6.5).set_visible(axis is axes[0, 0])
    _footnote(figure, result, " All seeds of a cell together.", spread="")
    return figure


def _histograms(result: StudyResult) -> Figure:
    """A histogram for each row and score, of the first seed, with the mean FPR95 over seeds."""
    scores = ("softmax", "energy", "norm")
    figure, axes = _figure(len(scores), len(result.rows), 3.0, 1.9)
    column = result.columns[0]
    for line, row in zip(axes, result.rows, strict=True):
        runs = [run for run in result.of(row, column) if run.get("histograms")]
        for axis, score in zip(line, scores, strict=True):
            if not runs:
                axis.set_axis_off()
                continue
            shown = runs[0]["histograms"][score]
            low, high = shown["range"]
            width = (high - low) / len(shown["known"]) or 1.0
            left = [low + width * i for i in range(len(shown["known"]))]
            for key, color in zip(("known", "unknown"), COLORS, strict=False):
                total = sum(shown[key]) * width
                axis.bar(left, [n / total for n in shown[key]], width, align="edge", color=color, alpha=0.55, label=key)
            rate, _ = mean_and_spread(result.values(row, column, f"ood.{score}.fpr95"))
            # a linear axis would show one bar and nothing else
            peaked = max(shown["known"]) > 0.5 * sum(shown["known"])
            scale = " (log scale)" if peaked else ""
            axis.set_title(f"{row}, {score}{scale}: FPR95 {100 * rate:.1f} %", loc="left", fontsize=8)
            if row == result.rows[-1]:
                axis.set_xlabel(SCORED[score])
            if peaked:
                axis.set_yscale("log")
            axis.set_yticks([], minor=True)
            axis.set_yticks([])
    axes[0, 0].legend(frameon=False, fontsize=7.5)
    more = f" Known and unknown images: {column}. Histograms: the first seed; FPR95: the mean."
    _footnote(figure, result, more, spread="")
    return figure


DRAWN: Mapping[str, Callable[[StudyResult], Figure]] = {
    "table": _dots,
    "fit": _fit,
    "lines": _lines,
    "curves": _curves,
    "behaviour": _behaviour,
    "collapse": _collapse,
    "reliability": _reliability,
    "histograms": _histograms,
    "rates": _rates,
}
