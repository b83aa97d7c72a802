"""What follows from a record."""

from __future__ import annotations

import numpy as np
import pytest

from unhinge.paper.studies.derived import extended

TRAINED = {"feature_norm": [1.0, 9.0]}  # of the training images, by epoch


@pytest.mark.parametrize(
    ("curve", "middle"),
    [
        ([0.1, 0.2, 0.3, 0.4], 0.2),
        ([0.1, 0.2, 0.3, 0.4, 0.5], 0.2),  # never later than half of the epochs
        ([None, 0.1, None, 0.2, None, 0.3], 0.1),
        ([*[None] * 4, 0.1, *[None] * 4, 0.2, *[None] * 4, 0.3, *[None] * 4, 0.4], 0.2),  # ten of twenty epochs
        ([None, None, 0.3], 0.3),  # the first measurement there is
    ],
)
def test_half_time_is_the_last_measurement_in_the_first_half_of_the_epochs(curve, middle):
    assert extended({"stopped": None, "curves": {"test_accuracy": curve}})["halfway_accuracy"] == middle


@pytest.mark.parametrize(("curve", "epoch"), [([0.5, "nan", 0.99, 1.0], 3), ([0.5, None, 0.9], None), ([], None)])
def test_fitting_is_the_first_epoch_with_almost_every_training_image_right(curve, epoch):
    assert extended({"stopped": None, "curves": {"train_accuracy": curve}})["epochs_to_fit"] == epoch


@pytest.mark.parametrize(
    ("recipe", "adjusted", "decided"),
    [
        ({"loss": "ce"}, {"0": 0.5, "0.5": 0.55, "1": 0.6}, 0.6),
        ({"loss": "unhinged", "head": "pal"}, None, 0.5),  # no probabilities, so nothing to adjust
        ({"loss": "unhinged", "head": "pal", "radius": 10.0}, {"0": 0.5, "0.5": 0.55, "1": 0.6}, 0.6),
        ({"loss": "unhinged", "head": "pal", "radius": 1000.0}, {"0": 0.5, "1": 0.6}, None),  # features too short
    ],
)
def test_a_decision_is_adjusted_as_the_theory_says_and_plain_where_it_says_nothing(recipe, adjusted, decided):
    record = {"stopped": None, "training": {"class_accuracy": [1.0, 1.0]}, "curves": TRAINED, "accuracy": 0.5}
    found = extended(record | {"recipe": recipe, "adjusted_accuracy": adjusted})
    assert found["decided_accuracy"] == decided
    halved = adjusted is not None and "radius" in recipe and decided is not None
    assert found["halved_accuracy"] == (0.55 if halved else decided)


def test_rare_classes_are_the_second_half():
    record = {"stopped": None, "training": {"class_accuracy": [1.0, 1.0, 0.5, None, 0.25, 0.0]}}
    assert extended(record)["rare_training_accuracy"] == pytest.approx(0.125)


def test_a_stopped_run_tells_where_its_norms_were():
    assert extended({"stopped": "why", "curves": {"feature_norm": [1.0, 5.0, "inf"]}})["feature_norm"] == 5.0


def test_the_spread_of_known_energies_is_that_of_the_bins():
    known, unknown = [0, 2, 4, 2, 0, 0], [3, 2, 0, 0, 2, 1]
    record = {
        "stopped": None,
        "ood": {"energy": {"fpr95": 0.5}},
        "histograms": {"energy": {"range": [-1.0, 5.0], "known": known, "unknown": unknown}},
    }
    mine = np.repeat(np.arange(6), known)
    both = np.concatenate([mine, np.repeat(np.arange(6), unknown)])
    energy = extended(record)["ood"]["energy"]
    assert energy["known_spread"] == pytest.approx(mine.std() / both.std())
    assert energy["fpr95"] == 0.5


@pytest.mark.parametrize(
    ("norms", "kept"), [([1.0, 9.0], True), ([1.0, 6.0], False), ([9.0, "nan"], True), ([], False)]
)
def test_decisions_from_features_short_of_their_radius_are_left_out(norms: list, kept: bool):
    """The training images' decide; those of test images may be short, where the network is not sure."""
    recipe = {"loss": "unhinged", "head": "pal", "radius": 10.0}
    record = {"stopped": None, "training": {"class_accuracy": [1.0, 1.0]}, "feature_norm": 4.0, "recipe": recipe}
    record["curves"] = {"feature_norm": norms}
    adjusted = {"0": 0.5, "1": 0.6}
    assert extended(record | {"adjusted_accuracy": adjusted})["adjusted_accuracy"] == (adjusted if kept else None)


@pytest.mark.parametrize(
    ("loss", "radius", "stated"),
    [("ce", None, 0.4), ("unhinged", 10.0, 0.3), ("unhinged", 20.0, None), ("unhinged", None, None)],
)
def test_stated_probabilities_are_the_posterior_where_there_is_one(loss, radius, stated):
    """And none where the features are too short for it: the softmax of such logits is nobody's probability."""
    recipe = {"loss": loss, "head": "linear" if radius is None else "pal", "radius": radius}
    record = {"stopped": None, "training": {"class_accuracy": [1.0, 1.0]}, "curves": TRAINED, "recipe": recipe}
    errors = {"ece": 0.4, "posterior_ece": None if radius is None else 0.3}
    assert extended(record | errors)["stated_ece"] == stated
