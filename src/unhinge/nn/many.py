r"""A trained classifier whose optimizer step does not grow with the number of classes  [eq: many-classes].

One step of SGD on the unhinged loss moves **every** row of the weight: each by the same vector (the feature mean times
:math:`\gamma`) and by its decay, and only the rows of the batch by something of their own:

.. math:: w_c \leftarrow (1 - \eta\lambda)\, w_c - \eta\gamma\, g + \eta(1+\gamma)\, g_c, \qquad
    g = \sum_i a_i h_i,\quad g_c = \sum_{i: y_i = c} a_i h_i,

with :math:`a_i` the derivative of the objective by the loss of example i, :math:`1/n` for the mean. So a row is kept as
:math:`w_c = \frac{s}{s_c} v_c + u`: an own part that was exact when the row was last touched, the decay since then as
the ratio of two scalars, and one common vector. A step changes :math:`u`, :math:`s`, the sum of all rows and the
:math:`v_c` of the batch. The scalars are kept as :math:`m 2^e`, so that thousands of half-lives neither underflow nor
cost a digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from unhinge.nn.contract import check_reduction, resolve_gamma
from unhinge.nn.reduction import reduce_loss

__all__ = ["ManyClassHead"]


class ManyClassHead(nn.Module):
    r"""A linear classifier without bias with its own exact SGD, at :math:`O(np)` per step for any number of classes.

    Equal to ``nn.Linear(in_features, num_classes, bias=False)`` under ``UnhingedLoss(gamma)`` and
    ``torch.optim.SGD(lr, weight_decay=weight_decay)``, up to rounding. It is a loss and an optimizer in one because
    its gradient has a C-by-p shape that is never formed: call ``loss = head(features, target)``, ``loss.backward()``
    and ``head.step(lr)``. The gradient flows on into the features; several backward passes before a step add up.

    Arguments:
        in_features: Dimension :math:`p` of the features.
        num_classes: :math:`C`.
        gamma: :math:`\gamma \ge 0`; ``None`` means :math:`1/(C-1)`.
        weight_decay: :math:`\lambda \ge 0`, as in ``torch.optim.SGD``.
        momentum: Has to be 0. With momentum a row that is not in the batch moves by a product of 2 by 2 matrices, one
            per step since it was last seen, and with a learning rate that varies they have no short form.
        weight: The rows to start from, shape :math:`(C, p)`; ``None`` draws them as ``nn.Linear`` does.
        generator: Draws the start; ``None`` uses torch's global generator.
        device, dtype: Of the rows, as in ``nn.Linear``.

    Example:
        >>> head = ManyClassHead(3, 100_000, weight_decay=1e-4, generator=torch.Generator().manual_seed(0))
        >>> features, target = torch.ones(2, 3, requires_grad=True), torch.tensor([7, 70_000])
        >>> for _ in range(3):
        ...     loss = head(features, target)
        ...     loss.backward()
        ...     head.step(lr=0.5)
        >>> features.grad.shape, head.rows(target).shape
        (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    own: Tensor  # (C, p), v
    common: Tensor  # (p,), u
    weight_sum: Tensor  # (p,), the sum of all rows
    scale: Tensor  # () m and
    exponent: Tensor  # () e of the decay so far, s = m 2^e
    row_scale: Tensor  # (C,) the same of each row when it was last touched
    row_exponent: Tensor  # (C,)

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        gamma: float | None = None,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        *,
        weight: Tensor | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if in_features < 1 or num_classes < 1:
            raise ValueError(f"in_features and num_classes must be at least 1, got {in_features} and {num_classes}.")
        if not 0 <= weight_decay < math.inf:
            raise ValueError(f"weight_decay must be finite and not negative, got {weight_decay}.")
        if momentum != 0:
            raise ValueError(
                f"momentum is not supported, got {momentum}: a row would need the product of all steps since it was "
                "last seen. Use momentum=0 here; the network in front may have its own optimizer."
            )
        if weight is None:
            bound = 1 / math.sqrt(in_features)
            drawn_on = device if generator is None else generator.device
            rows = torch.empty(num_classes, in_features, dtype=dtype, device=drawn_on)
            rows = rows.uniform_(-bound, bound, generator=generator).to(device=device)
        elif weight.shape != (num_classes, in_features):
            raise ValueError(
                f"weight must have shape ({num_classes}, {in_features}), one row per class, got {tuple(weight.shape)}."
            )
        else:
            rows = weight.detach().to(device=device, dtype=dtype, copy=True)
        self.in_features = in_features
        self.out_features = num_classes
        self.gamma = float(resolve_gamma(gamma, num_classes))
        self.weight_decay = weight_decay
        self.register_buffer("own", rows)
        self.register_buffer("common", rows.new_zeros(in_features))
        self.register_buffer("weight_sum", rows.sum(0, dtype=torch.float64).to(rows.dtype))
        self.register_buffer("scale", torch.ones((), dtype=torch.float64, device=rows.device))
        self.register_buffer("exponent", torch.zeros((), dtype=torch.int64, device=rows.device))
        self.register_buffer("row_scale", torch.ones(num_classes, dtype=torch.float64, device=rows.device))
        self.register_buffer("row_exponent", torch.zeros(num_classes, dtype=torch.int64, device=rows.device))
        self._pending: list[tuple[Tensor, Tensor]] = []  # labels and a_i h_i of each backward pass since the last step

    @property
    def num_classes(self) -> int:
        return self.out_features

    def forward(self, features: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        r"""The unhinged loss of `features` :math:`(*, p)` with labels `target` :math:`(*)`, without logits.

        For class weights, take ``reduction="none"`` and weigh the losses: the step follows whatever is differentiated.
        """
        check_reduction(reduction)
        if features.shape[-1] != self.in_features or target.shape != features.shape[:-1]:
            raise ValueError(
                f"features must have shape (..., {self.in_features}) and target the same without the last axis, "
                f"got {tuple(features.shape)} and {tuple(target.shape)}."
            )
        labels = self._checked(target)
        # The rows are no inputs of autograd; a scalar that wants a gradient keeps the graph alive for frozen features.
        switch = torch.zeros((), device=features.device, requires_grad=torch.is_grad_enabled())
        loss = _Loss.apply(  # type: ignore[no-untyped-call]
            features, self.rows(labels), self.weight_sum, self.gamma, labels, self._receive, switch
        )
        return reduce_loss(loss, reduction, loss.numel())

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step of SGD with the gradients of all backward passes since the last; nothing if there were none."""
        if not 0 <= lr < math.inf:
            raise ValueError(f"lr must be finite and not negative, got {lr}.")
        if not self._pending:
            return
        labels = torch.cat([labels for labels, _ in self._pending])
        pulls = torch.cat([pull for _, pull in self._pending])
        self._pending.clear()
        total = pulls.sum(0)
        kept = 1 - lr * self.weight_decay
        self._decay(kept)
        self.common.mul_(kept).sub_(total, alpha=lr * self.gamma)
        # The default gamma moves the rows by nothing in sum, and then this factor is exactly zero.
        excess = self.gamma * self.num_classes - (1 + self.gamma)
        if math.isclose(self.gamma * (self.num_classes - 1), 1, rel_tol=1e-15):
            excess = 0.0
        self.weight_sum.mul_(kept).sub_(total, alpha=lr * excess)
        touched, place = torch.unique(labels, return_inverse=True)
        rows = self._decayed_own(touched).index_add_(0, place, pulls, alpha=lr * (1 + self.gamma))
        self.own.index_copy_(0, touched, rows)
        self.row_scale.index_fill_(0, touched, self.scale)
        self.row_exponent.index_fill_(0, touched, self.exponent)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the backward passes since the last step."""
        super().zero_grad(set_to_none)
        self._pending.clear()

    def rows(self, index: Tensor) -> Tensor:
        r"""The weight of the classes `index` :math:`(*)`, shape :math:`(*, p)`."""
        return self._decayed_own(index) + self.common

    def dense(self) -> Tensor:
        r"""The whole weight, shape :math:`(C, p)`: a copy, for evaluation or export."""
        return self.own * self._ratio(self.row_scale, self.row_exponent) + self.common

    def logits(self, features: Tensor) -> Tensor:
        r"""The scores of all classes, shape :math:`(*, C)`; for many classes use ``nearest_prototype``."""
        return nn.functional.linear(features, self.dense())

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, gamma={self.gamma:g}, "
            f"weight_decay={self.weight_decay:g}"
        )

    def _decay(self, factor: float) -> None:
        if factor == 0:  # everything own is gone: as good as a million halvings
            self.exponent.sub_(1_000_000)
        elif factor != 1:
            mantissa, shift = torch.frexp(self.scale * factor)
            self.scale.copy_(mantissa)
            self.exponent.add_(shift)

    def _ratio(self, scale: Tensor, exponent: Tensor) -> Tensor:
        """The decay since `scale` and `exponent` were noted, as a column."""
        ratio = self.scale / scale * torch.exp2((self.exponent - exponent).to(scale.dtype))
        return ratio.to(self.own.dtype)[..., None]

    def _decayed_own(self, index: Tensor) -> Tensor:
        return self.own[index] * self._ratio(self.row_scale[index], self.row_exponent[index])

    def _checked(self, target: Tensor) -> Tensor:
        if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
            raise ValueError(f"target must hold class indices in an integer dtype, got {target.dtype}.")
        labels = target.to(torch.int64)
        if labels.numel():
            low, high = (int(end) for end in labels.aminmax())
            if low < 0 or high >= self.num_classes:
                raise ValueError(f"labels must lie in 0 .. {self.num_classes - 1}, got values from {low} to {high}.")
        return labels

    def _receive(self, labels: Tensor, pulls: Tensor) -> None:
        self._pending.append((labels.reshape(-1), pulls.reshape(-1, self.in_features).to(self.own.dtype)))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        scales = self.scale, self.row_scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # `.half()` is for the rows: a decay rounded to half precision would change all of them.
        self.scale, self.row_scale = (scale.to(self.own.device) for scale in scales)
        return self


class _Loss(torch.autograd.Function):
    r"""Losses :math:`\gamma h^\top\sum_c w_c - (1+\gamma) h^\top w_y`, and word to the head of what moves its rows."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        rows: Tensor,
        total: Tensor,
        gamma: float,
        labels: Tensor,
        receive: Callable[[Tensor, Tensor], None],
        switch: Tensor,
    ) -> Tensor:
        direction = gamma * total - (1 + gamma) * rows
        ctx.save_for_backward(features, direction, labels)
        ctx.receive = receive
        return (features * direction).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, direction, labels = ctx.saved_tensors
        ctx.receive(labels, grad[..., None] * features)
        back = (grad[..., None] * direction).to(features.dtype) if ctx.needs_input_grad[0] else None
        return back, None, None, None, None, None, grad.new_zeros(())
