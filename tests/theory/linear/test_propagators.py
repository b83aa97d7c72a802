"""Descent against torch.optim.SGD itself, step by step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import EPS, DenseDescent, Exact, assert_exact, generator, joint_norm, run_sgd
from strategies import Case, cases, make_case, named_cases
from unhinge import LayerPeeled, constant, cosine, exponential, piecewise, step, warmup
from unhinge.theory.linear.momentum import MomentumSymbol

NAMED = named_cases()
STEPS = [0, 1, 2, 10, 77, 200]
OPTIONS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.8, "dampening": 0.3},
    "full dampening": {"momentum": 0.5, "dampening": 1.0},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "decoupled": {"decoupled": True},
    "decoupled momentum": {"momentum": 0.9, "decoupled": True},
    "decoupled nesterov": {"momentum": 0.7, "nesterov": True, "decoupled": True},
    "decoupled dampening": {"momentum": 0.6, "dampening": 0.5, "decoupled": True},
}
# SGD rounds its state at every step: after k of them it is itself off by about k eps, more where steps cancel.
BUDGET = 1e-12


def agree(case: Case, path, rates, steps=STEPS, frozen: bool = False, budget: float = BUDGET, **options) -> None:
    expected = run_sgd(case, rates, steps, frozen=frozen, **options)
    states = path.at(torch.tensor(steps))
    assert states.log_scale is None or bool((states.log_scale == 0).all())
    top = 0.0
    for i, (features, weight, bias) in enumerate(expected):
        top = max(top, 1e-3, joint_norm(features, weight).item())
        error = joint_norm(states.features[i] - features, states.weight[i] - weight).item()
        assert error <= budget * top, f"step {steps[i]}: off by {error / top:.3g} of the norm"
        if bias is not None:
            assert (states.bias[i] - bias).abs().max().item() <= budget * max(1.0, bias.abs().max().item())


def same(rate: float):
    return lambda k: rate


def decays(case: Case) -> Case:
    """The case with decays, so that the ways to apply them differ."""
    return case.change(feature_decay=0.03, weight_decay=0.08)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", NAMED)
def test_descent_is_sgd(name, options):
    """[eq: symbol], [eq: momentum], [eq: propagator]."""
    case = decays(NAMED[name])
    agree(case, case.descent(**options), tuple(same(rate) for rate in case.lr), **options)


def exact(path, expected: Exact, steps: int, eps: float = 64, log_rel: float = 1e-14) -> None:
    """As exact as the flow: 64 eps for Z/|Z|, 1e-14 relative for log|Z|."""
    unit = path.at(steps).normalized()
    assert_exact(unit.features, expected.features, eps, scale=1.0)
    assert_exact(unit.weight, expected.weight, eps, scale=1.0)
    log_norm = float(expected.log_norm)
    assert abs(path.log_norm(steps).item() - log_norm) <= max(log_rel * abs(log_norm), 64 * EPS)


SMALL = {  # the oracle multiplies matrices of twice this size in 100 digits
    "balanced": make_case([1, 1, 1], gamma=0.3, lr=(0.2, 0.1)),
    "two classes": make_case([2, 2], gamma=0.6, lr=(0.05, 0.3)),
    "imbalanced": make_case([2, 1], gamma=0.3),
    "weighted": make_case([1, 2, 1], class_weight=torch.tensor([1.0, 3.0, 0.5])),
}


@pytest.mark.parametrize("steps", [2, 1000, 10**9])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", SMALL)
def test_descent_is_exact_after_any_number_of_steps(name, options, steps):
    case = decays(SMALL[name])
    exact(case.descent(**options), DenseDescent(case, **options).at(steps), steps)


@settings(max_examples=30)
@given(cases(max_size=9), st.sampled_from([1, 7, 300, 10**5, 10**9]), st.booleans())
def test_descent_of_any_problem_is_exact(case, steps, decoupled):
    """Where lr * decay is beyond 1 signs alternate and powers are multiplied out: there a few thousand eps."""
    wild = max(case.lr[0] * case.feature_decay, case.lr[1] * case.weight_decay) >= 1
    path, expected = case.descent(decoupled=decoupled), DenseDescent(case, decoupled=decoupled).at(steps)
    exact(path, expected, steps, 4096 if wild else 64, 1e-13 if wild else 1e-14)


@pytest.mark.parametrize("steps", [10**4, 10**6, 10**8])
@pytest.mark.parametrize("gamma", [1e-4, 1e-7])
def test_momentum_keeps_small_gaps(gamma, steps):
    """At gamma near 0 two modes grow almost alike; their difference decides the direction after 1/gap steps
    [eq: momentum]."""
    case = make_case([2, 2, 2], gamma=gamma)
    exact(case.descent(momentum=0.9), DenseDescent(case, momentum=0.9).at(steps), steps)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_descent_without_decay_is_sgd(options):
    case = make_case([4, 2, 1], gamma=0.3, bias=True, lr=(0.5, 0.2))
    agree(case, case.descent(**options), tuple(same(rate) for rate in case.lr), **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("pair", [(0.2, 0.0), (0.0, 0.2)], ids=str)
@pytest.mark.parametrize("decayed", [False, True], ids=["free", "decayed"])
def test_descent_with_one_rate_zero_is_sgd(pair, options, decayed):
    case = make_case([3, 2, 1], gamma=0.4, bias=True, lr=pair)
    case = decays(case) if decayed else case
    agree(case, case.descent(**options), tuple(same(rate) for rate in pair), **options)


def halves(k) -> float:
    return 0.3 / (1 + 0.1 * float(k))


SCHEDULES = {
    "cosine": (cosine(0.3, total=200), lambda k: 0.15 * (1 + math.cos(math.pi * min(k, 200) / 200))),
    "cosine with an end": (
        cosine(0.3, total=100, end=0.02),
        lambda k: 0.02 + 0.14 * (1 + math.cos(math.pi * min(k, 100) / 100)),
    ),
    "step": (step(0.3, every=30, factor=0.5), lambda k: 0.3 * 0.5 ** (k // 30)),
    "step at times": (step(0.3, every=[20, 90], factor=0.1), lambda k: 0.3 * 0.1 ** ((k >= 20) + (k >= 90))),
    "exponential": (exponential(0.3, decay=0.98), lambda k: 0.3 * 0.98**k),
    "warmup": (warmup(0.3, duration=25), lambda k: 0.3 * min(k / 25, 1.0)),
    "warmup then cosine": (
        warmup(cosine(0.3, total=150), duration=20, start=0.1),
        lambda k: 0.3 * (0.1 + 0.9 * k / 20) if k < 20 else 0.15 * (1 + math.cos(math.pi * min(k - 20, 150) / 150)),
    ),
    "piecewise": (piecewise([10, 60], [0.1, 0.3, 0.05]), lambda k: 0.1 if k < 10 else (0.3 if k < 60 else 0.05)),
    "callable": (halves, halves),
}


@pytest.mark.parametrize("options", [OPTIONS["plain"], OPTIONS["momentum"], OPTIONS["decoupled nesterov"]], ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_descent_follows_schedules_as_sgd_does(name, options):
    schedule, rate = SCHEDULES[name]
    case = decays(make_case([3, 2, 2], gamma=0.3, bias=True))
    agree(case, case.descent(lr=schedule, **options), (rate, rate), **options)


@pytest.mark.parametrize("options", [OPTIONS["plain"], OPTIONS["dampening"]], ids=str)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "callable"])
def test_descent_follows_proportional_pairs_as_sgd_does(name, options):
    schedule, rate = SCHEDULES[name]
    case = decays(make_case([3, 3], gamma=0.3, bias=True))
    path = case.descent(lr=(0.5 * schedule, schedule), **options)
    agree(case, path, (lambda k: 0.5 * rate(k), rate), **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("names", [("cosine", "step"), ("warmup", "callable"), ("exponential", "piecewise")], ids=str)
def test_descent_follows_unrelated_pairs_as_sgd_does(names, options):
    """[eq: ordered-product]."""
    (one, rate_one), (two, rate_two) = (SCHEDULES[name] for name in names)
    case = decays(make_case([3, 2, 1], gamma=0.3, bias=True))
    agree(case, case.descent(lr=(one, two), **options), (rate_one, rate_two), **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("rate", [3.0, 15.0, 30.0])
def test_descent_with_steps_too_large_is_still_sgd(rate, options):
    """lr * decay beyond 1 and beyond 2: signs alternate, norms explode, and the answer is that of SGD."""
    case = make_case([2, 2, 2], gamma=0.3, feature_decay=0.12, weight_decay=0.1, bias=True, lr=(rate, rate))
    steps = STEPS[:-1]  # beyond that the squares of SGD's norms overflow
    expected = run_sgd(case, (same(rate), same(rate)), steps, **options)
    states = case.descent(**options).at(torch.tensor(steps))
    for i, (features, weight, bias) in enumerate(expected):
        size = joint_norm(features, weight)
        unit = states.normalized()
        error = joint_norm(unit.features[i] - features / size, unit.weight[i] - weight / size).item()
        assert error <= 1e-11
        log_norm = joint_norm(states.features[i], states.weight[i]).log() + states.log_scale[i]
        assert abs((log_norm - size.log()).item()) <= 1e-10
        torch.testing.assert_close(states.bias[i], bias, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", ["balanced", "imbalanced", "weighted", "sqrt weights", "soft", "soft, weighted"])
def test_anchored_descent_is_sgd_on_the_features(name, options):
    """[eq: anchored]."""
    case = decays(NAMED[name])
    path = case.problem().anchored_descent(case.features, case.weight, case.bias, lr=case.lr, **options)
    agree(case, path, tuple(same(rate) for rate in case.lr), frozen=True, **options)


@pytest.mark.parametrize("options", [OPTIONS["plain"], OPTIONS["momentum"], OPTIONS["decoupled nesterov"]], ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_anchored_descent_follows_schedules_as_sgd_does(name, options):
    schedule, rate = SCHEDULES[name]
    case = decays(make_case([3, 2, 2], gamma=0.3, bias=True))
    path = case.problem().anchored_descent(case.features, case.weight, case.bias, lr=(schedule, 0.2), **options)
    agree(case, path, (rate, same(0.2)), frozen=True, **options)


@pytest.mark.parametrize("name", ["balanced", "imbalanced", "soft"])
def test_halving_the_step_halves_the_distance_to_the_flow(name):
    case = NAMED[name]
    flow = case.flow(lr=1.0).at(8.0)
    errors = []
    for steps in (400, 800):
        state = case.descent(lr=8.0 / steps).at(steps)
        errors.append(joint_norm(state.features - flow.features, state.weight - flow.weight).item())
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.02)


def step_matrices(case: Case, momentum: float) -> tuple[np.ndarray, np.ndarray]:
    """The first step from Z and each later step, on Z or on (Z, buffer); rates are folded into the buffer."""
    g = generator(case)
    eye = np.eye(len(g))
    if not momentum:
        return eye + g, eye + g
    # b <- mu b - G Z, Z <- Z - b; the first buffer is the gradient itself
    return np.vstack([eye + g, -g]), np.block([[eye + g, -momentum * eye], [-g, momentum * eye]])


@pytest.mark.parametrize("name", ["balanced", "imbalanced", "unequal decays", "soft"])
@pytest.mark.parametrize("options", [OPTIONS["plain"], OPTIONS["momentum"]], ids=str)
def test_a_million_steps_point_where_the_power_of_the_step_does(name, options):
    """Repeated squaring in numpy, rescaled on the way; it loses the digits of small gaps."""
    case = NAMED[name]
    total, power = step_matrices(case, options.get("momentum", 0.0))
    steps = 10**6 - 1
    while steps:
        if steps & 1:
            total = power @ total
            total = total / np.abs(total).max()
        power = power @ power
        power = power / np.abs(power).max()
        steps >>= 1
    start = np.vstack([case.features.numpy(), case.weight.numpy()])
    state = (total @ start)[: len(start)]
    unit = case.descent(**options).at(10**6).normalized()
    actual = torch.cat([unit.features, unit.weight]).numpy()
    assert np.linalg.norm(actual - state / np.linalg.norm(state)) <= 1e-9


def test_descent_takes_a_rate_given_as_a_schedule_or_as_a_number_alike():
    case = make_case([2, 2, 2])
    a, b = case.descent(lr=0.1).at(50), case.descent(lr=constant(0.1)).at(50)
    assert torch.equal(a.features, b.features)


@pytest.mark.parametrize("rate", [0.1, cosine(0.1, 50)], ids=["constant", "schedule"])
@pytest.mark.parametrize("question", ["loss", "log_norm", "feature_norm"])
def test_one_question_evaluates_the_response_of_momentum_twice_at_most(question, rate, monkeypatch):
    """Equal decays have modes of all kinds: uncoupled ones, and two eigenvalues that coincide."""
    calls = {"values": 0, "roots": 0}

    def counted(name: str):
        function = getattr(MomentumSymbol, name)

        def count(self, *arguments):
            calls[name] += 1
            return function(self, *arguments)

        return count

    for name in calls:
        monkeypatch.setattr(MomentumSymbol, name, counted(name))
    path = make_case([4, 4, 4], feature_decay=0.01, weight_decay=0.01).descent(lr=rate, momentum=0.9)
    calls.update(values=0, roots=0)  # solving the path may ask as well
    getattr(path, question)(torch.arange(20))
    assert 1 <= calls["values"] <= 2
    assert calls["roots"] <= 2


@pytest.mark.parametrize("rate", [0.1, 6.0])
@pytest.mark.parametrize(("dampening", "nesterov"), [(0.0, False), (0.3, False), (0.0, True)])
def test_a_decoupled_decay_works_against_what_momentum_has_gathered(rate, dampening, nesterov):
    """The limit is the state that steps lead to, and exists while the decay alone does not overshoot."""
    generator = torch.Generator().manual_seed(0)
    h, w, b = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((4, 3), (2, 3), (2,)))
    problem = LayerPeeled([0, 0, 1, 1], feature_decay=0.3, weight_decay=0.2, gamma=0.4)
    path = problem.anchored_descent(
        h, w, b, lr=(rate, 0.1), momentum=0.9, dampening=dampening, nesterov=nesterov, decoupled=True
    )
    late, limit = path.at(4000), path.limit()
    torch.testing.assert_close(late.features, limit.features)
    torch.testing.assert_close(late.bias, limit.bias)
    torch.testing.assert_close(path.rate(), torch.tensor(1 - 0.3 * rate, dtype=torch.float64).abs().log())


def test_a_distance_below_the_rounding_of_ordered_steps_is_refused():
    h, w = torch.eye(4, dtype=torch.float64), torch.eye(2, 4, dtype=torch.float64)
    path = LayerPeeled([0, 0, 1, 1], feature_decay=0.1).descent(h, w, lr=0.5, momentum=0.5, decoupled=True)
    assert path.distance(path.time_to(1e-12).long()) <= 1e-12
    with pytest.raises(ValueError, match="at least 1e-13 here, got 1e-20"):
        path.time_to(1e-20)


# ---- steps that take a mode to zero in two ---------------------------------------------------------------------------

VANISHING = [0.3, 0.5, 0.81, 0.9]  # momentum: of some the two roots come out as zero, of others as its rounding


@pytest.mark.parametrize("momentum", VANISHING)
@pytest.mark.parametrize("rounding", [-EPS, -EPS / 2, 0.0, EPS, 1e-9])
@pytest.mark.parametrize("name", ["balanced", "two classes", "imbalanced", "soft"])
def test_nesterov_at_the_rate_of_one_over_the_largest_singular_value_is_sgd(name, rounding, momentum):
    """There the step of the fastest shrinking mode has two roots of zero; these paths were once NaN  [eq: momentum]."""
    case = NAMED[name]
    rate = (1 + rounding) / case.problem().critical_decay.item()
    options = {"momentum": momentum, "nesterov": True}
    path = case.descent(lr=rate, **options)
    agree(case, path, (same(rate), same(rate)), [0, 1, 2, 3, 4, 10], **options)
    beside = case.descent(lr=rate * (1 - 1e-7), **options)
    for steps in (0, 1, 2, 3, 5, 20, 60):  # however small it becomes
        assert path.distance(steps).item() == pytest.approx(beside.distance(steps).item(), rel=1e-4), steps


@pytest.mark.parametrize("momentum", VANISHING)
@pytest.mark.parametrize("schedule", [constant(0.5), piecewise([3], [0.1, 0.5]), piecewise([3, 7], [0.1, 0.5, 0.2])])
@pytest.mark.parametrize("kind", ["descent", "anchored_descent"])
def test_nesterov_with_a_rate_times_decay_of_one_is_sgd(kind, schedule, momentum):
    """Biases, and features towards fixed prototypes, then forget where they were in two steps."""
    case = make_case([2, 1], gamma=1.0, feature_decay=2.0, weight_decay=2.0, bias=True)
    options = {"momentum": momentum, "nesterov": True}
    path = getattr(case.problem(), kind)(case.features, case.weight, case.bias, lr=schedule, **options)
    rate = lambda k: schedule(float(k)).item()  # noqa: E731
    agree(case, path, (rate, rate), list(range(13)), frozen=kind != "descent", **options)
    if kind != "descent":
        assert bool(torch.isfinite(path.distance(torch.arange(13))).all())


def test_a_start_that_two_steps_take_to_zero_is_zero_from_then_on():
    features = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    path = LayerPeeled([0, 1], gamma=0.5).descent(features, -features, lr=4 / 3, momentum=0.5, nesterov=True)
    assert path.log_norm([0, 1]).tolist() == pytest.approx([math.log(2), 0.0], abs=1e-15)
    assert path.feature_norm([2, 3, 4, 1000]).tolist() == [0.0] * 4


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 9])
def test_a_mode_that_vanishes_still_has_the_slopes_of_sgd(steps):
    case = make_case([2, 2], gamma=0.5)
    top = case.problem().critical_decay.item()
    rate = torch.tensor(1 / top, dtype=torch.float64, requires_grad=True)
    path = case.problem().descent(case.features, case.weight, lr=rate, momentum=0.5, nesterov=True)
    (slope,) = torch.autograd.grad(path.feature_norm(steps), rate, allow_unused=True)
    width = 1e-6
    norms = [
        case.descent(lr=1 / top + move, momentum=0.5, nesterov=True).feature_norm(steps) for move in (width, -width)
    ]
    expected = ((norms[0] - norms[1]) / (2 * width)).item()
    assert (0.0 if slope is None else slope.item()) == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("options", [{"nesterov": True}, {"decoupled": True}], ids=str)
@pytest.mark.parametrize("momentum", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 9])
def test_where_biases_forget_their_start_they_have_the_slopes_of_their_neighbours(steps, momentum, options):
    """At a rate times decay of one; central differences on both sides of it."""
    case = make_case([2, 1], gamma=1.0, bias=True)

    def answer(rate, decay):
        problem = LayerPeeled(case.target, 2, gamma=1.0, feature_decay=2.0, weight_decay=decay)
        path = problem.anchored_descent(case.features, case.weight, case.bias, lr=rate, momentum=momentum, **options)
        state = path.at(steps)
        return state.features.sum() + state.bias @ torch.tensor([1.0, -2.0], dtype=torch.float64)

    point = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.5, 2.0)]
    slopes = torch.autograd.grad(answer(*point), point)
    width = 1e-6
    for k, slope in enumerate(slopes):
        sides = [answer(*(x + sign * width * (k == place) for place, x in enumerate((0.5, 2.0)))) for sign in (1, -1)]
        assert slope.item() == pytest.approx((sides[0] - sides[1]).item() / (2 * width), rel=1e-6, abs=1e-7)
