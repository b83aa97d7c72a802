r"""Paths under the loss :math:`-z_y + q^\top z` against mpmath at 100 digits  [eq: prior-modes]."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import (
    EPS,
    DenseDescent,
    DenseFlow,
    assert_exact,
    objective,
    run_sgd,
    singular_values,
)
from strategies import Case, make_case
from unhinge import LayerPeeled
from unhinge.theory.linear.doubled import Doubled, doubled


def distribution(*values: float) -> torch.Tensor:
    vector = torch.tensor(values, dtype=torch.float64)
    return vector / vector.sum()


NAMED: dict[str, Case] = {
    "counts": make_case([5, 3, 1], prior="counts", bias=True),
    "counts, ties": make_case([4, 2, 2, 1, 1], prior="counts"),
    "counts, balanced": make_case([3, 3, 3], prior="counts", bias=True),
    "counts, near tie": make_case([9, 8, 1], prior="counts"),
    "counts, weighted": make_case([4, 2, 1], prior="counts", class_weight=torch.tensor([1.0, 3.0, 0.5]), bias=True),
    "counts, sqrt weights": make_case([6, 3, 1], prior="counts", class_weight="sqrt", bias=True),
    "uniform": make_case([5, 3, 1], prior=distribution(1, 1, 1), bias=True),
    "general, balanced": make_case([2, 2, 2, 2], prior=distribution(1, 2, 3, 4), bias=True),
    "general": make_case([5, 3, 2, 2], prior=distribution(4, 1, 3, 2), lr=(0.3, 0.1)),
    "general, tied strengths": make_case([3, 3, 3, 1, 1], prior=distribution(1, 2, 3, 4, 5)),
    "general, partly tied": make_case([3, 3, 3, 3, 1], prior=distribution(1, 1, 1, 4, 5)),
    "one class only": make_case([3, 2], prior=distribution(1, 0)),
    "below zero": make_case([3, 2, 4], prior=distribution(-0.1, 0.5, 0.6)),
    "decays": make_case([4, 2, 1], prior="counts", feature_decay=0.05, weight_decay=0.2, lr=(0.2, 0.05), bias=True),
    "general, decays": make_case([4, 2, 2], prior=distribution(1, 4, 2), feature_decay=0.3, weight_decay=0.1),
}
SOFT = {
    "soft": make_case([3, 3, 3], prior=distribution(1, 2, 3), soft=True, bias=True),
    "soft, counts, weighted": make_case(
        [3, 2, 3], prior="counts", soft=True, class_weight=torch.tensor([1.0, 2.0, 0.5]), bias=True
    ),
}


def agree(case: Case, path: Any, exact: Any, time: float, eps: float = 64.0, log_eps: float = 0.0) -> None:
    state = path.at(time)
    unit = state.normalized()
    assert_exact(unit.features, exact.features, eps, scale=1.0)
    assert_exact(unit.weight, exact.weight, eps, scale=1.0)
    log_norm = float(exact.log_norm)
    assert abs(path.log_norm(time).item() - log_norm) <= max(1e-14 * abs(log_norm), 64 * EPS, log_eps * EPS)
    if case.bias is not None:
        assert_exact(state.bias, exact.bias, 64 + 4 * case.weight_decay * case.lr[1] * time, scale=exact.bias_scale)


@pytest.mark.parametrize("time", [0.0, 1.0, 30.0, 1e3, 1e8, 1e12])
@pytest.mark.parametrize("name", NAMED)
def test_the_flow_is_exact_at_any_time(name: str, time: float) -> None:
    case = NAMED[name]
    agree(case, case.flow(), DenseFlow(case).at(time), time)


@pytest.mark.parametrize("name", NAMED | SOFT)
def test_singular_values(name: str) -> None:
    case = (NAMED | SOFT)[name]
    actual, expected = case.problem().singular_values, singular_values(case)
    assert_exact(actual, torch.tensor(expected, dtype=torch.float64)[: len(actual)], 16)
    modes = case.problem().modes()
    assert int(modes.multiplicity.sum()) == len(actual)


@pytest.mark.parametrize("time", [1.0, 30.0])
@pytest.mark.parametrize("name", SOFT)
def test_soft_labels(name: str, time: float) -> None:
    case = SOFT[name]
    values = singular_values(case)
    gaps = [a - b for a, b in pairwise(values) if a - b > 1e-13 * values[0]]
    # what an SVD in double precision can know: vectors turn by eps sigma_1 / gap, exponents move by eps sigma_1 t
    agree(case, case.flow(), DenseFlow(case).at(time), time, 64 * values[0] / min(gaps), 64 * values[0] * time)


@pytest.mark.parametrize("name", ["counts", "general", "counts, weighted"])
def test_descent_with_momentum(name: str) -> None:
    case = NAMED[name]
    for options in ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}):
        exact = DenseDescent(case, **options).at(200)
        unit = case.descent(**options).at(200).normalized()
        assert_exact(unit.features, exact.features, 256, scale=1.0)


@pytest.mark.parametrize("name", NAMED | SOFT)
def test_descent_is_sgd_on_the_loss_itself(name: str) -> None:
    case = (NAMED | SOFT)[name]
    steps = [0, 1, 7, 25]
    actual = run_sgd(case, (lambda k: case.lr[0], lambda k: case.lr[1]), steps)
    path = case.descent()
    for step, (features, weight, bias) in zip(steps, actual, strict=True):
        state = path.at(step)
        torch.testing.assert_close(state.features, features, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state.weight, weight, rtol=1e-12, atol=1e-12)
        if bias is not None:
            torch.testing.assert_close(state.bias, bias, rtol=1e-12, atol=1e-12)


@st.composite
def prior_cases(draw: st.DrawFn) -> Case:
    classes = draw(st.integers(2, 5))
    counts = draw(st.lists(st.integers(1, 4), min_size=classes, max_size=classes))
    prior: Any = "counts"
    if draw(st.booleans()):
        # few distinct values, so that ties of strength and of prior meet in every way
        prior = distribution(*draw(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=classes, max_size=classes)))
    weights = None
    if draw(st.booleans()):
        weights = torch.tensor(draw(st.lists(st.sampled_from([1.0, 0.5, 3.0]), min_size=classes, max_size=classes)))
    decays = draw(st.sampled_from([(0.0, 0.0), (0.1, 0.02), (0.5, 0.5)]))
    return make_case(
        counts,
        seed=draw(st.integers(0, 99)),
        prior=prior,
        class_weight=weights,
        feature_decay=decays[0],
        weight_decay=decays[1],
    )


@settings(max_examples=40, deadline=None)
@given(prior_cases(), st.floats(-2, 12))
def test_the_flow_of_any_problem_is_exact(case: Case, power: float) -> None:
    time = 10.0**power
    agree(case, case.flow(), DenseFlow(case).at(time), time)


@settings(max_examples=30, deadline=None)
@given(prior_cases(), st.floats(-2, 2))
def test_the_flow_is_exact_while_modes_compete(case: Case, power: float) -> None:
    values = singular_values(case)
    gaps = [a - b for a, b in pairwise(values) if a - b > 1e-12 * values[0]] or values
    time = min(10.0**power / (min(gaps) * 0.1), 1e12)
    agree(case, case.flow(), DenseFlow(case).at(time), time)


def test_the_frequencies_leave_the_biases_alone() -> None:
    """With q the class frequencies both mean modes vanish, and nothing pulls on the biases."""
    problem = LayerPeeled([0, 0, 0, 1, 1, 2], prior="counts")
    assert torch.equal(problem.bias_drive, torch.zeros(3, dtype=torch.float64))
    assert problem.singular_values[-1] == 0


def test_the_secular_equation_of_the_frequencies() -> None:
    r"""[eq: secular-prior]: n sigma^2 n = mu with sum pi_c / (n_c - mu) = 0."""
    counts = [50, 30, 20, 10, 5]
    labels = [c for c, count in enumerate(counts) for _ in range(count)]
    values = LayerPeeled(labels, prior="counts").singular_values[:-1]
    for value in values.tolist():
        mu = (value * sum(counts)) ** 2
        terms = [n / (n - mu) for n in counts]
        assert abs(math.fsum(terms)) < 1e-10 * sum(abs(t) * n / abs(n - mu) for t, n in zip(terms, counts, strict=True))


def test_a_uniform_prior_is_the_default_loss_slowed_down() -> None:
    case = make_case([5, 3, 1])
    uniform = case.problem(prior=[1 / 3] * 3).flow(case.features, case.weight, lr=0.15)
    default = case.flow(lr=0.1)
    torch.testing.assert_close(uniform.at(40.0).features, default.at(40.0).features, rtol=1e-13, atol=1e-13)


def test_anchored_and_kernel_paths_know_the_prior() -> None:
    case = NAMED["general"]
    problem = case.problem()
    anchored = problem.anchored(case.features, case.weight, lr=0.1)
    slope = (anchored.at(1e-6).features - case.features) / 1e-7
    variables = case.features.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(case, variables, case.weight, None), variables)
    torch.testing.assert_close(slope, -gradient, rtol=1e-6, atol=1e-6)
    eye = torch.eye(len(case.features), dtype=torch.float64)
    through = problem.kernel_flow(case.features, case.weight, eye, lr=0.1).at(30.0)
    free = problem.flow(case.features, case.weight, lr=0.1).at(30.0)
    torch.testing.assert_close(through.features, free.features, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prior": [0.5, 0.5]}, "must hold 3"),
        ({"prior": [0.5, 0.5, 0.5]}, "sum to 1"),
        ({"prior": "uniform"}, '"counts"'),
        ({"prior": "counts", "gamma": 0.1}, "either gamma or prior"),
        ({"prior": [math.nan, 0.5, 0.5]}, "finite"),
    ],
)
def test_wrong_priors_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LayerPeeled([0, 1, 2], **options)


def test_twice_the_precision() -> None:
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 60
        a, b = Decimal(2).sqrt(), Decimal(3).ln()
        one, two = doubled([a]), doubled([b])
        for mine, exact in (
            (one + two, a + b),
            (one - two, a - b),
            (one * two, a * b),
            (one / two, a / b),
            (one.sqrt(), a.sqrt()),
        ):
            actual = Decimal(mine.high.item()) + Decimal(mine.low.item())
            assert abs(actual - exact) < Decimal(10) ** -30
        third = doubled([Decimal(1) / 3] * 7).sum()
        assert abs(Decimal(third.high.item()) + Decimal(third.low.item()) - Decimal(7) / 3) < Decimal(10) ** -30
    assert Doubled.of(torch.ones(2)).value.tolist() == [1.0, 1.0]
