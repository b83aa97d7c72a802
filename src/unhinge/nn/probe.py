"""The head of a network: which layer it is, what it holds, what enters it.

A head is the linear layer that makes the logits: an ``nn.Linear``, or any module with `in_features` and a 2-D `weight`
such as ``ETFHead``. Everything that looks at a network from outside (surgery, monitor, prediction, detectors) asks
here, so all of them agree on the layer and refuse with the same words.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, fx, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from unhinge.nn.tracing import evaluating, is_linear, makes_probabilities, passes, traced, undisturbed

__all__ = [
    "device_of",
    "features_and_logits",
    "find_head",
    "head_parameters",
    "listening",
    "logits_in",
    "only_features",
]


def find_head(
    model: nn.Module, head: nn.Module | str | None = None, *, inputs: object = None, argument: str = "head"
) -> nn.Module:
    """The linear layer that makes the logits of `model`, which is left as it is to the last bit.

    The output of the model is a tensor of logits, or a mapping, dataclass or named tuple with an entry `logits` (as the
    models of transformers return), or a plain tuple of which one linear layer makes exactly one part. The layer is
    looked for by

    1. running the model on `inputs`, where they are given: the layer whose output is the logits;
    2. tracing a forward pass symbolically, backwards from its output, through pooling, reshaping and softmax;
    3. where the forward pass depends on its data: the layer registered last, if no other layer can come after it. This
       is a guess. A warning names the layer that was taken.

    Arguments:
        model: Any network, also one inside ``DistributedDataParallel`` or ``torch.compile``.
        head: The layer itself or its name in the model; then nothing is looked for.
        inputs: A batch that the model can be called with.
        argument: What the caller's own argument for the layer is called, for the error messages.

    Raises:
        ValueError: If no layer or more than one could be meant. The message lists the linear layers by name.

    Example:
        >>> from unhinge.nn import ETFHead
        >>> find_head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), ETFHead(3, 2)))
        ETFHead(in_features=3, out_features=2, normalize=False, scale=1,
         trainable=False)
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be an nn.Module, got {type(model).__name__}.")
    model = _unwrapped(model)
    with undisturbed(model):
        if head is not None:
            return _named(model, head, argument)
        if is_linear(model):
            return model
        heads = [] if inputs is None else _by_running(model, inputs)
        if len(heads) == 1:
            return heads[0]
        graph = traced(model)
        if graph is not None:
            heads = _by_tracing(model, graph)
            if len(heads) == 1:
                return heads[0]
            came = str(next(node for node in graph.nodes if node.op == "output").args[0])
            raise ValueError(
                f"the logits must come from one linear layer, but the output of the model comes from "
                f"{_shortened(came)}. Pass {argument}=, the name of the layer; there are: {_names(model)}."
            )
        guess = None if inputs is not None else _by_order(model)
    if guess is None:
        raise ValueError(
            "the forward pass depends on its data, so it cannot be traced, and more than one layer could make the "
            f"logits. Pass {argument}=, the name of the layer; there are: {_names(model)}."
        )
    name = next(name for name, module in model.named_modules() if module is guess)
    warnings.warn(
        f"the forward pass depends on its data and cannot be traced. {name!r}, the linear layer registered last, is "
        f"taken to make the logits; pass {argument}={name!r} to confirm it, or the name of another.",
        stacklevel=_callers_level(),
    )
    return guess


def head_parameters(head: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight :math:`(C, p)` and bias :math:`(C,)` of a head as they are now, without a graph.

    Example:
        >>> weight, bias = head_parameters(nn.Linear(4, 3))
        >>> weight.shape, bias.shape, weight.requires_grad
        (torch.Size([3, 4]), torch.Size([3]), False)
    """
    # A parametrized weight is computed when it is read, and in training mode that may move its buffers (spectral norm).
    with torch.no_grad(), evaluating(head):
        weight, bias = head.weight, getattr(head, "bias", None)
    assert isinstance(weight, Tensor)
    return weight.detach(), bias.detach() if isinstance(bias, Tensor) else None


def logits_in(output: object) -> Tensor:
    """The logits in what a model returned: the tensor itself, an entry `logits`, or the first part of a tuple.

    Example:
        >>> logits_in({"loss": None, "logits": torch.ones(2, 3)}).shape
        torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output
    entry = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(entry, Tensor):
        return entry
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise ValueError(
        "the model must return a tensor of logits, a tuple that begins with them, or something with an entry 'logits', "
        f"got {type(output).__name__}."
    )


@contextmanager
def listening(head: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what enters `head` inside the block, one tensor for each call, in the graph they came in.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        >>> with listening(model[2]) as heard:
        ...     logits = model(torch.zeros(5, 4))
        >>> [tuple(features.shape) for features in heard]
        [(5, 3)]
    """
    heard: list[Tensor] = []

    def hear(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        heard.append(args[0] if args else next(iter(kwargs.values())))

    hook = head.register_forward_pre_hook(hear, with_kwargs=True)
    try:
        yield heard
    finally:
        hook.remove()


def only_features(heard: list[Tensor], rows: int) -> Tensor:
    """The features of the one call to the head, shape :math:`(n, p)`, one row per example; an error otherwise."""
    if len(heard) != 1 or heard[0].ndim != 2 or len(heard[0]) != rows:
        shapes = ", ".join(str(tuple(features.shape)) for features in heard) or "nothing"
        raise ValueError(
            f"the head must be called once per batch, on {rows} rows, one per example, but was called on {shapes}. "
            "Pass head= to name another layer."
        )
    return heard[0]


def features_and_logits(model: nn.Module, inputs: object, head: nn.Module) -> tuple[Tensor, Tensor]:
    """What enters the head, :math:`(n, p)`, and the logits, :math:`(n, C)`, of one forward pass.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        >>> features, logits = features_and_logits(model, torch.zeros(5, 4), model[2])
        >>> torch.equal(model[2](features), logits)
        True
    """
    with listening(head) as heard:
        logits = logits_in(model(inputs))
    return only_features(heard, len(logits)), logits


def device_of(model: nn.Module) -> torch.device:
    """Where the model is, by its first parameter or buffer; the CPU if it has none."""
    return next((part.device for part in itertools.chain(model.parameters(), model.buffers())), torch.device("cpu"))


def _unwrapped(model: nn.Module) -> nn.Module:
    if isinstance(model, DataParallel):
        raise ValueError(
            "DataParallel runs copies of the model in threads, whose features come in no fixed order. "
            "Use DistributedDataParallel, one process per device."
        )
    inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
    return _unwrapped(inner) if isinstance(inner, nn.Module) else model


def _linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if is_linear(module)}


def _names(model: nn.Module) -> str:
    return ", ".join(repr(name) if name else "the model itself" for name in _linear_layers(model)) or "none"


def _named(model: nn.Module, head: nn.Module | str, argument: str) -> nn.Module:
    modules = dict(model.named_modules(remove_duplicate=False))
    module = modules.get(head) if isinstance(head, str) else head
    if module is not None and is_linear(module) and any(module is there for there in modules.values()):
        return module
    came = repr(head) if isinstance(head, str) else type(head).__name__
    if isinstance(head, str) and module is not None:
        came += f", which is {type(module).__name__}"
    raise ValueError(
        f"{argument} must be a linear layer of the model, or the name of one, got {came}. There are: {_names(model)}."
    )


def _parts(output: object) -> list[object]:
    """What of an output could be logits: tensors of a forward pass, or nodes of a traced one."""
    if isinstance(output, fx.Node) and isinstance(output.target, type):  # torch.fx's way to note a dataclass or tuple
        fields = getattr(output.target, "_fields", None) or [f.name for f in dataclasses.fields(output.target)]
        output = dict(zip(fields, output.args, strict=False)) | output.kwargs
    if isinstance(output, fx.Node | Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [output["logits"]] if "logits" in output else []
    if getattr(output, "logits", None) is not None:
        return [output.logits]  # type: ignore[attr-defined]
    return list(output) if isinstance(output, tuple | list) else []


def _by_tracing(model: nn.Module, graph: fx.Graph) -> list[nn.Module]:
    """The linear layers that make a part of the output, each once."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    heads: list[nn.Module] = []
    for node in _parts(output.args[0]):
        while isinstance(node, fx.Node) and node.all_input_nodes:
            if not passes(model, node) and not makes_probabilities(model, node):
                break
            node = node.all_input_nodes[0]
        if isinstance(node, fx.Node) and node.op == "call_module":
            module = model.get_submodule(str(node.target))
            if is_linear(module) and module not in heads:
                heads.append(module)
    return heads


def _by_running(model: nn.Module, inputs: object) -> list[nn.Module]:
    """The linear layers whose output, or its softmax, is a part of what the model returns."""
    made: dict[nn.Module, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda module, _, out: made.update({module: out}))
        for module in _linear_layers(model).values()
    ]
    try:
        parts = [part for part in _parts(model(inputs)) if isinstance(part, Tensor)]
    finally:
        for hook in hooks:
            hook.remove()
    return [module for module, out in made.items() if any(_is_logits(out, part) for part in parts)]


def _is_logits(made: Tensor, part: Tensor) -> bool:
    if made.shape[-1:] != part.shape[-1:] or made.numel() != part.numel():
        return False
    made = made.reshape(part.shape)
    return any(torch.equal(form, part) for form in (made, made.softmax(-1), made.log_softmax(-1)))


def _by_order(model: nn.Module) -> nn.Module | None:
    """The linear layer registered last, if neither order nor widths leave room for another one to make the logits."""
    modules = list(model.modules())
    layers = [module for module in modules if is_linear(module)]
    if not layers:
        return None
    last = layers[-1]
    inside = set(last.modules())
    # The weights of anything registered later would come after the head, or beside it.
    later = (module for module in modules[modules.index(last) :] if module not in inside)
    if any(list(module.parameters(recurse=False)) for module in later):
        return None
    # An output that fits the input of another layer may be a hidden one, and one that fits none may be a second head.
    # So the head is certain only if it is the one layer whose output nothing else could take.
    widths = {_width_in(module) for module in modules}
    ends = [layer for layer in layers if len(head_parameters(layer)[0]) not in widths]
    return last if ends == [last] else None


def _width_in(module: nn.Module) -> int | None:
    """How many numbers the layer takes per example or position, where it says so."""
    for attribute in ("in_features", "in_channels", "num_features", "input_size", "embed_dim"):
        width = getattr(module, attribute, None)
        if isinstance(width, int):
            return width
    shape = getattr(module, "normalized_shape", None)
    return int(shape[-1]) if isinstance(shape, tuple) and shape else None


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _callers_level() -> int:
    """How far up the first line outside this package is, so that a warning points at the user's code."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "unhinge":
        level, frame = level + 1, frame.f_back
    return level
