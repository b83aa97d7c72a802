r"""Minibatch SGD on free features: exact expectations of everything quadratic  [eq: sgd-moments].

A step with a random batch is linear in the state: the mean iterate is gradient descent itself  [eq: mean-iterate] and
the second moment obeys a linear recursion of its own. All that the labels can tell apart are, per class or pair of
classes, the scatter :math:`V_c` within a class and the products of class means and prototypes,

.. math:: R_{cd} = \mathbb E\langle \bar h_c, \bar h_d\rangle, \quad
          G_{cd} = \mathbb E\langle \bar h_c, w_d\rangle, \quad K_{cd} = \mathbb E\langle w_c, w_d\rangle:

:math:`2C^2 + 2C` numbers, and seven when the classes are balanced, from any initial state and for any dimension.
Batches are drawn independently at every step (random reshuffling within an epoch is a different process); the decays
act on every feature and prototype at every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.linear.products import ordered_products
from unhinge.theory.linear.spectrum import as_gamma
from unhinge.theory.minibatch.steps import Array, Moments, Rule, batch_draws, class_pairs
from unhinge.theory.numerics import scaled
from unhinge.theory.problem import LayerPeeled
from unhinge.theory.schedules import Schedule, rate_pair, steady_rate
from unhinge.theory.targets import HardTargets, as_targets
from unhinge.theory.types import Labels, Matrix, Number, Rate, Time
from unhinge.theory.validation import check_start, check_steps, scalar

__all__ = ["MinibatchMoments", "minibatch_moments"]


def minibatch_moments(
    target: Labels,
    num_classes: int | None,
    features: Matrix,
    weight: Matrix,
    gamma: Number | None = None,
    batch_size: int = 1,
    replacement: bool = False,
    lr: Rate = 0.1,
    feature_decay: Number = 0.0,
    weight_decay: Number = 0.0,
) -> MinibatchMoments:
    r"""Expectations along SGD with random batches, solved once.

    Arguments:
        target: Integer labels :math:`(n,)` in any order, at least one per class.
        num_classes: :math:`C`; `None` means one more than the largest label.
        features: Initial features :math:`(n, p)`.
        weight: Initial prototypes :math:`(C, p)`.
        gamma: Weight :math:`\gamma \ge 0` of the other logits; `None` means :math:`1/(C-1)`.
        batch_size: :math:`B`, the examples averaged in each step's loss.
        replacement: Whether an example can be drawn several times into one batch.
        lr: A rate, a :class:`Schedule` or a function of the step; or a pair (features, prototypes) of these.
        feature_decay: :math:`\lambda_1`; every feature is multiplied by :math:`1 - \eta_1\lambda_1` at every step,
            drawn or not.
        weight_decay: :math:`\lambda_2`, likewise.

    Example:
        >>> target = torch.arange(6) % 3
        >>> generator = torch.Generator().manual_seed(0)
        >>> features = torch.randn(6, 4, generator=generator, dtype=torch.float64)
        >>> weight = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        >>> sgd = minibatch_moments(target, 3, features, weight, batch_size=2)
        >>> sgd.loss(torch.tensor([0, 10, 20]))
        tensor([ 0.1125, -2.1096, -5.4091], dtype=torch.float64)
        >>> sgd.excess_growth()
        tensor(0.0005, dtype=torch.float64)
    """
    targets = as_targets(target, num_classes)
    classes = targets.num_classes
    if not isinstance(targets, HardTargets):
        raise ValueError(
            "minibatch moments are closed for integer labels only, got soft labels: with them every example is a class "
            "of its own. Pass labels (n,), or ask LayerPeeled(...).descent for the mean iterate, which soft labels "
            "have."
        )
    rows, prototypes, _ = check_start(features, weight, None, targets.size, classes)
    draws = batch_draws(targets.size, batch_size, replacement)
    value = scalar("gamma", 1 / (classes - 1) if gamma is None else gamma).detach()
    known = as_gamma(value, classes)
    rule = Rule(
        targets.counts.double().numpy(),
        known.growth.item(),
        -(known.growth * known.nu).item(),
        draws,
        scalar("feature_decay", feature_decay).item(),
        scalar("weight_decay", weight_decay).item(),
    )
    rows_64, prototypes_64 = (part.detach().to("cpu", torch.float64) for part in (rows, prototypes))
    start = class_pairs(rows_64, prototypes_64, targets)
    problem = LayerPeeled(targets.labels, classes, value, rule.feature_decay, rule.weight_decay)
    return MinibatchMoments(rule, start, rate_pair(lr), problem.singular_values, rows.dtype, rows.device)


@dataclass(frozen=True)
class MinibatchMoments:
    """Expectations over the random batches, at any number of steps; made by :func:`minibatch_moments`.

    Every question takes a whole number of steps or a tensor of them, and broadcasts. A value too large for its dtype is
    infinite; :meth:`log_norm_squared` stays finite.

    Example:
        >>> rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]]
        >>> sgd = minibatch_moments([0, 1, 0, 1], None, rows, rows[:2], batch_size=1, lr=0.05)
        >>> sgd.within_scatter([0, 10])
        tensor([0.7500, 0.7567], dtype=torch.float64)
    """

    rule: Rule
    start: Moments
    schedules: tuple[Schedule, Schedule]
    singular_values: Tensor
    dtype: torch.dtype
    device: torch.device
    latest: dict[bytes, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def balanced(self) -> bool:
        """Whether the classes are of equal size, so that seven numbers suffice."""
        return bool((self.rule.counts == self.rule.counts[0]).all())

    def loss(self, steps: Time) -> Tensor:
        r"""Expected mean unhinged loss :math:`-\frac1n\sum_c n_c \sum_d E_{cd} G_{cd}`, without the decay terms."""
        return self._question(steps, 0)

    def feature_norm_squared(self, steps: Time) -> Tensor:
        r""":math:`\mathbb E\|H\|^2`."""
        return self._question(steps, 1)

    def weight_norm_squared(self, steps: Time) -> Tensor:
        r""":math:`\mathbb E\|W\|^2`."""
        return self._question(steps, 2)

    def within_scatter(self, steps: Time) -> Tensor:
        r""":math:`\mathbb E\,\frac1n\sum_i\|h_i - \bar h_{y_i}\|^2`, which SGD noise keeps from vanishing."""
        return self._question(steps, 3)

    def between_scatter(self, steps: Time) -> Tensor:
        r""":math:`\mathbb E\,\frac1n\sum_c n_c\|\bar h_c - \bar h\|^2`."""
        return self._question(steps, 4)

    def log_norm_squared(self, steps: Time) -> Tensor:
        r""":math:`\log \mathbb E(\|H\|^2 + \|W\|^2)`, finite where the expectation itself overflows."""
        log, values = self._solve(check_steps(steps))
        return self._like(log + (values[..., 1] + values[..., 2]).log())

    def growth(self, lr: Number | Sequence[Number] | None = None) -> Tensor:
        r"""Exponent of :math:`\mathbb E\|Z\|^2` per step at constant rates: the log of the spectral radius of the
        recursion.

        Arguments:
            lr: The rate, or pair of rates; by default those that the schedules end with.
        """
        rates = self._final_rates(lr)
        if self.balanced:
            matrix = self.rule.seven(torch.tensor([rates], dtype=torch.float64))[0]
            first = 1 if self.rule.counts[0] == 1 else 0  # one example per class has no scatter
            radius = torch.linalg.eigvals(matrix[first:, first:]).abs().max()
        else:
            radius = self._class_pair_radius(rates)
        return self._like(radius.log())

    def descent_growth(self, lr: Number | Sequence[Number] | None = None) -> Tensor:
        r"""Exponent of :math:`\|Z\|` per step of full-batch gradient descent at the same rates."""
        eta_1, eta_2 = self._final_rates(lr)
        keep_1, keep_2 = 1 - eta_1 * self.rule.feature_decay, 1 - eta_2 * self.rule.weight_decay
        sigma = self.singular_values.detach()
        ones = torch.ones_like(sigma)
        step = torch.stack([keep_1 * ones, eta_1 * sigma, eta_2 * sigma, keep_2 * ones], -1).unflatten(-1, (2, 2))
        radius = torch.linalg.eigvals(step).abs().max()
        if bool((self.rule.counts > 1).any()):
            radius = radius.clamp(min=abs(keep_1))
        return self._like(radius.log())

    def excess_growth(self, lr: Number | Sequence[Number] | None = None) -> Tensor:
        r"""What the noise adds: :meth:`growth` minus twice :meth:`descent_growth`, never negative; 0 for full
        batches  [eq: excess-growth]."""
        return self.growth(lr) - 2 * self.descent_growth(lr)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _like(self, value: Tensor) -> Tensor:
        return value.to(self.device, self.dtype)

    def _question(self, steps: Time, which: int) -> Tensor:
        log, values = self._solve(check_steps(steps))
        value = values[..., which]
        return self._like(scaled(value, log))

    def _solve(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithmic scale (*) and the five answers (*, 5) at that scale; the last ones asked for are kept."""
        key = np.array([*steps.shape, *steps.reshape(-1).tolist()]).tobytes()
        if key not in self.latest:
            answer = self._solve_seven(steps) if self.balanced else self._solve_class_pairs(steps)
            self.latest.clear()
            self.latest[key] = answer
        return self.latest[key]

    def _rates(self, first: int, stop: int) -> Tensor:
        """Rates (features, prototypes) of the steps first .. stop - 1, (m, 2)."""
        moments = torch.arange(first, stop, dtype=torch.float64)
        return torch.stack([schedule(moments).detach() for schedule in self.schedules], -1)

    def _final_rates(self, lr: Number | Sequence[Number] | None) -> tuple[float, float]:
        if lr is not None:
            given = lr if isinstance(lr, tuple | list) else (lr, lr)
            return scalar("lr", given[0]).item(), scalar("lr", given[1]).item()
        floors = [schedule.peak.item() * schedule.shape.floor for schedule in self.schedules]
        if not max(floors) > 0:
            steady_rate(self.schedules[0])  # says why there is no exponent
        return floors[0], floors[1]

    # ---- balanced: seven numbers -------------------------------------------------------------------------------------

    def _solve_seven(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        rule, start = self.rule, self.start
        classes, n = len(rule.counts), float(rule.counts.sum())
        parts = [float(start.within.mean())]
        for matrix in (start.means, start.mixed, start.prototypes):
            common = float(matrix.sum()) / classes
            parts += [(float(np.trace(matrix)) - common) / (classes - 1), common]
        settles = max(schedule.shape.settles for schedule in self.schedules)
        last = int(steps.max()) if steps.numel() else 0
        log, matrices = ordered_products(
            lambda first, stop: self.rule.seven(self._rates(first, stop))[:, None],
            steps,
            math.ceil(settles) if math.isfinite(settles) else last,
        )
        v, r1, r2, g1, g2, k1, k2 = (matrices[..., 0, :, :] @ torch.tensor(parts, dtype=torch.float64)).unbind(-1)
        apart, common = (classes - 1) / classes, 1 / classes  # shares of differences and mean in a diagonal
        values = [
            -(rule.spread * apart * g1 + rule.common * common * g2),
            n * (v + apart * r1 + common * r2),
            (classes - 1) * k1 + k2,
            v,
            apart * r1,
        ]
        return log[..., 0], torch.stack(values, -1)

    # ---- imbalanced: classes and pairs of classes --------------------------------------------------------------------

    def _solve_class_pairs(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        flat = steps.reshape(-1).tolist()
        log, values = np.zeros(len(flat)), np.zeros((len(flat), 5))
        now, scale, done = self.start, 0.0, 0
        rates: list[list[float]] = []
        for place in sorted(range(len(flat)), key=flat.__getitem__):
            while done < flat[place]:
                if done % 1024 == 0:
                    rates = self._rates(done, done + 1024).tolist()
                now = self.rule.step(now, *rates[done % 1024])
                done += 1
                if done % 64 == 0:
                    size = now.size()
                    now, scale = Moments.unflatten(now.flatten() / size, len(self.rule.counts)), scale + math.log(size)
            log[place], values[place] = scale, self.rule.answers(now)
        return torch.from_numpy(log).reshape(steps.shape), torch.from_numpy(values).reshape(*steps.shape, 5)

    def _class_pair_radius(self, rates: tuple[float, float]) -> Tensor:
        """Largest eigenvalue of the step: real and positive, since the step maps second moments to second moments."""
        from unhinge.extras import needed_for

        with needed_for("the growth of minibatch noise with unequal classes"):
            from scipy.sparse.linalg import LinearOperator, eigs  # the one question that needs it

        classes = len(self.rule.counts)
        identity = np.eye(classes)
        first = Moments(np.where(self.rule.counts > 1, 1.0, 0.0), identity, 0 * identity, identity)

        def act(flat: Array) -> Array:
            return self.rule.step(Moments.unflatten(flat.reshape(-1), classes), *rates).flatten()

        size = classes + 3 * classes**2
        operator = LinearOperator((size, size), matvec=act, dtype=np.float64)
        begin = self.rule.step(first, *rates).flatten()
        largest = eigs(operator, k=1, which="LM", v0=begin, tol=0, maxiter=100_000, return_eigenvectors=False)
        return torch.tensor(abs(largest[0]), dtype=torch.float64)
