"""No path ever answers NaN, whatever the scales, times, decays and steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import assert_exact
from strategies import Case, cases, make_case, named_cases, soft_cases
from unhinge import LayerPeeled, cosine, warmup

NAMED = named_cases()
SCALES = st.sampled_from([1e-150, 1e-40, 1e-8, 1.0, 1e8, 1e40, 1e150])
QUESTIONS = ("loss", "accuracy", "feature_norm", "weight_norm", "log_norm", "distance")


def tried(question: Callable[[], Any]) -> Any:
    """The answer, or None where a hypothesis fails and a ValueError names it; any other error is ours."""
    with contextlib.suppress(ValueError):
        return question()
    return None


def answers(path, time) -> dict[str, torch.Tensor]:
    """All that a path can be asked at one time and at infinity."""
    answers = {question: tried(lambda q=question: getattr(path, q)(time)) for question in QUESTIONS}
    answers |= {f"collapse {key}": value for key, value in (tried(lambda: path.collapse(time)) or {}).items()}
    try:
        state = path.at(time)
    except ValueError as error:  # biases have no scale apart: a decay that makes them grow is refused beyond floats
        if "too large for the decay" not in str(error):
            raise
    else:
        unit = state.normalized()
        answers |= {"features": state.features, "weight": state.weight, "bias": state.bias}
        answers |= {"log_scale": state.log_scale, "unit features": unit.features, "unit weight": unit.weight}
    answers |= {"growth": tried(path.growth), "rate": tried(path.rate)}
    for name in ("direction", "limit"):
        end = tried(getattr(path, name))
        if end is not None:
            answers |= {f"{name} features": end.features, f"{name} weight": end.weight}
    return {name: value for name, value in answers.items() if value is not None}


def assert_numbers(answers: dict[str, torch.Tensor]) -> None:
    for name, value in answers.items():
        assert not bool(torch.isnan(value).any()), f"{name} is NaN"
    for name in ("features", "weight", "unit features", "unit weight"):
        assert name not in answers or bool(torch.isfinite(answers[name]).all()), f"{name} is infinite"


def scaled(case: Case, one: float, two: float) -> Case:
    return case.change(features=case.features * one, weight=case.weight * two)


@settings(max_examples=40)
@given(cases(), SCALES, SCALES, st.sampled_from([0.0, 1e-12, 1.0, 1e6, 1e12, 1e18]))
def test_the_flow_never_answers_nan(case, one, two, time):
    assert_numbers(answers(scaled(case, one, two).flow(), time))


@settings(max_examples=15)
@given(soft_cases(), SCALES, SCALES, st.sampled_from([0.0, 1.0, 1e6, 1e12]))
def test_the_flow_with_soft_labels_never_answers_nan(case, one, two, time):
    assert_numbers(answers(scaled(case, one, two).flow(), time))


@settings(max_examples=40)
@given(
    cases(),
    SCALES,
    SCALES,
    st.sampled_from([0, 1, 7, 1000, 10**6]),
    st.sampled_from([{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"decoupled": True}]),
    st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
)
def test_descent_never_answers_nan(case, one, two, steps, options, rate):
    case = scaled(case, one, two).change(lr=(rate, rate))
    assert_numbers(answers(case.descent(**options), steps))


@settings(max_examples=15)
@given(cases(), SCALES, SCALES, st.sampled_from([0.0, 1.0, 1e12]), st.booleans())
def test_anchored_paths_never_answer_nan(case, one, two, time, discrete):
    case = scaled(case, one, two)
    kind = case.problem().anchored_descent if discrete else case.problem().anchored
    assert_numbers(answers(kind(case.features, case.weight, case.bias, lr=case.lr), time))


@settings(max_examples=6)
@given(cases(), st.floats(0, 300), st.sampled_from([1e-3, 1.0, 20.0]))
def test_unrelated_schedules_never_answer_nan(case, time, rate):
    path = case.flow(lr=(cosine(rate, total=40), warmup(rate, duration=10)))
    assert_numbers(answers(path, time))


@pytest.mark.parametrize("decay", [1e3, 1e8, 1e150])
@pytest.mark.parametrize("time", [1e-3, 1.0, 1e12])
def test_huge_decays_never_answer_nan(decay, time):
    case = make_case([3, 2, 1], bias=True, feature_decay=decay, weight_decay=decay / 7)
    assert_numbers(answers(case.flow(), time))


@pytest.mark.parametrize("gamma", [1e-300, 1e8, 1e100])
@pytest.mark.parametrize("counts", [[2, 2, 2], [3, 2, 1]], ids=str)
def test_extreme_gammas_never_answer_nan(gamma, counts):
    assert_numbers(answers(make_case(counts, gamma=gamma, bias=True).flow(), 10.0))


@pytest.mark.parametrize("rates", [(1e-12, 1e12), (1e12, 1e-12), (1e-200, 1.0)], ids=str)
def test_extreme_ratios_of_the_rates_never_answer_nan(rates):
    assert_numbers(answers(make_case([3, 2, 1], gamma=0.3, bias=True, lr=rates).flow(), 10.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("time", [0.0, 10.0, 1e6])
def test_narrow_dtypes_never_answer_nan(dtype, time):
    case = make_case([3, 2, 1], dtype=dtype, bias=True)
    actual = answers(case.flow(), time)
    assert_numbers(actual)
    assert actual["features"].dtype == dtype


@pytest.mark.parametrize("power", [-150, -30, 30, 150])
@pytest.mark.parametrize("name", NAMED)
def test_a_common_scale_of_the_start_changes_nothing_but_the_norm(name, power):
    """The dynamics is linear: a power of two passes through exactly, even where squares overflow."""
    case = NAMED[name]
    factor = 2.0 ** (power * 3)
    one, other = case.flow(), scaled(case, factor, factor).flow()
    for time in (0.0, 3.0, 1e9):
        a, b = one.at(time).normalized(), other.at(time).normalized()
        assert_exact(b.features, a.features, 8, scale=1.0)
        assert_exact(b.weight, a.weight, 8, scale=1.0)
        assert other.distance(time).item() == pytest.approx(one.distance(time).item(), rel=1e-12, abs=1e-300)
        shift = other.log_norm(time).item() - one.log_norm(time).item()
        rounding = 4e-16 * abs(one.log_norm(time).item())
        assert shift == pytest.approx(power * 3 * 0.6931471805599453, rel=1e-12, abs=rounding)


@pytest.mark.parametrize("time", [1e4, 1e8])
def test_beyond_the_largest_float_the_state_comes_divided_by_its_norm(time):
    case = make_case([3, 3, 3], lr=(1.0, 1.0))
    state = case.flow().at(time)
    assert state.log_scale.item() == pytest.approx(case.flow().log_norm(time).item(), rel=1e-14)
    size = (state.features.pow(2).sum() + state.weight.pow(2).sum()).sqrt().item()
    assert size == pytest.approx(1.0, rel=4e-16 * state.log_scale.item())  # a logarithm of 1e8 is known to 1e-8 eps


def test_beyond_the_largest_float_norms_and_losses_are_infinite_with_the_right_sign():
    path = make_case([3, 3, 3], lr=(1.0, 1.0)).flow()
    assert path.feature_norm(1e6).item() == float("inf")
    assert path.loss(1e6).item() == -float("inf")
    assert path.log_norm(1e6).item() == pytest.approx(1.5 / (3 * 3**0.5) * 1e6, rel=1e-4)


@pytest.mark.parametrize("kind", ["flow", "kernel"])
def test_a_distance_whose_square_underflows_is_still_a_number(kind):
    labels = torch.arange(12) % 4
    generator = torch.Generator().manual_seed(0)
    features, weight = (torch.randn(rows, 6, generator=generator, dtype=torch.float64) for rows in (12, 4))
    problem = LayerPeeled(labels, 4)
    if kind == "flow":
        path = problem.flow(features, weight, lr=1.0)
    else:
        path = problem.kernel_flow(features, weight, torch.eye(12, dtype=torch.float64), lr=1.0)
    near, far = path.distance(torch.tensor([500.0, 3000.0])).log()  # e^-96 and e^-577, whose square is below any float
    torch.testing.assert_close((far - near) / 2500, path.rate(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5}], ids=str)
@pytest.mark.parametrize("what", ["fixed prototypes", "biases"])
def test_a_decay_that_makes_numbers_grow_is_followed_as_far_as_floats_go_and_then_refused(what, options):
    """lr * decay = 4, so that each step multiplies by -3, or by more than one in size with momentum."""
    case = make_case([2, 2, 2], feature_decay=40.0, weight_decay=40.0, bias=True)
    if what == "biases":
        path = case.problem().descent(case.features, case.weight, case.bias, lr=0.1, **options)
        sizes = [path.at(k).bias.norm().item() for k in (100, 101)]
    else:
        path = case.problem().anchored_descent(case.features, case.weight, lr=0.1, **options)
        sizes = [path.feature_norm(k).item() for k in (100, 101)]
    assert sizes[1] > 1.5 * sizes[0] > 1e10
    with pytest.raises(ValueError, match="too large for the decay"):
        path.loss(3000)
