r"""Fixed prototypes: the simplex ETF, and well-separated unit vectors with zero mean beyond it.

The unhinged loss sees a fixed classifier only through its rows and their sum, so what a set of prototypes needs is
unit rows, zero sum  [eq: minimizers] and a large smallest angle  [eq: angle-bound]. Up to :math:`C = 2p` an arrangement
with the largest possible smallest angle is known and built exactly; beyond, it is optimised, or drawn at random where
optimising is too expensive:

========================  ==========================  =============================================================
classes                   method                      smallest angle
========================  ==========================  =============================================================
:math:`2 \le C \le p+1`   ``"simplex"``               :math:`\arccos(-1/(C-1))`, the largest possible
:math:`p+2 \le C \le 2p`  ``"orthogonal simplices"``  90°, the largest possible; at 2p the ``"cross-polytope"``
:math:`p = 2`             ``"polygon"``               :math:`2\pi/C`, the largest possible
:math:`C > 2p`            ``"optimized"``             up to 4,096 classes unless asked for; 90 to 100% of the bound
any                       ``"random"``                opposite pairs of random directions; any number of classes
========================  ==========================  =============================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from unhinge.extras import needed_for
from unhinge.nn.angles import smallest_angle
from unhinge.nn.bounds import angle_bound
from unhinge.nn.contract import as_tensor, check_dtype, check_size
from unhinge.theory.validation import check_num_classes

__all__ = ["Separation", "prototypes", "separation", "simplex_etf"]

OPTIMIZED_UP_TO = 4096  # classes; more would take many minutes
STARTS = 4
# At C = 1000, p = 64: 81.3 degrees in 8 s of one core; stages (8, 64) of 40 iterations: 70.9 degrees in 2 s.
STAGES, ITERATIONS = (1, 4, 16, 64, 256), 60
METHODS = ("auto", "optimized", "random")


def simplex_etf(
    num_classes: int,
    dim: int,
    generator: torch.Generator | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""A randomly rotated simplex equiangular tight frame: unit rows, equal angles, zero sum.

    :math:`W W^\top = \frac{C}{C-1} I - \frac{1}{C-1} 1 1^\top`, which needs :math:`C \le p + 1`
    [eq: simplex].

    Arguments:
        num_classes: The number of vectors :math:`C`, at least 2.
        dim: Their dimension :math:`p \ge C - 1`.
        generator: Draws the rotation, uniformly (Haar); ``None`` uses torch's global one.
        dtype: Of the result; None means torch's default. It is built in float64 and rounded once.
        device: Of the result; ``None`` leaves it where the generator is.

    Returns:
        The frame, shape :math:`(C, p)`.

    Example:
        >>> frame = simplex_etf(
        ...     4, 3, torch.Generator().manual_seed(0), dtype=torch.float64
        ... )
        >>> torch.allclose(
        ...     frame @ frame.T,
        ...     torch.eye(4, dtype=torch.float64) * 4 / 3 - 1 / 3,
        ...     atol=1e-15,
        ... )
        True
    """
    classes = check_num_classes(num_classes)
    check_size("dim", dim)
    check_dtype(dtype)
    if classes > dim + 1:
        raise ValueError(
            f"a simplex ETF of {classes} classes needs dim >= {classes - 1}, got dim={dim}. "
            f"Use prototypes({classes}, {dim}) for well-separated vectors, or a wider feature."
        )
    return _simplex(_rotation(dim, classes - 1, generator)).to(device, dtype or torch.get_default_dtype())


@overload
def prototypes(
    num_classes: int,
    dim: int,
    generator: torch.Generator | None = ...,
    *,
    method: str = ...,
    report: Literal[False] = ...,
    dtype: torch.dtype | None = ...,
    device: torch.device | str | None = ...,
) -> Tensor: ...
@overload
def prototypes(
    num_classes: int,
    dim: int,
    generator: torch.Generator | None = ...,
    *,
    method: str = ...,
    report: Literal[True],
    dtype: torch.dtype | None = ...,
    device: torch.device | str | None = ...,
) -> tuple[Tensor, Separation]: ...
def prototypes(
    num_classes: int,
    dim: int,
    generator: torch.Generator | None = None,
    *,
    method: str = "auto",
    report: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor | tuple[Tensor, Separation]:
    r"""Well-separated unit vectors with zero sum, for any number of classes.

    Arguments:
        num_classes: The number of vectors :math:`C`, at least 2.
        dim: Their dimension :math:`p`; 2 at least if :math:`C > 2`.
        generator: Decides the result; ``None`` uses torch's global one.
        method: ``"auto"`` takes the best method for the size (see the table of the module), ``"optimized"`` and
            ``"random"`` ask for these two.
        report: Also return the :class:`Separation`, which names the method and measures the smallest angle against the
            best bound known. Exact, at the cost of all :math:`C^2/2` inner products.
        dtype: Of the result, which is built in float64; None means torch's default.
        device: Of the result; ``None`` leaves it where the generator is.

    Returns:
        The prototypes, shape :math:`(C, p)`, alone or with their report.

    Example:
        >>> weight, separation = prototypes(
        ...     12, 3, torch.Generator().manual_seed(0), report=True
        ... )
        >>> print(separation)  # the icosahedron
        12 prototypes of dimension 3, optimized: smallest angle 63.43°, 100.0% of the
         bound 63.43° (Levenshtein)
    """
    classes = check_num_classes(num_classes)
    check_size("dim", dim)
    check_dtype(dtype)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    if dim == 1 and classes > 2:
        raise ValueError(
            f"on a line (dim=1) there are only two unit vectors, but {classes} classes were asked for. Use dim >= 2."
        )
    if method == "auto":
        weight, method = _best(classes, dim, generator)
    elif method == "random" or classes <= 2 * dim or dim == 2:
        # Where the optimum is known there is nothing to search for.
        weight, method = _random(classes, dim, generator) if method == "random" else _best(classes, dim, generator)
    else:
        weight, method = _optimized(classes, dim, generator)
    weight = weight.to(device, dtype or torch.get_default_dtype())
    return (weight, separation(weight, method)) if report else weight


@dataclass(frozen=True)
class Separation:
    """How well a set of prototypes is spread. Angles in radians."""

    num_classes: int
    dim: int
    method: str
    smallest_angle: float
    bound: float  # no arrangement of as many vectors has a larger smallest angle
    bound_name: str

    @property
    def ratio(self) -> float:
        """Smallest angle over the bound: 1 is the best possible."""
        return self.smallest_angle / self.bound if self.bound else 1.0

    def __str__(self) -> str:
        return (
            f"{self.num_classes} prototypes of dimension {self.dim}, {self.method}: smallest angle "
            f"{math.degrees(self.smallest_angle):.2f}°, {self.ratio:.1%} of the bound "
            f"{math.degrees(self.bound):.2f}° ({self.bound_name})"
        )


def separation(weight: Tensor, method: str = "given") -> Separation:
    r"""The smallest angle between the rows of `weight`, beside the best bound known for as many vectors.

    Exact: all :math:`C^2/2` pairs, in blocks. Time grows as :math:`C^2 p` (a minute or two for 100,000 rows), memory
    does not.

    Arguments:
        weight: Prototypes, shape :math:`(C, p)`; their lengths do not matter.
        method: How they were made, for the report.

    Example:
        >>> separation(
        ...     torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -2.0]])
        ... ).ratio
        1.0
    """
    if as_tensor("weight", weight).ndim != 2:
        raise ValueError(f"weight must have shape (num_classes, dim), got {tuple(weight.shape)}.")
    classes, dim = check_num_classes(weight.shape[0]), weight.shape[1]
    lengths = torch.linalg.vector_norm(weight.detach().double(), dim=1, keepdim=True)
    if not bool(((lengths > 0) & lengths.isfinite()).all()):
        raise ValueError("every row of weight must be finite and not zero: a zero row has no angle.")
    angle = smallest_angle(weight.detach().double()).item()
    bound = angle_bound(classes, dim)
    return Separation(classes, dim, method, angle, bound.angle, bound.name)


def _best(classes: int, dim: int, generator: torch.Generator | None) -> tuple[Tensor, str]:
    if classes <= dim + 1:
        return simplex_etf(classes, dim, generator, dtype=torch.float64), "simplex"
    if dim == 2:
        return _polygon(classes, generator), "polygon"
    if classes <= 2 * dim:
        # C - p simplices that share the dimensions: every set of p + 2 to 2p vectors at right angles looks like this.
        sizes = [dim // (classes - dim) + (i < dim % (classes - dim)) for i in range(classes - dim)]
        parts = _rotation(dim, dim, generator).split(sizes)
        return torch.cat([_simplex(part) for part in parts]), (
            "cross-polytope" if classes == 2 * dim else "orthogonal simplices"
        )
    if classes <= OPTIMIZED_UP_TO:
        return _optimized(classes, dim, generator)
    return _random(classes, dim, generator)


def _normal(rows: int, dim: int, generator: torch.Generator | None) -> Tensor:
    device = None if generator is None else generator.device
    return torch.randn(rows, dim, generator=generator, dtype=torch.float64, device=device)


def _rotation(dim: int, count: int, generator: torch.Generator | None) -> Tensor:
    """`count` orthonormal rows of dimension `dim`, uniform over all such sets."""
    q, r = torch.linalg.qr(_normal(count, dim, generator).T)
    # QR alone prefers some rotations; with the signs of R's diagonal taken out it prefers none (Mezzadri 2007).
    return (q * torch.where(r.diagonal() < 0, -1.0, 1.0)).T


def _simplex(basis: Tensor) -> Tensor:
    """The d + 1 vertices of a regular simplex in the span of d orthonormal rows (Helmert's matrix, by running sums)."""
    size = len(basis)
    k = torch.arange(1, size + 1, dtype=basis.dtype, device=basis.device)[:, None]
    steps = basis / (k * (k + 1)).sqrt()
    vertices = torch.cat([steps.flip(0).cumsum(0).flip(0), torch.zeros_like(basis[:1])])
    vertices[1:] -= k * steps
    # Scaling by sqrt((d + 1) / d) would be the same but for an eps that depends on the processor's LAPACK and that a
    # line shows: its two points are to be exactly -1 and 1.
    return torch.nn.functional.normalize(vertices, dim=1)


def _polygon(classes: int, generator: torch.Generator | None) -> Tensor:
    a, b = _rotation(2, 2, generator)
    angles = torch.arange(classes, dtype=torch.float64, device=a.device)[:, None] * (2 * math.pi / classes)
    return angles.cos() * a + angles.sin() * b


def _random(classes: int, dim: int, generator: torch.Generator | None) -> tuple[Tensor, str]:
    """Opposite pairs, so that the sum is zero; of an odd number, the last three form a triangle.

    A pair shares its inner products up to the sign, so half as many of them are random as without pairs: the smallest
    angle is, if anything, larger.
    """
    half = torch.nn.functional.normalize(_normal(classes // 2, dim, generator), dim=1)
    pairs = torch.stack([half, -half], dim=1).reshape(-1, dim)
    if classes % 2:
        pairs = torch.cat([pairs[:-2], _simplex(_rotation(dim, 2, generator))])
    return pairs, "random"


def _optimized(classes: int, dim: int, generator: torch.Generator | None) -> tuple[Tensor, str]:
    r"""Push the closest pairs apart: minimise :math:`\frac1\beta\log\sum_{i<j} e^{\beta w_i^\top w_j}`.

    The objective tends to the largest cosine as :math:`\beta` grows, in stages. Each starts from the last set, brought
    back to zero sum; the best of them counts.
    """
    with needed_for("an optimized set of prototypes"):
        from scipy.optimize import minimize

    best, top = torch.empty(0), math.inf
    for _ in range(STARTS if classes <= 64 else 1):  # few vectors get stuck more often, and a start costs little
        current = _balance(_normal(classes, dim, generator)).cpu()
        for sharpness in STAGES:
            solution = minimize(
                _crowding,
                current.flatten().numpy(),
                (classes, float(sharpness * dim)),
                "L-BFGS-B",
                jac=True,
                options={"maxiter": ITERATIONS},
            )
            current = _balance(torch.from_numpy(solution.x).view(classes, dim))
            cosine = (current @ current.T).fill_diagonal_(-1.0).max().item()
            if cosine < top:
                best, top = current, cosine
    return best.to(None if generator is None else generator.device), "optimized"


def _crowding(flat, classes: int, beta: float):  # type: ignore[no-untyped-def]  # scipy's callback: numpy in and out
    # float32: twice as fast, and the search needs no more; the result is balanced in float64
    free = torch.from_numpy(flat).float().view(classes, -1)
    lengths = free.norm(dim=1, keepdim=True)
    rows = free / lengths
    exponents = rows @ rows.T * beta
    exponents.fill_diagonal_(-math.inf)
    top = exponents.max()
    shares = exponents.sub_(top).exp_()
    total = shares.sum()
    # Few vectors would rather lean to one side, and bringing them back costs degrees; many have no such wish.
    penalty, drift = 100 / classes**2, rows.sum(0)
    pull = (shares @ rows) * (2 / total) + penalty * drift
    slope = (pull - (pull * rows).sum(1, keepdim=True) * rows) / lengths
    return ((total.log() + top) / beta + penalty / 2 * drift.square().sum()).item(), slope.flatten().double().numpy()


def _balance(rows: Tensor) -> Tensor:
    r"""Unit vectors with zero sum, seen from the geometric median of the normalised rows.

    The unit vectors from a point v to the points of a set sum to zero exactly where the sum of the distances is least,
    so v is the minimiser of a convex function, and Newton's method finds it in a few steps.
    """
    points = torch.nn.functional.normalize(rows, dim=1)
    center = torch.zeros_like(points[0])
    eye = torch.eye(len(center), dtype=center.dtype, device=center.device)
    for _ in range(20):
        lengths = (points - center).norm(dim=1, keepdim=True)
        units = (points - center) / lengths
        drift = units.sum(0)
        if drift.norm() <= 1e-15 * len(points):  # the rounding of a sum of so many unit vectors
            break
        curvature = (1 / lengths).sum() * eye - (units / lengths).T @ units
        center = center + torch.linalg.solve(curvature, drift)
    return torch.nn.functional.normalize(points - center, dim=1)
