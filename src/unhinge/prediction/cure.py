r"""A long tail and its cure, from the class counts alone: what happens without one, when, and by which number.

The modes of free features grow at the rates :math:`\eta\sigma_k`, where the :math:`\sigma_k` depend on the counts only.
With equal counts the leading :math:`C - 1` are equal and all classes grow together. With a tail the largest is single:
in the end one direction is left, which tells the largest class from the rest [eq: minority-collapse]. How soon follows
from the gap between the largest two. Class weights :math:`n_c^{-1/2}` close it exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from unhinge.metrics.checks import Numbers, as_numbers
from unhinge.nn.weighting import class_weights
from unhinge.theory.linear.summary import HardSummary
from unhinge.theory.problem import LayerPeeled
from unhinge.theory.validation import scalar

__all__ = ["Cure", "cure_for"]


@dataclass(frozen=True)
class Cure:
    """What to do about class counts, and the numbers that decided it."""

    imbalance: float  # largest over smallest count
    class_weight: list[float] | None  # n_c^(-1/2), mean 1 over the examples; None for equal counts
    leading: float  # sigma_1, without weights
    following: float  # sigma_2
    separation_time: float  # steps in which the first mode doubles its lead over the second; infinite if they tie
    strength_without_weights: float  # of a balanced decision after training without weights
    strength_with_weights: float  # and after training with them

    @property
    def reason(self) -> str:
        """The decision in two sentences, with its numbers."""
        if self.class_weight is None:
            return "All classes have the same count: their modes grow at one rate, and there is nothing to cure."
        when = (
            f"its lead doubles every {math.ceil(self.separation_time):,} steps"
            if math.isfinite(self.separation_time)
            else "the largest counts tie, so their classes stay together and the others fall behind"
        )
        return (
            f"The largest class has {self.imbalance:.4g} times the examples of the smallest: the leading singular "
            f"value is {self.leading:.4g}, the next {self.following:.4g}, and {when}. Weights n_c^(-1/2) make them "
            f"equal. After training with them, on the loss and on the penalty of a radius, decide with strength "
            f"{self.strength_with_weights:g}; after training without, with strength {self.strength_without_weights:g}."
        )


def cure_for(counts: Numbers, gamma: float | None = None, lr: float = 0.1) -> Cure:
    r"""What class counts ask for: class weights for training, and the strength of a balanced decision.

    Arguments:
        counts: Training examples of each class, shape :math:`(C,)`, all positive.
        gamma: Of the loss; None means :math:`1/(C-1)`.
        lr: The rate steps are counted by.

    Returns:
        Weights :math:`n_c^{-1/2}` for :class:`~unhinge.nn.UnhingedLoss`, and :math:`\tau` for
        :func:`~unhinge.nn.functional.balanced_decision` (:math:`\hat P_c/\pi_c^\tau`): 1 after training without
        weights, :math:`\tfrac12` after training with them on loss and penalty, since they have divided by
        :math:`\pi^{1/2}` already.

    Example:
        >>> cure = cure_for([100, 10, 1])
        >>> cure.imbalance
        100.0
        >>> [round(weight, 2) for weight in cure.class_weight]
        [0.78, 2.48, 7.84]
        >>> cure.strength_with_weights
        0.5
        >>> cure_for([5, 5]).class_weight is None
        True
    """
    given = as_numbers("counts", counts, ("C",)).detach().to("cpu", torch.float64)
    if len(given) < 2 or not bool((given >= 1).all()) or not bool((given == given.round()).all()):
        raise ValueError(
            f"counts must be whole numbers of at least 1, for two classes or more, got {given.tolist()[:8]}. "
            "A class without examples has no features: leave it out."
        )
    rate = scalar("lr", lr, positive=True).item()
    whole = given.long()
    # The spectrum does not look at features; a summary of none is enough.
    nothing = HardSummary(whole, torch.zeros(len(whole), 1, dtype=torch.float64), torch.zeros(()), torch.float64)
    first, second = LayerPeeled.from_summary(nothing, gamma).singular_values.tolist()[:2]
    balanced = int(whole.min()) == int(whole.max())
    gap = rate * (first - second)
    return Cure(
        imbalance=float(given.max() / given.min()),
        class_weight=None if balanced else class_weights(given).tolist(),
        leading=first,
        following=second,
        # Singular values of a tie differ by rounding only.
        separation_time=math.log(2) / gap if gap > 1e-12 * rate * first else math.inf,
        strength_without_weights=0.0 if balanced else 1.0,
        strength_with_weights=0.0 if balanced else 0.5,
    )
