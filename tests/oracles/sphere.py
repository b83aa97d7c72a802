r"""Normalized features, slowly: autograd on the loss as it is written, an ODE solver, and mpmath.

None of these knows that the motion is planar. Last, the tables of `unhinge.theory.sphere.series`, derived anew.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import mpmath as mp
import numpy as np
import scipy.integrate
import torch
from sympy import QQ, ring
from torch import Tensor

__all__ = ["autograd_descent", "mp_descent", "ode_flow", "series_tables", "sphere_loss"]


def sphere_loss(features: Tensor, weight: Tensor, target: Tensor, gamma: float) -> Tensor:
    """Mean over the examples of -z_y + gamma sum of the others, z = W h / |h|."""
    logits = (features / features.norm(dim=1, keepdim=True)) @ weight.mT
    shares = target if target.is_floating_point() else torch.nn.functional.one_hot(target, len(weight)).to(logits)
    return (-(1 + gamma) * (shares * logits).sum(1) + gamma * logits.sum(1)).mean()


def autograd_descent(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    gamma: float,
    lr: float | Callable[[int], float],
    steps: int,
    rescaled: bool = False,
    decay: float = 0.0,
) -> Tensor:
    """All iterates, (steps + 1, n, p)."""
    now = features.clone()
    path = [now]
    for k in range(steps):
        leaf = now.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(sphere_loss(leaf, weight, target, gamma), leaf)
        if rescaled:
            gradient = gradient * now.norm(dim=1, keepdim=True)
        eta = lr(k) if callable(lr) else lr
        now = now - eta * (gradient + decay * now)
        path.append(now)
    return torch.stack(path)


def mp_descent(
    start: list[float], pull: list[float], lr: float, steps: int, power: int = 2, decay: float = 0.0, digits: int = 60
) -> list[tuple[mp.mpf, mp.mpf]]:
    """(angle, norm) of one example at every step, with vectors of `digits` digits."""
    with mp.workdps(digits):
        h, v = mp.matrix([mp.mpf(x) for x in start]), mp.matrix([mp.mpf(x) for x in pull])
        states = []
        for _ in range(steps + 1):
            norm = mp.norm(h)
            unit = h / norm
            along = (unit.T * v)[0]
            tangent = v - along * unit
            states.append((mp.atan2(mp.norm(tangent), along), norm))
            h = (1 - mp.mpf(lr) * mp.mpf(decay)) * h + mp.mpf(lr) * tangent / norm ** (power - 1)
        return states


def ode_flow(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    gamma: float,
    lr: Callable[[float], float],
    time: float,
    rescaled: bool = False,
    decay: float = 0.0,
) -> Tensor:
    """Features at one time, by DOP853 on minus the autograd gradient."""

    def slope(t: float, flat: np.ndarray) -> np.ndarray:
        h = torch.tensor(flat).reshape(features.shape).requires_grad_(True)
        (gradient,) = torch.autograd.grad(sphere_loss(h, weight, target, gamma), h)
        if rescaled:
            gradient = gradient * h.detach().norm(dim=1, keepdim=True)
        return (-lr(t) * (gradient + decay * h.detach())).numpy().reshape(-1)

    solved = scipy.integrate.solve_ivp(
        slope, (0.0, time), features.numpy().reshape(-1), method="DOP853", rtol=1e-12, atol=1e-13
    )
    return torch.tensor(solved.y[:, -1]).reshape(features.shape)


# ---- the series of plain descent, in exact fractions ----------------------------------------------------------------

RING, E, B = ring("epsilon,beta", QQ)


def _cut(x, order):
    """Terms up to a power of epsilon."""
    return RING.from_dict({key: value for key, value in x.items() if key[0] <= order})


def _term(x, order):
    """The polynomial in beta that belongs to a power of epsilon."""
    return RING.from_dict({(0, j): value for (i, j), value in x.items() if i == order})


def _power(x, exponent, order):
    """(1 + x)^exponent for x of order epsilon."""
    total = term = RING.one
    for k in range(order):
        term = _cut(term * x, order) * ((exponent - k) / (k + 1))
        total += term
    return total


def _log1p(x, order):
    total, term = RING.zero, RING.one
    for k in range(1, order + 1):
        term = _cut(-term * x, order)
        total -= term * QQ(1, k)
    return total


def _moved(x, beta, order):
    """x with another series in place of beta, by Horner's rule."""
    total = RING.zero
    for j in range(max((key[1] for key in x), default=0), -1, -1):
        total = _cut(total * beta, order) + RING.from_dict({(i, 0): v for (i, k), v in x.items() if k == j})
    return total


def _integral(x):
    """Antiderivative in beta that vanishes at 1."""
    whole = RING.from_dict({(0, j + 1): value / (j + 1) for (_, j), value in x.items()})
    return whole - whole.compose(B, RING.one)


def _quotient(x, y):
    quotient, rest = divmod(x, y)
    assert not rest
    return quotient


def _after_step(norm, order):
    """alpha, the relative growth of |h|^2, and the next beta."""
    alpha = _cut(E * norm, order)
    growth = _cut(alpha**2 * (1 - B**2), order)
    return alpha, growth, _cut((B + alpha * (1 - B**2)) * _power(growth, QQ(-1, 2), order), order)


def series_tables(terms: int) -> list[list[list[Fraction]]]:
    """F_m, S_m and L_m for m = 1 .. terms, the coefficients of 1, beta, beta^2, ... of each.

    What a step changes at order m + 1 in epsilon must be undone by the m-th polynomials:
    F (1 + growth) -> F, and log tan(theta/2) + S -> the same + log(1 - epsilon).
    """
    norm, phase, logs = RING.one, RING.zero, RING.zero
    for m in range(1, terms + 1):
        order = m + 1
        _, growth, beta = _after_step(norm, order)
        defect = _term(_moved(norm, beta, order) * (1 + growth), order)
        norm += E**m * _integral(_quotient(-defect, 1 - B**2))
        alpha, growth, beta = _after_step(norm, order)
        # (1 + beta) grows by 1 + ahead over the root of the growth, sin(theta) by 1 - alpha beta over that root
        ahead = alpha * (1 - B) + _quotient(_power(growth, QQ(1, 2), order) - 1, 1 + B)
        tangent = _log1p(-alpha * B, order) - _log1p(ahead, order)
        half = _log1p(ahead, order) - _log1p(growth, order) * QQ(1, 2)
        defect = _term(tangent + _moved(phase, beta, order) + logs * half - _log1p(-E, order), order)
        log = defect.compose(B, -RING.one) * QQ(-1, 2)
        logs += E**m * log
        phase += E**m * _integral(_quotient(-defect - log * (1 - B), 1 - B**2))
    return [[_fractions(_term(x, m)) for m in range(1, terms + 1)] for x in (_quotient(norm - 1, 1 - B), phase, logs)]


def _fractions(x) -> list[Fraction]:
    size = 1 + max((j for _, j in x), default=0)
    return [Fraction(str(x.get((0, j), 0))) for j in range(size)]
