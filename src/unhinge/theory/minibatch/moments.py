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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from unhinge.theory.keeping import durable, tensors_in
from unhinge.theory.linear.products import ordered_products
from unhinge.theory.linear.spectrum import as_gamma
from unhinge.theory.minibatch.steps import Moments, Rule, batch_draws, class_pairs
from unhinge.theory.numerics import safe_sqrt, unit_of
from unhinge.theory.path import described
from unhinge.theory.problem import LayerPeeled
from unhinge.theory.schedules import Schedule, needs_gradient, rate_pair, steady_rate
from unhinge.theory.targets import HardTargets, as_targets
from unhinge.theory.types import Labels, Matrix, Number, Rate, Time
from unhinge.theory.validation import check_start, check_steps, scalar

__all__ = ["MinibatchMoments", "minibatch_moments"]

RATES_AT_ONCE = 1024  # rates of a schedule asked for together: one call of it for many steps


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
    r"""Expectations along SGD with random batches, solved once; differentiable in the start, gamma, the rates and the
    decays.

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
    numbers = (
        scalar("gamma", 1 / (classes - 1) if gamma is None else gamma),
        scalar("feature_decay", feature_decay),
        scalar("weight_decay", weight_decay),
    )
    return durable(_solved, targets, rows, prototypes, draws, numbers, rate_pair(lr))


def _solved(
    targets: HardTargets,
    rows: Tensor,
    prototypes: Tensor,
    draws: tuple[float, float],
    numbers: tuple[Tensor, Tensor, Tensor],
    schedules: tuple[Schedule, Schedule],
) -> MinibatchMoments:
    gamma, feature_decay, weight_decay = numbers
    known = as_gamma(gamma, targets.num_classes)
    counts = targets.counts.to("cpu", torch.float64)
    rule = Rule(counts, known.growth, -known.growth * known.nu, draws, feature_decay, weight_decay)
    unit = unit_of(rows, prototypes)
    wide, heads = (part.to("cpu", torch.float64) / unit for part in (rows, prototypes))
    start = class_pairs(wide, heads, targets)
    problem = LayerPeeled(targets.labels, targets.num_classes, gamma, feature_decay, weight_decay)
    like = rows.new_zeros(0)
    return MinibatchMoments(rule, start, schedules, problem.singular_values.cpu(), unit, like)


@dataclass(frozen=True, repr=False)
class MinibatchMoments:
    r"""Expectations over the random batches, at any number of steps; made by :func:`minibatch_moments`.

    Every question takes a whole number of steps or a tensor of them, shape :math:`(*)`, and answers in that shape. A
    value too large for its dtype is infinite; :meth:`log_norm_squared` stays finite.

    Example:
        >>> rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]]
        >>> sgd = minibatch_moments(
        ...     [0, 1, 0, 1], None, rows, rows[:2], batch_size=1, lr=0.05
        ... )
        >>> sgd.within_scatter([0, 10])
        tensor([0.7500, 0.7567], dtype=torch.float64)
    """

    rule: Rule
    start: Moments
    schedules: tuple[Schedule, Schedule]
    singular_values: Tensor
    unit: float  # a power of two that the start was divided by; 1 unless its squares would not fit
    like: Tensor  # (0,), of the dtype and on the device of the answers
    latest: tuple[bytes, tuple[Tensor, Tensor]] | None = field(default=None, init=False, compare=False)

    def __repr__(self) -> str:
        counts, decays = self.rule.counts, (self.rule.feature_decay.item(), self.rule.weight_decay.item())
        return described(
            "MinibatchMoments",
            "balanced" if self.balanced else "imbalanced",
            examples=counts.sum().item(),
            classes=len(counts),
            feature_decay=decays[0],
            weight_decay=decays[1],
        )

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
        return self._like(log + 2 * math.log(self.unit) + (values[..., 1] + values[..., 2]).log())

    def growth(self, lr: Number | Sequence[Number] | None = None) -> Tensor:
        r"""Exponent of :math:`\mathbb E\|Z\|^2` per step at constant rates: the log of the spectral radius of the
        recursion.

        Arguments:
            lr: The rate, or pair of rates; by default those that the schedules end with.
        """
        return self._like(self._growth(self._final_rates(lr)))

    def descent_growth(self, lr: Number | Sequence[Number] | None = None) -> Tensor:
        r"""Exponent of :math:`\|Z\|` per step of full-batch gradient descent at the same rates."""
        return self._like(self._descent_growth(self._final_rates(lr)))

    def excess_growth(self, lr: Number | Sequence[Number] | None = None) -> Tensor:
        r"""What the noise adds: :meth:`growth` minus twice :meth:`descent_growth`, never negative; 0 for full
        batches  [eq: excess-growth]."""
        rates = self._final_rates(lr)
        return self._like(self._growth(rates) - 2 * self._descent_growth(rates))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _like(self, value: Tensor) -> Tensor:
        return value.to(self.like)

    def _question(self, steps: Time, which: int) -> Tensor:
        log, values = self._solve(check_steps(steps))
        value = values[..., which]
        # The root of the scale twice, since the scale itself may be below the smallest float where the answer is not;
        # what is zero stays zero where the scale overflows.
        half = torch.exp(torch.where(value == 0, 0.0, log / 2 + math.log(self.unit)))
        return self._like(value * half * half)

    def _solve(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithmic scale (*) and the five answers (*, 5) at that scale; the last ones asked for are kept.

        Unless they carry gradients: then every question has a graph of its own. One assignment replaces what is kept,
        and the answer is returned from here: another thread may ask for other steps meanwhile.
        """
        key = np.array([*steps.shape, *steps.reshape(-1).tolist()]).tobytes()
        latest = self.latest
        if latest is not None and latest[0] == key:
            return latest[1]
        solve = self._solve_seven if self.balanced else self._solve_class_pairs
        if self._carries_gradients:
            return solve(steps)
        with torch.inference_mode(False):
            answer = solve(steps.clone())
        self.__dict__["latest"] = key, answer
        return answer

    @property
    def _carries_gradients(self) -> bool:
        known = tensors_in((self.rule, self.start))
        return any(tensor.requires_grad for tensor in known) or any(
            schedule.peak.requires_grad or needs_gradient(schedule.shape) for schedule in self.schedules
        )

    def _rates(self, first: int, stop: int) -> Tensor:
        """Rates (features, prototypes) of the steps first .. stop - 1, (m, 2)."""
        moments = torch.arange(first, stop, dtype=torch.float64)
        return torch.stack([schedule(moments) for schedule in self.schedules], -1)

    def _final_rates(self, lr: Number | Sequence[Number] | None) -> Tensor:
        """Rates (features, prototypes) at which exponents are asked, (2,)."""
        if lr is not None:
            given = lr if isinstance(lr, tuple | list) else (lr, lr)
            return torch.stack([scalar("lr", given[0]), scalar("lr", given[1])])
        floors = [schedule.shape.floor for schedule in self.schedules]
        for schedule, floor in zip(self.schedules, floors, strict=True):
            if math.isnan(floor) or max(floors) == 0:
                steady_rate(schedule)  # says why there is no exponent
        return torch.stack([schedule.peak * schedule.shape.final for schedule in self.schedules])

    def _growth(self, rates: Tensor) -> Tensor:
        if self.balanced:
            matrix = self.rule.seven(rates[None])[0]
            first = 1 if self.rule.counts[0] == 1 else 0  # one example per class has no scatter
            return _radius(matrix[first:, first:]).log()
        return self._class_pair_radius(rates).log()

    def _descent_growth(self, rates: Tensor) -> Tensor:
        # Each pair of singular vectors is stepped by [[keep_1, eta_1 sigma], [eta_2 sigma, keep_2]], whose eigenvalues
        # are real; the larger one is no smaller than either entry, so features without a mode are slower.
        keep_1, keep_2 = (1 - rates * torch.stack([self.rule.feature_decay, self.rule.weight_decay])).unbind()
        root = safe_sqrt(((keep_1 - keep_2) / 2) ** 2 + rates.prod() * self.singular_values.max() ** 2)
        return (((keep_1 + keep_2) / 2).abs() + root).log()

    # ---- balanced: seven numbers -------------------------------------------------------------------------------------

    def _solve_seven(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        rule, start = self.rule, self.start
        classes, n = len(rule.counts), rule.counts.sum().item()
        parts = [start.within.mean()]
        for matrix in (start.means, start.mixed, start.prototypes):
            common = matrix.sum() / classes
            parts += [(matrix.trace() - common) / (classes - 1), common]
        settles = max(schedule.shape.settles for schedule in self.schedules)
        last = int(steps.max()) if steps.numel() else 0
        log, matrices = ordered_products(
            lambda first, stop: self.rule.seven(self._rates(first, stop))[:, None],
            steps,
            math.ceil(settles) if math.isfinite(settles) else last,
        )
        v, r1, r2, g1, g2, k1, k2 = (matrices[..., 0, :, :] @ torch.stack(parts)).unbind(-1)
        apart, shared = (classes - 1) / classes, 1 / classes  # shares of differences and mean in a diagonal
        values = [
            -(rule.spread * apart * g1 + rule.common * shared * g2),
            n * (v + apart * r1 + shared * r2),
            (classes - 1) * k1 + k2,
            v,
            apart * r1,
        ]
        return log[..., 0], torch.stack(values, -1)

    # ---- imbalanced: classes and pairs of classes --------------------------------------------------------------------

    def _solve_class_pairs(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        flat = steps.reshape(-1).tolist()
        log, values = torch.zeros(len(flat), dtype=torch.float64), [torch.zeros(5, dtype=torch.float64)] * len(flat)
        rule, now, scale, done = self.rule, self.start, 0.0, 0
        plain = not self._carries_gradients
        if plain:
            rule, now = rule.plain(), now.plain()
        rates: Sequence[Iterable[Tensor | float]] = []
        with np.errstate(all="ignore"):  # as silent as torch where a step overflows
            for place in sorted(range(len(flat)), key=flat.__getitem__):
                while done < flat[place]:
                    if done % RATES_AT_ONCE == 0:
                        ahead = self._rates(done, done + RATES_AT_ONCE)
                        rates = ahead.tolist() if plain else ahead.unbind()
                    now = rule.step(now, *rates[done % RATES_AT_ONCE])
                    done += 1
                    if done % 64 == 0:  # a factor of 1e4 at every step would still fit float64
                        size = now.size()
                        now, scale = now.divided(size), scale + math.log(size)
                log[place], values[place] = scale, torch.as_tensor(rule.answers(now))
        shape = steps.shape
        return log.reshape(shape), (torch.stack(values) if values else torch.zeros(0, 5)).reshape(*shape, 5).double()

    def _class_pair_radius(self, rates: Tensor) -> Tensor:
        """Largest eigenvalue of the step: real and positive, since the step maps second moments to second moments."""
        classes = len(self.rule.counts)
        identity = torch.eye(classes, dtype=torch.float64)
        # A class of one example has no scatter, and a step gives it none: the step acts on all other coordinates.
        moves = torch.ones(classes + 3 * classes**2, dtype=torch.float64)
        moves[:classes] = (self.rule.counts > 1).double()
        first = moves * Moments(moves[:classes], identity, 0 * identity, identity).flatten()

        def step(flat: Tensor) -> Tensor:
            return self.rule.step(Moments.unflatten(flat, classes), *rates.unbind()).flatten()

        with torch.no_grad():
            begin = step(first)
            value, right = _largest_eigenvalue(lambda flat: moves * step(moves * flat), begin)
        if not (torch.is_grad_enabled() and step(right).requires_grad):
            return value
        with torch.enable_grad():
            leaf = begin.detach().requires_grad_()
            image = step(leaf)

        def transposed(flat: Tensor) -> Tensor:
            return moves * torch.autograd.grad(image, leaf, moves * flat, retain_graph=True)[0]

        left = _largest_eigenvalue(transposed, begin)[1]
        return _with_slope(value, left @ step(right) / (left @ right))


def _radius(matrix: Tensor) -> Tensor:
    """The spectral radius, which is an eigenvalue, with its gradient."""
    values, vectors = torch.linalg.eig(matrix.detach())
    largest = int(values.abs().argmax())
    radius = values[largest].abs()
    if not matrix.requires_grad:
        return radius
    others, lefts = torch.linalg.eig(matrix.detach().mT)
    right, left = vectors[:, largest].real, lefts[:, int(others.abs().argmax())].real
    return _with_slope(radius, left @ matrix @ right / (left @ right))


def _with_slope(value: Tensor, quotient: Tensor) -> Tensor:
    """An eigenvalue with the gradient of Rayleigh's quotient of its two eigenvectors, whose own changes cancel."""
    return value + (quotient - quotient.detach())


def _largest_eigenvalue(act: Callable[[Tensor], Tensor], begin: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalue of largest size of a linear map, and its vector, from the span of what `begin` is mapped to."""
    from unhinge.extras import needed_for

    with needed_for("the growth of minibatch noise with unequal classes"):
        from scipy.sparse.linalg import LinearOperator, eigs  # the one question that needs it

    def product(flat: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> object:
        return act(torch.from_numpy(flat.reshape(-1).copy())).numpy()

    operator = LinearOperator((len(begin), len(begin)), matvec=product, dtype=np.float64)
    values, vectors = eigs(operator, k=1, which="LM", v0=begin.numpy(), tol=0, maxiter=100_000)
    return torch.tensor(abs(values[0]), dtype=torch.float64), torch.from_numpy(vectors[:, 0].real.copy())
