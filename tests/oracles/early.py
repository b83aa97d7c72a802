r"""Real losses by autograd, written out from their definitions: what the linearized paths are judged against.

No function of the package is used, and no loss of torch: softmax, smoothing, weights, offsets and
temperature are spelled out here, and `tests/theory/early/test_oracles.py` compares them with torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import scipy.integrate
import torch
from torch import Tensor

from oracles import linear

__all__ = ["Young", "make_young", "relative_error", "run_flow", "run_sgd", "value"]


@dataclass(frozen=True)
class Young:
    """A loss, a start and decays, as plain values."""

    target: Tensor
    num_classes: int
    features: Tensor
    weight: Tensor
    bias: Tensor | None = None
    loss: str = "cross_entropy"
    focus: float = 2.0
    label_smoothing: float = 0.0
    class_weight: Tensor | None = None
    logit_adjustment: Tensor | None = None
    temperature: float = 1.0
    feature_decay: float = 0.0
    weight_decay: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def problem(self) -> Any:
        from unhinge.theory import EarlyCrossEntropy, Linearized

        decays = {"feature_decay": self.feature_decay, "weight_decay": self.weight_decay}
        if self.loss != "cross_entropy":
            return Linearized(
                self.target,
                self.num_classes,
                loss=self.loss,
                focus=self.focus,
                class_weight=self.class_weight,
                **decays,
            )
        return EarlyCrossEntropy(
            self.target,
            self.num_classes,
            label_smoothing=self.label_smoothing,
            class_weight=self.class_weight,
            logit_adjustment=self.logit_adjustment,
            temperature=self.temperature,
            **decays,
        )


def make_young(
    counts: Sequence[int],
    dim: int = 6,
    scale: float = 0.01,
    seed: int = 0,
    bias: bool = False,
    soft: bool = False,
    **options: Any,
) -> Young:
    """Random features, prototypes and label order of size `scale`."""
    generator = torch.Generator().manual_seed(seed)
    classes, size = len(counts), sum(counts)
    labels = torch.repeat_interleave(torch.arange(classes), torch.tensor(counts))
    labels = labels[torch.randperm(size, generator=generator)]
    features = scale * torch.randn(size, dim, generator=generator, dtype=torch.float64)
    weight = scale * torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    shift = scale**2 * torch.randn(classes, generator=generator, dtype=torch.float64) if bias else None
    target = labels
    if soft:
        noise = torch.rand(size, classes, generator=generator, dtype=torch.float64)
        mixed = torch.nn.functional.one_hot(labels, classes) * 1.5 + noise
        target = mixed / mixed.sum(1, keepdim=True)
    return Young(target, classes, features, weight, shift, **options)


def value(case: Young, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The mean loss, without decay terms."""
    logits = features @ weight.mT
    if bias is not None:
        logits = logits + bias
    classes, hard = case.num_classes, not case.target.is_floating_point()
    labels = torch.eye(classes, dtype=torch.float64)[case.target] if hard else case.target.double()
    weights = torch.ones(classes, dtype=torch.float64) if case.class_weight is None else case.class_weight.double()
    if case.loss == "squared_error":
        each = 0.5 * ((logits - labels) ** 2).sum(1)
        return (each * (labels @ weights)).sum() / (labels @ weights).sum()
    if case.loss == "binary_cross_entropy":
        each = torch.log1p(torch.exp(logits)).sum(1) - (labels * logits).sum(1)
        return (each * (labels @ weights)).sum() / (labels @ weights).sum()
    shifted = logits / case.temperature
    if case.logit_adjustment is not None:
        shifted = shifted + case.logit_adjustment.double()
    log_p = shifted - shifted.exp().sum(1, keepdim=True).log()
    if case.loss == "focal":
        own = (labels * log_p).sum(1)
        each = -((1 - own.exp()) ** case.focus) * own
        return (each * (labels @ weights)).sum() / (labels @ weights).sum()
    smoothed = (1 - case.label_smoothing) * labels + case.label_smoothing / classes
    total = -(weights * smoothed * log_p).sum()
    return total / ((labels @ weights).sum() if hard else len(labels))


run_sgd = partial(linear.run_sgd, loss=value)  # torch.optim.SGD on the real loss; the states after the given steps


def run_flow(
    case: Young,
    rates: tuple[Callable[[float], float], Callable[[float], float]],
    times: Sequence[float],
    frozen: bool = False,
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Gradient flow of the real loss by DOP853 at a tolerance of 1e-12; `frozen` holds the prototypes."""
    shapes = [case.features.shape, case.weight.shape] + ([] if case.bias is None else [case.bias.shape])
    sizes = [math.prod(shape) for shape in shapes]

    def unpack(flat: np.ndarray) -> list[Tensor]:
        parts = torch.tensor(flat, dtype=torch.float64).split(sizes)
        return [part.reshape(shape).requires_grad_() for part, shape in zip(parts, shapes, strict=True)]

    def slope(time: float, flat: np.ndarray) -> np.ndarray:
        state = unpack(flat)
        bias = state[2] if len(state) > 2 else None
        gradients = torch.autograd.grad(linear.objective(case, state[0], state[1], bias, value), state)
        one, two = rates[0](time), rates[1](time)
        factors = [one, 0.0 if frozen else two, two]
        return np.concatenate([-(f * g).reshape(-1).numpy() for f, g in zip(factors, gradients, strict=False)])

    start = [case.features, case.weight] + ([] if case.bias is None else [case.bias])
    flat = np.concatenate([part.reshape(-1).numpy() for part in start])
    solved = scipy.integrate.solve_ivp(
        slope, (0, max(times)), flat, method="DOP853", t_eval=list(times), rtol=1e-12, atol=1e-14 * np.abs(flat).max()
    )
    states = []
    for column in solved.y.T:
        parts = [part.detach() for part in unpack(column)]
        states.append((parts[0], parts[1], parts[2] if len(parts) > 2 else None))
    return states


def relative_error(state: Any, real: tuple[Tensor, Tensor, Tensor | None], weight_moves: bool = True) -> float:
    """Distance of the real state from the path's, biases included, over the norm of the path's (H, W)."""
    square = (state.features - real[0]).pow(2).sum()
    size = state.features.pow(2).sum()
    if weight_moves:
        square, size = square + (state.weight - real[1]).pow(2).sum(), size + state.weight.pow(2).sum()
    if real[2] is not None:
        square = square + (state.bias - real[2]).pow(2).sum()
    return (square / size).sqrt().item()
