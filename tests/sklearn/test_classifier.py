"""The closed form against autograd on the definition, against scikit-learn's own, and against itself in parts."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_digits, load_iris, load_wine, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import linear_kernel
from sklearn.neighbors import NearestCentroid

from unhinge.metrics import expected_calibration_error
from unhinge.sklearn import UnhingedClassifier, classifier
from unhinge.sklearn.temperature import FOLDS, digest_of, enough_of, fold_of
from unhinge.theory.linear import spectrum

Array = NDArray[Any]


def data(counts: list[int], dim: int = 4, seed: int = 0, spread: float = 1.0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    y = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    return generator.normal(size=(len(counts), dim))[y] + spread * generator.normal(size=(len(y), dim)), y


def test_the_names_of_class_weights_are_those_of_the_theory():
    assert classifier.CLASS_WEIGHT_POWERS == spectrum.CLASS_WEIGHT_POWERS


# ---- what it minimizes ---------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    st.lists(st.integers(2, 7), min_size=2, max_size=4),
    st.sampled_from([None, 0.0, 0.7, 2.0]),
    st.sampled_from([0.1, 1.0, 5.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([None, "balanced", "sqrt", {0: 3.0, 1: 0.5}]),
    st.booleans(),
)
def test_the_gradient_of_the_objective_vanishes_at_the_solution(
    counts: list[int], gamma: float | None, alpha: float, penalty: float, class_weight: Any, weighted: bool
):
    """[eq: linear-classifier]."""
    x, y = data(counts)
    sample = np.random.default_rng(1).uniform(0.5, 2, len(y)) if weighted else np.ones(len(y))
    model = UnhingedClassifier(gamma=gamma, alpha=alpha, logit_penalty=penalty, class_weight=class_weight)
    model.fit(x, y, sample_weight=sample)
    classes = len(counts)
    by_class = np.ones(classes)
    if isinstance(class_weight, str):
        power = {"sqrt": 0.5, "balanced": 1.0}[class_weight]
        by_class = np.array([sample[y == kind].sum() ** -power for kind in range(classes)])
    elif class_weight is not None:
        by_class = np.array([class_weight.get(kind, 1.0) for kind in range(classes)])
    omega = torch.from_numpy(sample * by_class[y])
    omega = omega / omega.sum()
    center = (omega[:, None] * torch.from_numpy(x)).sum(0)
    weight = torch.from_numpy(model._prototypes).clone().requires_grad_(True)
    bias = torch.from_numpy(model._offsets).clone().requires_grad_(True)
    plain = (torch.from_numpy(x) - center) @ weight.mT
    logits = plain + bias
    g = 1 / (classes - 1) if gamma is None else gamma
    true = logits.gather(1, torch.from_numpy(y)[:, None])[:, 0]
    loss = (omega * (-true + g * (logits.sum(1) - true))).sum() + alpha / 2 * weight.pow(2).sum()
    mean_square = (torch.from_numpy(sample) * plain.pow(2).sum(1)).sum() / sample.sum()
    loss = loss + penalty / 2 * mean_square + (penalty or alpha) / 2 * bias.pow(2).sum()
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        assert gradient.abs().max() < 1e-12


# ---- what it is equal to -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.3, 20.0])
def test_with_a_penalty_on_the_scores_it_is_ridge_regression(alpha: float):
    x, y = data([30, 12, 7])
    ridge = RidgeClassifier(alpha=alpha).fit(x, y)
    model = UnhingedClassifier(gamma=1.0, logit_penalty=1.0, alpha=alpha / len(y), class_weight=None).fit(x, y)
    np.testing.assert_allclose(model.decision_function(x), ridge.decision_function(x), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.coef_, ridge.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.intercept_, ridge.intercept_, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 1e6, 1e9])
@pytest.mark.parametrize("dependent", [False, True])
def test_features_that_are_large_or_depend_on_each_other_are_those_of_ridge_regression(size: float, dependent: bool):
    """Bytes in, out and in total: singular in floats beside alpha, and one feature a billion times another."""
    x, y = data([30, 12, 7])
    large = size * x[:, :2]
    x = np.column_stack([large, large.sum(1), x]) if dependent else np.column_stack([large, x])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = UnhingedClassifier(logit_penalty=1.0, gamma=1.0, class_weight=None).fit(x, y)
    ridge = RidgeClassifier(alpha=len(x), solver="svd").fit(x, y)
    np.testing.assert_allclose(model.decision_function(x), ridge.decision_function(x), atol=1e-6)


def test_of_two_classes_it_has_twice_the_scores_of_ridge_regression():
    x, y = data([30, 12])
    weight = np.random.default_rng(0).random(len(y))
    ridge = RidgeClassifier(alpha=0.3 * weight.sum()).fit(x, y, weight)
    model = UnhingedClassifier(gamma=1.0, logit_penalty=1.0, alpha=0.3, class_weight=None).fit(x, y, weight)
    np.testing.assert_allclose(model.decision_function(x), 2 * ridge.decision_function(x), rtol=1e-9, atol=1e-12)


def test_for_two_classes_it_is_the_nearest_centroid():
    x, y = data([40, 9])
    new = np.random.default_rng(2).normal(size=(500, 4)) * 3
    assert (UnhingedClassifier().fit(x, y).predict(new) == NearestCentroid().fit(x, y).predict(new)).all()


def test_for_more_classes_it_is_the_nearest_centroid_but_for_its_offsets():
    x, y = data([20, 20, 20])
    model = UnhingedClassifier().fit(x, y)
    means = np.array([x[y == kind].mean(0) for kind in range(3)])
    center = means.mean(0)
    halves = ((means - center) ** 2).sum(1) / 2
    new = np.random.default_rng(3).normal(size=(300, 4)) * 2
    # scores are (1 + gamma) pi_c / lambda = 1/2 times the inner products
    corrected = 2 * model.decision_function(new) - halves
    assert (corrected.argmax(1) == NearestCentroid().fit(x, y).predict(new)).all()
    assert not (model.predict(new) == NearestCentroid().fit(x, y).predict(new)).all()


@pytest.mark.parametrize("gamma", [0.0, 0.3, 4.0])
def test_gamma_and_alpha_change_no_prediction_and_no_probability(gamma: float):
    x, y = load_iris(return_X_y=True)
    one, other = UnhingedClassifier().fit(x, y), UnhingedClassifier(gamma=gamma, alpha=7.0).fit(x, y)
    assert (one.predict(x) == other.predict(x)).all()
    np.testing.assert_allclose(one.predict_proba(x), other.predict_proba(x), atol=1e-9)


def test_symmetric_label_noise_only_shrinks_the_prototypes():
    x, y = data([10, 10, 10, 10])
    rho, classes = 0.4, 4
    copies, labels = np.repeat(x, classes, axis=0), np.tile(np.arange(classes), len(y))
    expected = np.where(labels == np.repeat(y, classes), 1 - rho, rho / (classes - 1))
    clean, noisy = UnhingedClassifier().fit(x, y), UnhingedClassifier().fit(copies, labels, sample_weight=expected)
    np.testing.assert_allclose(noisy.coef_, (1 - rho * classes / (classes - 1)) * clean.coef_, atol=1e-13)


# ---- the kernel ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_a_kernel_is_the_linear_classifier_on_its_features(class_weight: Any):
    """[eq: kernel-classifier]."""
    x, y = data([15, 8, 5], dim=3)
    new = np.random.default_rng(5).normal(size=(20, 3))

    def squares(rows: Array) -> Array:
        return np.einsum("ni,nj->nij", rows, rows).reshape(len(rows), -1)

    options = {"class_weight": class_weight, "calibrate": False, "alpha": 0.5}
    plain = UnhingedClassifier(**options).fit(squares(x), y).decision_function(squares(new))
    kernel = UnhingedClassifier(kernel="poly", kernel_params={"degree": 2, "gamma": 1.0, "coef0": 0.0}, **options).fit(
        x, y
    )
    np.testing.assert_allclose(kernel.decision_function(new), plain, rtol=1e-9, atol=1e-11)
    with pytest.raises(AttributeError, match="linear kernel"):
        kernel.coef_  # noqa: B018


def test_a_function_can_be_the_kernel_and_calibrates_as_the_linear_one_does():
    x, y = data([15, 8, 5])
    linear, kernel = UnhingedClassifier().fit(x, y), UnhingedClassifier(kernel=linear_kernel).fit(x, y)
    np.testing.assert_allclose(kernel.predict_proba(x), linear.predict_proba(x), atol=1e-10)


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_kernel_that_is_not_finite_is_refused(broken: float, calibrate: bool):
    """It would make every score NaN, and the first class the answer to everything."""
    x, y = data([15, 8, 5])
    factor = {"of": broken}
    fitted = UnhingedClassifier(kernel=lambda a, b: a @ b.T * factor["of"], calibrate=calibrate)
    with pytest.raises(ValueError, match="the kernel must return finite numbers"):
        fitted.fit(x, y)
    factor["of"] = 1.0
    fitted.fit(x, y)
    factor["of"] = broken
    with pytest.raises(ValueError, match="the kernel must return finite numbers"):
        fitted.predict(x)


# ---- in parts ------------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 59), min_size=1, max_size=4, unique=True),
    st.sampled_from([{}, {"logit_penalty": 1.0}, {"kernel": "rbf"}, {"class_weight": None}]),
)
def test_parts_give_the_classifier_of_the_whole(cuts: list[int], options: dict[str, Any]):
    x, y = data([30, 20, 10])
    whole, parts = UnhingedClassifier(**options).fit(x, y), UnhingedClassifier(**options)
    for part in np.split(np.arange(60), sorted(cuts)):
        parts.partial_fit(x[part], y[part], classes=[0, 1, 2])
    np.testing.assert_allclose(parts.decision_function(x), whole.decision_function(x), rtol=1e-8, atol=1e-10)
    assert np.isfinite(parts.predict_proba(x)).all()


def test_classes_may_come_one_after_the_other():
    x, y = data([20, 20, 20], spread=0.3)
    model = UnhingedClassifier()
    for kind in range(3):
        model.partial_fit(x[y == kind], y[y == kind], classes=[0, 1, 2])
    np.testing.assert_allclose(model.coef_, UnhingedClassifier().fit(x, y).coef_, atol=1e-12)


def test_a_large_common_offset_costs_no_digits():
    x, y = data([20, 10, 10])
    near, far = UnhingedClassifier().fit(x, y), UnhingedClassifier().fit(x + 2.0**30, y)
    np.testing.assert_allclose(far.coef_, near.coef_, atol=1e-6)
    assert (far.predict(x + 2.0**30) == near.predict(x)).all()


# ---- probabilities -------------------------------------------------------------------------------------------------


def test_the_scale_minimizes_the_log_loss_of_held_out_predictions():
    """[eq: temperature]."""
    x, y = data([40, 40, 40])
    model = UnhingedClassifier().fit(x, y)
    fold = fold_of(digest_of(x))
    scores = np.empty((len(y), 3))
    for number in range(FOLDS):
        rest = UnhingedClassifier(calibrate=False).fit(x[fold != number], y[fold != number])
        scores[fold == number] = rest.decision_function(x[fold == number])

    def loss(log_beta: float) -> float:
        z = torch.from_numpy(np.exp(log_beta) * scores)
        return torch.nn.functional.cross_entropy(z, torch.from_numpy(y)).item()

    best = minimize_scalar(loss, bounds=(-8, 8), method="bounded", options={"xatol": 1e-9})
    assert np.log(model.beta_) == pytest.approx(best.x, abs=0.02)
    assert loss(np.log(model.beta_)) == pytest.approx(best.fun, abs=1e-4)


def test_probabilities_of_clouds_of_one_shape_are_calibrated():
    generator = np.random.default_rng(0)
    centers = 1.2 * (np.eye(4) - 0.25) @ generator.normal(size=(4, 10))
    y = np.arange(8000) % 4
    x = centers[y] + generator.normal(size=(8000, 10))
    for options in ({}, {"kernel": "rbf", "kernel_params": {"gamma": 0.05}}):
        few = slice(0, 1000)
        model = UnhingedClassifier(**options).fit(x[few], y[few])
        raw = UnhingedClassifier(calibrate=False, **options).fit(x[few], y[few])
        error = expected_calibration_error(model.predict_proba(x[1000:]), y[1000:])
        assert error < 0.04
        assert error < expected_calibration_error(raw.predict_proba(x[1000:]), y[1000:]) / 3


def test_a_later_batch_is_scored_before_it_is_learned():
    x, y = data([100, 100, 100])
    model = UnhingedClassifier().partial_fit(x[:60], y[:60])
    before = model._losses
    scores = model.decision_function(x[60:])
    model.partial_fit(x[60:], y[60:])
    expected = before.add(scores, y[60:], np.ones(240))
    np.testing.assert_allclose(model._losses.totals, expected.totals)


@pytest.mark.parametrize("options", [{}, {"logit_penalty": 1.0}, {"kernel": "rbf"}])
def test_a_weight_of_two_is_an_example_twice_for_probabilities_too(options: dict[str, Any]):
    x, y = data([20, 12, 8])
    times = np.random.default_rng(4).integers(0, 4, len(y))
    weighted = UnhingedClassifier(**options).fit(x, y, sample_weight=times)
    copied = UnhingedClassifier(**options).fit(np.repeat(x, times, axis=0), np.repeat(y, times))
    np.testing.assert_allclose(weighted.predict_proba(x), copied.predict_proba(x), atol=1e-10)


@pytest.mark.parametrize("round_to", [None, 0])
def test_folds_are_of_about_equal_size(round_to: int | None):
    x = np.random.default_rng(0).normal(size=(5000, 6)) * 3
    x = x if round_to is None else x.round(round_to)
    digest = digest_of(x)
    shares = np.bincount(fold_of(digest), minlength=FOLDS) / len(x)
    assert np.abs(shares - 1 / FOLDS).max() < 0.04
    assert (digest_of(x[::-1]) == digest[::-1]).all()
    assert len(np.unique(digest)) == len(np.unique(x, axis=0))


def test_of_many_rows_the_same_are_chosen_however_often_they_occur():
    x = np.random.default_rng(0).normal(size=(10_000, 3))
    digest, times = digest_of(x), np.random.default_rng(1).integers(0, 3, len(x))
    chosen = enough_of(digest, times.astype(float))
    copies = enough_of(np.repeat(digest, times), np.ones(times.sum()))
    assert 3500 < len(chosen) < 4700
    assert (np.repeat(digest[chosen], times[chosen]) == np.repeat(digest, times)[copies]).all()


# ---- at the door ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gamma": -1.0}, "gamma"),
        ({"alpha": 0.0}, "no minimum"),
        ({"logit_penalty": -1.0}, "logit_penalty"),
        ({"class_weight": "even"}, "class_weight"),
        ({"class_weight": {0: 0.0, 1: 0.0, 2: 0.0}}, "not all 0"),
        ({"kernel": "precomputed"}, "precomputed"),
        ({"kernel": "rbf", "logit_penalty": 1.0}, "KernelRidge"),
        ({"kernel": lambda a, b: np.ones(3)}, "matrix of shape"),
    ],
)
def test_a_wrong_parameter_is_named(options: dict[str, Any], said: str):
    x, y = data([5, 5, 5])
    with pytest.raises(ValueError, match=said):
        UnhingedClassifier(**options).fit(x, y)


def test_labels_the_first_call_did_not_name_are_refused():
    x, y = data([5, 5, 5])
    model = UnhingedClassifier().partial_fit(x, y)
    with pytest.raises(ValueError, match="not in classes"):
        model.partial_fit(x[:1], [7])
    with pytest.raises(ValueError, match="first call"):
        model.partial_fit(x[:1], y[:1], classes=[0, 1])
    with pytest.raises(ValueError, match="2 classes"):
        UnhingedClassifier().fit(x, y, sample_weight=(y == 0).astype(float))


def test_names_of_any_kind_can_be_labels():
    x, y = make_classification(60, 5, random_state=0)
    names = np.array(["no", "yes"])[y]
    model = UnhingedClassifier(class_weight={"no": 1.0, "yes": 2.0}).fit(x, names)
    assert set(model.predict(x)) <= {"no", "yes"}
    assert model.decision_function(x).shape == (60,)
    assert model.coef_.shape == (1, 5)
    np.testing.assert_allclose(x @ model.coef_[0] + model.intercept_, model.decision_function(x), atol=1e-12)


def test_digits_are_read():
    x, y = load_digits(return_X_y=True)
    assert UnhingedClassifier(kernel="rbf", kernel_params={"gamma": 0.001}).fit(x[:900], y[:900]).score(
        x[900:], y[900:]
    ) == pytest.approx(0.93, abs=0.04)


def test_negative_weights_are_refused():
    x, y = data([5, 5])
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        UnhingedClassifier().fit(x, y, sample_weight=np.where(y == 0, -1.0, 1.0))


def examples() -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 3


@pytest.mark.parametrize(
    "mistake",
    [
        {"classes": [0, 1]},
        {"classes": [0, 1, 2], "sample_weight": -np.ones(30)},
        {"classes": [0, 1, 2], "sample_weight": np.zeros(30)},
    ],
)
def test_a_refused_first_batch_leaves_the_classifier_unfitted(mistake):
    x, y = examples()
    model = UnhingedClassifier()
    with pytest.raises(ValueError, match=r"classes|weight"):
        model.partial_fit(x, y, **mistake)
    with pytest.raises(NotFittedError):
        model.predict(x)
    np.testing.assert_array_equal(model.partial_fit(x, y).predict(x), UnhingedClassifier().fit(x, y).predict(x))


def test_a_refused_fit_leaves_the_classifier_as_it_was():
    x, y = examples()
    model = UnhingedClassifier().fit(x, y)
    before = model.predict_proba(x)
    with pytest.raises(ValueError, match="2 classes"):
        model.fit(x[:, :2], np.zeros(30, dtype=int))
    np.testing.assert_array_equal(model.predict_proba(x), before)
    unfitted = UnhingedClassifier()
    with pytest.raises(ValueError, match="2 classes"):
        unfitted.fit(x, np.zeros(30, dtype=int))
    with pytest.raises(NotFittedError):
        unfitted.predict(x)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_a_fold_without_weight_is_left_out_of_the_calibration(kernel):
    """One example carries all the weight: without it there is nothing to fit, and nothing to calibrate on."""
    x, _ = examples()
    labels, weights = [0] + [1] * 4 + [2] * 4, {0: 1.0, 1: 0.0, 2: 0.0}
    model = UnhingedClassifier(class_weight=weights, kernel=kernel).fit(x[:9], labels)
    plain = UnhingedClassifier(class_weight=weights, kernel=kernel, calibrate=False).fit(x[:9], labels)
    np.testing.assert_allclose(model.decision_function(x), plain.decision_function(x))
    with pytest.raises(ValueError, match="not all 0"):
        UnhingedClassifier(class_weight={0: 0.0, 1: 0.0, 2: 0.0}, kernel=kernel).fit(x[:9], labels)


@pytest.mark.parametrize("power", [-498, -100, 100, 498])
def test_probabilities_say_something_in_any_unit_of_the_features(power):
    """Scores are proportional to the square of the unit; folds go by the bits of a row, so the scale may differ."""
    x, y = examples()
    x = x + 2 * np.eye(4)[y]
    plain = UnhingedClassifier().fit(x, y).predict_proba(x)
    scaled = UnhingedClassifier().fit(2.0**power * x, y).predict_proba(2.0**power * x)
    np.testing.assert_array_equal(scaled.argmax(1), plain.argmax(1))
    np.testing.assert_allclose(scaled, plain, atol=0.1)
    assert scaled.std() > 0.01


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_a_first_batch_of_one_class_does_not_spoil_the_probabilities(kernel):
    x, y = load_wine(return_X_y=True)
    x = x if kernel == "linear" else x / x.std(0)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], y[order]
    at_once = UnhingedClassifier(kernel=kernel).fit(x[:89], y[:89])
    one_by_one = UnhingedClassifier(kernel=kernel)
    for k in range(89):
        one_by_one.partial_fit(x[k : k + 1], y[k : k + 1], classes=[0, 1, 2])
    losses = [log_loss(y[89:], model.predict_proba(x[89:])) for model in (at_once, one_by_one)]
    assert losses[1] < losses[0] + 0.1


def test_what_would_be_ignored_is_refused():
    x, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="class_weight names '0'"):
        UnhingedClassifier(class_weight={"0": 100.0}).fit(x, y)
    with pytest.raises(ValueError, match="no kernel has the parameter 'gama'"):
        UnhingedClassifier(kernel="rbf", kernel_params={"gama": 10.0}).fit(x, y)
    with pytest.raises(ValueError, match="class_weight must be"):
        UnhingedClassifier(class_weight=np.ones(3)).fit(x, y)
    for wrong in ({"gamma": "auto"}, {"alpha": None}, {"logit_penalty": "1"}):
        with pytest.raises(ValueError, match="must be a number"):
            UnhingedClassifier(**wrong).fit(x, y)


def test_parameters_that_were_changed_after_the_fit_are_named():
    x, y = load_iris(return_X_y=True)
    model = UnhingedClassifier().fit(x, y)
    with pytest.raises(ValueError, match="fitted with the linear kernel"):
        model.set_params(kernel="rbf").predict(x)
    model.set_params(kernel="linear", logit_penalty=1.0)
    assert model.predict(x).shape == y.shape
    with pytest.raises(ValueError, match="logit_penalty was 0"):
        model.partial_fit(x, y)
    with pytest.raises(ValueError, match="gamma must be"):
        model.set_params(logit_penalty=0.0, gamma=-3).partial_fit(x, y)
