r"""Neural-collapse measures of class means and prototypes  [eq: collapse].

Works on any coordinates of the feature space that keep inner products, so a path can ask it in a few dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unhinge.theory.state import State
from unhinge.theory.targets import class_sums

__all__ = ["collapse_measures", "collapse_of_state"]


def collapse_measures(
    means: Tensor, weight: Tensor, scatter: Tensor, within: Tensor | None = None
) -> dict[str, Tensor]:
    r"""The measures of Papyan, Han & Donoho (2020), all zero at collapse (`alignment`: one).

    Arguments:
        means: Class means :math:`\mu_c`, shape :math:`(*, C, q)`.
        weight: Prototypes :math:`w_c`, shape :math:`(*, C, q)`.
        scatter: :math:`\operatorname{tr}\Sigma_W`, the mean squared distance to the class mean, shape :math:`(*,)`.
        within: :math:`\Sigma_W` itself on the coordinates of `means`, shape :math:`(*, q, q)`, where known.

    Returns:
        ``nc1_ratio``: :math:`\operatorname{tr}\Sigma_W / \operatorname{tr}\Sigma_B`;
        ``nc1``: :math:`\operatorname{tr}(\Sigma_W\Sigma_B^\dagger) / C` (if `within` is given);
        ``nc2_norm_*``: standard deviation over mean of the norms of the centered class means and of the prototypes;
        ``nc2_angle_*``: mean over pairs of :math:`|\cos + 1/(C-1)|`;
        ``nc2_etf_*``: distance of the normalised Gram matrix from that of a simplex ETF;
        ``nc3``: :math:`\| W/\|W\| - \bar M/\|\bar M\| \|`, self-duality;
        ``alignment``: mean cosine of each prototype and its centered class mean.

    Example:
        >>> frame = torch.eye(3) - 1 / 3  # a simplex
        >>> measures = collapse_measures(frame, 2 * frame, scatter=torch.tensor(0.5))
        >>> {
        ...     name: round(value.item(), 4)
        ...     for name, value in measures.items()
        ...     if name in ("nc1_ratio", "alignment")
        ... }
        {'nc1_ratio': 0.75, 'alignment': 1.0}
    """
    num_classes = means.shape[-2]
    # All measures but the first two are ratios of lengths. Each family of rows is first divided by a power of two near
    # its largest entry, which rounds nothing: Gram matrices hold squares, and their norm fourth powers, so beyond 1e80
    # they would overflow and below 1e-80 vanish.
    centered = means - means.mean(-2, keepdim=True)
    centered, unit = _of_order_one(centered)
    weight, _ = _of_order_one(weight)
    between = centered.pow(2).sum((-2, -1)) / num_classes
    result = {"nc1_ratio": _ratio(scatter / unit / unit, between)}
    if within is not None:
        within = within / unit[..., None, None] / unit[..., None, None]
        covariance = centered.mT @ centered / num_classes
        # The covariance of C means has rank C - 1 at most; directions that are 1e-5 of the widest carry no class.
        inverse = torch.linalg.pinv(covariance, rtol=1e-10, hermitian=True)
        result["nc1"] = (inverse * within).sum((-2, -1)) / num_classes
    for name, rows in (("features", centered), ("weight", weight)):
        norms = rows.norm(dim=-1)
        mean = norms.mean(-1)
        spread = (norms - mean[..., None]).norm(dim=-1) / num_classes**0.5  # std() warns of an empty batch
        result[f"nc2_norm_{name}"] = _ratio(spread, mean)
        units = rows / torch.where(norms > 0, norms, 1.0)[..., None]
        cosine = units @ units.mT
        off = ~torch.eye(num_classes, dtype=torch.bool, device=rows.device)
        result[f"nc2_angle_{name}"] = (cosine + 1 / (num_classes - 1))[..., off].abs().mean(-1)
        gram = rows @ rows.mT
        frame = torch.eye(num_classes).to(rows) - 1 / num_classes
        size = gram.norm(dim=(-2, -1))[..., None, None]
        scaled = gram / torch.where(size > 0, size, 1.0)
        result[f"nc2_etf_{name}"] = (scaled - frame / frame.norm()).norm(dim=(-2, -1))
    result["nc3"] = (_unit(weight) - _unit(centered)).norm(dim=(-2, -1))
    dots = (weight * centered).sum(-1)
    result["alignment"] = _ratio(dots, weight.norm(dim=-1) * centered.norm(dim=-1)).mean(-1)
    return result


def collapse_of_state(state: State, labels: Tensor, num_classes: int) -> dict[str, Tensor]:
    """The measures of one state: features (n, p) and weight (C, p) with the class of each example, labels (n,).

    The measures do not depend on the scale, so the state is divided by its norm first: its squares then fit its dtype.
    """
    unit = state.normalized()
    features, weight = unit.features.double().cpu(), unit.weight.double().cpu()
    labels = labels.cpu()
    counts = torch.bincount(labels, minlength=num_classes).clamp(min=1)  # a class without examples has the mean zero
    means = class_sums(features, labels, num_classes) / counts[:, None]
    apart = features - means[labels]
    within = apart.mT @ apart / len(labels)
    return collapse_measures(means, weight, within.trace(), within)


def _of_order_one(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided by a power of two near their largest entry, and that power, shape :math:`(*,)`; zeros by 1."""
    largest = rows.detach().abs().amax((-2, -1)) if rows.numel() else rows.new_zeros(rows.shape[:-2])
    power = torch.frexp(torch.where(largest > 0, largest, 1.0)).exponent - 1
    unit = torch.ldexp(torch.ones_like(largest), power)
    return rows / unit[..., None, None], unit


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, with 0 for 0 / 0 and infinity for a positive number over 0."""
    safe = a / torch.where(b == 0, 1.0, b)
    return torch.where(b == 0, torch.where(a == 0, 0.0, torch.inf).to(safe), safe)


def _unit(rows: Tensor) -> Tensor:
    size = rows.norm(dim=(-2, -1), keepdim=True)
    return rows / torch.where(size > 0, size, 1.0)
