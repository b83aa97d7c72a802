"""From a recipe to a network: backbone, head, what happens to gradients between the two."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from unhinge.data import ImageSet, generator_of
from unhinge.nn import ETFHead, ManyClassHead
from unhinge.nn import functional as UF
from unhinge.nn.backbones import Classifier, build_model
from unhinge.training.machine import total_memory
from unhinge.training.recipe import Recipe, RecipeError

__all__ = ["ManyClassAdapter", "biases_of", "network_of", "prototypes_of"]

_WEIGHTS, _PROTOTYPES = 0, 1


def network_of(recipe: Recipe, images: ImageSet) -> Classifier:
    """The network a recipe starts from, for images like these; the same seed gives the same weights.

    Example:
        >>> from unhinge.data import load
        >>> network = network_of(
        ...     Recipe(head="pal", loss="unhinged"), load("digits").training
        ... )
        >>> network.head
        ETFHead(...)
    """
    _check_size(recipe, images)
    network = build_model(
        recipe.model,
        num_classes=images.num_classes,
        in_channels=images.in_channels,
        image_size=images.image_size,
        width=recipe.width,
        last_relu=not recipe.without_last_relu,
        head=None if recipe.head == "linear" else partial(_head, recipe),
        seed=generator_of(recipe.seed_for("init"), _WEIGHTS).initial_seed() % 2**63,
    )
    if recipe.rescale:
        # A hook, so that the features the network returns, and a penalty on them, keep their own gradient.
        network.head.register_forward_pre_hook(_rescaled)
    return network


def prototypes_of(network: Classifier) -> Tensor:
    """The rows of the head, :math:`(C, p)`."""
    weight = network.head.weight
    assert isinstance(weight, Tensor)
    return weight


def biases_of(network: Classifier) -> Tensor | None:
    """The biases of the head, :math:`(C,)`, if it has any."""
    bias = network.head.bias
    return bias if isinstance(bias, Tensor) else None


def _check_size(recipe: Recipe, images: ImageSet) -> None:
    """Refuse a network that this machine cannot hold, before it is allocated: the allocator's own end is a crash."""
    if recipe.width is None:  # the models' own widths fit any machine
        return
    with torch.device("meta"):  # shapes without memory
        try:
            network = build_model(
                recipe.model,
                num_classes=images.num_classes,
                in_channels=images.in_channels,
                image_size=images.image_size,
                width=recipe.width,
            )
        except RuntimeError:  # a shape beyond what torch can count
            raise RecipeError(f"width {recipe.width} makes layers too large to count. Choose a smaller one.") from None
    parameters = sum(parameter.numel() for parameter in network.parameters())
    # Weights, gradients and momentum in float32, and a checkpoint of two of them while it is written.
    needed = 5 * 4 * parameters
    available = total_memory()
    if available is not None and needed > available:
        raise RecipeError(
            f"{recipe.model} of width {recipe.width} has {parameters:,} parameters, and training it takes "
            f"{needed / 2**30:,.0f} GiB; this machine has {available / 2**30:,.0f}. Choose a smaller width or model."
        )


class ManyClassAdapter(nn.Module):
    """A :class:`~unhinge.nn.ManyClassHead` where a network has its head.

    In training it makes no logits, of which there would be one for every class: `losses` and `step` take their place.
    """

    bias = None

    near: Tensor | None  # (C, k) the classes nearest to each, negative before the first restart; None: no shortlist

    def __init__(self, inner: ManyClassHead, shortlist: int | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.in_features = inner.in_features
        near = None if shortlist is None else torch.full((inner.num_classes, shortlist), -1, dtype=torch.int32)
        self.register_buffer("near", near)

    @property
    def weight(self) -> Tensor:
        return self.inner.dense()

    def forward(self, features: Tensor) -> Tensor:
        return features.new_empty(len(features), 0) if self.training else self.inner.logits(features)

    def losses(self, features: Tensor, target: Tensor) -> Tensor:
        """Of each example."""
        shortlist = None if self.near is None or self.near[0, 0] < 0 else self.near[target].long()
        losses: Tensor = self.inner(features, target, "none", shortlist=shortlist)
        return losses

    def restart(self, means: Tensor) -> None:
        """Class means in the place of the rows; from now on the classes that are near then decide."""
        assert self.near is not None
        self.inner.restart(means)
        self.near.copy_(self.inner.neighbors(self.near.shape[1]))

    def step(self, rate: float, batch: int) -> None:
        """`rate` is in units of batch / features: with features of squared length p, a rate of 1 moves a logit by 1."""
        self.inner.step(rate * batch / self.in_features)


def _head(recipe: Recipe, in_features: int, num_classes: int) -> nn.Module:
    if recipe.head == "many":
        if recipe.shortlist is not None and recipe.shortlist >= num_classes:
            raise RecipeError(f"shortlist must be below the number of classes, {num_classes}, got {recipe.shortlist}.")
        # SGD with decay at so large a rate would pull the rows to zero within a few steps.
        inner = ManyClassHead(
            in_features,
            num_classes,
            recipe.loss,
            gamma=recipe.gamma,
            generator=generator_of(recipe.seed_for("init"), _PROTOTYPES),
        )
        return ManyClassAdapter(inner, recipe.shortlist)
    try:
        return ETFHead(
            in_features,
            num_classes,
            normalize=recipe.head == "fnpal",
            scale=recipe.head_scale,
            trainable=recipe.head == "etf-init",
            generator=generator_of(recipe.seed_for("init"), _PROTOTYPES),
        )
    except ValueError as error:
        raise RecipeError(f"head {recipe.head} on {in_features} features: {error}") from None


def _rescaled(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (UF.rescale_gradient(inputs[0]),)
