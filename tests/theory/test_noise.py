"""Label noise as soft labels."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from oracles import assert_exact
from unhinge.theory import LayerPeeled
from unhinge.theory.noise import (
    class_conditional_noise,
    slow_down,
    smooth_labels,
    symmetric_noise,
    tolerated_noise,
)


def start(num_classes: int, per_class: int, dim: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_classes * per_class) % num_classes
    features = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
    return labels, features, torch.randn(num_classes, dim, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.6, 0.9])
def test_symmetric_noise_is_its_own_definition(rate):
    labels = torch.tensor([2, 0, 1, 1])
    rows = symmetric_noise(labels, 4, rate)
    transition = torch.full((4, 4), rate / 3, dtype=torch.float64).fill_diagonal_(1 - rate)
    assert torch.equal(rows, class_conditional_noise(labels, transition))
    assert_exact(rows.sum(1), torch.ones(4, dtype=torch.float64), eps=4)


def test_smoothing_is_symmetric_noise_of_a_smaller_rate():
    labels = torch.tensor([2, 0, 1, 1])
    assert_exact(smooth_labels(labels, 5, 0.3), symmetric_noise(labels, 5, 0.3 * 4 / 5), eps=4)
    assert slow_down(5, 0.3 * 4 / 5) == pytest.approx(1 - 0.3, rel=1e-15)


@pytest.mark.parametrize("gamma", [0.0, 0.1, 1 / 3, 0.7])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.74])
def test_noise_shrinks_the_leading_singular_value_and_no_other(gamma, rate):
    """[eq: label-noise]."""
    classes, per_class = 4, 3
    labels, *_ = start(classes, per_class)
    problem = LayerPeeled(symmetric_noise(labels, classes, rate), classes, gamma)
    unit = 1 / (classes * per_class**0.5)
    leading, other = (1 + gamma) * unit * slow_down(classes, rate), abs(1 + gamma - gamma * classes) * unit
    expected = torch.tensor(sorted([leading] * (classes - 1) + [other], reverse=True), dtype=torch.float64)
    assert_exact(problem.singular_values, expected, eps=64)


@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_at_the_natural_gamma_noise_only_slows_time(decay):
    """The path at time t is the clean path at time f t with the decays divided by f."""
    classes, rate = 4, 0.3
    labels, features, weight = start(classes, 3)
    factor = slow_down(classes, rate)
    noisy = LayerPeeled(symmetric_noise(labels, classes, rate), classes, None, decay, decay)
    clean = LayerPeeled(labels, classes, None, decay / factor, decay / factor)
    time = torch.tensor([0.0, 1.0, 30.0, 200.0], dtype=torch.float64)
    actual = noisy.flow(features, weight).at(time)
    expected = clean.flow(features, weight).at(factor * time)
    for moment in range(len(time)):
        assert_exact(actual.features[moment], expected.features[moment], eps=512)
        assert_exact(actual.weight[moment], expected.weight[moment], eps=512)


@pytest.mark.parametrize("gamma", [None, 0.2])
def test_labels_redrawn_at_every_step_have_the_mean_of_the_soft_labels(gamma):
    """Every sequence of labels of two examples over three steps: 6^3 paths with their weights  [eq: label-noise]."""
    classes, rate, lr, steps = 3, 0.3, 0.7, 3
    labels, features, weight = start(classes, 1)
    transition = torch.tensor([[0.6, 0.3, 0.1], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)
    number = 1 / (classes - 1) if gamma is None else gamma
    draws = [
        (
            torch.tensor(drawn),
            torch.stack([transition[i, j] for i, j in zip(labels.tolist(), drawn, strict=True)]).prod(),
        )
        for drawn in itertools.product(range(classes), repeat=len(labels))
    ]
    draws = [(drawn, chance) for drawn, chance in draws if chance > 0]
    states = [(features, weight, torch.ones((), dtype=torch.float64))]
    for _ in range(steps):
        following = []
        for h, w, chance in states:
            for drawn, share in draws:
                one_hot = torch.nn.functional.one_hot(drawn, classes).double()
                pull = ((1 + number) * one_hot - number) / len(labels)
                following.append((h + lr * pull @ w, w + lr * pull.mT @ h, chance * share))
        states = following
    mean_features = sum(chance * h for h, _, chance in states)
    mean_weight = sum(chance * w for _, w, chance in states)
    soft = class_conditional_noise(labels, transition)
    reached = LayerPeeled(soft, classes, gamma).descent(features, weight, lr=lr).at(steps)
    assert_exact(reached.features, mean_features, eps=64)
    assert_exact(reached.weight, mean_weight, eps=64)
    assert rate < tolerated_noise(classes)


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.6])
@pytest.mark.parametrize(("share", "survives"), [(0.99, True), (1.01, False)])
def test_the_clean_limit_survives_exactly_below_the_tolerated_noise(gamma, share, survives):
    """[eq: tolerated-noise]."""
    classes = 4
    labels, features, weight = start(classes, 3)
    rate = share * tolerated_noise(classes, gamma)
    clean = LayerPeeled(labels, classes, gamma).flow(features, weight).direction()
    noisy = LayerPeeled(symmetric_noise(labels, classes, rate), classes, gamma).flow(features, weight).direction()
    apart = (clean.features - noisy.features).norm().item()
    assert apart < 1e-12 if survives else apart > 0.1


@pytest.mark.parametrize("num_classes", [2, 3, 10, 1000])
def test_the_natural_gamma_tolerates_everything_short_of_no_information(num_classes):
    assert tolerated_noise(num_classes) == (num_classes - 1) / num_classes
    assert tolerated_noise(num_classes, 0.0) == 0
    assert slow_down(num_classes, tolerated_noise(num_classes)) == pytest.approx(0, abs=1e-15)
    if num_classes > 2:
        assert tolerated_noise(num_classes, 2 / (num_classes - 2)) == 0
        assert tolerated_noise(num_classes, 5.0) == 0


REFUSED = {
    "rate above 1": (lambda: symmetric_noise(torch.tensor([0, 1]), 2, 20), "probability"),
    "negative rate": (lambda: slow_down(3, -0.1), "rate"),
    "one class": (lambda: smooth_labels(torch.tensor([0]), 1, 0.1), "num_classes"),
    "label out of range": (lambda: smooth_labels(torch.tensor([3]), 3, 0.1), "labels must lie"),
    "soft labels": (lambda: smooth_labels(torch.rand(3, 3), 3, 0.1), "hard labels"),
    "names": (lambda: symmetric_noise(["cat", "dog"], 3, 0.1), "labels must be"),
    "columns for rows": (
        lambda: class_conditional_noise(torch.tensor([0]), torch.tensor([[0.5, 0.0], [0.5, 1.0]])),
        "transpose",
    ),
    "not square": (lambda: class_conditional_noise(torch.tensor([0]), torch.ones(2, 3) / 3), "square"),
}


@pytest.mark.parametrize(("attempt", "word"), REFUSED.values(), ids=REFUSED)
def test_noise_that_makes_no_sense_is_refused(attempt, word):
    with pytest.raises(ValueError, match=word):
        attempt()
