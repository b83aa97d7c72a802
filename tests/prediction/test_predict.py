"""The answers, against gradient descent by autograd, against the full path, and from every door alike."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from prediction_makers import arrays, stepped
from torch import Tensor, nn
from typer.testing import CliRunner

from unhinge import LayerPeeled
from unhinge.cli import predict as command
from unhinge.metrics import neural_collapse
from unhinge.nn import ETFHead
from unhinge.prediction import measure_arrays, predict, recommend
from unhinge.prediction.analysis import generic_rate
from unhinge.prediction.figures import draw
from unhinge.prediction.representatives import ending


def tensors(counts: list[int], **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    made = arrays(counts, **options)
    return torch.from_numpy(made["features"]), torch.from_numpy(made["labels"]), torch.from_numpy(made["weight"])


def unit(means: Tensor) -> Tensor:
    return means / means.norm(dim=1).max()


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    return torch.stack([features[labels == kind].mean(0) for kind in range(classes)])


# ---- the limit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.02, 0.1)])
def test_the_limit_is_where_gradient_descent_goes(weighted: bool, decays: tuple[float, float]):
    counts = [9, 4, 2]
    features, labels, weight = tensors(counts)
    weights = torch.tensor(counts, dtype=torch.float64).rsqrt() if weighted else None
    actual = ending(measure_arrays(features, labels, weight), 0.5, *decays, weights)
    h, w = stepped(features, labels, weight, 0.5, 1.0, decays, 600, weights)
    means = class_means(h, labels, 3)
    torch.testing.assert_close(actual.means, unit(means), rtol=0, atol=1e-6)
    torch.testing.assert_close(actual.weight, unit(w), rtol=0, atol=1e-6)
    right = (h @ (w - w.mean(0)).mT).argmax(1) == labels
    assert actual.accuracy == pytest.approx(right.double().mean().item())
    assert (actual.accuracy == 1) == weighted


@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=5),
    st.sampled_from([None, 0.0, 0.3, 1.9]),
    st.sampled_from([(0.0, 0.0), (0.1, 0.03), (0.7, 0.7)]),
    st.integers(0, 1000),
)
def test_one_representative_per_class_has_the_limit_of_all_examples(
    counts: list[int], gamma: float | None, decays: tuple[float, float], seed: int
):
    """[eq: representatives]."""
    features, labels, weight = tensors(counts, seed=seed)
    actual = ending(measure_arrays(features, labels, weight), gamma, *decays)
    state = LayerPeeled(labels, len(counts), gamma, *decays).flow(features, weight).direction()
    torch.testing.assert_close(actual.means, unit(class_means(state.features, labels, len(counts))), rtol=0, atol=1e-7)
    torch.testing.assert_close(actual.weight, unit(state.weight), rtol=0, atol=1e-7)


def test_a_gamma_beyond_the_edge_leaves_nothing_to_tell_classes_apart():
    actual = predict(measure_arrays(*tensors([4, 4, 4, 4])), gamma=1.7)
    assert actual.limit.undecided == 1
    assert actual.limit_accuracy == 0
    assert any("gamma is too large" in sentence for sentence in actual.findings)


# ---- rates and times -----------------------------------------------------------------------------------------------


def test_the_distance_is_reached_when_it_is_said_to_be():
    features, labels, weight = tensors([5, 5, 5])
    actual = predict(measure_arrays(features, labels, weight), lr=1.0, distance=0.2)
    far = stepped(features, labels, weight, 0.5, 2.0, (0.0, 0.0), 300)
    distances = []
    for steps in (40, 80):
        here = stepped(features, labels, weight, 0.5, actual.times[0.2] / steps, (0.0, 0.0), steps)
        a, b = (torch.cat(pair) / torch.hypot(pair[0].norm(), pair[1].norm()) for pair in (here, far))
        distances.append((a - b).norm().item())
    # the error of the steps is of first order: extrapolated, it is gone
    assert 2 * distances[1] - distances[0] == pytest.approx(0.2, rel=2e-3)


def test_the_critical_decay_parts_growing_from_shrinking():
    measured = measure_arrays(*tensors([4, 4, 4]))
    critical = predict(measured).critical_decay
    outcomes = [
        predict(measured, feature_decay=factor * critical, weight_decay=critical).outcome for factor in (0.9, 1.0, 1.1)
    ]
    assert outcomes == ["diverges", "converges", "vanishes"]


def test_the_spectrum_is_that_of_the_target_matrix():
    features, labels, weight = tensors([5, 3, 2])
    gamma, first, second, lr = 0.4, 0.02, 0.1, 0.3
    actual = predict(
        measure_arrays(features, labels, weight), gamma=gamma, feature_decay=first, weight_decay=second, lr=lr
    )
    targets = ((1 + gamma) * torch.nn.functional.one_hot(labels, 3).double() - gamma) / len(labels)
    sizes = torch.linalg.svdvals(targets)
    torch.testing.assert_close(
        torch.tensor([mode.singular_value for mode in actual.spectrum], dtype=torch.float64), sizes
    )
    for mode, size in zip(actual.spectrum, sizes.tolist(), strict=True):
        matrix = lr * np.array([[-first, size], [size, -second]])
        assert mode.growth == pytest.approx(np.linalg.eigvalsh(matrix)[-1])
    assert actual.growth == pytest.approx(actual.spectrum[0].growth)


@pytest.mark.parametrize("decays", [(0.0, 0.0), (0.3, 0.01), (0.05, 0.05)])
def test_no_gamma_nearby_is_faster_than_the_best(decays: tuple[float, float]):
    measured = measure_arrays(*tensors([6, 6, 6, 6]))
    actual = predict(measured, feature_decay=decays[0], weight_decay=decays[1], lr=1.0)
    assert actual.best_rate == pytest.approx(rate_by_hand(actual.best_gamma, 4, 6, *decays))
    for factor in (0.9, 0.99, 1.01, 1.1):
        gamma = factor * actual.best_gamma
        assert generic_rate(measured, gamma, *decays, lr=1.0) > actual.best_rate
        path = predict(measured, gamma=gamma, feature_decay=decays[0], weight_decay=decays[1], lr=1.0)
        expected = rate_by_hand(gamma, 4, 6, *decays)
        assert path.rate == pytest.approx(expected, rel=1e-9)
        assert generic_rate(measured, gamma, *decays, lr=1.0) == pytest.approx(expected, rel=1e-9)


def rate_by_hand(gamma: float, classes: int, per_class: int, first: float, second: float) -> float:
    """omega_+ of the common mode minus that of the leading ones, for balanced classes, as the theory writes them."""
    unit = 1 / (classes * math.sqrt(per_class))

    def growth(sigma: float) -> float:
        return (-(first + second) + math.sqrt((first - second) ** 2 + 4 * sigma**2)) / 2

    return growth(abs(1 + gamma - gamma * classes) * unit) - growth((1 + gamma) * unit)


def test_of_two_classes_the_rate_has_a_limit_at_large_gamma():
    measured = measure_arrays(*tensors([5, 5]))
    expected = generic_rate(measured, 1e6, 0.3, 0.1, lr=1.0)
    assert generic_rate(measured, math.inf, 0.3, 0.1, lr=1.0) == pytest.approx(expected, rel=1e-4)


# ---- imbalance -----------------------------------------------------------------------------------------------------


def test_imbalance_collapses_the_small_classes_and_root_weights_cure_it():
    actual = predict(measure_arrays(*tensors([40, 20, 10, 5], dim=12)))
    by_name = {one.name: one for one in actual.weightings}
    assert by_name["none"].limit_accuracy == pytest.approx(60 / 75)
    assert by_name["none"].rank == 1
    assert by_name["sqrt"].limit_accuracy == 1
    assert by_name["sqrt"].rank == 3
    assert by_name["inverse"].limit_accuracy == pytest.approx(15 / 75)
    assert actual.cure == "sqrt"
    weights = np.array(by_name["sqrt"].weights)
    np.testing.assert_allclose(weights / weights[0], np.sqrt([1, 2, 4, 8]))


def test_balanced_classes_need_no_cure():
    actual = predict(measure_arrays(*tensors([5, 5])))
    assert actual.cure is None
    assert [one.name for one in actual.weightings] == ["none"]


# ---- the same answers from every door ------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh())
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor, return_features: bool = False) -> Any:
        features = self.body(x)
        return (self.head(features), features) if return_features else self.head(features)


def live() -> tuple[Network, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(3)
    inputs, labels = torch.randn(31, 6), torch.tensor([0] * 15 + [1] * 9 + [2] * 7)[torch.randperm(31)]
    return Network(), list(zip(inputs.split(7), labels.split(7), strict=True))


def assert_alike(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            if key != "findings":
                assert_alike(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    else:
        assert one == other


def test_a_live_model_and_a_file_of_its_features_give_the_same_answers(tmp_path: Path):
    network, loader = live()
    network.train()
    network.body[2].eval()
    actual = predict(network, loader, feature_decay=0.01, weight_decay=0.02)
    assert [module.training for module in (network, network.body[1], network.body[2])] == [True, True, False]
    assert network.body[1].num_batches_tracked == 0
    network.eval()
    with torch.no_grad():
        features = torch.cat([network(x, return_features=True)[1] for x, _ in loader])
    labels = torch.cat([y for _, y in loader])
    head = {"weight": network.head.weight.detach().numpy(), "bias": network.head.bias.detach().numpy()}
    np.savez(tmp_path / "f.npz", features=features.numpy(), labels=labels.numpy(), **head)
    same = predict(tmp_path / "f.npz", feature_decay=0.01, weight_decay=0.02)
    assert_alike(actual.as_dict(), same.as_dict())
    assert_alike(recommend(network, loader, batch=7).as_dict(), recommend(same, batch=7).as_dict())
    now = neural_collapse(features.double(), network.head.weight.detach().double(), labels, network.head.bias)
    assert actual.collapse_now == pytest.approx({key: float(value) for key, value in now.items()})
    accuracy = (network(torch.cat([x for x, _ in loader])).argmax(1) == labels).double().mean().item()
    assert actual.accuracy_now == pytest.approx(accuracy)


def test_an_iterator_is_used_once_and_misses_only_nc4():
    network, loader = live()
    whole = predict(network, loader).as_dict()
    once = predict(network, iter(loader)).as_dict()
    del whole["collapse_now"]["nc4"]
    assert_alike(whole, once)


def test_another_head_can_be_named_and_wrong_ones_are_refused():
    network, loader = live()
    loader = [(x, y % 2) for x, y in loader]
    network = nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 2))  # type: ignore[assignment]
    assert predict(network, loader, head="0").setting.dim == 6
    with pytest.raises(ValueError, match="There are: '0', '2'"):
        predict(network, loader, head="1")
    with pytest.raises(ValueError, match="normalizes"):
        predict(nn.Sequential(nn.Linear(6, 4), ETFHead(4, 3, normalize=True)), live()[1])
    with pytest.raises(ValueError, match="loader"):
        predict(network)
    with pytest.raises(ValueError, match="pairs"):
        predict(network, [{"x": 1}])
    with pytest.raises(ValueError, match="empty"):
        predict(network, [])
    with pytest.raises(ValueError, match="one per example"):
        predict(network, [(torch.randn(2, 3, 6), torch.tensor([0, 1]))])


def test_a_missing_head_is_zero_and_said_to_be():
    features, labels, _ = tensors([4, 4, 4])
    actual = predict(measure_arrays(features, labels))
    zero = predict(measure_arrays(features, labels, torch.zeros(3, 4)))
    assert actual.times == zero.times
    assert "head of zeros" in actual.setting.head
    assert actual.accuracy_now is None
    assert "nc3" not in actual.collapse_now
    assert not any(said.startswith("Now ") for said in actual.findings)
    assert any(said.startswith("Now ") for said in zero.findings)


# ---- recommendation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[6, 6, 6], [12, 6, 2]])
@pytest.mark.parametrize("lr", [None, 1.5])
def test_the_recommended_steps_reach_the_distance_and_one_less_does_not(counts: list[int], lr: float | None):
    features, labels, weight = tensors(counts)
    measured = measure_arrays(features, labels, weight)
    advice = recommend(measured, distance=0.05, lr=lr, batch=5)
    weights = None if advice.class_weight is None else torch.tensor(advice.class_weight, dtype=torch.float64)
    decays = advice.feature_decay, advice.weight_decay
    there = stepped(features, labels, weight, advice.gamma, 1 / (2 * decays[0]), decays, 80, weights)
    distances = []
    for count in (advice.steps - 1, advice.steps):
        here = stepped(features, labels, weight, advice.gamma, advice.lr, decays, count, weights)
        a, b = (torch.cat(pair) / torch.hypot(pair[0].norm(), pair[1].norm()) for pair in (here, there))
        distances.append((a - b).norm().item())
    assert distances[0] > 0.05 >= distances[1]
    assert advice.epochs == math.ceil(advice.steps * 5 / len(labels))
    assert set(advice.reasons) == {"gamma", "decay", "lr", "class_weight", "decision", "epochs"}


def test_wrong_arguments_are_named():
    measured = measure_arrays(*tensors([4, 4]))
    for options in ({"distance": 0.0}, {"distance": 3.0}, {"lr": 0.0}, {"gamma": -1.0}, {"weight_decay": math.nan}):
        with pytest.raises(ValueError, match=next(iter(options))):
            predict(measured, **options)
    with pytest.raises(ValueError, match="batch"):
        recommend(measured, batch=0)
    with pytest.raises(ValueError, match="measure_arrays"):
        predict(np.ones(3))  # type: ignore[arg-type]


# ---- the command ---------------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.callback()(lambda: None)
    command.add_to(app)
    result = CliRunner().invoke(app, ["predict", *arguments], env={"COLUMNS": "160"})
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_its_findings_or_one_json_value(tmp_path: Path):
    file = tmp_path / "features.npz"
    np.savez(file, **arrays([8, 4, 2]))
    code, out, _ = run(str(file))
    assert code == 0
    for part in ("critical decay", "n_c^(-1/2)", "NC3", "fastest gamma"):
        assert part in out
    code, out, _ = run(str(file), "--json", "--gamma", "0.3", "--lr", "0.2", "--distance", "0.01")
    record = json.loads(out)
    assert code == 0
    assert record["setting"]["gamma"] == 0.3
    assert record["recommendation"]["lr"] == 0.2
    assert sorted(tmp_path.iterdir()) == [file]


def test_the_folder_gets_a_page_that_needs_nothing_else(tmp_path: Path):
    file, out = tmp_path / "features.npz", tmp_path / "out"
    np.savez(file, **arrays([8, 4, 2]))
    assert run(str(file), "--out", str(out))[0] == 0
    assert {path.name for path in out.iterdir()} == {
        "report.html",
        "prediction.png",
        "prediction.pdf",
        "prediction.json",
    }
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "http" not in page
    assert "<script" not in page
    assert "critical decay" in page
    assert json.loads((out / "prediction.json").read_text(encoding="utf-8"))["recommendation"]["epochs"] >= 1


@pytest.mark.parametrize(
    ("counts", "options", "said"),
    [
        ([5, 5], {"feature_decay": 0.3, "weight_decay": 0.01}, "there is no best one"),
        ([5, 4, 3, 2], {"gamma": 2.0}, "Here n_c^(-1/2) does not help"),
        ([5, 5, 2, 2], {}, "become negligibly small"),
        ([1, 1, 1], {}, "1 example each"),
    ],
)
def test_every_kind_of_ending_has_words_and_a_figure(counts: list[int], options: dict[str, float], said: str):
    actual = predict(measure_arrays(*tensors(counts)), **options)
    assert said in " ".join(actual.findings)
    assert len(draw(actual, "a title").axes) == 6
    json.dumps(actual.as_dict(), allow_nan=False)


def test_a_state_that_has_collapsed_already_is_said_to_have():
    frame = torch.eye(3, dtype=torch.float64) - 1 / 3
    actual = predict(measure_arrays(frame.repeat(4, 1), torch.arange(12) % 3, 2 * frame))
    assert actual.rate == -math.inf
    assert "already within 0.1" in actual.findings[0]
    assert len(draw(actual, "a title").axes) == 6


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ({"features": np.ones((2, 2))}, [], "no labels"),
        ({"features": np.zeros((2, 2)), "labels": np.array([0, 1])}, [], "start is zero"),
        (arrays([3, 3]), ["--distance", "5"], "distance"),
        (arrays([3, 3]), ["--engine", "dask"], "--engine is for Parquet"),
        (arrays([3, 3]), ["--out", "/dev/null/results"], "Nothing was computed"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(
    tmp_path: Path, content: dict[str, Any], arguments: list[str], said: str
):
    file = tmp_path / "features.npz"
    np.savez(file, **content)
    code, out, err = run(str(file), *arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


# ---- the way there -------------------------------------------------------------------------------------------------


def test_lists_are_measured_as_arrays_are():
    features, labels, weight = start([3, 3])
    actual = measure_arrays(features.tolist(), labels.tolist(), weight.tolist())
    assert torch.equal(actual.classes.sums, measure_arrays(features, labels, weight).classes.sums)


def test_steps_too_large_for_the_decay_are_refused_where_descent_explodes():
    """Gradient flow says that norms shrink to zero; forty steps of gradient descent multiply them by a trillion."""
    features, labels, weight = start([4, 4, 4])
    state = LayerPeeled(labels, 3, None, 3.0, 3.0).descent(features, weight, lr=1.0).at(torch.tensor(40))
    assert state.features.norm() > 1e10 * features.norm()
    with pytest.raises(ValueError, match=r"the steps are too large.*Use an lr of at most"):
        predict(measure_arrays(features, labels, weight), lr=1.0, feature_decay=3.0, weight_decay=3.0)


def test_large_steps_are_told_with_the_steps_of_descent_itself():
    features, labels, weight = start([4, 4, 4])
    actual = predict(measure_arrays(features, labels, weight), lr=1.0)
    assert actual.largest_step > 0.1
    exact = LayerPeeled(labels, 3).descent(features, weight, lr=1.0).time_to(0.1).item()
    assert actual.descent_time == exact
    assert any(f"gradient descent itself needs {exact:,.0f} step" in sentence for sentence in actual.findings)


def test_no_logit_overflows_before_the_step_that_is_named():
    features, labels, weight = start([5, 5, 5])
    actual = predict(measure_arrays(features, labels, weight), lr=0.5)
    path = LayerPeeled(labels, 3).flow(features, weight, lr=0.5)
    largest = torch.finfo(torch.float32).max
    before, later = (path.at(actual.overflow + shift) for shift in (-1.0, 0.05 * actual.overflow))
    assert (before.features @ before.weight.mT).abs().max() <= largest
    assert (later.features @ later.weight.mT).abs().max() > largest
    assert any(f"overflow from step {actual.overflow:,.0f} on" in sentence for sentence in actual.findings)


def test_the_course_is_the_accuracy_of_class_means_along_the_path():
    features, labels, weight = start([30, 10, 4, 2])
    actual = predict(measure_arrays(features, labels, weight))
    path = LayerPeeled(labels, 4).flow(features, weight)
    counts = torch.bincount(labels).double()
    for step, share in list(zip(actual.course.steps, actual.course.accuracy, strict=True))[::20]:
        state = path.at(step)
        means = torch.stack([state.features[labels == kind].mean(0) for kind in range(4)])
        right = (means @ state.weight.mT).argmax(1) == torch.arange(4)
        assert share == pytest.approx(float((right * counts).sum() / counts.sum()))
    assert actual.course.peak > actual.limit_accuracy
    assert any("Stop before it falls" in sentence for sentence in actual.findings)


def start(counts: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    features, weight = torch.randn(len(labels) + len(counts), 6, generator=generator, dtype=torch.float64).split(
        [len(labels), len(counts)]
    )
    return features, labels, weight


def test_data_frames_are_measured_as_the_arrays_they_hold():
    pandas = pytest.importorskip("pandas", reason="data frames need pandas")
    features, labels, weight = tensors([3, 3])
    frames = pandas.DataFrame(features.numpy()), pandas.Series(labels.numpy()), pandas.DataFrame(weight.numpy())
    measured, expected = measure_arrays(*frames), measure_arrays(features, labels, weight)
    assert measured.size == expected.size
    assert torch.equal(measured.weight, expected.weight)
