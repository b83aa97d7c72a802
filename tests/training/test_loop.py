"""What `fit` does, step by step, against a loop written by hand; what it records; where it stops."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unhinge.data import augment_for, batches, load
from unhinge.training import Material, Recipe, RecipeError, fit, material_of
from unhinge.training.checkpoint import CheckpointError, read_tensors
from unhinge.training.loop import learning_rate
from unhinge.training.measure import prototype_record
from unhinge.training.network import network_of
from unhinge.training.records import read_records

TINY = Recipe(width=4, epochs=2, batch=32, lr=0.05)
# The rate brings every seed tried to overflow within 11 of the 40 epochs: growth is exponential, and rounding, which
# differs between processors, decides the exponent. (At a rate of 3 some processors end the 40 epochs at 1e32.)
RAW = Recipe(width=4, epochs=40, batch=32, lr=10.0, loss="unhinged", last_relu=False)


@given(st.integers(1, 40), st.floats(0.001, 10))
def test_the_schedule_is_torchs_cosine(epochs, lr):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        wanted = optimizer.param_groups[0]["lr"]
        assert learning_rate(Recipe(epochs=epochs, lr=lr), epoch) == pytest.approx(wanted, rel=1e-9, abs=1e-12 * lr)
        optimizer.step()
        schedule.step()


@given(st.integers(1, 10), st.integers(1, 20))
def test_warm_up_climbs_evenly_to_the_rate_the_cosine_starts_from(warmup, more):
    recipe = Recipe(epochs=warmup + more, warmup=warmup, lr=1.0)
    rates = [learning_rate(recipe, epoch) for epoch in range(recipe.epochs)]
    assert rates[:warmup] == pytest.approx([(k + 1) / (warmup + 1) for k in range(warmup)])
    assert rates[warmup:] == pytest.approx([learning_rate(Recipe(epochs=more, lr=1.0), k) for k in range(more)])


def test_the_weights_are_those_of_sgd_written_by_hand(tmp_path, few):
    """Momentum, weight decay, schedule, class weights, penalty, and an uneven last batch, each by its formula."""
    recipe = replace(TINY, class_weight=0.5, feature_penalty=1e-3, warmup=1, epochs=3)
    run = fit(recipe, tmp_path, material=few)
    network = network_of(recipe, few.train).to(memory_format=torch.channels_last)
    parameters = list(network.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    of_class = few.train.counts.float() ** -0.5
    for epoch in range(3):
        rate, losses = (0.025, 0.05, 0.025)[epoch], 0.0
        feed = batches(
            few.train, 32, seed=0, epoch=epoch, augment=augment_for(few.train), memory_format=torch.channels_last
        )
        for x, y in feed:
            logits, features = network(x, return_features=True)
            each = logits.logsumexp(1) - logits[torch.arange(len(y)), y]
            loss = (of_class[y] * each).sum() / of_class[y].sum() + 1e-3 * features.square().sum()
            losses += loss.item() * len(y)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, v, g in zip(parameters, velocity, gradients, strict=True):
                    v.mul_(0.9).add_(g + 5e-4 * p)
                    p.sub_(rate * v)
        assert run.records[epoch]["lr"] == pytest.approx(rate)
        assert run.records[epoch]["train_loss"] == pytest.approx(losses / 203, rel=1e-4)
    stored = read_tensors(tmp_path / "last.safetensors").tensors
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(stored[name], tensor, rtol=2e-3, atol=2e-5)  # rounding, grown over 21 steps


def test_every_epoch_has_its_record_in_json_and_csv(tmp_path, few):
    told: list[tuple[int, int, bool]] = []
    run = fit(
        TINY, tmp_path, material=few, progress=lambda done, total, record: told.append((done, total, bool(record)))
    )
    lines = read_records(tmp_path)
    assert lines == run.records
    assert [record["epoch"] for record in lines] == [1, 2]
    wanted = "lr train_loss train_accuracy feature_norm prototype_norm_min prototype_norm_ratio prototype_angle_min"
    wanted += " test_accuracy sample_accuracy nc1_ratio nc2_norm_features nc2_angle_features nc3 nc4"
    for record in lines:
        assert all(math.isfinite(record[name]) for name in wanted.split())
    with (tmp_path / "log.csv").open() as file:
        for row, record in zip(csv.DictReader(file), lines, strict=True):
            assert {name: float(value) for name, value in row.items()} == record
    assert [entry for entry in told if entry[2]] == [(7, 14, True), (14, 14, True)]
    assert [json.loads(line)["epoch"] for line in (tmp_path / "times.jsonl").read_text().splitlines()] == [1, 2]


def test_the_numbers_of_a_record_are_those_of_the_weights_beside_it(tmp_path, few):
    run = fit(replace(TINY, epochs=1), tmp_path, material=few)
    network = network_of(TINY, few.train)
    network.load_state_dict(read_tensors(tmp_path / "last.safetensors").tensors)
    network.eval()
    with torch.no_grad():
        right = network(few.test.normalize(few.test.images)).argmax(1) == few.test.labels
        logits, features = network(few.train.normalize(few.train.images), return_features=True)
    assert run.last["test_accuracy"] == right.double().mean().item()
    assert run.last["sample_accuracy"] == (logits.argmax(1) == few.train.labels).double().mean().item()
    means = torch.stack([features[few.train.labels == c].mean(0) for c in range(10)])
    nearest = torch.cdist(features.double(), means.double()).argmin(1)
    # The network decides with its biases.
    assert run.last["nc4"] == pytest.approx((nearest != logits.argmax(1)).double().mean().item(), abs=1e-6)


def test_best_weights_are_those_of_the_first_epoch_with_the_highest_test_accuracy(tmp_path, few):
    run = fit(replace(TINY, epochs=6, lr=0.2), tmp_path, material=few)
    accuracy = [record["test_accuracy"] for record in run.records]
    assert read_tensors(tmp_path / "best.safetensors").standing["record"] == run.records[accuracy.index(max(accuracy))]
    assert read_tensors(tmp_path / "last.safetensors").standing["record"] == run.last


def test_a_finished_run_is_returned_as_it_is(tmp_path, few):
    first = fit(TINY, tmp_path, material=few)
    before = (tmp_path / "last.safetensors").read_bytes()
    again = fit(TINY, tmp_path, material=few)
    assert again.records == first.records
    assert (tmp_path / "last.safetensors").read_bytes() == before


def test_prototypes_are_measured_by_norm_and_angle():
    actual = prototype_record(torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 3.0]]))
    assert actual["prototype_norm_min"] == 1.0
    assert actual["prototype_norm_ratio"] == pytest.approx(18**0.5)
    assert actual["prototype_angle_min"] == pytest.approx(45.0)


@pytest.mark.parametrize("weight", [torch.zeros(3, 2), torch.full((3, 2), math.nan), torch.full((3, 2), math.inf)])
def test_prototypes_that_are_gone_are_measured_all_the_same(weight):
    assert set(prototype_record(weight)) == {"prototype_norm_min", "prototype_norm_ratio", "prototype_angle_min"}


# ---- the raw loss blows up


def test_the_raw_loss_on_a_trainable_head_blows_up_and_the_run_stops_with_all_its_records(tmp_path, few):
    run = fit(RAW, tmp_path, material=few)
    assert run.stopped is not None
    assert "not finite" in run.stopped
    *whole, end = run.records
    assert len(whole) > 1
    assert end["stopped"] == run.stopped
    assert read_records(tmp_path) == run.records
    for record in whole:
        for name in ("feature_norm", "prototype_norm_ratio", "prototype_norm_min", "prototype_angle_min"):
            assert isinstance(record[name], float)
    norms = [record["feature_norm"] for record in whole]
    assert norms[-1] > 100 * norms[0]
    assert min(record["train_loss"] for record in whole) < -1e6
    # Trained again it goes the same way, to the same end.
    assert fit(run.recipe, tmp_path, material=few).records == run.records


def test_fixed_prototypes_keep_the_same_loss_finite(tmp_path, few):
    run = fit(replace(RAW, head="pal"), tmp_path, material=few)
    assert run.stopped is None
    assert len(run.records) == RAW.epochs


def test_a_stop_at_the_first_step_of_an_epoch_does_not_report_a_loss_of_zero(tmp_path, few):
    one_step = replace(TINY, loss="unhinged", batch=203, lr=1e30, epochs=5)
    run = fit(one_step, tmp_path, material=few)
    assert run.stopped is not None
    assert run.last["train_loss"] == "nan"
    assert run.last["feature_norm"] == "nan"


def test_weights_that_became_infinite_at_the_last_step_of_an_epoch_are_recorded_and_stop_the_next(tmp_path, few):
    run = fit(replace(TINY, loss="unhinged", batch=203, lr=1e38, epochs=5), tmp_path, material=few)
    assert run.stopped is not None
    assert len(run.records) >= 2
    assert (tmp_path / "last.safetensors").is_file()


# ---- folders


def test_a_recipe_that_failed_before_its_first_step_does_not_hold_the_folder(tmp_path, few):
    with pytest.raises(ValueError, match="no model 'nosuch'"):
        fit(replace(TINY, model="nosuch"), tmp_path, material=few)
    fit(TINY, tmp_path, material=few)
    assert Recipe.from_json((tmp_path / "recipe.json").read_text()) == TINY


def test_a_folder_that_holds_another_run_is_left_alone(tmp_path, few):
    fit(TINY, tmp_path, material=few)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RecipeError, match=r"holds another run; they differ in lr, seed\. Choose another folder"):
        fit(replace(TINY, lr=0.5, seed=7), tmp_path, material=few)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_is_not_continued_on_other_images(tmp_path, few):
    """A folder of images may have gained or lost some since, and the recipe is the same."""
    fit(TINY, tmp_path, material=few)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    fewer = Material(few.train.subset(torch.arange(195)), few.test, None)
    with pytest.raises(RecipeError, match=r"on other images; they differ in train_images, counts\. Put them back"):
        fit(TINY, tmp_path, material=fewer)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"lr": "a"}', b'{"unknown": 1}'])
def test_a_damaged_recipe_file_in_the_folder_is_named(tmp_path, few, content):
    (tmp_path / "recipe.json").write_bytes(content)
    with pytest.raises(RecipeError, match=r"recipe\.json is damaged"):
        fit(TINY, tmp_path, material=few)


def test_checkpoints_of_another_recipe_are_not_continued_when_the_recipe_file_is_gone(tmp_path, few):
    fit(TINY, tmp_path, material=few)
    (tmp_path / "recipe.json").unlink()
    with pytest.raises(CheckpointError, match="another recipe"):
        fit(replace(TINY, seed=7), tmp_path, material=few)


def test_the_folder_tells_which_images_were_kept(tmp_path):
    recipe = replace(TINY, imbalance="exp:10", epochs=1, batch=512)
    fit(recipe, tmp_path)
    about = json.loads((tmp_path / "data.json").read_text())
    material = material_of(recipe)
    assert about["kept"] == material.kept.tolist()
    assert about["counts"] == torch.bincount(load("digits").training.labels[about["kept"]]).tolist()
    assert about["train_images"] == len(about["kept"]) == len(material.train)


def test_data_are_shrunk_then_thinned_out_then_mislabelled():
    recipe = Recipe(shrink=2, imbalance="step:5", label_noise=0.5, seed=3)
    material, plain = material_of(recipe), load("digits")
    assert tuple(material.train.images.shape[1:]) == (1, 4, 4)
    true = plain.training.labels[material.kept]
    share = (material.train.labels != true).double().mean().item()
    assert 0.4 < share < 0.6
    assert torch.equal(material.test.labels, plain.test.labels)
    assert torch.equal(material_of(replace(recipe, seed=9, seed_data=3)).train.labels, material.train.labels)


def test_training_on_the_same_recipe_twice_gives_the_same_bits(tmp_path, few):
    for name in ("a", "b"):
        fit(TINY, tmp_path / name, material=few)
        torch.randn(7)  # whatever happens to the global generator
    for file in ("last.safetensors", "best.safetensors", "log.jsonl", "log.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_images_may_be_fewer_than_a_batch(tmp_path, few):
    less = Material(few.train.subset(torch.arange(30)), few.test, None)
    assert fit(replace(TINY, batch=500), tmp_path, material=less).last["epoch"] == 2


def test_test_images_are_looked_at_when_asked_and_at_the_end(tmp_path, few):
    often = fit(replace(TINY, epochs=5), tmp_path / "often", material=few)
    seldom = fit(replace(TINY, epochs=5, measure_every=2), tmp_path / "seldom", material=few)
    assert [record["epoch"] for record in seldom.records if "test_accuracy" in record] == [2, 4, 5]
    for one, other in zip(seldom.records, often.records, strict=True):
        assert one == {name: other[name] for name in one}  # nothing else changes
    best = read_tensors(tmp_path / "seldom" / "best.safetensors").standing["record"]
    assert best["test_accuracy"] == max(r["test_accuracy"] for r in seldom.records if "test_accuracy" in r)


def test_a_recipe_can_have_fewer_images():
    counts = material_of(Recipe(imbalance="exp:10", largest=100)).train.counts
    assert (counts[0], counts[-1]) == (100, 10)
    assert material_of(Recipe(largest=20)).train.counts.tolist() == [20] * 10
