"""Every kind of path, and every question one can ask it, as two tables.

A case is a name, the numbers that go in, and a function that makes a path of them; an axis of the contract (dtype,
scale, gradient, ...) changes the numbers and asks again. Only public names are used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unhinge import LayerPeeled, Spherical, State, cosine, minibatch_moments, piecewise, summarize, warmup

__all__ = ["MOMENTS", "PATHS", "QUESTIONS", "Case", "Inputs", "answers", "ask", "asked", "flat"]

LEAVES = ("features", "weight", "bias", "gamma", "feature_decay", "weight_decay", "lr", "lr_weight")


@dataclass(frozen=True)
class Inputs:
    """What goes into a path: tensors, arrays, lists or numbers."""

    target: Any
    features: Any
    weight: Any
    bias: Any = None
    gamma: Any = 0.3
    feature_decay: Any = 0.0
    weight_decay: Any = 0.0
    lr: Any = 0.1
    lr_weight: Any = 0.07
    class_weight: Any = None
    kernel: Any = None

    def change(self, **changes: Any) -> Inputs:
        return dataclasses.replace(self, **changes)

    def each(self, function: Callable[[Tensor], Any], *names: str) -> Inputs:
        """`function` applied to each tensor of these names (all that have an axis, if none are given)."""
        chosen = names or ("features", "weight", "bias", "kernel")
        return self.change(**{name: function(x) for name in chosen if isinstance(x := getattr(self, name), Tensor)})

    def leaves(self) -> dict[str, Tensor]:
        """All numbers that answers may depend on smoothly, as float64 tensors with a gradient."""
        given = {name: getattr(self, name) for name in LEAVES}
        return {
            name: torch.as_tensor(value, dtype=torch.float64).detach().clone().requires_grad_()
            for name, value in given.items()
            if value is not None
        }


@dataclass(frozen=True, eq=False)
class Case:
    """One kind of path."""

    inputs: Inputs
    build: Callable[[Inputs], Any]
    discrete: bool = False
    refuses: Mapping[str, str] = field(default_factory=dict)  # questions without an answer, and what the error says
    ignores: tuple[str, ...] = ()  # numbers that no answer depends on
    scaled: Callable[[Inputs, float], Inputs] | None = None  # the inputs of the path that is `factor` times this one
    loss_degree: int = 2  # how the loss scales with the path
    held: bool = False  # whether the prototypes are fixed: then a direction is that of the features alone

    def path(self, inputs: Inputs | None = None) -> Any:
        return self.build(self.inputs if inputs is None else inputs)


# ---- questions ------------------------------------------------------------------------------------------------------

TIMES = torch.tensor([0, 1, 7])
NEAR = 0.5  # the distance that time_to() is asked for


def flat(answer: Any) -> dict[str, Tensor]:
    """Whatever a question returns, as named tensors."""
    if isinstance(answer, State):
        parts = {part.name: getattr(answer, part.name) for part in dataclasses.fields(answer)}
        return {name: value for name, value in parts.items() if value is not None}
    return dict(answer) if isinstance(answer, Mapping) else {"": answer}


# name -> the question at these times; those without a time ignore it
QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "at": lambda path, time: path.at(time),
    "loss": lambda path, time: path.loss(time),
    "accuracy": lambda path, time: path.accuracy(time),
    "feature_norm": lambda path, time: path.feature_norm(time),
    "weight_norm": lambda path, time: path.weight_norm(time),
    "log_norm": lambda path, time: path.log_norm(time),
    "distance": lambda path, time: path.distance(time),
    "collapse": lambda path, time: path.collapse(time),
    "direction": lambda path, _: path.direction(),
    "limit": lambda path, _: path.limit(),
    "growth": lambda path, _: path.growth(),
    "rate": lambda path, _: path.rate(),
    "time_to": lambda path, _: path.time_to(NEAR),
}
OF_TIME = ("at", "loss", "accuracy", "feature_norm", "weight_norm", "log_norm", "distance", "collapse")
MOMENTS_OF_TIME = (
    "feature_norm_squared",
    "weight_norm_squared",
    "within_scatter",
    "between_scatter",
    "log_norm_squared",
)
WITHOUT_SLOPE = ("accuracy",)  # piecewise constant

MOMENT_QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    name: (lambda path, time, name=name: getattr(path, name)(time)) for name in ("loss", *MOMENTS_OF_TIME)
} | {name: (lambda path, _, name=name: getattr(path, name)()) for name in ("growth", "descent_growth", "excess_growth")}


def ask(path: Any, question: str, time: Any = TIMES) -> dict[str, Tensor]:
    table = MOMENT_QUESTIONS if hasattr(path, "log_norm_squared") else QUESTIONS
    return flat(table[question](path, time))


def asked(case: Case) -> list[str]:
    """The questions that this kind of path answers."""
    table = MOMENT_QUESTIONS if case in MOMENTS.values() else QUESTIONS
    return [name for name in table if name not in case.refuses]


def answers(case: Case, path: Any, time: Any = TIMES) -> dict[str, Tensor]:
    """All answers under one name each."""
    return {f"{name}.{part}": value for name in asked(case) for part, value in ask(path, name, time).items()}


# ---- inputs ---------------------------------------------------------------------------------------------------------


def inputs(counts: list[int], dim: int = 5, seed: int = 0, **options: Any) -> Inputs:
    """Features and prototypes around a common mean that is no smaller than they are."""
    generator = torch.Generator().manual_seed(seed)
    classes, size = len(counts), sum(counts)
    labels = torch.repeat_interleave(torch.arange(classes), torch.tensor(counts))
    labels = labels[torch.randperm(size, generator=generator)]

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    features = draw(size, dim) + draw(dim)
    weight = draw(classes, dim) + draw(dim)
    return Inputs(labels, features, weight, draw(classes), **options)


def soft(given: Inputs, seed: int = 1) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    hard = torch.nn.functional.one_hot(given.target).double()
    noise = torch.rand(hard.shape, generator=generator, dtype=torch.float64)
    mixed = 2 * hard + noise
    return given.change(target=mixed / mixed.sum(1, keepdim=True))


def kernel_of(given: Inputs, full: bool = False, seed: int = 2) -> Inputs:
    """A kernel with a nullspace, as those of small networks have; few bits, so that every dtype holds it exactly."""
    generator = torch.Generator().manual_seed(seed)
    size = given.features.numel() if full else len(given.features)
    root = torch.randint(-1, 2, (size, size - 2), generator=generator).double()
    return given.change(kernel=root @ root.mT / 16)


BALANCED = inputs([3, 3, 3], feature_decay=0.05, weight_decay=0.02)
UNEVEN = inputs([5, 3, 2, 2], feature_decay=0.03, weight_decay=0.02)
STRONG = inputs([3, 3, 3], feature_decay=0.9, weight_decay=0.8)
ONE_DECAY = inputs([4, 2, 2], feature_decay=0.04, weight_decay=0.04, gamma=0.25)


# ---- paths ----------------------------------------------------------------------------------------------------------


def problem(given: Inputs) -> LayerPeeled:
    return LayerPeeled(
        given.target,
        len(given.weight),
        gamma=given.gamma,
        feature_decay=given.feature_decay,
        weight_decay=given.weight_decay,
        class_weight=given.class_weight,
    )


def pair(given: Inputs) -> tuple[Any, Any]:
    return given.lr, given.lr_weight


def scheduled(given: Inputs) -> tuple[Any, Any]:
    """Proportional: one shape, two peaks. It settles on a third of the peak after six steps."""
    shape = warmup(cosine(1.0, total=4, end=1 / 3), duration=2, start=0.5)
    return given.lr * shape, given.lr_weight * shape


def dropping(given: Inputs) -> tuple[Any, Any]:
    """Proportional, and constant but for two drops."""
    shape = piecewise([2.0, 5.0], [1.0, 0.5, 0.2])
    return given.lr * shape, given.lr_weight * shape


def unrelated(given: Inputs) -> tuple[Any, Any]:
    """Not proportional, and both settle."""
    return given.lr * cosine(1.0, total=4, end=0.5), given.lr_weight * piecewise([2.0], [1.0, 0.25])


def linear(
    kind: str, rates: Callable[[Inputs], Any] = pair, streamed: bool = False, **options: Any
) -> Callable[[Inputs], Any]:
    def build(given: Inputs) -> Any:
        whole, start = problem(given), given.features
        if streamed:
            batches = [(given.features[part], given.target[part]) for part in (slice(0, 4), slice(4, None))]
            start = summarize(batches, len(given.weight))
            whole = LayerPeeled.from_summary(
                start,
                gamma=given.gamma,
                feature_decay=given.feature_decay,
                weight_decay=given.weight_decay,
                class_weight=given.class_weight,
            )
        return getattr(whole, kind)(start, given.weight, given.bias, lr=rates(given), **options)

    return build


def kernel_flow(given: Inputs, held: bool = False) -> Any:
    rates = given.lr, 0.0 if held else given.lr_weight
    return problem(given).kernel_flow(given.features, given.weight, given.kernel, lr=rates, bias=given.bias)


def spherical(kind: str, rate: Callable[[Inputs], Any] = lambda given: given.lr, **options: Any) -> Any:
    def build(given: Inputs) -> Any:
        whole = Spherical(given.target, given.weight, gamma=given.gamma, feature_decay=given.feature_decay)
        return getattr(whole, kind)(given.features, lr=rate(given), **options)

    return build


def moments(rates: Callable[[Inputs], Any] = pair) -> Callable[[Inputs], Any]:
    def build(given: Inputs) -> Any:
        return minibatch_moments(
            given.target,
            len(given.weight),
            given.features,
            given.weight,
            gamma=given.gamma,
            batch_size=2,
            lr=rates(given),
            feature_decay=given.feature_decay,
            weight_decay=given.weight_decay,
        )

    return build


def all_larger(given: Inputs, factor: float) -> Inputs:
    """Linear in features and prototypes together; the biases have a scale of their own."""
    return given.change(features=given.features * factor, weight=given.weight * factor, bias=None)


def on_the_sphere(power: int) -> Callable[[Inputs, float], Inputs]:
    """Steps relative to the features stay what they are: the rate grows by `power` - 1 factors."""

    def scaled(given: Inputs, factor: float) -> Inputs:
        rate = factor ** (power - 1)
        return given.change(
            features=given.features * factor,
            weight=given.weight * factor,
            lr=given.lr * rate,
            feature_decay=given.feature_decay / rate,
        )

    return scaled


GROWS = {"limit": "diverges"}
STREAMED = {"at": "streamed", "accuracy": "streamed", "direction": "streamed", "limit": "streamed|diverges"}
SPHERE = inputs([3, 2, 4], dim=4)
HELD = ("weight_decay", "lr_weight")
ON_SPHERE = ("bias", "weight_decay", "lr_weight")
SPHERE_DECAY = {name: "feature_decay" for name in ("direction", "limit", "growth", "rate")}


def on_sphere(given: Inputs, solve: Callable[[Inputs], Any], power: int = 2, **more: Any) -> Case:
    """A problem with prototypes that stand still, where only the directions of the features matter."""
    scaled = on_the_sphere(power)
    return Case(given, solve, ignores=ON_SPHERE, scaled=scaled, loss_degree=1, held=True, **more)


PATHS: dict[str, Case] = {
    "flow": Case(BALANCED, linear("flow"), refuses=GROWS),
    "flow, imbalanced": Case(UNEVEN, linear("flow"), refuses=GROWS),
    "flow, decaying": Case(STRONG, linear("flow")),
    "flow, weighted": Case(UNEVEN.change(class_weight="sqrt"), linear("flow"), refuses=GROWS),
    "flow, scheduled": Case(BALANCED, linear("flow", scheduled), refuses=GROWS),
    "ordered flow": Case(UNEVEN, linear("flow", unrelated), refuses=GROWS),
    "ordered flow, decaying": Case(STRONG, linear("flow", unrelated)),
    "descent": Case(BALANCED, linear("descent"), discrete=True, refuses=GROWS),
    "descent, scheduled": Case(UNEVEN, linear("descent", scheduled), discrete=True, refuses=GROWS),
    "momentum": Case(UNEVEN, linear("descent", momentum=0.9), discrete=True, refuses=GROWS),
    "momentum, scheduled": Case(
        BALANCED, linear("descent", scheduled, momentum=0.8, dampening=0.3), discrete=True, refuses=GROWS
    ),
    "descent, dropping": Case(UNEVEN, linear("descent", dropping), discrete=True, refuses=GROWS),
    "momentum, dropping": Case(UNEVEN, linear("descent", dropping, momentum=0.9), discrete=True, refuses=GROWS),
    "nesterov": Case(UNEVEN, linear("descent", momentum=0.7, nesterov=True), discrete=True, refuses=GROWS),
    "decoupled momentum": Case(
        ONE_DECAY,
        linear("descent", lambda given: given.lr, momentum=0.6, decoupled=True),
        discrete=True,
        refuses=GROWS,
        ignores=("lr_weight",),
    ),
    "ordered descent": Case(UNEVEN, linear("descent", unrelated), discrete=True, refuses=GROWS),
    "ordered momentum": Case(BALANCED, linear("descent", unrelated, momentum=0.9), discrete=True, refuses=GROWS),
    "anchored": Case(BALANCED, linear("anchored"), held=True),
    "anchored, no decay": Case(BALANCED.change(feature_decay=0.0), linear("anchored"), held=True, refuses=GROWS),
    "anchored descent": Case(UNEVEN, linear("anchored_descent"), held=True, discrete=True),
    "anchored momentum": Case(BALANCED, linear("anchored_descent", scheduled, momentum=0.8), held=True, discrete=True),
    "soft labels": Case(soft(BALANCED), linear("flow"), refuses=GROWS),
    "soft labels, descent": Case(soft(UNEVEN), linear("descent"), discrete=True, refuses=GROWS),
    "soft labels, anchored": Case(soft(BALANCED), linear("anchored"), held=True),
    "streamed": Case(BALANCED, linear("flow", streamed=True), refuses=STREAMED, ignores=("features",)),
    "streamed, descent": Case(
        UNEVEN, linear("descent", streamed=True), discrete=True, refuses=STREAMED, ignores=("features",)
    ),
    "streamed, anchored": Case(
        UNEVEN, linear("anchored", streamed=True), held=True, refuses=STREAMED, ignores=("features",)
    ),
    "streamed, soft labels": Case(
        soft(BALANCED),
        linear("flow", streamed=True),
        refuses=STREAMED | {"collapse": "streamed"},
        ignores=("features",),
    ),
    "kernel": Case(kernel_of(BALANCED.change(feature_decay=0.0)), kernel_flow, refuses=GROWS),
    "kernel with feature decay": Case(kernel_of(UNEVEN), kernel_flow, refuses=GROWS),
    "kernel, full": Case(kernel_of(inputs([2, 2, 2], dim=3), full=True), kernel_flow, refuses=GROWS),
    "kernel, soft labels": Case(kernel_of(soft(BALANCED).change(feature_decay=0.0)), kernel_flow, refuses=GROWS),
    "kernel, prototypes held": Case(
        kernel_of(BALANCED.change(feature_decay=0.0)), partial(kernel_flow, held=True), refuses=GROWS, ignores=HELD
    ),
    "kernel, prototypes held, decay": Case(kernel_of(UNEVEN), partial(kernel_flow, held=True), ignores=HELD),
    "spherical flow": on_sphere(SPHERE, spherical("flow")),
    "spherical flow with decay": on_sphere(SPHERE.change(feature_decay=0.1, lr=0.3), spherical("flow")),
    "spherical descent": on_sphere(SPHERE.change(lr=3.0), spherical("descent"), discrete=True),
    "spherical descent, scheduled": on_sphere(
        SPHERE.change(lr=0.5),
        spherical("descent", lambda given: given.lr * cosine(1.0, total=5, end=0.5)),
        discrete=True,
    ),
    "spherical descent with decay": on_sphere(
        SPHERE.change(lr=0.8, feature_decay=0.1), spherical("descent"), discrete=True, refuses=SPHERE_DECAY
    ),
    "spherical descent, rescaled": on_sphere(SPHERE, spherical("descent", rescaled=True), 1, discrete=True),
    "spherical flow, rescaled": on_sphere(SPHERE, spherical("flow", rescaled=True), 1),
}

MOMENTS: dict[str, Case] = {
    "minibatch moments": Case(BALANCED, moments(), discrete=True, ignores=("bias",)),
    "minibatch moments, imbalanced": Case(UNEVEN, moments(), discrete=True, ignores=("bias",)),
    "minibatch moments, scheduled": Case(BALANCED, moments(unrelated), discrete=True, ignores=("bias",)),
}
