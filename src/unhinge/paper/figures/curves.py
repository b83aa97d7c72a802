"""Curves as rows: the long table a figure is drawn from, its summary, and both as CSV with exact floats."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from unhinge.paper.figures.registry import Check, Panel, Row
from unhinge.paper.figures.simulate import Curves, deviation, fitted_rate
from unhinge.results.tables import as_markdown, csv_text, write_csv

__all__ = [
    "agreement",
    "deviation_text",
    "deviations",
    "flow_spread",
    "largest_deviation",
    "level",
    "points",
    "rate_check",
    "read_rows",
    "slope",
    "slope_of",
    "summarize",
    "tabulate",
    "write_rows",
    "write_summary",
]

Summary = list[dict[str, str | float]]
HEADER = ("panel", "series", "kind", "step", "value", "error")


def tabulate(curves: Iterable[Curves], panels: Sequence[Panel], flow: bool = False) -> list[Row]:
    """The exact and the simulated points of every panel; a panel shows the measured quantity of its key."""
    rows = []
    for curve in curves:
        for panel in panels:
            name = curve.case.name
            rows += points(panel.key, name, "exact", curve.steps, curve.exact[panel.key])
            rows += points(panel.key, name, "sgd", curve.marks, curve.sgd[panel.key])
            if flow and curve.flow:
                rows += points(panel.key, name, "flow", curve.marks, curve.flow[panel.key])
    return rows


def points(panel: str, series: str, kind: str, steps: Sequence[float], values: Sequence[float]) -> list[Row]:
    """One line of a panel."""
    return [Row(panel, series, kind, float(step), value) for step, value in zip(steps, values, strict=True)]


def slope(
    panel: str, series: str, rate: float, steps: Sequence[float], values: Sequence[float], floor: float = 1e-12
) -> list[Row]:
    r"""The predicted :math:`e^{\text{rate}\cdot t}`, just above the curve, over its second half above `floor`."""
    usable = [(step, value) for step, value in zip(steps, values, strict=True) if value > floor]
    last, value = usable[-1]
    first = usable[len(usable) // 2][0]
    points = [first + (last - first) * i / 8 for i in range(9)]
    return [Row(panel, series, "slope", at, 1.25 * value * math.exp(rate * (at - last))) for at in points]


def slope_of(curve: Curves, key: str, rate: Tensor) -> list[Row]:
    """The :func:`slope` of one quantity of a curve, in the panel of that name."""
    return slope(key, curve.case.name, rate.item(), curve.steps, curve.exact[key])


def level(panel: str, name: str, value: float, last: float) -> list[Row]:
    """A predicted constant, up to step `last`."""
    return [Row(panel, name, "level", step, value) for step in (0.0, float(last))]


def summarize(curves: Iterable[Curves], panels: Sequence[Panel]) -> Summary:
    """Per panel and series: the largest deviation of the simulation from the exact path, and from gradient flow.

    Relative, except for accuracies, which are shares already.
    """
    summary: Summary = []
    for curve in curves:
        for panel in panels:
            relative = panel.key != "accuracy"
            entry: dict[str, str | float] = {"panel": panel.key, "series": curve.case.name}
            entry["steps_simulated"] = curve.marks[-1]
            entry["largest_deviation"] = deviation(curve.sgd[panel.key], curve.at_marks[panel.key], relative)
            entry["largest_deviation_from_flow"] = (
                deviation(curve.sgd[panel.key], curve.flow[panel.key], relative) if curve.flow else ""
            )
            summary.append(entry)
    return summary


def largest_deviation(summary: Summary) -> float:
    """The largest `largest_deviation` of a summary."""
    return max(float(entry["largest_deviation"]) for entry in summary if entry.get("largest_deviation", "") != "")


def deviations(summary: Summary) -> dict[str, str]:
    """What each panel prints of its largest deviation, by the panel's key.

    Where the markers are means over runs, chance is the measure: then the deviation is in standard errors.
    """
    panels = dict.fromkeys(str(entry["panel"]) for entry in summary)
    return {key: deviation_text([entry for entry in summary if entry["panel"] == key]) for key in panels}


def deviation_text(summary: Summary) -> str:
    """The largest deviation of a summary, with its unit.

    Example:
        >>> deviation_text([{"panel": "loss", "largest_deviation": 3e-15}])
        '3.0e-15'
    """
    if any("standard_errors" in entry for entry in summary):
        worst = max(float(entry.get("standard_errors", 0.0)) for entry in summary)
        return f"{worst:.1f} standard errors"
    worst = largest_deviation(summary)
    units = {str(entry["unit"]) for entry in summary if "unit" in entry}
    return (f"{worst:.1e}" if worst else "0") + "".join(f" {unit}" for unit in units)


def agreement(summary: Summary) -> Check:
    """That simulated SGD stays on the exact curve in every panel."""
    worst = largest_deviation(summary)
    flows = [float(e["largest_deviation_from_flow"]) for e in summary if e.get("largest_deviation_from_flow", "") != ""]
    beside = f"; gradient flow is off by {max(flows):.2g}" if flows else ""
    words = "simulated SGD lies on the exact curve in every panel"
    return Check(words, worst < 1e-6, f"off by {worst:.2g}{beside}")


def flow_spread(curves: Sequence[Curves], key: str) -> float:
    """The largest relative difference between the curves of gradient flow."""
    columns = zip(*(curve.flow[key] for curve in curves), strict=True)
    return max((max(column) - min(column)) / max(column) for column in columns)


def rate_check(curve: Curves, key: str, rate: Tensor, tolerance: float) -> Check:
    """That the curve falls (or grows) at the predicted rate over the last quarter shown.

    The simulation may end earlier; its own last rate is given beside.
    """
    predicted = rate.item()
    measured, simulated = fitted_rate(curve.steps, curve.exact[key]), fitted_rate(curve.marks, curve.sgd[key])
    return Check(
        f"{curve.case.name}: {key.replace('_', ' ')} follows exp({predicted:.4g} step)",
        abs(measured / predicted - 1) < tolerance,
        f"exponent {measured:.4g} on the exact curve, {simulated:.4g} in the simulation",
    )


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """CSV with every float written as Python's shortest exact form, so that it reads back to the same bits."""
    cells = ((row.panel, row.series, row.kind, row.step, row.value, row.error) for row in rows)
    path.write_text(csv_text(HEADER, cells), encoding="utf-8")


def read_rows(path: Path) -> list[Row]:
    """What :func:`write_rows` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Row(
                entry["panel"],
                entry["series"],
                entry["kind"],
                float(entry["step"]),
                float(entry["value"]),
                float(entry["error"]) if entry["error"] else None,
            )
            for entry in csv.DictReader(file)
        ]


def write_summary(summary: Summary, path: Path) -> None:
    """The summary as CSV, and beside it as a Markdown table."""
    write_csv(path, summary)
    path.with_suffix(".md").write_text(as_markdown(summary, digits=3) + "\n", encoding="utf-8")
