"""Flow against double-precision judges: expm, DOP853 and autograd. The loose tolerances are theirs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import dense_target_matrix, expm_flow, objective, ode_flow, worst
from oracles.schedules import SCHEDULES
from strategies import Case, cases, make_case, named_cases
from unhinge import LayerPeeled, cosine

NAMED = named_cases()


def near(state, features: np.ndarray, weight: np.ndarray, eps: float, bias: np.ndarray | None = None) -> None:
    size = math.sqrt((features**2).sum() + (weight**2).sum())
    assert worst(state.features, features, size) <= eps
    assert worst(state.weight, weight, size) <= eps
    if bias is not None and state.bias is not None:
        assert worst(state.bias, bias, max(1.0, abs(bias).max())) <= eps


@pytest.mark.parametrize("time", [0.7, 12.0, 90.0])
@pytest.mark.parametrize("name", NAMED)
def test_the_flow_is_the_matrix_exponential(name, time):
    """[eq: flow-solution], [eq: phi]."""
    case = NAMED[name]
    near(case.flow().at(time), *expm_flow(case, time), eps=20_000)


@settings(max_examples=25)
@given(cases(max_size=25), st.floats(0.01, 20))
def test_the_flow_of_any_problem_is_the_matrix_exponential(case, time):
    features, weight = expm_flow(case, time)
    if np.abs(features).max() > 1e-100:
        # expm answers to eps of the norm of the exponential, not of the state, which may be far smaller
        state = case.flow().at(time)
        start = math.sqrt(case.features.pow(2).sum().item() + case.weight.pow(2).sum().item())
        growth = math.exp(case.problem().critical_decay.item() * math.sqrt(case.lr[0] * case.lr[1]) * time)
        scale = start * growth * math.sqrt(max(case.lr) / min(case.lr))
        assert worst(state.features, features, scale) <= 20_000
        assert worst(state.weight, weight, scale) <= 20_000


@pytest.mark.parametrize("time", [3.0, 24.0])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_flow_under_a_schedule_is_that_of_an_ode_solver(name, time):
    schedule, rate, breaks = SCHEDULES[name]
    case = make_case([3, 2, 1], gamma=0.3, bias=True, feature_decay=0.05, weight_decay=0.2)
    features, weight, bias = ode_flow(case, (rate, rate), time, breaks)
    near(case.flow(lr=schedule).at(time), features, weight, 200_000, bias)


PAIRS = [
    ("cosine", "warmup"),
    ("step", "constant"),
    ("piecewise", "exponential"),
    ("function of tensors", "function of floats"),
    ("warmup then cosine", "step at times"),
    ("constant", "cosine with an end"),
]


@pytest.mark.parametrize("time", [2.0, 6.5, 24.0])
@pytest.mark.parametrize("names", PAIRS, ids=str)
@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.3, 0.1)], ids=str)
def test_the_flow_under_unrelated_schedules_is_that_of_an_ode_solver(names, time, decays):
    """[eq: ordered]."""
    (one, rate_one, breaks_one), (two, rate_two, breaks_two) = (SCHEDULES[name] for name in names)
    case = make_case([3, 2, 1], gamma=0.4, bias=True, feature_decay=decays[0], weight_decay=decays[1])
    breaks = sorted({*breaks_one, *breaks_two})
    features, weight, bias = ode_flow(case, (rate_one, rate_two), time, breaks)
    near(case.flow(lr=(one, two)).at(time), features, weight, 200_000, bias)


@pytest.mark.parametrize("name", ["balanced", "gamma zero", "imbalanced", "weighted", "soft", "soft, weighted"])
def test_unrelated_schedules_solve_every_kind_of_labels(name):
    (one, rate_one, breaks_one), (two, rate_two, breaks_two) = SCHEDULES["cosine"], SCHEDULES["warmup"]
    case = NAMED[name]
    features, weight, bias = ode_flow(case, (rate_one, rate_two), 15.0, sorted({*breaks_one, *breaks_two}))
    near(case.flow(lr=(one, two)).at(15.0), features, weight, 200_000, bias)


@pytest.mark.parametrize("name", ["constant", "cosine", "warmup", "function of tensors"])
def test_proportional_schedules_are_recognised_and_agree_with_the_ode_solver(name):
    schedule, rate, breaks = SCHEDULES[name]
    case = make_case([3, 2, 1], gamma=0.3, bias=True, feature_decay=0.1)
    pair = (3.0 * schedule, schedule) if not callable(schedule) or hasattr(schedule, "peak") else (schedule, schedule)
    factor = 3.0 if pair[0] is not schedule else 1.0
    features, weight, bias = ode_flow(case, (lambda t: factor * rate(t), rate), 9.0, breaks)
    near(case.flow(lr=pair).at(9.0), features, weight, 200_000, bias)


@pytest.mark.parametrize("names", [("cosine", "warmup"), ("piecewise", "function of floats")], ids=str)
@pytest.mark.parametrize("name", ["balanced", "imbalanced", "weighted", "soft"])
def test_anchored_flow_is_that_of_an_ode_solver(name, names):
    (one, rate_one, breaks_one), (two, rate_two, breaks_two) = (SCHEDULES[key] for key in names)
    case = NAMED[name].change(feature_decay=0.2, weight_decay=0.1)
    breaks = sorted({*breaks_one, *breaks_two})
    features, weight, bias = ode_flow(case, (rate_one, rate_two), 15.0, breaks, frozen=True)
    path = case.problem().anchored(case.features, case.weight, case.bias, lr=(one, two))
    near(path.at(15.0), features, weight, 200_000, bias)


@pytest.mark.parametrize("time", [0.0, 1e-3, 5.0, 1e4, 1e12])
@pytest.mark.parametrize("decay", [0.0, 1e-3, 2.0])
@pytest.mark.parametrize("name", ["balanced", "imbalanced", "weighted", "soft"])
def test_anchored_flow_is_theorem_3(name, decay, time):
    """Per entry, h' = eta (v - lambda h) with v = W M: solved by mpmath  [eq: anchored], [eq: falling]."""
    import mpmath as mp

    case = NAMED[name].change(feature_decay=decay)
    pull = dense_target_matrix(case).T @ case.weight.numpy()
    state = case.problem().anchored(case.features, case.weight, lr=0.3).at(time)
    with mp.workdps(50):
        clock = mp.mpf(0.3) * mp.mpf(time)
        keep = mp.exp(-mp.mpf(decay) * clock)
        push = clock if decay == 0 else (1 - keep) / mp.mpf(decay)
        keep, push = float(keep), float(push)
    expected = keep * case.features.numpy() + push * pull
    assert worst(state.features, expected, max(keep, push * np.abs(pull).max())) <= 64
    assert torch.equal(state.weight, case.weight)


@settings(max_examples=20)
@given(cases(), st.floats(0, 20))
def test_the_flow_moves_along_minus_the_gradient(case, time):
    """dZ/dt by a symmetric difference of the path, -lr grad by autograd of the real loss  [eq: problem], [eq: bias]."""
    path = case.flow()
    h = 1e-4 / max(1e-3, *(rate * (1 + case.feature_decay + case.weight_decay) for rate in case.lr))
    before, now, after = (path.at(torch.tensor(time + shift * h, dtype=torch.float64)) for shift in (1, 2, 3))
    parts = [part.clone().requires_grad_() for part in (now.features, now.weight)]
    bias = None if now.bias is None else now.bias.clone().requires_grad_()
    inputs = parts if bias is None else [*parts, bias]
    gradient = torch.autograd.grad(objective(case, *parts, bias), inputs)
    rates = (case.lr[0], case.lr[1], case.lr[1])
    for a, b, g, rate in zip(
        (before.features, before.weight, before.bias),
        (after.features, after.weight, after.bias),
        gradient,
        rates,
        strict=False,
    ):
        size = (now.features.norm() + now.weight.norm()).item() / h
        slope = (b - a) / (2 * h)
        error = (slope + rate * g).abs().max().item()
        assert error <= 1e-6 * rate * g.abs().max().item() + 64 * 2**-52 * size + 1e-9


def test_a_rate_of_zero_moves_nothing():
    case = make_case([3, 2, 1], bias=True)
    state = case.flow(lr=0.0).at(7.0)
    assert torch.allclose(state.features, case.features, rtol=1e-15)
    assert torch.allclose(state.weight, case.weight, rtol=1e-15)
    assert torch.equal(state.bias, case.bias)


def test_a_schedule_can_be_shared_by_different_problems():
    schedule = cosine(0.2, total=30)
    one, two = make_case([2, 2]), make_case([3, 1, 1], seed=4)
    for case in (one, two):
        a = case.flow(lr=schedule).at(30.0)
        b = case.flow(lr=1.0).at(3.0)
        assert torch.allclose(a.features, b.features, rtol=1e-12)


def test_the_paper_configuration_is_solved_in_the_class_space():
    """p = 64, C = 20, N = 4: against expm of the class-space generator only, since the full one is larger."""
    case: Case = make_case([4] * 20, dim=64, lr=(0.5, 0.5))
    features, weight = expm_flow(case, 40.0)
    near(LayerPeeled(case.target, 20).flow(case.features, case.weight, lr=0.5).at(40.0), features, weight, 20_000)
