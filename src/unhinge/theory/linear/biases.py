r"""The biases of a path: they see no features, only their own decay and a constant drive  [eq: bias]."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unhinge.theory.linear.symbols import Symbol

__all__ = ["Biases"]


@dataclass(frozen=True, kw_only=True)
class Biases:
    r""":math:`b' = \eta_2(\kappa - \lambda_2 b)`, so :math:`b(t) = a(t)\,b_0 + c(t)\,\kappa` with the two scalars of
    :meth:`~unhinge.theory.linear.symbols.Symbol.relaxation`.

    Without decay and under a pull that never stops they run to infinity; unlike the rest of the state they have no
    direction that could be asked for instead, so :meth:`limit` says so by its value and not by an error.
    """

    start: Tensor  # (C,), b_0
    drive: Tensor  # (C,) float64 CPU, kappa
    rate: Tensor  # (), the peak of their schedule
    decay: Tensor  # (), lambda_2
    symbol: Symbol  # of the optimizer, with the shape of their schedule

    def at(self, moments: Tensor) -> Tensor:
        """The biases at these times, (*, C) float64 CPU."""
        keep, push = self.symbol.relaxation(moments, self.rate, self.decay)
        return keep[..., None] * self.start.double().cpu() + push[..., None] * self.drive

    def apart(self, moments: Tensor) -> Tensor:
        """The same minus the bias of the first class: what a decision sees.

        A common drive outlives differences that decay, and would drown them. One class is taken off and not the mean,
        because equal drives then cancel to the last bit.
        """
        start = self.start.double().cpu()
        return replace(self, start=start - start[0], drive=self.drive - self.drive[0]).at(moments)

    def limit(self) -> Tensor:
        """Where they end, (C,) float64 CPU."""
        start, shape = self.start.double().cpu(), self.symbol.shape
        if self.rate.item() == 0:
            return start
        if shape.floor == 0 and math.isfinite(shape.settles):
            return self.at(self.symbol.times(math.ceil(shape.settles)))
        if self.decay.item() > 0:
            return self.drive * self.symbol.rest(self.decay)
        return torch.where(self.drive == 0, start, torch.sign(self.drive) * torch.inf)
