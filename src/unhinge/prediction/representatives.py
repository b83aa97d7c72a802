r"""Where the classes end up: the exact limit with one representative per class  [eq: representatives].

Scaled class means :math:`x_c = \sqrt{n_c}\,\bar h_c` and prototypes form a closed system
:math:`X' = \eta_1(A^\top W - \lambda_1 X)`, :math:`W' = \eta_2(A X - \lambda_2 W)` with
:math:`A = \frac1{\sum_k n_k a_k}\big((1+\gamma) I - \gamma 1 1^\top\big)\,\mathrm{diag}(\sqrt{n_c}\, a_c)` for class
weights :math:`a`. A problem with a single example per class, of weight :math:`\sqrt{n_c}\, a_c`, has the same matrix up
to a factor, so its limit is the limit of the class means, whatever the number of examples. Deviations within a class do
not grow and vanish beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.prediction.measured import Measured
from unhinge.theory.collapse import collapse_measures
from unhinge.theory.linear.path import LinearPath
from unhinge.theory.problem import LayerPeeled

__all__ = ["LimitByClass", "ending", "one_per_class"]

NOTHING = 1e-9  # of the longest: a class mean or prototype of this length is gone in the limit


@dataclass(frozen=True)
class LimitByClass:
    r"""The limit of :math:`Z/\|Z\|`, class by class. Biases take no part: they grow linearly at most."""

    means: Tensor  # (C, p), class means of the direction, longest 1
    weight: Tensor  # (C, p), prototypes of the direction, longest 1
    counts: Tensor  # (C,)

    @property
    def rank(self) -> int:
        """The number of directions the class means span; C - 1 for a healthy limit, 1 if one class is the largest
        [eq: minority-collapse]."""
        if not bool(self.means.any()):
            return 0
        # The limit is computed in float64, to some 1e-14 of its size: 1e-8 is far above that, and below what counts.
        return int(torch.linalg.matrix_rank(self.means, rtol=1e-8))

    @property
    def sizes(self) -> list[float]:
        """Lengths of the class means, the longest 1."""
        return self.means.norm(dim=1).tolist()

    @property
    def predicted(self) -> list[int | None]:
        """The class each class mean is put into; None where the mean is gone and the limit decides nothing
        [eq: limit-accuracy]."""
        centered = self.weight - self.weight.mean(0)
        logits = self.means @ centered.mT
        # the longest prototype is 1: logits that differ by less are rounding
        gone = logits.amax(1) - logits.amin(1) <= NOTHING * self.means.norm(dim=1)
        return [None if lost else kind for lost, kind in zip(gone.tolist(), logits.argmax(1).tolist(), strict=True)]

    @property
    def right(self) -> list[int]:
        """Classes whose mean is put into the class itself."""
        return [kind for kind, put in enumerate(self.predicted) if put == kind]

    @property
    def accuracy(self) -> float:
        """Share of the examples in such classes  [eq: two-classes]."""
        return float(self.counts[self.right].sum() / self.counts.sum())

    @property
    def undecided(self) -> float:
        """Share of the examples in classes that are gone in the limit  [eq: tied-classes]."""
        lost = [kind for kind, put in enumerate(self.predicted) if put is None]
        return float(self.counts[lost].sum() / self.counts.sum())

    def collapse(self) -> dict[str, float]:
        """Neural-collapse measures of the limit; NC1 is 0 there."""
        measures = collapse_measures(self.means, self.weight, torch.zeros((), dtype=torch.float64))
        return {key: float(value) for key, value in measures.items()}


def ending(
    measured: Measured,
    gamma: float | None = None,
    feature_decay: float = 0.0,
    weight_decay: float = 0.0,
    class_weight: Tensor | None = None,
) -> LimitByClass:
    """The direction in which training ends for these class means and this head.

    Example:
        >>> from unhinge.prediction.measured import measure_arrays
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0]])
        >>> limit = ending(measure_arrays(features, torch.tensor([0, 0, 1, 1])))
        >>> limit.rank, limit.accuracy
        (1, 1.0)
    """
    counts = measured.counts.double()
    state = one_per_class(measured, gamma, feature_decay, weight_decay, class_weight).direction()
    means, weight = state.features / counts.sqrt()[:, None], state.weight
    return LimitByClass(_longest_one(means), _longest_one(weight), counts)


def one_per_class(
    measured: Measured,
    gamma: float | None = None,
    feature_decay: float = 0.0,
    weight_decay: float = 0.0,
    class_weight: Tensor | None = None,
    lr: float = 0.1,
) -> LinearPath:
    """The path of the scaled class means and the prototypes, with the same clock as that of all examples."""
    counts = measured.counts.double()
    weights = torch.ones_like(counts) if class_weight is None else class_weight.double()
    pull = counts.sqrt() * weights
    # The same matrix, larger by this factor: decays grow with it, and the rate shrinks.
    factor = float((counts * weights).sum() / pull.sum())
    problem = LayerPeeled(
        torch.arange(len(counts)),
        len(counts),
        gamma,
        feature_decay * factor,
        weight_decay * factor,
        # Equal weights are none: the spectrum then has a closed form, and no C x C matrix is made.
        class_weight=None if bool((pull == pull[0]).all()) else pull / pull.max(),
    )
    return problem.flow(measured.classes.reduced(), measured.start_weight, lr=lr / factor)


def _longest_one(rows: Tensor) -> Tensor:
    longest = rows.norm(dim=1).max().item()
    if longest == 0 or not math.isfinite(longest):
        return torch.zeros_like(rows)
    return torch.where(rows.norm(dim=1, keepdim=True) < NOTHING * longest, 0.0, rows / longest)
