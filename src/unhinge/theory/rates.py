r"""The fastest :math:`\gamma`, from the exact rate  [eq: best-gamma]."""

from __future__ import annotations

import math

__all__ = ["best_gamma"]


def best_gamma(
    num_classes: int,
    unit: float,
    feature_decay: float = 0.0,
    weight_decay: float = 0.0,
    ratio: float = 1.0,
) -> float:
    r"""The :math:`\gamma` at which the direction of a balanced problem converges fastest.

    Without decay, or with :math:`s\lambda_1 = \lambda_2`, it is :math:`1/(C-1)`; otherwise strictly larger, up to
    :math:`1/(C-2)`. For two classes any larger :math:`\gamma` is at least as fast: the smallest such value is returned,
    which is infinite when the decays are not matched.

    Arguments:
        num_classes: :math:`C`.
        unit: :math:`1 / (C\sqrt N)` for N examples per class, the singular value per :math:`1 + \gamma`.
        ratio: :math:`s = \eta_1 / \eta_2`.

    Example:
        >>> best_gamma(10, unit=1 / (10 * 5**0.5))
        0.1111111111111111
    """
    mismatch = abs(ratio * feature_decay - weight_decay)
    if num_classes == 2:
        return 1.0 if mismatch == 0 else math.inf
    lowest = num_classes / (num_classes - 1)
    if mismatch == 0:
        return 1 / (num_classes - 1)
    offset = mismatch / (2 * math.sqrt(ratio) * unit)

    def slope(u: float) -> float:
        """Sign of the derivative of the rate in u = 1 + gamma, which falls from plus to minus."""
        v = (num_classes - 1) * u - num_classes
        return u * math.hypot(offset, v) - (num_classes - 1) * v * math.hypot(offset, u)

    low, high = lowest, (num_classes - 1) / (num_classes - 2)
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return middle - 1
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
