r"""Labels, prototypes and features as two coordinates per example, along and across its pull  [eq: sphere-planes].

The pull on example i is :math:`v_i = \frac1n\big((1+\gamma) w_{y_i} - \gamma\sum_j w_j\big)`, and :math:`h_i` never
leaves the plane of its start and :math:`v_i`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unhinge.theory.numerics import EPS, HUGE
from unhinge.theory.validation import check_labels, check_soft_labels

__all__ = ["Planes", "Pulls", "find_planes", "find_pulls"]

TINY = torch.finfo(torch.float64).tiny
BESIDE = 1e-100  # of the norm: what happens so near to the line is linear, and far above the smallest float


@dataclass(frozen=True)
class Pulls:
    r"""The targets :math:`v`: one row per class for integer labels, per example for soft ones."""

    units: Tensor  # (r, p) float64, v / |v|
    sizes: Tensor  # (r,), |v|
    noise: Tensor  # (r, p), what the entries of v are sums of, relative to |v|: their rounding
    rows: Tensor  # (n,), the row of each example
    labels: Tensor  # (n,), the class of each example


@dataclass(frozen=True)
class Planes:
    """Each example in the plane of its start and its target."""

    pulls: Pulls
    pull: Tensor  # (n,) float64, |v|
    along: Tensor  # (n,), coordinate along v
    across: Tensor  # (n,), coordinate across, not negative; exactly 0 on the line of v
    units: Tensor  # (n, p), unit vector across; 0 on the line of v
    lean: Tensor | None  # (n, p), on the line of v the part across: zero, but not its slope; None without gradients

    @property
    def norm(self) -> Tensor:
        return torch.hypot(self.along, self.across)

    @property
    def opposite(self) -> Tensor:
        return (self.across == 0) & (self.along < 0)

    def speed(self, power: int) -> Tensor:
        r""":math:`\alpha` per unit of learning rate, :math:`\|v\| / \|h\|^\nu`."""
        speed = self.pull / self.norm
        return (speed if power == 1 else speed / self.norm).clamp(max=HUGE)

    def part(self, examples: slice) -> Planes:
        """Some of the examples."""
        parts = self.pull, self.along, self.across, self.units, self.lean
        rows = (None if x is None else x[examples] for x in parts)
        pulls = replace(self.pulls, rows=self.pulls.rows[examples], labels=self.pulls.labels[examples])
        return Planes(pulls, *rows)  # type: ignore[arg-type]

    def beside_the_line(self) -> Planes:
        """The same, with examples on the line of v a little (`BESIDE`) off it."""
        return replace(self, across=torch.where(self.across == 0, BESIDE * self.norm, self.across))

    def assemble(self, along: Tensor, across: Tensor) -> Tensor:
        """Features from their coordinates (*, n), shape (*, n, p) float64."""
        return along[..., None] * self.pulls.units[self.pulls.rows] + across[..., None] * self.units


def find_pulls(target: Tensor, weight: Tensor, gamma: Tensor) -> Pulls:
    """The pull on each example, refused where there is none."""
    shares, rows, labels = _shares(target, len(weight))
    prototypes = weight.to("cpu", torch.float64)
    scale = prototypes.detach().abs().max().clamp(min=TINY)
    prototypes = prototypes / scale
    pull = (1 + gamma) * (shares @ prototypes) - gamma * prototypes.sum(0)
    with torch.no_grad():
        terms = (1 + gamma) * (shares.abs() @ prototypes.abs()) + gamma * prototypes.abs().sum(0)
    sizes = pull.norm(dim=1)
    # A pull that cancels leaves some eps of its terms: prototypes that are equal pull nowhere, whatever rounding says.
    zero = (sizes <= 8 * EPS * terms.norm(dim=1))[rows]
    if zero.any():
        example = int(zero.int().argmax())
        raise ValueError(
            f"example {example} (class {int(labels[example])}) has no target: (1 + gamma) w_y - gamma sum_j w_j is "
            f"zero, so no direction is better than another; {int(zero.sum())} of {len(rows)} examples are such. Pass "
            f"prototypes that differ from their mean, or another gamma."
        )
    safe = torch.where(sizes > 0, sizes, 1.0)[:, None]  # a class without examples may have no pull
    return Pulls(pull / safe, sizes * (scale / len(rows)), terms / safe.detach(), rows, labels)


def _shares(tensor: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Distributions over the classes, and which of them and which class each example has; classes may be empty."""
    if tensor.is_floating_point():
        shares = check_soft_labels(tensor, classes).detach().to("cpu", torch.float64)
        return shares, torch.arange(len(shares)), shares.argmax(1)
    if tensor.ndim != 1:
        raise ValueError(f"integer labels must have shape (n,), got {tuple(tensor.shape)}; soft labels are floats.")
    labels = check_labels(tensor, classes).cpu()
    return torch.eye(classes, dtype=torch.float64), labels, labels


def find_planes(features: Tensor, pulls: Pulls) -> Planes:
    """The coordinates of each feature; a zero one is refused."""
    h = features.to("cpu", torch.float64)
    scale = h.detach().abs().amax(1, keepdim=True)
    zero = scale[:, 0] == 0
    if zero.any():
        raise ValueError(
            f"feature {int(zero.int().argmax())} is zero, and a zero vector has no direction to normalize; "
            f"{int(zero.sum())} of {len(h)} are. Drop these examples, or start them anywhere else."
        )
    h = h / scale
    toward = pulls.units[pulls.rows]
    along = (h * toward).sum(1, keepdim=True)
    apart = h - along * toward
    again = (apart * toward).sum(1, keepdim=True)  # once more, or a start near the line of v would not end orthogonal
    along, apart = along + again, apart - again * toward
    # a residue of rounding in every entry is no residue: a start meant to be opposite is opposite
    eps = torch.finfo(features.dtype).eps
    rounding = 4 * eps * (h.detach().abs() + along.detach().abs() * pulls.noise[pulls.rows])
    straight = (apart.abs() <= rounding).all(1, keepdim=True)
    lean = torch.where(straight, apart - apart.detach(), 0.0) * scale if apart.requires_grad else None
    apart = torch.where(straight, 0.0, apart)
    across = apart.norm(dim=1, keepdim=True)
    units = apart / torch.where(across > 0, across, 1.0)
    return Planes(pulls, pulls.sizes[pulls.rows], (along * scale)[:, 0], (across * scale)[:, 0], units, lean)
