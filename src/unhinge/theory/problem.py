r"""The layer-peeled model: features and classifier as free variables under the unhinged loss  [eq: problem].

:math:`\mathcal L = -\langle M, W^\top H\rangle - \kappa^\top b + \frac{\lambda_1}2\|H\|^2
+ \frac{\lambda_2}2(\|W\|^2 + \|b\|^2)`.
:class:`LayerPeeled` checks its input once, finds the modes of the targets, and hands out solved paths.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unhinge.theory.anchored import AnchoredPath
from unhinge.theory.kernel.path import KernelPath, solve_kernel
from unhinge.theory.linear.momentum import Momentum, MomentumSymbol
from unhinge.theory.linear.ordered import ordered_descent, ordered_flow
from unhinge.theory.linear.path import LinearPath, Start
from unhinge.theory.linear.propagators import Commuting, Propagator, Rates, commuting, eigen
from unhinge.theory.linear.spectrum import HardSpectrum, Spectrum, as_gamma, hard_spectrum, soft_spectrum
from unhinge.theory.linear.summary import HardSummary, SoftSummary, Summary, summarize_in_memory
from unhinge.theory.linear.symbols import DescentSymbol, FlowSymbol, Symbol
from unhinge.theory.rates import best_gamma
from unhinge.theory.schedules import Schedule, rate_pair
from unhinge.theory.targets import HardTargets, SoftTargets, Targets, as_targets
from unhinge.theory.validation import check_alike, check_counts, check_num_classes, check_start, check_tensor, scalar

__all__ = ["LayerPeeled"]


class LayerPeeled:
    r"""Last-layer training under :math:`-z_y + \gamma\sum_{j\ne y} z_j`, solved exactly.

    Arguments:
        target: Integer labels :math:`(n,)` in any order, or soft labels :math:`(n, C)` whose rows sum to 1.
        num_classes: The number of classes :math:`C`, at least 2.
        gamma: Weight :math:`\gamma \ge 0` of the other logits; `None` means :math:`1/(C-1)`.
        feature_decay: :math:`\lambda_1`, of the term :math:`\frac{\lambda_1}2\|H\|^2`.
        weight_decay: :math:`\lambda_2`, of the term :math:`\frac{\lambda_2}2(\|W\|^2 + \|b\|^2)`.
        class_weight: `None`, positive weights :math:`(C,)` of the examples of each class, or ``"sqrt"`` for
            :math:`n_c^{-1/2}`, which gives imbalanced classes the balanced dynamics. The loss is the weighted mean
            (divided by the total weight, as in ``nn.CrossEntropyLoss``), so a common factor is immaterial.

    Gamma, the decays and the rates may be tensors: every answer is differentiable in them and in the initial state.

    Example:
        >>> target = torch.arange(6) % 3
        >>> problem = LayerPeeled(target, num_classes=3)
        >>> generator = torch.Generator().manual_seed(0)
        >>> features = torch.randn(6, 4, generator=generator, dtype=torch.float64)
        >>> weight = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        >>> path = problem.flow(features, weight, lr=0.1)
        >>> path.distance(torch.tensor([0.0, 100.0, 1e3]))
        tensor([1.0075e+00, 4.1645e-02, 6.3180e-16], dtype=torch.float64)
    """

    def __init__(
        self,
        target: Tensor,
        num_classes: int,
        gamma: float | Tensor | None = None,
        feature_decay: float | Tensor = 0.0,
        weight_decay: float | Tensor = 0.0,
        class_weight: Tensor | str | None = None,
    ) -> None:
        classes = check_num_classes(num_classes)
        self._set(as_targets(target, classes), None, classes, gamma, feature_decay, weight_decay, class_weight)

    @classmethod
    def from_summary(
        cls,
        summary: Summary,
        gamma: float | Tensor | None = None,
        feature_decay: float | Tensor = 0.0,
        weight_decay: float | Tensor = 0.0,
        class_weight: Tensor | str | None = None,
    ) -> LayerPeeled:
        """The problem of a streamed data set: pass the same :func:`~unhinge.theory.summarize` result as `features` to
        :meth:`flow`, :meth:`descent` or :meth:`anchored`."""
        problem = cls.__new__(cls)
        problem._set(None, summary, summary.num_classes, gamma, feature_decay, weight_decay, class_weight)
        return problem

    def _set(
        self,
        targets: Targets | None,
        summary: Summary | None,
        num_classes: int,
        gamma: float | Tensor | None,
        feature_decay: float | Tensor,
        weight_decay: float | Tensor,
        class_weight: Tensor | str | None,
    ) -> None:
        self.targets = targets
        self.num_classes = num_classes
        self.gamma = scalar("gamma", 1 / (num_classes - 1) if gamma is None else gamma)
        self.feature_decay = scalar("feature_decay", feature_decay)
        self.weight_decay = scalar("weight_decay", weight_decay)
        known = as_gamma(self.gamma, num_classes)
        source = targets if targets is not None else summary
        if isinstance(source, HardTargets | HardSummary):
            check_counts(source.counts)
            self.counts = source.counts
            weights = _check_class_weight(class_weight, num_classes)
            self.spectrum: Spectrum = hard_spectrum(source.counts, known, weights)
            mass = _weighted(source.counts.double(), weights)
        else:
            assert isinstance(source, SoftTargets | SoftSummary)
            self.counts = source.factor.mT @ source.factor.sum(1)  # expected examples per class
            weights = _check_class_weight(class_weight, num_classes)
            if isinstance(weights, str):
                if bool((self.counts <= 0).any()):
                    raise ValueError('class_weight="sqrt" needs every class to have some weight in the soft labels.')
                weights = self.counts.rsqrt()
            self.spectrum = soft_spectrum(source.factor, known, weights)
            mass = _weighted(self.counts, weights)
        # kappa = (1 + gamma) pi - gamma, exactly 0 for balanced classes at gamma = 1/(C-1)
        offset = (num_classes * mass - mass.sum()) / (num_classes * mass.sum())
        self.bias_drive = known.growth * (offset - known.nu / num_classes)

    def __repr__(self) -> str:
        kind = (
            "soft labels"
            if not isinstance(self.spectrum, HardSpectrum)
            else ("balanced" if self.balanced else "imbalanced")
        )
        return (
            f"LayerPeeled({kind}, num_classes={self.num_classes}, gamma={self.gamma.item():g}, "
            f"feature_decay={self.feature_decay.item():g}, weight_decay={self.weight_decay.item():g})"
        )

    # ---- what the labels alone decide ------------------------------------------------------------------------

    @property
    def balanced(self) -> bool:
        """Whether all classes pull equally (equal counts, or weights that make up for them)  [eq: balanced-modes]."""
        return isinstance(self.spectrum, HardSpectrum) and len(self.spectrum.beta) == 1

    @property
    def singular_values(self) -> Tensor:
        r"""Singular values of the target matrix :math:`M` with multiplicity, descending, :math:`(\min(C, n),)`."""
        spectrum = self.spectrum
        if isinstance(spectrum, HardSpectrum):
            ties = spectrum.sigma[: len(spectrum.poles)]
            repeats = (spectrum.multiplicity[spectrum.poles] - 1).long()
            values = torch.cat([ties.repeat_interleave(repeats), spectrum.sigma[len(spectrum.poles) : -1]])
        else:
            values = spectrum.sigma[spectrum.group]
        return values.abs().sort(descending=True).values

    @property
    def critical_decay(self) -> Tensor:
        r"""The largest singular value: growth stops when :math:`\lambda_1\lambda_2` reaches its square
        [eq: critical-decay]."""
        return self.singular_values[0]

    def best_gamma(self, ratio: float = 1.0) -> float:
        r"""The fastest :math:`\gamma` at these decays and :math:`\eta_1/\eta_2` = `ratio`, for balanced labels
        [eq: best-gamma]."""
        if not self.balanced:
            raise ValueError(
                "the fastest gamma is known for balanced labels; with imbalance every gamma below 2/(C-2) ends in the "
                'collapse of the smaller classes. Restore balance with class_weight="sqrt" first.'
            )
        assert isinstance(self.spectrum, HardSpectrum)
        unit = (self.spectrum.unit.detach().sqrt() / (1 + self.gamma.detach())).item()
        return best_gamma(self.num_classes, unit, self.feature_decay.item(), self.weight_decay.item(), ratio)

    # ---- solved paths ------------------------------------------------------------------------------------------

    def flow(self, features: Tensor | Summary, weight: Tensor, bias: Tensor | None = None, lr: Any = 0.1) -> LinearPath:
        r"""Gradient flow of features, prototypes and biases (Theorems 1 and 2)  [eq: flow-solution].

        Arguments:
            features: Initial features :math:`(n, p)`, or the summary of a streamed pass.
            weight: Initial prototypes :math:`(C, p)`.
            bias: Initial biases :math:`(C,)`, or `None` for a model without.
            lr: A rate, a :class:`Schedule` or a function of time; or a pair (features, classifier) of these.
                Proportional pairs, for example ``(2 * schedule, schedule)``, are solved in closed form at any time;
                others through small ODEs.
        """
        start = self._start(features, weight, bias)
        schedules = rate_pair(lr)
        rates = self._rates(schedules)
        if _together(schedules):
            propagator: Propagator = self._commuting(start, rates, FlowSymbol(schedules[1].shape), self.weight_decay)
        else:
            propagator = ordered_flow(self.spectrum.sigma, rates, schedules)
        return self._path(start, propagator, discrete=False)

    def descent(
        self,
        features: Tensor | Summary,
        weight: Tensor,
        bias: Tensor | None = None,
        lr: Any = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        decoupled: bool = False,
    ) -> LinearPath:
        r"""The iterates of ``torch.optim.SGD`` on features, prototypes and biases: ``at(k)`` is that after k steps
        [eq: symbol].

        Arguments are those of :meth:`flow` and of ``torch.optim.SGD``; step k (from 0) uses ``lr(k)``. With `decoupled`
        the decay multiplies the variables by :math:`1 - \eta\lambda` instead of entering the gradient.
        """
        _check_momentum(momentum, dampening, nesterov)
        start = self._start(features, weight, bias)
        schedules = rate_pair(lr)
        rates = self._rates(schedules)
        options = Momentum(momentum, dampening, nesterov, decoupled)
        propagator = self._commuting_descent(start, rates, schedules, options)
        if propagator is None:
            return self._path(start, ordered_descent(self.spectrum.sigma, rates, schedules, options), discrete=True)
        return self._path(start, propagator, discrete=True)

    def anchored(
        self, features: Tensor | Summary, weight: Tensor, bias: Tensor | None = None, lr: Any = 0.1
    ) -> AnchoredPath:
        r"""Gradient flow of the features with the prototypes fixed (Theorem 3)  [eq: anchored].

        Biases, if given, are still trained, at the second rate of a pair `lr`; ``lr=(0.1, 0.0)`` holds them fixed too.
        """
        schedules = rate_pair(lr)
        symbols = FlowSymbol(schedules[0].shape), FlowSymbol(schedules[1].shape)
        return self._anchored(features, weight, bias, schedules, symbols, discrete=False)

    def anchored_descent(
        self,
        features: Tensor | Summary,
        weight: Tensor,
        bias: Tensor | None = None,
        lr: Any = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        decoupled: bool = False,
    ) -> AnchoredPath:
        """The iterates of ``torch.optim.SGD`` on the features (and biases) with the prototypes fixed
        [eq: anchored]."""
        _check_momentum(momentum, dampening, nesterov)
        schedules = rate_pair(lr)
        symbols: list[Symbol] = []
        for schedule, decay in zip(schedules, (self.feature_decay, self.weight_decay), strict=True):
            if momentum:
                shrink = schedule.peak * decay if decoupled else torch.zeros_like(decay)
                options = Momentum(momentum, dampening, nesterov, decoupled)
                symbols.append(MomentumSymbol(schedule.shape, options, shrink))
            else:
                symbols.append(DescentSymbol(schedule.shape))
        return self._anchored(features, weight, bias, schedules, (symbols[0], symbols[1]), discrete=True)

    def kernel_flow(
        self, features: Tensor, weight: Tensor, kernel: Any, lr: Any = 0.1, bias: Tensor | None = None
    ) -> KernelPath:
        r"""Gradient flow of features that share parameters, through a constant kernel (Theorem 5, replaced)
        [eq: kernel-flow].

        :math:`\mathrm{vec}(H)' = -\eta_1 K \nabla_H`, prototypes and biases as in :meth:`flow`.

        Arguments:
            features: Initial features :math:`(n, p)`.
            weight: Initial prototypes :math:`(C, p)`.
            kernel: :math:`K`, symmetric and positive semidefinite, singular or not. Shape :math:`(n, n)`: the same for
                each of the p entries of a feature. Shape :math:`(n p, n p)`: indexed by ``features.reshape(-1)``. Or an
                operator: a function of rows :math:`(n, p)` or of a vector :math:`(n p,)`, a scipy ``LinearOperator``,
                or what :func:`~unhinge.theory.kernel.ntk.empirical_ntk` returns; it is asked for C p products, and only
                for one if its attribute `kind` is ``"example"`` (it then takes any number of columns).
            lr: As in :meth:`flow`; the rates of a pair must be proportional.
            bias: Initial biases :math:`(C,)`, or `None` for a model without.

        Example:
            >>> problem = LayerPeeled(torch.arange(6) % 3, num_classes=3)
            >>> features, weight = torch.eye(6, dtype=torch.float64), torch.eye(3, 6, dtype=torch.float64)
            >>> free, shared = torch.eye(6, dtype=torch.float64), torch.ones(6, 6, dtype=torch.float64)
            >>> problem.kernel_flow(features, weight, free).growth()  # the largest singular value, times lr
            tensor(0.0354, dtype=torch.float64)
            >>> problem.kernel_flow(features, weight, shared).growth()  # nothing that tells the classes apart can move
            tensor(0., dtype=torch.float64)
        """
        decays = self.feature_decay, self.weight_decay
        return solve_kernel(self.targets, self.spectrum, self.bias_drive, decays, features, weight, kernel, lr, bias)

    # ---- assembly ------------------------------------------------------------------------------------------------

    def _rates(self, schedules: tuple[Schedule, Schedule]) -> Rates:
        return Rates(schedules[0].peak, schedules[1].peak, self.feature_decay, self.weight_decay)

    def _reduce(
        self, features: Tensor | Summary, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Reduced features, the scatter outside the modes, and the features themselves if they are there."""
        if isinstance(features, Tensor):
            if self.targets is None:
                raise ValueError(
                    "this problem was made from a summary and knows no label per example; pass the summary as "
                    "features, or make the problem with LayerPeeled(target, num_classes)."
                )
            check_start(features, weight, bias, self.targets.size, self.num_classes)
            rows, scatter = summarize_in_memory(features, self.targets)
            return rows, scatter, features
        if not isinstance(features, HardSummary | SoftSummary):
            raise ValueError(f"features must be a torch.Tensor or a summary, got {type(features).__name__}.")
        same = features.num_classes == self.num_classes
        if same and isinstance(features, HardSummary):
            same = torch.equal(features.counts.double(), self.counts.double())
        if not same:
            raise ValueError(
                "the summary's class counts are not those of this problem. Make the problem from the same summary: "
                "LayerPeeled.from_summary(summary)."
            )
        rows = features.reduced()
        check_tensor("weight", weight, (self.num_classes, rows.shape[1]))
        if bias is not None:
            check_tensor("bias", bias, (self.num_classes,))
        check_alike(features=rows, weight=weight, bias=bias)
        return rows, features.scatter, None

    def _start(self, features: Tensor | Summary, weight: Tensor, bias: Tensor | None) -> Start:
        rows, scatter, present = self._reduce(features, weight, bias)
        x, y = self.spectrum.analyze(rows, weight)
        return Start(
            rows,
            x,
            y,
            self.spectrum.group,
            scatter,
            self.spectrum.untouched(weight),
            weight,
            bias,
            present,
            self.targets if present is not None else None,
            self.counts,
        )

    def _commuting(self, start: Start, rates: Rates, symbol: Symbol, bias_decay: Tensor) -> Commuting:
        eps = torch.finfo(start.x.dtype).eps
        return commuting(self.spectrum, rates, symbol, bias_decay, start.factor, eps)

    def _commuting_descent(
        self,
        start: Start,
        rates: Rates,
        schedules: tuple[Schedule, Schedule],
        options: Momentum,
    ) -> Commuting | None:
        """The closed form where it applies: proportional rates, and steps below the point where signs alternate."""
        if not _together(schedules):
            return None
        shape = schedules[1].shape
        if not options.factor:
            if not self._small_steps(rates, shape.highest):
                return None
            return self._commuting(start, rates, DescentSymbol(shape), self.weight_decay)
        shrink = torch.zeros_like(rates.features)
        if options.decoupled:
            shrink = rates.features * rates.feature_decay
            if shrink.item() != (rates.weight * rates.weight_decay).item():
                return None
            none = torch.zeros_like(shrink)
            rates = Rates(rates.features, rates.weight, none, none)
        lowest = -(rates.mean_decay + eigen(self.spectrum, rates)[0].max()).item()
        if 1 + options.factor + shape.highest * ((1 + options.factor) * lowest - shrink.item()) < 0:
            return None
        symbol = MomentumSymbol(shape, options, shrink)
        solved = self._commuting(start, rates, symbol, self.weight_decay)
        return None if symbol.oscillates(solved.reference) else solved

    def _small_steps(self, rates: Rates, highest: float) -> bool:
        decays = (rates.features * rates.feature_decay).item(), (rates.weight * rates.weight_decay).item()
        if sum(decays) == 0:
            return True
        return highest * min(decays) < 1 and highest * sum(decays) < 2

    def _path(self, start: Start, propagator: Propagator, discrete: bool) -> LinearPath:
        return LinearPath(self.spectrum, propagator, start, self.bias_drive, self.weight_decay, discrete)

    def _anchored(
        self,
        features: Tensor | Summary,
        weight: Tensor,
        bias: Tensor | None,
        schedules: tuple[Schedule, Schedule],
        symbols: tuple[Symbol, Symbol],
        discrete: bool,
    ) -> AnchoredPath:
        rows, scatter, present = self._reduce(features, weight, bias)
        y = self.spectrum.analyze(rows, weight)[1]
        sigma = self.spectrum.sigma[self.spectrum.group].to(y)[:, None]
        pull, _ = self.spectrum.synthesize(sigma * y, y)
        decays = self.feature_decay, self.weight_decay
        targets = self.targets if present is not None else None
        return AnchoredPath(
            rows,
            pull,
            scatter,
            weight,
            bias,
            present,
            targets,
            self.counts,
            self.bias_drive,
            symbols,
            schedules,
            decays,
            discrete,
        )


def _together(schedules: tuple[Schedule, Schedule]) -> bool:
    return schedules[0].proportional_to(schedules[1]) and all(s.peak.item() > 0 for s in schedules)


def _weighted(counts: Tensor, weights: Tensor | str | None) -> Tensor:
    if isinstance(weights, str):
        return counts.sqrt()
    return counts if weights is None else counts * weights


def _check_class_weight(class_weight: Tensor | str | None, num_classes: int) -> Tensor | str | None:
    if class_weight is None:
        return None
    if isinstance(class_weight, str):
        if class_weight != "sqrt":
            raise ValueError(f'class_weight must be None, a tensor or "sqrt", got "{class_weight}".')
        return class_weight
    weights = torch.as_tensor(class_weight).to("cpu", torch.float64)
    if weights.shape != (num_classes,) or not bool(torch.isfinite(weights).all()) or bool((weights <= 0).any()):
        raise ValueError(
            f"class_weight must hold {num_classes} positive, finite numbers, got shape {tuple(weights.shape)} with "
            f"values from {weights.min().item():g} to {weights.max().item():g}. To leave a class out, drop it."
        )
    return weights


def _check_momentum(momentum: float, dampening: float, nesterov: bool) -> None:
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum}.")
    if not 0 <= dampening <= 1:
        raise ValueError(f"dampening must lie in [0, 1], got {dampening}.")
    if nesterov and (momentum <= 0 or dampening != 0):
        raise ValueError(
            f"Nesterov momentum needs momentum > 0 and dampening = 0 (as in torch.optim.SGD), got momentum={momentum}, "
            f"dampening={dampening}."
        )
