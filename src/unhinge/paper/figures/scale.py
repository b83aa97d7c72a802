"""The sizes at which a figure can be made: `paper`, the size printed, and `quick`, the same phenomenon in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["PAPER", "QUICK", "SCALES", "Scale", "as_scale"]

T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """Classes, examples per class and dimension; everything else is derived so that the curves keep their shape."""

    name: str
    num_classes: int
    per_class: int
    dim: int

    @property
    def target(self) -> Tensor:
        return torch.arange(self.num_classes).repeat_interleave(self.per_class)

    @property
    def unit(self) -> float:
        r""":math:`1/(C\sqrt N)`, in which growth rates and decays are measured."""
        return 1 / (self.num_classes * math.sqrt(self.per_class))

    def critical(self, gamma: float | None = None) -> float:
        r"""The decay :math:`\sigma_1 = (1+\gamma)/(C\sqrt N)` at which growth of the class differences stops."""
        return (1 + (1 / (self.num_classes - 1) if gamma is None else gamma)) * self.unit

    def gamma(self, printed: float) -> float:
        r"""The paper's :math:`\gamma`, kept at the same multiple of :math:`1/(C-1)`."""
        return printed * (PAPER.num_classes - 1) / (self.num_classes - 1)

    def decay(self, printed: float) -> float:
        """The paper's decay, kept at the same multiple of the critical one."""
        return printed * self.critical() / PAPER.critical()

    def steps(self, printed: int) -> int:
        """The paper's number of steps, kept at the same number of e-foldings."""
        return round(printed * PAPER.critical() / self.critical())

    def pick(self, quick: T, paper: T) -> T:
        """One of two values, where no rule of scaling says it."""
        return paper if self.name == "paper" else quick

    def simulated(self, shown: int, printed: int) -> int:
        """How far to simulate a curve shown for `shown` steps: `printed` steps in the paper's size, else all."""
        return self.pick(shown, min(shown, printed))

    def start(self, seed: int) -> tuple[Tensor, Tensor]:
        """Standard normal features and prototypes, float64."""
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(self.num_classes * self.per_class, self.dim, generator=generator, dtype=torch.float64)
        weight = torch.randn(self.num_classes, self.dim, generator=generator, dtype=torch.float64)
        return features, weight


PAPER = Scale("paper", num_classes=100, per_class=10, dim=512)
QUICK = Scale("quick", num_classes=10, per_class=5, dim=32)
# `small` is for trained networks; the numerical figures need no smaller size than the paper's there.
SCALES = {"quick": QUICK, "small": PAPER, "paper": PAPER}


def as_scale(name: str | Scale) -> Scale:
    """The scale of that name.

    Example:
        >>> as_scale("paper").num_classes
        100
    """
    if isinstance(name, Scale):
        return name
    if name not in SCALES:
        raise ValueError(f"there is no scale {name!r} for numerical figures. Choose one of: {', '.join(SCALES)}.")
    return SCALES[name]
