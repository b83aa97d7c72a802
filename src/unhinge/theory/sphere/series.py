r"""Plain descent on the sphere with small equal steps, any number of them at once  [eq: sphere-series].

With :math:`\beta = \cos\theta` and :math:`\alpha = c/\|h\|^2` a step is

.. math:: \|h\|^2 \to \|h\|^2\,(1 + \alpha^2(1-\beta^2)), \qquad
          \beta \to \frac{\beta + \alpha(1-\beta^2)}{\sqrt{1 + \alpha^2(1-\beta^2)}}.

It keeps the final :math:`\varepsilon = c/\|h_\infty\|^2`, where :math:`\|h_\infty\|^2 = \|h\|^2 F`, and multiplies
:math:`E = \tan\frac\theta2\, e^S` by :math:`1 - \varepsilon`, with the formal series

.. math:: F = 1 + (1-\beta)\sum_m \varepsilon^m F_m(\beta), \qquad
          S = \sum_m \varepsilon^m \Big(S_m(\beta) + L_m \log\frac{1+\beta}2\Big).

With :math:`\alpha = \varepsilon F` in the step, both claims determine one order after the other: at order
:math:`\varepsilon^{m+1}` the m-th polynomial enters only as :math:`(1-\beta^2)\,\partial_\beta` of it, its value at
:math:`\beta = 1` is 0 (:math:`F` and :math:`e^S` are 1 there), and :math:`L_m` makes the rest divisible by
:math:`1+\beta`. ``series_tables`` in ``tests/oracles/sphere.py`` does this in exact fractions for any number of
terms; ``test_the_tables_of_the_series_follow_from_the_step`` compares its result with the tables below.

Worth its tables: usual steps are small, alpha near 1e-6, and an angle needs some :math:`40/\alpha` steps to vanish. One
by one that takes minutes; the series answers in a millisecond, and limits and rates exist only through it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unhinge.theory.numerics import TINY

__all__ = ["SMALL_STEP", "end_factor", "half_tangent", "halves", "small_steps_after", "turned"]

Table = tuple[tuple[int, tuple[int, ...]], ...]  # for each order its denominator and the numerators of 1, beta, ...

SMALL_STEP = 1 / 160  # the largest alpha at which eight terms leave less than rounding

NORM: Table = (
    (1, (1,)),
    (4, (5, -3)),
    (12, (22, -23, 4)),
    (48, (142, -202, 65, 1)),
    (144, (734, -1291, 581, 0, -15)),
    (576, (5308, -10980, 6216, -112, -387, -27)),
    (12096, (209122, -493559, 332371, -11931, -34821, -2481, 1488)),
    (48384, (1616141, -4265571, 3303459, -172069, -505850, -32930, 52407, 4791)),
)
PHASE: Table = (
    (1, (0,)),
    (4, (-1, 1)),
    (48, (-19, 18, 1)),
    (288, (-169, 174, 15, -20)),
    (2880, (-2549, 3030, 246, -700, -27)),
    (86400, (-120181, 171030, 9960, -64040, -3645, 6876)),
    (1209600, (-2770407, 4780650, 121325, -2530080, -121950, 529452, -8990)),
    (3386880, (-13363059, 27968388, -318521, -19486950, -528696, 6386772, -163618, -494316)),
)
LOGS: Table = (
    (2, (1,)),
    (4, (1,)),
    (24, (7,)),
    (16, (7,)),
    (160, (119,)),
    (320, (437,)),
    (120960, (320029,)),
    (241920, (1289539,)),
)


def half_tangent(a: Tensor, b: Tensor) -> Tensor:
    r""":math:`\tan(\theta/2)` with the sign of b, accurate at both ends of the circle; finite even behind."""
    norm = torch.hypot(a, b)
    cos, sin = a / norm, b / norm
    return torch.where(a > 0, sin / (1 + cos.abs()), (1 - cos) / torch.where(sin == 0, TINY, sin))


def halves(tangent: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\cos(\theta/2)` and :math:`\sin(\theta/2)` from :math:`\tan(\theta/2)` of any size."""
    secant = torch.hypot(torch.ones_like(tangent), tangent)
    return 1 / secant, tangent / secant


def turned(tangent: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\cos\theta` and :math:`\sin\theta` likewise."""
    cos, sin = halves(tangent)
    return (cos - sin) * (cos + sin), 2 * cos * sin


def small_steps_after(z: Tensor, c: Tensor, counts: Tensor) -> Tensor:
    r"""Coordinates after each number of steps with :math:`\alpha \le` `SMALL_STEP`, (2, K, n); none with b = 0."""
    tangent = half_tangent(*z)
    epsilon, factor = _end(z, c)
    all_terms = _terms(epsilon)
    drop = counts[:, None] * torch.log1p(-epsilon) + _phase(epsilon, tangent, all_terms)
    now = tangent * torch.exp(drop)
    for terms in (*range(1, all_terms), all_terms, all_terms):  # each round gains the factor epsilon
        now = tangent * torch.exp(drop - _phase(epsilon, now, terms))
    norm = torch.hypot(*z) * torch.sqrt(factor / _factor(epsilon, now, all_terms))
    return norm * torch.stack(turned(now))


def end_factor(z: Tensor, c: Tensor) -> Tensor:
    """How many times longer a feature will be in the end."""
    return torch.sqrt(_end(z, c)[1])


def _end(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The final alpha and F, each from the other."""
    tangent, alpha = half_tangent(*z), c / (z * z).sum(0)
    factor, all_terms = torch.ones_like(alpha), _terms(alpha)
    for terms in (*range(1, all_terms), all_terms, all_terms):
        factor = _factor(alpha / factor, tangent, terms)
    return alpha / factor, factor


def _factor(epsilon: Tensor, tangent: Tensor, terms: int) -> Tensor:
    cos, sin = halves(tangent)
    return 1 + 2 * sin**2 * _series(NORM, epsilon, cos**2 - sin**2, terms)


def _phase(epsilon: Tensor, tangent: Tensor, terms: int) -> Tensor:
    cos, sin = halves(tangent)
    logs = _series(LOGS, epsilon, torch.zeros((), dtype=torch.float64), terms)
    return _series(PHASE, epsilon, cos**2 - sin**2, terms) + 2 * torch.log(cos) * logs


def _terms(epsilon: Tensor) -> int:
    """Terms beyond which nothing reaches the last digit; they shrink about as (6 epsilon)^m."""
    # exp(-37) is half an eps.
    largest = max(epsilon.detach().max().item(), TINY) if epsilon.numel() else TINY
    return min(len(NORM), 1 + math.ceil(37 / -math.log(6 * largest)))


def _series(table: Table, epsilon: Tensor, cos: Tensor, terms: int) -> Tensor:
    """Sum of the first terms epsilon^m P_m(cos) by Horner's rule in both."""
    total = 0.0 * epsilon
    for denominator, numerators in reversed(table[:terms]):
        inner: Tensor | float = numerators[-1] / denominator
        for numerator in reversed(numerators[:-1]):
            inner = inner * cos + numerator / denominator
        total = (total + inner) * epsilon
    return total
