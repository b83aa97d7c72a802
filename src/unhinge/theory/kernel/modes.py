r"""How the modes of a constant kernel move, with their logarithmic scale apart; and which of them wins.

A state is :math:`H = a H_0 + R j(t)`, :math:`W = B x(t)` with fixed R and B (see
:mod:`unhinge.theory.kernel.reduction`); here are the coordinates a, j, x. Time is :math:`u`, the integrated rate of the
prototypes. Knows nothing of kernels or data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor

from unhinge.theory.keeping import kept
from unhinge.theory.numerics import EPS, NOISE, TINY, falling, safe_divide, safe_sqrt

__all__ = ["Coordinates", "DampedModes", "FreeModes", "Modes", "RelativeMotion", "relative_motion"]

FAR = 300.0  # the logarithm of what an absent part may grow to: its square still fits
FARTHEST = 1e60  # the time beyond which a mode that stands still has no slope: its fourth power still fits


@dataclass(frozen=True)
class Coordinates:
    """A state in the coordinates of the modes; leading axes are those of the time."""

    start: Tensor  # (*,), a
    features: Tensor  # (*, k, q), j
    weight: Tensor  # (*, k, q), x
    whole: Coordinates | None = None  # the same with the parts that the start does not have, for slopes alone

    def times(self, factor: Tensor) -> Coordinates:
        each = factor[..., None, None]
        whole = None if self.whole is None else self.whole.times(factor)
        return Coordinates(factor * self.start, each * self.features, each * self.weight, whole)

    def plus(self, other: Coordinates) -> Coordinates:
        whole = None
        if self.whole is not None or other.whole is not None:
            whole = (self.whole or self).plus(other.whole or other)
        return Coordinates(self.start + other.start, self.features + other.features, self.weight + other.weight, whole)

    def carry(self, function: Callable[[Coordinates], Tensor]) -> Tensor:
        """What a linear function makes of the state, with the slope of what it makes of the whole."""
        there = function(self)
        return there if self.whole is None else with_slope(there, function(self.whole))


@dataclass(frozen=True)
class Parts:
    r"""A motion as a sum of exponentials, a constant and a linear part: what limits and rates are read from."""

    exponent: Tensor  # (P, k)
    features: Tensor  # (P, k, q)
    weight: Tensor  # (P, k, q)
    present: Tensor  # (P, k) bool, beyond rounding; what is not has a slope all the same
    constant: Coordinates  # a = 1
    linear: Coordinates  # factors of u, a = 0
    blur: Tensor  # (k,), relative uncertainty of `constant`
    within: Tensor | None  # (P, k, k), slope of the exponents within groups of equal ones; zero


@dataclass(frozen=True)
class FreeModes:
    r"""No feature decay: eigenmodes of G, each a 2 x 2 system in :math:`(y, w)`, :math:`y = m^\top h`.

    :math:`y' = sg\,w`, :math:`w' = y - \lambda_2 w`, with roots :math:`-\mu \pm \delta`, :math:`\mu = \lambda_2/2`,
    :math:`\delta = \sqrt{\mu^2 + sg}`; the features follow :math:`j = s\int w`.
    """

    gain: Tensor  # (k,), s g
    ratio: Tensor  # (), s
    decay: Tensor  # (), lambda_2
    weight: Tensor  # (k, q), w at the start
    pulled: Tensor  # (k, q), y at the start
    noise: Tensor  # (), uncertainty of y
    within: Tensor | None = None  # (k, k), of equal gains, see `Eigen`

    stands = True  # some start, if not this one, has a part that stands still

    @kept
    def radius(self) -> Tensor:
        return safe_sqrt((self.decay / 2) ** 2 + self.gain)

    @kept
    def roots(self) -> Tensor:
        """Larger and smaller root, without cancellation: (2, k)."""
        return self._roots(self.gain)

    @kept
    def growing(self) -> Tensor:
        """Whether the start has a part on the larger root: (k,) bool."""
        weight, upper = self.weight.detach(), self.roots[0]
        part = (self.pulled.detach() + upper[:, None] * weight).norm(dim=1)
        return shared((self.gain > 0) & (part > self.noise + NOISE * EPS * upper * weight.norm()), self.gain)

    @property
    def exponent(self) -> Tensor:
        """Of each mode as :meth:`motion` scales it."""
        return torch.where(self.growing, self.roots[0], 0.0)

    def motion(self, clock: Tensor) -> tuple[Tensor, Tensor]:
        r"""Features and prototypes, each divided by :math:`e^{\text{exponent}\, u}`."""
        u, exponent = clock[..., None], self.exponent
        features, weight = self._moved(self._answer(self.gain, u, exponent), self.weight, self.pulled)
        if sloped(self.within):
            slopes = derivatives(lambda gain: self._answer(gain, u, exponent), self.gain.expand(*clock.shape, -1))
            turned = self._moved(slopes, self.within @ self.weight, self.within @ self.pulled)
            features, weight = features + turned[0], weight + turned[1]
        lone = ((self.gain > 0) & ~self.growing)[:, None]
        if not bool(lone.any()):
            return features, weight
        # a mode without its growing part: only the smaller root and a constant, or else rounding would grow
        lower = self.roots[1]
        down = self._at_root(lower) * torch.exp(lower * u)[..., None]
        return (
            torch.where(lone, with_slope(self.ratio * down + self._fixed, features), features),
            torch.where(lone, with_slope(lower[:, None] * down, weight), weight),
        )

    def parts(self) -> Parts:
        moves, still = (self.gain > 0)[:, None], (self.radius == 0)[:, None]
        sums = torch.stack([self._at_root(root) for root in self.roots])
        weight, within = self.roots[..., None] * sums, None
        if sloped(self.within):
            slopes = derivatives(self._shares, self.gain)
            a, b = self.within @ self.pulled, self.within @ self.weight
            turned = [torch.where(moves, slopes[k][..., None] * a + slopes[k + 1][..., None] * b, 0.0) for k in (0, 1)]
            sums, weight = sums + turned[0], weight + turned[1]
            within = slopes[3][..., None] * self.within
        sinking = weight[1].detach().norm(dim=-1) > NOISE * EPS * self.weight.detach().norm()
        present = torch.stack([self.growing, shared(sinking, self.gain)])
        resting = torch.where(still, self.weight, safe_divide(self.pulled, self.decay))
        constant = Coordinates(self.gain.new_ones(()), self._fixed, torch.where(moves, 0.0, resting))
        linear = Coordinates(
            self.gain.new_zeros(()), torch.zeros_like(self.weight), torch.where(still, self.pulled, 0.0)
        )
        blur = NOISE * EPS * safe_divide(self.gain.max(), self.gain)
        return Parts(self.roots, self.ratio * sums, weight, present, constant, linear, blur, within)

    def _roots(self, gain: Tensor) -> Tensor:
        lower = safe_sqrt((self.decay / 2) ** 2 + gain) + self.decay / 2
        return torch.stack([safe_divide(gain, lower), -lower])

    def _answer(self, gain: Tensor, u: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""How w answers its start and y0, and its integral answers y0, over :math:`e^{\text{exponent}\, u}`; the
        integral answers the start of w as w answers y0. Smooth in the gain and the decay, from zero on."""
        mean = self.decay / 2
        radius, (upper, lower) = safe_sqrt(mean**2 + gain), self._roots(gain)
        # relative to e^{upper u}: w = keep w0 + push y0, integral of w = push w0 + pile y0
        tilt = safe_divide(mean, radius)
        small = torch.where(radius > 0, safe_divide(gain, -lower * radius), 1.0)  # 1 - tilt
        keep = (small + torch.exp(-2 * radius * u) * (1 + tilt)) / 2
        push = u * falling(2 * radius * u)
        # Two exponentials and a constant cancel to second order at early times: there a power series takes over.
        near = 2 * radius * u < 1
        late = u * safe_divide(falling(upper * u) - torch.exp(-upper * u) * falling(-lower * u), 2 * radius)
        early = torch.where(near, u, 0.0)
        pile = torch.where(near, early**2 * second_difference(upper * early, 2 * radius * early), late)
        scale = torch.exp(((upper - exponent) * u).clamp(max=FAR))
        # What stands still has no exponents to differ by, but slopes: the first terms of the series in time.
        still, v = radius == 0, u.clamp(max=FARTHEST)
        return (
            torch.where(still, 1 - self.decay * v + gain * v**2 / 2, scale * keep),
            torch.where(still, u - self.decay * v**2 / 2 + gain * v**3 / 6, scale * push),
            torch.where(still, v**2 / 2 - self.decay * v**3 / 6 + gain * v**4 / 24, scale * pile),
        )

    def _moved(self, answer: Sequence[Tensor], weight: Tensor, pulled: Tensor) -> tuple[Tensor, Tensor]:
        keep, push, pile = (part[..., None] for part in answer)
        return self.ratio * (push * weight + pile * pulled), keep * weight + push * pulled

    def _shares(self, gain: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of y0 in the parts of the integral of w on the two roots, of w0 in them or of y0 in those of w, of w0 in
        those of w, and the roots: (2, k) each."""
        roots = self._roots(gain)
        share = safe_divide(torch.ones_like(roots), gain + roots**2)
        return share, roots * share, roots**2 * share, roots

    def _at_root(self, root: Tensor) -> Tensor:
        """The part of the start on a root: that of the integral of w."""
        return safe_divide(self.pulled + root[:, None] * self.weight, (self.gain + root**2)[:, None])

    @property
    def _fixed(self) -> Tensor:
        """What the features of a mode move around: -y0 / g."""
        gain = self.gain[:, None]
        fixed = safe_divide(self.pulled, gain)
        if sloped(self.within):
            fixed = fixed - safe_divide(self.within @ self.pulled, gain**2)
        return -self.ratio * fixed


@dataclass(frozen=True)
class DampedModes:
    r"""Feature decay too: each mode is one exponential and a constant drive, :math:`x' = \theta x + c`, j = x."""

    theta: Tensor  # (k,)
    start: Tensor  # (k, q)
    drive: Tensor  # (k, q), c
    within: Tensor | None = None  # (k, k), of equal thetas, see `Eigen`
    hollow: bool = True  # whether the kernel is singular, so that features may stand still

    @property
    def stands(self) -> bool:
        """Whether some start, if not this one, has a part that stands still."""
        return self.hollow or bool((self.theta == 0).any())

    @kept
    def growing(self) -> Tensor:
        """Whether a mode that can grow does, beyond rounding: (k,) bool."""
        start, drive = self.start.detach(), self.drive.detach()
        part = (start + safe_divide(drive, self.theta[:, None])).norm(dim=1)
        noise = NOISE * EPS * (start.norm() + safe_divide(drive.norm(), self.theta.abs()))
        return shared((self.theta > 0) & (part > noise), self.theta)

    @property
    def exponent(self) -> Tensor:
        """Of each mode as :meth:`motion` scales it."""
        return torch.where(self.growing, self.theta, 0.0)

    def motion(self, clock: Tensor) -> tuple[Tensor, Tensor]:
        r"""Features and prototypes, each divided by :math:`e^{\text{exponent}\, u}`."""
        u, exponent = clock[..., None], self.exponent
        keep, push = self._answer(self.theta, u, exponent)
        value = keep[..., None] * self.start + push[..., None] * self.drive
        if sloped(self.within):
            theta = self.theta.expand(*clock.shape, -1)
            keep, push = derivatives(lambda theta: self._answer(theta, u, exponent), theta)
            value = value + keep[..., None] * (self.within @ self.start) + push[..., None] * (self.within @ self.drive)
        lone = ((self.theta > 0) & ~self.growing)[:, None]
        if bool(lone.any()):
            value = torch.where(lone, with_slope(-safe_divide(self.drive, self.theta[:, None]), value), value)
        return value, value

    def parts(self) -> Parts:
        theta, size = self.theta[:, None], self.theta.abs().max()
        fixed, within = -safe_divide(self.drive, theta), None
        if sloped(self.within):
            fixed, within = fixed + safe_divide(self.within @ self.drive, theta**2), self.within[None]
        moving = torch.where(theta == 0, 0.0, self.start - fixed)
        noise = NOISE * EPS * (self.start.detach().norm() + self.drive.detach().norm() / size.clamp(min=TINY))
        present = shared(moving.detach().norm(dim=-1) > noise, self.theta) & ((self.theta < 0) | self.growing)
        still, drift = torch.where(theta == 0, self.start, fixed), torch.where(theta == 0, self.drive, 0.0)
        constant = Coordinates(theta.new_ones(()), still, still)
        linear = Coordinates(theta.new_zeros(()), drift, drift)
        blur = NOISE * EPS * safe_divide(size, self.theta.abs())
        return Parts(self.theta[None], moving[None], moving[None], present[None], constant, linear, blur, within)

    def _answer(self, theta: Tensor, u: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
        r"""How x answers its start and the drive, over :math:`e^{\text{exponent}\, u}`."""
        up = theta > 0
        scale = torch.exp(((torch.where(up, theta, 0.0) - exponent) * u).clamp(max=FAR))
        keep = torch.exp(torch.where(up, 0.0, theta) * u)
        return scale * keep, scale * u * falling(torch.where(up, theta, -theta) * u)


Modes = FreeModes | DampedModes


def shared(flags: Tensor, values: Tensor) -> Tensor:
    """Whether any mode of the same value has the flag: modes that share one turn into each other freely."""
    kinds, group = torch.unique(values.detach(), return_inverse=True)
    return values.new_zeros(len(kinds)).index_add(0, group, flags.to(values))[group] > 0


def sloped(within: Tensor | None) -> TypeGuard[Tensor]:
    """Whether a slope within groups is there and wanted."""
    return within is not None and within.requires_grad and torch.is_grad_enabled()


def derivatives(function: Callable[[Tensor], tuple[Tensor, ...]], at: Tensor) -> list[Tensor]:
    """Those of functions of each entry, as numbers."""
    with torch.inference_mode(False), torch.enable_grad():
        x = at.detach().clone().requires_grad_()
        return [_entrywise(values, x) for values in function(x)]


def _entrywise(values: Tensor, x: Tensor) -> Tensor:
    """Slopes of values (*, k) by x, (k,) or of the shape of the values."""
    rows = values.reshape(-1, *x.shape).unbind() if values.shape != x.shape else [values]
    slopes = [torch.autograd.grad(row.sum(), x, retain_graph=True)[0] for row in rows]
    return torch.stack(slopes).reshape(values.shape)


def with_slope(value: Tensor, whole: Tensor) -> Tensor:
    """The value of one and the slope of the other."""
    return value.detach() + (whole - whole.detach())


def second_difference(a: Tensor, c: Tensor) -> Tensor:
    r"""The second divided difference of exp at :math:`0, -a, -c` for :math:`0 \le a \le c \le 1`, by its power series.

    :math:`\sum_k h_k(-a, -c) / (k+2)!` with the complete symmetric polynomials h; 1/2 at zero.
    """
    total = torch.full_like(c, 0.5)
    symmetric, power = torch.ones_like(c), torch.ones_like(c)
    factorial = 2.0
    for k in range(1, 18):  # the next term is at most 19 / 20!, below rounding
        power = -a * power
        symmetric = -c * symmetric + power
        factorial *= k + 2
        total = total + symmetric / factorial
    return total


@dataclass(frozen=True)
class RelativeMotion:
    """All modes on the scale of the fastest part that the start has."""

    modes: Modes
    parts: Parts
    reference: Tensor  # (), exponent of that part
    leads: Tensor  # (P, k) bool, the exponentials that share it
    constant: bool  # whether the start has a part that stands still, beyond rounding
    linear: bool  # whether a part that grows linearly is the fastest

    def at(self, clock: Tensor) -> tuple[Tensor, Coordinates]:
        """The logarithmic scale, and the state divided by it."""
        log = self.reference * clock
        # No mode that is there exceeds the reference; one that is absent may, and must only stay finite.
        factor = torch.exp(((self.modes.exponent - self.reference) * clock[..., None]).clamp(max=1))[..., None]
        features, weight = self.modes.motion(clock)
        state = Coordinates(torch.exp(-log.clamp(min=-1)), factor * features, factor * weight)
        if self.reference >= 0:
            return log, state
        # nothing stands still: late, only the exponentials, or a constant of rounding would win
        fading, early = self._exponentials(clock, self.parts.present), (log >= -1).double()
        if self.sloped:
            whole = self._exponentials(clock, torch.ones_like(self.parts.present))
            if self.modes.stands:
                whole = whole.plus(self.parts.constant.times(torch.exp((-log).clamp(max=FAR))))
            fading = replace(fading, whole=whole)
        return log, state.times(early).plus(fading.times(1 - early))

    @property
    def sloped(self) -> bool:
        parts = self.parts.exponent, self.parts.features, self.parts.weight
        return torch.is_grad_enabled() and any(part.requires_grad for part in parts)

    def weight(self, clock: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Prototypes of the chosen modes (k,) on their own scale, and its logarithm; others are finite and no more."""
        if self.reference < 0:
            log, state = self.at(clock)
            return log, state.weight
        exponent = self.modes.exponent
        top = torch.where(chosen, exponent, 0.0).max()
        factor = torch.exp(torch.where(chosen, exponent - top, 0.0) * clock[..., None])[..., None]
        return top * clock, factor * self.modes.motion(clock)[1]

    def lead(self) -> Coordinates:
        """The direction."""
        if bool(self.leads.any()):
            leads, parts = self.leads[..., None], self.parts
            return Coordinates(
                torch.zeros_like(self.reference), (leads * parts.features).sum(0), (leads * parts.weight).sum(0)
            )
        return self.parts.linear if self.linear else self.parts.constant

    def rest(self, clock: Tensor) -> Coordinates:
        """All but the direction; no cancellation, however small it has become."""
        moving = self._exponentials(clock, self.parts.present & ~self.leads)
        if self.reference > 0:
            state = self.at(clock)[1]
            whole = moving.plus(self.parts.constant.times(state.start))
            apart = self.leads.any(0)[:, None]  # only modes of the direction are taken apart
            features = torch.where(apart, whole.features, state.features)
            return Coordinates(state.start, features, torch.where(apart, whole.weight, state.weight))
        return moving.plus(self.parts.constant) if self.linear else moving

    def fall(self) -> Tensor:
        """Exponent of the slowest part of :meth:`rest`."""
        behind = torch.where(self.parts.present & ~self.leads, self.parts.exponent - self.reference, -torch.inf).amax()
        stands = self.constant and (self.linear or bool(self.reference > 0))
        return torch.maximum(behind, 0.0 - self.reference) if stands else behind

    def _exponentials(self, clock: Tensor, chosen: Tensor) -> Coordinates:
        gaps = torch.where(chosen, self.reference - self.parts.exponent, 0.0)  # infinity times a slope of 0 is NaN
        exponent = (-gaps * clock[..., None, None]).clamp(max=FAR)  # above zero where only a slope is asked for
        factor = torch.where(chosen, torch.exp(exponent), 0.0)[..., None]
        features, weight = self.parts.features, self.parts.weight
        if sloped(self.parts.within):
            u = clock[..., None, None, None]
            features, weight = (side + u * (self.parts.within @ side) for side in (features, weight))
        return Coordinates(torch.zeros_like(clock), (factor * features).sum(-3), (factor * weight).sum(-3))


def relative_motion(modes: Modes, parts: Parts, constant: bool, linear: bool) -> RelativeMotion:
    """Find the fastest part; `constant` and `linear` say whether the start has such parts at all."""
    fastest = torch.where(parts.present, parts.exponent, -torch.inf).amax()
    if constant or linear or not bool(parts.present.any()):
        fastest = fastest.clamp(min=0)
    leads = parts.present & (parts.exponent >= fastest)
    return RelativeMotion(modes, parts, fastest, leads, constant, linear and fastest.item() == 0)
