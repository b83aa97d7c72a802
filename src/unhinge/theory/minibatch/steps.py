r"""One step of minibatch SGD on second moments: by pairs of classes, or by seven numbers if they are balanced.

The mean over the batch of a product of two pulls needs only how often two examples are drawn together: `draws`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.targets import HardTargets, class_sums

__all__ = ["Moments", "Rule", "batch_draws", "class_pairs"]

# A tensor; or a numpy array or a number where no gradient is asked. A step is some sixty operations on small matrices,
# and each costs torch several times what it costs numpy. Both follow the same formulas.
Array: TypeAlias = Any


@dataclass(frozen=True)
class Moments:
    """Second moments as classes and pairs of classes see them, float64 on the CPU."""

    within: Array  # (C,), V: mean squared deviation from the class mean
    means: Array  # (C, C), R
    mixed: Array  # (C, C), G
    prototypes: Array  # (C, C), K

    def plain(self) -> Moments:
        """The same in numpy, without gradients."""
        return self._each(lambda part: part.detach().numpy())

    def size(self) -> float:
        """A positive size; the diagonals bound everything else."""
        return (self.within.sum() + self.means.trace() + self.prototypes.trace()).item() or 1.0

    def divided(self, size: float) -> Moments:
        return self._each(lambda part: part / size)

    def flatten(self) -> Tensor:
        return torch.cat([part.reshape(-1) for part in (self.within, self.means, self.mixed, self.prototypes)])

    @staticmethod
    def unflatten(flat: Tensor, classes: int) -> Moments:
        return Moments(flat[:classes], *flat[classes:].reshape(3, classes, classes))

    def _each(self, change: Callable[[Array], Array]) -> Moments:
        return Moments(change(self.within), change(self.means), change(self.mixed), change(self.prototypes))


@dataclass(frozen=True)
class Rule:
    """One step of SGD on the class-pair moments, linear in them  [eq: sgd-moments]."""

    counts: Array  # (C,) float64
    spread: Array  # (), 1 + gamma: the target matrix E on differences of classes
    common: Array  # (), 1 + gamma - gamma C: on their mean, exactly 0 at gamma = 1/(C-1)
    draws: tuple[float, float]  # n^2/B^2 times E[chi_i chi_j] and times E[chi_i^2] - E[chi_i chi_j]
    feature_decay: Array  # ()
    weight_decay: Array  # ()

    def plain(self) -> Rule:
        """The same in numpy, without gradients."""
        numbers = {name: getattr(self, name).item() for name in ("spread", "common", "feature_decay", "weight_decay")}
        return replace(self, counts=self.counts.numpy(), **numbers)

    def towards(self, rows: Array) -> Array:
        r""":math:`E X`, :math:`E = (1+\gamma) I - \gamma\mathbf 1\mathbf 1^\top`."""
        mean = rows.sum(0) / len(rows)
        return self.spread * (rows - mean) + self.common * mean

    def step(self, now: Moments, lr_features: Array, lr_weight: Array) -> Moments:
        counts, n = self.counts, self.counts.sum()
        library: Any = torch if isinstance(counts, Tensor) else np
        pair, extra = self.draws
        a1, a2 = 1 - lr_features * self.feature_decay, 1 - lr_weight * self.weight_decay
        e1, e2 = lr_features / n, lr_weight / n
        near = self.towards(now.prototypes)  # E K
        pulls = self.towards(near.T)  # E K E
        mixed = self.towards(now.mixed.T).T  # G E
        strength = pulls.diagonal()
        within = a1**2 * now.within + e1**2 * extra * (1 - 1 / counts) * strength
        means = a1**2 * now.means + a1 * e1 * (mixed + mixed.T)
        means = means + e1**2 * (pair * pulls + library.diag(extra / counts * strength))
        weighted = self.towards(counts[:, None] * now.means).T  # R N E
        crossed = self.towards(counts[:, None] * mixed).T  # (E G^T) N E
        own = self.towards(library.diag(extra * mixed.diagonal())).T
        both = a1 * a2 * now.mixed + a1 * e2 * weighted + a2 * e1 * near + e1 * e2 * (pair * crossed + own)
        drift = self.towards(counts[:, None] * now.mixed)  # E N G
        lengths = now.within + now.means.diagonal()
        square = pair * counts[:, None] * now.means * counts + library.diag(extra * counts * lengths)
        prototypes = a2**2 * now.prototypes + a2 * e2 * (drift + drift.T)
        prototypes = prototypes + e2**2 * self.towards(self.towards(square).T)
        return Moments(within, means, both, prototypes)

    def seven(self, rates: Tensor) -> Tensor:
        r"""The step's matrix on :math:`(V, R_1, R_2, G_1, G_2, K_1, K_2)` for each pair of rates, (m, 7, 7)  [eq:
        seven].

        Averaged over all relabellings every class-pair matrix is :math:`x_1 J + x_2 A_1`, with
        :math:`A_1 = \frac1C\mathbf 1\mathbf 1^\top` and :math:`J = I - A_1`: products act on :math:`x_1` and
        :math:`x_2` apart, and only "keep the diagonal" mixes them.
        """
        classes, per_class, n = len(self.counts), self.counts[0].item(), self.counts.sum().item()
        pair, extra = self.draws
        steps = rates / n
        keeps = 1 - rates * torch.stack([self.feature_decay, self.weight_decay])
        (e1, e2), (a1, a2) = steps.unbind(-1), keeps.unbind(-1)
        shares = (classes - 1) / classes, 1 / classes  # the diagonal of x1 J + x2 A1 is shares . x
        factors = self.spread, self.common
        matrix = rates.new_zeros(len(rates), 7, 7)
        matrix[:, 0, 0] = a1**2
        for s, factor in enumerate(factors):
            r, g, k = 1 + s, 3 + s, 5 + s
            matrix[:, r, r] += a1**2
            matrix[:, r, g] += 2 * a1 * e1 * factor
            matrix[:, r, k] += e1**2 * pair * factor**2
            matrix[:, g, g] += a1 * a2 + e1 * e2 * pair * per_class * factor**2
            matrix[:, g, r] += a1 * e2 * per_class * factor
            matrix[:, g, k] += a2 * e1 * factor
            matrix[:, k, k] += a2**2
            matrix[:, k, g] += 2 * a2 * e2 * per_class * factor
            matrix[:, k, r] += e2**2 * pair * per_class**2 * factor**2
            matrix[:, k, 0] += e2**2 * extra * per_class * factor**2
            for other, (share, scale) in enumerate(zip(shares, factors, strict=True)):
                matrix[:, r, 5 + other] += e1**2 * extra / per_class * share * scale**2
                matrix[:, g, 3 + other] += e1 * e2 * extra * factor * share * scale
                matrix[:, k, 1 + other] += e2**2 * extra * per_class * factor**2 * share
        for other, (share, scale) in enumerate(zip(shares, factors, strict=True)):
            matrix[:, 0, 5 + other] += e1**2 * extra * (1 - 1 / per_class) * share * scale**2
        return matrix

    def answers(self, now: Moments) -> Array:
        """Loss, squared norms of features and prototypes, scatter within and between classes, (5,)."""
        shares = self.counts / self.counts.sum()
        lengths = now.within + now.means.diagonal()
        overall = shares @ now.means @ shares
        library: Any = torch if isinstance(self.counts, Tensor) else np
        return library.stack(
            [
                -(shares * self.towards(now.mixed.T).diagonal()).sum(),
                (self.counts * lengths).sum(),
                now.prototypes.trace(),
                (shares * now.within).sum(),
                (shares * now.means.diagonal()).sum() - overall,
            ]
        )


def batch_draws(n: int, batch_size: int, replacement: bool) -> tuple[float, float]:
    """n^2/B^2 times the second moments of how often examples are drawn: two of them, and one beyond that
    [eq: batch-draws]."""
    if isinstance(batch_size, bool) or int(batch_size) != batch_size or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, got {batch_size}.")
    if replacement:
        return (batch_size - 1) / batch_size, n / batch_size
    if batch_size > n:
        raise ValueError(
            f"a batch of {batch_size} cannot be drawn from {n} examples without replacement. "
            "Lower batch_size, or pass replacement=True."
        )
    pair = n * (batch_size - 1) / (batch_size * (n - 1))
    return pair, n * (n - batch_size) / (batch_size * (n - 1))


def class_pairs(features: Tensor, weight: Tensor, targets: HardTargets) -> Moments:
    """The moments of one state."""
    labels, counts = targets.labels.cpu(), targets.counts.double()
    means = class_sums(features, labels, len(weight)) / counts[:, None]
    squares = (features - means[labels]).pow(2).sum(1, keepdim=True)
    within = class_sums(squares, labels, len(weight))[:, 0] / counts
    return Moments(within, means @ means.mT, means @ weight.mT, weight @ weight.mT)
