"""Decisions that take the prior out, each by its definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unhinge.nn import class_weights, simplex_etf
from unhinge.nn import functional as UF
from unhinge.training import Recipe
from unhinge.training.decisions import TAUS, adjusted_accuracies, probabilities, radius_of, remaining_strength

COUNTS = torch.tensor([60, 30, 10])
RADIUS = Recipe(loss="unhinged", head="pal", radius=4.0)


@pytest.fixture
def logits() -> torch.Tensor:
    return 3 * torch.randn(50, 3, generator=torch.Generator().manual_seed(3))


def test_a_posterior_comes_back_from_the_features_that_minimize_the_objective():
    """The minimizer is r times the mean prototype; head_scale is the norm of a prototype."""
    wanted = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]], dtype=torch.float64)
    frame = 2.5 * simplex_etf(3, 5).double()
    features = 4.0 * wanted @ frame / 2.5
    torch.testing.assert_close(UF.posterior(features @ frame.T, 4.0 * 2.5), wanted)


@pytest.mark.parametrize("tau", TAUS)
def test_cross_entropy_has_its_prior_taken_out_of_the_logarithms(logits, tau):
    labels = torch.arange(50) % 3
    actual = adjusted_accuracies(logits, labels, COUNTS, Recipe(), 1.0)
    right = 0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        scores = [z - tau * torch.tensor(share).log().item() for z, share in zip(row, (0.6, 0.3, 0.1), strict=True)]
        right += scores.index(max(scores)) == label
    assert actual[f"{tau:g}"] == pytest.approx(right / 50)


@pytest.mark.parametrize("tau", TAUS)
def test_a_simplex_with_a_radius_has_its_posterior_divided(logits, tau):
    labels = torch.arange(50) % 3
    actual = adjusted_accuracies(logits, labels, COUNTS, RADIUS, 3.9)
    right = 0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        shares = [(1 / 3 + 2 / 3 * z / 4.0) / share**tau for z, share in zip(row, (0.6, 0.3, 0.1), strict=True)]
        right += shares.index(max(shares)) == label
    assert actual[f"{tau:g}"] == pytest.approx(right / 50)


def test_without_a_radius_or_with_an_empty_class_there_is_nothing_to_adjust(logits):
    labels = torch.zeros(50, dtype=torch.int64)
    for recipe in (Recipe(loss="unhinged", head="pal"), Recipe(loss="unhinged", head="fnpal"), Recipe(loss="mse")):
        assert adjusted_accuracies(logits, labels, COUNTS, recipe, 1.0) is None
    assert adjusted_accuracies(logits, labels, torch.tensor([1, 0, 1]), Recipe(), 1.0) is None


def test_features_that_are_short_of_the_radius_hold_no_posterior(logits):
    """A weak penalty asks for a radius in the thousands: the "posterior" would be uniform up to noise."""
    labels = torch.zeros(50, dtype=torch.int64)
    assert adjusted_accuracies(logits, labels, COUNTS, RADIUS, 3.9) is not None
    assert adjusted_accuracies(logits, labels, COUNTS, replace(RADIUS, radius=400.0), 3.9) is None
    assert probabilities(logits, RADIUS, COUNTS, torch.inf) is None


@pytest.mark.parametrize("certainty", [0.4, 0.9])
def test_an_uncertain_posterior_is_read_though_its_features_are_short(certainty):
    """The features of an uncertain image lie between the prototypes; only those of training images reach the radius."""
    wanted = torch.tensor([[certainty, *[(1 - certainty) / 9] * 9]], dtype=torch.float64)
    frame = simplex_etf(10, 9).double()
    read = probabilities(RADIUS.radius * wanted @ frame @ frame.T, RADIUS, torch.full((10,), 5), 3.9)
    torch.testing.assert_close(read, wanted)


@pytest.mark.parametrize("weighted", [False, True])
def test_class_weights_are_read_as_they_were_trained_with(weighted):
    """At the best features both recipes decide as the posterior over the prior does, at the strength that remains."""
    shares = COUNTS.double() / COUNTS.sum()
    p = torch.softmax(2 * torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5)), 1)
    a = class_weights(COUNTS, 0.5).double()
    pulled = a * p if not weighted else a * p / (a * p).sum(1, keepdim=True)
    frame = simplex_etf(3, 5).double()
    recipe = replace(RADIUS, class_weight=0.5, weighted_penalty=weighted)
    logits = RADIUS.radius * pulled @ frame @ frame.T
    decided = UF.balanced_decision(probabilities(logits, recipe, COUNTS, 3.9), COUNTS, remaining_strength(recipe))
    assert torch.equal(decided, (p / shares).argmax(1))


def test_a_penalty_is_a_radius():
    penalized = Recipe(loss="unhinged", head="pal", feature_penalty=1e-3, batch=50, head_scale=2.0)
    # the gradient of -(1 + gamma) w.h + (lambda b) |h|^2 at h = r w/|w| vanishes
    assert radius_of(penalized, 3) == pytest.approx((1 + 1 / 2) * 2.0 / (2 * 1e-3 * 50))
    assert radius_of(RADIUS, 3) == 4.0
