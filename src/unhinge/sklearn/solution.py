r"""The minimizer of the unhinged loss over a linear head, in closed form  [eq: linear-classifier].

With examples :math:`x_i` of weight :math:`\omega_i` (sum 1, class weights included), scores
:math:`z_i = W(x_i - c) + b` around the mean :math:`c = \sum_i\omega_i x_i`, and shares
:math:`\pi_c = \sum_{i \in c}\omega_i`, the objective

.. math:: \sum_i \omega_i \Big(-z_{i,y_i} + \gamma\sum_{j \ne y_i} z_{i,j}\Big) + \tfrac\lambda2\|W\|^2
    + \tfrac\mu2\Big(\operatorname{mean}_i\|W(x_i - c)\|^2 + \|b\|^2\Big)

is quadratic, and its minimum is

.. math:: w_c = (1 + \gamma)\,(\lambda I + \mu\Sigma)^{-1}\,\pi_c(\bar x_c - c),\qquad
    b_c = \frac{(1 + \gamma)\pi_c - \gamma}{\mu \text{ or, if } \mu = 0,\ \lambda},

with the covariance :math:`\Sigma` of the examples around c, a mean over the examples without class weights; if there
are none, the last term is the mean of :math:`\|z_i\|^2`. A bias without any penalty would run to infinity.

Gamma scales the scores and shifts them by a common amount, no more. At :math:`\mu = 0` nothing is inverted, and lambda
scales the scores too. At :math:`\mu = \gamma = 1` it is ridge regression on targets :math:`\pm1`: half the squared
error is :math:`-tz + z^2/2` up to a constant, one unhinged loss and one penalty on the scores.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg
from scipy.linalg import lapack

from unhinge.sklearn.sums import Array, Sums

__all__ = ["linear_solution"]


def linear_solution(
    total: Sums, emphasis: Array, gamma: float, alpha: float, logit_penalty: float
) -> tuple[Array, Array, Array]:
    r"""Prototypes (C, p), offsets (C,) and the center (p,), which is relative to the origin of the sums.

    Arguments:
        total: The sums of all examples.
        emphasis: Class weights :math:`(C,)`, finite; a common factor is immaterial.
        gamma, alpha, logit_penalty: :math:`\gamma, \lambda, \mu`.

    Example:
        >>> x, y = np.array([[0.0], [2.0]]), np.array([0, 1])
        >>> total = Sums.of(x, y, np.ones(2), 2, np.zeros(1), second=False)
        >>> weight, offset, center = linear_solution(
        ...     total, np.ones(2), gamma=1.0, alpha=1.0, logit_penalty=0.0
        ... )
        >>> weight.ravel().tolist(), offset.tolist(), center.tolist()
        ([-1.0, 1.0], [0.0, 0.0], [1.0])
    """
    mass = emphasis * total.mass
    share = mass / mass.sum()
    center = (emphasis[:, None] * total.sums).sum(0) / mass.sum()
    # pi_c (mean_c - c), from sums alone: a class without examples pulls at nothing
    pull = (1 + gamma) * (emphasis[:, None] * total.sums - mass[:, None] * center) / mass.sum()
    if logit_penalty == 0:
        weight = pull / alpha
    else:
        assert total.second is not None
        size, whole = total.mass.sum(), total.sums.sum(0)
        moment = total.second - np.outer(whole, center) - np.outer(center, whole) + size * np.outer(center, center)
        matrix = logit_penalty * moment / size + alpha * np.eye(len(center))
        # Features in their own units: that one of them is a million times larger than another costs no digits.
        unit = np.sqrt(matrix.diagonal())
        weight = _solved(matrix / np.outer(unit, unit), (pull / unit).T).T / unit
    offset = ((1 + gamma) * share - gamma) / (logit_penalty or alpha)
    return weight, offset, center


def _solved(matrix: Array, right: Array) -> Array:
    """The solution of a positive system with ones on its diagonal.

    Where features depend on each other and are so large that alpha drowns beside them, the matrix is singular in
    floats. Then it is the smallest of the solutions, as ridge regression has it where its alpha vanishes.
    """
    factor, failed = lapack.dpotrf(matrix)
    reach = 0.0 if failed else lapack.dpocon(factor, np.abs(matrix).sum(0).max())[0]
    if reach > np.finfo(np.float64).eps:
        return np.asarray(lapack.dpotrs(factor, right)[0])
    values, vectors = linalg.eigh(matrix)
    kept = values > len(values) * np.finfo(np.float64).eps * values[-1]  # what lies below is rounding
    return np.asarray(vectors[:, kept] @ ((vectors[:, kept].T @ right) / values[kept, None]))
