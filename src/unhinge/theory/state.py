"""The state of training, as paths return it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["State", "fitting_scale"]


@dataclass(frozen=True)
class State:
    r"""Features :math:`(*, n, p)`, prototypes :math:`(*, C, p)`, biases :math:`(*, C)`, at times of shape :math:`(*)`.

    Where the true state would overflow or underflow its dtype, `features` and `weight` hold it divided by its norm, and
    `log_scale` the logarithm of that norm; everywhere else `log_scale` is 0 and they hold it as it is. So
    ``state.features * exp(state.log_scale)`` is the true value at any time, and the direction is never lost
    [eq: log-scale].

    Example:
        >>> state = State(torch.tensor([[3.0]]), torch.tensor([[4.0]]))
        >>> state.normalized()
        State(features=tensor([[0.6000]]), weight=tensor([[0.8000]]), bias=None,
         log_scale=None)
    """

    features: Tensor  # (*, n, p)
    weight: Tensor  # (*, C, p)
    bias: Tensor | None = None  # (*, C)
    log_scale: Tensor | None = None  # (*,)

    def normalized(self) -> State:
        r""":math:`Z / \|Z\|` with :math:`Z = (H, W)`, Frobenius norm; a zero state stays zero."""
        features, weight = (part.double().norm(dim=(-2, -1)) for part in (self.features, self.weight))
        norm = torch.hypot(features, weight).to(self.features)[..., None, None]
        norm = torch.where(norm > 0, norm, 1.0)
        return State(self.features / norm, self.weight / norm)


def fitting_scale(log_norm: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a state of this norm, and its square, fit the dtype; the logarithm of the norm where they do not.

    It is rounded as the dtype will round it, so that ``log_scale`` is what the state was divided by.
    """
    # Below the root of the largest number, with a tenth to spare: sums of squares of the entries fit as well. Half
    # precision has no room for that, and norms of it are not summed in it: there the norm itself must fit.
    largest = math.log(torch.finfo(dtype).max)
    room = 0.45 * largest
    highest = largest - math.log(2) if dtype == torch.float16 else room
    fits = ((log_norm > -room) & (log_norm < highest)) | torch.isinf(log_norm)
    rounded = log_norm.to(dtype).to(log_norm)
    near = (rounded - log_norm).abs() <= 0.5  # far out, neighbors of a dtype are further apart than its range
    return torch.where(fits, 0.0, torch.where(near, rounded, log_norm))
