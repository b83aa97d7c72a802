r"""What labels, class weights and :math:`\gamma` (or a prior) make of the loss: the modes of its target matrix M, and
its constant pull :math:`\kappa = M\mathbf 1` on the biases. Knows nothing of features or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import torch
from torch import Tensor

from unhinge.theory.linear.prior import prior_spectrum
from unhinge.theory.linear.spectrum import (
    CLASS_WEIGHT_POWERS,
    Spectrum,
    as_gamma,
    class_strengths,
    hard_spectrum,
    soft_prior_spectrum,
    soft_spectrum,
)
from unhinge.theory.linear.summary import HardSummary, Summary
from unhinge.theory.numerics import EPS
from unhinge.theory.targets import HardTargets, Targets
from unhinge.theory.types import Vector
from unhinge.theory.validation import as_tensor, check_counts

__all__ = ["Pull", "find_pull"]


@dataclass(frozen=True, kw_only=True)
class Pull:
    """A linear loss of some labels: all that training sees of them."""

    counts: Tensor  # (C,), examples per class; of soft labels the expected number, float64
    example_weight: Tensor  # (C,) float64, of an example of each class in the mean loss
    prior: Tensor | None  # (C,) float64, q; None for the loss with gamma
    spectrum: Spectrum  # modes of M
    bias_drive: Tensor  # (C,) float64, kappa


def find_pull(
    source: Targets | Summary, gamma: Tensor | None, class_weight: Vector | str | None, prior: Vector | str | None
) -> Pull:
    """Check weights and prior, and find the modes.

    Arguments:
        source: Labels, or what a pass over them left.
        gamma: As a tensor; None where a prior takes its place.
        class_weight, prior: As the user gave them.
    """
    num_classes = source.num_classes
    weights = _check_class_weight(class_weight, num_classes)
    if isinstance(source, HardTargets | HardSummary):
        counts = source.counts
        check_counts(counts)
    else:
        counts = source.factor.mT @ source.factor.sum(1)
        if isinstance(weights, str) and bool((counts <= 0).any()):
            raise ValueError(f'class_weight="{weights}" needs every class to have some weight in the soft labels.')
    plain = _example_weights(counts.double(), weights)
    mass = counts * plain
    share = plain / mass.sum()
    q = _check_prior(prior, counts, gamma)
    if q is not None:
        return Pull(
            counts=counts,
            example_weight=share,
            prior=q,
            spectrum=_prior_spectrum(source, q, weights, plain, by_counts=isinstance(prior, str)),
            bias_drive=_prior_drive(mass, q),
        )
    assert gamma is not None
    known = as_gamma(gamma, num_classes)
    if isinstance(source, HardTargets | HardSummary):
        spectrum: Spectrum = hard_spectrum(counts, known, weights)
    else:
        spectrum = soft_spectrum(source.factor, known, plain)
    # kappa = (1 + gamma) pi - gamma, written so that it is exactly 0 for balanced classes at gamma = 1/(C-1)
    offset = (num_classes * mass - mass.sum()) / (num_classes * mass.sum())
    drive = known.growth * (offset - known.nu / num_classes)
    return Pull(counts=counts, example_weight=share, prior=None, spectrum=spectrum, bias_drive=drive)


def _prior_spectrum(
    source: Targets | Summary, q: Tensor, weights: Tensor | str | None, plain: Tensor, by_counts: bool
) -> Spectrum:
    if not isinstance(source, HardTargets | HardSummary):
        return soft_prior_spectrum(source.factor, q, plain)
    _, _, strengths, _, norm = class_strengths(source.counts, weights)
    # The counts themselves, and not their rounded shares: their mean modes then vanish exactly.
    exact = [Decimal(int(n)) for n in source.counts] if by_counts else [Decimal(value) for value in q.tolist()]
    return prior_spectrum(strengths, norm, exact)


def _prior_drive(mass: Tensor, q: Tensor) -> Tensor:
    """kappa = pi - q, exactly 0 where q are the (weighted) frequencies themselves."""
    drive = mass / mass.sum() - q
    return torch.where(drive.abs() <= 4 * EPS * q.abs(), 0.0, drive)


def _example_weights(counts: Tensor, class_weight: Tensor | str | None) -> Tensor:
    """The weight of an example of each class, (C,), from checked weights."""
    if class_weight is None:
        return torch.ones_like(counts)
    return class_weight if isinstance(class_weight, Tensor) else counts ** -CLASS_WEIGHT_POWERS[class_weight]


def _check_class_weight(class_weight: Vector | str | None, num_classes: int) -> Tensor | str | None:
    """None, the name of a power of the counts, or positive float64 numbers (C,)."""
    if class_weight is None:
        return None
    if isinstance(class_weight, str):
        if class_weight not in CLASS_WEIGHT_POWERS:
            names = " or ".join(f'"{name}"' for name in CLASS_WEIGHT_POWERS)
            raise ValueError(f'class_weight must be None, {num_classes} numbers, {names}, got "{class_weight}".')
        return class_weight
    weights = as_tensor("class_weight", class_weight).to("cpu", torch.float64)
    good = bool(torch.isfinite(weights).all()) and bool((weights > 0).all())
    if weights.shape != (num_classes,) or not good:
        spread = f" with values from {weights.min().item():g} to {weights.max().item():g}" if weights.numel() else ""
        raise ValueError(
            f"class_weight must hold {num_classes} positive, finite numbers, got shape {tuple(weights.shape)}{spread}. "
            "To leave a class out, drop it."
        )
    return weights


def _check_prior(prior: Vector | str | None, counts: Tensor, gamma: Tensor | None) -> Tensor | None:
    """q as a float64 CPU tensor (C,) that sums to 1, or None."""
    if prior is None:
        return None
    if gamma is not None:
        raise ValueError("pass either gamma or prior: the loss is -z_y + gamma * (other logits), or -z_y + prior . z.")
    if isinstance(prior, str):
        if prior != "counts":
            raise ValueError(f'prior must be None, {len(counts)} numbers that sum to 1, or "counts", got "{prior}".')
        return counts.double() / counts.double().sum()
    values = as_tensor("prior", prior).detach().to("cpu", torch.float64)
    total = values.sum().item() if values.numel() else 0.0
    # Frequencies that were printed with four digits, or summed in half precision, are off by up to 1e-4.
    if values.shape != counts.shape or not bool(torch.isfinite(values).all()) or not abs(total - 1) < 1e-4:
        raise ValueError(
            f"prior must hold {len(counts)} finite numbers that sum to 1, got shape {tuple(values.shape)} with sum "
            f"{total:g}. Divide it by its sum."
        )
    return values / total
