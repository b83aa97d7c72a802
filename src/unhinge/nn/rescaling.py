r"""Gradients of normalized features, freed of one power of the feature norm  [eq: rescaled-rate].

Through :math:`\hat h = h/\|h\|` a gradient arrives divided by :math:`\|h\|`, so that long features turn slowly: the
angle moves by :math:`\eta/\|h\|^2` per step. Multiplied by :math:`\|h\|` it moves by :math:`\eta/\|h\|`. That is faster
for norms above 1, and slower below.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unhinge.nn.contract import check_floating
from unhinge.nn.precision import widened

__all__ = ["rescale_gradient"]


def rescale_gradient(features: Tensor) -> Tensor:
    r"""The features themselves, whose gradient comes back multiplied by :math:`\|h\|`, row by row.

    Put it before the normalization: ``F.normalize(rescale_gradient(features), dim=-1)``. It equals a learning rate of
    each example multiplied by its feature norm, from here backwards. A zero feature gets gradient zero.

    Arguments:
        features: :math:`h`, shape :math:`(*, p)`.

    A second backward pass differentiates the rescaled gradient as it is, norm included, and is rescaled in its turn.

    Example:
        >>> features = torch.tensor([[3.0, 4.0], [0.6, 0.8]], requires_grad=True)
        >>> rescale_gradient(features).sum().backward()
        >>> features.grad
        tensor([[5., 5.],
                [1., 1.]])
    """
    check_floating("features", features, "p")
    return _Rescale.apply(features)  # type: ignore[no-untyped-call]


class _Rescale(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(features: Tensor) -> Tensor:
        return features.clone()  # a view would forbid whatever follows to work in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        wide = features.to(widened(features.dtype))
        # by the largest entry first: in float32 the squares of 1e30 and of 1e-30 are no numbers, or zero
        largest = wide.detach().abs().amax(-1, keepdim=True) if wide.shape[-1] else wide.new_zeros(*wide.shape[:-1], 1)
        largest = torch.where(largest > 0, largest, 1.0)
        norm = largest * torch.linalg.vector_norm(wide / largest, dim=-1, keepdim=True)
        return (grads[0] * norm).to(grads[0].dtype)
