"""The features of a live model, as they reach its last linear layer, without keeping them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from unhinge.nn.probe import device_of, find_head, head_parameters, listening, only_features
from unhinge.nn.tracing import evaluating
from unhinge.prediction.measured import Measured, measure

__all__ = ["measure_model"]


def measure_model(
    model: nn.Module,
    loader: Iterable[tuple[object, Tensor]],
    head: nn.Module | str | None = None,
    nc4: bool = True,
) -> Measured:
    r"""Run `model` over `loader` and measure what enters its head; nothing of size n is kept.

    Arguments:
        model: Any classifier that ends in a linear layer; it runs in evaluation mode, without gradients, on the device
            it is on, and is left as it was.
        loader: Yields `(inputs, labels)`, for example a ``DataLoader``. The set training sees, without augmentation.
        head: The last linear layer, itself or by name. By default, the one whose output on the first batch is the
            logits: an ``nn.Linear``, or a module with a 2-D `weight` and `in_features`, such as ``ETFHead``.
        nc4: Go over the loader a second time for NC4. An iterator, which can be used up only once, is not.

    Example:
        >>> model = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))
        >>> loader = [(torch.randn(4, 5), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
        >>> measured = measure_model(model, loader)
        >>> measured.size
        12
        >>> measured.dim
        3
        >>> torch.equal(measured.weight.float(), model[2].weight)
        True
    """
    once = iter(loader) is loader
    first = next(iter(loader), None)
    if first is None:
        raise ValueError("the loader is empty; it must yield pairs (inputs, labels).")
    rest = itertools.chain([first], loader) if once else loader
    device = device_of(model)
    with evaluating(model), torch.no_grad():
        last = find_head(model, head, inputs=_inputs(first, device))
        if getattr(last, "normalize", False):
            raise ValueError(
                "the head normalizes the features, so their norms do not take part: the free-feature dynamics is not "
                "this model's. Ask unhinge.Spherical instead."
            )
        weight, bias = head_parameters(last)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in rest:
                with listening(last) as heard:
                    model(_inputs(batch, device))
                yield only_features(heard, len(batch[1])), batch[1]

        return measure(batches, len(weight), weight, bias, nc4=nc4 and not once)


def _inputs(batch: object, device: torch.device) -> object:
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        raise ValueError(
            f"the loader must yield pairs (inputs, labels) with a tensor of labels, got {type(batch).__name__}. "
            "Wrap it: ((batch['x'], batch['y']) for batch in loader)."
        )
    return batch[0].to(device) if isinstance(batch[0], Tensor) else batch[0]
