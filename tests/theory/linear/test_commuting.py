"""Gradient flow against mpmath at 100 digits. Budgets: 64 eps for Z/|Z|, 1e-14 relative for log|Z|."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import EPS, DenseFlow, Exact, ThinFlow, assert_exact, singular_values
from strategies import Case, cases, make_case, named_cases, soft_cases

NAMED = named_cases()
HARD = {name: case for name, case in NAMED.items() if not case.target.is_floating_point()}
SOFT = {name: case for name, case in NAMED.items() if case.target.is_floating_point()}
TIMES = [0.0, 1.0, 30.0, 1e3, 1e8, 1e12]


def agree(case: Case, path, exact: Exact, time: float, eps: float = 64.0, log_eps: float = 0.0) -> None:
    state = path.at(time)
    unit = state.normalized()
    assert_exact(unit.features, exact.features, eps, scale=1.0)
    assert_exact(unit.weight, exact.weight, eps, scale=1.0)
    log_norm = float(exact.log_norm)
    budget = max(1e-14 * abs(log_norm), 64 * EPS, log_eps * EPS)
    assert abs(path.log_norm(time).item() - log_norm) <= budget
    told = math.log((state.features.pow(2).sum() + state.weight.pow(2).sum()).sqrt()) + state.log_scale.item()
    assert abs(told - log_norm) <= budget + 16 * EPS * max(1.0, abs(log_norm))
    if case.bias is not None:
        # exp(-x) of a rounded x is known to x eps, relative to itself
        assert_exact(state.bias, exact.bias, 64 + 4 * case.weight_decay * case.lr[1] * time, scale=exact.bias_scale)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", HARD)
def test_the_flow_is_exact_at_any_time(name, time):
    """[eq: flow-solution], [eq: log-scale]."""
    case = HARD[name]
    agree(case, case.flow(), DenseFlow(case).at(time), time)


@settings(max_examples=60)
@given(cases(), st.floats(-3, 12))
def test_the_flow_of_any_problem_is_exact(case, power):
    time = 10.0**power
    agree(case, case.flow(), DenseFlow(case).at(time), time)


@settings(max_examples=30)
@given(cases(), st.floats(-2, 2))
def test_the_flow_is_exact_while_modes_compete(case, power):
    """Times of the order of the inverse gaps, where every mode still counts and errors of the gaps would show."""
    values = singular_values(case)
    gaps = [a - b for a, b in pairwise(values) if a - b > 1e-12 * values[0]] or values
    time = min(10.0**power / (min(gaps) * math.sqrt(case.lr[0] * case.lr[1])), 1e12)
    agree(case, case.flow(), DenseFlow(case).at(time), time)


@settings(max_examples=20)
@given(cases(kind="long"), st.floats(0, 12))
def test_the_flow_of_strongly_imbalanced_classes_is_exact(case, power):
    """[eq: gaps]."""
    time = 10.0**power
    agree(case, case.flow(), ThinFlow(case).at(time), time)


def soft_budget(case: Case, time: float) -> tuple[float, float]:
    """What an SVD in double precision can know: singular vectors turn by eps sigma_1 / gap, and every exponent moves by
    eps sigma_1 times the clock."""
    values = singular_values(case)
    gaps = [a - b for a, b in pairwise(values)] + [values[-1]]
    small = min((g for g in gaps if g > 1e-13 * values[0]), default=values[0])
    clock = math.sqrt(case.lr[0] * case.lr[1]) * time
    return 64 * max(1.0, values[0] / small), 64 * values[0] * clock


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", SOFT)
def test_the_flow_with_soft_labels_is_as_exact_as_its_svd(name, time):
    case = SOFT[name]
    eps, log_eps = soft_budget(case, time)
    agree(case, case.flow(), DenseFlow(case).at(time), time, eps, log_eps)


@settings(max_examples=20)
@given(soft_cases(), st.floats(-2, 12))
def test_the_flow_of_any_soft_labels_is_as_exact_as_its_svd(case, power):
    time = 10.0**power
    eps, log_eps = soft_budget(case, time)
    agree(case, case.flow(), DenseFlow(case).at(time), time, eps, log_eps)


@settings(max_examples=15)
@given(cases(), st.floats(-2, 5), st.booleans())
def test_the_flow_with_one_side_frozen_is_exact(case, power, features_frozen):
    """A rate of 0 leaves a triangular generator: linear growth without decay, relaxation with."""
    rate = case.lr[1]
    case = case.change(lr=(0.0, rate) if features_frozen else (rate, 0.0))
    time = 10.0**power
    agree(case, case.flow(), ThinFlow(case).at(time), time)


@pytest.mark.parametrize("time", [0.3, 20.0, 1e4])
@pytest.mark.parametrize("name", NAMED)
def test_the_two_oracles_agree(name, time):
    dense, thin = DenseFlow(NAMED[name]).at(time), ThinFlow(NAMED[name]).at(time)
    assert abs(dense.features - thin.features).max() <= EPS
    assert abs(dense.weight - thin.weight).max() <= EPS
    assert abs(dense.log_norm - thin.log_norm) <= 1e-40


@pytest.mark.parametrize("classes", [2, 3, 4, 6, 11])
@pytest.mark.parametrize("edge", [False, True])
def test_a_gamma_that_rounds_from_a_special_fraction_means_the_fraction(classes, edge):
    """[eq: nu]."""
    if edge and classes == 2:
        pytest.skip("two classes have no edge")
    gamma = 2 / (classes - 2) if edge else 1 / (classes - 1)
    case = make_case([1] * classes, gamma=gamma)
    agree(case, case.flow(), DenseFlow(case).at(1e12), 1e12)
    values = case.problem().singular_values
    assert values[-1] == (values[0] if edge else 0.0)
