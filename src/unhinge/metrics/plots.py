"""The reliability diagram and histograms of scores. Needs matplotlib, imported when a figure is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from unhinge.metrics.adjustment import StrengthCurve
from unhinge.metrics.calibration import Reliability
from unhinge.metrics.checks import Numbers, as_numbers
from unhinge.metrics.ood import ood_metrics
from unhinge.results.look import BLUE, COLORS, FAINT, ORANGE, histogram_range, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["reliability_diagram", "score_histogram", "strength_plot"]

INSIDE, OUTSIDE, LIGHT = BLUE, ORANGE, COLORS[5]


def reliability_diagram(bins: Reliability, axes: Axes | None = None, title: str | None = None) -> Axes:
    r"""Accuracy of each bin beside its mean confidence, and the calibration error
    :math:`\sum_b \frac{|S_b|}{n}|acc(S_b) - conf(S_b)|`.

    Arguments:
        bins: What :func:`unhinge.metrics.reliability` returns, of one batch or summed over many: :math:`B` bins.
        axes: Matplotlib axes to draw on, or None for those of a new figure (``axes.figure.savefig(...)``).
        title: A line above that of the calibration error.

    Returns:
        The axes.

    Example:
        >>> from unhinge.metrics import reliability
        >>> axes = reliability_diagram(
        ...     reliability(
        ...         torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0])
        ...     )
        ... )
        >>> axes.get_xlabel()
        'confidence'
    """
    if bins.counts.ndim != 1:
        raise ValueError(
            f"a diagram shows one set of bins, got bins of shape {tuple(bins.counts.shape)}. "
            "Of class-wise bins draw one class: bins[c]."
        )
    error = bins.error  # first: it says what is wrong with empty bins
    axes = _axes(axes)
    edges = bins.edges.numpy()
    left, width = edges[:-1], 1 / len(bins.counts)
    filled = (bins.counts > 0).numpy()
    accuracy, confidence = bins.accuracy.numpy(), bins.confidence.numpy()
    axes.plot([0, 1], [0, 1], color=FAINT, ls="--", lw=1, label="calibrated")
    axes.bar(left[filled], accuracy[filled], width, align="edge", color=LIGHT, edgecolor="white", label="accuracy")
    axes.bar(
        left[filled],
        (confidence - accuracy)[filled],
        width,
        bottom=accuracy[filled],
        align="edge",
        color="none",
        edgecolor=OUTSIDE,
        hatch="////",
        lw=0.8,
        label="gap to confidence",
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")
    numbers = f"ECE {100 * error:.2f} %, n = {int(bins.counts.sum()):,}"
    axes.set_title(numbers if title is None else f"{title}\n{numbers}", loc="left")
    _legend_below(axes)
    return axes


def score_histogram(
    id_scores: Numbers, ood_scores: Numbers, axes: Axes | None = None, bins: int = 60, label: str = "score"
) -> Axes:
    """Densities of a score on the two sets over common bins, with the FPR95 and AUROC in the title.

    Arguments:
        id_scores: Scores of the in-distribution set, shape :math:`(n,)`.
        ood_scores: Scores of the out-of-distribution set, shape :math:`(m,)`.
        axes: Matplotlib axes to draw on, or None for those of a new figure.
        bins: The number of bins.
        label: The name of the score.

    Returns:
        The axes.

    Example:
        >>> score_histogram(
        ...     torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0])
        ... ).get_title(loc="left")
        'FPR95 0.00 %, AUROC 100.00 %'
    """
    numbers = ood_metrics(id_scores, ood_scores)
    inside, outside = (
        as_numbers(name, value, ("n",)).detach().to("cpu", torch.float64).numpy()
        for name, value in (("id_scores", id_scores), ("ood_scores", ood_scores))
    )
    axes = _axes(axes)
    reach = histogram_range(min(inside.min(), outside.min()), max(inside.max(), outside.max()))
    for values, color, name in ((inside, INSIDE, "known"), (outside, OUTSIDE, "unknown")):
        axes.hist(values, bins, range=reach, density=True, color=color, alpha=0.55, label=name)
    axes.set(xlabel=label, ylabel="density")
    axes.set_title(f"FPR95 {100 * numbers['fpr95']:.2f} %, AUROC {100 * numbers['auroc']:.2f} %", loc="left")
    _legend_below(axes)
    return axes


def strength_plot(curve: StrengthCurve, axes: Axes | None = None, title: str | None = None) -> Axes:
    r"""Accuracy over the strength :math:`\tau` of the adjustment :math:`z_c - \tau\log q_c`: of all examples, and the
    mean over the classes, with its best.

    Arguments:
        curve: What :func:`unhinge.metrics.strength_curve` returns, of :math:`K` strengths: shape :math:`(K,)` each.
        axes: Matplotlib axes to draw on, or None for those of a new figure.
        title: A line above that of the best strength.

    Returns:
        The axes.

    Example:
        >>> from unhinge.metrics import strength_curve
        >>> curve = strength_curve(
        ...     [[2.0, 0.0], [2.0, 1.5]],
        ...     [0, 1],
        ...     prior=[3, 1],
        ...     strengths=[0.0, 0.5, 1.0],
        ... )
        >>> strength_plot(curve).get_xlabel()
        'strength of the adjustment'
    """
    axes = _axes(axes)
    balanced, best = curve.balanced_accuracy, curve.best
    axes.plot(curve.strengths, curve.example_accuracy, color=LIGHT, ls="--", label="all examples")
    axes.plot(curve.strengths, balanced, color=INSIDE, label="mean over classes")
    top = balanced.max().item()
    axes.plot([best], [top], "o", color=OUTSIDE, mfc="white", label=f"best {best:.3g}")
    axes.set(xlabel="strength of the adjustment", ylabel="accuracy")
    plain = balanced[curve.strengths.abs().argmin()].item()
    numbers = f"{100 * plain:.1f} % plain, {100 * top:.1f} % at {best:.3g}"
    axes.set_title(numbers if title is None else f"{title}\n{numbers}", loc="left")
    _legend_below(axes)
    return axes


def _legend_below(axes: Axes) -> None:
    """Outside of the axes: bars and curves may stand in every corner of them."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    with styled():
        return new_figure(4, 4).subplots()
