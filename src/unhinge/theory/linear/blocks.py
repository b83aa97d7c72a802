r"""What propagators are made from, and what they return: a 2 x 2 matrix per group of modes, its scale apart.

Each mode couples one row of the features, x, and one of the prototypes, y, by
:math:`\mathcal G = \begin{pmatrix} -s_1\lambda_1 & s_1\sigma \\ s_2\sigma & -s_2\lambda_2 \end{pmatrix}`, where
:math:`s_1, s_2` are the peak rates  [eq: propagator].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Blocks", "Rates", "survival"]


@dataclass(frozen=True)
class Rates:
    """Peak rates and decays: what the generator of a mode is made of."""

    features: Tensor  # (), s_1
    weight: Tensor  # (), s_2
    feature_decay: Tensor  # (), lambda_1
    weight_decay: Tensor  # (), lambda_2

    @property
    def mean_decay(self) -> Tensor:
        return (self.features * self.feature_decay + self.weight * self.weight_decay) / 2

    @property
    def half_gap(self) -> Tensor:
        r""":math:`D = \frac12(s_1\lambda_1 - s_2\lambda_2)`."""
        return (self.features * self.feature_decay - self.weight * self.weight_decay) / 2


@dataclass(frozen=True)
class Blocks:
    r"""The matrices :math:`e^{\text{lead} + \text{log}}\,\hat\Phi` of all G groups at the asked times."""

    lead: Tensor  # (*,), logarithmic scale common to all groups
    log: Tensor  # (*, G), the rest of the scale
    matrix: Tensor  # (*, G, 2, 2), entries of order one
    whole: Tensor | None = None  # the same with the parts that the start does not have, if anyone may ask for slopes

    def relative(self) -> Tensor:
        """The matrices divided by the common scale, shape (*, G, 2, 2)."""
        return torch.exp(self.log)[..., None, None] * self.matrix

    def carry(self, start: Callable[[Tensor], tuple[Tensor, ...]], lead: Tensor | float = 0.0) -> tuple[Tensor, ...]:
        """What linear functions of the matrices, times exp(lead), make of a start.

        A part that the start does not have is zero, or the rounding of zero, and must stay so. Its slope need not be
        zero: next to this start there are others that have it.
        """
        factor = torch.exp(self.log + lead)[..., None, None]
        there = start(factor * self.matrix)
        if self.whole is None:
            return there
        smooth = start(factor * self.whole)
        return tuple(part.detach() + (whole - whole.detach()) for part, whole in zip(there, smooth, strict=True))

    def act(self, factor: Tensor) -> Tensor:
        """The matrices, divided by the common scale, on the coordinates of a start: (*, G, 2, 2)."""
        return self.carry(lambda matrix: (matrix @ factor,))[0]


def survival(growth: float, neutral: float) -> float:
    """1 for a leading part that neither grows nor decays, 0 for one that decays; an error for one that grows."""
    if growth > neutral:
        raise ValueError(
            f"Z diverges: at a constant rate its norm grows as exp({growth:.6g} x time), because the decays are too "
            "weak: they must multiply to the square of critical_decay, or to more if they are decoupled and there is "
            "momentum; or because the step is too large for them. Ask direction() for the limit of Z/|Z|, raise the "
            "decays, or lower lr."
        )
    return 0.0 if growth < -neutral else 1.0
