"""Histograms of every score on the known set and on several unknown ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from unhinge.results.look import COLORS, head_line, histogram_range, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_scores"]

COLUMNS = 4
OUTLIERS = 0.002  # share of each set left out of the picture at either end, or one stray value flattens all the rest


def draw_scores(known: Mapping[str, Tensor], unknown: Mapping[str, Mapping[str, Tensor]], title: str = "") -> Figure:
    """One panel a score: its density on the known set, filled, and on each unknown set, as a line.

    Arguments:
        known: Scores by name, shape :math:`(n,)` each.
        unknown: By the name of a set, its scores by name.
        title: Above the figure.

    Example:
        >>> import torch
        >>> figure = draw_scores(
        ...     {"norm": torch.randn(50) + 3},
        ...     {"svhn": {"norm": torch.randn(40)}},
        ...     "a run",
        ... )
        >>> [axis.get_xlabel() for axis in figure.axes]
        ['norm']
    """
    columns = min(COLUMNS, len(known))
    rows = math.ceil(len(known) / columns)
    with styled():
        figure = new_figure(3.0 * columns, 2.6 * rows + 0.4)
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for axis, (score, values) in zip(panels, known.items(), strict=False):
            sets = {"known": values} | {data: scores[score] for data, scores in unknown.items()}
            sets = {data: scores.detach().double().cpu() for data, scores in sets.items()}
            reach = histogram_range(
                min(scores.quantile(OUTLIERS).item() for scores in sets.values()),
                max(scores.quantile(1 - OUTLIERS).item() for scores in sets.values()),
            )
            for place, (data, scores) in enumerate(sets.items()):
                kind = "stepfilled" if place == 0 else "step"
                axis.hist(
                    scores.numpy(),
                    60,
                    range=reach,
                    density=True,
                    histtype=kind,
                    color=COLORS[place % len(COLORS)],
                    alpha=0.45 if place == 0 else 1.0,
                    label=data,
                )
            axis.set(xlabel=score, yticks=[])
            axis.locator_params(axis="x", nbins=3)  # scores such as -0.0015 need the room
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
        for axis in figure.axes[len(known) :]:
            axis.remove()
        head_line(figure, title)
    return figure
