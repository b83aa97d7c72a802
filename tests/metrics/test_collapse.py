"""Neural collapse of features against loops over examples, in batches, with gradients, and at the edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles import collapse
from unhinge.metrics import CollapseSummary, neural_collapse, summarize_collapse
from unhinge.theory import LayerPeeled

JOINT = {"nc3", "alignment", "feature_alignment", "nc4"}


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b) / (math.dist(a, 0 * a) * math.dist(b, 0 * b))


def measures(features: Any, weight: Any, target: Any, bias: Any = None) -> dict[str, float]:
    """One example and one pair of prototypes at a time; every class needs an example."""
    h, w, y = (np.asarray(x, dtype=t) for x, t in ((features, float), (weight, float), (target, int)))
    b = np.zeros(len(w)) if bias is None else np.asarray(bias, dtype=float)
    measured = dict(collapse(h, w, y))
    means = [h[y == c].mean(0) for c in range(len(w))]
    wrong = 0
    for x in h:
        logits = [float(w[c] @ x + b[c]) for c in range(len(w))]
        distances = [math.dist(x, mean) for mean in means]
        wrong += logits.index(max(logits)) != distances.index(min(distances))
    lengths = [math.dist(x, 0 * x) for x in w]
    pairs = [(i, j) for i in range(len(w)) for j in range(i)]
    measured["nc4"] = wrong / len(h)
    measured["feature_alignment"] = sum(cosine(x, w[c]) for x, c in zip(h, y, strict=True)) / len(h)
    measured["feature_norm_mean"] = sum(math.dist(x, 0 * x) for x in h) / len(h)
    measured["weight_norm_min"] = min(lengths)
    measured["weight_norm_ratio"] = max(lengths) / min(lengths)
    measured["weight_angle_min"] = math.acos(max(-1.0, min(1.0, max(cosine(w[i], w[j]) for i, j in pairs))))
    return measured


@st.composite
def networks(draw, max_dim=8):
    """Features, weight, labels, bias: classes of different sizes, fewer or more dimensions than classes."""
    counts = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5))
    dim = draw(st.integers(2, max_dim))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    target = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    target = target[torch.randperm(len(target), generator=generator)]
    shift = draw(st.sampled_from([0.0, 3.0]))
    features = shift + torch.randn(len(target), dim, generator=generator, dtype=torch.float64)
    weight = torch.randn(len(counts), dim, generator=generator, dtype=torch.float64)
    return features, weight, target, torch.randn(len(counts), generator=generator, dtype=torch.float64)


def same(actual, expected, rel=1e-8, floor=1e-10):
    assert set(actual) == set(expected)
    for key, value in expected.items():
        assert float(actual[key]) == pytest.approx(float(value), rel=rel, abs=floor), key


@given(networks())
def test_the_measures_are_those_of_the_definitions(network):
    """[eq: collapse]."""
    features, weight, target, bias = network
    same(neural_collapse(features, weight, target), measures(features, weight, target))
    same(neural_collapse(features, weight, target, bias), measures(features, weight, target, bias))


def test_wide_features_are_measured_on_the_span_of_the_means():
    features, weight = torch.randn(40, 30, dtype=torch.float64), torch.randn(4, 30, dtype=torch.float64)
    target = torch.arange(40) % 4
    same(neural_collapse(features, weight, target), measures(features, weight, target))
    live = neural_collapse(features.clone().requires_grad_(), weight, target)  # no shortcut where a gradient is asked
    same({key: value.detach() for key, value in live.items()}, measures(features, weight, target))


@given(networks(), st.integers(1, 9), st.randoms())
def test_batches_merge_in_any_order_to_the_whole(network, size, random):
    features, weight, target, _ = network
    parts = [
        CollapseSummary.of(x, y, len(weight)) for x, y in zip(features.split(size), target.split(size), strict=True)
    ]
    random.shuffle(parts)
    while len(parts) > 1:  # a random tree of sums
        i = random.randrange(len(parts) - 1)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    whole = neural_collapse(features, weight, target)
    nc4 = whole.pop("nc4")
    same(parts[0].measures(weight), whole)
    assert parts[0].disagrees(features, weight).double().mean().item() == nc4.item()


def test_a_loader_is_read_once():
    features, weight, target = torch.randn(50, 6), torch.randn(5, 6), torch.arange(50) % 5
    once = iter(zip(features.split(7), target.split(7), strict=True))
    summary = summarize_collapse(once, num_classes=5)
    expected = neural_collapse(features, weight, target)
    expected.pop("nc4")
    same(summary.measures(weight), expected, rel=1e-6)
    assert summary.counts.tolist() == [10] * 5


def test_large_inputs_are_cut_into_chunks_without_a_trace(monkeypatch):
    features, weight, target = torch.randn(50, 6), torch.randn(5, 6), torch.arange(50) % 5
    expected = neural_collapse(features, weight, target)
    monkeypatch.setattr("unhinge.metrics.collapse.CHUNK", 30)
    same(neural_collapse(features, weight, target), expected, rel=1e-6)


def test_the_names_and_values_are_those_of_a_path():
    target = torch.tensor([0, 1, 2, 2, 1, 0, 0])
    features, weight = torch.randn(7, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    path = LayerPeeled(target, 3).flow(features, weight)
    state = path.at(20.0)
    actual, expected = neural_collapse(state.features, state.weight, target), path.collapse(20.0)
    assert set(expected) <= set(actual)
    for key, value in expected.items():
        assert actual[key].item() == pytest.approx(value.item(), rel=1e-8, abs=1e-10), key


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_a_collapsed_network_reads_as_collapsed(num_classes):
    frame = torch.eye(num_classes, dtype=torch.float64) - 1 / num_classes
    target = torch.arange(num_classes).repeat(3)
    actual = neural_collapse(4 * frame[target], frame, target)
    for key, value in actual.items():
        if key.startswith("nc"):
            assert value.item() == pytest.approx(0.0, abs=1e-14), key
    assert actual["alignment"].item() == pytest.approx(1.0)
    assert actual["feature_alignment"].item() == pytest.approx(1.0)
    assert actual["weight_norm_ratio"].item() == pytest.approx(1.0)
    assert actual["weight_angle_min"].item() == pytest.approx(math.acos(-1 / (num_classes - 1)), rel=1e-12)


@pytest.mark.parametrize("dim", [3, 12])
def test_a_collapsed_network_has_finite_gradients(dim):
    """Every standard deviation, norm and absolute value sits at its kink, and means and prototypes are dependent."""
    frame = torch.nn.functional.pad(torch.eye(3, dtype=torch.float64) - 1 / 3, (0, dim - 3)).requires_grad_()
    target = torch.arange(3).repeat(2)
    features = frame.detach()[target].requires_grad_()
    for key, value in neural_collapse(features, frame, target).items():
        if value.requires_grad:
            for gradient in torch.autograd.grad(value, (features, frame), retain_graph=True, allow_unused=True):
                assert gradient is None or torch.isfinite(gradient).all(), key


@pytest.mark.parametrize("dim", [3, 9], ids=["narrow", "wide"])
@pytest.mark.parametrize("batch", [100, 4], ids=["at once", "in batches"])
def test_every_measure_but_nc4_is_differentiable(dim, batch):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(10, dim, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(4, dim, dtype=torch.float64, generator=generator, requires_grad=True)
    target = torch.tensor([0, 1, 2, 3, 0, 1, 2, 0, 1, 0])

    def function(h, w):
        measured = summarize_collapse(zip(h.split(batch), target.split(batch), strict=True), 4).measures(w)
        return tuple(measured.values())

    assert all(value.requires_grad for value in function(features, weight))
    assert torch.autograd.gradcheck(function, (features, weight), atol=1e-5)
    assert not neural_collapse(features, weight, target)["nc4"].requires_grad


def test_gradients_reach_half_precision_features():
    features = torch.randn(6, 4).half().requires_grad_()
    actual = neural_collapse(features, torch.randn(3, 4), torch.arange(6) % 3)
    actual["nc1"].backward()
    assert features.grad.dtype == torch.float16
    assert features.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sums_are_double_whatever_the_features_are(dtype):
    """Means of 100 and deviations of 1/8, which every dtype holds exactly: low precision loses nothing on the way."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(600) % 3
    features = torch.tensor([96.0, 64.0, 112.0])[target, None] + torch.randint(-1, 2, (600, 4), generator=generator) / 2
    weight = torch.randint(-3, 4, (3, 4), generator=generator) + torch.eye(3, 4)
    actual = neural_collapse(features.to(dtype), weight.to(dtype), target)
    assert {value.dtype for value in actual.values()} == {torch.float64 if dtype == torch.float64 else torch.float32}
    same(actual, measures(features, weight, target), rel=1e-5, floor=1e-6)


@pytest.mark.parametrize("size", [1, 7, 60])
def test_almost_collapsed_features_keep_an_accurate_covariance(size):
    """Deviations of 1e-7 around means of order 100: a difference of second moments would be all rounding."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(60) % 3
    means = 100 * torch.randn(3, 4, generator=generator, dtype=torch.float64)
    features = means[target] + 1e-7 * torch.randn(60, 4, generator=generator, dtype=torch.float64)
    actual = summarize_collapse(zip(features.split(size), target.split(size), strict=True), 3).measures()
    expected = measures(features, means, target)
    for key in ("nc1", "nc1_ratio"):
        assert actual[key].item() == pytest.approx(expected[key], rel=1e-5), key


@given(networks(), st.integers(0, 4))
def test_a_class_without_examples_is_left_out(network, absent):
    features, weight, target, _ = network
    num_classes = len(weight) + 1
    absent = min(absent, len(weight))
    wide = torch.cat([weight[:absent], torch.full((1, weight.shape[1]), 0.3, dtype=torch.float64), weight[absent:]])
    actual = neural_collapse(features, wide, torch.where(target >= absent, target + 1, target))
    present = [c for c in range(num_classes) if c != absent]
    of_features = measures(features, weight - weight.mean(0), target)  # the present classes, centered anew
    of_weight = measures(wide, wide, torch.arange(num_classes))
    for key, value in actual.items():
        if "weight" in key:
            expected = of_weight[key]
        elif key == "feature_alignment":
            expected = measures(features, wide[present], target)[key]
        elif key == "nc4":
            centers = torch.stack([features[target == c].mean(0) for c in range(len(present))])
            nearest = [present[int((x - centers).norm(dim=1).argmin())] for x in features]
            expected = float(np.mean((features @ wide.T).argmax(1).numpy() != np.array(nearest)))
        else:
            expected = of_features[key]
        assert value.item() == pytest.approx(expected, rel=1e-8, abs=1e-9), key


def test_a_collapsed_network_reads_as_collapsed_without_one_of_its_classes():
    frame = torch.eye(5, dtype=torch.float64) - 1 / 5
    target = torch.tensor([0, 1, 3, 4]).repeat(2)
    for key, value in neural_collapse(frame[target], 2 * frame, target).items():
        if key.startswith("nc"):
            assert value.item() == pytest.approx(0.0, abs=1e-14), key


def test_one_example_per_class_has_no_variability():
    actual = neural_collapse(torch.randn(4, 6), torch.randn(4, 6), torch.arange(4))
    assert (actual["nc1"].item(), actual["nc1_ratio"].item()) == (0.0, 0.0)


def test_without_prototypes_only_the_features_are_measured():
    features, weight, target = torch.randn(20, 4).double(), torch.randn(3, 4).double(), torch.arange(20) % 3
    both, alone = neural_collapse(features, weight, target), neural_collapse(features, None, target)
    assert set(alone) == {key for key in both if "weight" not in key and key not in JOINT}
    same(alone, {key: both[key] for key in alone})
    padded = neural_collapse(features, None, target, num_classes=8)
    same(padded, alone)


def test_without_a_covariance_only_nc1_is_missing():
    features, weight, target = torch.randn(20, 4), torch.randn(3, 4), torch.arange(20) % 3
    full = CollapseSummary.of(features, target, 3).measures(weight)
    thin = CollapseSummary.of(features, target, 3, covariance=False)
    full.pop("nc1")
    same((thin + CollapseSummary.empty(3, 4, covariance=False)).measures(weight), full)
    with pytest.raises(ValueError, match="covariance"):
        thin + CollapseSummary.empty(3, 4)


def test_an_empty_summary_is_the_zero_of_the_sum():
    features, weight, target = torch.randn(20, 4), torch.randn(3, 4), torch.arange(20) % 3
    one, zero = CollapseSummary.of(features, target, 3), CollapseSummary.empty(3, 4)
    for actual in (one + zero, zero + one, zero + zero + one):
        same(actual.measures(weight), one.measures(weight))


def test_prototypes_that_coincide_or_vanish_have_numbers_too():
    features, target = torch.randn(8, 3), torch.arange(8) % 2
    twins = neural_collapse(features, torch.ones(2, 3), target)
    assert (twins["weight_angle_min"].item(), twins["weight_norm_ratio"].item()) == (0.0, 1.0)
    half = neural_collapse(features, torch.tensor([[1.0, 0, 0], [0, 0, 0]]), target)
    assert half["weight_norm_ratio"].item() == math.inf
    nothing = neural_collapse(torch.zeros(8, 3), torch.zeros(2, 3), target)
    assert not any(value.isnan() for value in nothing.values())


def test_small_angles_keep_their_digits():
    """arccos of a float64 cosine sees no angle below 1e-8."""
    weight = torch.tensor([[1.0, 0.0], [1.0, 1e-10], [-1.0, 0.0]], dtype=torch.float64)
    actual = neural_collapse(torch.randn(6, 2).double(), weight, torch.arange(6) % 3)
    assert actual["weight_angle_min"].item() == pytest.approx(1e-10, rel=1e-12)


@pytest.mark.parametrize(
    ("features", "weight", "target", "words"),
    [
        (torch.zeros(0, 3), torch.zeros(2, 3), torch.zeros(0, dtype=torch.int64), "features is empty"),
        (torch.zeros(4), torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64), r"features must have shape \(n, p\)"),
        (torch.full((2, 3), math.nan), torch.zeros(2, 3), torch.arange(2), "features contains 6 NaN"),
        (torch.zeros(2, 3), torch.full((2, 3), math.inf), torch.arange(2), "weight contains 6 NaN or inf"),
        (torch.zeros(2, 3), torch.zeros(2, 4), torch.arange(2), r"weight must have shape \(C, 3\)"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([0, 2]), r"0 \.\. 1"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([0, -1]), r"0 \.\. 1"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([0, 1, 1]), r"target must have shape \(2,\)"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.eye(2), "integer labels"),
        (torch.zeros(2, 3), None, torch.eye(2), "integer labels"),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([1, 1]), "at least 2 classes, got 1"),
    ],
)
def test_input_that_cannot_be_measured_is_refused(features, weight, target, words):
    with pytest.raises(ValueError, match=words):
        neural_collapse(features, weight, target)


def test_summaries_of_other_sizes_do_not_add():
    with pytest.raises(ValueError, match="alike"):
        CollapseSummary.empty(3, 4) + CollapseSummary.empty(3, 5)
    with pytest.raises(ValueError, match="empty"):
        summarize_collapse([], 3)
    with pytest.raises(ValueError, match="leave num_classes out"):
        neural_collapse(torch.zeros(2, 3), torch.zeros(2, 3), torch.arange(2), num_classes=3)


@pytest.mark.parametrize("num_classes", [0, -1, 2.5, "3"])
def test_classes_are_a_whole_number(num_classes):
    features, target = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    with pytest.raises(ValueError, match="num_classes must be a whole number of at least 1"):
        neural_collapse(features, None, target, num_classes=num_classes)
    with pytest.raises(ValueError, match="num_classes must be a whole number of at least 1"):
        summarize_collapse([(features, target)], num_classes)
