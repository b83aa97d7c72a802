"""The evidence of a claim as a PNG: its picture, where it has one, and the residuals of every problem."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unhinge.paper.claims.registry import Record
from unhinge.results.look import BLUE, DPI, INK, ORANGE, PlotOptions, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from unhinge.paper.claims.pictures import Picture

__all__ = ["draw", "draw_all"]

COLORS = {"printed": ORANGE, "ours": BLUE, "reference": INK}
DASHES = {"printed": "--", "ours": "-", "reference": ":"}


def draw_all(records: Sequence[Record], folder: Path, seed: int = 0) -> list[Path]:
    """A PNG for each record that a plot helps; the paths of those written."""
    drawn = (draw(record, folder, seed) for record in records)
    return [path for path in drawn if path is not None]


def draw(record: Record, folder: Path, seed: int = 0) -> Path | None:
    """Write `<id>.png`; nothing for a yes or no without a picture, which a plot would not make clearer."""
    from unhinge.paper.claims.pictures import PICTURES

    picture = PICTURES.get(record.claim.id)
    shows_residuals = record.claim.tolerance > 0 and record.claim.problems > 1
    if picture is None and not shows_residuals:
        return None

    columns = (picture is not None) + shows_residuals
    path = folder / f"{record.claim.id}.png"
    with styled():
        figure = new_figure(4.6 * columns, 3.6)
        axes = list(figure.subplots(1, columns, squeeze=False)[0])
        if picture is not None:
            _picture(axes[0], picture(seed))
        if shows_residuals:
            _residuals(axes[-1], record)
        title = f"{record.claim.id}: {record.verdict}\n" + textwrap.fill(record.claim.title, 60 * columns)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        figure.savefig(path, dpi=DPI)
    return path


def _picture(axis: Axes, picture: Picture) -> None:
    for line in picture.lines:
        style: PlotOptions = {"color": COLORS[line.role], "label": line.label, "linestyle": DASHES[line.role]}
        style |= {"linestyle": "none", "marker": "o", "markersize": 3.5} if line.marks else {}
        axis.plot(line.x, line.y, **style)
    if picture.log_x:
        axis.set_xscale("log")
    if picture.log_y:
        axis.set_yscale("log")
    axis.set_xlabel(picture.across)
    axis.set_ylabel(picture.up)
    axis.set_title(picture.caption, fontsize=8)
    axis.legend(fontsize=7)


def _residuals(axis: Axes, record: Record) -> None:
    """Residual per problem, log scale; zeros sit at the foot, what is undefined at the top."""
    claim = record.claim
    finite = [x for x in (*record.printed, *record.ours, claim.tolerance) if 0 < x < math.inf]
    foot, top = min(min(finite), 1e-16) / 3, max(max(finite), 1.0) * 10
    for role, name, values, marker in (("printed", "printed", record.printed, "s"), ("ours", "our", record.ours, "o")):
        heights = [top if x == math.inf else max(x, foot) for x in values]
        axis.plot(
            range(1, len(values) + 1),
            heights,
            marker,
            color=COLORS[role],
            label=f"{name} form",
            markersize=4,
            alpha=0.8,
        )
    axis.axhline(claim.tolerance, color=COLORS["reference"], linestyle=DASHES["reference"], label="tolerance")
    axis.set_yscale("log")
    if math.inf in record.printed:
        axis.annotate("undefined", (1, top), textcoords="offset points", xytext=(6, -3), fontsize=7)
    axis.locator_params(axis="x", integer=True)
    axis.set_xlabel("random problem")
    axis.set_ylabel("residual")
    axis.set_title(textwrap.fill(f"against: {claim.oracle}", 55), fontsize=8)
    axis.legend(fontsize=7)
