"""A LightningModule with fixed prototypes, and a callback that logs neural collapse after every epoch."""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from unhinge.monitor import MonitorCallback
from unhinge.nn import ETFHead, UnhingedLoss

CLASSES = 5


class Classifier(lightning.LightningModule):
    """The fixed head holds no parameters, so the optimizer sees the body only."""

    def __init__(self, gamma: float | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))
        self.net = nn.Sequential(body, ETFHead(16, CLASSES, normalize=True))
        self.loss = UnhingedLoss(gamma)

    def forward(self, points: Tensor) -> Tensor:
        return self.net(points)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        points, labels = batch
        return self.loss(self(points), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        points, labels = batch
        self.log("accuracy", (self(points).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


def blobs(count: int, seed: int) -> DataLoader[tuple[Tensor, ...]]:
    """Points around one center per class."""
    centers = 2 * torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return DataLoader(TensorDataset(centers[labels] + torch.randn(count, 8, generator=generator), labels), 50)


def main(epochs: int = 5) -> lightning.Trainer:
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[MonitorCallback(on="validation", head="net.1")],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), blobs(1000, seed=1), blobs(500, seed=2))
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    print(f"accuracy {found['accuracy']:.3f}; collapse " + ", ".join(f"{k} {v:.3g}" for k, v in sorted(found.items())))
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    main(parser.parse_args().epochs)
