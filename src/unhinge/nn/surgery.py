"""Another head for a network that ends in a Linear, and a last ReLU out of the way.

:mod:`unhinge.nn.probe` finds the layer that makes the logits; the traced network tells what feeds it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from unhinge.nn.heads import ETFHead
from unhinge.nn.probe import find_head, head_parameters
from unhinge.nn.tracing import owner_of, passes, traced

__all__ = ["replace_head"]

Factory = Callable[[int, int], nn.Module]

RELU_CALLS: tuple[Any, ...] = (F.relu, torch.relu, F.relu_, torch.relu_, "relu", "relu_")  # functions, and methods


def replace_head(
    model: nn.Module,
    head: nn.Module | Factory,
    *,
    name: str | None = None,
    remove_last_relu: bool = False,
    inputs: object = None,
) -> nn.Module:
    r"""Put `head` in the place of the linear layer that makes the logits of `model`.

    The model is changed in place and returned, so that a bare ``nn.Linear`` can be replaced too. The head goes to the
    device and the dtype of the old layer, and into its training mode. Which layer that is, :func:`find_head
    <unhinge.nn.probe.find_head>` says; where several could be meant it refuses, and names them.

    Arguments:
        model: Any network whose logits come from one linear layer: as its output, or as the entry `logits` of it.
        head: A module from features :math:`(*, p)` to logits :math:`(*, C)`, or a function of
            ``(in_features, num_classes)`` that makes one: ``ETFHead`` itself will do.
        name: The old layer by its name in the model, such as ``"classifier.6"``, where it cannot be told.
        remove_last_relu: Also take out the ReLU whose output reaches the head, through pooling, flattening or dropout.
            Features then have all signs, as prototypes that sum to zero ask for. It has to be an ``nn.ReLU`` module, or
            a block with a flag ``last_relu``; of a module that is called several times only the last call is taken out.
        inputs: A batch to run the model on, for a network whose forward pass depends on its data. The layer whose
            output is the logits is then known, not guessed.

    Example:
        >>> from unhinge.nn.heads import ETFHead
        >>> network = nn.Sequential(
        ...     nn.Linear(8, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16, 10)
        ... )
        >>> replace_head(network, ETFHead, remove_last_relu=True)
        Sequential(
          (0): Linear(in_features=8, out_features=16, bias=True)
          (1): Identity()
          (2): Flatten(start_dim=1, end_dim=-1)
          (3): ETFHead(in_features=16, out_features=10, normalize=False, scale=1,
           trainable=False)
        )
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("a scripted model cannot be changed. Replace the head first, and script the model then.")
    if not callable(head):
        raise ValueError(
            f"head must be a module, or a function of (in_features, num_classes) such as ETFHead, got {head!r}."
        )
    old = find_head(model, name, inputs=inputs, argument="name")
    weight, _ = head_parameters(old)
    num_classes, in_features = weight.shape
    new = head if isinstance(head, nn.Module) else head(in_features, num_classes)
    if not isinstance(new, nn.Module):
        raise ValueError(f"the function must return the new head, an nn.Module, but returned {new!r}.")
    wanted = getattr(new, "in_features", in_features)
    if wanted != in_features:
        raise ValueError(
            f"the head takes {wanted} features, but the network has {in_features}. "
            "Pass a function of (in_features, num_classes), such as ETFHead, to get the right size."
        )
    if remove_last_relu:
        _remove_last_relu(model, traced(model), old)
    elif isinstance(new, ETFHead) and _keeps_a_relu(model, old):
        warnings.warn(
            "the features come out of a ReLU, so none of their entries is negative, and the prototypes of a simplex "
            "sum to zero: the features cannot reach them. Pass remove_last_relu=True.",
            stacklevel=2,
        )
    new.to(device=weight.device, dtype=weight.dtype).train(old.training)
    return new if old is model else _swap(model, old, new)


def _remove_last_relu(model: nn.Module, graph: fx.Graph | None, head: nn.Module) -> None:
    if graph is None:
        raise ValueError(
            "remove_last_relu needs a network that torch.fx can trace, and the forward pass of this one depends on its "
            "data. Take the ReLU out of the network by hand, or build it without one."
        )
    node = _source(model, graph, head)
    if node is None:
        raise ValueError("the forward pass never calls the layer to be replaced, so no ReLU can be found before it.")
    module = _called(model, node)
    if isinstance(module, nn.ReLU):
        uses = sum(_called(model, call) is module for call in graph.nodes)
        _swap(model, module, nn.Identity() if uses == 1 else _AllButLast(module, uses))
        if uses > 1:
            _start_counting_with(model)
    elif node.target in RELU_CALLS:
        owner = owner_of(model, node)
        if getattr(owner, "last_relu", None) is not True:
            raise ValueError(
                f"the last ReLU is a function call in the forward pass of {type(owner).__name__}, which cannot be "
                "taken out. Make it an nn.ReLU module there, or leave it out."
            )
        owner.last_relu = False  # type: ignore[assignment]
    else:
        raise ValueError(f"there is no ReLU before the head: its input comes from {node}. Leave remove_last_relu out.")


def _keeps_a_relu(model: nn.Module, head: nn.Module) -> bool:
    """Whether the traced input of the head is a ReLU's; where the network cannot be traced, nothing is known."""
    graph = None if head is model else traced(model)
    node = None if graph is None else _source(model, graph, head)
    return node is not None and (isinstance(_called(model, node), nn.ReLU) or node.target in RELU_CALLS)


def _source(model: nn.Module, graph: fx.Graph, head: nn.Module) -> fx.Node | None:
    """The operation that makes what the last call of the head takes, seen through pooling; None if nothing calls it."""
    heads = [node for node in graph.nodes if _called(model, node) is head]
    if not heads:
        return None
    node = heads[-1].all_input_nodes[0]
    while passes(model, node):
        node = node.all_input_nodes[0]
    return node


def _called(model: nn.Module, node: fx.Node) -> nn.Module | None:
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _swap(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Wherever the module is registered: it may have several names."""
    for parent in list(model.modules()):
        for key, child in list(parent._modules.items()):
            if child is old:
                parent._modules[key] = new
    return model


class _AllButLast(nn.Module):
    """A ReLU that a forward pass calls several times, with the last of these calls left out."""

    def __init__(self, relu: nn.ReLU, calls: int) -> None:
        super().__init__()
        self.relu = relu
        self.calls = calls
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        if self.seen < self.calls:
            return self.relu(x)
        self.seen = 0
        return x

    def extra_repr(self) -> str:
        return f"calls={self.calls}"


def _start_counting_with(model: nn.Module) -> None:
    """Count from the start of each forward pass, so that one that was interrupted does not shift the next."""
    model.register_forward_pre_hook(_restart)


def _restart(model: nn.Module, _: object) -> None:
    for module in model.modules():
        if isinstance(module, _AllButLast):
            module.seen = 0
