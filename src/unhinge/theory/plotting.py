"""A path and a problem as pictures: what ``path.plot()`` and ``problem.plot()`` draw. Needs matplotlib."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unhinge.results.look import BLUE, DASHES, GREEN, ORANGE, head_line, new_figure, styled
from unhinge.theory.types import Time
from unhinge.theory.validation import check_steps, check_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from unhinge.theory.linear.modes import Modes
    from unhinge.theory.path import Path

__all__ = ["plot_modes", "plot_path"]

TIMES = 201  # on the axis of a picture: more than a panel has room for


def plot_path(path: Path, times: Time | None = None) -> Figure:
    """Distance, norms, loss and accuracy over time, with the predicted rate of the distance.

    Arguments:
        path: Any path.
        times: When to ask; by default until the distance has fallen to a hundredth.

    Example:
        >>> from unhinge import LayerPeeled
        >>> features = torch.eye(4, 3, dtype=torch.float64)
        >>> weight = torch.eye(2, 3, dtype=torch.float64)
        >>> [
        ...     axes.get_ylabel()
        ...     for axes in LayerPeeled([0, 0, 1, 1]).flow(features, weight).plot().axes
        ... ]
        ['distance to the direction', 'norm', 'loss', 'accuracy']
    """
    moments = _moments(path) if times is None else (check_steps if path.discrete else check_times)(times)
    moments = moments.reshape(-1).sort().values
    with styled():
        figure = new_figure(7.2, 5.0)
        distance, norm, loss, accuracy = figure.subplots(2, 2, sharex=True).flat
        _draw_distance(distance, path, moments)
        norm.plot(moments, _drawn(path.feature_norm(moments)), color=BLUE, label="features")
        norm.plot(moments, _drawn(path.weight_norm(moments)), color=ORANGE, label="prototypes")
        norm.set(ylabel="norm", yscale="log")
        norm.legend()
        loss.plot(moments, _drawn(path.loss(moments)), color=BLUE)
        loss.set(ylabel="loss", yscale="symlog")
        try:
            accuracy.plot(moments, _drawn(path.accuracy(moments)), color=BLUE)
        except ValueError:  # after a streamed pass nothing is known of single examples
            accuracy.text(0.5, 0.5, "needs the examples in memory", ha="center", transform=accuracy.transAxes)
        accuracy.set(ylabel="accuracy", ylim=(-0.02, 1.02))
        for axes in (loss, accuracy):
            axes.set_xlabel("step" if path.discrete else "time")
        head_line(figure, repr(path))
    return figure


def _drawn(values: Tensor) -> Tensor:
    """As matplotlib takes it, which knows no bfloat16."""
    return values.detach().double().cpu()


def _draw_distance(axes: Axes, path: Path, moments: Tensor) -> None:
    axes.set(ylabel="distance to the direction", yscale="log")
    try:
        distance = _drawn(path.distance(moments))
        axes.plot(moments, distance, color=BLUE, label="exact")
        rate = path.rate().item()
    except ValueError as reason:  # a path without a direction, or without a rate, says why
        axes.set_title(str(reason).partition(":")[0], fontsize=7)
        return
    if -math.inf < rate < 0 and len(distance) and distance[-1] > 0:
        # Through the last point: the prediction is a slope, and the end is where it holds.
        line = distance[-1].log() + rate * (moments - moments[-1]).double()
        shown = line <= distance.max().log()
        axes.plot(
            moments[shown], line.exp()[shown], color=GREEN, linestyle=DASHES["predicted"], label=f"rate {rate:.3g}"
        )
    axes.legend()


def _moments(path: Path) -> Tensor:
    """From the start until the distance has fallen to a hundredth, or to 100 where it never does."""
    try:
        end = path.time_to(0.01).item()
    except ValueError:
        end = math.inf
    end = end if 0 < end < 1e12 else 100.0  # beyond, the axis would show nothing but the start
    moments = torch.linspace(0, 1.2 * end, TIMES, dtype=torch.float64)
    return moments.round().unique().long() if path.discrete else moments


def plot_modes(modes: Modes, threshold: float) -> Figure:
    """Singular values by rank, with the level that decays set for them; and how fast each group grows.

    Arguments:
        modes: What ``problem.modes()`` gives.
        threshold: The root of the product of the decays: modes above it grow.

    Example:
        >>> from unhinge import LayerPeeled
        >>> [axes.get_ylabel() for axes in LayerPeeled([0, 0, 0, 1, 1, 2]).plot().axes]
        ['singular value', 'growth per unit of time']
    """
    with styled():
        figure = new_figure(7.2, 2.8)
        left, right = figure.subplots(1, 2)
        values, growth = (
            column.detach().repeat_interleave(modes.multiplicity) for column in (modes.sigma, modes.growth)
        )
        rank = torch.arange(1, len(values) + 1)
        left.plot(rank, values, "o", markersize=4, color=BLUE)
        if threshold > 0:
            left.axhline(threshold, color=ORANGE, linestyle=DASHES["level"], label="grows above")
            left.legend()
        left.set(xlabel="mode", ylabel="singular value", ylim=(0, None))
        right.plot(rank, growth, "o", markersize=4, color=BLUE)
        right.axhline(0, color=ORANGE, linestyle=DASHES["level"])
        right.set(xlabel="mode", ylabel=f"growth per {'step' if modes.discrete else 'unit of time'}")
    return figure
