"""Features to predict from, and an oracle that steps the definition."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["arrays", "stepped"]


def arrays(
    counts: list[int], dim: int = 4, seed: int = 0, dtype: type = np.float64
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Random features around class means, labels in random order, a random head."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    centers = generator.normal(size=(len(counts), dim))
    features = centers[labels] + 0.5 * generator.normal(size=(len(labels), dim))
    weight = generator.normal(size=(len(counts), dim))
    bias = generator.normal(size=len(counts))
    return {"features": features.astype(dtype), "labels": labels, "weight": weight.astype(dtype), "bias": bias}


def stepped(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    gamma: float,
    lr: float,
    decays: tuple[float, float],
    steps: int,
    class_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Plain gradient descent by autograd, renormalized now and then: the path is linear, so its direction stays."""
    h, w = features.clone(), weight.clone()
    weights = torch.ones(len(w), dtype=h.dtype) if class_weight is None else class_weight
    for k in range(steps):
        h.requires_grad_(True)
        w.requires_grad_(True)
        logits = h @ w.mT
        true = logits.gather(1, labels[:, None])[:, 0]
        each = -true + gamma * (logits.sum(1) - true)
        a = weights[labels]
        loss = (a * each).sum() / a.sum() + decays[0] / 2 * h.pow(2).sum() + decays[1] / 2 * w.pow(2).sum()
        gh, gw = torch.autograd.grad(loss, (h, w))
        h, w = (h - lr * gh).detach(), (w - lr * gw).detach()
        if k % 50 == 0:
            size = torch.hypot(h.norm(), w.norm())
            h, w = h / size, w / size
    return h, w
