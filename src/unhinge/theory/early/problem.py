r"""Real losses linearized at zero logits: cross-entropy while it is young, and others by the same door
[eq: early-problem].

Cross-entropy with offsets :math:`\tau` and temperature T has the gradient :math:`\frac1T(q - e_y)`,
:math:`q = \mathrm{softmax}(\tau)`, at zero logits: exactly that of the linear loss with prior q. So the exact path of
:class:`~unhinge.theory.LayerPeeled` with that prior is its first phase, and a bound computed from the path itself says
for how long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from unhinge.theory.anchored import AnchoredPath
from unhinge.theory.early.certificate import BATCH, Certificate, Forcing
from unhinge.theory.early.loss import LossAtZero, binary_cross_entropy, cross_entropy, focal, squared_error
from unhinge.theory.early.movers import AnchoredMover, Linear, MomentumMover, Mover, PlainMover
from unhinge.theory.early.norms import Norms, Residuals, Weights, measure, summarize_residuals, unseen_residuals
from unhinge.theory.early.path import EarlyPath
from unhinge.theory.keeping import durable
from unhinge.theory.linear.momentum import Momentum
from unhinge.theory.linear.path import LinearPath
from unhinge.theory.linear.spectrum import CLASS_WEIGHT_POWERS
from unhinge.theory.linear.summary import Summary
from unhinge.theory.numerics import spanned
from unhinge.theory.path import Path
from unhinge.theory.problem import LayerPeeled
from unhinge.theory.schedules import Schedule, rate_pair
from unhinge.theory.targets import HardTargets, SoftTargets, Targets, as_targets
from unhinge.theory.types import Kernel, Labels, Matrix, Number, Rate, Vector
from unhinge.theory.validation import as_tensor, check_number, scalar

__all__ = ["EarlyCrossEntropy", "Linearized"]

LONGEST = 100.0  # logarithm of the norm of a start, 1e43: far above it nothing is proved, and its powers overflow
NUMBERS_AT_ONCE = 2**21  # of one array of the certificate: 16 MB
LOSSES = {"binary_cross_entropy": binary_cross_entropy, "squared_error": squared_error}


class Linearized:
    r"""Last-layer training under a smooth loss, linearized at zero logits.

    Arguments:
        target: Integer labels :math:`(n,)`, or soft labels :math:`(n, C)`.
        num_classes: The number of classes; `None` to infer it.
        loss: ``"cross_entropy"``, ``"focal"`` (see `focus`), ``"binary_cross_entropy"`` (one question per class, summed
            over classes) or ``"squared_error"`` (half the squared distance from one-hot targets, summed over classes).
            Each is averaged over examples.
        class_weight, feature_decay, weight_decay: As in :class:`~unhinge.theory.LayerPeeled`.
        focus: The exponent of the focal loss, 0 or at least 1.

    Paths are :class:`~unhinge.theory.early.path.EarlyPath`. For cross-entropy with all its options use
    :class:`EarlyCrossEntropy`.

    Example:
        >>> problem = Linearized(torch.arange(6) % 3, loss="focal")
        >>> features = torch.eye(6, 4, dtype=torch.float64) / 100
        >>> weight = torch.eye(3, 4, dtype=torch.float64) / 100
        >>> path = problem.flow(features, weight, lr=0.1)
        >>> bool(path.error_bound(10.0) < 0.01)
        True
    """

    def __init__(
        self,
        target: Labels,
        num_classes: int | None = None,
        loss: str = "cross_entropy",
        class_weight: Vector | str | None = None,
        feature_decay: Number = 0.0,
        weight_decay: Number = 0.0,
        focus: float = 2.0,
    ) -> None:
        targets = as_targets(target, num_classes)
        classes = targets.num_classes
        if loss == "cross_entropy":
            shape = cross_entropy(classes)
        elif loss == "focal":
            shape = focal(classes, focus)
        elif loss in LOSSES:
            shape = LOSSES[loss](classes)
        else:
            names = ", ".join(f'"{name}"' for name in ("cross_entropy", "focal", *LOSSES))
            raise ValueError(f"loss must be one of {names}, got {loss!r}.")
        if loss == "focal" and isinstance(targets, SoftTargets):
            raise ValueError("the focal loss is defined for integer labels only.")
        if loss == "squared_error" and isinstance(targets, SoftTargets):
            raise ValueError("squared_error is against one-hot targets: pass integer labels.")
        scale = torch.tensor(shape.scale, dtype=torch.float64)
        self._set(target, targets.num_classes, shape, scale, class_weight, feature_decay, weight_decay, 0.0)

    def _set(
        self,
        target: Labels,
        num_classes: int,
        loss: LossAtZero,
        scale: Tensor,  # loss.scale, with its gradient
        class_weight: Vector | str | None,
        feature_decay: Number,
        weight_decay: Number,
        smoothing: float,
    ) -> None:
        self.num_classes = num_classes
        self.shape = loss
        self._smoothing = smoothing
        self.decays = scalar("feature_decay", feature_decay), scalar("weight_decay", weight_decay)
        labels, prior, class_weight, factor = _smoothed(target, num_classes, loss.prior, class_weight, smoothing)
        # Training under scale * loss + decay is training under loss + decay / scale, only `scale` times faster.
        self.scale, features_decay, prototypes_decay = durable(_faster, scale, factor, self.decays)
        self.problem = LayerPeeled(
            labels,
            num_classes,
            loss.gamma,
            features_decay,
            prototypes_decay,
            class_weight,
            prior=prior,
        )
        self._reweight = factor if isinstance(self.problem.targets, SoftTargets) else 1.0

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_classes={self.num_classes}, examples={int(self.problem.counts.sum().round())})"
        )

    # ---- solved paths ------------------------------------------------------------------------------------------------

    def flow(self, features: Matrix | Summary, weight: Matrix, bias: Vector | None = None, lr: Rate = 0.1) -> EarlyPath:
        """Gradient flow of features, prototypes and biases; arguments as in :meth:`LayerPeeled.flow`."""
        schedules = rate_pair(lr)
        path = self.problem.flow(features, weight, bias, lr=self._scaled(schedules))
        return self._early(path, self._certificate(path, PlainMover(self._linear(schedules, discrete=False))))

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
    ) -> EarlyPath:
        """The iterates of ``torch.optim.SGD``; arguments as in :meth:`LayerPeeled.descent`."""
        schedules = rate_pair(lr)
        path = self.problem.descent(
            features, weight, bias, self._scaled(schedules), momentum, dampening, nesterov, decoupled
        )
        linear = self._linear(schedules, discrete=True)
        options = Momentum(momentum, dampening, nesterov, decoupled)
        mover = MomentumMover(linear, options) if momentum else PlainMover(linear)
        return self._early(path, self._certificate(path, mover))

    def anchored(
        self, features: Matrix | Summary, weight: Matrix, bias: Vector | None = None, lr: Rate = 0.1
    ) -> EarlyPath:
        r"""Gradient flow of the features with the prototypes fixed; arguments as in :meth:`LayerPeeled.anchored`.

        With fixed prototypes the real loss is convex, so differences never grow by themselves: the error bound is
        finite at all times. (The focal loss is not convex, and its bound may end.) Biases must be trained at a rate
        proportional to that of the features, or not at all, for anything to be proved.
        """
        schedules = rate_pair(lr)
        path = self.problem.anchored(features, weight, bias, lr=self._scaled(schedules))
        linear = self._linear(schedules, discrete=False, chords=False)
        certificate = None
        if path.biases is None or linear.together or schedules[1].peak.item() == 0:
            mover = AnchoredMover(linear, self.scale.item() * path.unit * path.pull.norm().item())
            certificate = self._certificate(path, mover)
        return self._early(path, certificate)

    def kernel_flow(
        self, features: Matrix, weight: Matrix, kernel: Kernel, lr: Rate = 0.1, bias: Vector | None = None
    ) -> EarlyPath:
        """Gradient flow through a constant kernel; arguments as in :meth:`LayerPeeled.kernel_flow`.

        No error bound is proved here: :meth:`EarlyPath.error_bound` is infinite. A real network's kernel changes as it
        learns, and no bound of this kind would be about the network.
        """
        schedules = rate_pair(lr)
        path = self.problem.kernel_flow(features, weight, kernel, self._scaled(schedules), bias)
        return self._early(path, None)

    # ---- assembly ----------------------------------------------------------------------------------------------------

    def _scaled(self, schedules: tuple[Schedule, Schedule]) -> tuple[Schedule, Schedule]:
        return schedules[0] * self.scale, schedules[1] * self.scale

    def _linear(self, schedules: tuple[Schedule, Schedule], discrete: bool, chords: bool = True) -> Linear:
        weights = self._weights
        return Linear(
            schedules=schedules,
            decays=(self.decays[0].item(), self.decays[1].item()),
            sigma=self.scale.item() * self.problem.critical_decay.item() * (1 + 1e-12),
            discrete=discrete,
            steepness=weights.total * self.shape.curvature(math.inf),
            softness=weights.total * self.shape.diagonal.min().item() * (1 - 1e-12),
            chords=chords,
        )

    def _early(self, path: Path, certificate: Certificate | None) -> EarlyPath:
        share = self._reweight * self.problem.example_weight * self.problem.counts  # (C,), of each label in the mean
        if isinstance(self.problem.targets, HardTargets):
            share = (1 - self._smoothing) * share + self._smoothing / self.num_classes
        return EarlyPath(
            linear=path,
            scale=self.scale,
            base=(share @ self.shape.values).item(),
            discrete=path.discrete,
            certificate=certificate,
        )

    @property
    def _weights(self) -> Weights:
        """The weight of each example in the mean of the real loss."""
        problem, targets = self.problem, self.problem.targets
        assert targets is not None
        each = problem.example_weight * self._reweight
        if isinstance(targets, HardTargets):
            counts = targets.counts.double()
            return Weights(
                alpha=each,
                roots=counts.sqrt(),
                lever=0.0,
                largest=each.max().item(),
                length=(counts * each.square()).sum().sqrt().item(),
                total=(counts * each).sum().item(),
                equal=True,
                examples=targets.size,
            )
        alpha = self._alpha
        return Weights(
            alpha=alpha.max().expand(len(targets.factor)),
            roots=torch.zeros(len(targets.factor), dtype=torch.float64),
            lever=targets.basis.double().norm(dim=1).max().item(),
            largest=alpha.max().item(),
            length=alpha.norm().item(),
            total=alpha.sum().item(),
            equal=bool((alpha - alpha[0]).abs().max() <= 1e-12 * alpha[0]),
            examples=targets.size,
        )

    @property
    def _alpha(self) -> Tensor:
        """The weight of each example, (n,)."""
        targets = self.problem.targets
        each = self.problem.example_weight * self._reweight
        if isinstance(targets, HardTargets):
            return each[targets.labels.cpu()]
        assert isinstance(targets, SoftTargets)
        return targets.expand((targets.factor @ each)[:, None])[:, 0].cpu()

    def _leaning(self, weights: Weights) -> Tensor | None:
        """Where examples of soft labels weigh differently, the row of each in the basis of the reduced features.

        Over all examples what the modes see of the features is orthogonal to the rest, and over those of a class too.
        Over examples of different weights it is not.
        """
        targets = self.problem.targets
        return targets.basis.double().cpu() if isinstance(targets, SoftTargets) and not weights.equal else None

    def _certificate(self, path: LinearPath | AnchoredPath, mover: Mover) -> Certificate | None:
        if path.log_norm(0).item() > LONGEST:
            return None
        weights, biases, batch = self._weights, path.biases is not None, BATCH
        known = weights, self.shape, self._alpha, self._leaning(weights)
        if isinstance(path, AnchoredPath):
            measured: _AnchoredNorms | _FreeNorms = _AnchoredNorms(path, *known)
        else:
            measured = _FreeNorms(path, *known)
            # per node the largest array of `measure` is (rows, classes) or (rows, columns)
            wide = self.num_classes * max(path.start.weight.shape[-1], self.num_classes)
            batch = max(1, min(BATCH, NUMBERS_AT_ONCE // wide))
        return Certificate(
            mover,
            Forcing(self.shape, weights, mover.scales, biases, frozen=isinstance(path, AnchoredPath)),
            measured,
            partial(_log_norm, path),
            self.scale.item() * self.problem.bias_drive.norm().item() if biases else 0.0,
            self.decays[1].item() if biases else 0.0,
            batch,
        )


@dataclass(frozen=True, eq=False, repr=False)
class _FreeNorms:
    """The norms that the certificate asks for along a path of features and prototypes."""

    path: LinearPath
    weights: Weights
    loss: LossAtZero
    alpha: Tensor  # (n,), weight of each example
    leaning: Tensor | None  # (n, r), see `Linearized._leaning`

    @cached_property
    def residuals(self) -> Residuals:
        with torch.no_grad():
            outside = self.path.outside
            if outside is None:
                width = self.path.reduced(0).rows.shape[-1]
                return unseen_residuals(self.path.start.scatter.item(), width, self.weights.largest)
            return summarize_residuals(*outside, self.alpha, self.leaning)

    def __call__(self, moments: Tensor) -> Norms:
        with torch.no_grad():
            state = self.path.reduced(moments)
            loss = self.loss
            return measure(
                *(state.rows, state.weight, state.bias, state.keep, self.residuals, self.weights),
                *(loss.diagonal, loss.vector, loss.centered),
            )


def _log_norm(path: LinearPath | AnchoredPath, moments: Tensor) -> Tensor:
    with torch.no_grad():
        return path.log_norm(moments).double().cpu()


@dataclass(frozen=True, eq=False, repr=False)
class _AnchoredNorms:
    """The same along a path of features towards fixed prototypes."""

    path: AnchoredPath
    weights: Weights
    loss: LossAtZero
    alpha: Tensor  # (n,), weight of each example
    leaning: Tensor | None  # (n, r), see `Linearized._leaning`

    @cached_property
    def small(self) -> tuple[Tensor, Tensor | None]:
        """Rows, pull and prototypes in the directions they span, and those directions if they are fewer than p."""
        path = self.path
        return spanned(torch.cat([path.rows, path.pull, path.weight]).detach().to("cpu", torch.float64) * path.unit)

    @cached_property
    def residuals(self) -> Residuals:
        path, (small, basis) = self.path, self.small
        if path.features is None or path.targets is None:
            return unseen_residuals(path.scatter.item(), small.shape[1], self.weights.largest)
        with torch.no_grad():
            apart = (path.features - path.targets.expand(path.rows)).to("cpu", torch.float64) * path.unit
        return summarize_residuals(apart, basis, self.alpha, self.leaning)

    def __call__(self, moments: Tensor) -> Norms:
        path, loss = self.path, self.loss
        rows, pull, weight = self.small[0].split([len(path.rows), len(path.pull), len(path.weight)])
        with torch.no_grad():
            keep, push = path.coefficients(moments)
            bias = None if path.biases is None else path.biases.at(moments)
            return measure(
                keep[:, None, None] * rows + push[:, None, None] * pull,
                weight.expand(len(moments), *weight.shape),
                *(bias, keep, self.residuals, self.weights, loss.diagonal, loss.vector, loss.centered),
            )


class EarlyCrossEntropy(Linearized):
    r"""Cross-entropy while its logits are small, solved exactly, with a proved error bound.

    The loss is that of ``F.cross_entropy(logits / temperature + logit_adjustment, target, weight=class_weight,
    label_smoothing=label_smoothing)``, plus :math:`\frac{\lambda_1}2\|H\|^2 +
    \frac{\lambda_2}2(\|W\|^2 + \|b\|^2)`. Its gradient at zero logits is that of a linear loss, whose path is exact;
    ``path.error_bound(time)`` bounds the distance of the two, ``path.horizon()`` says for how long it is small.

    Arguments:
        target: Integer labels :math:`(n,)`, or soft labels :math:`(n, C)`.
        num_classes: The number of classes; `None` to infer it.
        label_smoothing: The share in [0, 1) of each label that is spread over all classes.
        class_weight: `None`, positive numbers :math:`(C,)`, ``"sqrt"`` or ``"balanced"``. With soft labels torch
            divides by the number of examples, so the scale of the numbers counts; a name means numbers of mean 1 over
            the labels before they are smoothed, as :func:`~unhinge.nn.class_weights` makes them.
        logit_adjustment: Offsets :math:`(C,)` added to the logits during training, or ``"counts"`` for the logarithm of
            the class frequencies (balanced softmax).
        temperature: The logits are divided by it. Paths are differentiable in it; the error bound is not.
        feature_decay, weight_decay: :math:`\lambda_1` and :math:`\lambda_2`.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> target = torch.arange(50) % 10
        >>> features = 0.01 * torch.randn(
        ...     50, 32, generator=generator, dtype=torch.float64
        ... )
        >>> weight = 0.01 * torch.randn(
        ...     10, 32, generator=generator, dtype=torch.float64
        ... )
        >>> path = EarlyCrossEntropy(target).descent(features, weight, lr=0.05)
        >>> path.accuracy(500)
        tensor(1., dtype=torch.float64)
        >>> bool(path.error_bound(500) < 1e-3)
        True
        >>> int(path.horizon(0.1)) > 1000
        True
    """

    def __init__(
        self,
        target: Labels,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        class_weight: Vector | str | None = None,
        logit_adjustment: Vector | str | None = None,
        temperature: Number = 1.0,
        feature_decay: Number = 0.0,
        weight_decay: Number = 0.0,
    ) -> None:
        targets = as_targets(target, num_classes)
        classes = targets.num_classes
        check_number("label_smoothing", label_smoothing)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}.")
        check_number("temperature", temperature)
        warmth = torch.as_tensor(temperature, dtype=torch.float64).cpu()
        if warmth.numel() != 1 or not (warmth.item() > 0 and math.isfinite(warmth.item())):
            raise ValueError(f"temperature must be one number, positive and finite, got {temperature}.")
        offsets = _check_offsets(logit_adjustment, targets)
        loss = cross_entropy(classes, offsets, warmth.item())
        (scale,) = durable(lambda given: (1 / given.reshape(()),), warmth)
        self._set(target, classes, loss, scale, class_weight, feature_decay, weight_decay, float(label_smoothing))


def _faster(scale: Tensor, factor: float, decays: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The scale of the linear loss, and the decays of the loss without it."""
    whole = scale * factor
    return whole, decays[0] / whole, decays[1] / whole


def _check_offsets(offsets: Vector | str | None, targets: Targets) -> Tensor | None:
    classes = targets.num_classes
    if offsets is None:
        return None
    if isinstance(offsets, str):
        if offsets != "counts":
            raise ValueError(f'logit_adjustment must be None, {classes} numbers or "counts", got "{offsets}".')
        mass = (
            targets.counts.double() if isinstance(targets, HardTargets) else targets.factor.mT @ targets.factor.sum(1)
        )
        if bool((mass <= 0).any()):
            raise ValueError('logit_adjustment="counts" needs every class to occur in the labels.')
        return (mass / mass.sum()).log()
    values = as_tensor("logit_adjustment", offsets).detach().to("cpu", torch.float64)
    if values.shape != (classes,) or not bool(torch.isfinite(values).all()):
        raise ValueError(
            f"logit_adjustment must hold {classes} finite offsets, one for each class, got shape {tuple(values.shape)}."
        )
    return values


def _smoothed(
    target: Labels, num_classes: int, prior: Tensor | None, class_weight: Vector | str | None, smoothing: float
) -> tuple[Labels, Tensor | None, Vector | str | None, float]:
    r"""Labels, prior and weights of the linear loss, and the factor that torch's denominators leave.

    Smoothing by :math:`\varepsilon` without weights turns :math:`I - q\mathbf 1^\top` into :math:`(1-\varepsilon)(I -
    \tilde q\mathbf 1^\top)`, :math:`\tilde q = (q - \varepsilon/C)/(1-\varepsilon)`: another prior. With weights
    torch weighs the smoothed part by class, and the labels become soft. torch divides a loss of indices by the total
    weight of the labels, and a loss of probabilities by the number of examples. Named weights go by the labels before
    they are smoothed, and have the mean 1 over them: integer labels and their one-hot rows are one problem.
    """
    targets, named = as_targets(target, num_classes), isinstance(class_weight, str)
    hard = isinstance(targets, HardTargets)
    if smoothing == 0 and (hard or named):
        return target, prior, class_weight, 1.0
    if hard and class_weight is None:
        assert prior is not None
        return target, (prior - smoothing / num_classes) / (1 - smoothing), None, 1 - smoothing
    if isinstance(targets, HardTargets):
        labels = torch.nn.functional.one_hot(targets.labels.cpu(), num_classes).double()
    else:
        labels = as_tensor("target", target).detach().to("cpu", torch.float64)
    counts, numbers = labels.sum(0), None
    if isinstance(class_weight, str):
        if class_weight not in CLASS_WEIGHT_POWERS or not bool((counts > 0).all()):
            return target, prior, class_weight, 1.0  # refused by LayerPeeled, in its words
        numbers = counts ** -CLASS_WEIGHT_POWERS[class_weight]
    elif class_weight is not None:
        numbers = as_tensor("class_weight", class_weight).detach().to("cpu", torch.float64)
        if numbers.shape != (num_classes,) or not bool((numbers > 0).all()) or not bool(torch.isfinite(numbers).all()):
            return target, prior, class_weight, 1.0  # likewise
    soft = (1 - smoothing) * labels + smoothing / num_classes
    if numbers is None:
        return soft, prior, None, 1.0
    size = (numbers * counts).sum() if hard or named else len(labels)
    return soft, prior, numbers, float((numbers * soft).sum() / size)
