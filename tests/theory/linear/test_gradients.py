"""Derivatives of every answer in gamma, decays, rates and the start.

Two judges: the derivative of a dense matrix exponential (exact also where finite differences would step out of the
allowed range), and gradcheck.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from oracles import differentiable_flow, joint_norm, run_sgd, torch_loss
from strategies import Case, make_case, named_cases
from unhinge import LayerPeeled, Schedule, cosine, warmup
from unhinge.theory.schedules import Constant

NAMED = named_cases()
CASES = {
    name: case if case.bias is not None else case.change(bias=torch.linspace(-1, 1, case.num_classes).double())
    for name, case in NAMED.items()
} | {
    "tied": make_case([3, 3, 1, 1], gamma=0.25, bias=True),
    "critical": make_case([4, 4, 4], feature_decay=0.25, weight_decay=0.25, bias=True),
    "soft, balanced": make_case([2, 2, 2], bias=True).change(
        target=torch.eye(3, dtype=torch.float64).repeat(2, 1) * 0.7 + 0.1
    ),
}
TIME = 4.0


def leaves(case: Case) -> dict[str, Tensor]:
    gamma = 1 / (case.num_classes - 1) if case.gamma is None else case.gamma
    values = {
        "gamma": torch.tensor(gamma, dtype=torch.float64),
        "feature_decay": torch.tensor(case.feature_decay, dtype=torch.float64),
        "weight_decay": torch.tensor(case.weight_decay, dtype=torch.float64),
        "lr_features": torch.tensor(case.lr[0], dtype=torch.float64),
        "lr_weight": torch.tensor(case.lr[1], dtype=torch.float64),
        "features": case.features.clone(),
        "weight": case.weight.clone(),
        "bias": case.bias.clone(),
    }
    return {name: value.requires_grad_() for name, value in values.items()}


def solve(case: Case, given: dict[str, Tensor], kind: str = "flow", **options):
    problem = LayerPeeled(
        case.target,
        case.num_classes,
        gamma=given["gamma"],
        feature_decay=given["feature_decay"],
        weight_decay=given["weight_decay"],
        class_weight=case.class_weight,
    )
    lr = given["lr_features"], given["lr_weight"]
    return getattr(problem, kind)(given["features"], given["weight"], given["bias"], lr=lr, **options)


def oracle(case: Case, given: dict[str, Tensor], time: float, shift: float = 0.0):
    return differentiable_flow(
        case,
        given["gamma"],
        (given["feature_decay"], given["weight_decay"]),
        (given["lr_features"], given["lr_weight"]),
        (given["features"], given["weight"], given["bias"]),
        time,
        shift,
    )


def mixed(state: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """One number that every entry of the state enters with its own weight."""
    return sum((part * torch.linspace(0.3, 1.7, part.numel()).double().reshape(part.shape)).sum() for part in state)


def agree(case: Case, ours: Tensor, theirs: Tensor, mine: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    a = torch.autograd.grad(ours, list(mine.values()), allow_unused=True)
    b = torch.autograd.grad(theirs, list(other.values()), allow_unused=True)
    for name, x, y in zip(mine, a, b, strict=True):
        x = torch.zeros_like(mine[name]) if x is None else x
        y = torch.zeros_like(mine[name]) if y is None else y
        scale = max(1e-3, y.abs().max().item())
        error = (x - y).abs().max().item()
        assert error <= 1e-8 * scale, f"in {name}: {x} instead of {y}"


QUESTIONS = {
    "at": lambda path: mixed((path.at(TIME).features, path.at(TIME).weight, path.at(TIME).bias)),
    "loss": lambda path: path.loss(TIME),
    "log_norm": lambda path: path.log_norm(TIME),
    "feature_norm": lambda path: path.feature_norm(TIME),
    "weight_norm": lambda path: path.weight_norm(TIME),
}


def expected(case: Case, question: str, given: dict[str, Tensor]) -> Tensor:
    features, weight, bias = oracle(case, given, TIME)
    if question == "at":
        return mixed((features, weight, bias))
    if question == "loss":
        return torch_loss(case.change(gamma=given["gamma"]), features, weight, bias)
    if question == "log_norm":
        return joint_norm(features, weight).log()
    return features.norm() if question == "feature_norm" else weight.norm()


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_the_matrix_exponential(name, question):
    case = CASES[name]
    mine, other = leaves(case), leaves(case)
    agree(case, QUESTIONS[question](solve(case, mine)), expected(case, question, other), mine, other)


SMOOTH = [  # where the direction does not jump with gamma
    "balanced",
    "two classes",
    "one example per class",
    "unequal decays",
    "strong decays",
    "imbalanced",
    "imbalanced, default gamma",
    "weighted",
    "sqrt weights",
    "soft",
    "tied",
]


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_of_the_distance_are_those_of_the_matrix_exponential(name):
    """The direction is the state at a time when everything else is 1e-13 of it."""
    case = CASES[name]
    mine, other = leaves(case), leaves(case)
    path = solve(case, mine)
    far = 32 / -path.rate().item()
    early, late = oracle(case, other, TIME)[:2], oracle(case, other, far, path.growth().item())[:2]
    a, b = joint_norm(*early), joint_norm(*late)
    distance = joint_norm(early[0] / a - late[0] / b, early[1] / a - late[1] / b)
    agree(case, path.distance(TIME), distance, mine, other)


def perturbed(case: Case, question, wanted: list[str], **options):
    """A function of the wanted inputs, for gradcheck."""
    given = leaves(case)
    fixed = {name: value.detach() for name, value in given.items()}

    def answer(*values: Tensor) -> Tensor:
        return question(solve(case, fixed | dict(zip(wanted, values, strict=True)), **options))

    return answer, [given[name] for name in wanted]


INTERIOR = {
    "balanced": make_case([3, 3, 3], gamma=0.3, feature_decay=0.1, weight_decay=0.2, lr=(0.3, 0.2), bias=True),
    "default gamma": make_case([3, 3, 3], feature_decay=0.1, weight_decay=0.2, lr=(0.3, 0.2), bias=True),
    "imbalanced": make_case([4, 2, 1], gamma=0.3, feature_decay=0.1, weight_decay=0.2, lr=(0.3, 0.2), bias=True),
    "tied": make_case([3, 3, 1], gamma=0.3, feature_decay=0.1, weight_decay=0.2, lr=(0.3, 0.2), bias=True),
    "weighted": make_case(
        [4, 2, 1],
        class_weight=torch.tensor([0.5, 1.0, 3.0]),
        gamma=0.3,
        feature_decay=0.1,
        weight_decay=0.2,
        lr=(0.3, 0.2),
        bias=True,
    ),
    "soft": make_case([3, 2, 2], soft=True, gamma=0.3, feature_decay=0.1, weight_decay=0.2, lr=(0.3, 0.2), bias=True),
}
SCALARS = ["gamma", "feature_decay", "weight_decay", "lr_features", "lr_weight"]
START = ["features", "weight", "bias"]


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(lambda path: path.growth(), id="growth"),
        pytest.param(lambda path: path.time_to(0.05), id="time_to"),
        pytest.param(lambda path: path.distance(torch.tensor([0.5, 9.0])), id="distance"),
    ],
)
@pytest.mark.parametrize("name", INTERIOR)
def test_growth_times_and_distances_pass_gradcheck(name, question):
    answer, inputs = perturbed(INTERIOR[name], question, SCALARS)
    assert gradcheck(answer, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in INTERIOR if name != "default gamma"])
def test_the_rate_passes_gradcheck(name):
    """Not at gamma = 1/(C-1), where the rate has its peak and a kink."""
    answer, inputs = perturbed(INTERIOR[name], lambda path: path.rate(), SCALARS)
    assert gradcheck(answer, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["balanced", "tied", "soft"])
def test_the_start_passes_gradcheck(name):
    def question(path) -> Tensor:
        state = path.at(torch.tensor([0.0, 2.0]))
        parts = [state.features, state.weight, state.bias]
        return torch.stack([*[part.sum() for part in parts], path.distance(3.0), path.time_to(0.1), path.loss(2.0)])

    answer, inputs = perturbed(INTERIOR[name], question, START)
    assert gradcheck(answer, inputs, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.8}, {"momentum": 0.8, "nesterov": True}], ids=str)
@pytest.mark.parametrize("name", ["balanced", "imbalanced", "soft"])
def test_descent_passes_gradcheck(name, options):
    def question(path) -> Tensor:
        state = path.at(30)
        return torch.stack([mixed((state.features, state.weight, state.bias)), path.loss(20), path.log_norm(50)])

    answer, inputs = perturbed(INTERIOR[name], question, [*SCALARS, *START], kind="descent", **options)
    # the start is wide and enters linearly: random projections of its Jacobian are enough
    assert gradcheck(answer, inputs, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.8}], ids=str)
def test_descent_with_decoupled_decay_passes_gradcheck(options):
    def question(path) -> Tensor:
        return torch.stack([path.loss(20), path.log_norm(50)])

    answer, inputs = perturbed(INTERIOR["balanced"], question, SCALARS, kind="descent", decoupled=True, **options)
    assert gradcheck(answer, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["anchored", "anchored_descent"])
@pytest.mark.parametrize("name", ["balanced", "imbalanced", "weighted", "soft"])
def test_anchored_paths_pass_gradcheck(name, kind):
    def question(path) -> Tensor:
        state = path.at(7)
        return torch.stack(
            [
                mixed((state.features, state.weight, state.bias)),
                path.loss(5),
                path.log_norm(3),
                path.distance(9),
                path.feature_norm(4),
                path.rate(),
            ]
        )

    answer, inputs = perturbed(INTERIOR[name], question, [*SCALARS, *START], kind=kind)
    assert gradcheck(answer, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


def test_the_anchored_time_to_a_distance_passes_gradcheck():
    answer, inputs = perturbed(INTERIOR["balanced"], lambda path: path.time_to(0.05), SCALARS[1:4], kind="anchored")
    assert gradcheck(answer, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pair", ["proportional", "unrelated"])
def test_the_peaks_of_schedules_pass_gradcheck(pair):
    case = INTERIOR["imbalanced"]

    def answer(one: Tensor, two: Tensor) -> Tensor:
        shape = cosine(1.0, total=10).shape
        other = shape if pair == "proportional" else warmup(1.0, duration=5).shape
        path = case.flow(lr=(Schedule(one, shape), Schedule(two, other)))
        return torch.stack([path.loss(6.0), path.log_norm(3.0), path.at(8.0).bias.sum()])

    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.3, 0.2)]
    assert gradcheck(answer, inputs, eps=1e-6, atol=1e-6, rtol=1e-5)


def test_a_tensor_rate_is_a_constant_schedule():
    case = INTERIOR["balanced"]
    rate = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    a = case.flow(lr=rate).loss(3.0)
    b = case.flow(lr=Schedule(rate, Constant())).loss(3.0)
    assert torch.equal(a, b)
    (slope,) = torch.autograd.grad(a, rate)
    assert math.isfinite(slope.item())
    assert slope.item() < 0


@pytest.mark.parametrize("name", CASES)
def test_no_derivative_is_ever_nan(name):
    case = CASES[name]
    given = leaves(case)
    path = solve(case, given)
    for time in (0.0, 1.0, 1e3, 1e9):
        for answer in (path.log_norm(time), path.distance(time), path.at(time).normalized().weight.sum()):
            slopes = torch.autograd.grad(answer, list(given.values()), allow_unused=True, retain_graph=True)
            for slope in slopes:
                assert slope is None or bool(torch.isfinite(slope).all())


def test_norms_of_features_that_start_at_zero_have_slopes_in_the_prototypes():
    case = make_case([2, 2, 2])
    weight = case.weight.clone().requires_grad_()

    def norm(given: torch.Tensor) -> torch.Tensor:
        return case.problem().anchored(torch.zeros_like(case.features), given, lr=0.1).feature_norm([0.0, 5.0])

    (slope,) = torch.autograd.grad(norm(weight).sum(), weight)
    shift = torch.zeros_like(case.weight)
    shift[0, 0] = 1e-6
    expected = (norm(case.weight + shift) - norm(case.weight - shift)).sum() / 2e-6
    assert slope[0, 0].item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("counts", [[2, 2, 2], [3, 2, 1]], ids=str)
@pytest.mark.parametrize("kind", ["flow", "descent"])
@pytest.mark.parametrize("question", ["loss", "feature_norm", "weight_norm", "log_norm"])
def test_features_of_zero_have_slopes(question, kind, counts):
    case = make_case(counts, feature_decay=0.1)

    def asked(features: torch.Tensor) -> torch.Tensor:
        return getattr(getattr(case.change(features=features), kind)(), question)(5)

    features = torch.zeros_like(case.features).requires_grad_()
    (slope,) = torch.autograd.grad(asked(features), features)
    shift = torch.zeros_like(case.features)
    shift[0, 0] = 1e-6
    assert slope[0, 0].item() == pytest.approx(((asked(shift) - asked(-shift)) / 2e-6).item(), rel=1e-6)


def special(case: Case) -> dict[str, Case]:
    """Starts that lack a part: their neighbours have it, so what it would become is in every slope."""
    labels = case.target if case.target.ndim == 1 else case.target.argmax(1)
    counts = labels.bincount(minlength=case.num_classes).double()
    apart = case.weight - case.weight.mean(0)
    none = torch.zeros_like(case.features)
    return {
        "collapsed": case.change(features=case.weight[labels].clone()),
        "features of zero": case.change(features=none),
        "prototypes of zero": case.change(weight=torch.zeros_like(case.weight)),
        "both of zero": case.change(features=none, weight=torch.zeros_like(case.weight)),
        "all alike": case.change(features=torch.ones_like(none), weight=torch.ones_like(case.weight)),
        "shrinking": case.change(features=-(apart / counts.clamp(min=1).sqrt()[:, None])[labels], weight=apart),
    }


STARTS = list(special(NAMED["balanced"]))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", CASES)
def test_slopes_where_the_start_lacks_a_part_are_those_of_the_matrix_exponential(name, start):
    case = special(CASES[name])[start]
    for question, asked in QUESTIONS.items():
        if "norm" in question and start == "both of zero":
            continue  # a norm has no slope at zero
        mine, other = leaves(case), leaves(case)
        agree(case, asked(solve(case, mine)), expected(case, question, other), mine, other)


SGD = [{}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "decoupled": True}]


@pytest.mark.parametrize("options", SGD, ids=str)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", ["balanced", "imbalanced, default gamma", "unequal decays", "soft"])
def test_slopes_of_descent_where_the_start_lacks_a_part_are_those_of_sgd(name, start, options):
    case = special(CASES[name])[start].change(bias=None)
    rates = [lambda step, rate=rate: rate for rate in case.lr]

    def sgd(features: Tensor, weight: Tensor) -> Tensor:
        return mixed(run_sgd(case.change(features=features, weight=weight), rates, [3], **options)[0][:2])

    features, weight = case.features.clone().requires_grad_(), case.weight.clone().requires_grad_()
    state = case.change(features=features, weight=weight).descent(**options).at(3)
    slopes = torch.autograd.grad(mixed((state.features, state.weight)), (features, weight))
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        along = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in slopes]
        ahead, behind = (sgd(case.features + sign * along[0], case.weight + sign * along[1]) for sign in (1, -1))
        expected = ((ahead - behind) / 2).item()  # exact: the state is linear in the start
        assert sum((x * y).sum() for x, y in zip(slopes, along, strict=True)).item() == pytest.approx(
            expected, abs=1e-10
        )
