"""Any model of the timm library, its classifier taken off."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor, nn

__all__ = ["TimmBody"]


class TimmBody(nn.Module):
    """A timm model with random weights as a maker of pooled features, shape :math:`(b, p)`.

    timm is imported here and only here. `p` is found by asking: what a model says of itself is not always what comes
    out when its classifier is gone.
    """

    def __init__(self, name: str, in_channels: int = 3, *, image_size: int = 224, last_relu: bool = True) -> None:
        super().__init__()
        try:
            timm = importlib.import_module("timm")
        except ImportError as error:
            raise ValueError(
                f"timm:{name} needs the package timm, which cannot be imported here ({error}): pip install timm. "
                "It asks for torchvision, which must be the build that fits this torch."
            ) from None
        if not last_relu:
            raise ValueError(
                f"last_relu=False is for the networks of this package; where timm:{name} has its last nonlinearity "
                "is not known. Use last_relu=True."
            )
        arguments = {"pretrained": False, "num_classes": 0, "in_chans": in_channels}
        try:
            self.model = timm.create_model(name, **arguments, img_size=image_size)
        except TypeError:  # convolutional models take any size and no such argument
            self.model = timm.create_model(name, **arguments)
        self.feature_dim = self._ask(in_channels, image_size)

    def _ask(self, in_channels: int, image_size: int) -> int:
        was_training = self.model.training
        with torch.no_grad():
            features = self.model.eval()(torch.zeros(1, in_channels, image_size, image_size))
        self.model.train(was_training)
        if features.ndim != 2:
            raise ValueError(f"this timm model gives features of shape {tuple(features.shape)}, not (b, p).")
        return int(features.shape[1])

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images)
        return features
