"""Really simulated SGD beside the exact path, measured alike.

The simulation knows nothing of the closed forms: the mean unhinged loss is written from its definition, autograd gives
the gradient and ``torch.optim.SGD`` makes every step. Both state and path go through the same `measure`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from unhinge.theory import LayerPeeled, Path

__all__ = [
    "Case",
    "Curves",
    "accuracy",
    "anchored_loss",
    "deviation",
    "fitted_rate",
    "follow",
    "free_loss",
    "grid",
    "pull_of",
    "simulate",
    "state_distance",
    "unit",
]

ENTRIES = 1 << 22  # entries of the states held at once

Measures = dict[str, float]
Measure = Callable[[Tensor, Tensor], Measures]


@dataclass(frozen=True)
class Case:
    """One curve of a figure: what differs from the others. `lr` is one rate, or a pair (features, prototypes)."""

    name: str
    gamma: float | None = None
    feature_decay: float = 0.0
    weight_decay: float = 0.0
    lr: float | tuple[float, float] = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    class_weight: Tensor | None = None
    noise: Tensor | None = None  # (C, C), the probability of each label by true class
    anchored: bool = False  # prototypes fixed

    @property
    def rates(self) -> tuple[float, float]:
        return self.lr if isinstance(self.lr, tuple) else (self.lr, self.lr)

    def problem(self, target: Tensor, num_classes: int) -> LayerPeeled:
        labels = target if self.noise is None else self.noise[target]
        return LayerPeeled(
            labels, num_classes, self.gamma, self.feature_decay, self.weight_decay, class_weight=self.class_weight
        )

    def path(self, target: Tensor, features: Tensor, weight: Tensor) -> Path:
        """The exact iterates of the simulated optimizer."""
        problem = self.problem(target, len(weight))
        solve = problem.anchored_descent if self.anchored else problem.descent
        return solve(features, weight, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)

    def flow(self, target: Tensor, features: Tensor, weight: Tensor) -> Path:
        """Gradient flow at the same rate, whose time is the number of steps."""
        problem = self.problem(target, len(weight))
        return (problem.anchored if self.anchored else problem.flow)(features, weight, lr=self.lr)


@dataclass
class Curves:
    """Measured values by quantity, at `steps` along the exact path and at `marks` along the simulation."""

    case: Case
    path: Path
    steps: list[int]
    marks: list[int]
    exact: dict[str, list[float]] = field(default_factory=dict)
    at_marks: dict[str, list[float]] = field(default_factory=dict)  # the exact path where the simulation was recorded
    flow: dict[str, list[float]] = field(default_factory=dict)  # gradient flow there
    sgd: dict[str, list[float]] = field(default_factory=dict)


def grid(last: int, count: int, log: bool = False) -> list[int]:
    """About `count` whole numbers of steps from 0 (or 1, if logarithmic) to `last`, both included.

    Example:
        >>> grid(10, 6)
        [0, 2, 4, 6, 8, 10]
    """
    points = torch.logspace(0, math.log10(last), count) if log else torch.linspace(0, last, count, dtype=torch.float64)
    return sorted({int(point) for point in points.round().tolist()} | {last})


def free_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    gamma: float,
    class_weight: Tensor | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    r"""Mean of :math:`-(1+\gamma) q^\top z + \gamma \mathbf 1^\top z`, :math:`z = W h`, summed class by class.

    The sum over examples is taken before the product with the prototypes, which is the same number without the logits.
    """
    rows = features if class_weight is None else class_weight[target][:, None] * features
    size = float(len(features)) if class_weight is None else class_weight[target].sum().item()
    sums = torch.zeros(len(weight), features.shape[1], dtype=features.dtype).index_add(0, target, rows)
    labelled = sums if noise is None else noise.mT @ sums
    return (gamma * (sums.sum(0) @ weight.sum(0)) - (1 + gamma) * (labelled * weight).sum()) / size


def pull_of(weight: Tensor, target: Tensor, gamma: float) -> Tensor:
    r"""What each feature is drawn with by prototypes, :math:`\big((1+\gamma) w_y - \gamma\sum_c w_c\big)/n`, (n, p)."""
    return ((1 + gamma) * weight[target] - gamma * weight.sum(0)) / len(target)


def anchored_loss(features: Tensor, pull: Tensor) -> Tensor:
    r""":func:`free_loss` for prototypes that do not move: minus the product with :func:`pull_of` them."""
    return -(features * pull).sum()


def simulate(
    variables: Sequence[Tensor],
    loss: Callable[[], Tensor],
    groups: Sequence[dict[str, float]],
    marks: Sequence[int],
    record: Callable[[], Measures],
    after_backward: Callable[[], None] | None = None,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> dict[str, list[float]]:
    """Step ``torch.optim.SGD`` on `variables`, each with its own `groups` options, and record at each mark."""
    options = [{"params": [variable], **group} for variable, group in zip(variables, groups, strict=True)]
    optimizer = torch.optim.SGD(options, lr=0.0, momentum=momentum, nesterov=nesterov, fused=True)
    recorded: dict[str, list[float]] = {}
    done = 0
    for mark in marks:
        for _ in range(mark - done):
            optimizer.zero_grad()
            loss().backward()
            if after_backward is not None:
                after_backward()
            optimizer.step()
        done = mark
        with torch.no_grad():
            for key, value in record().items():
                recorded.setdefault(key, []).append(value)
    return recorded


def follow(
    case: Case,
    target: Tensor,
    start: tuple[Tensor, Tensor],
    measure: Measure,
    steps: Sequence[int],
    marks: Sequence[int],
    with_flow: bool = True,
) -> Curves:
    """The exact path of `case` at `steps` and the simulated one at `marks`, measured alike."""
    features, weight = start
    path = case.path(target, features, weight)
    curves = Curves(case, path, list(steps), list(marks))
    curves.exact = _measured_along(path, steps, measure)
    curves.at_marks = _measured_along(path, marks, measure)
    if with_flow:
        curves.flow = _measured_along(case.flow(target, features, weight), marks, measure)

    gamma = 1 / (len(weight) - 1) if case.gamma is None else case.gamma
    h, w = features.clone().requires_grad_(), weight.clone().requires_grad_()
    groups = [
        {"lr": case.rates[0], "weight_decay": case.feature_decay},
        {"lr": case.rates[1], "weight_decay": case.weight_decay},
    ]
    if case.anchored:
        moving, loss = [h], partial(anchored_loss, h, pull_of(weight, target, gamma))
    else:
        moving, loss = [h, w], partial(free_loss, h, w, target, gamma, case.class_weight, case.noise)
    curves.sgd = simulate(
        moving,
        loss,
        groups[: len(moving)],
        marks,
        lambda: measure(h, w),
        momentum=case.momentum,
        nesterov=case.nesterov,
    )
    return curves


def _measured_along(path: Path, steps: Sequence[int], measure: Measure) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    moments = torch.tensor(list(steps))
    state = path.at(moments[:1])
    for piece in moments.split(max(1, ENTRIES // state.features.numel())):
        state = path.at(piece)
        assert state.log_scale is not None
        for features, weight, log_scale in zip(state.features, state.weight, state.log_scale, strict=True):
            scale = math.exp(min(log_scale.item(), 600.0))
            for key, value in measure(features * scale, weight * scale).items():
                values.setdefault(key, []).append(value)
    return values


# ---- measures -----------------------------------------------------------------------------------------------------


def unit(features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(H, W) divided by its Frobenius norm."""
    norm = torch.hypot(features.norm(), weight.norm())
    return features / norm, weight / norm


def state_distance(features: Tensor, weight: Tensor, reference: tuple[Tensor, Tensor]) -> float:
    """Frobenius distance of (H, W) divided by its norm from `reference`, which has norm 1."""
    state = unit(features, weight)
    return torch.hypot((state[0] - reference[0]).norm(), (state[1] - reference[1]).norm()).item()


def accuracy(features: Tensor, weight: Tensor, target: Tensor) -> float:
    """Share of examples whose largest logit is their label's; prototypes centred, and both scaled to norm 1."""
    head = weight - weight.mean(0)
    logits = (features / features.norm()) @ (head / head.norm()).mT
    return (logits.argmax(-1) == target).double().mean().item()


# ---- comparisons --------------------------------------------------------------------------------------------------


def deviation(simulated: Sequence[float], exact: Sequence[float], relative: bool = True) -> float:
    """Largest difference, relative to the exact value unless told otherwise.

    Values below 1e-9 of the curve's largest are left out: there the simulation's own rounding is what one sees.
    """
    top = max(abs(value) for value in exact)
    worst = 0.0
    for a, b in zip(simulated, exact, strict=True):
        if not relative:
            worst = max(worst, abs(a - b))
        elif abs(b) > 1e-9 * top:
            worst = max(worst, abs(a - b) / abs(b))
    return worst


def fitted_rate(steps: Sequence[int], values: Sequence[float]) -> float:
    """Slope of log(value) per step over the last quarter of the points, those above 1e-12 only."""
    points = [(step, math.log(value)) for step, value in zip(steps, values, strict=True) if value > 1e-12]
    points = points[-max(2, round(len(points) / 4)) :]
    (x0, y0), (x1, y1) = points[0], points[-1]
    return (y1 - y0) / (x1 - x0)
