"""References written from the definitions: dense matrices, autograd, step-by-step simulation.

They share no algebra with the engine or with the paper's closed forms, and can afford to: the problems are small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import expm
from torch import Tensor

from unhinge.paper.claims.problems import Problem

__all__ = [
    "Modes",
    "apart",
    "dense_flow",
    "direction",
    "drive_matrix",
    "expand",
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
    of_features, of_weight, of_bias = torch.autograd.grad(loss, (h, w, b))
    return of_features, of_weight, of_bias


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


@dataclass(frozen=True)
class Modes:
    """A flow as a sum of exponentials, by the eigenvectors of its dense generator.

    It answers at times where the distance to the limit is far below rounding, so that a slope can be taken where
    nothing but the slowest part is left, however close the next one comes.
    """

    exponents: Tensor  # (K,), falling: those that the start has a part in
    parts: Tensor  # (K, n + C, p)

    def log_distance(self, clock: float) -> float:
        """Logarithm of the distance of the direction to its limit."""
        first, second = self.exponents[0], self.exponents[1]
        decay = torch.exp((self.exponents[1:] - second) * clock)
        rest = torch.einsum("k,kmp->mp", decay, self.parts[1:])
        end = direction(self.parts[0])
        along = (rest * end).sum().item()
        side, front = (rest - along * end).norm().item(), self.parts[0].norm().item()
        log_share = ((second - first) * clock).item()
        if log_share < -30:  # 2 sin(atan(x) / 2) is x, and the front is that of the limit, to rounding
            return log_share + math.log(side / front)
        share = math.exp(log_share)
        return math.log(2 * math.sin(math.atan2(share * side, front + share * along) / 2))

    def slope(self) -> float:
        """Slope of :meth:`log_distance` where the distance, and in it each part but the slowest, is below e^-40."""
        early = 40 / -self.exponents[:3].diff().max().item()
        return (self.log_distance(2 * early) - self.log_distance(early)) / early


def expand(problem: Problem, ratio: float) -> Modes:
    """The flow of a problem at rates `ratio` and 1, per unit of the second clock."""
    matrix = generator_matrix(problem, ratio, 1.0)
    # Dividing the features by the root of the ratio makes the generator symmetric.
    scale = torch.ones(len(matrix), dtype=torch.float64)
    scale[: len(problem.labels)] = math.sqrt(ratio)
    values, vectors = torch.linalg.eigh(matrix * scale / scale[:, None])
    start, exponents, parts = problem.state / scale[:, None], [], []
    groups = torch.cat([torch.zeros(1), (values.diff() > 1e-10).cumsum(0)])
    for group in groups.unique().flip(0):
        space = vectors[:, groups == group]
        part = scale[:, None] * (space @ (space.T @ start))
        if part.norm() > 1e-12 * problem.state.norm():
            exponents.append(values[groups == group].mean())
            parts.append(part)
    return Modes(torch.stack(exponents), torch.stack(parts))


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
