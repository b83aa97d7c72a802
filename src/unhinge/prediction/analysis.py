"""What training the last layer will do from here: every answer exact for free features under the unhinged loss."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from unhinge.nn.weighting import class_weights
from unhinge.prediction.course import Course, course_of, overflow_step
from unhinge.prediction.files import read_features
from unhinge.prediction.live import measure_model
from unhinge.prediction.measured import Measured, measure_file
from unhinge.prediction.representatives import LimitByClass, ending
from unhinge.prediction.words import SMALL_STEP, findings
from unhinge.results.json import JsonRecord, plain
from unhinge.theory.linear.path import LinearPath
from unhinge.theory.problem import LayerPeeled
from unhinge.theory.validation import scalar

__all__ = ["Mode", "Prediction", "Weighting", "as_measured", "generic_rate", "predict"]


@dataclass(frozen=True)
class Mode:
    """A group of modes that share a singular value."""

    singular_value: float
    multiplicity: int
    growth: float  # exponent per step
    grows: bool


@dataclass(frozen=True)
class Weighting:
    """Where training ends with one kind of class weights."""

    name: str  # none, sqrt, inverse
    weights: list[float]  # per class, mean 1 over the examples
    limit_accuracy: float
    undecided: float
    right_classes: int
    rank: int
    rate: float
    time_to_distance: float


@dataclass(frozen=True)
class Setting:
    """What was given, and what was assumed."""

    num_samples: int
    num_classes: int
    dim: int
    counts: list[int]
    gamma: float
    lr: float
    feature_decay: float
    weight_decay: float
    distance: float
    head: str


@dataclass(frozen=True, eq=False)
class Prediction:
    """Every answer, as numbers; :meth:`as_dict` for JSON, :attr:`findings` in words.

    Times count steps of full-batch gradient descent at the given rate, in the limit of small rates (gradient flow);
    for mini-batches they are the steps of the mean path. Exponents are per step.
    """

    setting: Setting
    spectrum: list[Mode]
    growth: float
    doubling_time: float
    critical_decay: float
    outcome: str  # diverges, vanishes, converges
    rate: float
    half_life: float
    times: dict[float, float]  # distance -> time
    accuracy_now: float | None
    collapse_now: dict[str, float]
    collapse_then: dict[str, float]  # when the distance is reached
    collapse_limit: dict[str, float]
    limit_accuracy: float
    limit_rank: int
    imbalance: float  # largest over smallest class
    weightings: list[Weighting]
    cure: str | None
    best_gamma: float
    best_rate: float
    overflow: float  # the first step from which a logit can be too large for float32
    largest_step: float  # learning rate times the fastest exponent: gradient flow describes descent where it is small
    descent_time: float  # steps of gradient descent, not of flow, to the distance
    course: Course
    measured: Measured
    path: LinearPath
    limit: LimitByClass

    @property
    def findings(self) -> list[str]:
        """The answers in sentences, the most important first."""
        return findings(self)

    def as_dict(self) -> JsonRecord:
        """Numbers, lists and strings only. None stands for what is infinite (never, without bound)."""
        skipped = ("measured", "path", "limit", "course")
        record = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in skipped}
        record["setting"] = asdict(self.setting)
        record["spectrum"] = [asdict(mode) for mode in self.spectrum]
        record["weightings"] = [asdict(weighting) for weighting in self.weightings]
        record["times"] = [{"distance": distance, "time": time} for distance, time in self.times.items()]
        record["course"] = asdict(self.course) | {"peak": self.course.peak, "window": list(self.course.window)}
        record["limit_class_sizes"] = self.limit.sizes
        record["limit_predicted"] = self.limit.predicted
        record["findings"] = self.findings
        return plain(record)


def predict(
    source: Measured | nn.Module | str | Path,
    loader: Iterable[tuple[object, Tensor]] | None = None,
    *,
    gamma: float | None = None,
    lr: float = 0.1,
    feature_decay: float = 0.0,
    weight_decay: float = 0.0,
    distance: float = 0.1,
    head: nn.Module | str | None = None,
    nc4: bool = True,
) -> Prediction:
    r"""What training the last layer and free features under the unhinged loss does from here.

    Arguments:
        source: A file (``.npz``, ``.safetensors``, ``.pt``) with `features`, `labels` and maybe `weight`, `bias`; or a
            live model, with `loader`; or what :func:`~unhinge.prediction.measured.measure_arrays` returned.
        loader: Yields `(inputs, labels)` for a model. Streamed: memory does not depend on the number of examples.
        gamma: Weight of the other logits; `None` means :math:`1/(C-1)`.
        lr: The rate of features and head alike.
        feature_decay, weight_decay: :math:`\lambda_1, \lambda_2`.
        distance: How near to the final direction counts as collapsed, in :math:`\|Z/\|Z\| - \text{direction}\|`.
        head: The last linear layer of a model, itself or by name, where it is not the last one called.
        nc4: Whether to go over the loader twice, for NC4.

    Example:
        >>> from unhinge.prediction import measure_arrays
        >>> frame = torch.eye(3, dtype=torch.float64)
        >>> prediction = predict(
        ...     measure_arrays(frame.repeat(4, 1), torch.arange(12) % 3, weight=frame)
        ... )
        >>> prediction.outcome
        'diverges'
        >>> round(prediction.critical_decay, 4)
        0.25
        >>> prediction.limit_accuracy
        1.0
    """
    measured = as_measured(source, loader, head=head, nc4=nc4)
    if not 0 < distance < 2:
        raise ValueError(f"distance must lie between 0 and 2, got {distance:g}.")
    rate_of_learning = scalar("lr", lr, positive=True).item()
    first, second = scalar("feature_decay", feature_decay).item(), scalar("weight_decay", weight_decay).item()
    classes = measured.num_classes
    gamma = 1 / (classes - 1) if gamma is None else scalar("gamma", gamma).item()
    problem = LayerPeeled.from_summary(measured.classes, gamma, first, second)
    path = _path(measured, problem, rate_of_learning)
    largest = _largest_step(problem, rate_of_learning)
    if largest > 1:
        raise ValueError(
            f"the steps are too large: lr times the fastest exponent is {largest:.3g}, and above 1 some mode of "
            f"gradient descent changes its sign with every step, above 2 it explodes. These answers are those of "
            f"gradient flow. Use an lr of at most {rate_of_learning / largest:.3g}, or smaller decays."
        )
    limit = ending(measured, gamma, first, second)
    growth, rate = path.growth().item(), path.rate().item()
    critical = problem.critical_decay.item()
    wanted = sorted({0.5, 0.1, 0.01, 0.001, distance}, reverse=True)
    times = dict(zip(wanted, path.time_to(torch.tensor(wanted, dtype=torch.float64)).tolist(), strict=True))
    then = times[distance]
    weightings = _weightings(measured, gamma, first, second, rate_of_learning, distance)
    descent = problem.descent(measured.classes, measured.start_weight, measured.bias, lr=rate_of_learning)
    best, best_rate = _best_gamma(measured, first, second, rate_of_learning)
    counts = measured.counts
    return Prediction(
        setting=Setting(
            num_samples=measured.size,
            num_classes=classes,
            dim=measured.dim,
            counts=counts.tolist(),
            gamma=gamma,
            lr=rate_of_learning,
            feature_decay=first,
            weight_decay=second,
            distance=distance,
            head=measured.head_words,
        ),
        spectrum=_modes(problem, rate_of_learning),
        growth=growth,
        doubling_time=math.log(2) / growth if growth > 0 else math.inf,
        critical_decay=critical,
        outcome=_outcome(growth, rate_of_learning * critical),
        rate=rate,
        half_life=math.log(2) / -rate if rate < 0 else math.inf,
        times=times,
        accuracy_now=measured.accuracy,
        collapse_now=measured.collapse,
        collapse_then=_collapse_at(path, then),
        collapse_limit=limit.collapse(),
        limit_accuracy=limit.accuracy,
        limit_rank=limit.rank,
        imbalance=float(counts.max() / counts.min()),
        weightings=weightings,
        cure=None if len(weightings) == 1 else "sqrt",
        best_gamma=best,
        best_rate=best_rate,
        overflow=overflow_step(path),
        largest_step=largest,
        descent_time=descent.time_to(distance).item() if largest > SMALL_STEP else then,
        course=course_of(measured, gamma, first, second, rate_of_learning, 2 * then),
        measured=measured,
        path=path,
        limit=limit,
    )


def as_measured(
    source: Measured | nn.Module | str | Path,
    loader: Iterable[tuple[object, Tensor]] | None,
    *,
    head: nn.Module | str | None,
    nc4: bool,
) -> Measured:
    """The one pass over whatever was given."""
    if isinstance(source, nn.Module):
        if loader is None:
            raise ValueError("a model needs a loader of pairs (inputs, labels): predict(model, loader).")
        return measure_model(source, loader, head, nc4)
    if loader is not None or head is not None:
        raise ValueError(f"loader and head belong to a live model, but the source is a {type(source).__name__}.")
    if isinstance(source, Measured):
        return source
    if isinstance(source, str | Path):
        return measure_file(read_features(source))
    raise ValueError(
        f"source must be a file, a model with a loader, or measured features, got {type(source).__name__}. "
        "For arrays: predict(measure_arrays(features, labels, weight))."
    )


def _path(measured: Measured, problem: LayerPeeled, lr: float) -> LinearPath:
    return problem.flow(measured.classes, measured.start_weight, measured.bias, lr=lr)


def _largest_step(problem: LayerPeeled, lr: float) -> float:
    """The largest absolute exponent of any mode per step of this rate."""
    first, second = problem.feature_decay.item(), problem.weight_decay.item()
    return lr * ((first + second) / 2 + math.hypot((first - second) / 2, problem.critical_decay.item()))


def _outcome(growth: float, scale: float) -> str:
    if abs(growth) <= 1e-12 * scale:  # a difference of two numbers of size `scale`: the rest is rounding
        return "converges"
    return "diverges" if growth > 0 else "vanishes"


def _modes(problem: LayerPeeled, lr: float) -> list[Mode]:
    modes = problem.modes(lr)
    columns = (modes.sigma, modes.multiplicity, modes.growth, modes.grows)
    return [Mode(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _collapse_at(path: LinearPath, time: float) -> dict[str, float]:
    if not math.isfinite(time):
        return {}
    return {key: float(value) for key, value in path.collapse(time).items()}


def _weightings(
    measured: Measured, gamma: float, first: float, second: float, lr: float, distance: float
) -> list[Weighting]:
    """None, the cure, and the inverse frequency that is often recommended; of balanced classes the first alone."""
    counts = measured.counts
    powers = {"none": 0.0, "sqrt": 0.5, "inverse": 1.0}
    if int(counts.min()) == int(counts.max()):
        powers = {"none": 0.0}
    weightings = []
    for name, power in powers.items():
        weights: Tensor | None = class_weights(counts.double(), power) if power else None
        problem = LayerPeeled.from_summary(
            measured.classes, gamma, first, second, class_weight="sqrt" if name == "sqrt" else weights
        )
        path = _path(measured, problem, lr)
        limit = ending(measured, gamma, first, second, weights)
        weightings.append(
            Weighting(
                name=name,
                weights=torch.ones(len(counts)).tolist() if weights is None else weights.tolist(),
                limit_accuracy=limit.accuracy,
                undecided=limit.undecided,
                right_classes=len(limit.right),
                rank=limit.rank,
                rate=path.rate().item(),
                time_to_distance=path.time_to(distance).item(),
            )
        )
    return weightings


def _best_gamma(measured: Measured, first: float, second: float, lr: float) -> tuple[float, float]:
    """The fastest gamma, with the weights that restore balance where it is missing, and the generic rate there."""
    problem = LayerPeeled.from_summary(measured.classes, None, first, second, class_weight="sqrt")
    best = problem.best_gamma()
    return best, generic_rate(measured, best, first, second, lr)


def generic_rate(measured: Measured, gamma: float, feature_decay: float, weight_decay: float, lr: float) -> float:
    r"""Exponent of the distance from the limit for almost every start, with balance restored by weights  [eq: rate].

    It is the gap between the two groups of modes: the classes apart, and all of them together.

    Arguments:
        measured: Only its counts matter.
        gamma: :math:`\gamma`; infinite for its limit, which only two classes have.
        feature_decay, weight_decay: :math:`\lambda_1, \lambda_2`.
        lr: The rate of both.
    """
    if math.isinf(gamma):
        # C = 2: as gamma grows, sigma_1 = (1 + gamma) u and sigma_2 = (gamma - 1) u stay 2 u apart, and decays drop out
        # of the difference. At gamma = 1 the first is 2 u itself.
        unit = LayerPeeled.from_summary(measured.classes, 1.0, class_weight="sqrt").critical_decay.item()
        return -lr * unit
    problem = LayerPeeled.from_summary(measured.classes, gamma, feature_decay, weight_decay, class_weight="sqrt")
    growth = problem.modes(lr).growth.tolist()
    return growth[1] - growth[0] if len(growth) > 1 else 0.0
