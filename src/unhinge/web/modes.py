r"""Growth exponents of all modes, from the singular values alone  [eq: eigenvalues], [eq: momentum]."""

from __future__ import annotations

from torch import Tensor

__all__ = ["exponents", "exponents_code"]


def exponents(
    sigma: Tensor,
    rates: tuple[float, float],
    decays: tuple[float, float],
    optimizer: str = "flow",
    momentum: float = 0.0,
    nesterov: bool = False,
) -> Tensor:
    r"""Exponent per step of the growing part of each mode: :math:`\omega_+` for the flow, :math:`\log|1+\omega_+|` for
    descent, the logarithm of the larger root of its recurrence with momentum.

    Arguments:
        sigma: Singular values :math:`(K,)`.
        rates: :math:`s_1, s_2` of features and prototypes.
        decays: :math:`\lambda_1, \lambda_2`.

    Example:
        >>> import torch
        >>> exponents(torch.tensor([0.5, 0.0]), (1.0, 1.0), (0.1, 0.1))
        tensor([ 0.4000, -0.1000])
    """
    s1, s2 = rates
    l1, l2 = decays
    mean, half = (s1 * l1 + s2 * l2) / 2, (s1 * l1 - s2 * l2) / 2
    omega = (half**2 + s1 * s2 * sigma**2).sqrt() - mean
    if optimizer == "flow":
        return omega
    if not momentum:
        return (1 + omega).abs().log()
    trace = (1 + omega) * (1 + momentum) if nesterov else 1 + momentum + omega
    product = momentum * (1 + omega) if nesterov else momentum + 0 * omega
    gap = (trace / 2) ** 2 - product
    largest = (trace / 2).abs() + gap.clamp(min=0).sqrt()
    return largest.where(gap >= 0, product.abs().sqrt()).log()


def exponents_code(
    rates: tuple[float, float], decays: tuple[float, float], optimizer: str, momentum: float, nesterov: bool
) -> str:
    """The same in Python, from `sigma`."""
    rest = "" if optimizer == "flow" else f", {optimizer!r}, {momentum!r}, {nesterov!r}"
    return f"unhinge.web.modes.exponents(sigma, {rates!r}, {decays!r}{rest})"
