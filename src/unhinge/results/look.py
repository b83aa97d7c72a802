"""One look for every picture: colors, marks, matplotlib's settings, and files that are the same when drawn twice."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from unhinge.extras import needed_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    *("COLORS", "DARK_COLORS", "MARKERS", "DASHES"),
    *("BLUE", "ORANGE", "GREEN", "INK", "GRAY", "FAINT", "GRID", "STYLE"),
    *("DPI", "head_line", "histogram_range", "new_figure", "save", "styled"),
]

# Okabe and Ito (2008): told apart with any kind of color vision. Their yellow is left out: it vanishes in print.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# The same hues on a dark ground, the lighter ones first: the first two above have too little contrast there.
DARK_COLORS = ("#56B4E9", "#E69F00", "#2FC49A", "#E59AC4", "#F0764A", "#6FA8DC", "#FFFFFF")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# What a line means: what was computed, a predicted slope, a continuous limit of steps, a predicted level.
DASHES: dict[str, Any] = {"exact": "-", "predicted": (0, (5, 2)), "flow": (0, (1, 1.2)), "level": "-."}
BLUE, ORANGE, GREEN = COLORS[:3]
INK, GRAY, FAINT, GRID = "#333333", "#555555", "#777777", "#DDDDDD"

PlotOptions: TypeAlias = dict[str, Any]  # keyword arguments of matplotlib, which types each of them apart
STYLE: dict[Any, Any] = {  # matplotlib types its keys as a list of literals that grows with each version
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    # matplotlib's offsets ("1e-8+1" in a corner) hide how flat a curve is; full numbers say it
    "axes.formatter.useoffset": False,
    "lines.linewidth": 1.4,
    "figure.dpi": 100,
    "pdf.fonttype": 42,  # letters stay letters: journals refuse the default, Type 3
    "svg.hashsalt": "unhinge",  # else the names inside an SVG are random
}
DPI = 160


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this look, whatever the user's own settings are; they are as before afterwards.

    Example:
        >>> import matplotlib
        >>> with styled():
        ...     matplotlib.rcParams["font.size"]
        9.0
    """
    with needed_for("a figure"):
        import matplotlib
    with matplotlib.rc_context(STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure without a window and without pyplot's global list of figures, of a size in inches.

    Example:
        >>> [float(side) for side in new_figure(4, 3).get_size_inches()]
        [4.0, 3.0]
    """
    with needed_for("a figure"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def head_line(figure: Figure, text: str) -> None:
    """What a figure shows, in bold above its panels, in as many lines as it needs."""
    wide = int(11 * figure.get_figwidth())
    text = "\n".join(textwrap.fill(line, wide) for line in text.splitlines())
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")


def save(figure: Figure, folder: Path, name: str = "figure") -> tuple[Path, Path]:
    """`name`.png and `name`.pdf, without dates and versions: the same figure is the same file."""
    png, pdf = folder / f"{name}.png", folder / f"{name}.pdf"
    with styled():
        figure.savefig(png, dpi=DPI, metadata={"Software": None})
        figure.savefig(pdf, metadata={"CreationDate": None, "Producer": None, "Creator": None})
    return png, pdf


def histogram_range(low: float, high: float) -> tuple[float, float]:
    """From `low` to `high`, or some way around them where bins between would be narrower than floats can tell apart.

    Example:
        >>> histogram_range(0.0, 1.0), histogram_range(1e22, 1e22)
        ((0.0, 1.0), (9.99e+21, 1.001e+22))
    """
    size = max(abs(low), abs(high))
    if high - low > 1e-12 * size:  # enough for thousands of bins
        return low, high
    room = max(0.5, 1e-3 * size)
    return low - room, high + room
