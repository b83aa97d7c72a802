"""Detection metrics against loops over thresholds and pairs, and against scikit-learn, with many ties."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from unhinge.metrics import ood_metrics, ood_scores

few_values = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=25)
many_values = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=25)
pairs = st.one_of(st.tuples(few_values, few_values), st.tuples(many_values, many_values))


def oracle(inside: list[float], outside: list[float]) -> dict[str, Fraction]:
    """From the definitions, one threshold and one pair at a time."""

    def share(scores, test):
        return Fraction(sum(map(test, scores)), len(scores))

    thresholds = sorted(set(inside + outside))
    fitting = [t for t in thresholds if share(inside, lambda s: s >= t) >= Fraction(95, 100)]  # noqa: B023
    best = max(fitting)
    wins = sum(Fraction(int(a > b)) + Fraction(int(a == b), 2) for a in inside for b in outside)

    def average_precision(positives, negatives):
        total, before = Fraction(0), Fraction(0)
        for t in sorted(set(positives + negatives), reverse=True):
            true = sum(s >= t for s in positives)
            recall, precision = Fraction(true, len(positives)), Fraction(true, true + sum(s >= t for s in negatives))
            total, before = total + (recall - before) * precision, recall
        return total

    return {
        "fpr95": share(outside, lambda s: s >= best),
        "auroc": wins / (len(inside) * len(outside)),
        "aupr_in": average_precision(inside, outside),
        "aupr_out": average_precision([-s for s in outside], [-s for s in inside]),
    }


@given(pairs)
def test_the_metrics_are_those_of_the_definitions(scores):
    """[eq: ood-metrics]."""
    inside, outside = scores
    actual = ood_metrics(torch.tensor(inside, dtype=torch.float64), torch.tensor(outside, dtype=torch.float64))
    assert list(actual) == ["fpr95", "auroc", "aupr_in", "aupr_out"]
    for key, value in oracle(inside, outside).items():
        assert actual[key] == pytest.approx(float(value), rel=1e-13, abs=0), key


@given(pairs)
def test_the_areas_are_those_of_scikit_learn(scores):
    inside, outside = scores
    actual = ood_metrics(inside, outside)
    labels, values = np.r_[np.ones(len(inside)), np.zeros(len(outside))], np.r_[inside, outside]
    assert actual["auroc"] == pytest.approx(roc_auc_score(labels, values), rel=1e-12)
    assert actual["aupr_in"] == pytest.approx(average_precision_score(labels, values), rel=1e-12)
    assert actual["aupr_out"] == pytest.approx(average_precision_score(1 - labels, -values), rel=1e-12)


@given(pairs)
def test_with_the_other_set_positive_the_roles_and_the_sign_turn(scores):
    inside, outside = scores
    actual = ood_metrics(inside, outside, positive="ood")
    turned = ood_metrics([-s for s in outside], [-s for s in inside])
    assert actual["fpr95"] == turned["fpr95"]
    assert (actual["aupr_in"], actual["aupr_out"]) == (turned["aupr_out"], turned["aupr_in"])
    assert actual["auroc"] == pytest.approx(turned["auroc"], rel=1e-15)


@pytest.mark.parametrize(
    ("size", "rejected"), [(20, 1), (19, 0), (21, 1), (39, 1), (40, 2), (100, 5), (10_000, 500), (60, 3)]
)
def test_exactly_a_twentieth_of_the_id_set_may_fall_below_the_threshold(size, rejected):
    """0.95 n is not a float for most n; the comparison is one of whole numbers."""
    inside = torch.arange(size)
    outside = torch.arange(size) - 0.5  # outside[i] lies just below inside[i]
    actual = ood_metrics(inside, outside)["fpr95"]
    assert actual == (size - rejected - 1) / size


def test_equal_scores_are_accepted_together():
    assert ood_metrics([1.0] * 3, [1.0] * 5) == {"fpr95": 1.0, "auroc": 0.5, "aupr_in": 3 / 8, "aupr_out": 5 / 8}


def test_separated_sets_are_perfect_and_reversed_ones_the_opposite():
    assert ood_metrics([2, 3], [0, 1]) == {"fpr95": 0.0, "auroc": 1.0, "aupr_in": 1.0, "aupr_out": 1.0}
    actual = ood_metrics([0, 1], [2, 3])
    assert (actual["fpr95"], actual["auroc"]) == (1.0, 0.0)


def test_zero_and_minus_zero_tie():
    assert ood_metrics([0.0], [-0.0])["auroc"] == 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_scores_count_as_the_numbers_they_are(dtype):
    inside, outside = torch.randn(50).to(dtype), torch.randn(70).to(dtype) - 1
    assert ood_metrics(inside, outside) == ood_metrics(inside.double(), outside.double())


def test_a_large_set_does_not_overflow():
    inside = torch.arange(400_000)
    actual = ood_metrics(inside + 100_000, inside)
    assert actual["auroc"] == pytest.approx(1 - 0.75**2 / 2, abs=1e-5)


@pytest.mark.parametrize(
    ("inside", "outside", "words"),
    [
        ([], [1.0], "id_scores is empty"),
        ([1.0], [], "ood_scores is empty"),
        ([float("nan")], [1.0], "id_scores contains 1 NaN"),
        ([1.0], [float("inf"), 2.0], "ood_scores contains 1 NaN or infinite"),
        ([[1.0]], [1.0], r"shape \(n,\)"),
        ([1j], [1.0], "real"),
        (["a"], [1.0], "numbers"),
    ],
)
def test_scores_that_cannot_be_ranked_are_refused(inside, outside, words):
    with pytest.raises(ValueError, match=words):
        ood_metrics(inside, outside)


def test_an_unknown_convention_is_refused():
    with pytest.raises(ValueError, match='"id" or "ood"'):
        ood_metrics([1.0], [1.0], positive="in")


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_scores_are_the_log_odds_of_the_largest_probability_the_negative_energy_and_the_norm(temperature):
    """[eq: ood-scores]."""
    logits, features = 3 * torch.randn(7, 4, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    actual = ood_scores(logits, features, temperature=temperature)
    assert list(actual) == ["softmax", "energy", "norm"]
    for i in range(7):
        weights = [np.exp(z / temperature) for z in logits[i].tolist()]
        largest = max(weights) / sum(weights)
        assert actual["softmax"][i].item() == pytest.approx(np.log(largest / (1 - largest)), rel=1e-12, abs=1e-12)
        assert actual["energy"][i].item() == pytest.approx(temperature * np.log(sum(weights)), rel=1e-13)
        assert actual["norm"][i].item() == pytest.approx(sum(x * x for x in features[i].tolist()) ** 0.5, rel=1e-13)


def test_confident_networks_are_ranked_where_their_probabilities_tie_at_one():
    logits = torch.tensor([[40.0, 0.0, 0.0], [400.0, 0.0, 0.0], [4000.0, 3.0, 0.0]])
    assert (logits.softmax(1).amax(1) == 1).all()
    assert ood_scores(logits)["softmax"].tolist() == pytest.approx(
        [40 - np.log(2), 400 - np.log(2), 3996.9514], rel=1e-6
    )


def test_a_single_class_ties_everywhere():
    assert ood_scores(torch.tensor([[3.0], [5.0]]))["softmax"].tolist() == [0.0, 0.0]


def test_scores_without_features_have_no_norm():
    assert list(ood_scores(torch.zeros(2, 3))) == ["softmax", "energy"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores_keep_the_dtype_but_not_half_precision(dtype):
    actual = ood_scores(torch.randn(3, 4).to(dtype), 300 * torch.ones(3, 4, dtype=dtype))
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    assert {score.dtype for score in actual.values()} == {wanted}
    assert actual["norm"].tolist() == pytest.approx([600.0] * 3)  # 300^2 overflows float16


def test_large_logits_have_a_finite_energy():
    assert ood_scores(torch.tensor([[1e4, -1e4]]))["energy"].item() == 1e4


def test_scores_are_differentiable():
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    features = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, h: tuple(ood_scores(z, h, 1.5).values()), (logits, features))


def test_logits_and_features_must_be_of_the_same_examples():
    with pytest.raises(ValueError, match=r"features must have shape \(3, p\), got \(2, 5\)"):
        ood_scores(torch.zeros(3, 4), torch.zeros(2, 5))
    for temperature in (0, -1.0, math.nan, math.inf, "1"):
        with pytest.raises(ValueError, match="temperature must be"):
            ood_scores(torch.zeros(3, 4), temperature=temperature)
