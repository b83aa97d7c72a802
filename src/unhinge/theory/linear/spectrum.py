r"""The singular modes of the target matrix :math:`M = \frac1n((1+\gamma) Q - \gamma \mathbf 1 \mathbf 1^\top)`.

With :math:`Q = B R` (see :mod:`unhinge.theory.targets`), :math:`M = A B^\top` for the small matrix
:math:`A = \frac1n E R^\top`, :math:`E = (1+\gamma) I - \gamma\mathbf 1\mathbf 1^\top`  [eq: reduced-target]. A mode
pairs a direction :math:`v_k` among the reduced features with a direction :math:`u_k` among the prototypes, coupled by
:math:`\sigma_k`. Modes with equal :math:`\sigma` form a *group*: time treats them alike, so they are kept as one block
of rows and one scalar. The last group, of :math:`\sigma = 0`, is all that the targets do not touch.

Integer labels need no SVD: classes of equal count share a group (their differences), and one secular equation in the
distinct counts gives the rest. Balanced labels are its corner with one distinct count: two groups in closed form.
Knows nothing of features or time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, Literal

import torch
from torch import Tensor

from unhinge.theory.keeping import kept
from unhinge.theory.linear.prior import PriorSpectrum
from unhinge.theory.linear.secular import EXACT_DIGITS, ROOM, SecularRoots, exact_root, in_blocks, solve_secular
from unhinge.theory.numerics import EPS, levels, merged, safe_sqrt

__all__ = [
    "CLASS_WEIGHT_POWERS",
    "Gamma",
    "HardSpectrum",
    "SoftSpectrum",
    "Spectrum",
    "as_gamma",
    "class_strengths",
    "hard_spectrum",
    "soft_prior_spectrum",
    "soft_spectrum",
]

# Class weights that have a name are n_c to minus this power.
CLASS_WEIGHT_POWERS = {"sqrt": 0.5, "balanced": 1.0}


@dataclass(frozen=True)
class Gamma:
    r""":math:`\gamma` with what depends on it alone, exact near its special values  [eq: nu].

    :math:`\nu = ((C-1)\gamma - 1) / (1+\gamma)` is minus the ratio of the two balanced singular values: -1 at
    :math:`\gamma = 0`, 0 at :math:`1/(C-1)`, 1 at :math:`2/(C-2)`. A float that equals one of these fractions when
    rounded is taken to mean the fraction.
    """

    value: Tensor  # ()
    nu: Tensor  # ()
    above: Tensor  # (), nu + 1
    below: Tensor  # (), nu - 1
    exact: Decimal

    @property
    def growth(self) -> Tensor:
        return 1 + self.value


def as_gamma(value: Tensor, num_classes: int) -> Gamma:
    """Values from exact arithmetic, so that no difference is lost to rounding; slopes from autograd."""
    plain = value.item()
    with localcontext() as context:
        context.prec = EXACT_DIGITS
        exact = Decimal(plain)
        if plain == 1 / (num_classes - 1):
            exact = Decimal(1) / (num_classes - 1)
        elif num_classes > 2 and plain == 2 / (num_classes - 2):
            exact = Decimal(2) / (num_classes - 2)
        nu = ((num_classes - 1) * exact - 1) / (1 + exact)
        tiny = Decimal(10) ** (4 - EXACT_DIGITS)  # what rounding in the last places leaves of an exact zero
        values = [float(x) if abs(x) > tiny else 0.0 for x in (nu, nu + 1, nu - 1)]
    slope = ((num_classes - 1) * value - 1) / (1 + value)
    moving = slope - slope.detach()
    return Gamma(value, values[0] + moving, values[1] + moving, values[2] + moving, exact)


Side = Literal["left", "right"]


@dataclass(frozen=True)
class LevelVectors:
    r"""The singular vectors of the roots on the levels, T of length T  [eq: secular-vectors].

    :math:`v_t \propto \sqrt{m_t \beta_t} / (\beta_t - \tau)` and
    :math:`u_t \propto \sqrt{m_t}\,(\tau / (\beta_t - \tau) + \nu / (\nu - 1))`, both multiplied by :math:`\varrho`,
    which keeps them regular where it vanishes. The last root vanishes with :math:`\nu`; it is written as :math:`\nu`
    times a positive factor, so that its singular value keeps a sign and its relative accuracy.

    Few levels are kept as matrices. Many are made in blocks whenever they multiply something: a product needs
    :math:`T^2` operations anyway, and ten thousand levels would be matrices of 800 megabytes.
    """

    roots: SecularRoots
    multiplicity: Tensor  # (T,)
    gamma: Gamma
    num_classes: int

    def signed_roots(self) -> Tensor:
        r""":math:`\pm\sqrt{\tau_k}`, (T,)."""
        tau = self.roots.tau
        signed = tau.clamp(min=0).sqrt() if not tau.requires_grad else safe_sqrt(tau)
        if not self._last_vanishes:
            return signed
        return torch.cat([signed[:-1], (-self.gamma.nu / self._spread.sqrt())[None]])

    def coordinates(self, side: Side, rows: Tensor) -> Tensor:
        """Each vector's part of the rows (T, q), shape (T, q)."""
        return torch.cat([block.to(rows) @ rows for _, block in self._blocks(side)])

    def combined(self, side: Side, parts: Tensor) -> Tensor:
        """The rows with these parts (*, T, q), shape (*, T, q)."""
        total = torch.zeros(())
        for part, block in self._blocks(side):
            total = total + block.to(parts).mT @ parts[..., part, :]
        return total

    def _blocks(self, side: Side) -> Iterator[tuple[slice, Tensor]]:
        """Vectors as rows, some at a time, with their numbers."""
        size = len(self.multiplicity)
        if size * size <= ROOM and not self._requires_grad:
            yield slice(0, size), self._whole[side]
            return
        for part in in_blocks(size):
            yield part, self._rows(side, part)

    @kept
    def _whole(self) -> dict[Side, Tensor]:
        everything = slice(0, len(self.multiplicity))
        sides: tuple[Side, Side] = ("left", "right")
        return {side: self._rows(side, everything) for side in sides}

    def _rows(self, side: Side, part: slice) -> Tensor:
        size, weight, pull = len(self.multiplicity), self.multiplicity.sqrt(), self.roots.pull(part)
        if side == "right":
            rows = weight * self.roots.beta.sqrt() * pull
        else:
            nu, offset = self.gamma.nu, self.gamma.above / self.num_classes
            rows = weight * (self.roots.tau[part, None] * pull + nu * offset)
            if self._last_vanishes and part.stop == size:
                last = -weight * (pull[-1] * nu / self._spread + offset)
                rows = torch.cat([rows[:-1], last[None]])
        return rows / rows.norm(dim=1, keepdim=True)

    @property
    def _last_vanishes(self) -> bool:
        return not self.roots.above or len(self.multiplicity) == 1

    @property
    def _spread(self) -> Tensor:
        size = len(self.multiplicity)
        return -(self.multiplicity * self.roots.pull(slice(size - 1, size))[0]).sum()

    @property
    def _requires_grad(self) -> bool:
        return self.roots.rho.requires_grad or self.gamma.nu.requires_grad


@dataclass(frozen=True, kw_only=True)
class HardSpectrum:
    """Integer labels: one group of differences per tied count, one row per root of the secular equation."""

    sigma: Tensor  # (G,), signed; the last is 0
    group: Tensor  # (rows,) int64, the group of each row
    level: Tensor  # (C,) int64, which distinct count a class has
    tied: Tensor  # classes that share their count with another
    multiplicity: Tensor  # (T,) float64
    vectors: LevelVectors  # u_k and v_k on the levels
    poles: Tensor  # (P,) int64, the level of each tied group
    beta: Tensor  # (T,), scaled to a maximum of 1
    roots: SecularRoots
    unit: Tensor  # (), sigma^2 of beta = 1
    exact: ExactSquares

    def analyze(self, rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates of the reduced features and of the prototypes, one row per row of `group`."""
        return self._split(rows, "right"), self._split(weight, "left")

    def synthesize(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of :meth:`analyze`; leading axes pass through."""
        return self._join(x, "right"), self._join(y, "left")

    def untouched(self, weight: Tensor) -> Tensor | None:
        """The part of the prototypes outside all modes: none."""
        return None

    def read_out(self) -> Tensor:
        r"""Prototypes minus their mean from coordinates, shape :math:`(C, rows)`."""
        eye = torch.eye(len(self.group), dtype=torch.float64)
        matrix = self._join(eye, "left")
        if len(self.beta) == 1:  # the one root moves all prototypes alike
            matrix[:, len(self.tied) :] = 0
        return matrix - matrix.mean(0)

    def square_gap(self, ref: int) -> Tensor:
        r""":math:`\sigma_r^2 - \sigma_k^2` for all groups, each to full relative accuracy."""
        ties, size = len(self.poles), len(self.beta)
        if ref < ties:
            pole = self.poles[ref]
            distances = self.roots.distance(slice(None), pole)
            parts = [self.beta[pole] - self.beta[self.poles], distances, self.beta[pole, None]]
        elif ref < ties + size:
            root = ref - ties
            distances = self.roots.distance(root, self.poles)
            parts = [-distances, self.roots.difference(root), self.roots.tau[root, None]]
        else:
            parts = [-self.beta[self.poles], -self.roots.tau, self.beta.new_zeros(1)]
        return self.unit * torch.cat(parts)

    def excess(self, ref: int, product: Tensor, decays: tuple[Tensor, Tensor]) -> Tensor:
        r""":math:`\sigma_r^2 - \lambda_1\lambda_2`, in exact arithmetic where the two nearly cancel."""
        plain = self.sigma[ref] ** 2 - product
        # A difference of at least half of what is subtracted magnifies rounding five times at most: good enough.
        if plain.item() > 0.5 * product.item() or plain.item() < -0.5 * product.item():
            return plain
        ties = len(self.poles)
        square = self.exact.pole(int(self.poles[ref])) if ref < ties else None
        if square is None:
            square = self.exact.root(ref - ties, self.roots.tau[ref - ties].item())
        with localcontext() as context:
            context.prec = EXACT_DIGITS
            value = square - Decimal(decays[0].item()) * Decimal(decays[1].item())
        return plain - plain.detach() + float(value)

    def _split(self, rows: Tensor, side: Side) -> Tensor:
        level, members = self.level.to(rows.device), self.multiplicity.to(rows)[:, None]
        means = rows.new_zeros(len(self.beta), rows.shape[-1]).index_add(0, level, rows) / members
        tied = self.tied.to(rows.device)
        differences = rows[tied] - means[level[tied]]
        return torch.cat([differences, self.vectors.coordinates(side, means * members.sqrt())])

    def _join(self, rows: Tensor, side: Side) -> Tensor:
        level, members = self.level.to(rows.device), self.multiplicity.to(rows)[:, None]
        ties = len(self.tied)
        means = self.vectors.combined(side, rows[..., ties:, :]) / members.sqrt()
        full = means.index_select(-2, level)
        return full.index_add(-2, self.tied.to(rows.device), rows[..., :ties, :].to(full))


@dataclass(frozen=True)
class SoftSpectrum:
    """Soft labels: a thin SVD; singular values that differ by rounding only share a group."""

    sigma: Tensor  # (G,); the last is 0
    group: Tensor  # (rows,)
    left: Tensor  # (C, rows)
    right: Tensor  # (r, rows)

    def analyze(self, rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self.right.to(rows).mT @ rows, self.left.to(weight).mT @ weight

    def synthesize(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.right.to(x) @ x, self.left.to(y) @ y

    def untouched(self, weight: Tensor) -> Tensor | None:
        left = self.left.to(weight)
        return None if left.shape[0] == left.shape[1] else weight - left @ (left.mT @ weight)

    def read_out(self) -> Tensor:
        return self.left - self.left.mean(0)

    def square_gap(self, ref: int) -> Tensor:
        return (self.sigma[ref] - self.sigma) * (self.sigma[ref] + self.sigma)

    def excess(self, ref: int, product: Tensor, decays: tuple[Tensor, Tensor]) -> Tensor:
        plain = self.sigma[ref] ** 2 - product
        size, root = self.sigma[ref].detach().abs(), product.detach().sqrt()
        return plain - plain.detach() + (size - root) * (size + root)


Spectrum = HardSpectrum | PriorSpectrum | SoftSpectrum


@dataclass(frozen=True)
class ExactSquares:
    r"""Squared singular values to 50 digits, for the one place where double precision is not enough: a decay at,
    or next to, its critical value."""

    gamma: Gamma
    num_classes: int
    beta: list[Decimal]
    multiplicity: list[int]
    norm: Decimal

    def pole(self, level: int) -> Decimal:
        return self._scaled(self.beta[level])

    def root(self, index: int, tau: float) -> Decimal:
        with localcontext() as context:
            context.prec = EXACT_DIGITS
            nu = ((self.num_classes - 1) * self.gamma.exact - 1) / (1 + self.gamma.exact)
            top = max(self.beta)
            if len(self.beta) == 1:
                return self._scaled(top * nu * nu)
            scaled = [pole / top for pole in self.beta]
            return self._scaled(top * exact_root(tau, scaled, self.multiplicity, nu))

    def _scaled(self, tau: Decimal) -> Decimal:
        with localcontext() as context:
            context.prec = EXACT_DIGITS
            return (1 + self.gamma.exact) ** 2 * tau / self.norm**2


def hard_spectrum(counts: Tensor, gamma: Gamma, class_weight: Tensor | str | None) -> HardSpectrum:
    r"""Modes for integer labels with class counts :math:`n_c` and class weights :math:`a_c`."""
    size, beta_all, beta_exact, norm, norm_exact = class_strengths(counts, class_weight)
    level, members = levels(beta_all)
    beta = beta_all[members]
    multiplicity = torch.bincount(level, minlength=len(beta)).double()
    top = beta[0].clone()
    rho = gamma.below * gamma.above / size
    roots = solve_secular(beta / top, multiplicity, rho, gamma.nu)
    scale = gamma.growth * top.sqrt() / norm
    vectors = LevelVectors(roots, multiplicity, gamma, size)
    signed_roots = vectors.signed_roots()
    poles = (multiplicity >= 2).nonzero().flatten()
    tied = (multiplicity[level] >= 2).nonzero().flatten()
    tie_group = torch.full((len(beta),), -1).index_copy(0, poles, torch.arange(len(poles)))
    group = torch.cat([tie_group[level[tied]], len(poles) + torch.arange(len(beta))])
    sigma = torch.cat([scale * (beta[poles] / top).sqrt(), scale * signed_roots, beta.new_zeros(1)])
    distinct = [beta_exact[i] for i in members.tolist()]
    exact = ExactSquares(gamma, size, distinct, multiplicity.long().tolist(), norm_exact)
    return HardSpectrum(
        sigma=sigma,
        group=group,
        level=level,
        tied=tied,
        multiplicity=multiplicity,
        vectors=vectors,
        poles=poles,
        beta=beta / top,
        roots=roots,
        unit=scale**2,
        exact=exact,
    )


def class_strengths(
    counts: Tensor, class_weight: Tensor | str | None
) -> tuple[int, Tensor, list[Decimal], Tensor, Decimal]:
    r""":math:`\beta_c = a_c^2 n_c` and the total weight :math:`\sum_c a_c n_c`, in doubles and exactly."""
    numbers = [int(count) for count in counts]
    with localcontext() as context:
        context.prec = EXACT_DIGITS
        if isinstance(class_weight, str):  # by its power, so that equal pulls are equal to the last digit
            power = Decimal(CLASS_WEIGHT_POWERS[class_weight])
            beta = [Decimal(n) ** (1 - 2 * power) for n in numbers]
            # A square root is as exact as a power of 1/2, which goes through a logarithm: a tenth of the time.
            roots = power == Decimal("0.5")
            norm = sum((Decimal(n).sqrt() if roots else Decimal(n) ** (1 - power) for n in numbers), Decimal(0))
        else:
            share = [1.0] * len(numbers) if class_weight is None else class_weight.tolist()
            weights = [Decimal(a) for a in share]
            beta = [a * a * n for a, n in zip(weights, numbers, strict=True)]
            norm = sum((a * n for a, n in zip(weights, numbers, strict=True)), Decimal(0))
        plain = torch.tensor([float(b) for b in beta], dtype=torch.float64)
        return len(numbers), plain, beta, torch.tensor(float(norm), dtype=torch.float64), norm


def soft_spectrum(factor: Tensor, gamma: Gamma, class_weight: Tensor | None) -> SoftSpectrum:
    r"""Modes for soft labels with triangular factor :math:`R`."""
    num_classes = factor.shape[1]
    mass = factor.mT @ factor.sum(1)  # Q^T 1, since the rows of Q sum to 1
    weight = torch.ones_like(mass) if class_weight is None else class_weight
    weighted = weight[:, None] * factor.mT
    centered = weighted - weighted.mean(0)
    # E = (1 + gamma)(I - 11^T / C) - (1 + gamma) nu 11^T / C: exactly centred at gamma = 1/(C-1)
    total = weight @ mass
    small = gamma.growth / total * (centered - gamma.nu * weighted.mean(0).expand_as(weighted))
    return _thin_spectrum(small, num_classes, gamma.growth / total * weighted)


def soft_prior_spectrum(factor: Tensor, prior: Tensor, class_weight: Tensor) -> SoftSpectrum:
    r"""Modes for soft labels with triangular factor :math:`R` under a prior q: of
    :math:`(I - q\mathbf 1^\top)\,\mathrm{diag}(a)\,R^\top` over the total weight."""
    weighted = class_weight[:, None] * factor.mT
    total = class_weight @ (factor.mT @ factor.sum(1))
    small = (weighted - prior[:, None] * weighted.sum(0)) / total
    return _thin_spectrum(small, factor.shape[1], weighted / total)


def _thin_spectrum(small: Tensor, num_classes: int, terms: Tensor) -> SoftSpectrum:
    """Of `small`, a difference of these terms and of their means."""
    left, sigma, right = _ThinSVD.apply(small)  # type: ignore[no-untyped-call]
    # Closer than the SVD can tell apart: one value. Otherwise a tie would break after a long time, either way.
    values, group = merged(sigma, 4 * num_classes * EPS * sigma.detach()[0])
    # An SVD finds values to some eps of the largest, and the difference is rounded to some eps of its terms: below that
    # they are zero, whatever it says. (Labels that say nothing leave nothing but rounding.)
    largest = max(values.detach().max().item(), terms.detach().norm().item())
    zero = values.detach() <= 4 * num_classes * EPS * largest
    values = torch.where(zero, values - values.detach(), values)
    return SoftSpectrum(torch.cat([values, values.new_zeros(1)]), group, left, right)


class _ThinSVD(torch.autograd.Function):
    """A thin SVD whose gradient stays finite at ties.

    The vectors inside a tied group turn freely and drop out of every answer, so their mutual terms are set to zero;
    torch's own gradient divides by the zero gap.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, sigma, right = torch.linalg.svd(matrix, full_matrices=False)
        ctx.save_for_backward(left, sigma, right)
        return left, sigma, right.mT.contiguous()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_left: Tensor, d_sigma: Tensor, d_right: Tensor) -> Tensor:
        left, sigma, right = ctx.saved_tensors
        right = right.mT
        gap = (sigma - sigma[:, None]) * (sigma + sigma[:, None])
        distinct = gap.abs() > 16 * len(sigma) * EPS * sigma[0] ** 2
        inverse = torch.where(distinct, 1 / torch.where(distinct, gap, 1.0), 0.0)
        present = sigma > 16 * len(sigma) * EPS * sigma[0]
        reciprocal = torch.where(present, 1 / torch.where(present, sigma, 1.0), 0.0)
        turn_left = left.mT @ d_left
        turn_right = right.mT @ d_right
        core = (inverse * (turn_left - turn_left.mT)) * sigma
        core = core + sigma[:, None] * (inverse * (turn_right - turn_right.mT))
        core = core + torch.diag(d_sigma)
        outside_left = (d_left - left @ turn_left) * reciprocal
        outside_right = (d_right - right @ turn_right) * reciprocal
        return left @ core @ right.mT + outside_left @ right.mT + left @ outside_right.mT
