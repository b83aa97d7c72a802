r"""The same classifier through a kernel: prototypes are sums of kernel functions  [eq: kernel-classifier].

With :math:`\omega` as in :mod:`unhinge.sklearn.solution` and features centered in the space of the kernel,

.. math:: z_c(x) = \sum_i d_{ic}\,k(x_i, x) - \sum_i d_{ic}(K\omega)_i + b_c,\qquad
    d_{ic} = \tfrac{1 + \gamma}\lambda\,\omega_i\,(1[y_i = c] - \pi_c).

No system is solved; fitting costs one pass over the kernel matrix, in blocks, for the centering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from sklearn.metrics.pairwise import KERNEL_PARAMS, pairwise_kernels
from sklearn.utils import gen_batches

from unhinge.sklearn.sums import Array

__all__ = ["KERNEL_PARAMETERS", "Kernel", "expansion", "kernel_products"]

Kernel = Callable[[Array, Array], Array]
KERNEL_PARAMETERS = frozenset(name for names in KERNEL_PARAMS.values() for name in names)  # of all kernels with names
BLOCK = 1 << 22  # kernel values held at once


def kernel_function(kernel: str | Kernel, parameters: Mapping[str, object] | None) -> Kernel:
    """A function of two sets of rows that returns their matrix of kernel values."""
    extra = {} if parameters is None else parameters
    if callable(kernel):
        return lambda a, b: np.asarray(kernel(a, b, **extra), dtype=np.float64)
    return lambda a, b: pairwise_kernels(a, b, metric=kernel, filter_params=True, **extra)


def kernel_products(kernel: Kernel, x: Array, others: Array, columns: Array) -> Array:
    """K(x, others) @ columns, without ever holding more than a block of K."""
    result = np.empty((len(x), columns.shape[1]))
    for rows in gen_batches(len(x), max(1, BLOCK // max(1, len(others)))):
        values = kernel(x[rows], others)
        if values.shape != (rows.stop - rows.start, len(others)):
            raise ValueError(
                f"the kernel must return a matrix of shape {(rows.stop - rows.start, len(others))}, got {values.shape}."
            )
        if not np.isfinite(values).all():
            raise ValueError(
                "the kernel must return finite numbers, but some are NaN or infinite. Look at its parameters, and at "
                "the scale of the features."
            )
        result[rows] = values @ columns
    return result


def expansion(kinds: Array, weight: Array, emphasis: Array, gamma: float, alpha: float) -> tuple[Array, Array, Array]:
    r"""Coefficients :math:`d` (n, C), shares :math:`\omega` (n,) and the biases :math:`b` (C,)."""
    omega = weight * emphasis[kinds]
    omega = omega / omega.sum()
    share = np.bincount(kinds, omega, len(emphasis))
    indicator = kinds[:, None] == np.arange(len(emphasis))
    return (1 + gamma) / alpha * omega[:, None] * (indicator - share), omega, ((1 + gamma) * share - gamma) / alpha
