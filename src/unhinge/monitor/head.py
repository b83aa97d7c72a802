"""The layer that makes a model's logits: found without data and without touching the model, and read."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from unhinge.nn.tracing import evaluating, is_linear, owner_of, passes, traced, undisturbed

__all__ = ["find_head", "head_parameters"]


def find_head(model: nn.Module, head: nn.Module | str | None = None) -> nn.Module:
    """The linear layer that makes the logits: an ``nn.Linear``, or one with `in_features` and a 2-D `weight`.

    Arguments:
        model: Any network, also one wrapped for several processes or compiled.
        head: The layer itself or its name in the model, where it cannot be found. By default, the layer that makes the
            output of a forward pass; where that cannot be traced, the last layer of the model.

    Example:
        >>> from unhinge.nn import ETFHead
        >>> find_head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), ETFHead(3, 2)))
        ETFHead(in_features=3, out_features=2, normalize=False, scale=1, trainable=False)
    """
    model = _unwrapped(model)
    with undisturbed(model):
        modules = dict(model.named_modules(remove_duplicate=False))
        names = ", ".join(repr(name) for name, module in modules.items() if name and is_linear(module))
        names = names or ("the model itself" if is_linear(model) else "none")
        if head is not None:
            found = modules.get(head) if isinstance(head, str) else head
            if found is None or not is_linear(found) or not any(found is module for module in modules.values()):
                came = repr(head) if isinstance(head, str) else type(head).__name__
                raise ValueError(
                    f"head must be a linear layer of the model, or the name of one, got {came}. There are: {names}."
                )
            return found
        graph = None if is_linear(model) else traced(model)
        found = _last_registered(model) if graph is None else _last_called(model, graph)
        if found is None:
            raise ValueError(
                "no layer of the model makes its logits: the output must come from one nn.Linear, or a head such as "
                f"ETFHead. Pass head=, the layer or its name; there are: {names}."
            )
        return found


def head_parameters(head: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias as they are now, without a graph."""
    # A parametrized weight is computed when it is read, and in training mode that may move its buffers (spectral norm).
    with torch.no_grad(), evaluating(head):
        weight, bias = head.weight, getattr(head, "bias", None)
    assert isinstance(weight, Tensor)
    return weight.detach(), bias.detach() if isinstance(bias, Tensor) else None


def _unwrapped(model: nn.Module) -> nn.Module:
    if isinstance(model, DataParallel):
        raise ValueError(
            "DataParallel runs copies of the model in threads, whose features come in no fixed order. "
            "Use DistributedDataParallel, one process per device."
        )
    inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
    return _unwrapped(inner) if isinstance(inner, nn.Module) else model


def _last_called(model: nn.Module, graph: fx.Graph) -> nn.Module | None:
    (output,) = (node for node in graph.nodes if node.op == "output")
    node = output.args[0]
    while isinstance(node, fx.Node) and passes(model, node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    if not isinstance(node, fx.Node):
        return None
    # A head of ours is traced into: its last operation tells whose it is.
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else owner_of(model, node)
    return module if is_linear(module) else None


def _last_registered(model: nn.Module) -> nn.Module | None:
    modules = list(model.modules())
    places = [place for place, module in enumerate(modules) if is_linear(module)]
    if not places:
        return None
    last = modules[places[-1]]
    inside = set(last.modules())
    # The weights of anything registered later would come after the head, or beside it.
    later = (module for module in modules[places[-1] :] if module not in inside)
    return None if any(list(module.parameters(recurse=False)) for module in later) else last
