r"""Scores for telling known inputs from unknown ones, one function each, as their papers define them  [eq: ood-scores].

A higher score means in-distribution, throughout. Features :math:`h` have shape :math:`(n, p)`, logits
:math:`z = Wh + b` shape :math:`(n, C)`, every score shape :math:`(n,)`; all are differentiable. Where a published
implementation differs from its paper, the docstring says how: such differences change numbers, and sometimes the order
of examples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unhinge.nn.angles import unit_rows
from unhinge.theory.numerics import safe_norm

__all__ = [
    "energy_score",
    "fdbd_score",
    "knn_score",
    "mahalanobis_score",
    "nci_score",
    "neco_score",
    "norm_score",
    "vim_score",
]


def energy_score(logits: Tensor) -> Tensor:
    r"""The negative energy :math:`\log\sum_c e^{z_c}` (Liu et al., 2020).

    Example:
        >>> energy_score(torch.zeros(1, 4))
        tensor([1.3863])
    """
    return logits.logsumexp(1)


def norm_score(features: Tensor) -> Tensor:
    r"""The norm :math:`\|h\|_2`: features of unknown inputs tend to be shorter.

    Example:
        >>> norm_score(torch.tensor([[3.0, 4.0]]))
        tensor([5.])
    """
    return safe_norm(features, 1)


def mahalanobis_score(features: Tensor, class_means: Tensor, whitening: Tensor) -> Tensor:
    r""":math:`\max_c -(h - \mu_c)^\top\Sigma^+(h - \mu_c)` with one covariance for all classes (Lee et al., 2018).

    OpenOOD has it with a factor 1/2, which changes no order.

    Arguments:
        features: :math:`h`, shape :math:`(n, p)`.
        class_means: :math:`\mu_c`, shape :math:`(K, p)`.
        whitening: :math:`A` of shape :math:`(p, r)` with :math:`AA^\top = \Sigma^+`. Where the covariance is
            degenerate, this is its pseudo-inverse: directions without any variance count for nothing.

    Example:
        >>> mahalanobis_score(
        ...     torch.tensor([[1.0, 2.0]]),
        ...     torch.tensor([[0.0, 0.0], [1.0, 0.0]]),
        ...     torch.eye(2),
        ... )
        tensor([-4.])
    """
    # From a point amid the class means, so that the squares cancel least.
    middle = class_means.mean(0)
    x, centers = (features - middle) @ whitening, (class_means - middle) @ whitening
    squares = x.square().sum(1, keepdim=True) - 2 * x @ centers.mT + centers.square().sum(1)
    # The nearest class by the expanded square, its distance by the difference itself.
    nearest = squares.detach().argmin(1)
    return -(x - centers[nearest]).square().sum(1)


def neco_score(features: Tensor, basis: Tensor) -> Tensor:
    r""":math:`\|Ph\| / \|h\|`, the share of a feature in the subspace of the classes (Ben Ammar et al., 2024, eq. 6).

    The authors' code standardizes the features first, multiplies by the largest logit for all networks but ResNets, and
    for some transformers divides the projection of the standardized feature by the norm of the plain one. Here is the
    formula of the paper.

    Arguments:
        features: :math:`h`, shape :math:`(n, p)`.
        basis: Orthonormal columns that span the subspace, shape :math:`(p, d)`: the leading principal components of
            the training features, or the span of a fixed simplex head.

    Example:
        >>> neco_score(
        ...     torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[1.0], [0.0]])
        ... )
        tensor([0.6000, 0.0000])
    """
    return torch.linalg.vector_norm(unit_rows(features) @ basis, dim=1)


def nci_score(features: Tensor, logits: Tensor, weight: Tensor, global_mean: Tensor, strength: float) -> Tensor:
    r""":math:`\frac{w_{\hat y}^\top(h - \mu)}{\|h - \mu\|} + \alpha\|h\|_1` (Liu and Qin, 2025): nearness to the
    prototype of the predicted class :math:`\hat y`, and a filter by the norm.

    Arguments:
        features: :math:`h`, shape :math:`(n, p)`.
        logits: They decide :math:`\hat y`, shape :math:`(n, C)`.
        weight: Prototypes :math:`W`, shape :math:`(C, p)`.
        global_mean: :math:`\mu`, mean of the training features, shape :math:`(p,)`.
        strength: :math:`\alpha \ge 0`.

    Example:
        >>> h, eye = torch.tensor([[2.0, 0.0]]), torch.eye(2)
        >>> nci_score(h, h @ eye, eye, torch.zeros(2), strength=0.5)
        tensor([2.])
    """
    along = (weight[logits.argmax(1)] * unit_rows(features - global_mean)).sum(1)
    return along + strength * features.abs().sum(1)


def fdbd_score(
    features: Tensor, logits: Tensor, row_distances: Tensor, global_mean: Tensor, *, largest: float | None = None
) -> Tensor:
    r"""Mean distance to the decision boundaries, over the distance from the training mean (Liu and Qin, 2024):

    .. math:: \frac{1}{C-1}\sum_{c \ne \hat y}\frac{z_{\hat y} - z_c}{\|w_{\hat y} - w_c\|} \Big/ \|h - \mu\|

    OpenOOD sums over the classes instead of taking the mean, and chooses on validation data whether to divide by
    :math:`\|h\|` instead. Here is the formula of the paper. Two prototypes that coincide have no boundary between them
    and are left out.

    Arguments:
        features: :math:`h`, shape :math:`(n, p)`.
        logits: :math:`z`, shape :math:`(n, C)`.
        row_distances: :math:`\|w_i - w_j\|`, shape :math:`(C, C)`.
        global_mean: :math:`\mu`, shape :math:`(p,)`.
        largest: What a feature at the mean itself gets, where the quotient is infinite; by default the largest number
            of the dtype.

    Example:
        >>> h, eye = torch.tensor([[2.0, 0.0]]), torch.eye(2)
        >>> fdbd_score(
        ...     h, h @ eye, torch.tensor([[0.0, 2**0.5], [2**0.5, 0.0]]), torch.zeros(2)
        ... )
        tensor([0.7071])
    """
    top, place = logits.max(1, keepdim=True)
    lengths = row_distances[place[:, 0]]
    apart = lengths > 0
    boundaries = torch.where(apart, (top - logits) / torch.where(apart, lengths, 1.0), 0.0)
    mean = boundaries.sum(1) / apart.sum(1).clamp(min=1)
    away = safe_norm(features - global_mean, 1)
    most = torch.finfo(features.dtype).max if largest is None else largest
    return torch.where(away > 0, mean / torch.where(away > 0, away, 1.0), most).clamp(max=most)


def vim_score(features: Tensor, logits: Tensor, origin: Tensor, residual_basis: Tensor, scale: float) -> Tensor:
    r"""Energy minus a virtual logit, :math:`\log\sum_c e^{z_c} - \alpha\|N^\top(h - o)\|` (Wang et al., 2022).

    Arguments:
        features: :math:`h`, shape :math:`(n, p)`.
        logits: :math:`z`, shape :math:`(n, C)`.
        origin: :math:`o = -W^+b`, shape :math:`(p,)`.
        residual_basis: :math:`N`, the eigenvectors of :math:`(H - o)^\top(H - o)` beyond the leading :math:`D`,
            shape :math:`(p, p - D)`.
        scale: :math:`\alpha`, mean of the largest logit over mean of the residual norm, of the training examples.

    Example:
        >>> h = torch.tensor([[1.0, 3.0]])
        >>> vim_score(
        ...     h,
        ...     torch.zeros(1, 2),
        ...     torch.zeros(2),
        ...     torch.tensor([[0.0], [1.0]]),
        ...     scale=0.5,
        ... )
        tensor([-0.8069])
    """
    return energy_score(logits) - scale * safe_norm((features - origin) @ residual_basis, 1)


def knn_score(features: Tensor, bank: Tensor, neighbors: int) -> Tensor:
    r"""Minus the distance to the k-th nearest training feature, all of length 1 (Sun et al., 2022).

    OpenOOD returns minus the squared distance, and adds 1e-10 to each entry of the unit vectors; neither changes the
    order beyond rounding.

    Arguments:
        features: :math:`h`, shape :math:`(n, p)`.
        bank: Training features of length 1, shape :math:`(m, p)`.
        neighbors: :math:`k`, at most :math:`m`.

    Example:
        >>> knn_score(torch.tensor([[2.0, 0.0]]), torch.eye(2), neighbors=2)
        tensor([-1.4142])
    """
    units = unit_rows(features)
    # nearest by the expanded square, in which rows of zeros, of no length, count as what they are
    nearness = 2 * units.detach() @ bank.mT - (bank != 0).any(1).to(units)
    place = nearness.topk(neighbors, dim=1).indices[:, -1]
    return -torch.linalg.vector_norm(units - bank[place], dim=1)
