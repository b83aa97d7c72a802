r"""How the modes of a constant kernel move, with their logarithmic scale apart; and which of them wins.

A state is :math:`H = a H_0 + R j(t)`, :math:`W = B x(t)` with fixed R and B (see
:mod:`unhinge.theory.kernel.reduction`); here are the coordinates a, j, x. Time is :math:`u`, the integrated rate of the
prototypes. Knows nothing of kernels or data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.theory.keeping import kept
from unhinge.theory.numerics import EPS, NOISE, TINY, falling, safe_divide, safe_sqrt

__all__ = ["Coordinates", "DampedModes", "FreeModes", "Modes", "RelativeMotion", "relative_motion"]


@dataclass(frozen=True)
class Coordinates:
    """A state in the coordinates of the modes; leading axes are those of the time."""

    start: Tensor  # (*,), a
    features: Tensor  # (*, k, q), j
    weight: Tensor  # (*, k, q), x

    def times(self, factor: Tensor) -> Coordinates:
        each = factor[..., None, None]
        return Coordinates(factor * self.start, each * self.features, each * self.weight)

    def plus(self, other: Coordinates) -> Coordinates:
        return Coordinates(self.start + other.start, self.features + other.features, self.weight + other.weight)


@dataclass(frozen=True)
class Parts:
    r"""A motion as a sum of exponentials, a constant and a linear part: what limits and rates are read from."""

    exponent: Tensor  # (P, k)
    features: Tensor  # (P, k, q)
    weight: Tensor  # (P, k, q)
    present: Tensor  # (P, k) bool, beyond rounding
    constant: Coordinates  # a = 1
    linear: Coordinates  # factors of u, a = 0
    blur: Tensor  # (k,), relative uncertainty of `constant`


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

    @kept
    def radius(self) -> Tensor:
        return safe_sqrt((self.decay / 2) ** 2 + self.gain)

    @kept
    def roots(self) -> Tensor:
        """Larger and smaller root, without cancellation: (2, k)."""
        lower = self.radius + self.decay / 2
        return torch.stack([safe_divide(self.gain, lower), -lower])

    @kept
    def growing(self) -> Tensor:
        """Whether the start has a part on the larger root: (k,) bool."""
        weight, upper = self.weight.detach(), self.roots[0]
        part = (self.pulled.detach() + upper[:, None] * weight).norm(dim=1)
        return (self.gain > 0) & (part > self.noise + NOISE * EPS * upper * weight.norm())

    @property
    def exponent(self) -> Tensor:
        """Of each mode as :meth:`motion` scales it."""
        return torch.where(self.growing, self.roots[0], 0.0)

    def motion(self, clock: Tensor) -> tuple[Tensor, Tensor]:
        r"""Features and prototypes, each divided by :math:`e^{\text{exponent}\, u}`."""
        u, radius, (upper, lower) = clock[..., None], self.radius, self.roots
        # relative to e^{upper u}: w = keep w0 + push y0, integral of w = push w0 + pile y0
        tilt = safe_divide(self.decay / 2, radius)
        small = torch.where(radius > 0, safe_divide(self.gain, -lower * radius), 1.0)  # 1 - tilt
        keep = (small + torch.exp(-2 * radius * u) * (1 + tilt)) / 2
        push = u * falling(2 * radius * u)
        # Two exponentials and a constant cancel to second order at early times: there a power series takes over.
        near = 2 * radius * u < 1
        late = u * safe_divide(falling(upper * u) - torch.exp(-upper * u) * falling(-lower * u), 2 * radius)
        early = torch.where(near, u, 0.0)
        pile = torch.where(near, early**2 * second_difference(upper * early, 2 * radius * early), late)
        weight = keep[..., None] * self.weight + push[..., None] * self.pulled
        features = self.ratio * (push[..., None] * self.weight + pile[..., None] * self.pulled)
        # a mode without its growing part: only the smaller root and a constant, or else rounding would grow
        down = self._at_root(lower) * torch.exp(lower * u)[..., None]
        moves, lone = (self.gain > 0)[:, None], ~self.growing[:, None]
        features = torch.where(lone, self.ratio * down + self._fixed, features)
        return torch.where(moves, features, 0.0), torch.where(moves & lone, lower[:, None] * down, weight)

    def parts(self) -> Parts:
        moves, still = (self.gain > 0)[:, None], (self.radius == 0)[:, None]
        sums = torch.stack(
            [torch.where(self.growing[:, None], self._at_root(self.roots[0]), 0.0), self._at_root(self.roots[1])]
        )
        weight = self.roots[..., None] * sums
        sinking = weight[1].detach().norm(dim=-1) > NOISE * EPS * self.weight.detach().norm()
        present = torch.stack([self.growing, sinking])
        resting = torch.where(still, self.weight, safe_divide(self.pulled, self.decay))
        constant = Coordinates(self.gain.new_ones(()), self._fixed, torch.where(moves, 0.0, resting))
        linear = Coordinates(
            self.gain.new_zeros(()), torch.zeros_like(self.weight), torch.where(still, self.pulled, 0.0)
        )
        blur = NOISE * EPS * safe_divide(self.gain.max(), self.gain)
        return Parts(self.roots, self.ratio * torch.where(moves, sums, 0.0), weight, present, constant, linear, blur)

    def _at_root(self, root: Tensor) -> Tensor:
        """The part of the start on a root: that of the integral of w."""
        return safe_divide(self.pulled + root[:, None] * self.weight, (self.gain + root**2)[:, None])

    @property
    def _fixed(self) -> Tensor:
        """What the features of a mode move around: -y0 / g."""
        return -self.ratio * safe_divide(self.pulled, self.gain[:, None])


@dataclass(frozen=True)
class DampedModes:
    r"""Feature decay too: each mode is one exponential and a constant drive, :math:`x' = \theta x + c`, j = x."""

    theta: Tensor  # (k,)
    start: Tensor  # (k, q)
    drive: Tensor  # (k, q), c

    @kept
    def growing(self) -> Tensor:
        """Whether a mode that can grow does, beyond rounding: (k,) bool."""
        start, drive = self.start.detach(), self.drive.detach()
        part = (start + safe_divide(drive, self.theta[:, None])).norm(dim=1)
        return (self.theta > 0) & (part > NOISE * EPS * (start.norm() + safe_divide(drive.norm(), self.theta.abs())))

    @property
    def exponent(self) -> Tensor:
        """Of each mode as :meth:`motion` scales it."""
        return torch.where(self.growing, self.theta, 0.0)

    def motion(self, clock: Tensor) -> tuple[Tensor, Tensor]:
        r"""Features and prototypes, each divided by :math:`e^{\text{exponent}\, u}`."""
        u, sinking = clock[..., None], self.theta.clamp(max=0)
        push = u * falling((self.exponent - sinking) * u)
        value = torch.exp(sinking * u)[..., None] * self.start + push[..., None] * self.drive
        lone = ((self.theta > 0) & ~self.growing)[:, None]
        value = torch.where(lone, -safe_divide(self.drive, self.theta[:, None]), value)
        return value, value

    def parts(self) -> Parts:
        theta, size = self.theta[:, None], self.theta.abs().max()
        fixed = -safe_divide(self.drive, theta)
        moving = torch.where((theta < 0) | self.growing[:, None], self.start - fixed, 0.0)
        noise = NOISE * EPS * (self.start.detach().norm() + self.drive.detach().norm() / size.clamp(min=TINY))
        present = moving.detach().norm(dim=-1) > noise
        still, drift = torch.where(theta == 0, self.start, fixed), torch.where(theta == 0, self.drive, 0.0)
        constant = Coordinates(theta.new_ones(()), still, still)
        linear = Coordinates(theta.new_zeros(()), drift, drift)
        blur = NOISE * EPS * safe_divide(size, self.theta.abs())
        return Parts(self.theta[None], moving[None], moving[None], present[None], constant, linear, blur)


Modes = FreeModes | DampedModes


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
        return log, state.times(early).plus(fading.times(1 - early))

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
        factor = torch.where(chosen, torch.exp(-gaps * clock[..., None, None]), 0.0)[..., None]
        features, weight = (factor * self.parts.features).sum(-3), (factor * self.parts.weight).sum(-3)
        return Coordinates(torch.zeros_like(clock), features, weight)


def relative_motion(modes: Modes, parts: Parts, constant: bool, linear: bool) -> RelativeMotion:
    """Find the fastest part; `constant` and `linear` say whether the start has such parts at all."""
    fastest = torch.where(parts.present, parts.exponent, -torch.inf).amax()
    if constant or linear or not bool(parts.present.any()):
        fastest = fastest.clamp(min=0)
    leads = parts.present & (parts.exponent >= fastest)
    return RelativeMotion(modes, parts, fastest, leads, constant, linear and fastest.item() == 0)
