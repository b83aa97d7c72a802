r"""The layer-peeled model: features and classifier as free variables under the unhinged loss  [eq: problem].

:math:`\mathcal L = -\langle M, W^\top H\rangle - \kappa^\top b + \frac{\lambda_1}2\|H\|^2
+ \frac{\lambda_2}2(\|W\|^2 + \|b\|^2)`.
:class:`LayerPeeled` checks its input once, finds the modes of the targets, and hands out solved paths.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unhinge.theory.anchored import AnchoredPath
from unhinge.theory.keeping import durable
from unhinge.theory.kernel.path import KernelPath, solve_kernel
from unhinge.theory.linear.biases import Biases
from unhinge.theory.linear.blocks import Rates
from unhinge.theory.linear.modes import Modes, find_modes, multiplicities
from unhinge.theory.linear.momentum import Momentum, MomentumSymbol
from unhinge.theory.linear.path import LinearPath
from unhinge.theory.linear.prior import PriorSpectrum
from unhinge.theory.linear.propagators import Propagator, descent_propagator, flow_propagator
from unhinge.theory.linear.pull import find_pull
from unhinge.theory.linear.spectrum import HardSpectrum, Spectrum
from unhinge.theory.linear.start import CheckedStart, Start, reduce_start
from unhinge.theory.linear.summary import SoftSummary, Summary
from unhinge.theory.linear.symbols import DescentSymbol, FlowSymbol, Symbol
from unhinge.theory.rates import best_gamma
from unhinge.theory.schedules import Schedule, rate_pair
from unhinge.theory.targets import HardTargets, SoftTargets, Targets, as_targets
from unhinge.theory.types import Kernel, Labels, Matrix, Number, Rate, Vector
from unhinge.theory.validation import check_number, scalar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LayerPeeled"]


class LayerPeeled:
    r"""Last-layer training under :math:`-z_y + \gamma\sum_{j\ne y} z_j`, solved exactly.

    Arguments:
        target: Integer labels :math:`(n,)` in any order, or soft labels :math:`(n, C)` whose rows sum to 1.
        num_classes: The number of classes :math:`C`, at least 2; `None` means one more than the largest label, or the
            number of columns of soft labels.
        gamma: Weight :math:`\gamma \ge 0` of the other logits; `None` means :math:`1/(C-1)`.
        feature_decay: :math:`\lambda_1`, of the term :math:`\frac{\lambda_1}2\|H\|^2`.
        weight_decay: :math:`\lambda_2`, of the term :math:`\frac{\lambda_2}2(\|W\|^2 + \|b\|^2)`.
        class_weight: `None`, positive weights :math:`(C,)` of the examples of each class, ``"sqrt"`` for
            :math:`n_c^{-1/2}`, which gives imbalanced classes the balanced dynamics, or ``"balanced"`` for
            :math:`n_c^{-1}`, the same total weight for each class. The loss is the weighted mean: it is divided by the
            total weight, so a common factor is immaterial. (So does ``nn.CrossEntropyLoss`` with integer labels; with
            soft ones it divides by n.)
        prior: A vector q of shape :math:`(C,)` that sums to 1, or ``"counts"`` for the class frequencies: the loss is
            then :math:`-z_y + q^\top z` instead  [eq: prior-modes]. Uniform q is the default loss times
            :math:`\frac{C-1}C`. Excludes `gamma`.

    Tensors, numpy arrays and lists are accepted alike: tensors and arrays keep their dtype, lists follow the others
    (see :mod:`unhinge.theory.types`). Gamma, the decays and the rates may be tensors: every answer is differentiable in
    them and in the initial state.

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
        target: Labels,
        num_classes: int | None = None,
        gamma: Number | None = None,
        feature_decay: Number = 0.0,
        weight_decay: Number = 0.0,
        class_weight: Vector | str | None = None,
        prior: Vector | str | None = None,
    ) -> None:
        targets = as_targets(target, num_classes)
        self._set(targets, gamma, feature_decay, weight_decay, class_weight, prior)

    @classmethod
    def from_summary(
        cls,
        summary: Summary,
        gamma: Number | None = None,
        feature_decay: Number = 0.0,
        weight_decay: Number = 0.0,
        class_weight: Vector | str | None = None,
        prior: Vector | str | None = None,
    ) -> LayerPeeled:
        """The problem of a streamed data set: pass the same :func:`~unhinge.theory.summarize` result as `features` to
        :meth:`flow`, :meth:`descent` or :meth:`anchored`."""
        problem = cls.__new__(cls)
        problem._set(summary, gamma, feature_decay, weight_decay, class_weight, prior)
        return problem

    def _set(self, *given: object) -> None:
        vars(self).update(vars(durable(LayerPeeled._solved, LayerPeeled.__new__(LayerPeeled), *given)))

    def _solved(
        self,
        source: Targets | Summary,
        gamma: Number | None,
        feature_decay: Number,
        weight_decay: Number,
        class_weight: Vector | str | None,
        prior: Vector | str | None,
    ) -> LayerPeeled:
        self.targets = source if isinstance(source, HardTargets | SoftTargets) else None
        self._factor = source.factor if isinstance(source, SoftTargets | SoftSummary) else None
        self.num_classes = source.num_classes
        self.gamma = scalar("gamma", 1 / (self.num_classes - 1) if gamma is None else gamma)
        self.feature_decay = scalar("feature_decay", feature_decay)
        self.weight_decay = scalar("weight_decay", weight_decay)
        pull = find_pull(source, None if gamma is None and prior is not None else self.gamma, class_weight, prior)
        self.counts = pull.counts  # (C,), examples per class
        self.example_weight = pull.example_weight  # (C,), of an example of each class in the mean loss
        self.prior = pull.prior  # (C,), or None
        self.spectrum: Spectrum = pull.spectrum
        self.bias_drive = pull.bias_drive  # (C,), kappa
        return self

    def __repr__(self) -> str:
        hard = isinstance(self.spectrum, HardSpectrum | PriorSpectrum)
        kind = ("balanced" if self.balanced else "imbalanced") if hard else "soft labels"
        size = self.targets.size if self.targets is not None else round(self.counts.sum().item())
        loss = f"gamma={self.gamma.item():g}" if self.prior is None else "with a prior"
        return (
            f"LayerPeeled({kind}, examples={size}, num_classes={self.num_classes}, {loss}, "
            f"feature_decay={self.feature_decay.item():g}, weight_decay={self.weight_decay.item():g}, "
            f"critical_decay={self.critical_decay.item():.4g})"
        )

    # ---- what the labels alone decide --------------------------------------------------------------------------------

    @property
    def balanced(self) -> bool:
        """Whether all classes pull equally (equal counts, or weights that make up for them)  [eq: balanced-modes]."""
        if isinstance(self.spectrum, PriorSpectrum):
            return self.spectrum.balanced
        return isinstance(self.spectrum, HardSpectrum) and len(self.spectrum.beta) == 1

    @property
    def singular_values(self) -> Tensor:
        r"""Singular values of the target matrix :math:`M` with multiplicity, descending, :math:`(\min(C, n),)`."""
        values = self.spectrum.sigma[:-1].repeat_interleave(multiplicities(self.spectrum))
        return values.abs().sort(descending=True).values

    @property
    def critical_decay(self) -> Tensor:
        r"""The largest singular value: growth stops when :math:`\lambda_1\lambda_2` reaches its square
        [eq: critical-decay]."""
        return self.singular_values[0]

    def best_gamma(self, ratio: float = 1.0) -> float:
        r"""The fastest :math:`\gamma` at these decays and :math:`\eta_1/\eta_2` = `ratio`, for balanced labels
        [eq: best-gamma]."""
        if self.prior is not None:
            raise ValueError("best_gamma is about the loss with gamma; this problem has a prior instead.")
        if not self.balanced:
            raise ValueError(
                "the fastest gamma is known for balanced labels; with imbalance every gamma below 2/(C-2) ends in the "
                'collapse of the smaller classes. Restore balance with class_weight="sqrt" first.'
            )
        assert isinstance(self.spectrum, HardSpectrum)
        unit = (self.spectrum.unit.detach().sqrt() / (1 + self.gamma.detach())).item()
        return best_gamma(self.num_classes, unit, self.feature_decay.item(), self.weight_decay.item(), ratio)

    def modes(
        self,
        lr: Rate = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        decoupled: bool = False,
        discrete: bool | None = None,
    ) -> Modes:
        r"""Singular value, multiplicity and growth of each group of modes, descending  [eq: eigenvalues].

        Arguments:
            lr: As in :meth:`flow`; a schedule counts by the constant rate that it ends with.
            momentum, dampening, nesterov, decoupled: As in :meth:`descent`.
            discrete: Whether `growth` is per step of :meth:`descent` instead of per unit of time of :meth:`flow`. By
                default it is where one of the options of descent is given.

        ``modes.growth`` is the exponent :math:`\omega` of the fastest part of each group: its norm behaves as
        :math:`e^{\omega t}`. For the flow it is :math:`\eta_2` times

        .. math:: \omega_+(\sigma) = \tfrac12\Big[-(s\lambda_1 + \lambda_2)
                  + \sqrt{(s\lambda_1 - \lambda_2)^2 + 4s\sigma^2}\Big], \qquad s = \eta_1/\eta_2.

        Example:
            >>> LayerPeeled(
            ...     [0, 0, 1, 1, 2, 2], gamma=0.1, feature_decay=0.1, weight_decay=0.1
            ... ).modes(lr=1.0)
            Modes(sigma=[0.2593, 0.1886], multiplicity=[2, 1], growth=[0.1593, 0.08856],
             discrete=False)
        """
        options = _check_momentum(momentum, dampening, nesterov, decoupled)
        chosen = options != Momentum() if discrete is None else discrete
        if options != Momentum() and not chosen:
            raise ValueError("momentum and its options belong to descent: pass discrete=True, or leave it out.")
        return find_modes(self.spectrum, self._rates(rate_pair(lr)), rate_pair(lr), options if chosen else None)

    def plot(self, lr: Rate = 0.1) -> Figure:
        """Singular values and growth of all modes under flow, as a matplotlib figure."""
        from unhinge.theory.plotting import plot_modes

        return plot_modes(self.modes(lr), math.sqrt(self.feature_decay.item() * self.weight_decay.item()))

    # ---- solved paths ------------------------------------------------------------------------------------------------

    def flow(
        self, features: Matrix | Summary, weight: Matrix, bias: Vector | None = None, lr: Rate = 0.1
    ) -> LinearPath:
        r"""Gradient flow of features, prototypes and biases (Theorems 1 and 2)  [eq: flow-solution].

        Arguments:
            features: Initial features :math:`(n, p)`, or the summary of a streamed pass.
            weight: Initial prototypes :math:`(C, p)`.
            bias: Initial biases :math:`(C,)`, or `None` for a model without.
            lr: A rate, a :class:`Schedule` or a function of time; or a pair (features, classifier) of these.
                Proportional pairs, for example ``(2 * schedule, schedule)``, are solved in closed form at any time;
                others through small ODEs.
        """
        return durable(LayerPeeled._flow, self, features, weight, bias, rate_pair(lr))

    def _flow(
        self,
        features: Matrix | Summary,
        weight: Matrix,
        bias: Vector | None,
        schedules: tuple[Schedule, Schedule],
    ) -> LinearPath:
        start = self._start(self._reduce(features, weight, bias))
        propagator = flow_propagator(self.spectrum, self._rates(schedules), schedules, start.factor)
        return self._path(start, propagator, schedules[1], FlowSymbol(schedules[1].shape), discrete=False)

    def descent(
        self,
        features: Matrix | Summary,
        weight: Matrix,
        bias: Vector | None = None,
        lr: Rate = 0.1,
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
        options = _check_momentum(momentum, dampening, nesterov, decoupled)
        return durable(LayerPeeled._descent, self, features, weight, bias, rate_pair(lr), options)

    def _descent(
        self,
        features: Matrix | Summary,
        weight: Matrix,
        bias: Vector | None,
        schedules: tuple[Schedule, Schedule],
        options: Momentum,
    ) -> LinearPath:
        start = self._start(self._reduce(features, weight, bias))
        propagator = descent_propagator(self.spectrum, self._rates(schedules), schedules, options, start.factor)
        symbol = _descent_symbol(schedules[1], self.weight_decay, options)
        return self._path(start, propagator, schedules[1], symbol, discrete=True)

    def anchored(
        self, features: Matrix | Summary, weight: Matrix, bias: Vector | None = None, lr: Rate = 0.1
    ) -> AnchoredPath:
        r"""Gradient flow of the features with the prototypes fixed (Theorem 3)  [eq: anchored].

        Biases, if given, are still trained, at the second rate of a pair `lr`; ``lr=(0.1, 0.0)`` holds them fixed too.
        """
        return durable(LayerPeeled._anchored, self, features, weight, bias, rate_pair(lr), None)

    def anchored_descent(
        self,
        features: Matrix | Summary,
        weight: Matrix,
        bias: Vector | None = None,
        lr: Rate = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        decoupled: bool = False,
    ) -> AnchoredPath:
        """The iterates of ``torch.optim.SGD`` on the features (and biases) with the prototypes fixed
        [eq: anchored]."""
        options = _check_momentum(momentum, dampening, nesterov, decoupled)
        return durable(LayerPeeled._anchored, self, features, weight, bias, rate_pair(lr), options)

    def kernel_flow(
        self, features: Matrix, weight: Matrix, kernel: Kernel, lr: Rate = 0.1, bias: Vector | None = None
    ) -> KernelPath:
        r"""Gradient flow of features that share parameters, through a constant kernel (Theorem 5, replaced)
        [eq: kernel-flow].

        :math:`\mathrm{vec}(H)' = -\eta_1 K \nabla_H`, prototypes and biases as in :meth:`flow`.

        Answers are differentiable in all but the kernel, also where modes meet. Only where the leading modes meet at
        just this gamma or decay and part next to it, the direction jumps, and it and :meth:`KernelPath.distance` have
        no slope by that number.

        Arguments:
            features: Initial features :math:`(n, p)`.
            weight: Initial prototypes :math:`(C, p)`.
            kernel: :math:`K`, symmetric and positive semidefinite, singular or not. Shape :math:`(n, n)`: the same for
                each of the p entries of a feature. Shape :math:`(n p, n p)`: indexed by ``features.reshape(-1)``. Or an
                operator: a function of rows :math:`(n, p)` or of a vector :math:`(n p,)`, a scipy ``LinearOperator``,
                or what :func:`~unhinge.theory.kernel.ntk.empirical_ntk` returns; it is asked for C p products, and only
                for one if its attribute `kind` is ``"example"`` (it then takes any number of columns).
            lr: As in :meth:`flow`; the rates of a pair must be proportional, or one of them zero: ``lr=(0.1, 0.0)``
                holds the prototypes  [eq: kernel-anchored].
            bias: Initial biases :math:`(C,)`, or `None` for a model without.

        Example:
            >>> problem = LayerPeeled(torch.arange(6) % 3, num_classes=3)
            >>> features = torch.eye(6, dtype=torch.float64)
            >>> weight = torch.eye(3, 6, dtype=torch.float64)
            >>> free = torch.eye(6, dtype=torch.float64)
            >>> shared = torch.ones(6, 6, dtype=torch.float64)
            >>> # the largest singular value, times lr
            >>> problem.kernel_flow(features, weight, free).growth()
            tensor(0.0354, dtype=torch.float64)
            >>> # nothing that tells the classes apart can move
            >>> problem.kernel_flow(features, weight, shared).growth()
            tensor(0., dtype=torch.float64)
        """
        return durable(LayerPeeled._kernel_flow, self, features, weight, kernel, rate_pair(lr), bias)

    def _kernel_flow(
        self,
        features: Matrix,
        weight: Matrix,
        kernel: Kernel,
        schedules: tuple[Schedule, Schedule],
        bias: Vector | None,
    ) -> KernelPath:
        decays = self.feature_decay, self.weight_decay
        return solve_kernel(
            self.targets, self.spectrum, self.bias_drive, decays, features, weight, kernel, schedules, bias
        )

    # ---- assembly ----------------------------------------------------------------------------------------------------

    def _rates(self, schedules: tuple[Schedule, Schedule]) -> Rates:
        return Rates(schedules[0].peak, schedules[1].peak, self.feature_decay, self.weight_decay)

    def _reduce(self, features: Matrix | Summary, weight: Matrix, bias: Vector | None) -> CheckedStart:
        return reduce_start(features, weight, bias, self.targets, self.counts, self._factor)

    def _start(self, reduced: CheckedStart) -> Start:
        x, y = self.spectrum.analyze(reduced.rows, reduced.weight)
        return Start(
            rows=reduced.rows,
            x=x,
            y=y,
            group=self.spectrum.group,
            spread=reduced.spread,
            aside=self.spectrum.untouched(reduced.weight),
            weight=reduced.weight,
            bias=reduced.bias,
            features=reduced.features,
            targets=self.targets if reduced.features is not None else None,
            counts=self.counts,
            by_class=self._factor is None,
            unit=reduced.unit,
            like=reduced.like,
        )

    def _biases(self, start: Tensor | None, schedule: Schedule, symbol: Symbol) -> Biases | None:
        if start is None:
            return None
        return Biases(start=start, drive=self.bias_drive, rate=schedule.peak, decay=self.weight_decay, symbol=symbol)

    def _path(
        self, start: Start, propagator: Propagator, schedule: Schedule, symbol: Symbol, discrete: bool
    ) -> LinearPath:
        biases = self._biases(start.bias, schedule, symbol)
        return LinearPath(spectrum=self.spectrum, propagator=propagator, start=start, biases=biases, discrete=discrete)

    def _anchored(
        self,
        features: Matrix | Summary,
        weight: Matrix,
        bias: Vector | None,
        schedules: tuple[Schedule, Schedule],
        options: Momentum | None,
    ) -> AnchoredPath:
        """Descent with these options, or flow."""
        decays = self.feature_decay, self.weight_decay
        symbols = [
            FlowSymbol(schedule.shape) if options is None else _descent_symbol(schedule, decay, options)
            for schedule, decay in zip(schedules, decays, strict=True)
        ]
        reduced = self._reduce(features, weight, bias)
        y = self.spectrum.analyze(reduced.rows, reduced.weight)[1]
        sigma = self.spectrum.sigma[self.spectrum.group].to(y)[:, None]
        pull, _ = self.spectrum.synthesize(sigma * y, y)
        return AnchoredPath(
            rows=reduced.rows,
            pull=pull,
            spread=reduced.spread,
            weight=reduced.weight,
            features=reduced.features,
            targets=self.targets if reduced.features is not None else None,
            counts=self.counts,
            by_class=self._factor is None,
            biases=self._biases(reduced.bias, schedules[1], symbols[1]),
            symbol=symbols[0],
            schedule=schedules[0],
            decay=self.feature_decay,
            discrete=options is not None,
            unit=reduced.unit,
            like=reduced.like,
        )


def _descent_symbol(schedule: Schedule, decay: Tensor, options: Momentum) -> Symbol:
    """What the optimizer makes of variables that follow one schedule and one decay."""
    if not options.factor:
        return DescentSymbol(schedule.shape)
    shrink = schedule.peak * decay if options.decoupled else torch.zeros_like(decay)
    return MomentumSymbol(schedule.shape, options, shrink)


def _check_momentum(momentum: float, dampening: float, nesterov: bool, decoupled: bool) -> Momentum:
    check_number("momentum", momentum)
    check_number("dampening", dampening)
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum}.")
    if not 0 <= dampening <= 1:
        raise ValueError(f"dampening must lie in [0, 1], got {dampening}.")
    if nesterov and (momentum <= 0 or dampening != 0):
        raise ValueError(
            f"Nesterov momentum needs momentum > 0 and dampening = 0 (as in torch.optim.SGD), got momentum={momentum}, "
            f"dampening={dampening}."
        )
    return Momentum(momentum, dampening, nesterov, decoupled)
