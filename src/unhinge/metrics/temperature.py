r"""One temperature for all predictions [eq: temperature]: :math:`p = \mathrm{softmax}(z / T)`, by the log loss of
examples that were not trained on (temperature scaling: Guo et al., 2017).

It changes no decision, only how sure they are. Two classifiers are compared fairly by their probabilities only after
each was given its temperature: what a network that fits all of its training images states is far too sure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.extras import needed_for
from unhinge.metrics.calibration import expected_calibration_error
from unhinge.metrics.checks import Labels, Numbers, as_labels, as_numbers
from unhinge.theory.numerics import widened

__all__ = ["AfterTemperature", "after_temperature", "fit_temperature"]

PRECISE = 1e-9  # of log T; the seeds of an experiment differ by a million times that


@dataclass(frozen=True)
class AfterTemperature:
    """What probabilities are worth once one temperature was fitted; made by :func:`after_temperature`.

    Example:
        >>> z = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
        >>> after_temperature(z, [0, 0, 1, 1])  # all right: certainty costs nothing
        AfterTemperature(temperature=0.0, log_loss=0.0, ece=0.0)
    """

    temperature: float
    log_loss: float  # in nats
    ece: float  # expected calibration error, in [0, 1]


def fit_temperature(logits: Numbers, target: Labels) -> float:
    r"""The :math:`T` with the least log loss of :math:`\mathrm{softmax}(z / T)`.

    The log loss is convex in :math:`1/T`, so there is one: infinity where the logits tell nothing about the classes
    (then all probabilities are equal), and 0 where every largest logit is the right one (then they are 0 and 1). With
    one class it is 1. Multiplied logits multiply it.

    Arguments:
        logits: :math:`z` of examples that were not trained on, shape :math:`(n, C)`.
        target: Their labels, shape :math:`(n,)`.

    Example:
        >>> z = torch.tensor([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 3.0]])
        >>> temperature = fit_temperature(z, [0, 0, 1, 0])  # 3 of 4 are right
        >>> (z / temperature).softmax(1)[0]
        tensor([0.7500, 0.2500])
    """
    return _fitted(*_checked(logits, target))


def after_temperature(logits: Numbers, target: Labels, bins: int = 15) -> AfterTemperature:
    """Log loss and calibration error after a temperature that other examples chose.

    Fitted to every second example and judged on the others, then the other way round; each number is the mean of both.

    Arguments:
        logits: Of examples that were not trained on, shape :math:`(n, C)`, in an order that has nothing to do with how
            they came out.
        target: Their labels, shape :math:`(n,)`.
        bins: Of the calibration error.

    Example:
        >>> exact = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
        >>> y = torch.multinomial(
        ...     exact.softmax(1), 1, generator=torch.Generator().manual_seed(1)
        ... )[:, 0]
        >>> after = after_temperature(10 * exact, y)  # ten times too sure
        >>> round(after.temperature), after.ece < 0.05
        (10, True)
    """
    z, labels = _checked(logits, target)
    if len(z) < 2:
        raise ValueError("after_temperature needs two examples at least, one to fit and one to judge, got 1.")
    even = torch.arange(len(z), device=z.device) % 2 == 0
    halves = []
    for known, asked in ((even, ~even), (~even, even)):
        temperature = _fitted(z[known], labels[known])
        logs = _log_probabilities(z[asked], temperature)
        loss = 0.0 - logs.gather(1, labels[asked, None]).mean().item()
        halves.append((temperature, loss, expected_calibration_error(logs.exp(), labels[asked], bins)))
    return AfterTemperature(*((first + second) / 2 for first, second in zip(*halves, strict=True)))


def _checked(logits: Numbers, target: Labels) -> tuple[Tensor, Tensor]:
    """In float64, with the largest logit of each row at zero: no probability depends on it, and none overflows."""
    z = as_numbers("logits", logits, ("n", "C")).detach()
    z = widened(z)
    return z - z.amax(1, keepdim=True), as_labels("target", target, *z.shape).to(z.device)


def _fitted(z: Tensor, labels: Tensor) -> float:
    own = z.gather(1, labels[:, None]).mean()

    def slope(log_beta: float) -> float:
        """Of the log loss in beta = 1/T: the mean logit under softmax(beta z), less that of the right class."""
        weights = (z * math.exp(log_beta)).softmax(1)
        return (torch.linalg.vecdot(weights, z).mean() - own).item()

    with needed_for("a temperature"):
        from scipy.optimize import brentq
    if z.shape[1] == 1:  # its probability is 1 in any case
        return 1.0
    if z.mean().item() >= own.item():  # the slope at beta = 0: being surer costs, or changes nothing
        return math.inf
    if own.item() >= 0:  # every largest logit, at zero, is the right one
        return 0.0
    low = high = -math.log(-z.min().item())  # where the smallest weight is about exp(-1) of the largest
    while slope(low) > 0 and low > -700:
        low -= 4
    while slope(high) < 0 and high < 700:
        high += 4
    if slope(low) > 0 or slope(high) < 0:  # beyond what a float can scale
        return math.inf if slope(low) > 0 else 0.0
    return math.exp(-float(brentq(slope, low, high, xtol=PRECISE)))


def _log_probabilities(z: Tensor, temperature: float) -> Tensor:
    if temperature > 0:
        return (z / temperature).log_softmax(1)
    return torch.where(z == 0, torch.zeros_like(z), -math.inf).log_softmax(1)
