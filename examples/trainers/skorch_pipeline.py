"""A network with fixed prototypes as a step of a scikit-learn pipeline, its gamma chosen by a grid search."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from unhinge.nn import ETFHead, UnhingedLoss


class Network(nn.Module):
    def __init__(self, dim: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 32))
        self.head = ETFHead(32, classes, normalize=True, scale=4.0)

    def forward(self, X: Tensor) -> Tensor:  # skorch passes it by this name
        return self.head(self.body(X))


def main(epochs: int = 5) -> GridSearchCV:
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    seen, unseen, names, held_out = train_test_split(pixels.astype(np.float32), labels, random_state=0)
    network = NeuralNetClassifier(
        Network,
        criterion=UnhingedLoss,
        optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        lr=0.05,
        max_epochs=epochs,
        batch_size=32,
        train_split=None,
        verbose=0,
    )
    pipeline = make_pipeline(StandardScaler(), network)
    grid = {"neuralnetclassifier__criterion__gamma": [0.0, 1 / 9, 0.2]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(seen, names)
    print(f"accuracy {search.score(unseen, held_out):.3f} with {search.best_params_}; chance is 0.1")
    return search


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    main(parser.parse_args().epochs)
