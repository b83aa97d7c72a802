r"""From a recipe to the number that is lowered: loss, class weights and feature penalty.

Kept as sums, so that the parts of a batch that lie in several processes add up to exactly what one process computes:
:math:`\big(\sum_i a_{y_i}\ell_i\big) / \sum_i a_{y_i} + \lambda\sum_i\|h_i\|^2`. A weighted penalty of a radius belongs
to the losses instead, :math:`\ell_i + \lambda\|h_i\|^2`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unhinge.nn import class_weights
from unhinge.nn import functional as UF
from unhinge.nn.ldam import ldam_margins
from unhinge.nn.precision import widened
from unhinge.training.recipe import Recipe

__all__ = ["Objective", "objective_of"]


@dataclass(frozen=True)
class Objective:
    """The objective of a run; `weights` and `priors` are one number per class."""

    recipe: Recipe
    num_classes: int
    weights: Tensor | None  # (C,)
    priors: Tensor | None  # (C,), added to the logits
    penalty: float  # lambda, of the sum over the batch
    penalty_of_mean: float  # the same for the mean over the batch: what a radius asks for at any batch size
    margins: Tensor | None = None  # (C,), of loss ldam

    def weight_of(self, target: Tensor) -> Tensor:
        """Weight of each example, :math:`(b,)`."""
        if self.weights is None:
            return torch.ones(len(target), device=target.device)
        return self.weights.to(target.device)[target]

    def __call__(
        self, logits: Tensor, features: Tensor, target: Tensor, prototypes: Tensor, total_weight: Tensor, batch: int
    ) -> Tensor:
        """This part's share of the objective of a batch of `batch` examples that weigh `total_weight` together."""
        return self.combined(self.losses(logits, features, target, prototypes), features, target, total_weight, batch)

    def combined(self, losses: Tensor, features: Tensor, target: Tensor, total_weight: Tensor, batch: int) -> Tensor:
        """The same from the losses of the examples."""
        weights = self.weight_of(target)
        value = (losses * weights).sum() / total_weight
        if self.recipe.weighted_penalty:
            return value + UF.feature_norm_penalty(features, self.penalty_of_mean, weight=weights) / total_weight
        strength = self.penalty + self.penalty_of_mean / batch
        return value + UF.feature_norm_penalty(features, strength) if strength else value

    def losses(self, logits: Tensor, features: Tensor, target: Tensor, prototypes: Tensor) -> Tensor:
        """The loss of each example, without weights or penalty, :math:`(b,)`."""
        recipe = self.recipe
        smoothing = recipe.label_smoothing
        match recipe.loss:
            case "ce":
                shifted = logits if self.priors is None else logits + self.priors.to(logits.device)
                return F.cross_entropy(_wide(shifted), target, reduction="none", label_smoothing=smoothing)
            case "unhinged":
                return UF.unhinged_loss(logits, target, recipe.gamma, reduction="none", label_smoothing=smoothing)
            case "adjusted":
                # It takes the features past the head, and so past the hook that rescales for other losses.
                seen = UF.rescale_gradient(features) if recipe.rescale else features
                return UF.adjusted_margin_loss(seen, prototypes, target, recipe.gamma, recipe.epsilon, reduction="none")
            case "hinge":
                return UF.multiclass_hinge_loss(logits, target, reduction="none")
            case "ldam":
                assert self.margins is not None
                # the head multiplies cosines by its scale, the inverse temperature of the loss
                scale = recipe.head_scale
                return UF.ldam_loss(logits / scale, target, self.margins.to(logits.device), scale, reduction="none")
            case "mse":
                wanted = F.one_hot(target, self.num_classes).to(logits.dtype)
                return _wide(logits - wanted).square().sum(-1)
            case "taylor_softmax":
                return UF.taylor_softmax_loss(logits, target, reduction="none")
            case "z":
                return UF.z_loss(logits, target, reduction="none")
            case "spherical_softmax":
                return UF.spherical_softmax_loss(logits, target, reduction="none")


def _wide(x: Tensor) -> Tensor:
    """At least float32: half precision is too coarse for logarithms and sums."""
    return x.to(widened(x.dtype))


def objective_of(recipe: Recipe, counts: Tensor) -> Objective:
    """The objective for training classes of these sizes, :math:`(C,)`."""
    num_classes = len(counts)
    weights = class_weights(counts, recipe.class_weight) if recipe.class_weight else None
    priors = None
    if recipe.logit_adjustment:
        shares = counts.double() / counts.sum()
        if (shares == 0).any():
            raise ValueError("logit_adjustment takes the logarithm of each class's share, but a class has no images.")
        priors = (recipe.logit_adjustment * shares.log()).float()
    of_mean = 0.0
    if recipe.radius is not None:
        of_mean = UF.penalty_strength(recipe.radius, num_classes, recipe.gamma, prototype_norm=recipe.head_scale)
    margins = ldam_margins(counts).float() if recipe.loss == "ldam" else None
    return Objective(recipe, num_classes, weights, priors, recipe.feature_penalty, of_mean, margins)
