"""The features of a live model, as they reach its last Linear, without keeping them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unhinge.nn.tracing import evaluating, is_linear
from unhinge.prediction.measured import Measured, measure

__all__ = ["measure_model"]


def measure_model(
    model: nn.Module, loader: Iterable[Any], head: nn.Module | str | None = None, nc4: bool = True
) -> Measured:
    r"""Run `model` over `loader` and measure what enters its head; nothing of size n is kept.

    Arguments:
        model: Any classifier that ends in a linear layer; it runs in evaluation mode, without gradients, on the device
            it is on, and is left as it was.
        loader: Yields `(inputs, labels)`, for example a ``DataLoader``. The set training sees, without augmentation.
        head: The last linear layer, itself or by name. By default, the last one that a forward pass calls: an
            ``nn.Linear``, or a module with a 2-D `weight` and `in_features`, such as ``ETFHead``.
        nc4: Go over the loader a second time for NC4. An iterator, which can be used up only once, is not.

    Example:
        >>> model = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))
        >>> loader = [(torch.randn(4, 5), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
        >>> found = measure_model(model, loader)
        >>> found.size, found.dim, torch.equal(found.weight.float(), model[2].weight)
        (12, 3, True)
    """
    once = iter(loader) is loader
    first = next(iter(loader), None)
    if first is None:
        raise ValueError("the loader is empty; it must yield pairs (inputs, labels).")
    rest = itertools.chain([first], loader) if once else loader
    device = next((part.device for part in itertools.chain(model.parameters(), model.buffers())), torch.device("cpu"))
    with evaluating(model), torch.no_grad():
        last = _find(model, head, _inputs(first, device))
        weight, bias = _parameters(last)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in rest:
                with _listening(last) as heard:
                    model(_inputs(batch, device))
                yield _features(heard, last, batch[1]), batch[1]

        return measure(batches, len(weight), weight, bias, nc4=nc4 and not once)


def _inputs(batch: Any, device: torch.device) -> Any:
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        raise ValueError(
            f"the loader must yield pairs (inputs, labels) with a tensor of labels, got {type(batch).__name__}. "
            "Wrap it: ((batch['x'], batch['y']) for batch in loader)."
        )
    return batch[0].to(device) if isinstance(batch[0], Tensor) else batch[0]


def _find(model: nn.Module, head: nn.Module | str | None, inputs: Any) -> nn.Module:
    modules = dict(model.named_modules())
    names = ", ".join(name or "the model itself" for name, module in modules.items() if is_linear(module)) or "none"
    if head is not None:
        found = modules.get(head) if isinstance(head, str) else head
        if found is None or not is_linear(found) or not any(found is module for module in modules.values()):
            raise ValueError(f"head must be a linear layer of the model, or the name of one. There are: {names}.")
        return found
    called: list[nn.Module] = []
    hooks = [
        module.register_forward_hook(lambda module, *_: called.append(module))
        for module in modules.values()
        if is_linear(module)
    ]
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise ValueError(f"the model calls no linear layer. Pass head=, one of: {names}.")
    return called[-1]


def _parameters(head: nn.Module) -> tuple[Tensor, Tensor | None]:
    weight, bias = head.weight, getattr(head, "bias", None)
    assert isinstance(weight, Tensor)
    if getattr(head, "normalize", False):
        raise ValueError(
            "the head normalizes the features, so their norms do not take part: the free-feature dynamics is not this "
            "model's. Ask unhinge.Spherical instead."
        )
    return weight, bias if isinstance(bias, Tensor) else None


def _features(heard: list[Tensor], head: nn.Module, labels: Tensor) -> Tensor:
    if len(heard) != 1 or heard[0].shape != (len(labels), head.in_features):
        shapes = ", ".join(str(tuple(one.shape)) for one in heard) or "nothing"
        raise ValueError(
            f"the head must be called once per batch, on ({len(labels)}, {head.in_features}), one row per label; "
            f"it was called on {shapes}. Pass head= to name another layer."
        )
    return heard[0]


@contextmanager
def _listening(head: nn.Module) -> Iterator[list[Tensor]]:
    heard: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: heard.append(inputs[0].detach()))
    try:
        yield heard
    finally:
        hook.remove()
