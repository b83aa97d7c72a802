r"""How much to adjust a decision for the class frequencies: accuracy over the strength, and the best one.

The theory names a strength (1, or what class weights leave of it), but an estimated posterior is not the posterior. So
the strength is chosen on a validation split, by the mean of the class accuracies: on a split with the frequencies of
the training set, plain accuracy would ask for no adjustment at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.metrics.checks import Labels, Numbers, as_labels, as_numbers
from unhinge.nn.decision import adjust_logits, balanced_decision
from unhinge.nn.decision import posterior as posterior_of
from unhinge.theory.numerics import widened

__all__ = ["StrengthCurve", "strength_curve"]


@dataclass(frozen=True, eq=False)
class StrengthCurve:
    r"""Accuracy over :math:`K` strengths of the adjustment, of one set of examples; made by :func:`strength_curve`.

    Example:
        >>> curve = strength_curve(
        ...     [[2.0, 0.0], [2.0, 1.5]],
        ...     [0, 1],
        ...     prior=[3, 1],
        ...     strengths=[0.0, 0.5, 1.0],
        ... )
        >>> curve.balanced_accuracy, curve.best
        (tensor([0.5000, 1.0000, 1.0000], dtype=torch.float64), 0.5)
    """

    strengths: Tensor  # (K,) float64, increasing
    class_accuracy: Tensor  # (K, C) float64; NaN for a class without examples
    example_accuracy: Tensor  # (K,) float64, the share of all examples that are right

    @property
    def balanced_accuracy(self) -> Tensor:
        """Mean of the accuracies of the classes that have examples, shape :math:`(K,)`."""
        return self.class_accuracy.nanmean(1)

    @property
    def best(self) -> float:
        """The strength of the largest balanced accuracy: in the middle of the best ones, where several tie."""
        tied = self.strengths[self.balanced_accuracy == self.balanced_accuracy.max()]
        return tied[(len(tied) - 1) // 2].item()


def strength_curve(
    logits: Numbers,
    target: Labels,
    prior: Numbers,
    *,
    radius: float | None = None,
    floor: float = 0.0,
    strengths: Numbers | None = None,
) -> StrengthCurve:
    r"""Accuracy of adjusted decisions for a grid of strengths.

    Arguments:
        logits: :math:`z` on a validation split, shape :math:`(n, C)`.
        target: Its labels, shape :math:`(n,)`.
        prior: Training frequencies or counts, shape :math:`(C,)`.
        radius: None for a head trained with cross-entropy: :math:`z_c - \tau\log\pi_c`
            (:func:`~unhinge.nn.functional.adjust_logits`). The radius of the features for a fixed simplex head under
            the unhinged loss: :math:`\hat P_c/\pi_c^\tau` (:func:`~unhinge.nn.functional.balanced_decision`).
        floor: Of :func:`~unhinge.nn.functional.balanced_decision`.
        strengths: The grid :math:`\tau`, increasing; by default 0 to 4 in steps of 0.05. A network that fits all of its
            training images states too large logits, and may need more than 1.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 1.0], [2.0, 1.5], [2.0, 1.9]])
        >>> curve = strength_curve(
        ...     logits, [0, 0, 1, 1], prior=[3, 1], strengths=[0.0, 0.5, 2.0]
        ... )
        >>> curve.balanced_accuracy.tolist(), curve.best
        ([0.5, 1.0, 0.5], 0.5)
    """
    z = as_numbers("logits", logits, ("n", "C")).detach()
    z = widened(z)  # in half precision a step of the strength would be rounded away
    frequencies = as_numbers("prior", prior, (z.shape[1],)).to(z.device)
    labels = as_labels("target", target, *z.shape).to(z.device)
    grid = torch.linspace(0, 4, 81, dtype=torch.float64)
    if strengths is not None:
        grid = as_numbers("strengths", strengths, ("K",)).detach().to("cpu", torch.float64)
    shares = None if radius is None else posterior_of(z, radius)
    seen = torch.bincount(labels, minlength=z.shape[1]).double()
    rows = []
    for strength in grid.tolist():
        if shares is None:
            chosen = adjust_logits(z, frequencies, strength).argmax(1)
        else:
            chosen = balanced_decision(shares, frequencies, strength, floor)
        rows.append(torch.bincount(labels[chosen == labels], minlength=z.shape[1]).double())
    right = torch.stack(rows)
    return StrengthCurve(grid, (right / seen).cpu(), (right.sum(1) / seen.sum()).cpu())
