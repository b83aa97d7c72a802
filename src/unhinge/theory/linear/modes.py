r"""The groups of modes as a table: how strongly each is coupled, how many they are, how fast they grow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.theory.linear.blocks import Rates
from unhinge.theory.linear.commuting import eigen
from unhinge.theory.linear.momentum import Momentum, MomentumSymbol
from unhinge.theory.linear.ordered import DescentSteps
from unhinge.theory.linear.prior import PriorSpectrum
from unhinge.theory.linear.spectrum import HardSpectrum, Spectrum
from unhinge.theory.linear.symbols import DescentSymbol, FlowSymbol, Symbol
from unhinge.theory.numerics import EPS, safe_divide
from unhinge.theory.schedules import Constant, Schedule, steady_rate

__all__ = ["Modes", "find_modes", "multiplicities"]


@dataclass(frozen=True)
class Modes:
    r"""Groups of modes of the target matrix, by descending singular value; made by ``LayerPeeled.modes``.

    A mode pairs a direction among the features with one among the prototypes, coupled by :math:`\sigma`. Modes with
    equal :math:`\sigma` form a group: training treats them alike. `sigma`, `multiplicity` and `growth` have the shape
    :math:`(K,)` for :math:`K` groups.

    Example:
        >>> from unhinge import LayerPeeled
        >>> modes = LayerPeeled(
        ...     [0, 0, 0, 1, 1, 2], feature_decay=0.3, weight_decay=0.3
        ... ).modes(lr=0.1)
        >>> modes.sigma, modes.grows
        (tensor([0.4014, 0.2982, 0.0000], dtype=torch.float64), tensor([ True, False,
         False]))
    """

    sigma: Tensor  # (K,) float64, singular values, descending
    multiplicity: Tensor  # (K,) int64, how many modes share each of them
    growth: Tensor  # (K,) float64, exponent of the fastest part per unit of time (per step if discrete)
    discrete: bool

    @property
    def grows(self) -> Tensor:
        """Which groups grow without bound, (K,) bool."""
        return self.growth > 0

    def __len__(self) -> int:
        return len(self.sigma)

    def __repr__(self) -> str:
        columns = ("sigma", "multiplicity", "growth")
        shown = ", ".join(f"{name}=[{_shortened(getattr(self, name))}]" for name in columns)
        return f"Modes({shown}, discrete={self.discrete})"


def _shortened(column: Tensor) -> str:
    texts = [f"{value:.4g}" for value in column[:4].tolist()]
    return ", ".join([*texts, "..."] if len(column) > len(texts) else texts)


def multiplicities(spectrum: Spectrum) -> Tensor:
    """How many modes each group of the spectrum holds, (G - 1,) int64; without the last group, which none touches."""
    groups = len(spectrum.sigma) - 1
    if isinstance(spectrum, PriorSpectrum):
        return spectrum.dimensions
    if not isinstance(spectrum, HardSpectrum):
        return torch.bincount(spectrum.group, minlength=groups)
    ties = (spectrum.multiplicity[spectrum.poles] - 1).long()  # differences of m tied classes: one fewer than these
    return torch.cat([ties, torch.ones(groups - len(ties), dtype=torch.int64)])


def find_modes(
    spectrum: Spectrum, rates: Rates, schedules: tuple[Schedule, Schedule], options: Momentum | None
) -> Modes:
    """Group the modes and ask how each grows: under flow, or under descent if `options` are given."""
    sigma = spectrum.sigma[:-1].abs()
    growth = _growths(spectrum, rates, schedules, options)[:-1]
    order = torch.argsort(sigma.detach(), descending=True, stable=True)
    sigma, growth, count = sigma[order], growth[order], multiplicities(spectrum)[order]
    # Two groups of the spectrum can have one singular value (gamma = 0, gamma = 2/(C-2)); it may be rounded twice.
    level = sigma.detach()
    opens = torch.cat([torch.tensor([True]), level[:-1] - level[1:] > 16 * EPS * level[0]])
    group = torch.cumsum(opens, 0) - 1
    joined = torch.zeros(int(group[-1]) + 1, dtype=torch.int64).index_add(0, group, count)
    return Modes(sigma[opens], joined, growth[opens], options is not None)


def _growths(
    spectrum: Spectrum, rates: Rates, schedules: tuple[Schedule, Schedule], options: Momentum | None
) -> Tensor:
    steady = Rates(steady_rate(schedules[0]), steady_rate(schedules[1]), rates.feature_decay, rates.weight_decay)
    if options is not None and options.factor and options.decoupled:
        # Unequal shrinking of the two sides does not commute with the pull: the step itself, as a 4 x 4 matrix.
        steps = DescentSteps(spectrum.sigma, steady, schedules, options)
        rate = torch.stack([steady.features, steady.weight])[None]
        step = steps.step(rate, 1 - options.dampening, options.factor)[0]
        modulus = torch.linalg.eigvals(step).abs().amax(-1)
        # Without a gradient the buffers stay empty, and the decay is all there is.
        alone = torch.maximum(
            (1 - steady.features * steady.feature_decay).abs(), (1 - steady.weight * steady.weight_decay).abs()
        )
        return torch.where(spectrum.sigma == 0, alone, modulus).log()
    radius = eigen(spectrum, steady)[0]
    decays = steady.feature_decay, steady.weight_decay
    product = steady.features * steady.weight
    # sigma^2 - lambda_1 lambda_2 exactly: next to the critical decay it decides between growth and decay.
    # A difference of at least half of what is subtracted magnifies rounding five times at most: good enough.
    both = decays[0] * decays[1]
    excess = spectrum.sigma**2 - both
    close = (excess[:-1].abs() <= 0.5 * both).nonzero().flatten()
    if len(close):
        exact = torch.stack([spectrum.excess(k, both, decays) for k in close.tolist()])
        excess = excess.index_copy(0, close, exact)
    larger = safe_divide(product * excess, radius + steady.mean_decay)
    smaller = -steady.mean_decay - radius
    symbol = _symbol(options)
    unit = torch.ones((), dtype=torch.float64)
    # A step that is too large makes the smaller eigenvalue the larger multiplier.
    return torch.maximum(symbol.growth(larger, unit), symbol.growth(smaller, unit))


def _symbol(options: Momentum | None) -> Symbol:
    if options is None:
        return FlowSymbol(Constant())
    if not options.factor:
        return DescentSymbol(Constant())
    return MomentumSymbol(Constant(), options, torch.zeros((), dtype=torch.float64))
