"""A classifier that is saved and loaded as one on a model hub: numbers in config.json, prototypes in safetensors.

The mixin of `huggingface_hub` writes the arguments of the constructor and the state dict, and the prototypes of a fixed
head are part of its state dict. `push_to_hub` would send the same two files; nothing is sent here.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from unhinge.nn import ETFHead, UnhingedLoss


class Classifier(nn.Module, PyTorchModelHubMixin):
    """Features of length 1, prototypes of length `radius`, and the gamma it was trained with.

    With ``scale=radius`` the logits are cosines times the radius, so the radius travels with the prototypes as well.
    """

    def __init__(self, dim: int, num_classes: int, gamma: float | None = None, radius: float = 8.0) -> None:
        super().__init__()
        self.body = nn.Linear(dim, dim)
        self.head = ETFHead(dim, num_classes, normalize=True, scale=radius)
        self.loss = UnhingedLoss(gamma)
        self.gamma, self.radius = gamma, radius

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs))


def main(folder: str) -> tuple[Classifier, Classifier]:
    model = Classifier(dim=16, num_classes=10, gamma=0.2, radius=4.0).eval()
    model.save_pretrained(folder)
    again = Classifier.from_pretrained(folder).eval()
    inputs = torch.randn(5, 16)
    print(f"files {sorted(path.name for path in Path(folder).iterdir())}")
    print(f"same logits: {torch.equal(model(inputs), again(inputs))}; gamma {again.gamma}, radius {again.radius}")
    return model, again


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as place:
        main(place)
