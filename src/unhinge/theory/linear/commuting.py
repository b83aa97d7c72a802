r"""Proportional rates: all steps share the eigenvectors of :math:`\mathcal G`, and a
:mod:`symbol <unhinge.theory.linear.symbols>` of its two eigenvalues :math:`\omega_\pm` gives the exact answer at any
time  [eq: eigenvalues].

Everything is measured against a *reference*, the fastest eigenvalue that the start has a part on, through the gaps to
it: each gap keeps its full relative accuracy, so a time of 1e12 magnifies no rounding. Knows nothing of data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from unhinge.theory.keeping import kept
from unhinge.theory.linear.blocks import Blocks, Rates, survival
from unhinge.theory.linear.spectrum import Spectrum
from unhinge.theory.linear.symbols import Symbol
from unhinge.theory.numerics import EPS, NOISE, safe_divide, safe_sqrt
from unhinge.theory.schedules import Schedule, needs_gradient, steady_rate
from unhinge.theory.types import Number, Time

__all__ = ["Commuting", "commuting", "eigen", "seen", "tilts"]

FAR = 300.0  # the logarithm of what an absent part may grow to: its square still fits

_Part = tuple[Tensor, Tensor]  # (*, G) each: logarithm and value


@dataclass(frozen=True)
class _Asked:
    """What every time shares: which parts there are, and the pairs that the symbol is asked about."""

    alone: Tensor  # (G,) bool, groups of which the start has nothing
    uncoupled: Tensor  # (G,) bool, groups with sigma = 0 of which it has something
    some_alone: bool
    all_grow: bool
    some_uncoupled: bool
    flat: bool  # whether two eigenvalues coincide
    pairs: int
    base: Tensor  # (pairs G,)
    gap: Tensor  # (pairs G,)
    tilts: tuple[Tensor, Tensor]  # (G,) each


@dataclass(frozen=True, kw_only=True)
class Commuting:
    """Proportional rates, both positive: exact at any time."""

    spectrum: Spectrum
    rates: Rates
    symbol: Symbol
    radius: Tensor  # (G,), d = half the distance of the two eigenvalues
    omega: Tensor  # (G,), the larger eigenvalue
    plus: Tensor  # (G, 2, 2), projector on the larger eigenvalue; the identity where the two coincide
    growing: Tensor  # (G,) bool, whether the start has a part there
    decaying: Tensor  # (G,) bool, whether it has one on the smaller eigenvalue
    reference: Tensor  # (), eigenvalue that everything is measured against
    gaps: Tensor  # (G, 2), reference minus larger and smaller eigenvalue
    leads: Tensor  # (G, 2) bool, the parts that survive
    sloped: bool  # whether slopes by the start or by a parameter may be asked for

    def times(self, time: Time) -> Tensor:
        return self.symbol.times(time)

    @property
    def requires_grad(self) -> bool:
        parts = self.reference, self.gaps, self.plus
        return any(part.requires_grad for part in parts) or needs_gradient(self.symbol.shape)

    @kept
    def _asked(self) -> _Asked:
        alone = ~self.decaying & ~self.growing
        uncoupled = (self.spectrum.sigma == 0) & ~alone
        all_grow, some_uncoupled = bool(self.growing.all()), bool(uncoupled.any())
        # All that is asked of the symbol, in one question: what it computes is shared.
        pairs = [(self.reference, self.gaps[:, 0]), (self.omega, 2 * self.radius)]
        if not all_grow:
            pairs.append((self.reference, self.gaps[:, 1]))
        if some_uncoupled:
            pairs.extend((self.reference, gap) for gap in self._uncoupled_gaps())
        base, gap = (torch.cat([pair[k].expand(len(self.gaps)) for pair in pairs]) for k in range(2))
        product = self.rates.features * self.rates.weight * self.spectrum.sigma**2
        both = tilts(self.rates.half_gap, product, self.radius)
        flat = bool((self.radius == 0).any())
        return _Asked(alone, uncoupled, bool(alone.any()), all_grow, some_uncoupled, flat, len(pairs), base, gap, both)

    def blocks(self, time: Tensor) -> Blocks:
        asked = self._asked
        alone = asked.alone
        factors = self.symbol.factors(time, asked.base, asked.gap)
        logs, values = (x.unflatten(-1, (asked.pairs, -1)).unbind(-2) for x in factors)
        larger, smaller = (logs[0], values[0]), (logs[0] + logs[1], values[1])
        there = larger, smaller
        if not asked.all_grow:
            # the smaller part measured directly: its larger part, absent, would be the larger scale
            there = (
                (torch.where(self.growing, logs[0], -torch.inf), torch.where(self.growing, values[0], 0.0)),
                (torch.where(self.growing, smaller[0], logs[2]), torch.where(self.growing, smaller[1], values[2])),
            )
        if asked.some_alone:
            there = there[0], (torch.where(alone, -torch.inf, there[1][0]), torch.where(alone, 0.0, there[1][1]))
        scale = torch.maximum(there[0][0], there[1][0]).detach()
        scale = torch.where(torch.isfinite(scale), scale, 0.0)

        def measured(parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
            # What is there never exceeds the scale by more than rounding. What is absent may lie above it by any
            # amount, and is multiplied by zeros later: it must stay finite, no more.
            return tuple(((log - scale).clamp(max=FAR), value) for log, value in parts)

        sides = measured(tuple((logs[side], values[side]) for side in (-2, -1)) if asked.some_uncoupled else ())
        matrix = self._matrix(time, measured(there), sides, logs[1], self.growing)
        whole = None
        if self.sloped and not asked.all_grow:
            whole = self._matrix(time, measured((larger, smaller)), sides, logs[1], torch.ones_like(alone))
        return Blocks(self.symbol.log(time, self.reference), scale, matrix, whole)

    def _matrix(
        self, time: Tensor, parts: tuple[_Part, ...], sides: tuple[_Part, ...], drop: Tensor, grows: Tensor
    ) -> Tensor:
        """The matrices (*, G, 2, 2).

        Arguments:
            parts: On the larger and on the smaller eigenvalue.
            sides: Of features and of prototypes alone, for groups with sigma = 0; empty if there are none.
            drop: Logarithm of the smaller part over the larger one, (*, G).
            grows: Groups whose larger part counts, (G,).
        """
        asked = self._asked
        (log, value), (minus_log, minus_value) = parts
        a, b = value * torch.exp(log), minus_value * torch.exp(minus_log)
        usual = grows & (value == 1) & (minus_value == 1) & (drop <= 0)
        spread = torch.where(usual, -torch.expm1(torch.where(usual, drop, 0.0)) * torch.exp(log), a - b)
        spread = safe_divide(spread, 2 * self.radius)
        # sigma is 0 where the radius is: the spread is multiplied by zero, and only a derivative of it is seen
        if asked.flat and self.requires_grad:
            slope = self.symbol.slope(time, self.omega) * torch.exp(log)
            spread = torch.where((self.radius == 0) & grows, slope, spread)
        up, down = asked.tilts
        sigma = self.spectrum.sigma
        entries = [
            (down * a + up * b) / 2,
            self.rates.features * sigma * spread,
            self.rates.weight * sigma * spread,
            (up * a + down * b) / 2,
        ]
        for entry, (side, factor) in zip((0, 3), sides, strict=False):
            entries[entry] = torch.where(asked.uncoupled, factor * torch.exp(side), entries[entry])
        return torch.stack(entries, -1).unflatten(-1, (2, 2))

    def _uncoupled_gaps(self) -> list[Tensor]:
        """Gaps (G,) of features and prototypes where sigma is 0: each decays at its own rate, smooth where they
        cross."""
        first_is_faster = bool(self.rates.half_gap >= 0)
        gaps = []
        for rate, decay, smaller in (
            (self.rates.features, self.rates.feature_decay, first_is_faster),
            (self.rates.weight, self.rates.weight_decay, not first_is_faster),
        ):
            moving = self.reference + rate * decay
            gaps.append(self.gaps[:, int(smaller)].detach() + moving - moving.detach())  # value without cancellation
        return gaps

    @property
    def ends(self) -> float | None:
        return self.symbol.shape.settles if self.symbol.shape.floor == 0 else None

    def lead(self) -> Tensor:
        minus = torch.eye(2, dtype=torch.float64) - self.plus
        return self.plus * self.leads[:, :1, None] + minus * self.leads[:, 1:, None]

    @kept
    def _behind(self) -> list[list[int]]:
        """The other part of a group that leads, as (group, whether it is the smaller): rarely more than one."""
        behind = torch.stack([self.growing, self.decaying], 1) & ~self.leads & self.leads.any(1, keepdim=True)
        pairs: list[list[int]] = behind.nonzero().tolist()
        return pairs

    def split(self, time: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Without cancellation, however small the rest has become."""
        eye = torch.eye(2, dtype=torch.float64)
        whole = torch.where(self.leads.any(1)[:, None, None], 0.0, blocks.relative())
        for group, smaller in self._behind:
            log, value = self.symbol.factors(time, self.reference, self.gaps[group, smaller, None])
            part = eye - self.plus[group] if smaller else self.plus[group]
            factor = (value * torch.exp(log))[..., None] * part
            own_group = torch.arange(len(self.gaps)) == group
            whole = torch.where(own_group[:, None, None], factor[..., None, :, :], whole)
        none = torch.zeros(1, dtype=torch.float64)
        return self.symbol.factors(time, self.reference, none)[1][..., 0], whole

    def growth(self, lr: Number | None) -> Tensor:
        return self.symbol.growth(self.reference, self._multiple(lr))

    def falls(self, lr: Number | None) -> Tensor:
        falls = self.symbol.fall(self.reference, self.gaps.flatten(), self._multiple(lr)).reshape(self.gaps.shape)
        present = torch.stack([self.growing, self.decaying], 1) & ~self.leads
        return torch.where(present, falls, -torch.inf)

    def _multiple(self, lr: Number | None) -> Tensor:
        """The rate asked for as a multiple of the schedule's peak."""
        return steady_rate(Schedule(self.rates.weight, self.symbol.shape), lr) / self.rates.weight

    def final(self) -> Tensor:
        unit = torch.ones((), dtype=torch.float64)
        # The critical decay up to rounding: a decay that is sigma as a double differs from sigma by half an eps.
        neutral = 16 * EPS * (self.radius.max() + self.rates.mean_decay).item()
        survives = survival(self.symbol.growth(self.reference, unit).item(), neutral)
        settles, late, drift = self.symbol.shape.settles, self.times(10**15), torch.zeros(())
        if 0 < settles < math.inf:
            # The steps until then are multiplied one by one, with a scale of their own; each that follows adds a
            # rounding.
            late = self.times(math.ceil(settles) + 10**6)
            drift = self.symbol.log(late, self.reference) - late * self.growth(None)
        # momentum leaves the neutral part with a factor of its own
        return survives * torch.exp(drift) * self.split(late, self.blocks(late))[0] * self.lead()


def tilts(half_gap: Tensor, product: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`1 + D/d` and :math:`1 - D/d` where :math:`d^2 - D^2` is `product`, the smaller one without
    cancellation; 1 where the radius d is 0."""
    ratio = safe_divide(half_gap, radius)
    small = safe_divide(product, radius**2) / (1 + ratio.abs())
    return torch.where(ratio >= 0, 1 + ratio, small), torch.where(ratio <= 0, 1 - ratio, small)


def eigen(spectrum: Spectrum, rates: Rates) -> tuple[Tensor, Tensor, Tensor]:
    r"""Radius d, larger eigenvalue and its projector for each group  [eq: eigenvalues]."""
    sigma = spectrum.sigma
    product = rates.features * rates.weight
    radius = safe_sqrt(rates.half_gap**2 + product * sigma**2)
    decay = rates.feature_decay * rates.weight_decay
    omega = safe_divide(product * (sigma**2 - decay), radius + rates.mean_decay)
    up, down = tilts(rates.half_gap, product * sigma**2, radius)
    cross = safe_divide(sigma, radius)
    entries = [down, rates.features * cross, rates.weight * cross, up]
    plus = torch.stack(entries, -1).unflatten(-1, (2, 2)) / 2
    eye = torch.eye(2, dtype=torch.float64).expand_as(plus)
    return radius, omega, torch.where((radius == 0)[:, None, None], eye, plus)


def commuting(
    spectrum: Spectrum,
    rates: Rates,
    symbol: Symbol,
    factor: Tensor,
) -> Commuting:
    """Choose the reference: the fastest part that the start, given by its `factor`, really has  [eq: gaps]."""
    radius, omega, plus = eigen(spectrum, rates)
    growing, decaying = presence(plus.detach(), factor.detach())
    mean = rates.mean_decay
    exponents = torch.stack([omega, -mean - radius], 1).detach()
    present = torch.stack([growing, decaying], 1)
    ranked = torch.where(present, exponents, -torch.inf).flatten()
    best = int(ranked.argmax())
    group, smaller = divmod(best, 2)
    product, decay = rates.features * rates.weight, rates.feature_decay * rates.weight_decay
    # d_r - d_k through the squares, each gap to full relative accuracy
    falls = safe_divide(product * spectrum.square_gap(group), radius[group] + radius)
    if smaller:
        reference = -mean - radius[group]
        gaps = torch.stack([-(radius[group] + radius), -falls], 1)
    else:
        decays = rates.feature_decay, rates.weight_decay
        none = spectrum.sigma[group].item() == 0  # not a mode of the labels: nothing is subtracted, so nothing cancels
        excess = -decay if none else spectrum.excess(group, decay, decays)
        reference = safe_divide(product * excess, radius[group] + mean)
        gaps = torch.stack([falls, falls + 2 * radius], 1)
        omega = omega.index_put((torch.tensor([group]),), reference)
    leads = present & (gaps.detach() == 0)  # ties are exact: equal counts, gamma at a special value, merged soft modes
    moving = (*(getattr(rates, f.name) for f in fields(rates)), factor, radius)
    return Commuting(
        spectrum=spectrum,
        rates=rates,
        symbol=symbol,
        radius=radius,
        omega=omega,
        plus=plus,
        growing=growing,
        decaying=decaying,
        reference=reference,
        gaps=gaps,
        leads=leads,
        sloped=any(part.requires_grad for part in moving),
    )


def presence(plus: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Which groups have a part on the larger and on the smaller eigenvalue, beyond rounding: (G,) bool each.

    Arguments:
        plus: Projectors on the larger eigenvalue, (G, 2, 2).
        factor: Coordinates of the start, (G, side, 2).
    """
    growing, decaying = seen(torch.stack([plus, torch.eye(2, dtype=torch.float64) - plus], 1), factor).unbind(1)
    return growing, decaying


def seen(maps: Tensor, factor: Tensor) -> Tensor:
    """Which maps (G, m, 2, 2) make more than rounding of a start with these coordinates (G, side, 2): (G, m) bool."""
    sizes = factor.pow(2).sum((0, 2)).sqrt()  # of all features, of all prototypes
    rounded = sizes * (factor != 0).any(-1)  # (G, side): a side that is exactly zero has no rounding
    parts = (maps @ factor[:, None]).norm(dim=-1)  # (G, m, side)
    noise = NOISE * EPS * (maps.abs() @ rounded[:, None, :, None]).squeeze(-1)
    return (parts > noise).any(-1)
