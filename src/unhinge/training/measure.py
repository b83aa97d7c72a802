"""What a run records: of its prototypes, of a fixed sample of the training images, and of the test images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unhinge.data import ImageSet, batches, generator_of
from unhinge.metrics import neural_collapse
from unhinge.nn.angles import smallest_angle
from unhinge.nn.backbones import Classifier
from unhinge.nn.tracing import evaluating

__all__ = ["Outputs", "class_means", "collapse_record", "outputs", "prototype_record", "sample_of", "score"]

BATCH = 512  # images looked at together
_SAMPLE = 2048  # training images looked at after each epoch
COLLAPSE = ("nc1_ratio", "nc2_norm_features", "nc2_angle_features", "nc3", "nc4")


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a network says of a set of images."""

    logits: Tensor  # (n, C)
    features: Tensor  # (n, p)
    labels: Tensor  # (n,)

    @property
    def accuracy(self) -> float:
        return (self.logits.argmax(-1) == self.labels).double().mean().item()


@torch.no_grad()
def outputs(network: nn.Module, images: ImageSet) -> Outputs:
    """Logits and features of every image, in their order, by the network as it would be used."""
    dtype = next(network.parameters()).dtype
    with evaluating(network):
        parts = [(*network(x.to(dtype), return_features=True), y) for x, y in batches(images, BATCH)]
    logits, features, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return Outputs(logits.float(), features.float(), labels)


@torch.no_grad()
def class_means(network: Classifier, images: ImageSet) -> Tensor:
    r"""The mean feature of each class, :math:`(C, p)` float64, by the network as it would be used; no logits."""
    dtype = next(network.parameters()).dtype
    sums = torch.zeros(images.num_classes, network.feature_dim, dtype=torch.float64, device=images.labels.device)
    with evaluating(network):
        for x, y in batches(images, BATCH):
            sums.index_add_(0, y, network.body(x.to(dtype)).double())
    return sums / images.counts.to(sums)[:, None]


@torch.no_grad()
def score(network: nn.Module, images: ImageSet, shard: tuple[int, int]) -> Tensor:
    """(number right, number seen) of this process's share of the images, float64."""
    right = seen = 0
    dtype = next(network.parameters()).dtype
    with evaluating(network):
        for x, y in batches(images, BATCH, shard=shard):
            if len(y):
                right += int((network(x.to(dtype)).argmax(-1) == y).sum())
                seen += len(y)
    return torch.tensor([right, seen], dtype=torch.float64)


def sample_of(images: ImageSet, seed: int) -> ImageSet:
    """A fixed sample of the training images, all of them where they are few."""
    if len(images) <= _SAMPLE:
        return images
    chosen = torch.randperm(len(images), generator=generator_of(seed, 2))[:_SAMPLE].sort().values
    return images.subset(chosen.to(images.labels.device))


@torch.no_grad()
def prototype_record(weight: Tensor) -> dict[str, float]:
    """Smallest norm, largest over smallest, and the smallest angle between two prototypes, in degrees."""
    rows = weight.detach().double().cpu()
    norms = rows.norm(dim=1)
    angle = smallest_angle(rows).item() if len(rows) > 1 else math.pi
    smallest = norms.min().item()
    return {
        "prototype_norm_min": smallest,
        "prototype_norm_ratio": norms.max().item() / smallest if smallest else math.inf,
        "prototype_angle_min": math.degrees(angle),
    }


@torch.no_grad()
def collapse_record(network: nn.Module, images: ImageSet, weight: Tensor, bias: Tensor | None) -> dict[str, float]:
    """Accuracy and neural collapse on a sample of the training images, without augmentation.

    Of numbers that are not finite there is no collapse to measure, and its entries are left out.
    """
    measured = outputs(network, images)
    record = {"sample_accuracy": measured.accuracy}
    numbers = (measured.features, weight, weight if bias is None else bias)
    if not all(bool(torch.isfinite(part).all()) for part in numbers):
        return record
    measures = neural_collapse(measured.features, weight.detach().float(), measured.labels, bias)
    return record | {name: float(measures[name]) for name in COLLAPSE if name in measures}
