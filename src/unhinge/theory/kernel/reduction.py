r"""From a kernel to its modes: :math:`h = h_0 + R\,j(t)`, :math:`w = B\,x(t)` with coordinates that move independently.

Without feature decay the flow closes on :math:`G = m^\top K m`, of the size of the prototypes, and needs neither an
inverse nor a root of K. With it, :math:`h = h_0 + K^{1/2} g` and :math:`(g, \sqrt s\,w)` obeys a linear equation with a
symmetric matrix, of the size of the rank of K and the prototypes together. Held prototypes are a constant pull.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unhinge.theory.keeping import kept
from unhinge.theory.kernel.modes import Coordinates, DampedModes, FreeModes, Modes
from unhinge.theory.kernel.products import STRIP, Coupling, Multiplier, eigen, respond, symmetric_eigen
from unhinge.theory.numerics import EPS, NOISE, safe_divide, safe_norm, widened

__all__ = ["Reduction", "reduce_damped", "reduce_free", "reduce_held"]


@dataclass(frozen=True)
class Axes:
    """A matrix of n (or n p) rows and k columns, as it is or as a product that is never multiplied out.

    With feature decay k is larger than n, and the product would cost as much as the eigenvectors themselves.
    """

    left: Tensor  # (rows, r), or (rows, k) alone
    right: Tensor | None = None  # (r, k)
    orthonormal: bool = False  # whether the columns of `left` are
    inverse: bool = False  # `left` is a lower triangle, and the inverse of its transpose is meant

    def times(self, coordinates: Tensor) -> Tensor:
        """The product with coordinates (*, k, q)."""
        inner = coordinates.to(self.left)
        inner = inner if self.right is None else self.right @ inner
        return torch.linalg.solve_triangular(self.left.mT, inner, upper=True) if self.inverse else self.left @ inner


@dataclass(frozen=True)
class Reduction:
    """Fixed axes and moving coordinates. Rows of R: n for an example kernel, n p for a full one."""

    modes: Modes
    response: Axes  # (rows, k), R = K P
    pull: Axes  # (rows, k), P: what the kernel multiplies
    basis: Tensor  # (C or C p, k) float64 CPU, B
    features: Tensor  # (n, p), at the start
    classes: int  # C

    def assemble(self, state: Coordinates) -> tuple[Tensor, Tensor]:
        """Features (*, n, p) and prototypes (*, C, p), in the dtype of the features."""
        weight = state.carry(lambda part: self.basis @ part.weight).to(self.features).flatten(-2)
        return state.carry(self._features).to(self.features), weight.unflatten(-1, (self.classes, -1))

    def pulls(self, features: Tensor) -> Tensor:
        """Rows (*, n, p) such that the features have moved by the kernel times them."""
        return self._rows(self.pull, features).to(self.features)

    def sides(self, state: Coordinates) -> tuple[Tensor, Tensor]:
        """Features and prototypes on orthonormal axes, flattened: norms and angles are those of the state."""
        factor, along, outside, leaning = self._axes

        def on_axes(part: Coordinates) -> Tensor:
            inside = factor.times(part.features) + part.start[..., None, None] * along
            apart = part.start * outside
            if leaning is not None:
                apart = apart + (leaning * part.features).sum((-2, -1))
            return torch.cat([inside.flatten(-2), apart[..., None]], -1)

        return state.carry(on_axes), state.carry(lambda part: self.basis @ part.weight).flatten(-2)

    def standing(self, constant: Coordinates, blur: Tensor) -> bool:
        """Whether a constant part with this relative uncertainty (k,) of its features is more than rounding."""
        with torch.no_grad():
            factor, along, outside, _ = self._axes
            size = torch.hypot(along.norm(), outside) + (self.basis @ constant.weight).norm()
            lengths = (factor.left if factor.right is None else factor.right).norm(dim=0)
            if factor.right is not None:  # of a product: no more than this
                lengths = lengths * factor.left.norm()
            blurred = (blur * lengths * constant.features.norm(dim=1)).sum()
            return bool(torch.cat(self.sides(constant)).norm() > NOISE * EPS * size + blurred)

    def _features(self, state: Coordinates) -> Tensor:
        moved = self._rows(self.response, state.features)
        return state.start.to(moved)[..., None, None] * self.features.to(moved) + moved

    def _rows(self, axes: Axes, coordinates: Tensor) -> Tensor:
        rows = axes.times(coordinates)
        return rows.reshape(*rows.shape[:-2], *self.features.shape)

    @kept
    def _axes(self) -> tuple[Axes, Tensor, Tensor, Tensor | None]:
        """A factor of the response on orthonormal axes, the start on them, and the norm of the start outside them.

        The axes stay where they are: they could not turn with a column that is zero. What a response with a slope turns
        out of them then leans on the start outside, (k, q), with value zero; None for one without.
        """
        left = self.response.left.double().cpu()
        right = None if self.response.right is None else self.response.right.double().cpu()
        start = self.features.double().cpu().reshape(len(left), -1)
        if right is not None and not self.response.orthonormal:
            return Axes(left, right), start, torch.zeros((), dtype=torch.float64), None  # all rows as they are
        turn = torch.linalg.qr(left.detach())[0] if right is None else left
        factor = turn.mT @ left if right is None else right
        along = turn.mT @ start
        apart = start - turn @ along
        outside, leaning = safe_norm(apart, 2), None
        if left.requires_grad:
            leaning = safe_divide((left - left.detach()).mT @ apart.detach(), outside.detach())
        return Axes(factor), along, outside, leaning


def reduce_free(
    kernel: Multiplier, kind: str, coupling: Coupling, features: Tensor, weight: Tensor, ratio: Tensor, decay: Tensor
) -> Reduction:
    r"""No feature decay: the eigenvectors of G. `ratio` is :math:`s = \eta_1/\eta_2`, `decay` :math:`\lambda_2`
    [eq: kernel-flow]."""
    size, classes = len(features), len(weight)
    answer = respond(kernel, kind, coupling, features)
    side = answer.shape[1]
    gram = coupling.gather(answer.reshape(size, -1)).reshape(side, side)
    # A kernel that cannot tell the classes apart gives G = 0, of which rounding leaves some eps of |m|^2 |K|, with
    # signs that differ from processor to processor. An operator does not tell its size: there G judges itself.
    floor = 0.0
    if isinstance(kernel, Tensor):
        floor = 4 * EPS * (coupling.matrix.norm() ** 2).item() * kernel.detach().double().norm().item()
    values, vectors, within = eigen("G = m^T K m", gram, torch.finfo(features.dtype).eps, floor)
    response = _vanished(values <= 0, answer @ vectors)
    pull = _vanished(values <= 0, coupling.scatter(vectors.reshape(classes, -1)).reshape(response.shape))
    gain, basis = ratio * values.cpu(), vectors.cpu()
    x = basis.mT @ weight.double().cpu().reshape(side, -1)
    y = basis.mT @ coupling.gather(features.double()).cpu().reshape(side, -1)
    noise = NOISE * EPS * coupling.matrix.norm() * features.detach().double().norm().cpu()
    y = _vanished((gain[:, None] == 0) & (y.detach().norm(dim=1, keepdim=True) <= noise), y)
    modes = FreeModes(gain, ratio, decay, x, y, noise, None if within is None else ratio * within.cpu())
    return Reduction(modes, Axes(response), Axes(pull), basis, features, classes)


def reduce_damped(
    kernel: Multiplier,
    kind: str,
    coupling: Coupling,
    features: Tensor,
    weight: Tensor,
    ratio: Tensor,
    decays: tuple[Tensor, Tensor],
) -> Reduction:
    r"""Feature decay: the eigenvectors of
    :math:`\begin{pmatrix} -s\lambda_1 F^\top F & \sqrt s F^\top m \\ \sqrt s m^\top F & -\lambda_2 I \end{pmatrix}`
    for any factor of the kernel, :math:`K = F F^\top`  [eq: kernel-damped].

    F is the Cholesky factor, and the one eigenproblem of this size nearly all the work. A kernel that has none, because
    it is singular, takes another: F is then its eigenvectors times the roots of their eigenvalues.
    """
    size, classes = len(features), len(weight)
    side = classes if kind == "example" else weight.numel()
    factor, squared, axes = _factor(_matrix(kernel), side)
    rank = factor.shape[1]
    ratio, feature_decay, weight_decay = (number.to(factor) for number in (ratio, *decays))
    root, rows = ratio.sqrt(), widened(features)
    touch = coupling.gather(factor.reshape(size, -1)).reshape(side, rank).mT  # F^T m, from class sums
    whole = -ratio * feature_decay * squared
    del squared  # of the size of the kernel, while the solver takes five times that
    whole[:rank, rank:], whole[rank:, :rank] = root * touch, root * touch.mT
    whole[rank:, rank:] = -weight_decay * torch.eye(side).to(factor)
    # A kernel that cannot tell the classes apart leaves rounding of the coupling.
    theta, turn, within = symmetric_eigen(whole, 4 * EPS * (root * coupling.matrix.norm() * factor.norm()).item())
    shrink = -ratio * feature_decay * (factor.mT @ rows.reshape(len(factor), -1))
    pulled = root * coupling.gather(rows).reshape(side, -1)
    start = turn.mT[:, rank:] @ (root * widened(weight).reshape(side, -1))
    drive = (turn.mT @ torch.cat([shrink, pulled])).cpu()
    hollow = rank < len(factor)
    modes = DampedModes(theta.cpu(), start.cpu(), drive, None if within is None else within.cpu(), hollow)
    response, pull = axes(turn[:rank])
    return Reduction(modes, response, pull, (turn[rank:] / root).cpu(), features, classes)


def reduce_held(
    kernel: Multiplier, kind: str, coupling: Coupling, features: Tensor, weight: Tensor, decay: Tensor
) -> Reduction:
    r"""Prototypes that do not move: a constant pull :math:`m w_0` on the features, and :math:`w_0` in modes of their
    own that stand still. `decay` is :math:`\lambda_1`  [eq: kernel-anchored]."""
    size, classes = len(features), len(weight)
    side = classes if kind == "example" else weight.numel()
    held, identity = widened(weight).reshape(side, -1), torch.eye(side, device=weight.device).double()
    if decay.item() == 0 and not decay.requires_grad:  # h = h_0 + K m w_0 u: one coordinate for each of w_0
        columns = respond(kernel, kind, coupling, features)
        still = (columns @ held.detach().to(columns)).norm() <= NOISE * EPS * columns.norm() * held.detach().norm()
        theta, drive = held.new_zeros(side), _vanished(still.to(held.device), held)
        response, pull = Axes(columns), Axes(coupling.scatter(identity.reshape(classes, -1)).reshape(columns.shape))
    else:  # g' = -lambda_1 F^T F g + F^T (m w_0 - lambda_1 h_0)
        factor, squared, axes = _factor(_matrix(kernel), 0)
        values, turn, _ = symmetric_eigen(squared)
        touch = coupling.gather(factor.reshape(size, -1)).reshape(side, -1).mT
        shrink = decay.to(factor) * (factor.mT @ widened(features).reshape(len(factor), -1))
        theta, drive = -decay.to(factor) * values.clamp(min=0), turn.mT @ (touch @ held - shrink)
        response, pull = axes(turn)
    moving = len(theta)
    modes = DampedModes(
        torch.cat([theta, theta.new_zeros(side)]).cpu(),
        torch.cat([torch.zeros_like(drive), held]).cpu(),
        torch.cat([drive, torch.zeros_like(held)]).cpu(),
    )
    basis = torch.cat([identity.new_zeros(side, moving), identity], 1).cpu()
    return Reduction(modes, _widened_by(response, side), _widened_by(pull, side), basis, features, classes)


def _vanished(where: Tensor, x: Tensor) -> Tensor:
    """Zero there: what would be zero but for rounding has a slope all the same."""
    return x - torch.where(where, x.detach(), 0.0)


def _widened_by(axes: Axes, columns: int) -> Axes:
    """The same axes and that many of zeros behind them."""
    pad = torch.nn.functional.pad
    if axes.right is None:
        return replace(axes, left=pad(axes.left, (0, columns)))
    return replace(axes, right=pad(axes.right, (0, columns)))


def _matrix(kernel: Multiplier) -> Tensor:
    if isinstance(kernel, Tensor):
        return kernel
    raise ValueError(
        "feature_decay pulls on every feature through the kernel, which needs all eigenvectors of the kernel; an "
        "operator has none to give. Pass the kernel as a matrix, (n, n) or (n p, n p), or set feature_decay=0."
    )


def _factor(kernel: Tensor, side: int) -> tuple[Tensor, Tensor, Callable[[Tensor], tuple[Axes, Axes]]]:
    """F with K = F F^T; F^T F, with `side` more rows and columns of zeros; what makes F x and K^{-1} F x of an x."""
    matrix = widened(kernel.detach())
    lower, failed = torch.linalg.cholesky_ex(matrix)
    sizes = lower.diagonal()
    if not bool(failed > 0) and bool(sizes.min() > 1e-5 * sizes.max()):  # squared, still 1e6 times rounding
        return lower, _squared(lower, side), lambda x: (Axes(lower, x), Axes(lower, x, inverse=True))
    values, vectors, _ = eigen("the kernel", matrix, torch.finfo(kernel.dtype).eps)
    positive = values > 0
    roots, axes = values[positive].sqrt(), vectors[:, positive]
    squared = torch.diag(torch.nn.functional.pad(values[positive], (0, side)))
    return (
        axes * roots,
        squared,
        lambda x: (
            Axes(axes, roots[:, None] * x, orthonormal=True),
            Axes(axes, x / roots[:, None], orthonormal=True),
        ),
    )


def _squared(lower: Tensor, side: int) -> Tensor:
    """L^T L of a lower triangle, from the rows where both columns have entries: a sixth of the work of the product."""
    size = len(lower)
    squared = lower.new_zeros(size + side, size + side)
    for start in range(0, size, STRIP):
        stop = min(start + STRIP, size)
        block = lower[start:, :stop].mT @ lower[start:, start:stop]
        squared[:stop, start:stop], squared[start:stop, :stop] = block, block.mT
    return squared
