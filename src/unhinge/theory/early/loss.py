r"""A loss near zero logits: its gradient there, and how fast the gradient can move away from it  [eq: curvature].

Near :math:`z = 0` every smooth loss is linear. The gradient at zero of the losses here is that of
:math:`\text{scale}\,(-z_y + q^\top z)`, so the exact path of that linear loss is their first phase. What
:mod:`unhinge.theory.early.certificate` asks beyond it is the second derivative at zero, and bounds of the second and
third derivatives among logits of a given norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from unhinge.theory.numerics import LARGEST_EXPONENT

__all__ = ["LossAtZero", "binary_cross_entropy", "cross_entropy", "focal", "squared_error"]


# Functions of the radius are parts of a path, and a path can be pickled: so they are named, not written in place.
def _constant(value: float, radius: float) -> float:
    return value


@dataclass(frozen=True)
class LossAtZero:
    """What the linearization and its certificate know of a loss. Norms are Euclidean, of one example's logits."""

    scale: float
    prior: Tensor | None  # (C,), q, summing to 1; None if `gamma` says it
    gamma: float | None  # of the unhinged loss, where that is the linear part
    values: Tensor  # (C,), the loss of each label at zero logits
    centered: bool  # whether a common shift of all logits changes nothing
    diagonal: Tensor  # (C,) and
    vector: Tensor  # (C,): the second derivative at zero is diag(diagonal) - vector vector^T, if `common`
    common: bool  # whether it is the same for all labels
    curvature: Callable[[float], float]  # radius -> largest norm of the second derivative
    bend: Callable[[float], float]  # radius -> largest |third derivative along u, u| over unit vectors u
    farthest: float  # largest distance of a gradient from that at zero; infinite if there is none
    # radius -> how far the second derivative can lie below zero: nowhere, if the loss is convex
    concavity: Callable[[float], float]


def _softmax_peak(largest: float, apart: float, temperature: float, radius: float) -> float:
    return min(1.0, largest * math.exp(min(apart * radius / temperature, LARGEST_EXPONENT)))


def _softmax_curvature(largest: float, apart: float, temperature: float, radius: float) -> float:
    return min(0.5, _softmax_peak(largest, apart, temperature, radius)) / temperature**2


def _softmax_bend(largest: float, apart: float, temperature: float, radius: float) -> float:
    most = _softmax_peak(largest, apart, temperature, radius)
    return min(math.sqrt(2) * most, math.sqrt(most)) / temperature**3


def _logistic_bend(radius: float) -> float:
    return min(1 / (6 * math.sqrt(3)), radius / 8)


def cross_entropy(num_classes: int, logit_adjustment: Tensor | None = None, temperature: float = 1.0) -> LossAtZero:
    r""":math:`-\log\mathrm{softmax}(z/T + \tau)_y` with temperature T and offsets :math:`\tau` of shape :math:`(C,)`.

    Inside a ball every probability obeys :math:`p_j \le q_j e^{(e_j - q)^\top z/T}`, because
    :math:`\sum_k q_k e^{z_k} \ge e^{q^\top z}` (Jensen). The second derivative
    :math:`(\mathrm{diag}(p) - pp^\top)/T^2` is at most :math:`p_{\max}/T^2`, and never above :math:`1/(2T^2)`. The
    third along u has entries :math:`p_j((u_j - m)^2 - v)`, m and v the mean and variance of u under p. The square sum
    is at most :math:`p_{\max}\mathrm{Var}(u - m)^2 \le p_{\max}\min(1, 2v)` with :math:`v \le p_{\max}`, since
    :math:`(u_j - m)^2` lies between 0 and 2.

    Example:
        >>> loss = cross_entropy(4)
        >>> loss.prior, loss.curvature(0.0), loss.values[0].exp().item()
        (tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64), 0.25, 4.0)
    """
    if logit_adjustment is None:
        log_prior = torch.full((num_classes,), -math.log(num_classes), dtype=torch.float64)
        prior = torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)
    else:
        log_prior = torch.log_softmax(logit_adjustment.double(), 0)
        prior = log_prior.exp()
        prior = prior / prior.sum()
    apart = (1 - 2 * prior + prior.pow(2).sum()).clamp(min=0).sqrt().max().item()
    largest = prior.max().item()

    return LossAtZero(
        scale=1 / temperature,
        prior=prior,
        gamma=None,
        values=-log_prior,
        centered=True,
        diagonal=prior / temperature**2,
        vector=prior / temperature,
        common=True,
        curvature=partial(_softmax_curvature, largest, apart, temperature),
        bend=partial(_softmax_bend, largest, apart, temperature),
        farthest=math.sqrt(2) / temperature,
        concavity=partial(_constant, 0.0),
    )


def binary_cross_entropy(num_classes: int) -> LossAtZero:
    r""":math:`\sum_c \log(1 + e^{z_c}) - z_y`: one yes-or-no question per class (summed over classes, as in detection).

    At zero it is half the unhinged loss with :math:`\gamma = 1`. The logistic function has slope at most 1/4, and
    second derivative at most :math:`1/(6\sqrt3)`, which is 0 at zero and grows at most as :math:`|z|/8`.
    """
    quarter = torch.full((num_classes,), 0.25, dtype=torch.float64)
    return LossAtZero(
        scale=0.5,
        prior=None,
        gamma=1.0,
        values=torch.full((num_classes,), num_classes * math.log(2), dtype=torch.float64),
        centered=False,
        diagonal=quarter,
        vector=torch.zeros_like(quarter),
        common=True,
        curvature=partial(_constant, 0.25),
        bend=_logistic_bend,
        farthest=math.sqrt(num_classes) / 2,
        concavity=partial(_constant, 0.0),
    )


def squared_error(num_classes: int) -> LossAtZero:
    r""":math:`\frac12\|z - e_y\|^2`: at zero the unhinged loss with :math:`\gamma = 0`; its second derivative is 1."""
    ones = torch.ones(num_classes, dtype=torch.float64)
    return LossAtZero(
        scale=1.0,
        prior=None,
        gamma=0.0,
        values=ones / 2,
        centered=False,
        diagonal=ones,
        vector=torch.zeros_like(ones),
        common=True,
        curvature=partial(_constant, 1.0),
        bend=partial(_constant, 0.0),
        farthest=math.inf,
        concavity=partial(_constant, 0.0),
    )


PIECES = 64  # of the range of a probability, on each of which the second derivative is bounded


def _focal_bends(a: float, b: float, g: float) -> tuple[float, float]:
    r"""Bounds of :math:`f''` from below and above where :math:`a \le p_y \le b`.

    With :math:`p = p_y`: :math:`f'' = gp(1-p)^{g-1}(2 + \log p) + g(g-1)p^2(1-p)^{g-2}|\log p|`, whose first term
    changes sign; taking both with their signs is what makes the bound close.
    """
    most, least = g * b * (1 - a) ** (g - 1), g * a * (1 - b) ** (g - 1)
    bend_low, bend_high = 2 + math.log(a), 2 + math.log(b)
    upper = bend_high * (most if bend_high > 0 else least)
    lower = bend_low * (least if bend_low > 0 else most)
    if g >= 2:
        upper += g * (g - 1) * b * b * (1 - a) ** (g - 2) * -math.log(a)
        lower += g * (g - 1) * a * a * (1 - b) ** (g - 2) * -math.log(b)
    elif g > 1:  # through |log p| <= (1 - p) / p
        upper += g * (g - 1) * b * (1 - a) ** (g - 1)
    return lower, upper


def _focal_curvature(a: float, b: float, high: float, g: float) -> float:
    r"""At least the norm of the second derivative of the focal loss where :math:`a \le p_y \le b` and no probability
    exceeds `high`."""
    if g == 0:
        return min(0.5, high)
    lower, upper = _focal_bends(a, b, g)
    slope = (1 - a) ** g + g * b * (1 - a) ** (g - 1) * -math.log(a)
    return max(abs(upper), abs(lower)) * _focal_own(a, high) + min(0.5, high) * slope


def _focal_concavity(a: float, b: float, high: float, g: float) -> float:
    r"""At most so far the second derivative lies below zero there: :math:`-f'` times a covariance does not."""
    return 0.0 if g == 0 else max(0.0, -_focal_bends(a, b, g)[0]) * _focal_own(a, high)


def _focal_own(a: float, high: float) -> float:
    r"""At least :math:`\|\nabla\log p_y\|^2`."""
    return (1 - a) * ((1 - a) + min(high, 1 - a))


def _focal_most(
    bound: Callable[[float, float, float, float], float], start: float, focus: float, radius: float
) -> float:
    """Each factor is monotone in p, so its range on a short interval of p lies between its ends."""
    reach = min(math.sqrt(2) * radius, LARGEST_EXPONENT)
    low, high = start * math.exp(-reach), min(1.0, start * math.exp(reach))
    edges = [low * (high / low) ** (k / PIECES) for k in range(PIECES)] + [high]
    return max(bound(a, b, high, focus) for a, b in pairwise(edges))


def focal(num_classes: int, focus: float = 2.0) -> LossAtZero:
    r""":math:`-(1 - p_y)^g\log p_y` with g = `focus`, 0 or at least 1 (below 1 the second derivative is unbounded).

    As a function of :math:`u = \log p_y` it is :math:`f(u) = -(1 - e^u)^g u`, and
    :math:`\nabla^2\ell = f''\nabla u\nabla u^\top - f'(\mathrm{diag}(p) - pp^\top)` with
    :math:`\|\nabla u\|^2 = (1 - p_y)^2 + \sum_{j\ne y}p_j^2`. The second derivative depends on the label, so no
    exact one is offered at zero: the bound of the error is some times farther from the truth than for cross-entropy.
    Where :math:`f'' < 0`, which is where :math:`p_y` is small, the loss is not convex in the logits.

    Example:
        >>> round(focal(10, focus=0.0).scale, 12)  # cross-entropy
        1.0
    """
    if not (focus == 0 or focus >= 1):
        raise ValueError(
            f"focus must be 0 or at least 1, got {focus}: below 1 the focal loss has no second derivative."
        )
    start = 1 / num_classes
    uniform = torch.full((num_classes,), start, dtype=torch.float64)
    zero = torch.zeros_like(uniform)

    return LossAtZero(
        scale=(1 - start) ** focus - (focus * start * (1 - start) ** (focus - 1) * math.log(start) if focus else 0.0),
        prior=uniform,
        gamma=None,
        values=torch.full((num_classes,), -((1 - start) ** focus) * math.log(start), dtype=torch.float64),
        centered=True,
        diagonal=zero,
        vector=zero,
        common=False,
        curvature=partial(_focal_most, _focal_curvature, start, focus),
        bend=partial(_constant, math.inf),
        farthest=math.inf,
        concavity=partial(_focal_most, _focal_concavity, start, focus),
    )
