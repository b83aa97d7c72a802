r"""Noisy labels in expectation are soft labels  [eq: label-noise].

The unhinged loss is linear in the target, so training on labels redrawn at every step has the mean of training on
their probabilities. Symmetric noise of rate :math:`\rho` on balanced classes multiplies the leading singular value by
:math:`f = 1 - \rho\frac{C}{C-1}` and leaves the other one alone; at :math:`\gamma = \frac1{C-1}` that other one is zero
and noise only slows time down.

One *fixed* noisy labelling is a different problem, the one whose (imbalanced) hard labels are the noisy ones: free
features follow whatever label they are given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unhinge.theory.linear.spectrum import as_gamma
from unhinge.theory.types import Matrix, Number, Vector
from unhinge.theory.validation import as_tensor, as_tensors, check_labels, check_num_classes, check_shape, scalar

__all__ = ["class_conditional_noise", "slow_down", "smooth_labels", "symmetric_noise", "tolerated_noise"]


def symmetric_noise(labels: Vector, num_classes: int, rate: Number) -> Tensor:
    r"""Each label kept with probability :math:`1 - \rho`, else any *other* class alike, shape :math:`(n, C)` float64.

    Arguments:
        labels: True classes :math:`(n,)`.
        num_classes: :math:`C`.
        rate: :math:`\rho`, the probability of a wrong label.

    Example:
        >>> symmetric_noise(torch.tensor([0, 2]), num_classes=3, rate=0.2)
        tensor([[0.8000, 0.1000, 0.1000],
                [0.1000, 0.1000, 0.8000]], dtype=torch.float64)
    """
    share = _probability("rate", rate)
    others = share / (check_num_classes(num_classes) - 1)
    return _spread(labels, num_classes, 1 - share, others)


def smooth_labels(labels: Vector, num_classes: int, epsilon: Number) -> Tensor:
    r"""Label smoothing, :math:`(1 - \varepsilon)` on the true class plus :math:`\varepsilon / C` on every class.

    The same as symmetric noise of rate :math:`\varepsilon \frac{C-1}{C}`, whose slow-down is :math:`1 - \varepsilon`.

    Example:
        >>> smooth_labels(torch.tensor([1]), num_classes=2, epsilon=0.1)
        tensor([[0.0500, 0.9500]], dtype=torch.float64)
    """
    share = _probability("epsilon", epsilon)
    others = share / check_num_classes(num_classes)
    return _spread(labels, num_classes, 1 - share + others, others)


def class_conditional_noise(labels: Vector, transition: Matrix) -> Tensor:
    r"""Labels of class i become class j with probability :math:`T_{ij}`, shape :math:`(n, C)`, dtype of `transition`.

    Arguments:
        labels: True classes :math:`(n,)`.
        transition: :math:`T`, shape :math:`(C, C)`, rows that sum to 1.

    Example:
        >>> class_conditional_noise(
        ...     torch.tensor([1, 0, 1]), torch.tensor([[1.0, 0.0], [0.25, 0.75]])
        ... )
        tensor([[0.2500, 0.7500],
                [1.0000, 0.0000],
                [0.2500, 0.7500]])
    """
    chances = check_shape("transition", as_tensors({"transition": transition})[0], (None, None))
    num_classes = chances.shape[0]
    if chances.shape[1] != num_classes:
        raise ValueError(
            f"transition must be square, one row and one column per class, got {tuple(chances.shape)}. "
            "Entry (i, j) is the probability that an example of class i is labelled j."
        )
    drift = (chances.sum(1, dtype=torch.float64) - 1).abs().max().item()
    if chances.min() < 0 or drift > 16 * num_classes * torch.finfo(chances.dtype).eps:
        raise ValueError(
            f"each row of transition must be a distribution, but the smallest entry is {chances.min().item():.3g} "
            f"and one row's sum is off by {drift:.3g}. Divide each row by its sum; if its columns sum to 1, transpose "
            f"it."
        )
    return chances[_labels(labels, num_classes).to(chances.device)]


def slow_down(num_classes: int, rate: Number) -> float:
    r"""The factor :math:`f = 1 - \rho \frac{C}{C-1}` of the leading singular value under symmetric noise
    [eq: label-noise].

    At :math:`\gamma = \frac1{C-1}` the noisy path at time t is the clean path at time f t (decays divided by f). Zero
    at :math:`\rho = \frac{C-1}{C}`, where labels say nothing, and negative beyond, where they lie.

    Arguments:
        num_classes: :math:`C`.
        rate: :math:`\rho`, the probability that a label is wrong; all wrong ones are equally likely.

    Example:
        >>> slow_down(num_classes=10, rate=0.45)
        0.5
    """
    classes = check_num_classes(num_classes)
    return 1 - _probability("rate", rate) * classes / (classes - 1)


def tolerated_noise(num_classes: int, gamma: Number | None = None) -> float:
    r"""The rate of symmetric noise below which balanced classes keep their clean limit  [eq: tolerated-noise].

    :math:`\rho < \frac{C-1}{C}\big(1 - \frac{|1+\gamma-\gamma C|}{1+\gamma}\big)`: the mode of the class differences
    must keep the larger singular value. Zero where it does not have it even without noise, :math:`\gamma = 0` or
    :math:`\gamma \ge \frac2{C-2}`.

    Arguments:
        num_classes: :math:`C`.
        gamma: :math:`\gamma \ge 0`; `None` means :math:`1/(C-1)`.

    Example:
        >>> tolerated_noise(num_classes=10), tolerated_noise(num_classes=10, gamma=0.0)
        (0.9, 0.0)
    """
    classes = check_num_classes(num_classes)
    value = scalar("gamma", 1 / (classes - 1) if gamma is None else gamma).detach()
    ratio = as_gamma(value, classes).nu.abs().item()
    return max(0.0, (classes - 1) / classes * (1 - ratio))


def _spread(labels: Vector, num_classes: int, true: float, others: float) -> Tensor:
    checked = _labels(labels, num_classes)
    rows = torch.full((len(checked), num_classes), others, dtype=torch.float64, device=checked.device)
    return rows.scatter_(1, checked[:, None], true)


def _labels(labels: Vector, num_classes: int) -> Tensor:
    tensor = as_tensor("labels", labels)
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(
            f"labels must be integers of shape (n,), got {tensor.dtype} of shape {tuple(tensor.shape)}. Noise acts on "
            "hard labels only."
        )
    return check_labels(tensor, num_classes)


def _probability(name: str, value: Number) -> float:
    share = scalar(name, value).item()
    if share > 1:
        raise ValueError(f"{name} must lie in [0, 1], got {share:g}. It is a probability, not a percentage.")
    return share
