r"""How a mode moves: a 2 x 2 matrix :math:`\Phi(\sigma, t)` with its logarithmic scale apart  [eq: propagator].

Each mode couples one row of the features, x, and one of the prototypes, y, by
:math:`\mathcal G = \begin{pmatrix} -s_1\lambda_1 & s_1\sigma \\ s_2\sigma & -s_2\lambda_2 \end{pmatrix}`, where
:math:`s_1, s_2` are the peak rates. Two ways to answer:

* :class:`Commuting`: proportional rates. All steps share the eigenvectors of :math:`\mathcal G`, so a
  :mod:`symbol <unhinge.theory.linear.symbols>` of the two eigenvalues :math:`\omega_\pm` gives the exact answer at any
  time.
* :class:`Ordered`: anything else, as an ordered product of small matrices.

Knows nothing of data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unhinge.theory.linear.spectrum import Spectrum
from unhinge.theory.linear.symbols import Symbol

__all__ = [
    "Blocks",
    "Commuting",
    "Propagator",
    "Rates",
    "commuting",
    "eigen",
    "safe_divide",
    "safe_norm",
    "safe_sqrt",
    "survival",
]

EPS = torch.finfo(torch.float64).eps


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

    def relative(self) -> Tensor:
        """The matrices divided by the common scale, shape (*, G, 2, 2)."""
        return torch.exp(self.log)[..., None, None] * self.matrix


class Propagator(Protocol):
    """What a path asks: matrices over time, and what is left of them in the end."""

    @property
    def requires_grad(self) -> bool: ...
    @property
    def ends(self) -> float | None:
        """The time after which all rates are zero; None if some rate stays positive."""

    def times(self, time: object) -> Tensor:
        """Checked times, in the unit of the optimizer."""

    def blocks(self, time: Tensor) -> Blocks: ...
    def bias(self, time: Tensor) -> tuple[Tensor, Tensor]:
        r"""Factors of :math:`b_0` and of the constant drive."""

    def lead(self) -> Tensor:
        r"""Matrices (G, 2, 2) that take the start to :math:`Z_\pi`, what survives; zero on groups that fall behind."""

    def final(self) -> Tensor:
        """Matrices (G, 2, 2) that take the start to the limit of Z itself; an error if it diverges."""

    def split(self, time: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
        r"""The factor :math:`a(t)` of :math:`Z_\pi`, (*,), and the matrices (*, G, 2, 2) of all the rest."""

    def growth(self, lr: float | None) -> Tensor:
        """Exponent of the leading part per unit of time, at a constant rate of the prototypes."""

    def falls(self, lr: float | None) -> Tensor:
        """Exponents of the other parts of the start relative to it; -inf for those it does not have."""


def safe_sqrt(x: Tensor) -> Tensor:
    """Square root with slope 0 at 0, for roots that enter only through even functions."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


def safe_norm(x: Tensor, dims: int) -> Tensor:
    """The norm over the last `dims` axes, where squares would underflow too; its gradient at zero is zero."""
    axes = tuple(range(-dims, 0))
    size = x.detach().abs().amax(axes, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    return size.reshape(size.shape[:-dims]) * safe_sqrt((x / size).pow(2).sum(axes))


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


@dataclass(frozen=True)
class Commuting:
    """Proportional rates, both positive: exact at any time."""

    spectrum: Spectrum
    rates: Rates
    symbol: Symbol
    bias_decay: Tensor  # ()
    radius: Tensor  # (G,), d = half the distance of the two eigenvalues
    omega: Tensor  # (G,), the larger eigenvalue
    plus: Tensor  # (G, 2, 2), projector on the larger eigenvalue; the identity where the two coincide
    growing: Tensor  # (G,) bool, whether the start has a part there
    decaying: Tensor  # (G,) bool, whether it has one on the smaller eigenvalue
    reference: Tensor  # (), eigenvalue that everything is measured against
    gaps: Tensor  # (G, 2), reference minus larger and smaller eigenvalue
    leads: Tensor  # (G, 2) bool, the parts that survive

    def times(self, time: object) -> Tensor:
        return self.symbol.times(time)

    @property
    def requires_grad(self) -> bool:
        return self.reference.requires_grad or self.gaps.requires_grad or self.plus.requires_grad

    def bias(self, time: Tensor) -> tuple[Tensor, Tensor]:
        return self.symbol.bias(time, self.rates.weight, self.bias_decay)

    def blocks(self, time: Tensor) -> Blocks:
        log, value = self.symbol.factors(time, self.reference, self.gaps[:, 0])
        drop, minus_value = self.symbol.factors(time, self.omega, 2 * self.radius)
        minus_log = log + drop
        log = torch.where(self.growing, log, -torch.inf)
        value = torch.where(self.growing, value, 0.0)
        if not bool(self.growing.all()):  # measured directly: its larger part, absent, would be the larger scale
            direct, direct_value = self.symbol.factors(time, self.reference, self.gaps[:, 1])
            minus_log = torch.where(self.growing, minus_log, direct)
            minus_value = torch.where(self.growing, minus_value, direct_value)
        alone = ~self.decaying & ~self.growing
        minus_log = torch.where(alone, 0.0, minus_log)
        scale = torch.maximum(log, minus_log).detach()
        scale = torch.where(torch.isfinite(scale), scale, 0.0)
        a = value * torch.exp(log - scale)
        b = torch.where(alone, 0.0, minus_value * torch.exp(minus_log - scale))
        usual = self.growing & (value == 1) & (minus_value == 1) & (drop <= 0)
        spread = torch.where(usual, -torch.expm1(torch.where(usual, drop, 0.0)) * torch.exp(log - scale), a - b)
        spread = safe_divide(spread, 2 * self.radius)
        if bool((self.radius == 0).any()):
            slope = self.symbol.slope(time, self.omega)
            spread = torch.where(self.radius == 0, a * slope, spread)
        up, down = self._tilt()
        sigma = self.spectrum.sigma
        entries = [
            (down * a + up * b) / 2,
            self.rates.features * sigma * spread,
            self.rates.weight * sigma * spread,
            (up * a + down * b) / 2,
        ]
        uncoupled = (sigma == 0) & ~alone
        if bool(uncoupled.any()):
            apart = self._uncoupled(time, scale)
            entries[0] = torch.where(uncoupled, apart[0], entries[0])
            entries[3] = torch.where(uncoupled, apart[1], entries[3])
        matrix = torch.stack(entries, -1).unflatten(-1, (2, 2))
        return Blocks(self.symbol.log(time, self.reference), scale, matrix)

    def _uncoupled(self, time: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Factors of features and prototypes where sigma is 0: each decays at its own rate, smooth where they cross."""
        first_is_faster = bool(self.rates.half_gap >= 0)
        kept = []
        for rate, decay, smaller in (
            (self.rates.features, self.rates.feature_decay, first_is_faster),
            (self.rates.weight, self.rates.weight_decay, not first_is_faster),
        ):
            moving = self.reference + rate * decay
            gap = self.gaps[:, int(smaller)].detach() + moving - moving.detach()  # value without cancellation
            log, value = self.symbol.factors(time, self.reference, gap)
            kept.append(value * torch.exp((log - scale).clamp(max=50)))  # an absent side must not overflow
        return kept[0], kept[1]

    def _tilt(self) -> tuple[Tensor, Tensor]:
        return tilt(self.spectrum.sigma, self.rates, self.radius)

    @property
    def ends(self) -> float | None:
        return self.symbol.shape.settles if self.symbol.shape.floor == 0 else None

    def lead(self) -> Tensor:
        minus = torch.eye(2, dtype=torch.float64) - self.plus
        return self.plus * self.leads[:, :1, None] + minus * self.leads[:, 1:, None]

    def split(self, time: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Without cancellation, however small the rest has become."""
        eye = torch.eye(2, dtype=torch.float64)
        whole = torch.where(self.leads.any(1)[:, None, None], 0.0, blocks.relative())
        behind = torch.stack([self.growing, self.decaying], 1) & ~self.leads & self.leads.any(1, keepdim=True)
        for group, smaller in behind.nonzero().tolist():  # the other part of a group that leads: rarely more than one
            log, value = self.symbol.factors(time, self.reference, self.gaps[group, smaller, None])
            part = eye - self.plus[group] if smaller else self.plus[group]
            factor = (value * torch.exp(log))[..., None] * part
            whole = whole.index_copy(-3, torch.tensor([group]), factor[..., None, :, :])
        none = torch.zeros(1, dtype=torch.float64)
        return self.symbol.factors(time, self.reference, none)[1][..., 0], whole

    def growth(self, lr: float | None) -> Tensor:
        return self.symbol.growth(self.reference, self._multiple(lr))

    def falls(self, lr: float | None) -> Tensor:
        falls = self.symbol.fall(self.reference, self.gaps.flatten(), self._multiple(lr)).reshape(self.gaps.shape)
        present = torch.stack([self.growing, self.decaying], 1) & ~self.leads
        return torch.where(present, falls, -torch.inf)

    def _multiple(self, lr: float | None) -> Tensor:
        """The rate asked for as a multiple of the schedule's peak."""
        floor = self.symbol.shape.floor
        if lr is not None:
            return torch.as_tensor(lr, dtype=torch.float64) / self.rates.weight
        if not floor > 0:
            raise ValueError(
                "the schedule does not end with a constant positive rate, so there is no exponent per unit of time. "
                "Pass one: growth(lr=...), rate(lr=...); lr=1 gives exponents per unit of the integrated rate."
            )
        return torch.tensor(floor, dtype=torch.float64)

    def final(self) -> Tensor:
        unit = torch.ones((), dtype=torch.float64)
        neutral = 16 * EPS * (self.radius.max() + self.rates.mean_decay).item()  # the critical decay up to rounding
        survives = survival(self.symbol.growth(self.reference, unit).item(), neutral)
        late = self.times(10**15)  # momentum leaves the neutral part with a factor of its own
        return survives * self.split(late, self.blocks(late))[0] * self.lead()


def survival(growth: float, neutral: float) -> float:
    """1 for a leading part that neither grows nor decays, 0 for one that decays; an error for one that grows."""
    if growth > neutral:
        raise ValueError(
            f"Z diverges: its norm grows as exp({growth:.6g} x integrated rate), because the decays multiply to less "
            "than the square of critical_decay. Ask direction() for the limit of Z/|Z|, or raise the decays."
        )
    return 0.0 if growth < -neutral else 1.0


def tilt(sigma: Tensor, rates: Rates, radius: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`1 + D/d` and :math:`1 - D/d`, the smaller one without cancellation."""
    ratio = safe_divide(rates.half_gap, radius)
    small = safe_divide(rates.features * rates.weight * sigma**2, radius**2)
    small = small / (1 + ratio.abs())
    up = torch.where(ratio >= 0, 1 + ratio, small)
    down = torch.where(ratio <= 0, 1 - ratio, small)
    return up, down


def eigen(spectrum: Spectrum, rates: Rates) -> tuple[Tensor, Tensor, Tensor]:
    r"""Radius d, larger eigenvalue and its projector for each group  [eq: eigenvalues]."""
    sigma = spectrum.sigma
    product = rates.features * rates.weight
    radius = safe_sqrt(rates.half_gap**2 + product * sigma**2)
    decay = rates.feature_decay * rates.weight_decay
    omega = safe_divide(product * (sigma**2 - decay), radius + rates.mean_decay)
    up, down = tilt(sigma, rates, radius)
    cross = safe_divide(sigma, radius)
    entries = [down, rates.features * cross, rates.weight * cross, up]
    plus = torch.stack(entries, -1).unflatten(-1, (2, 2)) / 2
    eye = torch.eye(2, dtype=torch.float64).expand_as(plus)
    return radius, omega, torch.where((radius == 0)[:, None, None], eye, plus)


def commuting(
    spectrum: Spectrum,
    rates: Rates,
    symbol: Symbol,
    bias_decay: Tensor,
    factor: Tensor,
    eps: float,
) -> Commuting:
    """Choose the reference: the fastest part that the start, given by its `factor`, really has  [eq: gaps]."""
    radius, omega, plus = eigen(spectrum, rates)
    growing, decaying = presence(plus.detach(), factor.detach(), eps)
    mean = rates.mean_decay
    exponents = torch.stack([omega, -mean - radius], 1).detach()
    present = torch.stack([growing, decaying], 1)
    ranked = torch.where(present, exponents, -torch.inf).flatten()
    best = int(ranked.argmax())
    group, smaller = divmod(best, 2)
    product = rates.features * rates.weight
    # d_r - d_k through the squares, each gap to full relative accuracy
    falls = safe_divide(product * spectrum.square_gap(group), radius[group] + radius)
    if smaller:
        reference = -mean - radius[group]
        gaps = torch.stack([-(radius[group] + radius), -falls], 1)
    else:
        decays = rates.feature_decay, rates.weight_decay
        excess = spectrum.excess(group, decays[0] * decays[1], decays)
        reference = safe_divide(product * excess, radius[group] + mean)
        gaps = torch.stack([falls, falls + 2 * radius], 1)
        omega = omega.index_put((torch.tensor([group]),), reference)
    leads = present & (gaps.detach() == 0)  # ties are exact: equal counts, gamma at a special value, merged soft modes
    return Commuting(
        spectrum, rates, symbol, bias_decay, radius, omega, plus, growing, decaying, reference, gaps, leads
    )


def presence(plus: Tensor, factor: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Which groups have a part on the larger and on the smaller eigenvalue, beyond rounding: (G,) bool each.

    Arguments:
        plus: Projectors on the larger eigenvalue, (G, 2, 2).
        factor: Coordinates of the start, (G, side, 2).
        eps: Rounding unit of the start's dtype.
    """
    sizes = factor.pow(2).sum((0, 2)).sqrt()  # of all features, of all prototypes
    rounded = sizes * (factor != 0).any(-1)  # (G, side): a side that is exactly zero has no rounding
    found = []
    for projector in (plus, torch.eye(2, dtype=torch.float64) - plus):
        parts = (projector @ factor).norm(dim=-1)  # (G, side)
        noise = 32 * eps * (projector.abs() @ rounded[..., None]).squeeze(-1)
        found.append((parts > noise).any(1))
    return found[0], found[1]
