r"""Decisions other than the largest logit, for test classes that are as frequent as each other.

Training classes of shares :math:`\pi` leave their mark on the logits. Taking a power :math:`\pi^\tau` of it out again
costs no training, so a run records the accuracy at several :math:`\tau`; at 0 it is the plain one.
"""

from __future__ import annotations

from torch import Tensor

from unhinge.nn import functional as UF
from unhinge.training.recipe import Recipe

__all__ = ["TAUS", "adjusted_accuracies", "posterior", "radius_of"]

TAUS = (0.0, 0.25, 0.5, 0.75, 1.0)


def radius_of(recipe: Recipe, num_classes: int) -> float | None:
    r"""The feature norm that the objective asks for: its radius, or the one its penalty amounts to.

    Only fixed prototypes under the unhinged loss have one, :math:`r = (1+\gamma)\|w\| / (2 \lambda b)` for a penalty
    :math:`\lambda` of the sum over a batch of :math:`b`.

    Example:
        >>> radius_of(Recipe(loss="unhinged", head="pal", radius=10.0), 10)
        10.0
        >>> round(radius_of(Recipe(loss="unhinged", head="pal", feature_penalty=1e-3, batch=100), 10), 2)
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


def posterior(logits: Tensor, radius: float, head_scale: float = 1.0) -> Tensor:
    r"""Class probabilities of a fixed simplex with a radius, :math:`\frac1C + \frac{C-1}{C}\frac{z_c}{r\|w\|}`.

    The objective is a squared error towards :math:`r\,\hat w_y`, whose minimizer is affine in the posterior. The rows
    sum to 1; away from the minimizer entries may be negative.

    Example:
        >>> import torch
        >>> posterior(torch.tensor([[10.0, -5.0, -5.0]]), radius=10.0)
        tensor([[1., 0., 0.]])
    """
    num_classes = logits.shape[-1]
    return 1 / num_classes + (num_classes - 1) / num_classes * logits / (radius * head_scale)


def adjusted_accuracies(logits: Tensor, labels: Tensor, counts: Tensor, recipe: Recipe) -> dict[str, float] | None:
    r"""Accuracy at each :math:`\tau` of `TAUS`; None where the loss gives no probabilities to adjust.

    Cross-entropy: the largest :math:`z_c - \tau\log\pi_c`. A fixed simplex with a radius: the largest
    :math:`\hat P_c / \pi_c^\tau`, multiplicative because its logits are affine in the posterior, not in its logarithm.

    Arguments:
        logits: Of the test images, :math:`(n, C)`.
        labels: Their classes, :math:`(n,)`.
        counts: Training images of each class, :math:`(C,)`.
        recipe: How the network was trained.
    """
    if not bool((counts > 0).all()):
        return None
    shares = (counts.double() / counts.sum()).to(logits.device)
    wide = logits.double()
    radius = radius_of(recipe, len(counts))
    if recipe.loss == "ce":
        decided = {tau: (wide - tau * shares.log()).argmax(-1) for tau in TAUS}
    elif radius is not None:
        probabilities = posterior(wide, radius, recipe.head_scale)
        decided = {tau: (probabilities / shares**tau).argmax(-1) for tau in TAUS}
    else:
        return None
    return {f"{tau:g}": (classes == labels).double().mean().item() for tau, classes in decided.items()}
