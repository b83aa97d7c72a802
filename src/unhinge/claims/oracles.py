"""References written from the definitions: dense matrices, autograd, step-by-step simulation.

They share no algebra with the engine or with the paper's closed forms, and can afford to: the problems are small.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import expm
from torch import Tensor

from unhinge.claims.problems import Problem

__all__ = [
    "apart",
    "dense_flow",
    "direction",
    "drive_matrix",
    "generator_matrix",
    "gradients",
    "mean_loss",
    "measured_exponent",
    "relative",
]


def mean_loss(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    r"""Mean over examples of :math:`-z_y + \gamma\sum_{j\ne y} z_j`, one example and one logit at a time."""
    total = logits.new_zeros(())
    for row, label in zip(logits, labels.tolist(), strict=True):
        for j, z in enumerate(row):
            total = total + (-z if j == label else gamma * z)
    return total / len(labels)


def gradients(problem: Problem, features: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Autograd's gradient of the mean loss with its decay terms."""
    h, w, b = (part.detach().requires_grad_() for part in (features, weight, bias))
    loss = mean_loss(h @ w.T + b, problem.labels, problem.gamma)
    loss = loss + problem.feature_decay / 2 * h.square().sum()
    loss = loss + problem.weight_decay / 2 * (w.square().sum() + b.square().sum())
    one, two, three = torch.autograd.grad(loss, (h, w, b))
    return one, two, three


def drive_matrix(labels: Tensor, num_classes: int, gamma: float) -> Tensor:
    r""":math:`M`, shape :math:`(C, n)`: :math:`1/n` for the label of an example, :math:`-\gamma/n` elsewhere."""
    n = len(labels)
    rows = [[(1.0 if label == c else -gamma) / n for label in labels.tolist()] for c in range(num_classes)]
    return torch.tensor(rows, dtype=torch.float64)


def generator_matrix(problem: Problem, feature_clock: float, weight_clock: float) -> Tensor:
    r"""The matrix of :math:`Z \mapsto (M^\top W - \lambda_1 H, M H - \lambda_2 W)`, rates included, on stacked rows."""
    drive = drive_matrix(problem.labels, problem.num_classes, problem.gamma)
    n, c = len(problem.labels), problem.num_classes
    top = torch.cat([-problem.feature_decay * torch.eye(n, dtype=torch.float64), drive.T], dim=1)
    low = torch.cat([drive, -problem.weight_decay * torch.eye(c, dtype=torch.float64)], dim=1)
    return torch.cat([feature_clock * top, weight_clock * low])


def dense_flow(problem: Problem, feature_clock: float, weight_clock: float, log_scale: float = 0.0) -> Tensor:
    r"""The state :math:`e^{-c} Z` by a dense matrix exponential, (n + C, p); c is `log_scale`.

    Subtracting c times the identity from the exponent scales the result exactly and keeps it in range.
    """
    matrix = generator_matrix(problem, feature_clock, weight_clock)
    matrix = matrix - log_scale * torch.eye(len(matrix), dtype=torch.float64)
    return torch.from_numpy(np.asarray(expm(matrix.numpy()))) @ problem.state


def direction(state: Tensor) -> Tensor:
    return state / state.norm()


def apart(a: Tensor, b: Tensor) -> float:
    """Distance of two directions, by the part of one that is perpendicular to the other: accurate when tiny."""
    a, b = direction(a).flatten(), direction(b).flatten()
    side = (a - (a @ b) * b).norm()
    return 2 * torch.sin(torch.atan2(side, a @ b) / 2).item()


def relative(value: Tensor, reference: Tensor) -> float:
    """Norm of the difference over the norm of the reference."""
    return ((value - reference).norm() / reference.norm()).item()


def measured_exponent(distance: Callable[[float], float], early: float, late: float) -> float:
    """Slope of the logarithm of a distance between two times."""
    return (np.log(distance(late)) - np.log(distance(early))) / (late - early)
