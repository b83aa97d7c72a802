"""One of the three scores, of whatever enters a network."""

from __future__ import annotations

import itertools
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unhinge.metrics import ood_scores

__all__ = ["Score", "check_score", "device_of", "outputs", "score_of"]

Score = Literal["softmax", "energy", "norm"]


def check_score(score: str, temperature: float) -> None:
    if score not in get_args(Score):
        raise ValueError(f"score must be one of {', '.join(get_args(Score))}, got {score!r}.")
    if not temperature > 0:
        raise ValueError(f"temperature must be greater than 0, got {temperature}.")


def score_of(score: Score, temperature: float, logits: Tensor, features: Tensor | None = None) -> Tensor:
    """The score of :func:`unhinge.metrics.ood_scores`, larger for in-distribution examples."""
    return ood_scores(logits, features, temperature)[score]


def outputs(model: nn.Module, inputs: Any, head: nn.Module | None) -> tuple[Tensor, Tensor | None]:
    """The logits of one forward pass, and the features that entered `head` in it, if one is given."""
    heard: list[Tensor] = []
    hook = None if head is None else head.register_forward_pre_hook(lambda _, entering: heard.append(entering[0]))
    try:
        made = model(inputs)
    finally:
        if hook is not None:
            hook.remove()
    logits: Tensor = made[0] if isinstance(made, tuple | list) else made
    if head is not None and (len(heard) != 1 or len(heard[0]) != len(logits)):
        shapes = ", ".join(str(tuple(one.shape)) for one in heard) or "nothing"
        raise ValueError(
            f"the head must be called once per batch, on {len(logits)} rows, but was called on {shapes}. "
            "Pass head= to name another layer."
        )
    return logits, heard[0] if heard else None


def device_of(model: nn.Module) -> torch.device:
    return next((part.device for part in itertools.chain(model.parameters(), model.buffers())), torch.device("cpu"))
