r"""Which examples a path classifies correctly, at any time, without building its state.

A logit is the product of a feature and a prototype; both are sums over the groups of modes, and the feature has a part
beside, the residual that the modes do not see. Prototypes enter minus their mean and at their own scale: their common
part may be :math:`10^{16}` times larger than the differences that decide  [eq: centered-logits].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unhinge.theory.keeping import kept
from unhinge.theory.linear.blocks import Blocks
from unhinge.theory.linear.spectrum import Spectrum
from unhinge.theory.targets import Targets

__all__ = ["Decisions"]

# Numbers held at once while examples are classified: few enough to stay in the processor's cache, where the additions
# of one time are several times faster than from memory.
IN_CACHE = 1 << 16

# With so many groups or fewer, fixed products of all their parts are kept: 2 (n, C) matrices for each that reads, which
# must cost less to add than the product of matrices that they replace.
FEW_GROUPS = 3


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """The start of a path in coordinates of q dimensions, ready to be classified; float64 on the CPU, no gradients."""

    spectrum: Spectrum
    targets: Targets
    x: Tensor  # (rows, q), coordinates of the features
    y: Tensor  # (rows, q), coordinates of the prototypes
    aside: Tensor  # (C or 0, q), prototypes outside all modes
    residuals: Tensor  # (n, q), what the modes do not see of each feature

    def correct(self, blocks: Blocks, biases: Tensor | None, some: Tensor | None = None) -> Tensor:
        """Whether the largest logit of each example is its label's, (m, n) bool, from the matrices at m times.

        Arguments:
            some: Places of the examples asked about; None asks about all.
        """
        own, head = self._head(blocks)
        weight = None if self._fixed else self._weight(head)
        between = self._between(blocks, head, weight)
        keep, offsets = blocks.relative()[:, -1, 0, 0], None
        if biases is not None:
            # The logits carry exp(log); whichever of logits and biases is the larger stays of order one.
            log = 2 * blocks.lead + own
            shrink = torch.exp(log.clamp(max=0))
            between, keep = shrink[:, None, None] * between, shrink * keep
            offsets = torch.exp(-log.clamp(min=0))[:, None] * biases
        targets = self.targets if some is None else self.targets.part(some)
        labels, beside = targets.labels.cpu(), self._beside(some)
        right = torch.empty(len(keep), len(labels), dtype=torch.bool)
        for piece in torch.arange(len(keep)).split(max(1, IN_CACHE // (len(labels) * between.shape[-1]))):
            # Classes before examples: one product of matrices for all times, and a maximum over rows.
            logits = targets.expand_columns(between[piece].mT)
            _add(logits, self._factors(keep[piece], head[piece], None if weight is None else weight[piece]), beside)
            if offsets is not None:
                logits += offsets[piece, :, None]
            right[piece] = _largest(logits, labels)
        return right

    # ---- prototypes, minus their mean and on their own scale ---------------------------------------------------------

    @kept
    def _read_out(self) -> tuple[Tensor, Tensor]:
        """How centered prototypes are read off the rows, (C, rows); and which groups have a part in them, (G,) bool."""
        read_out = self.spectrum.read_out().detach()
        reads = torch.zeros(len(self.spectrum.sigma), dtype=torch.bool)
        present = (self.x.abs() + self.y.abs()).amax(1) > 0
        reads[self.spectrum.group[(read_out.abs().amax(0) > 0) & present]] = True
        reads[-1] = len(self.aside) > 0
        return read_out, reads

    def _head(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """The logarithmic scale of the prototypes beyond `lead`, (m,), and the matrices on that scale, (m, G, 2, 2)."""
        reads = self._read_out[1]
        own = torch.where(reads, blocks.log, -torch.inf).amax(-1)
        own = torch.where(torch.isfinite(own), own, 0.0)
        factor = torch.exp(torch.where(reads, blocks.log - own[:, None], -torch.inf))
        return own, torch.where(reads[:, None, None], factor[..., None, None] * blocks.matrix, 0.0)

    def _weight(self, head: Tensor) -> Tensor:
        """The centered prototypes, (m, C, q)."""
        per_row = head[:, self.spectrum.group, 1, :]
        weight = self._read_out[0] @ (per_row[..., :1] * self.x + per_row[..., 1:] * self.y)
        if len(self.aside):
            weight = weight + head[:, -1, 1, 1, None, None] * (self.aside - self.aside.mean(0))
        return weight

    # ---- logits ------------------------------------------------------------------------------------------------------

    @kept
    def _fixed(self) -> tuple[Tensor, Tensor, Tensor] | None:
        r"""Products of all parts, where few groups make them up: time only multiplies these by scalars.

        Within a group time multiplies all rows by the same two scalars, so the centered prototypes are
        :math:`\sum_g a_g X_g + b_g Y_g` and the reduced features likewise. Balanced classes have one group that reads:
        two additions per logit instead of a product of matrices.

        Returns:
            The groups that read (L,), products of the modes' features with their prototypes (2 K, 2 L, r, C), and of
            the residuals with them (2 L, C, n).
        """
        read_out, reads = self._read_out
        groups = reads[:-1].nonzero().flatten()
        all_groups = torch.arange(len(reads) - 1)
        if len(self.aside) or len(all_groups) > FEW_GROUPS or 2 * len(groups) > min(4, self.x.shape[1]):
            return None
        none = torch.zeros_like(self.x)
        sides = (self.x, self.y)
        masks = (self.spectrum.group == all_groups[:, None])[..., None]  # (K, rows, 1)
        features = [self.spectrum.synthesize(mask * side, none)[0] for mask in masks for side in sides]
        prototypes = [read_out @ (mask * side) for mask in masks[groups] for side in sides]
        if not prototypes:  # nothing tells the classes apart: one zero in the place of each logit
            return None
        heads = torch.stack(prototypes).mT  # (2 L, q, C)
        return groups, torch.stack([rows @ heads for rows in features]), heads.mT @ self.residuals.mT

    def _between(self, blocks: Blocks, head: Tensor, weight: Tensor | None) -> Tensor:
        """Logits of the reduced features, (m, r, C)."""
        matrix = blocks.relative()
        if weight is None:
            assert self._fixed is not None
            groups, products, _ = self._fixed
            features = matrix[:, :-1, 0, :].flatten(1)
            return torch.einsum("mk,ml,klrc->mrc", features, head[:, groups, 1, :].flatten(1), products)
        per_row = matrix[:, self.spectrum.group, 0, :]
        rows = per_row[..., :1] * self.x + per_row[..., 1:] * self.y
        return self.spectrum.synthesize(rows, torch.zeros_like(self.y))[0] @ weight.mT

    def _beside(self, some: Tensor | None) -> Tensor:
        """What :meth:`_factors` are multiplied by for the logits of what the modes do not see: (k, C n) or (q, n)."""
        if self._fixed is None:
            return (self.residuals if some is None else self.residuals[some]).mT
        products = self._fixed[2]
        return (products if some is None else products[..., some]).flatten(1)

    def _factors(self, keep: Tensor, head: Tensor, weight: Tensor | None) -> Tensor:
        """What changes of these logits, which fade as `keep` (m,): (m, k), or (m C, q)."""
        if weight is not None:
            return (keep[:, None, None] * weight).flatten(0, 1)
        assert self._fixed is not None
        return (keep[:, None, None] * head[:, self._fixed[0], 1, :]).flatten(1)


def _add(logits: Tensor, factors: Tensor, beside: Tensor) -> None:
    """Add factors @ beside to logits (m, C, n) in place."""
    logits.view(len(factors), beside.shape[1]).addmm_(factors, beside)


def _largest(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the logit of the label is the largest, of equal ones the first: (m, n) bool, from logits (m, C, n), which
    are used up. A maximum over rows is many times faster than the place of it."""
    place = labels.expand(len(logits), 1, -1)
    own = logits.gather(1, place)[:, 0]
    best = logits.scatter_(1, place, -torch.inf).amax(1)  # of the others
    right = own > best
    tied = own == best
    if bool(tied.any()):
        times, examples = tied.nonzero().unbind(1)
        first = (logits[times, :, examples] == own[tied][:, None]).int().argmax(1)
        right[tied] = labels[examples] < first
    return right
