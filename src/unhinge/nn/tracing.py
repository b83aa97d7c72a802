"""What a network computes, seen without data and without touching it.

A forward pass is traced symbolically (:mod:`torch.fx`). That runs it in part, so modes, buffers and random numbers are
put back as they were.
"""

from __future__ import annotations

import inspect
import operator
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

__all__ = ["evaluating", "is_linear", "makes_probabilities", "owner_of", "passes", "traced", "undisturbed"]

# What may stand between the last ReLU and the head without hiding it: nothing here makes or removes a sign.
POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
MAX_POOLS = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
PASSING = (*POOLS, *MAX_POOLS, nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
POOL_FUNCTIONS = [f"{kind}_pool{d}d" for kind in ("avg", "max", "adaptive_avg", "adaptive_max") for d in (1, 2, 3)]
PASSING_FUNCTIONS: tuple[Any, ...] = (
    *(getattr(F, name) for name in POOL_FUNCTIONS),
    *(torch.flatten, torch.mean, torch.amax, torch.squeeze, torch.reshape, F.dropout, operator.getitem),
)
PASSING_METHODS = ("flatten", "mean", "amax", "squeeze", "view", "reshape", "contiguous")
PROBABILITIES = (nn.Softmax, nn.LogSoftmax)
PROBABILITY_FUNCTIONS: tuple[Any, ...] = (F.softmax, F.log_softmax, torch.softmax, torch.log_softmax)


def traced(model: nn.Module) -> fx.Graph | None:
    """The operations of a forward pass, or nothing where it depends on the data."""
    # Arguments with a default, as `return_features=False`, keep it: a branch on them is not one on the data.
    usual = {
        key: parameter.default
        for key, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.default is not parameter.empty
    }
    attributes = set(vars(model))
    try:
        with undisturbed(model):
            return _Tracer().trace(model, usual)
    except Exception:  # whatever a forward pass raises when it is shown symbols in the place of tensors
        return None
    finally:
        # torch.fx stores tensors that a forward pass makes (torch.arange(...)) on the model, as `_tensor_constant0`.
        for name in set(vars(model)) - attributes:
            delattr(model, name)


class _Tracer(fx.Tracer):
    """Every linear layer and every ReLU is one operation, subclasses and heads of ours too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.ReLU) or is_linear(m) or super().is_leaf_module(m, module_qualified_name)


def passes(model: nn.Module, node: fx.Node) -> bool:
    """Whether the operation neither makes nor removes a sign."""
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), PASSING)
    if node.op == "call_function":
        return node.target in PASSING_FUNCTIONS
    return node.op == "call_method" and node.target in PASSING_METHODS


def makes_probabilities(model: nn.Module, node: fx.Node) -> bool:
    """Whether the operation turns logits into (log-)probabilities, which leaves their order as it is."""
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), PROBABILITIES)
    if node.op == "call_function":
        return node.target in PROBABILITY_FUNCTIONS
    return node.op == "call_method" and node.target in ("softmax", "log_softmax")


def owner_of(model: nn.Module, node: fx.Node) -> nn.Module:
    """The innermost module in whose forward pass the call stands."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return model.get_submodule(stack[-1][0]) if stack else model


def is_linear(module: nn.Module) -> bool:
    """An ``nn.Linear``, or a head that can be read like one."""
    weight = getattr(module, "weight", None)
    return hasattr(module, "in_features") and isinstance(weight, Tensor) and weight.ndim == 2


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Tracing runs a forward pass in part: draws of random numbers and changes to buffers are taken back."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    state = random.getstate()
    with evaluating(model), torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            yield
        finally:
            random.setstate(state)
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    for module in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
