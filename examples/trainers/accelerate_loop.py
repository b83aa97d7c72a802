"""A loop of your own under Accelerate: one device, several, or mixed precision, without a change in the loop."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from unhinge.nn import ETFHead, FeatureNormPenalty, UnhingedLoss

CLASSES = 5


def blobs(count: int, seed: int) -> TensorDataset:
    """Points around one center per class."""
    centers = 2 * torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return TensorDataset(centers[labels] + torch.randn(count, 8, generator=generator), labels)


def main(epochs: int = 10) -> nn.Module:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    body, head = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16)), ETFHead(16, CLASSES)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(blobs(1000, seed=1), batch_size=50, shuffle=True)
    body, head, optimizer, loader = accelerator.prepare(body, head, optimizer, loader)
    loss, penalty = UnhingedLoss(), FeatureNormPenalty(1e-2)  # the loss has no minimum: the penalty bounds the features
    for _ in range(epochs):
        for points, labels in loader:
            optimizer.zero_grad()
            features = body(points)
            accelerator.backward(loss(head(features), labels) + penalty(features))
            optimizer.step()
    points, labels = blobs(500, seed=2).tensors
    with torch.no_grad():
        right = (head(body(points)).argmax(1) == labels).float().mean()
    print(f"accuracy {right:.3f} on points it has not seen; chance is {1 / CLASSES}")
    return nn.Sequential(body, head)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    main(parser.parse_args().epochs)
