r"""What outlives a question: values that are kept, and graphs that are differentiated more than once.

A path is solved once and asked many times, by several threads, inside and outside of ``torch.no_grad`` and
``torch.inference_mode``, and every answer may be differentiated on its own. Two things would spoil that. A value that
is kept for later questions must not carry the mode, or the part of a graph, of whoever asked first: :class:`kept`. And
autograd frees a graph after one backward pass, so the part that all answers share would be gone after the first of
them: :func:`durable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload

import torch
from torch import Tensor

__all__ = ["durable", "kept", "tensors_in"]

Value = TypeVar("Value")


class kept(Generic[Value]):
    """A property that is computed once and kept, unless it carries gradients: then each question has its own graph.

    It is computed outside of inference mode and with gradients on, so that it serves later questions too. Two threads
    that ask at once may both compute it; they store equal values, each in one step.
    """

    def __init__(self, function: Callable[[Any], Value]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> kept[Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> Value | kept[Value]:
        # Called only where the instance has no such entry: a descriptor without __set__ stands behind it.
        if instance is None:
            return self
        with torch.inference_mode(False), torch.enable_grad():
            value = self.function(instance)
        if not any(tensor.requires_grad for tensor in tensors_in(value)):
            instance.__dict__[self.name] = value
        return value


def durable(function: Callable[..., Value], *arguments: object) -> Value:
    """`function(*arguments)`, a value of this package, whose tensors can be differentiated any number of times.

    Where an argument carries a gradient, the function is run on leaves of its own. The tensors of its result become
    outputs of one node of autograd's graph, which keeps the inner graph and never frees it. Second derivatives run the
    function outputs_again on the arguments themselves.

    Arguments made in inference mode are copied first, since autograd cannot save them.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> (square,) = durable(lambda given: (given**2,), x)
        >>> [torch.autograd.grad(square, x)[0].item() for _ in range(2)]
        [6.0, 6.0]
    """
    wanted = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(wanted):
        arguments = _mapped(arguments, lambda tensor: tensor.clone() if tensor.is_inference() else tensor)
        inputs = [tensor for tensor in tensors_in(arguments) if tensor.requires_grad]
        if not wanted or not inputs:
            return function(*arguments)
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        own = {id(tensor): leaf for tensor, leaf in zip(inputs, leaves, strict=True)}
        result = function(*_mapped(arguments, lambda tensor: own.get(id(tensor), tensor)))
        outer = {id(leaf): tensor for tensor, leaf in zip(inputs, leaves, strict=True)}
        outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad and id(tensor) not in outer]

        def outputs_again() -> list[Tensor]:
            fresh = function(*arguments)
            known = {id(tensor) for tensor in inputs}
            return [tensor for tensor in tensors_in(fresh) if tensor.requires_grad and id(tensor) not in known]

        hardened = _Durable.apply((outputs, leaves, inputs, outputs_again), *inputs)  # type: ignore[no-untyped-call]
        outer |= {id(tensor): hard for tensor, hard in zip(outputs, hardened, strict=True)}
        return cast(Value, _mapped(result, lambda tensor: outer.get(id(tensor), tensor)))


class _Durable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: tuple[Any, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.graph = graph  # a plain attribute: what is saved by save_for_backward is freed after one pass
        return tuple(tensor.detach() for tensor in graph[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        outputs, leaves, inputs, outputs_again = ctx.graph
        second = torch.is_grad_enabled()  # somebody wants to differentiate this derivative
        if second:
            outputs, leaves = outputs_again(), inputs
        pairs = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
        if not pairs:
            return (None,) * (1 + len(inputs))
        values, slopes = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(
            values, leaves, slopes, retain_graph=True, create_graph=second, allow_unused=True
        )
        return (None, *gradients)


def tensors_in(value: object) -> list[Tensor]:
    """All tensors of a value, each once, in a fixed order; also those that a property has kept."""
    tensors: dict[int, Tensor] = {}
    seen, left = set[int](), [value]
    while left:  # no recursion: this is asked for every value that is kept
        part = left.pop()
        if isinstance(part, Tensor):
            tensors.setdefault(id(part), part)
        elif (inside := _parts(part)) is not None and id(part) not in seen:
            seen.add(id(part))
            left += inside.values()
    return list(tensors.values())


def _parts(value: object) -> dict[Any, Any] | None:
    """What a value consists of, if it is a container or one of this package's own; None for anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, (tuple, list)):  # not a union: making one at each call would take as long as the rest
        return dict(enumerate(value))
    if type(value).__module__.partition(".")[0] == "unhinge" and hasattr(value, "__dict__"):
        return vars(value)
    return None


def _mapped(value: Any, change: Callable[[Tensor], Tensor], memo: dict[int, Any] | None = None) -> Any:
    """The value with its tensors changed; parts without a change are shared, not copied."""
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, Tensor):
        memo[id(value)] = change(value)
        return memo[id(value)]
    before = _parts(value)
    if before is None:
        return value
    after = {key: _mapped(part, change, memo) for key, part in before.items()}
    if all(after[key] is part for key, part in before.items()):
        result = value
    elif isinstance(value, dict):
        result = after
    elif isinstance(value, tuple | list):
        parts = list(after.values())
        result = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    else:
        result = object.__new__(type(value))  # frozen dataclasses among them: nothing is computed again
        result.__dict__.update(after)
    memo[id(value)] = result
    return result
