"""Random problems to test a claim on, small enough for dense references."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["Problem", "between", "choose", "draw", "gaussian", "simplex", "whole"]

T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """Balanced labels, class-grouped, with a random start."""

    num_classes: int
    per_class: int
    gamma: float
    features: Tensor  # (n, p)
    weight: Tensor  # (C, p)
    bias: Tensor  # (C,)
    feature_decay: float = 0.0
    weight_decay: float = 0.0

    @property
    def labels(self) -> Tensor:
        return torch.arange(self.num_classes).repeat_interleave(self.per_class)

    @property
    def dim(self) -> int:
        return self.weight.shape[1]

    @property
    def state(self) -> Tensor:
        """Features over prototypes, (n + C, p)."""
        return torch.cat([self.features, self.weight])

    @property
    def leading(self) -> float:
        r""":math:`\sigma_1 = (1 + \gamma)/(C\sqrt N)`."""
        return (1 + self.gamma) / (self.num_classes * math.sqrt(self.per_class))

    def with_decay(self, feature_decay: float, weight_decay: float) -> Problem:
        return replace(self, feature_decay=feature_decay, weight_decay=weight_decay)


def draw(
    generator: torch.Generator,
    gamma: float | None = None,
    num_classes: int | None = None,
    per_class: int | None = None,
    dim: int | None = None,
) -> Problem:
    r"""A random problem; by default :math:`0.2 \le \gamma (C-2)/2 \le 0.8`, well inside Corollary 1."""
    classes = num_classes or whole(generator, 3, 5)
    examples = per_class or whole(generator, 2, 3)
    width = dim or whole(generator, 2, 6)
    if gamma is None:
        gamma = between(generator, 0.2, 0.8) * 2 / (classes - 2) if classes > 2 else between(generator, 0.2, 0.8)
    return Problem(
        classes,
        examples,
        gamma,
        gaussian(generator, classes * examples, width),
        gaussian(generator, classes, width),
        gaussian(generator, classes),
    )


def simplex(num_classes: int) -> Tensor:
    r"""Unit simplex ETF in :math:`C` dimensions, by centering and normalizing the unit vectors."""
    centered = torch.eye(num_classes, dtype=torch.float64) - 1 / num_classes
    return centered / centered.norm(dim=1, keepdim=True)


def gaussian(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def between(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()


def whole(generator: torch.Generator, low: int, high: int) -> int:
    """An integer from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator).item())


def choose(generator: torch.Generator, *values: T) -> T:
    return values[whole(generator, 0, len(values) - 1)]
