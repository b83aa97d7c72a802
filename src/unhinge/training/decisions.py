r"""Decisions other than the largest logit, for test classes that are as frequent as each other.

Training classes of shares :math:`\pi` leave their mark on the logits. Taking a power :math:`\pi^\tau` of it out again
costs no training, so a run records the accuracy at several :math:`\tau`; at 0 it is the plain one.
"""

from __future__ import annotations

import math

from torch import Tensor

from unhinge.metrics import shot_accuracy
from unhinge.nn import class_weights
from unhinge.nn import functional as UF
from unhinge.training.recipe import Recipe

__all__ = [
    "TAUS",
    "adjusted_accuracies",
    "adjusted_record",
    "probabilities",
    "radius_of",
    "reached",
    "remaining_strength",
]

# Beyond 1 for networks that fit all of their training images: cross-entropy is best at 2 to 3 then.
TAUS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)

# The share of the radius that the features of the training images must have reached before logits are read as a
# posterior. Those of test images may be shorter: where the posterior is uncertain they should be. The paper's weak
# penalties ask for radii in the thousands, of which training reaches a quarter to a half; decisions from such a
# "posterior" fell from 27 to 10 % of accuracy.
REACHED = 2 / 3


def radius_of(recipe: Recipe, num_classes: int) -> float | None:
    r"""The feature norm that the objective asks for: its radius, or the one its penalty amounts to.

    Only fixed prototypes under the unhinged loss have one, :math:`r = (1+\gamma)\|w\| / (2 \lambda b)` for a penalty
    :math:`\lambda` of the sum over a batch of :math:`b`.

    Example:
        >>> radius_of(Recipe(loss="unhinged", head="pal", radius=10.0), 10)
        10.0
        >>> weak = Recipe(loss="unhinged", head="pal", feature_penalty=1e-3, batch=100)
        >>> round(radius_of(weak, 10), 2)
        5.56
        >>> radius_of(Recipe(), 10) is None
        True
    """
    if recipe.loss != "unhinged" or recipe.head != "pal":
        return None
    if recipe.radius is not None:
        return recipe.radius
    if not recipe.feature_penalty:
        return None
    # The strength is inverse in the radius, so that of radius 1 says all.
    unit = UF.penalty_strength(1.0, num_classes, recipe.gamma, prototype_norm=recipe.head_scale)
    return unit / (recipe.feature_penalty * recipe.batch)


def reached(radius: float, length: float) -> bool:
    """Whether training features of this mean length let logits be read; those of a run that diverged never do."""
    return REACHED * radius <= length < math.inf


def probabilities(logits: Tensor, recipe: Recipe, counts: Tensor, length: float) -> Tensor | None:
    r"""The posterior of a fixed simplex with a radius, :math:`(n, C)`; None where the logits hold none.

    They hold none without a radius, and none while the features of the training images, of mean norm `length`, are far
    shorter than that.

    With class weights on the loss alone it is the posterior itself, with a weighted penalty :math:`a_c P_c` up to a
    factor: see :func:`unhinge.nn.functional.posterior`.

    Example:
        >>> import torch
        >>> logits = 10 * torch.tensor([[1.0, -0.5, -0.5]])
        >>> counts = torch.tensor([2, 1, 1])
        >>> recipe = Recipe(loss="unhinged", head="pal", radius=10.0)
        >>> probabilities(logits, recipe, counts, length=9.8).tolist()
        [[1.0, 0.0, 0.0]]
        >>> probabilities(logits, recipe, counts, length=4.0) is None
        True
    """
    classes = logits.shape[-1]
    radius = radius_of(recipe, classes)
    if radius is None or not len(logits) or not reached(radius, length):
        return None
    wide, weights = logits.double(), None
    if recipe.class_weight and not recipe.weighted_penalty:
        weights = class_weights(counts, recipe.class_weight).to(wide)
    return UF.posterior(wide, radius * recipe.head_scale, weights)


def adjusted_accuracies(
    logits: Tensor, labels: Tensor, counts: Tensor, recipe: Recipe, length: float
) -> dict[str, float] | None:
    r"""Accuracy at each :math:`\tau` of `TAUS`; None where the loss gives no probabilities to adjust.

    Cross-entropy: the largest :math:`z_c - \tau\log\pi_c`. A fixed simplex with a radius: the largest
    :math:`\hat P_c / \pi_c^\tau`, multiplicative because its logits are affine in the posterior, not in its logarithm.

    Arguments:
        logits: Of the test images, :math:`(n, C)`.
        labels: Their classes, :math:`(n,)`.
        counts: Training images of each class, :math:`(C,)`.
        recipe: How the network was trained.
        length: Mean norm of the features of the training images.
    """
    record: dict[str, float] = {}
    for tau in TAUS:
        decided = _decided(logits, counts, recipe, length, tau)
        if decided is None:
            return None
        record[f"{tau:g}"] = (decided == labels).double().mean().item()
    return record


def remaining_strength(recipe: Recipe) -> float:
    r"""How much of the prior training has left in the logits: :math:`\tau` = 1 less what its weights took out.

    Class weights :math:`n_c^{-a}` and a logit adjustment of strength :math:`a` each take :math:`\pi^a` out. Weights of
    a loss whose penalty has none are taken back by :func:`probabilities` already.

    Example:
        >>> remaining_strength(Recipe()), remaining_strength(Recipe(class_weight=0.5))
        (1.0, 0.5)
        >>> remaining_strength(
        ...     Recipe(loss="unhinged", head="pal", radius=10.0, class_weight=0.5)
        ... )
        1.0
    """
    undone = recipe.loss != "ce" and not recipe.weighted_penalty
    return max(0.0, 1.0 - (0.0 if undone else recipe.class_weight) - recipe.logit_adjustment)


def adjusted_record(
    logits: Tensor, labels: Tensor, counts: Tensor, recipe: Recipe, length: float
) -> dict[str, float] | None:
    """The strength that remains, and the accuracy of decisions adjusted by it: of all, many, medium, few-shot classes.

    None where the loss gives no probabilities to adjust; arguments as in :func:`adjusted_accuracies`.
    """
    strength = remaining_strength(recipe)
    decided = _decided(logits, counts, recipe, length, strength)
    return None if decided is None else {"strength": strength} | shot_accuracy(decided, labels, counts)


def _decided(logits: Tensor, counts: Tensor, recipe: Recipe, length: float, strength: float) -> Tensor | None:
    if not bool((counts > 0).all()):
        return None
    shares = counts.to(logits.device)
    if recipe.loss == "ce":
        return UF.adjust_logits(logits.double(), shares, strength).argmax(-1)
    posterior = probabilities(logits, recipe, counts, length)
    return None if posterior is None else UF.balanced_decision(posterior, shares, strength)
