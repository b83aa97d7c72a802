"""From a panel to a Plotly figure, as plain dictionaries: building them through Plotly's classes would cost more time
than solving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from unhinge.results.look import COLORS, DARK_COLORS
from unhinge.web.panels import Curve, Moving, Panel, Slot

__all__ = ["PALETTES", "THEMES", "figure"]

PALETTES = {"light": COLORS[:6], "dark": DARK_COLORS[:6]}
THEMES = {
    "light": {"paper": "#ffffff", "ink": "#22262b", "grid": "#e3e6ea", "faint": "#6b727b"},
    "dark": {"paper": "#1b1f25", "ink": "#e4e7eb", "grid": "#353b44", "faint": "#9aa3ad"},
}
LEGEND = 235  # pixels beside the axis in a panel on a laptop
Plotly: TypeAlias = dict[str, Any]  # a part of a figure as Plotly's JSON has it
DASHES = {"line": "solid", "dashed": "dash", "dotted": "dot", "marks": "solid"}


def figure(panel: Panel, slot: Slot, theme: str = "light", player: bool = False) -> Plotly:
    """The figure of a panel, with axis labels, in the colours of a theme; `player` adds buttons to moving pictures,
    for pages that have none of their own (Plotly's are slow to draw).

    Example:
        >>> panel = Panel(
        ...     "steps", "loss", [Curve("loss", [0.0, 1.0], [1.0, 0.5])], code=""
        ... )
        >>> figure(panel, Slot("loss", "loss", ""))["data"][0]["y"]
        [1.0, 0.5]
    """
    if panel.moving is not None:
        return _moving_figure(panel.moving, slot, theme, player)
    colors = THEMES[theme]
    listed = [curve.name for curve in panel.curves if curve.listed]
    several = len(listed) > 1
    ground = {"bgcolor": colors["paper"], "borderpad": 0}  # the name of a moment lies on the curves
    widest = max((46 + 5.6 * len(name) for name in listed), default=1.0)  # Plotly gives all names the same width
    rows = math.ceil(len(listed) / max(1, int(LEGEND / widest))) if several else 0
    layout = _layout(colors) | {
        "margin": {"l": _left(panel), "r": 22, "t": 8 + 18 * rows, "b": 36, "autoexpand": False},
        "xaxis": _axis(panel.xlabel, colors) | (_log(_x(panel)) if panel.xlog else {}),
        "yaxis": _axis(panel.ylabel, colors) | (_log(_y(panel)) if panel.ylog else {}),
        "showlegend": several,
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "font": {"size": 10}, "itemwidth": 30},
        "hovermode": "closest" if any(curve.style == "marks" for curve in panel.curves) else "x unified",
        "shapes": [
            *(_line("y", value, colors, 1, "dot") for _, value in panel.levels),
            *(_line("x", value, colors, 1.2, "dashdot") for _, value in panel.moments),
        ],
        "annotations": [
            *(
                _name(name, colors) | {"xref": "paper", "x": 1, "xanchor": "right", "y": _place(value, panel.ylog)}
                for name, value in panel.levels
            ),
            *(
                _name(name, colors)
                | {"yref": "paper", "y": 0, "xanchor": "left", "x": _place(value, panel.xlog)}
                | ground
                for name, value in panel.moments
            ),
        ],
        "meta": {"slot": slot.key, "title": panel.title or slot.title},
    }
    if panel.yrange is not None:
        layout["yaxis"]["range"] = list(panel.yrange)
    return {"data": [_trace(curve, theme) for curve in panel.curves], "layout": layout}


def _layout(colors: dict[str, str]) -> Plotly:
    return {
        "paper_bgcolor": colors["paper"],
        "plot_bgcolor": colors["paper"],
        "font": {"color": colors["ink"], "size": 11, "family": "system-ui, sans-serif"},
        "margin": {"l": 54, "r": 10, "t": 22, "b": 36},
        "hoverlabel": {"bgcolor": colors["paper"], "font": {"color": colors["ink"], "size": 11}},
        "uirevision": "keep",
        "autosize": True,
    }


def _axis(label: str, colors: dict[str, str]) -> Plotly:
    return {
        "title": {"text": label, "font": {"size": 11}},
        "ticklabeloverflow": "allow",  # else each label is measured, at a fifth of the time of drawing
        "gridcolor": colors["grid"],
        "linecolor": colors["faint"],
        "zerolinecolor": colors["grid"],
        "ticks": "outside",
        "ticklen": 3,
        "tickcolor": colors["faint"],
        "nticks": 6,
        "exponentformat": "power",  # Plotly's own "200µ" and "5k" are for engineers
        "minexponent": 4,
    }


def _x(panel: Panel) -> list[float]:
    return [x for curve in panel.curves for x in curve.x if x > 0]


def _y(panel: Panel) -> list[float]:
    return [y for curve in panel.curves for y in curve.y if y is not None and y > 0]


def _log(values: list[float]) -> Plotly:
    """A logarithmic axis that shows the curves, not the last digits of rounding, with numbers at 1, 2, 5 if short."""
    # Plotly prints powers of ten larger than the numbers of an even axis
    axis: Plotly = {"type": "log", "exponentformat": "power", "tickfont": {"size": 9}}
    if not values:
        return axis
    low, high = math.log10(min(values)), math.log10(max(values))
    low = max(low, min(-16.0, high - 1), high - 40)
    spare = 0.05 * max(high - low, 0.3)
    ticks: Plotly = {"dtick": "D2"} if high - low < 1.5 else {}
    if high - low < 0.65:  # only one of 1, 2 and 5 may lie between, or none
        even = _even_numbers(10 ** (low - spare), 10 ** (high + spare))
        ticks = {"tickvals": even, "ticktext": [f"{number:.6g}" for number in even], "tickfont": {"size": 11}}
    return axis | {"range": [low - spare, high + spare]} | ticks


def _even_numbers(low: float, high: float) -> list[float]:
    """Two to six round numbers between two positive ones."""
    tenth = 10.0 ** math.floor(math.log10((high - low) / 2))
    step = next(tenth * factor for factor in (1, 2, 5, 10) if (high - low) / (tenth * factor) < 6)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _left(panel: Panel) -> int:
    """Pixels for the numbers of the vertical axis and its name: numbers such as 0.00015 and 100,000 are long."""
    highest = max((abs(y) for curve in panel.curves for y in curve.y if y is not None), default=0.0)
    return 58 if panel.ylog or highest == 0 or 1e-3 <= highest < 1e4 else 72


def _trace(curve: Curve, theme: str) -> Plotly:
    color = PALETTES[theme][curve.color % len(PALETTES[theme])]
    trace: Plotly = {
        "type": "scatter",
        "name": curve.name,
        "showlegend": curve.listed,
        "x": list(curve.x),
        "y": list(curve.y),
        "hovertemplate": "%{y:.5g}" if curve.hover is None else "%{text}<extra></extra>",
    }
    if curve.style == "marks":
        return trace | {"mode": "markers", "marker": {"color": color, "size": 6}, "text": list(curve.hover or [])}
    width = 2.2 if curve.style == "line" else 1.6
    return trace | {"mode": "lines", "line": {"color": color, "width": width, "dash": DASHES[curve.style]}}


def _line(axis: str, value: float, colors: dict[str, str], width: float, dash: str) -> Plotly:
    """A line across the panel at one value of an axis, "x" or "y"."""
    other = "x" if axis == "y" else "y"
    line = {"color": colors["faint"], "width": width, "dash": dash}
    across = {f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", **across, f"{axis}0": value, f"{axis}1": value, "line": line}


def _name(text: str, colors: dict[str, str]) -> Plotly:
    """What such a line is called, above its end."""
    return {"text": text, "yanchor": "bottom", "showarrow": False, "font": {"size": 9, "color": colors["faint"]}}


def _place(value: float, log: bool) -> float:
    """Annotations are placed by the logarithm on a logarithmic axis; lines are not."""
    return math.log10(value) if log else value


def _moving_figure(moving: Moving, slot: Slot, theme: str, player: bool) -> Plotly:
    colors = THEMES[theme]
    axes = len(moving.frames[0][0]) if moving.frames and moving.frames[0] else 2
    deep = axes == 3
    data = []
    for place, (name, color, symbol) in enumerate(moving.groups):
        star = symbol == "star"
        marker: Plotly = {
            "color": PALETTES[theme][color % len(PALETTES[theme])],
            "size": (7 if deep else 13) if star else (3 if deep else 6),
            "symbol": ("diamond" if deep else "star") if star else "circle",
            "opacity": 1 if star else 0.6,
            "line": {"width": 1 if star else 0, "color": colors["ink"]},
        }
        trace: Plotly = {
            "type": "scatter3d" if deep else "scatter",
            "mode": "markers",
            "name": name,
            "marker": marker,
            "showlegend": not star,
            "legendgroup": str(color),
            "hovertemplate": name + "<extra></extra>",
        }
        data.append(trace | (_coordinates(moving.frames[moving.first][place]) if moving.frames else {"x": [], "y": []}))
    data += _trails(moving, theme, deep)
    span = [-moving.reach, moving.reach]
    bare = {"range": span, "showticklabels": False, "gridcolor": colors["grid"], "zerolinecolor": colors["faint"]}
    layout = _layout(colors) | {
        "margin": {"l": 8, "r": 8, "t": 6, "b": 62 if player else 4, "autoexpand": False},
        "showlegend": True,
        "legend": {
            "orientation": "v",
            "x": 1,
            "xanchor": "right",
            "y": 1,
            "font": {"size": 9},
            "bgcolor": "rgba(0,0,0,0)",
        },
        "meta": {"slot": slot.key, "title": slot.title},
    }
    if player:
        layout |= {"updatemenus": [_buttons(colors, deep)], "sliders": [_time_slider(moving, colors, deep)]}
    if deep:
        flat = bare | {"title": {"text": ""}, "backgroundcolor": colors["paper"], "showspikes": False}
        layout["scene"] = {"xaxis": flat, "yaxis": flat, "zaxis": flat, "aspectmode": "cube"}
    else:
        layout["xaxis"] = bare
        layout["yaxis"] = bare | {"scaleanchor": "x"}
    frames = [
        {"name": str(i), "data": [_coordinates(group) for group in frame], "traces": list(range(len(moving.groups)))}
        for i, frame in enumerate(moving.frames)
    ]
    drawn: Plotly = {"data": data, "layout": layout, "frames": frames}
    if not player:
        drawn["player"] = {"moments": list(moving.moments), "unit": moving.unit, "first": moving.first}
    return drawn


def _trails(moving: Moving, theme: str, deep: bool) -> list[Plotly]:
    """The way each prototype takes, as a thin line that stays."""
    trails = []
    for place, (name, color, symbol) in enumerate(moving.groups):
        if symbol != "star" or not moving.frames:
            continue
        way = [[frame[place][axis][0] for frame in moving.frames] for axis in range(len(moving.frames[0][place]))]
        line = {"color": PALETTES[theme][color % len(PALETTES[theme])], "width": 2 if deep else 1.2}
        shown: Plotly = {"showlegend": False, "hoverinfo": "skip", "opacity": 0.55, "name": f"way of {name}"}
        trails.append(
            {"type": "scatter3d" if deep else "scatter", "mode": "lines", "line": line} | shown | _coordinates(way)
        )
    return trails


def _coordinates(group: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    names = ("x", "y", "z")[: len(group)]
    points = {name: list(axis) for name, axis in zip(names, group, strict=True)}
    return points if len(group) > 1 else points | {"y": [0.0] * len(points["x"])}


def _buttons(colors: dict[str, str], deep: bool) -> Plotly:
    play = {
        "frame": {"duration": 60, "redraw": deep},
        "transition": {"duration": 0},
        "fromcurrent": False,
        "mode": "immediate",
    }
    stop = {"frame": {"duration": 0, "redraw": False}, "mode": "immediate"}
    return {
        "type": "buttons",
        "direction": "left",
        "x": 0,
        "y": 0,
        "xanchor": "left",
        "yanchor": "top",
        "showactive": False,
        "pad": {"t": 22, "l": 0, "r": 4},
        "bgcolor": colors["paper"],
        "bordercolor": colors["faint"],
        "font": {"size": 11, "color": colors["ink"]},
        "buttons": [
            {"label": "▶ Play", "method": "animate", "args": [None, play]},
            {"label": "❚❚", "method": "animate", "args": [[None], stop]},
        ],
    }


def _time_slider(moving: Moving, colors: dict[str, str], deep: bool) -> Plotly:
    jump = {"mode": "immediate", "frame": {"duration": 0, "redraw": deep}, "transition": {"duration": 0}}
    steps = [
        {"label": f"{moment:,.6g}", "method": "animate", "args": [[str(i)], jump]}
        for i, moment in enumerate(moving.moments)
    ]
    return {
        "active": moving.first,
        "steps": steps,
        "x": 0.34,
        "len": 0.64,
        "y": 0,
        "pad": {"t": 12, "b": 0},
        "currentvalue": {
            "prefix": f"{moving.unit} ",
            "xanchor": "right",
            "offset": 4,
            "font": {"size": 10, "color": colors["ink"]},
        },
        "ticklen": 0,
        "minorticklen": 0,
        "font": {"size": 1, "color": "rgba(0,0,0,0)"},
        "bgcolor": colors["grid"],
        "bordercolor": colors["grid"],
        "tickcolor": "rgba(0,0,0,0)",
    }
