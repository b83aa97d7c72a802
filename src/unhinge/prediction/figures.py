"""One figure of all answers: distance, norms, collapse, spectrum, gamma, and the classes in the limit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from unhinge.prediction.analysis import Prediction, generic_rate
from unhinge.prediction.representatives import ending
from unhinge.results.look import BLUE, COLORS, DASHES, GREEN, INK, MARKERS, ORANGE, head_line, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw"]

POINTS = 241
FLOOR = 1e-16  # of a logarithmic axis: below it is rounding, and zero has no place on it


def draw(prediction: Prediction, title: str) -> Figure:
    """The figure of a prediction."""
    with styled():
        figure = new_figure(10, 6.2)
        head_line(figure, title)
        axes = figure.subplots(2, 3)
        time = _times(prediction)
        panels = (_distance, _norms, _collapse)
        for axis, panel in zip(axes[0], panels, strict=True):
            panel(axis, prediction, time)
            axis.set_xlabel("step")
        for axis, panel_of in zip(axes[1], (_spectrum, _gamma, _classes), strict=True):
            panel_of(axis, prediction)
        for axis, letter in zip(axes.flat, "abcdef", strict=True):
            axis.set_title(f"({letter}) {axis.get_title()}", loc="left")
            axis.title.set_text("")
    return figure


def _times(prediction: Prediction) -> torch.Tensor:
    """Until a little after the wanted distance; where it is never or at once reached, ten times 1/rate."""
    end = prediction.times[prediction.setting.distance] * 1.4
    if not math.isfinite(end) or end <= 0:
        end = 10 / -prediction.rate if math.isfinite(prediction.rate) and prediction.rate < 0 else 100.0
    return torch.linspace(0, end, POINTS, dtype=torch.float64)


def _distance(axis: Axes, prediction: Prediction, time: torch.Tensor) -> None:
    values = prediction.path.distance(time).double().numpy()
    axis.plot(time, np.maximum(values, FLOOR), color=BLUE, label="exact")
    if math.isfinite(prediction.rate):
        slope = values[-1] * np.exp(prediction.rate * (time.numpy() - time[-1].item()))
        shown = slope <= 2
        axis.plot(
            time[shown], slope[shown], color=INK, ls=DASHES["predicted"], lw=1, label=f"rate {prediction.rate:.3g}"
        )
    wanted, when = prediction.setting.distance, prediction.times[prediction.setting.distance]
    if math.isfinite(when):
        axis.plot([when], [wanted], "o", color=ORANGE, mfc="white", label=f"{wanted:g} after {math.ceil(when):,}")
    axis.set(yscale="log", title="distance from the limit")
    axis.legend()


def _norms(axis: Axes, prediction: Prediction, time: torch.Tensor) -> None:
    # relative to the start, in the logarithm that never overflows
    logs = prediction.path.log_norm(time).double().numpy()
    axis.plot(time, (logs - logs[0]) / math.log(10), color=BLUE, label="exact")
    slope = (logs[-1] - logs[0] + prediction.growth * (time.numpy() - time[-1].item())) / math.log(10)
    axis.plot(time, slope, color=INK, ls=DASHES["predicted"], lw=1, label=f"growth {prediction.growth:.3g}")
    axis.set(title=f"log10 of |Z| over its start: {prediction.outcome}")
    axis.legend()


def _collapse(axis: Axes, prediction: Prediction, time: torch.Tensor) -> None:
    few = time[::8]
    measures = prediction.path.collapse(few)
    names = {"nc1_ratio": "NC1 (ratio)", "nc2_angle_features": "NC2, angles of means", "nc3": "NC3, self-duality"}
    for (key, name), color, marker in zip(names.items(), COLORS, MARKERS, strict=False):
        values = np.maximum(measures[key].double().numpy(), FLOOR)
        known = np.isfinite(values)
        axis.plot(few[known], values[known], color=color, marker=marker, mfc="white", ms=3.5, markevery=4, label=name)
    axis.set(yscale="log", title="neural collapse")
    axis.legend()


def _spectrum(axis: Axes, prediction: Prediction) -> None:
    values = np.repeat(
        [mode.singular_value for mode in prediction.spectrum], [mode.multiplicity for mode in prediction.spectrum]
    )
    axis.plot(np.arange(1, len(values) + 1), values, "o", color=BLUE, mfc="white", ms=4.5)
    setting = prediction.setting
    decay = math.sqrt(setting.feature_decay * setting.weight_decay)
    if decay:
        axis.axhline(decay, color=ORANGE, ls=DASHES["level"], lw=0.9, label=f"decay {decay:.3g}: modes below die")
        axis.legend()
    axis.set(xlabel="mode", title=f"singular values; critical decay {prediction.critical_decay:.3g}")
    axis.set_ylim(bottom=-0.03 * prediction.critical_decay)


def _gamma(axis: Axes, prediction: Prediction) -> None:
    setting, classes = prediction.setting, prediction.setting.num_classes
    # beyond 2/(C-2) the speed is that of another, useless limit
    edge = 2 / (classes - 2) if classes > 2 else 3.0
    grid = np.linspace(0, edge, 100)
    decays = setting.feature_decay, setting.weight_decay
    rates = [-generic_rate(prediction.measured, gamma, *decays, setting.lr) for gamma in grid.tolist()]
    axis.plot(grid, rates, color=BLUE)
    if math.isfinite(prediction.best_gamma):
        axis.plot(
            [prediction.best_gamma],
            [-prediction.best_rate],
            "s",
            color=GREEN,
            label=f"best {prediction.best_gamma:.4g}",
        )
    axis.axvline(
        min(setting.gamma, 1.05 * edge), color=ORANGE, ls=DASHES["level"], lw=0.9, label=f"now {setting.gamma:.4g}"
    )
    words = "speed over γ" if prediction.cure is None else "speed over γ, with weights n_c^(-1/2)"
    axis.set(xlabel="γ", title=words)
    axis.legend()


def _classes(axis: Axes, prediction: Prediction) -> None:
    order = np.argsort(-np.asarray(prediction.setting.counts), kind="stable")
    place = np.arange(1, len(order) + 1)
    axis.plot(
        place, np.asarray(prediction.limit.sizes)[order], "o", color=ORANGE, mfc="white", ms=4.5, label="as it is"
    )
    if prediction.cure is not None:
        counts = torch.tensor(prediction.setting.counts, dtype=torch.float64)
        setting = prediction.setting
        cured = ending(prediction.measured, setting.gamma, setting.feature_decay, setting.weight_decay, counts.rsqrt())
        axis.plot(place, np.asarray(cured.sizes)[order], "s", color=GREEN, mfc="white", ms=4.5, label="with n_c^(-1/2)")
    axis.set(xlabel="class, largest first", title="|class mean| in the limit")
    axis.set_ylim(bottom=0)
    axis.legend()
