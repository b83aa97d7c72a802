r"""How far apart C unit vectors of dimension p can be at best: an upper bound on their smallest angle.

========================  ======================================================================  ==================
classes                   bound on the smallest angle                                             attained
========================  ======================================================================  ==================
:math:`C \le p+1`         :math:`\arccos(-1/(C-1))`, Rankin's simplex bound                       always
:math:`p+2 \le C \le 2p`  :math:`90°`, Rankin's orthoplex bound                                   always
:math:`p = 2`             :math:`2\pi/C`                                                          always
:math:`C > 2p`            Levenshtein's bound; for p = 3 Fejes Tóth's where it is smaller         sometimes (below)
========================  ======================================================================  ==================

Levenshtein's bound is met by the icosahedron, the shortest vectors of E8 and of the Leech lattice and a few more.
Elsewhere no arrangement is known to reach it, so the shortfall that :func:`~unhinge.nn.frames.separation` reports is
the most that better prototypes could gain.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from unhinge.extras import needed_for
from unhinge.nn.contract import check_size
from unhinge.theory.validation import check_num_classes

__all__ = ["Bound", "angle_bound"]


class Bound(NamedTuple):
    """No arrangement of unit vectors has a larger smallest angle (in radians) than this."""

    angle: float
    name: str


def angle_bound(num_classes: int, dim: int) -> Bound:
    r"""The largest smallest angle that `num_classes` unit vectors of dimension `dim` could have  [eq: angle-bound].

    For :math:`C \le p + 1` it is :math:`\arccos\frac{-1}{C-1}`, reached by the simplex; up to :math:`C = 2p` it is a
    right angle; beyond, Levenshtein's bound on the size of spherical codes, inverted.

    Arguments:
        num_classes: :math:`C`, the number of vectors.
        dim: :math:`p`, their dimension.

    Example:
        >>> [
        ...     round(math.degrees(angle_bound(c, 3).angle), 2)
        ...     for c in (2, 3, 4, 5, 6, 12, 1000)
        ... ]
        [180.0, 120.0, 109.47, 90.0, 90.0, 63.43, 6.9]
        >>> angle_bound(196_560, 24).name
        'Levenshtein'
        >>> round(math.degrees(angle_bound(196_560, 24).angle), 6)
        60.0
    """
    classes = check_num_classes(num_classes)
    check_size("dim", dim)
    if classes <= dim + 1:
        return Bound(math.acos(-1 / (classes - 1)), "simplex (Rankin)")
    if dim == 1:
        return Bound(0.0, "only two unit vectors exist on a line")
    if dim == 2:
        return Bound(2 * math.pi / classes, "regular polygon")
    if classes <= 2 * dim:
        return Bound(math.pi / 2, "orthoplex (Rankin)")
    bound = Bound(math.acos(_levenshtein_cosine(classes, dim)), "Levenshtein")
    if dim == 3:  # triangles on the ordinary sphere give more than polynomials do, from 14 points on
        cotangent = 1 / math.tan(classes / (classes - 2) * math.pi / 6)
        angle = math.acos((cotangent**2 - 1) / 2)
        if angle < bound.angle * (1 - 1e-12):  # at 12 points they agree
            bound = Bound(angle, "Fejes Tóth")
    return bound


def _levenshtein_cosine(size: int, dim: int) -> float:
    r"""The cosine at which Levenshtein's function :math:`L(p, s)` reaches `size`: every code has one at least as large.

    :math:`L` increases with :math:`s` and is glued from pieces that meet at the sizes of tight designs, so whole
    numbers choose the piece and a bracketed root finder inverts it.
    """
    with needed_for("Levenshtein's bound"):
        from scipy.optimize import brentq

    k = 1
    while _design_size(dim, 2 * k + 1) < size:
        k += 1
    # The pieces between designs of strength 2k-1, 2k and 2k+1; they end at the largest zeros of Jacobi polynomials.
    middle = _largest_zero(k, 1, 0, dim)
    if size <= _design_size(dim, 2 * k):
        low, high, piece = _largest_zero(k - 1, 1, 1, dim), middle, _odd_piece
    else:
        low, high, piece = middle, _largest_zero(k, 1, 1, dim), _even_piece
    scale = math.log(size)
    if scale <= math.log(max(piece(dim, k, low), 1.0)):  # a tight design, up to rounding
        return low
    if scale >= math.log(piece(dim, k, high)):
        return high
    # to the last digit of a cosine
    return float(brentq(lambda s: math.log(piece(dim, k, s)) - scale, low, high, xtol=1e-15))


def _design_size(dim: int, strength: int) -> int:
    """The least size of a spherical design (Delsarte, Goethals and Seidel)."""
    k = strength // 2
    if strength % 2:
        return 2 * math.comb(dim + k - 1, dim - 1)
    return math.comb(dim + k - 1, dim - 1) + math.comb(dim + k - 2, dim - 1)


def _largest_zero(degree: int, a: int, b: int, dim: int) -> float:
    from scipy.special import roots_jacobi

    if degree == 0:
        return -1.0
    half = (dim - 3) / 2
    return float(roots_jacobi(degree, a + half, b + half)[0][-1])


def _odd_piece(dim: int, k: int, s: float) -> float:
    before, current, _ = _gegenbauer(dim, k, s)
    bracket = (2 * k + dim - 3) / (dim - 1) - (before - current) / ((1 - s) * current)
    return math.comb(k + dim - 3, k - 1) * bracket


def _even_piece(dim: int, k: int, s: float) -> float:
    _, current, after = _gegenbauer(dim, k, s)
    bracket = (2 * k + dim - 1) / (dim - 1) - (1 + s) * (current - after) / ((1 - s) * (current + after))
    return math.comb(k + dim - 2, k) * bracket


def _gegenbauer(dim: int, k: int, s: float) -> tuple[float, float, float]:
    r"""The polynomials of degree :math:`k-1, k, k+1` that are orthogonal on the sphere, with value 1 at 1."""
    before, current = 1.0, s
    for j in range(1, k):
        before, current = current, ((2 * j + dim - 2) * s * current - j * before) / (j + dim - 2)
    return before, current, ((2 * k + dim - 2) * s * current - k * before) / (k + dim - 2)
