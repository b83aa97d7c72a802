r"""The unhinged loss, from logits and from features  [eq: unhinged].

Everything here is linear in the logits. For an effective target :math:`t` (one-hot or probabilities, smoothed, times
the class weights) the loss of an example is

.. math:: \gamma \Big(\sum_c t_c\Big)\Big(\sum_c z_c\Big) - (1+\gamma) \sum_c t_c z_c,

two sums of logits; with a prior :math:`q` it is :math:`(\sum_c t_c)\,q^\top z - \sum_c t_c z_c`. From features, the
second factor is :math:`h^\top \sum_c w_c` (or :math:`h^\top \sum_c q_c w_c`), one product per example whatever the
number of classes: the logits never need to exist.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from unhinge.nn.contract import (
    check_class_weight,
    check_features,
    check_prior,
    check_prior_mean,
    check_reduction,
    check_smoothing,
    class_axis,
    is_soft,
    refuse_ignoring,
    resolve_gamma,
)
from unhinge.nn.lookup import true_logit
from unhinge.nn.precision import full_precision, outcome_dtype, widened
from unhinge.nn.reduction import example_weights, reduce_labelled, reduce_loss

__all__ = ["prior_row", "row_sum", "unhinged_loss", "unhinged_loss_from_features"]


def unhinged_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    dim: int | None = None,
    prior: Tensor | None = None,
) -> Tensor:
    r"""The loss :math:`-z_y + \gamma\sum_{j\ne y} z_j`, called as :func:`torch.nn.functional.cross_entropy` is.

    It is :math:`\sum_c q_c\,\ell_c(z)` with :math:`\ell_c(z) = -(1+\gamma) z_c + \gamma\sum_j z_j` in the place of
    :math:`-\log\mathrm{softmax}(z)_c`; class weights, ignored examples, smoothing and the denominator of the mean are
    exactly those of cross-entropy.

    **It is unbounded below**: scaling the logits scales the loss, so something else has to hold their size. See
    :class:`~unhinge.nn.UnhingedLoss` for what to pair it with.

    Arguments:
        logits: Scores :math:`z`, shape :math:`(C)`, :math:`(n, C)` or :math:`(n, C, d_1, \dots)` as in cross-entropy,
            or :math:`(*, C)`. Beyond two axes the classes are axis 1 if the shapes of `target` and `weight` allow it
            (so probabilities, whose shape fits both readings, mean axis 1 unless `weight` says otherwise), else the
            last axis.
        target: Class indices, the shape of `logits` without the class axis, in any integer dtype; or probabilities in a
            floating dtype, the shape of `logits`.
        gamma: Weight :math:`\gamma \ge 0` of the other logits; `None` means :math:`1/(C-1)`.
        weight: Weight of each class, shape :math:`(C)`; see :func:`~unhinge.nn.class_weights`.
        ignore_index: Examples with this label count for nothing. For class indices only.
        reduction: ``"mean"`` divides by the total weight of the examples (class indices) or by their number
            (probabilities); ``"sum"``; ``"none"``.
        label_smoothing: Share of the target that is spread evenly over all classes, in :math:`[0, 1]`.
        dim: The class axis, where the rule above is not what is meant.
        prior: A vector q of shape :math:`(C)` that sums to 1: the loss is then :math:`-z_y + q^\top z`. It excludes
            `gamma`. With the class frequencies it is what logit-adjusted cross-entropy does at small logits.

    Half precision logits are summed in float32. The result has their dtype, or float32 under autocast.

    Example:
        >>> unhinged_loss(torch.tensor([[3.0, 1.0, 1.0]]), torch.tensor([0]))
        tensor(-2.)
        >>> unhinged_loss(
        ...     torch.tensor([[3.0, 1.0, 1.0]]), torch.tensor([[0.0, 0.5, 0.5]])
        ... )
        tensor(1.)
    """
    check_reduction(reduction)
    check_smoothing(label_smoothing)
    axis = class_axis(logits, target, weight, dim)
    soft = is_soft(target)
    num_classes = logits.shape[axis]
    common, own = _coefficients(gamma, prior, num_classes)
    dtype = widened(logits.dtype, target.dtype) if soft else widened(logits.dtype)
    aside = [1] * (logits.ndim - axis - 1)
    if prior is None:
        total = logits.sum(axis, dtype=dtype)
    else:
        total = (logits * prior.to(dtype).reshape(-1, *aside)).sum(axis)
    across = None if weight is None else weight.to(dtype).reshape(-1, *aside)

    if soft:
        refuse_ignoring(ignore_index)
        aim = _smoothed(target.to(dtype), label_smoothing, num_classes)
        aim = aim if across is None else aim * across
        loss = common * aim.sum(axis) * total - own * (aim * logits).sum(axis)
        result = reduce_loss(loss, reduction, total.numel())
    else:
        labels = target.to(torch.int64)
        kept = labels != ignore_index
        picked = true_logit(logits, labels, axis, ignore_index).to(dtype)
        average = None
        if label_smoothing > 0:
            plain = total if prior is None else logits.sum(axis, dtype=dtype)
            average = (plain if across is None else (logits * across).sum(axis)) / num_classes
        weights = example_weights(weight, labels, kept, dtype)
        loss = _hard_loss(picked, total, average, weights, weight, (common, own), label_smoothing)
        result = reduce_labelled(loss, kept, weights, reduction)
    given = torch.promote_types(logits.dtype, target.dtype) if soft else logits.dtype
    return result.to(outcome_dtype(given, logits.device))


def unhinged_loss_from_features(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    gamma: float | Tensor | None = None,
    bias: Tensor | None = None,
    class_weight: Tensor | None = None,
    weight_sum: Tensor | None = None,
    reduction: str = "mean",
    *,
    bias_sum: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    prior: Tensor | None = None,
    prior_mean: Tensor | None = None,
) -> Tensor:
    r"""The unhinged loss of ``features @ weight.T + bias``, without these logits  [eq: many-classes].

    .. math:: L = \gamma\, h^\top \sum_c w_c - (1+\gamma)\, h^\top w_y + \text{the same of the biases}.

    Value and gradients are those of :func:`unhinged_loss` on the logits. The cost is that of two inner products per
    example, :math:`O(np)` forward and backward, plus one sum over the rows of `weight`, which `weight_sum` saves: with
    a fixed weight nothing then depends on the number of classes. A weight that needs gradients gets its full
    :math:`(C, p)` gradient in the backward pass, with or without `weight_sum`.

    Arguments:
        features: :math:`h`, shape :math:`(*, p)`.
        weight: Prototypes :math:`w_c`, shape :math:`(C, p)`.
        target: Class indices of shape :math:`(*)`, in an integer dtype; or probabilities :math:`(*, C)`, which cost the
            product ``target @ weight``.
        gamma: :math:`\gamma \ge 0`; `None` means :math:`1/(C-1)`.
        bias: Shape :math:`(C)`.
        class_weight: Weight of the examples of each class, shape :math:`(C)`.
        weight_sum: The sum of the rows of `weight`, shape :math:`(p)`: ``weight.sum(0)``, computed once. It is trusted
            to be up to date; after `weight` has changed, compute it again.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as in :func:`unhinged_loss`.
        bias_sum: The sum of `bias`, computed once.
        ignore_index: Examples with this label count for nothing. For class indices only.
        label_smoothing: As in :func:`unhinged_loss`. Together with `class_weight` it costs one weighted sum over the
            rows.
        prior: As in :func:`unhinged_loss`, shape :math:`(C)`; excludes `gamma`.
        prior_mean: The mean of the rows of `weight` under the prior, shape :math:`(p)`: ``prior @ weight``, computed
            once. It is trusted as `weight_sum` is, and takes its place.

    Example:
        >>> features = torch.tensor([[1.0, 2.0]])
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
        >>> unhinged_loss_from_features(
        ...     features, weight, torch.tensor([1]), weight_sum=weight.sum(0)
        ... )
        tensor(-3.)
        >>> unhinged_loss(features @ weight.T, torch.tensor([1]))
        tensor(-3.)
    """
    check_reduction(reduction)
    check_smoothing(label_smoothing)
    soft = check_features(features, weight, target, weight_sum=weight_sum, bias=bias, bias_sum=bias_sum)
    num_classes = weight.shape[0]
    check_class_weight(class_weight, num_classes, "class_weight")
    common, own = _coefficients(gamma, prior, num_classes)
    check_prior_mean(prior, prior_mean, weight)
    dtype = widened(features.dtype, weight.dtype, *([target.dtype] if soft else []))
    with full_precision(features.device):
        h = features.to(dtype)
        if prior is None:
            total = h @ row_sum(weight, weight_sum, dtype)
            if bias is not None:
                total = total + row_sum(bias, bias_sum, dtype)
        else:
            total = h @ prior_row(weight, prior, prior_mean, dtype)
            if bias is not None:
                total = total + prior.to(dtype) @ bias.to(dtype)

        if soft:
            refuse_ignoring(ignore_index)
            aim = _smoothed(target.to(dtype), label_smoothing, num_classes)
            aim = aim if class_weight is None else aim * class_weight.to(dtype)
            true = (h * (aim @ weight.to(dtype))).sum(-1)
            if bias is not None:
                true = true + aim @ bias.to(dtype)
            loss = common * aim.sum(-1) * total - own * true
            result = reduce_loss(loss, reduction, total.numel())
        else:
            labels = target.to(torch.int64)
            kept = labels != ignore_index
            index = torch.where(kept, labels, 0)
            picked = (h * F.embedding(index, weight)).sum(-1)
            if bias is not None:
                picked = picked + bias[index]
            average = None
            if label_smoothing > 0 and class_weight is None:
                plain = total
                if prior is not None:
                    plain = h @ row_sum(weight, weight_sum, dtype)
                    plain = plain if bias is None else plain + row_sum(bias, bias_sum, dtype)
                average = plain / num_classes
            elif label_smoothing > 0 and class_weight is not None:
                shares = class_weight.to(dtype) / num_classes
                average = h @ (shares @ weight.to(dtype))
                if bias is not None:
                    average = average + shares @ bias.to(dtype)
            weights = example_weights(class_weight, labels, kept, dtype)
            loss = _hard_loss(picked, total, average, weights, class_weight, (common, own), label_smoothing)
            result = reduce_labelled(loss, kept, weights, reduction)
    return result.to(outcome_dtype(torch.promote_types(features.dtype, weight.dtype), features.device))


def row_sum(rows: Tensor, cached: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``rows.sum(0)`` in `dtype`, or the cached value of it, with the gradient of the sum either way."""
    if cached is None or _moves(rows):
        return rows.sum(0, dtype=dtype)
    if rows.requires_grad and torch.is_grad_enabled() and not cached.requires_grad:
        cached = _CachedSum.apply(rows, cached)  # type: ignore[no-untyped-call]
    return cached.to(dtype)


def prior_row(rows: Tensor, prior: Tensor, cached: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``prior @ rows`` in `dtype`, or the cached value of it, with the gradient of the product either way."""
    if cached is None or _moves(rows):
        return prior.to(dtype) @ rows.to(dtype)
    if rows.requires_grad and torch.is_grad_enabled() and not cached.requires_grad:
        cached = _CachedMean.apply(rows, prior, cached)  # type: ignore[no-untyped-call]
    return cached.to(dtype)


def _moves(rows: Tensor) -> bool:
    """Whether they carry a derivative in forward mode (`torch.func.jvp`, `jacfwd`), which a cached value has not."""
    return unpack_dual(rows).tangent is not None


class _CachedMean(torch.autograd.Function):
    """The cached mean under the prior as value, and to each row the gradient it would have had from the mean itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, prior: Tensor, cached: Tensor) -> Tensor:
        return cached.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (prior,) = ctx.saved_tensors
        return (prior.to(grads[0])[:, None] * grads[0]).to(ctx.dtype), None, None


class _CachedSum(torch.autograd.Function):
    """The cached sum as value, and to each row the gradient it would have had from the sum itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, cached: Tensor) -> Tensor:
        return cached.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.shape, ctx.dtype = inputs[0].shape, inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].to(ctx.dtype).expand(ctx.shape), None


def _hard_loss(
    picked: Tensor,
    total: Tensor,
    average: Tensor | None,
    weights: Tensor | None,
    class_weight: Tensor | None,
    coefficients: tuple[float | Tensor, float | Tensor],
    label_smoothing: float,
) -> Tensor:
    r"""Loss of each example from its logit :math:`z_y`, the sum of its logits (weighted by the prior, if there is one)
    and, where labels are smoothed, the average over the classes of the logits times the class weights."""
    common, own = coefficients
    if weights is None and average is None:
        return common * total - own * picked
    mass: Tensor | float = (1 - label_smoothing) * (1.0 if weights is None else weights)
    true = mass * picked
    if average is not None:
        true = true + label_smoothing * average
        mass = mass + label_smoothing * (1.0 if class_weight is None else class_weight.to(total.dtype).mean())
    return common * mass * total - own * true


def _coefficients(
    gamma: float | Tensor | None, prior: Tensor | None, num_classes: int
) -> tuple[float | Tensor, float | Tensor]:
    r"""Of the sum of all logits and of the true one: :math:`\gamma` and :math:`1+\gamma`, or 1 and 1 with a prior."""
    check_prior(prior, num_classes, gamma)
    if prior is not None:
        return 1.0, 1.0
    value = resolve_gamma(gamma, num_classes)
    return value, 1 + value


def _smoothed(target: Tensor, label_smoothing: float, num_classes: int) -> Tensor:
    return target if label_smoothing == 0 else (1 - label_smoothing) * target + label_smoothing / num_classes
