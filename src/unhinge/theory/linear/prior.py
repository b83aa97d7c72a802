r"""The singular modes under a prior: :math:`M` of the loss :math:`-z_y + q^\top z`, :math:`\mathbf 1^\top q = 1`
[eq: prior-modes].

For integer labels the reduced target is :math:`A = (I - q\mathbf 1^\top)\,\mathrm{diag}(s)`,
:math:`s_c = a_c\sqrt{n_c}` over the total weight: a rank-one change of a diagonal. Where classes share
:math:`s_c`, their differences that are orthogonal to q are exact modes with :math:`\sigma = s_c`. What is left has at
most two directions per distinct :math:`s_c`: their common part, and q within them. On these

.. math:: A A^\top = (I - q\mathbf 1^\top)\,\mathrm{diag}(s^2)\,(I - \mathbf 1 q^\top),

one mode of which, :math:`u = \mathbf 1/\sqrt C`, :math:`v \propto \mathrm{diag}(s)^{-1}q`, is exactly zero. With the
class frequencies as q this is the secular equation :math:`\sum_c \pi_c / (n_c - \mu) = 0`; other priors change two
directions of the square at once and have no such equation. One method serves all: a dense eigensolver, then one
correction with residuals of twice the precision. A Rayleigh quotient has the square of its vector's error, so the
eigenvalues, and their differences, come out to full relative accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext

import torch
from torch import Tensor

from unhinge.theory.linear.doubled import Doubled, doubled
from unhinge.theory.numerics import EPS, levels

__all__ = ["PriorSpectrum", "prior_spectrum"]

DIGITS = 60
SAME = 1e-26  # squared singular values closer than this are equal: twice the precision resolves 1e-30


@dataclass(frozen=True)
class PriorSpectrum:
    """Integer labels under a prior: a group of differences per tied strength, and a row per remaining mode."""

    sigma: Tensor  # (G,); the last is 0
    group: Tensor  # (rows,) int64, the group of each row
    level: Tensor  # (C,) int64, which distinct strength a class has
    multiplicity: Tensor  # (T,) float64
    within: Tensor  # (C,), unit vectors: the prior inside each level, minus its mean
    leaning: Tensor  # (L,) int64, the levels inside which the prior varies
    tied: Tensor  # classes whose level has differences orthogonal to the prior
    dimensions: Tensor  # (G - 1,) int64, the dimension of each group
    left: Tensor  # (K, K), columns u_k on the active directions
    right: Tensor  # (K, K), columns v_k
    squares: Doubled  # (G,), sigma^2 over `unit`
    unit: Tensor  # (), sigma^2 of the strongest class

    @property
    def balanced(self) -> bool:
        """One strength and a uniform prior: all classes alike."""
        return len(self.multiplicity) == 1 and len(self.leaning) == 0

    def analyze(self, rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates of the reduced features and of the prototypes, one row per row of `group`."""
        return self._split(rows, self.right), self._split(weight, self.left)

    def synthesize(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of :meth:`analyze`; leading axes pass through."""
        return self._join(x, self.right), self._join(y, self.left)

    def untouched(self, weight: Tensor) -> Tensor | None:
        """The part of the prototypes outside all modes: none."""
        return None

    def read_out(self) -> Tensor:
        r"""Prototypes minus their mean from coordinates, shape :math:`(C, rows)`."""
        matrix = self._join(torch.eye(len(self.group), dtype=torch.float64), self.left)
        matrix = matrix - matrix.mean(0)
        matrix[:, len(self.group) - 1] = 0  # the mode of sigma = 0 moves all prototypes alike
        return matrix

    def square_gap(self, ref: int) -> Tensor:
        r""":math:`\sigma_r^2 - \sigma_k^2` for all groups, each to full relative accuracy."""
        gap = (self.squares[ref : ref + 1] - self.squares).value
        return self.unit * torch.where(gap.abs() < SAME, 0.0, gap)

    def excess(self, ref: int, product: Tensor, decays: tuple[Tensor, Tensor]) -> Tensor:
        r""":math:`\sigma_r^2 - \lambda_1\lambda_2`, in twice the precision."""
        plain = self.sigma[ref] ** 2 - product
        exact = self.squares[ref] * Doubled.of(self.unit) - Doubled.of(decays[0].detach()) * Doubled.of(
            decays[1].detach()
        )
        return plain - plain.detach() + exact.value

    def _split(self, rows: Tensor, basis: Tensor) -> Tensor:
        level = self.level.to(rows.device)
        active = self._active(rows)
        tied = self.tied.to(rows.device)
        common, leaning = self._expand(active)
        kept = common.index_select(0, level[tied]) + self.within.to(rows)[tied, None] * leaning[level[tied]]
        return torch.cat([rows[tied] - kept, basis.to(rows).mT @ active])

    def _join(self, rows: Tensor, basis: Tensor) -> Tensor:
        level, count = self.level.to(rows.device), len(self.tied)
        common, leaning = self._expand(basis.to(rows) @ rows[..., count:, :])
        within = self.within.to(rows)[:, None]
        full = common.index_select(-2, level) + within * leaning.index_select(-2, level)
        return full.index_add(-2, self.tied.to(rows.device), rows[..., :count, :].to(full))

    def _active(self, rows: Tensor) -> Tensor:
        """Coordinates on the active directions, (K, p) from (C, p)."""
        level, size = self.level.to(rows.device), len(self.multiplicity)
        root = self.multiplicity.to(rows)[:, None].sqrt()
        common = rows.new_zeros(size, rows.shape[-1]).index_add(0, level, rows) / root
        along = rows.new_zeros(size, rows.shape[-1]).index_add(0, level, self.within.to(rows)[:, None] * rows)
        return torch.cat([common, along[self.leaning.to(rows.device)]])

    def _expand(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of each level, and its part along the prior within, (*, T, p) each."""
        size = len(self.multiplicity)
        common = active[..., :size, :] / self.multiplicity.to(active)[:, None].sqrt()
        along = torch.zeros_like(common).index_copy(-2, self.leaning.to(active.device), active[..., size:, :])
        return common, along


def prior_spectrum(strengths: list[Decimal], norm: Decimal, prior: list[Decimal]) -> PriorSpectrum:
    r"""Modes for integer labels under a prior.

    Arguments:
        strengths: :math:`\beta_c = a_c^2 n_c > 0`, exactly.
        norm: The total weight :math:`\sum_c a_c n_c`.
        prior: q, exactly; it is divided by its sum, so that rounding does not count.
    """
    with localcontext() as context:
        context.prec = DIGITS
        top, total = max(strengths), sum(prior, Decimal(0))
        beta = doubled([value / top for value in strengths])
        q = doubled([value / total for value in prior])
        unit = torch.tensor(float(top / norm**2), dtype=torch.float64)
    level, first = levels(beta.high)
    multiplicity = torch.bincount(level).double()
    within, leaning, small = _directions(q, level, multiplicity)
    squares = Doubled(*(torch.cat([part[first], part[first][leaning]]) for part in beta.both))
    roots, left = _eigen(squares, small, multiplicity)
    right = _partners(left, squares, small, multiplicity, roots.high)

    spare = multiplicity.long() - 1
    spare[leaning] -= 1
    poles = (spare > 0).nonzero().flatten()
    number = torch.full((len(multiplicity),), -1).index_copy(0, poles, torch.arange(len(poles)))
    tied = (spare[level] > 0).nonzero().flatten()
    group = torch.cat([number[level[tied]], len(poles) + torch.arange(len(left))])
    zero = torch.zeros(1, dtype=torch.float64)
    pairs = zip(squares.both, roots.both, strict=True)
    whole = Doubled(*(torch.cat([diagonal[poles], root, zero]) for diagonal, root in pairs))
    sigma = (unit * whole.high).sqrt()
    dimensions = torch.cat([spare[poles], torch.ones(len(left), dtype=torch.int64)])
    return PriorSpectrum(sigma, group, level, multiplicity, within, leaning, tied, dimensions, left, right, whole, unit)


def _directions(q: Doubled, level: Tensor, multiplicity: Tensor) -> tuple[Tensor, Tensor, Doubled]:
    """Unit vectors of q minus its mean inside each level (C,), the levels where it is not zero, and q on all active
    directions (K,)."""
    sums, norms = [], []
    within = torch.zeros_like(q.high)
    many = Doubled.of(multiplicity)
    none = Doubled.of(torch.zeros((), dtype=torch.float64))
    for index, members in enumerate(torch.argsort(level, stable=True).split(multiplicity.long().tolist())):
        part = q[members]
        sums.append(part.sum())
        if len(members) == 1:
            norms.append(none)
            continue
        apart = part - part.sum() / many[index]
        norm = (apart * apart).sum().sqrt()
        if norm.high <= 16 * EPS * part.high.norm():  # entries that meant to be equal
            norms.append(none)
            continue
        norms.append(norm)
        within[members] = (apart / norm).value
    common = _stack(sums) / many.sqrt()
    along = _stack(norms)
    leaning = (along.high > 0).nonzero().flatten()
    both = zip(common.both, along[leaning].both, strict=True)
    return within, leaning, Doubled(*(torch.cat(pair) for pair in both))


def _stack(values: list[Doubled]) -> Doubled:
    return Doubled(torch.stack([x.high for x in values]), torch.stack([x.low for x in values]))


def _ones(multiplicity: Tensor, size: int) -> Doubled:
    r"""The vector of ones on the active directions: :math:`\sqrt{m_t}` on the common parts."""
    root = Doubled.of(multiplicity).sqrt()
    return Doubled(*(torch.nn.functional.pad(part, (0, size - len(multiplicity))) for part in root.both))


def _eigen(squares: Doubled, q: Doubled, multiplicity: Tensor) -> tuple[Doubled, Tensor]:
    r"""Eigenvalues, descending, and eigenvectors (columns) of :math:`A A^\top` on the active directions.

    The last is exactly zero. A step of correction adds :math:`X E`, :math:`E_{ij} = x_i^\top r_j/(\mu_j - \mu_i)` for
    residuals :math:`r_j` of twice the precision, and so squares the error of each vector.
    """
    size = len(squares.high)
    all_ones = _ones(multiplicity, size)
    eye, ones, prior = torch.eye(size, dtype=torch.float64), all_ones.value, q.value
    oblique = eye - prior[:, None] * ones
    vectors = torch.linalg.svd(oblique * squares.value.sqrt())[0]
    vectors[:, -1] = ones / ones.norm()
    value = Doubled.of(torch.zeros(size, dtype=torch.float64))
    for _ in range(4):
        x = Doubled.of(vectors)
        inner = x - (q[:, None] * x).sum(0)[None] * all_ones[:, None]  # (I - 1 q^T) x
        pulled = squares[:, None] * inner
        value = (inner * pulled).sum(0) / (x * x).sum(0)
        image = pulled - (all_ones[:, None] * pulled).sum(0)[None] * q[:, None]
        residual = (image - value[None] * x).value
        gap = (value[None] - value[:, None]).value
        overlap = vectors.mT @ vectors - eye
        spread = vectors.mT @ residual
        distinct = gap.abs() > 64 * EPS * EPS
        turn = torch.where(distinct, spread / torch.where(distinct, gap, 1.0), 0.0)
        turn = torch.where(turn.abs() < 0.1, turn, 0.0)  # a pair too close for the eigensolver to tell apart
        vectors = vectors + vectors @ (turn - torch.diag(overlap.diagonal()) / 2)
        vectors = vectors / vectors.norm(dim=0)
        if turn.abs().max() < 1e-10:  # its square, the error left, is below all precision
            break
    order = torch.argsort(value.high[:-1], descending=True, stable=True)
    zero = torch.zeros(1, dtype=torch.float64)
    values = Doubled(*(torch.cat([part[:-1][order], zero]) for part in value.both))
    vectors = torch.cat([vectors[:, :-1][:, order], (ones / ones.norm())[:, None]], 1)
    return values, vectors


def _partners(left: Tensor, squares: Doubled, q: Doubled, multiplicity: Tensor, roots: Tensor) -> Tensor:
    r""":math:`v = A^\top u/\sigma`, and :math:`\mathrm{diag}(s)^{-1}q` beside the zero mode."""
    ones, prior, size = _ones(multiplicity, len(roots)).value, q.value, len(roots)
    strength = squares.value.sqrt()[:, None]
    pulled = strength * (left - ones[:, None] * (prior @ left))
    pulled[:, size - 1] = prior / strength[:, 0]
    return pulled / pulled.norm(dim=0)
