r"""SGD with random batches, slowly: every batch in turn, the full second moment of the state, and simulation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Sgd", "enumerated", "full_recursion", "invariants", "simulated"]


@dataclass(frozen=True)
class Sgd:
    """One problem with its sampling."""

    target: Tensor
    features: Tensor
    weight: Tensor
    gamma: float
    batch_size: int
    replacement: bool
    lr: tuple[float, float]
    feature_decay: float = 0.0
    weight_decay: float = 0.0


def invariants(sgd: Sgd, features: Tensor, weight: Tensor) -> Tensor:
    """Loss, |H|^2, |W|^2, within and between scatter of one state or of many, by definition, (*, 5)."""
    logits = features @ weight.mT
    true = logits[..., torch.arange(len(sgd.target)), sgd.target]
    loss = (-true + sgd.gamma * (logits.sum(-1) - true)).mean(-1)
    means = torch.stack([features[..., sgd.target == c, :].mean(-2) for c in range(weight.shape[-2])], -2)
    means = means[..., sgd.target, :]
    within = (features - means).pow(2).sum((-2, -1)) / len(sgd.target)
    between = (means - features.mean(-2, keepdim=True)).pow(2).sum((-2, -1)) / len(sgd.target)
    return torch.stack([loss, features.pow(2).sum((-2, -1)), weight.pow(2).sum((-2, -1)), within, between], -1)


def one_step(sgd: Sgd, features: Tensor, weight: Tensor, batch: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Autograd on the batch's mean loss; decay on everything."""
    h, w = features.clone().requires_grad_(True), weight.clone().requires_grad_(True)
    rows = list(batch)
    logits = h[rows] @ w.mT
    true = logits.gather(1, sgd.target[rows][:, None])[:, 0]
    loss = (-true + sgd.gamma * (logits.sum(1) - true)).mean()
    pull_h, pull_w = torch.autograd.grad(loss, (h, w))
    return (
        features - sgd.lr[0] * (pull_h + sgd.feature_decay * features),
        weight - sgd.lr[1] * (pull_w + sgd.weight_decay * weight),
    )


def enumerated(sgd: Sgd, steps: int) -> Tensor:
    """Expected invariants after 0 .. steps steps, averaging over every sequence of batches, (steps + 1, 5)."""
    n = len(sgd.features)
    draw = itertools.product(range(n), repeat=sgd.batch_size)
    batches = list(draw) if sgd.replacement else list(itertools.combinations(range(n), sgd.batch_size))
    states = [(sgd.features, sgd.weight)]
    means = [invariants(sgd, *states[0])]
    for _ in range(steps):
        states = [one_step(sgd, *state, batch) for state in states for batch in batches]
        means.append(invariants(sgd, *map(torch.stack, zip(*states, strict=True))).mean(0))
    return torch.stack(means)


def full_recursion(sgd: Sgd, steps: int) -> Tensor:
    """The same from the full second moment of all n + C vectors, as the theory writes it."""
    n, classes, size = len(sgd.features), len(sgd.weight), sgd.batch_size
    y = sgd.target.numpy()
    matrix = np.full((classes, n), -sgd.gamma)
    matrix[y, np.arange(n)] = 1.0
    h, w = sgd.features.numpy(), sgd.weight.numpy()
    hh, hw, ww = h @ h.T, h @ w.T, w @ w.T
    (eta_1, eta_2) = sgd.lr
    a1, a2 = 1 - eta_1 * sgd.feature_decay, 1 - eta_2 * sgd.weight_decay
    if sgd.replacement:
        q11 = size * (size - 1) / n**2
        q2 = size / n + q11
    else:
        q2, q11 = size / n, size * (size - 1) / (n * (n - 1))

    def drawn(x: np.ndarray) -> np.ndarray:
        return q11 * x + (q2 - q11) * np.diag(np.diag(x))

    indicator = np.eye(classes)[y]  # (n, C)
    counts = indicator.sum(0)
    project = indicator @ np.diag(1 / counts) @ indicator.T
    average = np.full((n, n), 1 / n)

    def read() -> Tensor:
        loss = -np.trace(matrix.T @ hw.T) / n
        within = np.trace((np.eye(n) - project) @ hh) / n
        between = np.trace((project - average) @ hh) / n
        return torch.tensor([loss, np.trace(hh), np.trace(ww), within, between], dtype=torch.float64)

    values = [read()]
    for _ in range(steps):
        cross_hh = a1 * eta_1 / n * hw @ matrix
        cross_ww = a2 * eta_2 / n * hw.T @ matrix.T
        new_hh = a1**2 * hh + cross_hh + cross_hh.T + eta_1**2 / size**2 * drawn(matrix.T @ ww @ matrix)
        new_hw = (
            a1 * a2 * hw
            + a1 * eta_2 / n * hh @ matrix.T
            + a2 * eta_1 / n * matrix.T @ ww
            + eta_1 * eta_2 / size**2 * drawn(matrix.T @ hw.T) @ matrix.T
        )
        new_ww = a2**2 * ww + cross_ww + cross_ww.T + eta_2**2 / size**2 * matrix @ drawn(hh) @ matrix.T
        hh, hw, ww = new_hh, new_hw, new_ww
        values.append(read())
    return torch.stack(values)


def simulated(sgd: Sgd, steps: int, runs: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Mean and standard error of the invariants after `steps` steps over independent runs, (5,) each."""
    generator = torch.Generator().manual_seed(seed)
    n, classes = len(sgd.features), len(sgd.weight)
    h, w = sgd.features.expand(runs, -1, -1).clone(), sgd.weight.expand(runs, -1, -1).clone()
    signs = torch.full((n, classes), -sgd.gamma, dtype=torch.float64)
    signs[torch.arange(n), sgd.target] = 1.0
    for _ in range(steps):
        if sgd.replacement:
            rows = torch.randint(n, (runs, sgd.batch_size), generator=generator)
        else:
            rows = torch.rand(runs, n, generator=generator).argsort(1)[:, : sgd.batch_size]
        drawn = torch.zeros(runs, n, dtype=torch.float64).scatter_add_(
            1, rows, torch.ones(rows.shape, dtype=torch.float64)
        )
        share = (drawn / sgd.batch_size)[..., None] * signs  # minus the gradient of the logits
        h, w = (
            (1 - sgd.lr[0] * sgd.feature_decay) * h + sgd.lr[0] * share @ w,
            (1 - sgd.lr[1] * sgd.weight_decay) * w + sgd.lr[1] * share.mT @ h,
        )
    values = invariants(sgd, h, w)
    return values.mean(0), values.std(0) / runs**0.5
