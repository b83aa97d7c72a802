r"""How a mode moves: a 2 x 2 matrix :math:`\Phi(\sigma, t)` with its logarithmic scale apart  [eq: propagator].

Two ways to answer, and the choice between them:

* :class:`~unhinge.theory.linear.commuting.Commuting`: proportional rates, in closed form at any time.
* :class:`~unhinge.theory.linear.ordered.Ordered`: anything else, as an ordered product of small matrices.

A propagator knows the start only by how much of it lies on each eigenvalue: `factor`, the coordinates of
:attr:`unhinge.theory.linear.path.Start.factor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unhinge.theory.linear.blocks import Blocks, Rates
from unhinge.theory.linear.commuting import Commuting, commuting, eigen
from unhinge.theory.linear.momentum import Momentum, MomentumSymbol, stalled
from unhinge.theory.linear.ordered import DescentSteps, FlowPanels, Ordered
from unhinge.theory.linear.spectrum import Spectrum
from unhinge.theory.linear.symbols import DescentSymbol, FlowSymbol
from unhinge.theory.schedules import Schedule
from unhinge.theory.types import Number, Time

__all__ = ["Propagator", "descent_propagator", "flow_propagator"]

NEARLY_ZERO = 1e-6  # of the trace of a step: its roots are then below 1e-3


class Propagator(Protocol):
    """What a path asks: matrices over time, and what is left of them in the end."""

    @property
    def requires_grad(self) -> bool: ...
    @property
    def ends(self) -> float | None:
        """The time after which all rates are zero; None if some rate stays positive."""

    def times(self, time: Time) -> Tensor:
        """Checked times, in the unit of the optimizer."""

    def blocks(self, time: Tensor) -> Blocks: ...
    def lead(self) -> Tensor:
        r"""Matrices (G, 2, 2) that take the start to :math:`Z_\pi`, what survives; zero on groups that fall behind."""

    def final(self) -> Tensor:
        """Matrices (G, 2, 2) that take the start to the limit of Z itself; an error if it diverges."""

    def split(self, time: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
        r"""The factor :math:`a(t)` of :math:`Z_\pi`, (*,), and the matrices (*, G, 2, 2) of all the rest."""

    def growth(self, lr: Number | None) -> Tensor:
        """Exponent of the leading part per unit of time, at a constant rate of the prototypes."""

    def falls(self, lr: Number | None) -> Tensor:
        """Exponents of the other parts of the start relative to it; -inf for those it does not have."""


def flow_propagator(
    spectrum: Spectrum, rates: Rates, schedules: tuple[Schedule, Schedule], factor: Tensor
) -> Propagator:
    """Gradient flow: in closed form if the rates are proportional.

    Arguments:
        factor: Coordinates of the start, (G, side, 2).
    """
    if _together(schedules):
        return commuting(spectrum, rates, FlowSymbol(schedules[1].shape), factor)
    return Ordered(FlowPanels(spectrum.sigma, rates, schedules), factor)


def descent_propagator(
    spectrum: Spectrum,
    rates: Rates,
    schedules: tuple[Schedule, Schedule],
    options: Momentum,
    factor: Tensor,
) -> Propagator:
    """SGD: in closed form if the rates are proportional and no step is so long that signs alternate."""
    closed: Propagator | None = None
    if _together(schedules):
        solve = _momentum_in_closed_form if options.factor else _plain_in_closed_form
        closed = solve(spectrum, rates, schedules[1], options, factor)
    if closed is None:
        closed = Ordered(DescentSteps(spectrum.sigma, rates, schedules, options), factor)
    return Stalled(closed) if options.stalls else closed


@dataclass(frozen=True)
class Stalled:
    """SGD that takes in one gradient only: its steps are those of `inner`, but they lead to no limit of training."""

    inner: Propagator

    @property
    def requires_grad(self) -> bool:
        return self.inner.requires_grad

    @property
    def ends(self) -> float | None:
        return self.inner.ends

    def times(self, time: Time) -> Tensor:
        return self.inner.times(time)

    def blocks(self, time: Tensor) -> Blocks:
        return self.inner.blocks(time)

    def lead(self) -> Tensor:
        raise stalled()

    def final(self) -> Tensor:
        raise stalled()

    def split(self, time: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
        raise stalled()

    def growth(self, lr: Number | None) -> Tensor:
        raise stalled()

    def falls(self, lr: Number | None) -> Tensor:
        raise stalled()


def _plain_in_closed_form(
    spectrum: Spectrum, rates: Rates, schedule: Schedule, options: Momentum, factor: Tensor
) -> Commuting | None:
    # The reference is the larger eigenvalue of some mode, and :math:`1 + \eta\omega` must stay positive there: it is at
    # least 1 minus the smaller of the two decays. The other bound keeps the larger eigenvalue the larger multiplier,
    # |1 + eta omega_+| >= |1 + eta omega_-|, whatever sigma.
    highest = schedule.shape.highest
    decays = (rates.features * rates.feature_decay).item(), (rates.weight * rates.weight_decay).item()
    if sum(decays) > 0 and not (highest * min(decays) < 1 and highest * sum(decays) < 2):
        return None
    return commuting(spectrum, rates, DescentSymbol(schedule.shape), factor)


def _momentum_in_closed_form(
    spectrum: Spectrum, rates: Rates, schedule: Schedule, options: Momentum, factor: Tensor
) -> Commuting | None:
    shrink = torch.zeros_like(rates.features)
    if options.decoupled:
        # A decoupled decay multiplies each side by its own factor, and that commutes with the pull only if they agree.
        shrink, other = rates.features * rates.feature_decay, rates.weight * rates.weight_decay
        # Nor is it enough that they are equal where a gradient may move them apart.
        decays, peaks = (rates.feature_decay, rates.weight_decay), (rates.features, rates.weight)
        apart = any(decay.requires_grad for decay in decays) or (
            shrink.item() > 0 and any(p.requires_grad for p in peaks)
        )
        if apart or shrink.item() != other.item():
            return None
        none = torch.zeros_like(shrink)
        rates = Rates(rates.features, rates.weight, none, none)
    # The trace of the step at the lowest eigenvalue: below zero its larger root is negative, and signs alternate. Just
    # below, as after rounding at Nesterov's rate of one over the largest singular value, both roots are almost zero:
    # nothing is left of them that could alternate, and a product of steps, nearly without eigenvectors, is less exact.
    lowest = -(rates.mean_decay + eigen(spectrum, rates)[0].max()).item()
    trace = 1 + options.factor + schedule.shape.highest * ((1 + options.factor) * lowest - shrink.item())
    if trace < (-NEARLY_ZERO if options.nesterov and not options.decoupled else 0):
        return None
    symbol = MomentumSymbol(schedule.shape, options, shrink)
    solved = commuting(spectrum, rates, symbol, factor)
    # Where the leading part turns, it has no logarithm that everything could be measured against.
    return None if symbol.oscillates(solved.reference) else solved


def _together(schedules: tuple[Schedule, Schedule]) -> bool:
    """Proportional rates, both positive."""
    return schedules[0].proportional_to(schedules[1]) and all(s.peak.item() > 0 for s in schedules)
