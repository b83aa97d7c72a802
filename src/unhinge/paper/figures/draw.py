"""A numerical figure from its table: lines exact, markers simulated, dashes predicted; a color and mark per series."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unhinge.extras import needed_for
from unhinge.paper.figures.registry import Panel, Row
from unhinge.results.look import COLORS, DASHES, FAINT, GRAY, INK, MARKERS, ORANGE, PlotOptions, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["SYMBOLS", "draw", "explained", "pretty"]

WORDS = {
    "exact": "line: exact",
    "sgd": "marker: SGD",
    "slope": "dashes: predicted rate",
    "flow": "dots: gradient flow",
    "level": "dash-dot: predicted level",
    "off": "SGD off by",  # in the corner of a panel
}
# How the rows of a kind are drawn, apart from their color; `sgd` is marks, all others are lines.
KINDS: dict[str, PlotOptions] = {
    "exact": {"zorder": 3},
    "sgd": {"ls": "", "mfc": "white", "ms": 4.5, "zorder": 4},
    "slope": {"ls": DASHES["predicted"], "lw": 1.0, "zorder": 5},
    "flow": {"ls": DASHES["flow"], "zorder": 2},
    "level": {"ls": DASHES["level"], "lw": 0.9, "zorder": 1},
}
GREEK = {"gamma": "γ", "lambda": "λ", "eta": "η", "rho": "ρ"}
# A symbol as figures print it, and its meaning. The longer ones first: λ* is not λ.
SYMBOLS = {
    "C": "the number of classes",
    "n": "the number of examples of a class",
    "Z": "all features and prototypes (class vectors)",
    "H": "all features",
    "W": "all prototypes (class vectors)",
    "P": "the part of the start in which features and prototypes are aligned",
    "h": "the feature of an example",
    "v": "the pull of its prototypes on a feature",
    "γ": "the weight of the wrong classes in the loss",
    "λ*": "the critical decay, at which the norms stop growing",
    "λ₁": "the decay of the features",
    "λ₂": "the decay of the prototypes",
    "λ": "the decay",
    "η₁": "the learning rate of the features",
    "η₂": "the learning rate of the prototypes",
    "η": "the learning rate",
    "ζ": "the learning rate times the number of steps",
    "s": "the learning rate of the features over that of the prototypes",
    "ρ": "the share of wrong labels",
    "μ": "the momentum",
    "σ₁": "the largest singular value of the label matrix",
}


def pretty(name: str) -> str:
    """A series name with Greek letters.

    Example:
        >>> pretty("gamma=1/(C-1)")
        'γ = 1/(C-1)'
    """
    for word, letter in GREEK.items():
        name = re.sub(rf"\b{word}\b", letter, name)
    return re.sub(r"(?<! )=(?! )", " = ", name)


def explained(*texts: str) -> str:
    """A sentence on the symbols that occur in the texts; nothing where there is none.

    Example:
        >>> explained("distance of Z over the step, at γ = 0")
        'Symbols: Z, all features and prototypes (class vectors); γ, the weight of the
         wrong classes in the loss.'
    """
    left = " ".join(texts)
    found = {}
    for symbol in sorted(SYMBOLS, key=len, reverse=True):
        before = r"(?<![A-Za-z'])" if symbol.isascii() else ""  # a Latin letter is a symbol only on its own
        pattern = rf"{before}{re.escape(symbol)}(?![A-Za-z₀-₉*])"
        if re.search(pattern, left):
            found[symbol] = SYMBOLS[symbol]
            left = re.sub(pattern, " ", left)
    listed = [f"{symbol}, {found[symbol]}" for symbol in SYMBOLS if symbol in found]
    return f"Symbols: {'; '.join(listed)}." if listed else ""


def draw(
    rows: Sequence[Row],
    panels: Sequence[Panel],
    title: str,
    footnote: str = "",
    columns: int = 3,
    deviations: Mapping[str, str] | None = None,
    words: Mapping[str, str] | None = None,
) -> Figure:
    """The figure of a table; `deviations`: by panel, how far the simulation lies off, printed in its corner; `words`:
    of the key, instead of :data:`WORDS`."""
    with needed_for("a figure"):
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

    series = list(dict.fromkeys(row.series for row in rows if row.kind in ("exact", "sgd")))
    looks = {name: (COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(series)}
    columns = min(columns, len(panels))
    count = -(-len(panels) // columns)
    head = _wrapped_evenly(title, 33 * columns)
    foot = textwrap.wrap(footnote, 56 * columns)
    with styled():
        width, height = 3.3 * columns, 2.75 * count
        above, below = 0.23 * len(head) + 0.02, 0.5 + 0.17 * len(foot)
        widest = max(1, int(width / 1.55))
        lined = {row.series for row in rows if row.kind == "exact"}
        handles = []
        for name, (color, marker) in looks.items():
            dashes = "-" if name in lined else ""  # some are simulated only
            look: PlotOptions = {**KINDS["sgd"], "color": color, "ls": dashes, "marker": marker}
            handles.append(Line2D([], [], label=pretty(name), **look))
        handles += _key({row.kind for row in rows}, {**WORDS, **(words or {})}, Line2D)
        wide = -(-len(handles) // -(-len(handles) // widest))  # rows of equal length
        spare = len(panels) < count * columns and len(handles) <= 10
        if not spare:
            below += 0.2 * -(-len(handles) // wide)
        total = height + above + below
        figure = Figure(figsize=(width, total))
        axes = figure.subplots(count, columns, squeeze=False)
        for panel, axis, letter in zip(panels, axes.flat, "abcdefghijkl", strict=False):
            of_panel = [row for row in rows if row.panel == panel.key]
            _curves(axis, of_panel, panel, looks)
            axis.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
            axis.set_title(f"({letter}) {panel.title}", loc="left", pad=13)
            if panel.zoom is not None:
                _zoom(axis, of_panel, panel, looks)
            if deviations and panel.key in deviations:
                text = f"{(words or {}).get('off', WORDS['off'])} {deviations[panel.key]}"
                axis.text(1.0, 1.01, text, transform=axis.transAxes, ha="right", va="bottom", fontsize=6.5, color=GRAY)
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_axis_off()
        if spare:
            list(axes.flat)[len(panels)].legend(handles=handles, loc="center left", frameon=False)
        else:
            anchor = (0.5, (0.17 * len(foot) + 0.06) / total)
            figure.legend(
                handles=handles, ncols=min(wide, len(handles)), frameon=False, loc="lower center", bbox_to_anchor=anchor
            )
        figure.text(0.01, 1 - 0.06 / total, "\n".join(head), ha="left", va="top", fontsize=11.5, fontweight="bold")
        figure.text(0.01, 0.05 / total, "\n".join(foot), ha="left", va="bottom", fontsize=8, color=INK)
        bottom = (0.17 * len(foot) + 0.1 + (0 if spare else 0.2 * -(-len(handles) // wide) + 0.1)) / total
        figure.tight_layout(rect=(0, bottom, 1, 1 - above / total), w_pad=1.2, h_pad=1.0)
    return figure


def _wrapped_evenly(text: str, width: int) -> list[str]:
    """Wrapped into as few lines as fit, of about the same length."""
    text = text.replace(" = ", "\u00a0=\u00a0")
    lines = textwrap.wrap(text, width)
    while width > 2 and len(textwrap.wrap(text, width - 1)) == len(lines):
        width -= 1
    return textwrap.wrap(text, width)


def _key(kinds: set[str], words: Mapping[str, str], line: type[Line2D]) -> list[Line2D]:
    return [
        line([], [], label=words[kind], color=GRAY, marker="o" if kind == "sgd" else "", **look)
        for kind, look in KINDS.items()
        if kind in kinds
    ]


def _curves(axis: Axes, rows: Sequence[Row], panel: Panel, looks: dict[str, tuple[str, str]]) -> None:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.series), []).append(row)
    offset = {name: index for index, name in enumerate(looks)}
    for (kind, name), points in groups.items():
        x, y = [point.step for point in points], [point.value for point in points]
        color, marker = looks.get(name, (FAINT, ""))
        if kind != "sgd":
            axis.plot(x, y, color=_darker(color) if kind == "slope" else color, **KINDS[kind])
        else:
            # every other mark or so, shifted from series to series, so that curves on top of each other stay visible
            errors = [0.0 if point.error is None else point.error for point in points]
            keep = slice(offset.get(name, 0) % 3, None, max(1, len(x) // 14)) if not any(errors) else slice(None)
            if any(errors):
                axis.errorbar(x[keep], y[keep], errors[keep], color=color, ls="", lw=0.9, capsize=2, zorder=4)
            axis.plot(x[keep], y[keep], color=color, marker=marker, mew=1.0, **KINDS["sgd"])
    axis.set_xscale(panel.xscale)
    axis.set_yscale(_yscale(panel, rows))
    if panel.yscale == "log" and panel.floor is not None:
        axis.set_ylim(bottom=max(panel.floor, min((r.value for r in rows if r.value > 0), default=1) * 0.5))
    if panel.top is not None:
        first = min(row.step for row in rows)
        cap = panel.top * max(row.value for row in rows if row.step == first)
        if max(row.value for row in rows) > cap:
            axis.set_ylim(top=cap)
    if panel.xscale == "linear" and rows:
        _short_steps(axis, max(row.step for row in rows))


def _darker(color: str) -> tuple[float, ...]:
    """Of the same hue, and seen on a line of that color."""
    from matplotlib.colors import to_rgb

    return tuple(0.6 * part for part in to_rgb(color))


def _short_steps(axis: Axes, last: float) -> None:
    if last >= 10_000:
        axis.xaxis.set_major_formatter(lambda x, _: "0" if x == 0 else f"{x / 1000:g}k")


def _yscale(panel: Panel, rows: Sequence[Row]) -> str:
    """Linear where a logarithmic axis would not span a decade, and so have hardly a number on it."""
    values = [row.value for row in rows if row.kind != "slope"]
    narrow = min(values) > 0 and max(values) < 6 * min(values)
    return "linear" if panel.yscale == "log" and narrow else panel.yscale


def _zoom(axis: Axes, rows: Sequence[Row], panel: Panel, looks: dict[str, tuple[str, str]]) -> None:
    """The last part of the steps again, in an inset with its own axes."""
    assert panel.zoom is not None
    first = max(row.step for row in rows) * (1 - panel.zoom)
    last = [row for row in rows if row.step >= first and row.kind in ("exact", "sgd")]
    inset = axis.inset_axes((0.13, 0.56, 0.36, 0.37))  # its numbers stay clear of a curve that rises to the corner
    final = {row.series: row.value for row in last if row.kind == "exact"}
    middle = sorted(final.values())[len(final) // 2]
    close = [name for name, value in final.items() if value > 0 and 1 / 50 < value / middle < 50]
    for name in close:  # a curve far from the others would flatten them
        color, marker = looks[name]
        for kind, options in (("exact", {"lw": 1.1}), ("sgd", {"ls": "", "marker": marker, "mfc": "white", "ms": 3.2})):
            points = [row for row in last if row.series == name and row.kind == kind]
            inset.plot([p.step for p in points], [p.value for p in points], color=color, **options)
    inset.set_yscale(panel.yscale)
    inset.tick_params(labelsize=6, length=2)
    steps = max(row.step for row in rows) - first
    inset.set_title(f"the last {steps:,.0f} steps", fontsize=6.5, pad=2, loc="left")
    inset.tick_params(which="minor", labelleft=False, length=1)
    inset.locator_params(axis="x", nbins=3)
    _short_steps(inset, max(row.step for row in rows))
    inset.grid(False)
    for spine in inset.spines.values():
        spine.set_visible(True)
        spine.set_color(ORANGE)
