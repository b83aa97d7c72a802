"""What every network here is: a body that makes features, a head that makes logits of them, and their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, overload

from torch import Tensor, nn

__all__ = ["Classifier", "Head", "conv", "conv_norm_relu", "initialize", "make_head"]

# A module from (b, p) to (b, C), or a function of (p, C) that makes one, such as a head's class.
Head = nn.Module | Callable[[int, int], nn.Module]


class Classifier(nn.Module):
    r"""Logits of a body's features, and on request the features too, all through `forward`.

    Distributed wrappers synchronize gradients only for what goes through `forward`, so there is no second door.

    Arguments:
        body: Images :math:`(b, c, h, w)` to features :math:`(b, p)`.
        head: Features to logits :math:`(b, C)`.
        feature_dim: :math:`p`.
        num_classes: :math:`C`.

    Example:
        >>> import torch
        >>> net = Classifier(
        ...     nn.Flatten(), nn.Linear(4, 3), feature_dim=4, num_classes=3
        ... )
        >>> logits, features = net(torch.ones(5, 1, 2, 2), return_features=True)
        >>> tuple(logits.shape), tuple(features.shape)
        ((5, 3), (5, 4))
    """

    def __init__(self, body: nn.Module, head: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.feature_dim = feature_dim
        self.num_classes = num_classes

    @overload
    def forward(self, images: Tensor, return_features: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, images: Tensor, return_features: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(self, images: Tensor, return_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        features = self.body(images)
        logits = self.head(features)
        return (logits, features) if return_features else logits


def make_head(head: Head | None, feature_dim: int, num_classes: int) -> nn.Module:
    """`head` itself if it is a module, what it returns if it makes one, `nn.Linear` if it is None.

    Example:
        >>> make_head(None, 64, 10)
        Linear(in_features=64, out_features=10, bias=True)
    """
    if head is None:
        return nn.Linear(feature_dim, num_classes)
    made = head if isinstance(head, nn.Module) else head(feature_dim, num_classes)
    expected = getattr(made, "in_features", feature_dim)
    if expected != feature_dim:
        raise ValueError(
            f"the head expects {expected} features, but this network makes {feature_dim}. "
            "Pass a function of (in_features, num_classes), such as the head's class, and it will fit."
        )
    return made


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias: the batch norm that always follows would take it away again."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def conv_norm_relu(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> list[nn.Module]:
    """A convolution, batch norm and ReLU."""
    return [conv(inputs, outputs, size, stride), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def initialize(body: nn.Module) -> None:
    """Normal weights of variance 2 / (outputs x kernel area): He et al. 2015 by fan-out, as torchvision has it."""
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
