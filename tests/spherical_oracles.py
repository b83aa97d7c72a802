r"""Normalized features, slowly: autograd on the loss as it is written, an ODE solver, and mpmath.

None of these knows that the motion is planar.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np
import scipy.integrate
import torch
from torch import Tensor

__all__ = ["autograd_descent", "manual_descent", "mp_descent", "ode_flow", "sphere_loss"]


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


def manual_descent(features: Tensor, pull: Tensor, lr: float, steps: int, rescaled: bool = False) -> Tensor:
    """The last iterate by the gradient written out, without autograd; `pull` are the rows v_i."""
    h = features.clone()
    for _ in range(steps):
        norm = h.norm(dim=1, keepdim=True)
        unit = h / norm
        tangent = pull - (unit * pull).sum(1, keepdim=True) * unit
        h = h + lr * (tangent if rescaled else tangent / norm)
    return h


def mp_descent(
    start: list[float], pull: list[float], lr: float, steps: int, power: int = 2, decay: float = 0.0, digits: int = 60
) -> list[tuple[mp.mpf, mp.mpf]]:
    """(angle, norm) of one example at every step, with vectors of `digits` digits."""
    with mp.workdps(digits):
        h, v = mp.matrix([mp.mpf(x) for x in start]), mp.matrix([mp.mpf(x) for x in pull])
        found = []
        for _ in range(steps + 1):
            norm = mp.norm(h)
            unit = h / norm
            along = (unit.T * v)[0]
            tangent = v - along * unit
            found.append((mp.atan2(mp.norm(tangent), along), norm))
            h = (1 - mp.mpf(lr) * mp.mpf(decay)) * h + mp.mpf(lr) * tangent / norm ** (power - 1)
        return found


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
