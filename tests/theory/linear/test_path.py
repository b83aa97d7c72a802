"""Scalar answers against their definitions, computed from the full state."""

from __future__ import annotations

import numpy as np
import pytest

from oracles import DenseFlow, accuracy, collapse, joint_norm, torch_loss
from strategies import make_case, named_cases
from unhinge import cosine, warmup

NAMED = named_cases()
TIMES = [0, 25, 400]


def path_of(case, kind: str):
    if kind == "unrelated":
        return case.flow(lr=(cosine(0.2, total=50, end=0.05), warmup(0.1, duration=3)))
    if kind == "unrelated descent":
        return case.descent(lr=(cosine(0.2, total=50, end=0.05), warmup(0.1, duration=3)), momentum=0.5)
    if kind in ("anchored", "anchored_descent"):
        return getattr(case.problem(), kind)(case.features, case.weight, case.bias)
    return case.flow() if kind == "flow" else case.descent(momentum=0.9 if kind == "momentum" else 0.0)


KINDS = ["flow", "descent", "momentum", "unrelated", "unrelated descent", "anchored", "anchored_descent"]


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMED)
def test_scalar_answers_are_those_of_the_state(name, kind, time):
    """[eq: loss-modes]."""
    case = NAMED[name]
    path = path_of(case, kind)
    state = path.at(time)
    loss = torch_loss(case, state.features, state.weight, state.bias)
    scale = max(1e-3, (state.features.norm() * state.weight.norm()).item())
    assert path.loss(time).item() == pytest.approx(loss.item(), rel=1e-12, abs=1e-13 * scale)
    assert path.feature_norm(time).item() == pytest.approx(state.features.norm().item(), rel=1e-12)
    assert path.weight_norm(time).item() == pytest.approx(state.weight.norm().item(), rel=1e-12)
    anchored = kind.startswith("anchored")
    norm = state.features.norm() if anchored else joint_norm(state.features, state.weight)
    assert path.log_norm(time).item() == pytest.approx(norm.log().item(), rel=1e-12, abs=1e-12)
    bias = None if state.bias is None else state.bias.numpy()
    assert path.accuracy(time).item() == pytest.approx(
        accuracy(case, state.features.numpy(), state.weight.numpy(), bias)
    )


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["balanced", "imbalanced", "weighted", "soft", "unequal decays", "gamma beyond the edge"]
)
def test_the_distance_is_that_to_the_direction(name, kind, time):
    case = NAMED[name]
    path = path_of(case, kind)
    state, end = path.at(time), path.direction()
    if kind.startswith("anchored"):
        expected = (state.features / state.features.norm() - end.features).norm()
    else:
        unit = state.normalized()
        expected = joint_norm(unit.features - end.features, unit.weight - end.weight)
    assert path.distance(time).item() == pytest.approx(expected.item(), rel=1e-8, abs=1e-13)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["balanced", "imbalanced", "weighted", "unequal decays", "gamma zero"])
def test_collapse_measures_are_those_of_the_state(name, kind, time):
    """[eq: collapse]."""
    case = NAMED[name]
    path = path_of(case, kind)
    state = path.at(time)
    expected = collapse(state.features.numpy(), state.weight.numpy(), case.target.numpy())
    actual = path.collapse(time)
    assert set(actual) == set(expected)
    for key, value in expected.items():
        assert actual[key].item() == pytest.approx(value, rel=1e-7, abs=1e-9), key


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("kind", ["flow", "descent"])
def test_collapse_measures_of_soft_labels_go_by_the_most_probable_class(kind, time):
    case = NAMED["soft"]
    path = path_of(case, kind)
    state = path.at(time)
    expected = collapse(state.features.numpy(), state.weight.numpy(), case.target.argmax(1).numpy())
    for key, value in expected.items():
        assert path.collapse(time)[key].item() == pytest.approx(value, rel=1e-7, abs=1e-9), key


def test_wide_features_give_the_same_collapse_measures():
    """More dimensions than classes: the answer is found in the span of the modes."""
    case = make_case([3, 2, 2], dim=20, gamma=0.3)
    state = case.flow().at(12.0)
    expected = collapse(state.features.numpy(), state.weight.numpy(), case.target.numpy())
    actual = case.flow().collapse(12.0)
    for key, value in expected.items():
        assert actual[key].item() == pytest.approx(value, rel=1e-7, abs=1e-9), key
    assert case.flow().accuracy(12.0).item() == pytest.approx(
        accuracy(case, state.features.numpy(), state.weight.numpy())
    )


@pytest.mark.parametrize("time", [1e2, 1e3, 1e5])
@pytest.mark.parametrize("gamma", [0.0, 1.0, 0.2])
def test_accuracy_at_late_times_is_that_of_fifty_digits(gamma, time):
    """A common part far larger than the differences does not drown them [eq: limit-accuracy], [eq: centered-logits]."""
    import mpmath as mp

    case = make_case([2, 2, 2, 2], gamma=gamma, dim=4, lr=(1.0, 1.0))
    oracle = DenseFlow(case)
    with mp.workdps(100):
        moved = oracle.coordinates.copy()
        top = max(oracle.values)
        for k in range(moved.rows):
            for j in range(moved.cols):
                moved[k, j] = moved[k, j] * mp.exp((oracle.values[k] - top) * mp.mpf(time))
        state = oracle.vectors * moved
        n = len(case.target)
        logits = state[:n, :] * state[n:, :].T
        hits = [max(range(4), key=lambda c, i=i: logits[i, c]) == y for i, y in enumerate(case.target.tolist())]
    assert case.flow().accuracy(time).item() == pytest.approx(np.mean(hits))


def test_scalar_answers_never_touch_the_examples(monkeypatch):
    """After solving, the features may be gone: norms, loss, distances, rates and times do not look at them."""
    from dataclasses import replace

    class Gone:
        def __getattr__(self, name: str):
            raise AssertionError(f"a scalar question asked for features.{name}")

    case = make_case([3, 2, 1], bias=True, gamma=0.3)
    for path in (case.flow(), case.descent(momentum=0.9)):
        poor = replace(path, start=replace(path.start, features=Gone(), targets=Gone()))
        for question in ("loss", "feature_norm", "weight_norm", "log_norm", "distance"):
            assert getattr(poor, question)(7).item() == getattr(path, question)(7).item()
        assert poor.growth().item() == path.growth().item()
        assert poor.rate().item() == path.rate().item()
        assert poor.time_to(0.1).item() == path.time_to(0.1).item()
    path = case.problem().anchored(case.features, case.weight, case.bias)
    poor = replace(path, features=Gone(), targets=Gone())
    for question in ("loss", "feature_norm", "weight_norm", "log_norm", "distance"):
        assert getattr(poor, question)(7).item() == getattr(path, question)(7).item()
