"""One of the three scores that need no fitting, of whatever enters a network."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from unhinge.metrics import ood_scores
from unhinge.nn.probe import features_and_logits, logits_in

__all__ = ["Score", "check_score", "outputs", "score_of"]

Score = Literal["softmax", "energy", "norm"]


def check_score(score: str, temperature: float) -> None:
    if score not in get_args(Score):
        raise ValueError(f"score must be one of {', '.join(get_args(Score))}, got {score!r}.")
    if not temperature > 0:
        raise ValueError(f"temperature must be greater than 0, got {temperature}.")


def score_of(score: Score, temperature: float, logits: Tensor, features: Tensor | None = None) -> Tensor:
    """The score of :func:`unhinge.metrics.ood_scores`, larger for in-distribution examples."""
    return ood_scores(logits, features, temperature)[score]


def outputs(model: nn.Module, inputs: object, head: nn.Module | None) -> tuple[Tensor, Tensor | None]:
    """The logits of one forward pass, and the features that entered `head` in it, if one is given."""
    if head is None:
        return logits_in(model(inputs)), None
    features, logits = features_and_logits(model, inputs, head)
    return logits, features
