"""What the dynamics keeps, and what it does not care about."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import assert_exact, joint_norm
from strategies import Case, cases, make_case, named_cases
from unhinge import cosine, piecewise, warmup

NAMED = named_cases()


def same_state(a, b, eps: float) -> None:
    """Equal up to `eps` machine epsilons of the norm."""
    size = joint_norm(b.features, b.weight).item()
    assert_exact(a.features, b.features, eps, scale=size)
    assert_exact(a.weight, b.weight, eps, scale=size)
    if b.bias is not None:
        assert_exact(a.bias, b.bias, eps, scale=max(1.0, b.bias.abs().max().item()))


def restart(case: Case, state) -> Case:
    return case.change(features=state.features, weight=state.weight, bias=state.bias)


@settings(max_examples=25)
@given(cases(), st.floats(0, 30), st.floats(0, 30))
def test_waiting_twice_is_waiting_longer(case, first, second):
    """Rounding the state in between costs eps times the condition of the flow; modes that die carry it no further."""
    middle = case.flow().at(first)
    longer = case.flow().at(first + second)
    growth = case.flow().log_norm(first + second).item() - case.flow().log_norm(first).item()
    top = case.problem().critical_decay.item() * math.sqrt(case.lr[0] * case.lr[1])
    condition = math.exp(min(200.0, max(0.0, top * second - growth))) * math.sqrt(max(case.lr) / min(case.lr))
    size = joint_norm(longer.features, longer.weight).item()
    if size > 1e-250:
        again = restart(case, middle).flow().at(second)
        error = joint_norm(again.features - longer.features, again.weight - longer.weight).item()
        assert error <= 512 * 2**-52 * condition * size


@pytest.mark.parametrize("options", [{}, {"decoupled": True}], ids=str)
@pytest.mark.parametrize("name", NAMED)
def test_descending_twice_is_descending_longer(name, options):
    case = NAMED[name]
    again = restart(case, case.descent(**options).at(30)).descent(**options).at(50)
    same_state(again, case.descent(**options).at(80), 512)


@pytest.mark.parametrize("kind", ["flow", "descent", "momentum", "unrelated", "anchored", "anchored_descent"])
@pytest.mark.parametrize("name", NAMED)
def test_time_zero_is_the_start(name, kind):
    case = NAMED[name]
    if kind == "unrelated":
        path = case.flow(lr=(cosine(0.1, total=5, end=0.03), warmup(0.1, duration=3)))
    elif kind.startswith("anchored"):
        path = getattr(case.problem(), kind)(case.features, case.weight, case.bias)
    else:
        path = case.flow() if kind == "flow" else case.descent(momentum=0.9 if kind == "momentum" else 0.0)
    state = path.at(0)
    same_state(state, case, 16)
    assert state.features.shape == case.features.shape


@pytest.mark.parametrize("kind", ["flow", "descent", "momentum", "unrelated", "anchored"])
@pytest.mark.parametrize("name", ["balanced", "imbalanced", "soft"])
def test_many_times_at_once_are_the_times_one_by_one(name, kind):
    case = NAMED[name]
    times = torch.tensor([[40], [0], [500]])
    if kind == "unrelated":
        path = case.flow(lr=(cosine(0.1, total=5, end=0.03), warmup(0.1, duration=3)))
    elif kind == "anchored":
        path = case.problem().anchored(case.features, case.weight, case.bias)
    else:
        path = case.flow() if kind == "flow" else case.descent(momentum=0.9 if kind == "momentum" else 0.0)

    def answers(time: torch.Tensor) -> dict[str, torch.Tensor]:
        state = path.at(time)
        answers = {"features": state.features, "weight": state.weight, "log_scale": state.log_scale}
        if state.bias is not None:
            answers["bias"] = state.bias
        for question in ("loss", "accuracy", "feature_norm", "weight_norm", "log_norm", "distance"):
            answers[question] = getattr(path, question)(time)
        if not (kind == "anchored" and name == "soft"):
            answers |= path.collapse(time)
        return answers

    together = answers(times)
    for i, time in enumerate(times.flatten()):
        for key, single in answers(time).items():
            batch = together[key]
            assert batch.shape == (3, 1, *single.shape)
            torch.testing.assert_close(
                batch[i, 0], single, rtol=1e-10, atol=1e-12 * max(1.0, single.abs().max().item())
            )


def test_a_scalar_time_gives_scalar_answers_and_an_empty_one_empty_answers():
    path = NAMED["balanced"].flow()
    assert path.loss(1.0).shape == ()
    assert path.at(1.0).bias.shape == (3,)
    none = torch.zeros(0)
    assert path.loss(none).shape == (0,)
    assert path.at(none).features.shape == (0, 9, 3)
    assert path.accuracy(none).shape == (0,)


@settings(max_examples=25)
@given(cases(), st.floats(-1, 9), st.randoms(use_true_random=False))
def test_renaming_the_classes_renames_the_answer(case, power, random):
    order = list(range(case.num_classes))
    random.shuffle(order)
    new = torch.tensor(order)  # class c is now called new[c]
    old = torch.argsort(new)
    weights = case.class_weight[old] if isinstance(case.class_weight, torch.Tensor) else case.class_weight
    other = case.change(
        target=new[case.target],
        weight=case.weight[old],
        bias=None if case.bias is None else case.bias[old],
        class_weight=weights,
    )
    a, b = case.flow().at(10.0**power), other.flow().at(10.0**power)
    unit, renamed = a.normalized(), b.normalized()
    assert_exact(renamed.features, unit.features, 64, scale=1.0)
    assert_exact(renamed.weight, unit.weight[old], 64, scale=1.0)
    if case.bias is not None:
        assert_exact(b.bias, a.bias[old], 64, scale=max(1.0, a.bias.abs().max().item()))


@settings(max_examples=25)
@given(cases(), st.floats(-1, 9), st.integers(0, 1000))
def test_rotating_the_features_rotates_the_answer(case, power, seed):
    dim = case.features.shape[1]
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
    other = case.change(features=case.features @ q, weight=case.weight @ q)
    time = 10.0**power
    a, b = case.flow().at(time).normalized(), other.flow().at(time).normalized()
    assert_exact(b.features, a.features @ q, 128, scale=1.0)
    assert_exact(b.weight, a.weight @ q, 128, scale=1.0)
    assert other.flow().log_norm(time).item() == pytest.approx(case.flow().log_norm(time).item(), rel=1e-13, abs=1e-13)


@settings(max_examples=15)
@given(cases(), st.floats(-1, 9), st.randoms(use_true_random=False))
def test_the_order_of_the_examples_does_not_matter(case, power, random):
    order = list(range(len(case.target)))
    random.shuffle(order)
    index = torch.tensor(order)
    other = case.change(features=case.features[index], target=case.target[index])
    a, b = case.flow().at(10.0**power).normalized(), other.flow().at(10.0**power).normalized()
    assert_exact(b.features, a.features[index], 64, scale=1.0)
    assert_exact(b.weight, a.weight, 64, scale=1.0)


@pytest.mark.parametrize("name", [name for name, case in NAMED.items() if case.feature_decay == case.weight_decay == 0])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 30.0])
def test_without_decay_the_difference_of_second_moments_is_conserved(name, ratio):
    """H^T H - s W^T W (p x p), for any labels; the parts grow, so errors count against their size  [eq: invariant]."""
    case = NAMED[name].change(lr=(0.1 * ratio, 0.1))
    start = case.features.mT @ case.features - ratio * case.weight.mT @ case.weight
    state = case.flow().at(6.0)
    both = state.features.mT @ state.features, ratio * state.weight.mT @ state.weight
    size = max(both[0].norm().item(), both[1].norm().item())
    assert_exact(both[0] - both[1], start, 64, scale=size)


@pytest.mark.parametrize("name", NAMED)
def test_one_hot_soft_labels_are_integer_labels(name):
    case = NAMED[name]
    if case.target.is_floating_point():
        pytest.skip("soft already")
    soft = torch.nn.functional.one_hot(case.target, case.num_classes).double()
    a, b = case.flow(), case.change(target=soft).flow()
    same_state(b.at(20.0), a.at(20.0), 1024)
    assert b.loss(20.0).item() == pytest.approx(a.loss(20.0).item(), rel=1e-12)
    assert b.accuracy(20.0).item() == a.accuracy(20.0).item()


@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e6])
def test_a_common_factor_of_the_class_weights_is_immaterial(factor):
    case = make_case([4, 2, 1], class_weight=torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64), bias=True)
    other = case.change(class_weight=case.class_weight * factor)
    same_state(other.flow().at(30.0), case.flow().at(30.0), 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["flow", "descent", "anchored", "anchored_descent"])
def test_every_answer_has_the_dtype_of_the_start(kind, dtype, device):
    case = make_case([3, 2, 1], dtype=dtype, bias=True, feature_decay=0.1)
    path = getattr(case.problem(), kind)(case.features.to(device), case.weight.to(device), case.bias.to(device))
    state = path.at(torch.tensor([0, 5]))
    for part in (state.features, state.weight, state.bias, path.direction().features, path.direction().weight):
        assert part.dtype == dtype
        assert part.device.type == device.type
    questions = [path.loss(3), path.accuracy(3), path.feature_norm(3), path.weight_norm(3), path.log_norm(3)]
    for answer in (*questions, path.distance(3), path.growth(), path.rate(), path.time_to(0.5)):
        assert answer.dtype == dtype
    assert all(value.dtype == dtype for value in path.collapse(3).values())


@pytest.mark.parametrize("name", NAMED)
def test_single_precision_is_as_good_as_single_precision_can_be(name):
    case = NAMED[name]
    narrow = case.change(
        features=case.features.float(),
        weight=case.weight.float(),
        bias=None if case.bias is None else case.bias.float(),
    )
    wide = narrow.change(
        features=narrow.features.double(),
        weight=narrow.weight.double(),
        bias=None if case.bias is None else narrow.bias.double(),
    )
    budget = 64 * 2.0**29  # eps of float32 in eps of float64
    for time in (0.0, 10.0, 1e4):
        a, b = narrow.flow().at(time).normalized(), wide.flow().at(time).normalized()
        assert a.features.dtype == torch.float32
        assert_exact(a.features, b.features, budget, scale=1.0)
        assert_exact(a.weight, b.weight, budget, scale=1.0)


def test_answers_do_not_depend_on_the_default_dtype():
    case = make_case([3, 2, 1], bias=True, gamma=0.3)

    def ask() -> list[torch.Tensor]:
        path = case.flow(lr=(cosine(0.1, total=50, end=0.02), piecewise([10.0], [0.1, 0.2])))
        other = case.descent(momentum=0.9)
        return [path.loss(20.0), path.at(30.0).features, path.distance(5.0), other.at(20).weight, other.growth()]

    before = ask()
    torch.set_default_dtype(torch.float64)
    try:
        after = ask()
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["flow", "anchored"])
def test_a_time_given_as_a_python_float_keeps_its_digits(kind):
    case = make_case([3, 2, 1], bias=True)
    path = getattr(case.problem(), kind)(case.features, case.weight, case.bias)
    wide = torch.tensor(3.8228237813369015, dtype=torch.float64)
    assert torch.equal(path.at(wide.item()).features, path.at(wide).features)
    assert torch.equal(path.loss([wide.item(), 1.1]), path.loss(torch.tensor([wide.item(), 1.1], dtype=torch.float64)))


def test_solving_changes_none_of_its_inputs():
    case = make_case([3, 2, 1], bias=True)
    copies = [part.clone() for part in (case.features, case.weight, case.bias, case.target)]
    path = case.flow()
    path.at(5.0), path.accuracy(5.0), path.collapse(5.0), path.distance(5.0)
    for part, copy in zip((case.features, case.weight, case.bias, case.target), copies, strict=True):
        assert torch.equal(part, copy)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int16], ids=str)
def test_labels_may_have_any_integer_dtype(dtype):
    case = make_case([3, 2, 1])
    other = case.change(target=case.target.to(dtype))
    assert torch.equal(other.flow().at(3.0).features, case.flow().at(3.0).features)
