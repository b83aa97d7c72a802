"""Any score, of whatever enters a network: those of logits and norms as they are, the others after a fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from unhinge.metrics import ood_scores
from unhinge.metrics.ood import check_temperature
from unhinge.nn.probe import device_of, features_and_logits, head_parameters, logits_in
from unhinge.ood.collapse import CollapseDetector

__all__ = ["PLAIN", "Score", "check_score", "fitted", "outputs", "raw_logits", "score_of", "training_features"]

Score = Literal["softmax", "energy", "norm", "mahalanobis", "neco", "nci", "fdbd", "vim", "knn"]
PLAIN = ("softmax", "energy", "norm")  # these need no training features
NEIGHBORS = 50  # of knn, or all training features where there are fewer


def check_score(score: str, temperature: float) -> None:
    if score not in get_args(Score):
        raise ValueError(f"score must be one of {', '.join(get_args(Score))}, got {score!r}.")
    check_temperature(temperature)


def score_of(
    score: Score,
    temperature: float,
    logits: Tensor,
    features: Tensor | None = None,
    detector: CollapseDetector | None = None,
) -> Tensor:
    """One score, larger for in-distribution examples, shape :math:`(n,)`."""
    if score in PLAIN:
        return ood_scores(logits, features, temperature)[score]
    if detector is None:
        raise ValueError(f"the score {score!r} needs the features of the training set: call fit() or setup() first.")
    assert features is not None
    return detector.scores(features, [score])[score]


def outputs(
    model: nn.Module, inputs: object, head: nn.Module | None, unnormalized: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The logits of one forward pass, and the features that entered `head` in it, if one is given.

    With `unnormalized` the logits are those of the features as they are, also where the head normalizes them.
    """
    if head is None:
        return logits_in(model(inputs)), None
    features, logits = features_and_logits(model, inputs, head)
    return raw_logits(features, head) if unnormalized else logits, features


def raw_logits(features: Tensor, head: nn.Module) -> Tensor:
    r""":math:`Wh + b` of the features as they are."""
    weight, bias = head_parameters(head)
    return torch.nn.functional.linear(features, weight, bias)


@torch.no_grad()
def training_features(
    model: nn.Module, head: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """What enters the head for all batches of `(inputs, labels)`, and the labels; negative labels are left out."""
    device = device_of(model)
    features, labels = [], []
    for inputs, target in batches:
        rows, _ = features_and_logits(model, inputs.to(device), head)
        known = (target >= 0).to(rows.device)
        features.append(rows[known])
        labels.append(target.to(rows.device)[known])
    if not features:
        raise ValueError("the loader of training data is empty; the scores other than softmax, energy, norm need it.")
    return torch.cat(features), torch.cat(labels)


def fitted(score: Score, head: nn.Module, features: Tensor, labels: Tensor) -> CollapseDetector:
    """The detector that `score` needs, from training features :math:`(n, p)` and labels :math:`(n,)`."""
    weight, bias = head_parameters(head)
    neighbors = min(NEIGHBORS, len(features)) if score == "knn" else None
    return CollapseDetector.fit(features, labels, weight, bias, neighbors=neighbors)
