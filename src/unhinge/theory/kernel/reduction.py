r"""From a kernel to its modes: :math:`h = h_0 + R\,j(t)`, :math:`w = B\,x(t)` with coordinates that move independently.

Without feature decay the flow closes on :math:`G = m^\top K m`, of the size of the prototypes, and needs neither an
inverse nor a root of K. With it, :math:`h = h_0 + K^{1/2} g` and :math:`(g, \sqrt s\,w)` obeys a linear equation with a
symmetric matrix, of the size of the rank of K and the prototypes together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unhinge.theory.kernel.modes import Coordinates, DampedModes, FreeModes, Modes
from unhinge.theory.kernel.products import Coupling, eigen, respond
from unhinge.theory.numerics import EPS, NOISE, safe_sqrt

__all__ = ["Reduction", "reduce_damped", "reduce_free"]


@dataclass(frozen=True)
class Reduction:
    """Fixed axes and moving coordinates. Rows of R: n for an example kernel, n p for a full one."""

    modes: Modes
    response: Tensor  # (rows, k), R = K P
    pull: Tensor  # (rows, k), P: what the kernel multiplies
    basis: Tensor  # (C or C p, k) float64 CPU, B
    features: Tensor  # (n, p), at the start
    classes: int  # C

    def assemble(self, state: Coordinates) -> tuple[Tensor, Tensor]:
        """Features (*, n, p) and prototypes (*, C, p)."""
        kept = state.start.to(self.features)[..., None, None] * self.features
        weight = (self.basis @ state.weight).to(self.features).flatten(-2)
        return kept + self._rows(self.response, state.features), weight.unflatten(-1, (self.classes, -1))

    def pulls(self, features: Tensor) -> Tensor:
        """Rows (*, n, p) such that the features have moved by the kernel times them."""
        return self._rows(self.pull, features)

    def sides(self, state: Coordinates) -> tuple[Tensor, Tensor]:
        """Features and prototypes on orthonormal axes, flattened: norms and angles are those of the state."""
        factor, along, outside = self._axes
        inside = factor @ state.features + state.start[..., None, None] * along
        features = torch.cat([inside.flatten(-2), (state.start * outside)[..., None]], -1)
        return features, (self.basis @ state.weight).flatten(-2)

    def standing(self, constant: Coordinates, blur: Tensor) -> bool:
        """Whether a constant part with this relative uncertainty (k,) of its features is more than rounding."""
        with torch.no_grad():
            factor, along, outside = self._axes
            size = torch.hypot(along.norm(), outside) + (self.basis @ constant.weight).norm()
            blurred = (blur * factor.norm(dim=0) * constant.features.norm(dim=1)).sum()
            return bool(torch.cat(self.sides(constant)).norm() > NOISE * EPS * size + blurred)

    def _rows(self, axes: Tensor, coordinates: Tensor) -> Tensor:
        rows = axes @ coordinates.to(axes)
        return rows.reshape(*rows.shape[:-2], *self.features.shape)

    @cached_property
    @torch.enable_grad()  # kept for later questions, so never cut from the graph by whoever asks first
    def _axes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Triangular factor of the response, the start on its axes, and the norm of the start outside them."""
        turn, factor = torch.linalg.qr(self.response.double().cpu())
        start = self.features.double().cpu().reshape(len(turn), -1)
        along = turn.mT @ start
        return factor, along, safe_sqrt((start - turn @ along).pow(2).sum())


def reduce_free(
    kernel: Any, kind: str, coupling: Coupling, features: Tensor, weight: Tensor, ratio: Tensor, decay: Tensor
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
    values, vectors = eigen("G = m^T K m", gram, torch.finfo(features.dtype).eps, floor)
    response = torch.where(values > 0, answer @ vectors, 0.0)
    pull = coupling.scatter(vectors.reshape(classes, -1)).reshape(response.shape)
    gain, basis = ratio * values.cpu(), vectors.cpu()
    x = basis.mT @ weight.double().cpu().reshape(side, -1)
    y = basis.mT @ coupling.gather(features.double()).cpu().reshape(side, -1)
    noise = NOISE * EPS * coupling.matrix.norm() * features.detach().double().norm().cpu()
    y = torch.where((gain[:, None] == 0) & (y.detach().norm(dim=1, keepdim=True) <= noise), 0.0, y)
    modes = FreeModes(gain, ratio, decay, x, y, noise)
    return Reduction(modes, response.to(features), pull.to(features), basis, features, classes)


def reduce_damped(
    kernel: Any,
    kind: str,
    coupling: Coupling,
    features: Tensor,
    weight: Tensor,
    ratio: Tensor,
    decays: tuple[Tensor, Tensor],
) -> Reduction:
    r"""Feature decay: the eigenvectors of
    :math:`\begin{pmatrix} -s\lambda_1 K & \sqrt s K^{1/2} m \\ \sqrt s m^\top K^{1/2} & -\lambda_2 I \end{pmatrix}`
    [eq: kernel-damped]."""
    if not isinstance(kernel, Tensor):
        raise ValueError(
            "feature_decay pulls on every feature through the kernel, which needs all eigenvectors of the kernel; an "
            "operator has none to give. Pass the kernel as a matrix, (n, n) or (n p, n p), or set feature_decay=0."
        )
    size, classes = len(features), len(weight)
    values, vectors = eigen("the kernel", kernel.detach().double(), torch.finfo(kernel.dtype).eps)
    kept = values > 0
    roots, vectors = values[kept].sqrt(), vectors[:, kept]
    rank, side = len(roots), classes if kind == "example" else weight.numel()
    ratio, feature_decay, weight_decay = (number.to(values) for number in (ratio, *decays))
    # K^{1/2} m, from class sums of the eigenvectors
    touch = coupling.gather(vectors.reshape(size, -1)).reshape(side, rank).mT * roots[:, None]
    damping = torch.diag(-torch.cat([ratio * feature_decay * roots**2, weight_decay.expand(side)]))
    damping[:rank, rank:] = ratio.sqrt() * touch
    damping[rank:, :rank] = damping[:rank, rank:].mT
    theta, turn = torch.linalg.eigh(damping)
    theta = torch.where(theta.abs() > 4 * len(theta) * EPS * theta.abs().max(), theta, 0.0)
    shrink = -ratio * feature_decay * roots[:, None] * (vectors.mT @ features.double().reshape(len(vectors), -1))
    pulled = ratio.sqrt() * coupling.gather(features.double()).reshape(side, -1)
    start = turn.mT[:, rank:] @ (ratio.sqrt() * weight.double().reshape(side, -1))
    modes = DampedModes(theta.cpu(), start.cpu(), (turn.mT @ torch.cat([shrink, pulled])).cpu())
    response, pull = ((vectors * scale) @ turn[:rank] for scale in (roots, 1 / roots))
    basis = (turn[rank:] / ratio.sqrt()).cpu()
    return Reduction(modes, response.to(features), pull.to(features), basis, features, classes)
