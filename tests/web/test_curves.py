"""What is plotted is what the library says: the lines that are shown give the plotted numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

from unhinge import LayerPeeled
from unhinge.web.address import default_state
from unhinge.web.app import VIEWS
from unhinge.web.figures import figure
from unhinge.web.panels import Answer, Curve, Panel, Slot

from web.strategies_web import small_states  # isort: skip

FREE, SPHERE, NOISE, YOUNG = VIEWS
QUICK = (Phase.explicit, Phase.generate)  # a failing state is small enough to read, and shrinking it takes minutes


def tensor(values):
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)


def assert_code_gives_what_is_plotted(answer: Answer, rounding: float = 1e-9) -> None:
    for key, panel in answer.panels.items():
        names: dict = {}
        exec(panel.code, names)
        curves = names["curves"]
        for curve in panel.curves:
            x, y = (torch.as_tensor(part).double() for part in curves[curve.name])
            y = torch.where(torch.isfinite(y), y, torch.nan)
            torch.testing.assert_close(tensor(curve.x), x, rtol=1e-14, atol=0, msg=f"{key}, {curve.name}: x")
            torch.testing.assert_close(
                tensor(curve.y), y, rtol=rounding, atol=1e-14, equal_nan=True, msg=f"{key}, {curve.name}: y"
            )
        if panel.moving is not None:
            for place, (name, _, _) in enumerate(panel.moving.groups):
                if name in curves:
                    shown = torch.tensor([frame[place] for frame in panel.moving.frames], dtype=torch.float64).mT
                    kept = [moment in panel.moving.moments for moment in names["x"].tolist()]
                    torch.testing.assert_close(shown, curves[name][1][torch.tensor(kept)], rtol=0, atol=1e-4)


def solved(view, state):
    """The answer; states that the view refuses with a sentence are not of interest here."""
    try:
        return view.solve(state)
    except ValueError as error:
        assume(False)
        raise AssertionError from error


@settings(max_examples=12, phases=QUICK)
@example(default_state("free", FREE.controls))
@example(default_state("free", FREE.controls).replaced(optimizer="descent", momentum=0.9, nesterov="yes"))
@example(default_state("free", FREE.controls).replaced(schedule="cosine", length=300, optimizer="descent"))
@example(default_state("free", FREE.controls).replaced(profile="tail", start="etf", gamma=0.4, axes="3"))
@given(small_states("free", FREE.controls, start="random"))
def test_free_curves_come_from_the_lines_shown(state):
    assert_code_gives_what_is_plotted(solved(FREE, state))


@settings(max_examples=8, phases=QUICK)
@example(default_state("sphere", SPHERE.controls))
@example(default_state("sphere", SPHERE.controls).replaced(prototypes="random", axes="3", optimizer="flow"))
@given(small_states("sphere", SPHERE.controls, schedule="constant"))
def test_curves_on_the_sphere_come_from_the_lines_shown(state):
    assert_code_gives_what_is_plotted(solved(SPHERE, state))


@settings(max_examples=8, phases=QUICK)
@example(default_state("noise", NOISE.controls))
@example(default_state("noise", NOISE.controls).replaced(profile="step", noise=0.2))
@given(small_states("noise", NOISE.controls, start="random"))
def test_curves_with_noise_and_imbalance_come_from_the_lines_shown(state):
    assert_code_gives_what_is_plotted(solved(NOISE, state))


@settings(max_examples=8, phases=QUICK)
@example(default_state("young", YOUNG.controls))
@example(default_state("young", YOUNG.controls).replaced(power=0.5, smoothing=0.1, temperature=2.0))
@example(default_state("young", YOUNG.controls).replaced(adjustment=1.0, feature_decay=0.01, scale=1.0))
@given(small_states("young", YOUNG.controls))
def test_curves_of_cross_entropy_come_from_the_lines_shown(state):
    assert_code_gives_what_is_plotted(solved(YOUNG, state))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"smoothing": 0.1, "power": 0.5, "adjustment": 1.0, "temperature": 2.0},
        {"feature_decay": 0.01, "weight_decay": 0.02, "power": 1.0},
    ],
    ids=["plain", "all of the loss", "decays"],
)
def test_the_training_shown_is_that_of_torch_on_its_own_cross_entropy(changes):
    state = default_state("young", YOUNG.controls).replaced(classes=4, per_class=6, dim=5, scale=0.3, **changes)
    names: dict = {}
    answer = YOUNG.solve(state)
    exec(answer.panels["loss"].code, names)
    labels = names["labels"]
    features, weight = names["features"].clone().requires_grad_(), names["weight"].clone().requires_grad_()
    decays = (state.number("feature_decay"), state.number("weight_decay"))
    groups = [{"params": [p], "weight_decay": decay} for p, decay in zip((features, weight), decays, strict=True)]
    optimizer = torch.optim.SGD(groups, lr=answer.chosen["lr"])
    for k in range(names["marks"][3] + 1):
        loss = torch.nn.functional.cross_entropy(
            features @ weight.mT / state.number("temperature") + names.get("offsets", torch.zeros(4)),
            labels,
            weight=names.get("weights"),
            label_smoothing=state.number("smoothing"),
        )
        if k in names["marks"]:
            h, w, shown = names["runs"][names["marks"].index(k)]
            torch.testing.assert_close(h, features.detach(), rtol=1e-11, atol=1e-13)
            torch.testing.assert_close(w, weight.detach(), rtol=1e-11, atol=1e-13)
            assert shown == pytest.approx(loss.item(), rel=1e-12)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_the_bound_shown_lies_above_the_true_error_and_the_horizon_is_the_libraries():
    state = default_state("young", YOUNG.controls)
    answer = YOUNG.solve(state)
    bound, true = answer.panels["error"].curves
    names: dict[str, object] = {}
    exec(answer.panels["error"].code, names)  # what the page shows as the way to this curve
    at_marks = names["path"].error_bound(torch.tensor(true.x)).tolist()
    compared = [(high, low) for high, low in zip(at_marks, true.y, strict=True) if math.isfinite(high)]
    assert len(compared) > 10
    assert all(high >= low for high, low in compared)
    known = dict(zip(bound.x, bound.y, strict=True))
    ((name, horizon),) = answer.panels["accuracy"].moments
    assert name == "horizon"
    steps = {entry.label: entry.value for entry in answer.numbers}["horizon"]
    assert steps == f"{horizon:,.0f} steps"
    assert known[horizon] is None or known.get(horizon, 0.1) <= 0.1 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("changes", "words", "tone"),
    [
        ({"profile": "balanced"}, "Half of every class is right within the proved horizon", "good"),
        ({"scale": 3.0}, "Nothing is proved", "bad"),
        ({"ratio": 1000.0, "per_class": 100, "scale": 0.1}, "are learned later than that, or never", "warn"),
    ],
)
def test_the_words_say_what_is_known_of_cross_entropy(changes, words, tone):
    answer = YOUNG.solve(default_state("young", YOUNG.controls).replaced(**changes))
    assert words in answer.headline
    assert answer.tone == tone


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.key)
def test_a_panel_has_room_for_its_names(view):
    """A panel is as high as 34 letters are long, and from the third line of its key on the curves are squashed."""
    for panel in view.solve(default_state(view.key, view.controls)).panels.values():
        assert len(panel.ylabel) <= 34
        assert sum(curve.listed for curve in panel.curves) <= 3


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.key)
def test_the_lines_are_few_and_use_the_library_alone(view):
    answer = view.solve(default_state(view.key, view.controls))
    for key, panel in answer.panels.items():
        trains = view is YOUNG  # a training loop takes its lines
        assert len(panel.code.splitlines()) <= (24 if key == "moving" or trains else 16), panel.code
        assert "unhinge.web" not in panel.code
        assert max(map(len, panel.code.splitlines())) <= 140, panel.code


@settings(max_examples=30)
@given(small_states("free", FREE.controls, start="random", schedule="constant"))
def test_the_largest_exponent_shown_is_the_growth_of_the_path(state):
    from unhinge.web.view_free import solve_free

    growth = solve_free(state).path.growth()
    assume(growth > 0)  # where all decays, a start without modes may lead; and steps may overshoot
    shown = max(y for curve in solved(FREE, state).panels["spectrum"].curves for y in curve.y)
    torch.testing.assert_close(torch.tensor(shown, dtype=torch.float64), growth, rtol=1e-9, atol=1e-12)


def test_the_words_name_the_failure_above_the_threshold():
    state = default_state("free", FREE.controls).replaced(gamma=0.3)
    answer = FREE.solve(state)
    assert "γ is above 2/(C-2) = 0.25" in answer.headline
    assert "1/C = 10 %" in answer.headline
    assert answer.tone == "bad"
    accuracies = answer.panels["accuracy"].curves[0].y
    assert accuracies[-1] == pytest.approx(0.1)


def test_the_numbers_beside_the_curves_are_those_of_the_library():
    state = default_state("free", FREE.controls).replaced(optimizer="descent", feature_decay=0.01, weight_decay=0.02)
    numbers = {entry.label: entry.value for entry in FREE.solve(state).numbers}
    rows = torch.randn(60, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = LayerPeeled(torch.arange(10).repeat_interleave(5), 10, feature_decay=0.01, weight_decay=0.02)
    path = problem.descent(rows[:50], rows[50:], lr=0.1)
    assert float(numbers["critical decay"]) == pytest.approx(problem.critical_decay.item(), rel=5e-3)
    assert float(numbers["fastest γ"]) == pytest.approx(problem.best_gamma(), rel=1e-3)
    assert numbers["to 0.001"] == f"{path.time_to(1e-3).item():,.0f} steps"


def test_weights_undo_the_collapse_of_small_classes():
    answer = NOISE.solve(default_state("noise", NOISE.controls))
    left = {curve.name: [y for y in curve.y if y is not None] for curve in answer.panels["limit"].curves}
    assert min(left["plain"]) < 0.1
    assert min(left["with weights"]) > 0.5


@pytest.mark.parametrize(
    ("view", "changes", "words"),
    [
        (FREE, {"classes": 1000, "per_class": 1000}, "numbers; this page takes"),
        (FREE, {"start": "etf", "classes": 50, "dim": 8}, "simplex ETF"),
        (FREE, {"profile": "own", "counts": "3, x"}, "whole numbers"),
        (FREE, {"profile": "own", "counts": "3"}, "at least two"),
        (FREE, {"start": "own"}, "choose an .npz"),
        (FREE, {"schedule": "cosine", "optimizer": "descent", "momentum": 0.9, "length": 10**6}, "step by step"),
        (NOISE, {"noise": 0.95}, "labels say nothing"),
        (SPHERE, {"classes": 100, "dim": 20}, "Raise p"),
        (YOUNG, {"classes": 300, "per_class": 10}, "trains them on the spot"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(view, changes, words):
    with pytest.raises(ValueError, match=words):
        view.solve(default_state(view.key, view.controls).replaced(**changes))


@given(low=st.floats(-200, 200), span=st.floats(0, 3))
def test_every_logarithmic_axis_has_numbers(low, span):
    """Powers of ten, or numbers at 1, 2 and 5, or even ones."""
    ends = [10.0**low, 10.0 ** (low + span)]
    axis = figure(Panel("x", "y", [Curve("y", [0.0, 1.0], ends)], code="", ylog=True), Slot("y", "y", ""))["layout"][
        "yaxis"
    ]
    bottom, top = axis["range"]
    powers = range(math.floor(bottom), math.ceil(top) + 1)
    shown = [math.log10(number) for number in axis.get("tickvals", ())]
    shown = shown or [k + math.log10(m) for k in powers for m in ((1, 2, 5) if "dtick" in axis else (1,))]
    wanted = 1 if span >= 1.5 else 2
    assert wanted <= sum(bottom - 1e-9 <= number <= top + 1e-9 for number in shown) <= 7
