r"""What the certificate knows of the linear path at one time: a few norms, from the reduced state alone.

With :math:`\alpha_i` the weight of example i in the loss, :math:`\hat z_i` its logits on the linear path and S the
second derivative of the loss at zero, the gradient of the real loss differs from the linear one to lowest order by

.. math:: N_W = \sum_i \alpha_i S\hat z_i \hat h_i^\top, \qquad N_{h_i} = \alpha_i \hat W^\top S\hat z_i, \qquad
          N_b = \sum_i \alpha_i S\hat z_i .

Examples enter through class means and a few moments of what is left of the features, which only shrinks. So after one
pass all norms cost nothing in n or p  [eq: forcing].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Norms", "Residuals", "Weights", "measure", "spectral_norm", "summarize_residuals", "unseen_residuals"]

EXACT_SIZE = 64  # matrices up to this side get their spectral norm from eigenvalues
GRAM_SIZE = 2048  # and a matrix that comes alone up to this one: its eigenvalues then take a second or two
LARGEST_ENTRY = 1e70  # of a state: sums of squares of products of two entries fit float64


@dataclass(frozen=True)
class Weights:
    """Weights of the examples and how they sit in the reduced features."""

    alpha: Tensor  # (r,): of each reduced row; for soft labels the largest of all
    roots: Tensor  # (r,): sqrt(n_c) for integer labels, 0 for soft ones
    lever: float  # largest norm of an example's row in the basis of the reduced features
    largest: float  # largest weight of an example
    length: float  # Euclidean norm of all weights
    total: float  # sum of all weights
    equal: bool  # whether all examples behind a reduced row weigh the same
    examples: int


@dataclass(frozen=True)
class Residuals:
    """Moments of what the modes do not see of each feature, on the q directions of the modes and beside them."""

    cover: Tensor  # (q, q): sum of alpha_i^2 r_i r_i^T
    inside: Tensor  # (q, q): sum of alpha_i r_i r_i^T
    outside: Tensor  # (q, q): Gram matrix of sum of alpha_i r_i (the rest of r_i)^T
    spectral: float  # spectral norm of all residuals
    frobenius: float
    longest: float  # the longest of them
    reach: float  # the longest of them on the q directions
    # Where examples behind the reduced rows weigh differently: sums of alpha_i^2 u_i u_i^T (r, r) and of
    # alpha_i^2 u_i r_i^T (r, q), with u_i the row of an example in the basis of the reduced features.
    leaning: tuple[Tensor, Tensor] | None = None


def summarize_residuals(
    residuals: Tensor, basis: Tensor | None, alpha: Tensor, leaning: Tensor | None = None
) -> Residuals:
    """One pass over residuals (n, p), float64, with the weight of each example (n,) and, where those behind a reduced
    row differ, the row of each in the basis of the reduced features (n, r)."""
    near = residuals if basis is None else residuals @ basis
    even = bool((alpha == alpha[0]).all())  # one product over all examples then serves every moment
    weighted = near if even else alpha[:, None] * near
    cross = weighted.mT @ residuals  # (q, p)
    inside = cross if basis is None else cross @ basis
    outside = cross @ cross.mT - inside @ inside.mT if basis is not None else torch.zeros_like(inside)
    cover = inside if even else weighted.mT @ weighted
    if even and basis is None:
        spectral = _top_eigenvalue(inside).sqrt()
    else:
        spectral = spectral_norm(residuals if residuals.shape[0] < residuals.shape[1] else residuals.mT)
    unit = alpha[0].item() if even else 1.0
    products = None
    if leaning is not None:
        tilted = (alpha.square()[:, None] * leaning).mT
        products = tilted @ leaning, tilted @ near
    return Residuals(
        cover=unit**2 * cover,
        inside=unit * inside,
        outside=unit**2 * outside,
        spectral=spectral.item(),
        frobenius=residuals.norm().item(),
        longest=residuals.norm(dim=1).max().item(),
        reach=near.norm(dim=1).max().item(),
        leaning=products,
    )


def unseen_residuals(scatter: float, width: int, largest: float) -> Residuals:
    """The same after a streamed pass, of which only the total scatter is left: upper bounds."""
    eye = torch.eye(width, dtype=torch.float64)
    size = scatter**0.5
    return Residuals(
        cover=largest**2 * scatter * eye,
        inside=torch.zeros_like(eye),
        outside=(largest * scatter) ** 2 * eye,
        spectral=size,
        frobenius=size,
        longest=size,
        reach=size,
    )


def spectral_norm(matrix: Tensor) -> Tensor:
    """The largest singular value of each of a batch of matrices, or a little more for large ones.

    Beyond a certain size from the Frobenius norm of the fourth power of the Gram matrix, which exceeds it by at most
    the 16th root of the rank.
    """
    return _top_eigenvalue(matrix.mT @ matrix if _tall(matrix) else matrix @ matrix.mT).sqrt()


def _tall(matrix: Tensor) -> bool:
    return matrix.shape[-2] >= matrix.shape[-1]


def _top_eigenvalue(gram: Tensor) -> Tensor:
    """The largest eigenvalue of each of a batch of Gram matrices, or a little more for large ones."""
    single = gram.ndim == 2 and gram.shape[-1] <= GRAM_SIZE
    if gram.shape[-1] <= EXACT_SIZE or single:
        return torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0)
    scale = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    unit = gram / torch.where(scale > 0, scale, 1.0)[..., None, None]
    fourth = torch.linalg.matrix_power(unit, 4)
    return scale * torch.linalg.matrix_norm(fourth) ** 0.25


def _upright(matrix: Tensor) -> Tensor:
    """A matrix of the same Gram matrix with few rows: products with it keep their norms.

    So that many classes cost what the few directions of their prototypes cost: a product with 1,000 classes and 64
    directions has 64 columns instead of 1,000. Below four times as many rows as columns a QR factorization costs more
    than it saves.
    """
    return torch.linalg.qr(matrix, mode="r").R if matrix.shape[-2] > 4 * matrix.shape[-1] else matrix


def _stiffness(diagonal: Tensor, vector: Tensor, centered: bool) -> float | None:
    """The number that S multiplies every vector with (every centered one, if the loss is), if there is one."""
    unmoved = bool((vector == 0).all()) or (centered and bool((vector == vector[0]).all()))
    return diagonal[0].item() if unmoved and bool((diagonal == diagonal[0]).all()) else None


@dataclass(frozen=True)
class Norms:
    """One number per time each; see the module."""

    features: Tensor  # |N_H| to lowest order
    weight: Tensor  # |N_W|
    bias: Tensor  # |N_b|
    slopes: Tensor  # | (alpha_i S z_i)_i |
    logits: Tensor  # | (alpha_i z_i)_i |
    head: Tensor  # spectral norm of the prototypes (centered, if the loss is)
    body: Tensor  # spectral norm of the features
    largest_logits: Tensor  # of one example, at most
    largest_feature: Tensor
    moving_features: Tensor  # Frobenius norm of what the modes see of the features
    moving_weight: Tensor
    moving_body: Tensor  # spectral norm of the former
    resting: Tensor  # Frobenius norm of the rest of the features
    resting_body: Tensor  # and its spectral norm
    shift: Tensor  # norm of the biases (centered, if the loss is)


def measure(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    keep: Tensor,
    residuals: Residuals,
    weights: Weights,
    diagonal: Tensor,
    vector: Tensor,
    centered: bool,
) -> Norms:
    """From reduced features (t, r, q), prototypes (t, C, q), biases (t, C) and the factor of the residuals (t,).

    Infinite where an entry is larger than :data:`LARGEST_ENTRY`, as after steps that are far too long: nothing is
    proved there, and eigenvalues would not converge.
    """
    parts = [rows, weight, keep] if bias is None else [rows, weight, keep, bias]
    fits = torch.stack([(part.reshape(len(part), -1).abs() < LARGEST_ENTRY).all(1) for part in parts]).all(0)
    rows, weight, keep, *rest = (torch.where(fits.reshape(-1, *[1] * (part.ndim - 1)), part, 0.0) for part in parts)
    bias = rest[0] if rest else None
    shift = torch.zeros(rows.shape[0], weight.shape[1], dtype=torch.float64) if bias is None else bias
    if centered:
        weight = weight - weight.mean(-2, keepdim=True)
        shift = shift - shift.mean(-1, keepdim=True)

    stiffness = _stiffness(diagonal, vector, centered)

    def bent(x: Tensor) -> Tensor:
        """S applied to the last axis."""
        return x * diagonal - (x @ vector)[..., None] * vector if stiffness is None else stiffness * x

    alpha, roots = weights.alpha, weights.roots
    bent_weight = bent(weight.mT).mT  # S W
    # biases are one more column of the prototypes, beside a feature that is 1 (sqrt(n_c) for the row of a class)
    wide, sides, bent_sides = rows, weight, bent_weight
    if bias is not None:
        wide = torch.cat([rows, roots[:, None].expand(*rows.shape[:-1], 1)], -1)
        sides, bent_sides = (torch.cat([x, y[..., None]], -1) for x, y in ((weight, shift), (bent_weight, bent(shift))))
    # Products of three long sides are what this costs: each is made once, and S as a number saves half of them.
    logits = wide @ _upright(sides).mT  # (t, r, C) in some orthonormal basis: times sqrt(n_c)
    slopes = wide @ _upright(bent_sides).mT if stiffness is None else stiffness * logits
    square, weighted = keep**2, alpha[:, None]
    gram = weight.mT @ weight  # (t, q, q)
    pull = bent_weight.mT @ weight if stiffness is None else stiffness * gram  # W^T S W
    bent_gram = bent_weight.mT @ bent_weight if stiffness is None else stiffness * pull
    pulled = wide @ (pull if bias is None else torch.cat([pull, (bent(shift)[..., None, :] @ weight)], -2))  # (t, r, q)
    even = bool((alpha == alpha[0]).all())
    scatter = rows.mT @ rows if even else rows.mT @ (weighted * rows)  # (t, q, q), over alpha if that is one number

    def joint(part: Tensor, rest: Tensor) -> Tensor:
        return ((weighted * part).pow(2).sum((-2, -1)) + square * rest).clamp(min=0).sqrt()

    cover = residuals.cover
    if residuals.leaning is None:
        forced = joint(pulled, ((pull @ cover) * pull).sum((-2, -1)))
        slope_norm = joint(slopes, (bent_gram * cover).sum((-2, -1)))
        logit_norm = joint(logits, (gram * cover).sum((-2, -1)))
    else:  # the two parts of the features are not orthogonal under the weights: their products count too
        own, mixed = residuals.leaning
        crossed = keep[:, None, None] * (rows.mT @ mixed)
        # the sum of alpha_i^2 h_i h_i^T
        second = rows.mT @ (own @ rows) + crossed + crossed.mT + square[:, None, None] * cover
        forced = ((pull @ second) * pull).sum((-2, -1)).clamp(min=0).sqrt()
        slope_norm = (bent_gram * second).sum((-2, -1)).clamp(min=0).sqrt()
        logit_norm = (gram * second).sum((-2, -1)).clamp(min=0).sqrt()
    inner = bent_weight @ ((alpha[0] if even else 1.0) * scatter + square[:, None, None] * residuals.inside)
    if bias is not None:
        inner = inner + bent(shift)[..., None] * ((alpha * roots) @ rows)[..., None, :]
    outer = (bent_gram * residuals.outside).sum((-2, -1)).clamp(min=0)
    shaped = (inner.pow(2).sum((-2, -1)) + square**2 * outer).sqrt()
    head = _top_eigenvalue(gram).sqrt() if _tall(weight) else spectral_norm(weight)
    tall_body = _top_eigenvalue(scatter) if even and _tall(rows) else spectral_norm(rows).square()
    body = (tall_body + square * residuals.spectral**2).sqrt()
    drift = (bent_sides @ (wide.mT @ (alpha * roots))[..., None]).flatten(-2).norm(dim=-1)
    push = bent(shift).norm(dim=-1)
    if bool((roots > 0).all()):
        tallest = (logits.norm(dim=-1) / roots).amax(-1)
        longest = (rows.norm(dim=-1) / roots).amax(-1)
    else:  # soft labels: no example has a row of its own
        tallest = weights.lever * spectral_norm(logits) + shift.norm(dim=-1)
        longest = weights.lever * spectral_norm(rows)
        if not weights.equal:
            shaped = slope_norm * body
        forced = forced + head * weights.length * push
        shaped = shaped + body * weights.length * push
        slope_norm = slope_norm + weights.length * push
        logit_norm = logit_norm + weights.length * shift.norm(dim=-1)
        drift = weights.examples**0.5 * slope_norm
    norms = Norms(
        features=forced,
        weight=shaped,
        bias=drift,
        slopes=slope_norm,
        logits=logit_norm,
        head=head,
        body=body,
        largest_logits=tallest + keep.abs() * head * residuals.reach,
        largest_feature=longest + keep.abs() * residuals.longest,
        moving_features=rows.flatten(-2).norm(dim=-1),
        moving_weight=weight.flatten(-2).norm(dim=-1),
        moving_body=tall_body.sqrt(),
        resting=keep.abs() * residuals.frobenius,
        resting_body=keep.abs() * residuals.spectral,
        shift=shift.norm(dim=-1),
    )
    return Norms(**{name: torch.where(fits, norm, math.inf) for name, norm in vars(norms).items()})
