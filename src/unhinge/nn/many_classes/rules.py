r"""Which loss a many-class head has, by name or as a function of three numbers."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor

from unhinge.nn.contract import resolve_gamma
from unhinge.nn.spherical_softmax import check_offset_of_squares, spherical_softmax_rule
from unhinge.nn.taylor_softmax import taylor_softmax_rule
from unhinge.nn.three_numbers import Rule
from unhinge.nn.z_loss import check_z, z_rule

__all__ = ["LOSSES", "HeadLoss", "head_loss", "prior_loss"]

LOSSES = ("unhinged", "taylor_softmax", "z", "squared", "spherical_softmax")
OPTIONS = {"unhinged": ("gamma",), "z": ("slope", "offset"), "spherical_softmax": ("epsilon",)}


@dataclass(frozen=True)
class HeadLoss:
    """A loss of three numbers, and what a head has to know of it."""

    name: str
    rule: Rule
    quadratic: bool  # whether it depends on the sum of squares; else no p by p matrix is needed
    is_probability: bool  # whether minus the loss is the logarithm of a probability


def head_loss(loss: str | Rule, num_classes: int, **options: float | None) -> HeadLoss:
    r"""The loss called `loss`, with those of its `options` that are not None.

    Example:
        >>> head_loss("z", 1000, slope=0.1).quadratic
        True
        >>> head_loss("taylor_softmax", 1000).is_probability
        True
        >>> head_loss("softmax", 10)
        Traceback (most recent call last):
        ...
        ValueError: there is no loss 'softmax'; did you mean taylor_softmax? There are
         unhinged, taylor_softmax, ...
    """
    given = {key: value for key, value in options.items() if value is not None}
    name = loss if isinstance(loss, str) else "custom"
    if isinstance(loss, str) and loss not in LOSSES:
        near = difflib.get_close_matches(loss, LOSSES, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ValueError(
            f"there is no loss {loss!r}{hint} There are {', '.join(LOSSES)}, "
            "or pass a function f(own, total, squares, num_classes) -> losses."
        )
    if not (isinstance(loss, str) or callable(loss)):
        raise ValueError(f"loss must be a name ({', '.join(LOSSES)}) or a function, got {type(loss).__name__}.")
    unknown = [key for key in given if key not in OPTIONS.get(name, ())]
    if unknown:
        takes = ", ".join(OPTIONS.get(name, ())) or "no options"
        raise ValueError(f"{unknown[0]} is not an option of the loss {name!r}, which takes {takes}.")
    match name:
        case "unhinged":
            gamma = float(resolve_gamma(options.get("gamma"), num_classes))
            return HeadLoss(name, partial(unhinged_rule, gamma=gamma), quadratic=False, is_probability=False)
        case "taylor_softmax":
            return HeadLoss(name, taylor_softmax_rule, quadratic=True, is_probability=True)
        case "spherical_softmax":
            check_offset_of_squares(**given)
            spherical: Rule = partial(spherical_softmax_rule, **cast(Any, given))
            return HeadLoss(name, spherical, quadratic=True, is_probability=True)
        case "z":
            check_z(**given)
            z: Rule = partial(z_rule, **cast(Any, given))
            return HeadLoss(name, z, quadratic=True, is_probability=False)
        case "squared":
            return HeadLoss(name, squared_rule, quadratic=True, is_probability=False)
    assert not isinstance(loss, str)
    return HeadLoss(name, loss, quadratic=True, is_probability=False)


def prior_loss() -> HeadLoss:
    r"""The unhinged loss with a prior, :math:`-z_y + q^\top z`, for rows that keep :math:`q^\top W` as their sum.

    Example:
        >>> import torch
        >>> prior_loss().rule(
        ...     torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([9.0]), 10
        ... )
        tensor([-1.5000])
    """
    return HeadLoss("unhinged", prior_rule, quadratic=False, is_probability=False)


def prior_rule(own: Tensor, total: Tensor, squares: Tensor, num_classes: int) -> Tensor:
    r""":math:`-z_y + q^\top z`, the second term handed in as the total."""
    return total - own


def unhinged_rule(own: Tensor, total: Tensor, squares: Tensor, num_classes: int, gamma: float) -> Tensor:
    r""":math:`-z_y + \gamma\sum_{j\ne y} z_j`  [eq: unhinged]."""
    return gamma * total - (1 + gamma) * own


def squared_rule(own: Tensor, total: Tensor, squares: Tensor, num_classes: int) -> Tensor:
    r"""The squared distance of the logits from the one-hot target, :math:`R - 2 z_y + 1`."""
    return squares - 2 * own + 1
