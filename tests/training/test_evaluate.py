"""The numbers of an evaluation, each from its definition; files that cannot be evaluated are refused."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
import torch

import data_makers as make
from unhinge.data import ImageSet
from unhinge.metrics import ood_metrics
from unhinge.ood import CollapseDetector
from unhinge.training import Material, Recipe, evaluate, evaluation, fit
from unhinge.training.checkpoint import CheckpointError, read_tensors, write_tensors
from unhinge.training.evaluation import load_network

RECIPE = Recipe(width=4, epochs=4, batch=32, lr=0.1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, few):
    folder = tmp_path_factory.mktemp("trained")
    return fit(RECIPE, folder, material=few)


@pytest.fixture(scope="module")
def noise(few) -> ImageSet:
    pixels = torch.randint(17, (80, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    return replace(few.test, images=pixels, labels=torch.zeros(80, dtype=torch.int64))


def test_the_numbers_are_those_of_the_definitions(trained, few, noise):
    actual = evaluate(trained.folder, material=few, unknown=noise)
    network = load_network(trained.folder, few.train)
    with torch.no_grad():
        logits, features = network(few.test.normalize(few.test.images), return_features=True)
        strange = network(noise.normalize(noise.images))
    right = logits.argmax(1) == few.test.labels
    numbers = actual.numbers
    assert numbers["accuracy"] == pytest.approx(right.double().mean().item())
    assert numbers["accuracy"] == pytest.approx(trained.last["test_accuracy"])
    assert numbers["feature_norm"] == pytest.approx(features.norm(dim=1).mean().item(), rel=1e-5)
    confidence, error = logits.double().softmax(1).max(1).values, 0.0
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        if inside.any():
            error += inside.double().mean().item() * abs(
                right[inside].double().mean().item() - confidence[inside].mean().item()
            )
    assert numbers["ece"] == pytest.approx(error, abs=1e-6)
    for c, accuracy in enumerate(numbers["class_accuracy"]):
        of = few.test.labels == c
        assert accuracy == (pytest.approx(right[of].double().mean().item()) if of.any() else None)
    known, unknown = logits.softmax(1).max(1).values, strange.softmax(1).max(1).values
    above = (known[:, None] > unknown).double() + 0.5 * (known[:, None] == unknown).double()
    assert numbers["ood"]["softmax"]["auroc"] == pytest.approx(above.mean().item(), abs=1e-6)
    assert set(numbers["ood"]) == {"data", "images", "softmax", "energy", "norm"}
    assert set(numbers["ood"]["norm"]) == {"fpr95", "auroc", "aupr_in", "aupr_out"}


def test_a_set_is_no_stranger_to_itself(trained, few):
    actual = evaluate(trained.folder, material=few, unknown=few.test)
    for score in ("softmax", "energy", "norm"):
        assert actual.numbers["ood"][score]["auroc"] == pytest.approx(0.5)


def test_many_medium_and_few_go_by_the_training_images(trained, few):
    counts = torch.tensor([150, 150, 150, 50, 50, 50, 50, 5, 5, 5])
    labels = torch.repeat_interleave(torch.arange(10), counts)
    other = Material(
        replace(few.train, images=few.train.images[:1].expand(len(labels), -1, -1, -1), labels=labels), few.test, None
    )
    numbers = evaluate(trained.folder, material=other).numbers
    shots, network = numbers["shots"], load_network(trained.folder, few.train)
    with torch.no_grad():
        right = network(few.test.normalize(few.test.images)).argmax(1) == few.test.labels
    for name, classes in {"many": range(3), "medium": range(3, 7), "few": range(7, 10)}.items():
        of = torch.isin(few.test.labels, torch.tensor(classes))
        assert shots[name] == pytest.approx(right[of].double().mean().item())


def test_the_file_holds_the_numbers_as_plain_json(trained, few):
    actual = evaluate(trained.folder, material=few)
    stored = json.loads((trained.folder / "evaluation.json").read_text(), parse_constant=pytest.fail)
    assert stored["accuracy"] == actual.numbers["accuracy"]
    assert stored["recipe"] == RECIPE.key
    assert stored["shots"]["many"] == "nan"  # no class has more than 100 images


def test_best_weights_can_be_asked_for(trained, few):
    best = max(record["test_accuracy"] for record in trained.records)
    assert evaluate(trained.folder, material=few, which="best").numbers["accuracy"] == pytest.approx(best)


def test_a_folder_without_weights_is_refused_and_told_what_is_there(tmp_path, few):
    with pytest.raises(FileNotFoundError, match=r"no last\.safetensors \(there: no weights at all\)"):
        evaluate(tmp_path, material=few)


def test_weights_for_other_images_are_refused(trained, few):
    wider = replace(few.train, classes=(*few.train.classes, "ten"))
    with pytest.raises(CheckpointError, match="11 classes"):
        evaluate(trained.folder, material=Material(wider, few.test, None))


@pytest.mark.parametrize("about", [{}, {"recipe": "abc"}, {"recipe": None}])
def test_weights_that_do_not_say_their_recipe_are_refused(tmp_path, few, about):
    write_tensors(tmp_path / "last.safetensors", {"x": torch.zeros(1)}, about)
    with pytest.raises(CheckpointError, match="by which recipe"):
        evaluate(tmp_path, material=few)


def test_several_unknown_sets_meet_every_score(trained, few, noise, tmp_path):
    actual = evaluate(trained.folder, "theirs, noise", material=few, unknown=noise)
    scores = ["softmax", "energy", "norm", "mahalanobis", "neco", "nci", "fdbd", "vim"]
    assert list(actual.known) == scores
    assert list(actual.unknown) == ["theirs", "noise"]
    rows = actual.numbers["detection"]
    assert [(row["score"], row["data"]) for row in rows] == [(s, d) for s in scores for d in ("theirs", "noise", "far")]
    network = load_network(trained.folder, few.train)
    with torch.no_grad():
        _, train = network(few.train.normalize(few.train.images), return_features=True)
        _, known = network(few.test.normalize(few.test.images), return_features=True)
        _, strange = network(noise.normalize(noise.images), return_features=True)
    head = network.head
    detector = CollapseDetector.fit(train, few.train.labels, head.weight, head.bias)
    mine, yours = detector.scores(known), detector.scores(strange)
    for row in rows:
        if row["data"] == "theirs":
            expected = ood_metrics(mine[row["score"]], yours[row["score"]])
            assert row["auroc"] == pytest.approx(expected["auroc"], abs=1e-4)
            assert row["auroc_low"] <= row["auroc"] <= row["auroc_high"]
    table = list(csv.DictReader((trained.folder / "ood.csv").open()))
    assert list(table[0]) == ["postprocessor", "dataset", "FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC"]
    assert len(table) == 24
    board = list(csv.DictReader((trained.folder / "leaderboard.csv").open()))
    assert [row["Postprocessor"] for row in board] == scores


def test_a_prior_asks_for_adjusted_decisions(trained, few):
    numbers = evaluate(trained.folder, material=few, prior="counts").numbers
    assert numbers["adjusted"]["strength"] == 1.0
    assert numbers["adjusted"]["all"] == pytest.approx(numbers["adjusted_accuracy"]["1"])
    assert set(numbers["adjusted"]) == {"strength", "all", "many", "medium", "few"}
    assert "adjusted" not in evaluate(trained.folder, material=few).numbers
    with pytest.raises(ValueError, match="prior must be"):
        evaluate(trained.folder, material=few, prior="uniform")


def test_how_well_it_knows_its_own_images_is_told_by_class(trained, few):
    numbers = evaluate(trained.folder, material=few).numbers
    network = load_network(trained.folder, few.train)
    with torch.no_grad():
        right = network(few.train.normalize(few.train.images)).argmax(1) == few.train.labels
        said = network(few.test.normalize(few.test.images)).argmax(1)
    fitted = numbers["training"]
    assert fitted["accuracy"] == pytest.approx(right.double().mean().item())
    shares = [right[few.train.labels == c].double().mean().item() for c in range(10)]
    assert fitted["class_accuracy"] == pytest.approx(shares)
    assert fitted["interpolated"] == (min(shares) >= 0.99)
    for c in range(10):
        for d in range(10):
            assert numbers["confusion"][c][d] == int(((few.test.labels == c) & (said == d)).sum())


def test_of_too_many_classes_no_confusion_is_recorded(trained, few, monkeypatch):
    """A table with a number for each pair of 2,231 classes was a file of 15 MB."""
    monkeypatch.setattr(evaluation, "MOST_CONFUSED", 9)
    assert evaluate(trained.folder, material=few).numbers["confusion"] is None


def test_the_logits_of_the_test_images_lie_beside_the_run(trained, few):
    evaluate(trained.folder, material=few)
    stored = read_tensors(trained.folder / "test_logits.safetensors")
    network = load_network(trained.folder, few.train)
    with torch.no_grad():
        logits = network(few.test.normalize(few.test.images))
    assert stored.tensors["logits"].dtype == torch.float16
    again = stored.standing["times"] * stored.tensors["logits"].float()
    torch.testing.assert_close(again, logits, rtol=1e-3, atol=1e-3)
    assert torch.equal(stored.tensors["labels"], few.test.labels)


def test_unknown_images_of_several_sizes_are_brought_to_the_size_of_the_known_ones(trained, few, tmp_path):
    for number, side in enumerate((8, 9, 30)):
        make.image(tmp_path / "test" / "a" / f"{number}.png", make.images(side, side, 3))
    numbers = evaluate(trained.folder, f"folder:{tmp_path}", material=few).numbers
    assert numbers["ood"]["images"] == 3
