r"""The paper's own symbols, for balanced labels: a reader finds each of them here.

Small functions that follow the printed definitions in their corrected form. The engine does not use them; the tests
compare the two. Class order is free here: `labels` may come in any order, where the paper groups the columns by class.

===================================  ==========================================
in the paper                         here
===================================  ==========================================
:math:`\Pi_1^\pm, \Pi_2^\pm, \Pi_3`  :func:`projections`
:math:`\sigma_1, \sigma_2`           :func:`eigenvalues`
:math:`\alpha_i^\pm, \beta_i^\pm`    :func:`alpha_beta` (Theorem 1)
:math:`a_i^\pm, b_i^\pm`             :func:`a_b` (Theorem 2)
:math:`\overline Z`                  :func:`z_bar` (Corollary 1)
:math:`\omega_1, \omega_2`           :func:`omegas` (Corollary 2)
:math:`\pi_h^\pm, \pi_w^\pm`         :func:`pi_coefficients` (Corollary 2)
:math:`Z_\pi`                        :func:`z_pi` (Corollary 2)
:math:`\omega`                       :func:`convergence_rate` (Corollary 2, erratum 16)
===================================  ==========================================
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from unhinge.theory.linear.ordered import flow_matrix
from unhinge.theory.state import State
from unhinge.theory.targets import HardTargets, as_targets

__all__ = [
    "Projections",
    "a_b",
    "alpha_beta",
    "convergence_rate",
    "eigenvalues",
    "omegas",
    "pi_coefficients",
    "projections",
    "z_bar",
    "z_pi",
]


class Projections(NamedTuple):
    r"""The five orthogonal parts of a state; they add up to it."""

    plus_1: State  # features along their prototypes, prototypes of zero mean
    minus_1: State  # features opposite their prototypes
    plus_2: State  # all features and all prototypes on one vector
    minus_2: State  # all features opposite the one vector of the prototypes
    within: State  # deviations from the class means, no prototypes


def projections(features: Tensor, weight: Tensor, labels: Tensor) -> Projections:
    r"""Orthogonal projections of :math:`(H, W)` on :math:`\mathcal E_1^\pm, \mathcal E_2^\pm, \mathcal E_3`.

    Arguments:
        features: :math:`(n, p)`.
        weight: :math:`(C, p)`.
        labels: :math:`(n,)`, the same number of examples in each class.

    Example:
        >>> h, w, y = torch.randn(6, 2), torch.randn(3, 2), torch.arange(6) % 3
        >>> parts = projections(h, w, y)
        >>> torch.allclose(sum(part.features for part in parts), h, atol=1e-6)
        True
    """
    targets = _balanced(labels, len(weight))
    rows = targets.reduce(features).to(features)  # X, which is reduced in float64
    parts = []
    for center in (True, False):
        for sign in (1.0, -1.0):
            half = (sign * rows + weight) / 2
            mean = half.mean(0, keepdim=True).expand_as(half)
            block = half - mean if center else mean
            parts.append(State(targets.expand(sign * block), block))
    within = State(features - targets.expand(rows), torch.zeros_like(weight))
    return Projections(parts[0], parts[1], parts[2], parts[3], within)


def eigenvalues(num_classes: int, per_class: int, gamma: float) -> tuple[float, float]:
    r""":math:`\sigma_1 = (1+\gamma)/(C\sqrt N)` and :math:`\sigma_2 = (1+\gamma-\gamma C)/(C\sqrt N)`, signed
    [eq: balanced-modes]."""
    unit = 1 / (num_classes * math.sqrt(per_class))
    return (1 + gamma) * unit, (1 + gamma - gamma * num_classes) * unit


def alpha_beta(sigma: float, sign: int, clock: Tensor, weight_clock: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\alpha^\epsilon = \epsilon\sinh(\sigma\sqrt{\zeta_1\zeta_2})/\sqrt{\zeta_1\zeta_2}` and
    :math:`\beta^\epsilon = \cosh(\sigma\sqrt{\zeta_1\zeta_2})` of Theorem 1.

    The part :math:`\Pi^\epsilon Z_0` becomes :math:`(\alpha\zeta_1+\beta)` times its features and
    :math:`(\alpha\zeta_2+\beta)` times its prototypes.

    Arguments:
        sigma: :math:`\sigma_1` or :math:`\sigma_2`.
        sign: :math:`\epsilon`, 1 or -1.
        clock: :math:`\zeta_1`, the integrated rate of the features.
        weight_clock: :math:`\zeta_2`, that of the prototypes.
    """
    root = torch.sqrt(clock * weight_clock)
    safe = torch.where(root == 0, 1.0, root)
    alpha = torch.where(root == 0, sign * sigma, sign * torch.sinh(sigma * safe) / safe)
    return alpha, torch.cosh(sigma * root)


def a_b(
    sigma: float, sign: int, feature_decay: float, weight_decay: float, clock: Tensor, weight_clock: Tensor
) -> tuple[Tensor, Tensor]:
    r""":math:`(a^\epsilon, b^\epsilon)^\top = \exp S(\epsilon\sigma)\,(1, 1)^\top` of Theorem 2 (errata 11 to 13)
    [eq: phi].

    The factors of features and prototypes of :math:`\Pi^\epsilon Z_0`; at :math:`\sigma = 0`, of :math:`\Pi_3 Z_0`.
    """
    mode, decay_h, decay_w = (torch.tensor(x, dtype=torch.float64) for x in (sign * sigma, feature_decay, weight_decay))
    log, matrix = flow_matrix(mode, decay_h, decay_w, clock, weight_clock)
    factors = torch.exp(log)[..., None] * matrix.sum(-1)
    return factors[..., 0], factors[..., 1]


def z_bar(features: Tensor, weight: Tensor, labels: Tensor, ratio: float = 1.0) -> State:
    r""":math:`\overline Z` of Corollary 1, the limit of :math:`e^{-\sigma_1\sqrt{\zeta_1\zeta_2}} Z`, for
    :math:`0 < \gamma < 2/(C-2)`  [eq: direction]."""
    root = math.sqrt(ratio)
    plus, minus = projections(features, weight, labels)[:2]
    return State(
        (1 + root) / 2 * plus.features + (1 - root) / 2 * minus.features,
        (1 + root) / (2 * root) * plus.weight - (1 - root) / (2 * root) * minus.weight,
    )


def omegas(sigma: float, feature_decay: float, weight_decay: float, ratio: float = 1.0) -> tuple[float, float]:
    r"""The two exponents :math:`\omega_1 \le \omega_2` of a mode per unit of :math:`\zeta_2`  [eq: eigenvalues]."""
    middle = -(ratio * feature_decay + weight_decay) / 2
    radius = math.hypot((ratio * feature_decay - weight_decay) / 2, math.sqrt(ratio) * sigma)
    return middle - radius, middle + radius


def pi_coefficients(
    sigma: float, feature_decay: float, weight_decay: float, ratio: float = 1.0
) -> tuple[tuple[float, float], tuple[float, float]]:
    r""":math:`(\pi_h^+, \pi_h^-)` and :math:`(\pi_w^+, \pi_w^-)` of Corollary 2 at :math:`\sigma = \sigma_1`."""
    low, high = omegas(sigma, feature_decay, weight_decay, ratio)
    span = high - low
    base_h = -ratio * feature_decay - low
    base_w = ratio * feature_decay + high
    return (
        ((base_h + ratio * sigma) / span, (base_h - ratio * sigma) / span),
        ((base_w + sigma) / span, (base_w - sigma) / span),
    )


def z_pi(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    gamma: float,
    feature_decay: float,
    weight_decay: float,
    ratio: float = 1.0,
) -> State:
    r""":math:`Z_\pi` of Corollary 2, the limit of :math:`e^{-\omega_2\zeta_2} Z`, for :math:`0 < \gamma < 2/(C-2)`
    [eq: direction]."""
    sigma = eigenvalues(len(weight), len(labels) // len(weight), gamma)[0]
    of_features, of_weight = pi_coefficients(sigma, feature_decay, weight_decay, ratio)
    plus, minus = projections(features, weight, labels)[:2]
    return State(
        of_features[0] * plus.features + of_features[1] * minus.features,
        of_weight[0] * plus.weight + of_weight[1] * minus.weight,
    )


def convergence_rate(
    num_classes: int,
    per_class: int,
    gamma: float,
    feature_decay: float = 0.0,
    weight_decay: float = 0.0,
    ratio: float = 1.0,
) -> float:
    r""":math:`\omega = \omega_2(\sigma_1) - \omega_2(|\sigma_2|)`: the distance to the limit falls as
    :math:`e^{-\omega\zeta_2}`  [eq: rate]; without the spurious factor of erratum 16."""
    first, second = eigenvalues(num_classes, per_class, gamma)
    return omegas(first, feature_decay, weight_decay, ratio)[1] - omegas(second, feature_decay, weight_decay, ratio)[1]


def _balanced(labels: Tensor, num_classes: int) -> HardTargets:
    targets = as_targets(labels, num_classes)
    if not isinstance(targets, HardTargets) or len(torch.unique(targets.counts)) > 1:
        raise ValueError(
            "the five eigenspaces are those of balanced integer labels: the same number of examples in each class. "
            "For other labels use LayerPeeled, which needs no such condition."
        )
    return targets
