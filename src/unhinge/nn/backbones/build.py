"""Networks by name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

import torch

from unhinge.nn.backbones.body import Classifier, Head, make_head
from unhinge.nn.backbones.convnet import ConvBody
from unhinge.nn.backbones.glyphnet import GlyphBody
from unhinge.nn.backbones.resnet import ResNetBody, deep_body, thin_body
from unhinge.nn.backbones.timm_body import TimmBody

__all__ = ["MODELS", "build_model"]


@dataclass(frozen=True)
class _Model:
    family: Literal["deep", "thin", "conv", "glyph"]
    depth: int
    width: int
    early_stride: int = 1


_MODELS = {
    "resnet18": _Model("deep", 18, 64),
    "resnet34": _Model("deep", 34, 64),
    "resnet50": _Model("deep", 50, 64),
    "resnet20": _Model("thin", 20, 16),
    "resnet32": _Model("thin", 32, 16),
    "resnet56": _Model("thin", 56, 16),
    "resnet8": _Model("thin", 8, 16),
    "tiny-resnet": _Model("thin", 8, 16, early_stride=2),
    "convnet": _Model("conv", 3, 32),
    "glyphnet": _Model("glyph", 4, 32),
}
MODELS = (*_MODELS, "timm:NAME")

# Above this size the stem of ResNet-18/34/50 halves the image twice, as ImageNet's does at 224.
_LARGE = 64


def build_model(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    image_size: int = 32,
    width: int | None = None,
    last_relu: bool = True,
    head: Head | None = None,
    *,
    seed: int | None = None,
) -> Classifier:
    r"""A network by name, with any head, initialized at random.

    Arguments:
        name: One of `MODELS`. `timm:NAME` is any model of timm, if that is installed.
        num_classes: :math:`C`.
        in_channels: 3 for color, 1 for grey.
        image_size: Pixels of a side; above 64, ResNet-18/34/50 get the stem for large images.
        width: Channels of the first stage; None for the usual (64 for ResNet-18/34/50, 16 for 20/32/56 and the small
            ones, 32 for the plain network and for glyphs). Parameters and time grow with its square.
        last_relu: False removes the ReLU before the head, as fixed prototypes (PAL, FNPAL) need it.
        head: A module from features to logits, a function of (in_features, num_classes) that makes one, such as a
            head's class, or None for `nn.Linear`.
        seed: Of the initial weights; the global generator is left as it was. None draws from the global one.

    Example:
        >>> net = build_model(
        ...     "resnet18", num_classes=10, width=16, last_relu=False, seed=0
        ... )
        >>> logits, features = net(torch.zeros(2, 3, 32, 32), return_features=True)
        >>> tuple(logits.shape), tuple(features.shape), net.feature_dim
        ((2, 10), (2, 128), 128)
    """
    for what, number in {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}.items():
        if number < 1:
            raise ValueError(f"{what} must be at least 1, got {number}.")
    if width is not None and width < 1:
        raise ValueError(f"width must be at least 1, got {width}.")
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        body = _body(name, in_channels, image_size, width, last_relu)
        return Classifier(body, make_head(head, body.feature_dim, num_classes), body.feature_dim, num_classes)


def _body(
    name: str, in_channels: int, image_size: int, width: int | None, last_relu: bool
) -> ResNetBody | ConvBody | GlyphBody | TimmBody:
    library, _, model = name.partition(":")
    if library == "timm" and model:
        if width is not None:
            raise ValueError(f"width is for the networks of this package; {name} has its own.")
        return TimmBody(model, in_channels, image_size=image_size, last_relu=last_relu)
    if name not in _MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ValueError(f"there is no model {name!r}{hint} There are {', '.join(MODELS)}.")
    plan = _MODELS[name]
    width = plan.width if width is None else width
    match plan.family:
        case "deep":
            large = image_size > _LARGE
            return deep_body(plan.depth, in_channels, width=width, large_images=large, last_relu=last_relu)
        case "thin":
            stride = plan.early_stride
            return thin_body(plan.depth, in_channels, width=width, early_stride=stride, last_relu=last_relu)
        case "conv":
            return ConvBody(in_channels, width=width, last_relu=last_relu)
        case "glyph":
            return GlyphBody(in_channels, image_size=image_size, width=width, last_relu=last_relu)
