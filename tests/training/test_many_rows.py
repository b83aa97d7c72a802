"""A network whose head is a ManyClassHead: trained, measured, stopped and continued as any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unhinge.data import load
from unhinge.training import Recipe, RecipeError, evaluate, fit
from unhinge.training.loop import Interrupted
from unhinge.training.measure import class_means, outputs
from unhinge.training.network import ManyClassAdapter, network_of

RECIPE = Recipe(head="many", loss="taylor_softmax", width=4, epochs=2, lr=0.05, augment=False)


def test_a_step_is_that_of_dense_sgd_on_the_same_rows():
    """The rate is head_rate * batch / features, without momentum and decay."""
    images = load("digits").training
    network = network_of(RECIPE, images)
    assert isinstance(network.head, ManyClassAdapter)
    rows = network.head.weight.clone().requires_grad_()
    features, target = torch.randn(6, network.feature_dim), torch.arange(6)
    network.head.losses(features, target).mean().backward()
    network.head.step(2.0, batch=6)
    z = features @ rows.T
    series = 1 + z + z.square() / 2
    (series.sum(1).log() - series.gather(1, target[:, None]).squeeze(1).log()).mean().backward()
    torch.testing.assert_close(network.head.weight, rows.detach() - 2.0 * 6 / network.feature_dim * rows.grad)


def test_it_learns_and_is_evaluated(tmp_path):
    run = fit(RECIPE, tmp_path)
    assert run.stopped is None
    assert run.last["test_accuracy"] > 0.3  # chance is 0.1
    assert evaluate(tmp_path).numbers["accuracy"] == pytest.approx(run.last["test_accuracy"])


FINISHED = replace(RECIPE, shortlist=4)


@pytest.mark.parametrize("recipe", [RECIPE, FINISHED])
@pytest.mark.parametrize("steps", [5, 12, 15])  # an epoch has 12: within the first, at its end, within the second
def test_an_interrupted_run_ends_in_the_same_bits(tmp_path, recipe, steps):
    """A restart from class means falls between the two epochs, and is made once or made again."""
    whole = fit(recipe, tmp_path / "whole")
    asked: list[int] = []

    def after_some_steps() -> bool:
        asked.append(1)
        return len(asked) == steps

    with pytest.raises(Interrupted):
        fit(recipe, tmp_path / "parts", interrupted=after_some_steps)
    again = fit(recipe, tmp_path / "parts")
    for one, other in zip(whole.records, again.records, strict=True):
        assert {k: v for k, v in one.items() if v == v} == {k: v for k, v in other.items() if v == v}
    assert (tmp_path / "whole/last.safetensors").read_bytes() == (tmp_path / "parts/last.safetensors").read_bytes()


def test_a_shortlist_restarts_the_rows_from_class_means_and_changes_the_loss(tmp_path):
    images = load("digits").training
    network = network_of(FINISHED, images)
    head = network.head
    assert isinstance(head, ManyClassAdapter)
    features, target = torch.randn(6, network.feature_dim), torch.arange(6)
    torch.testing.assert_close(head.losses(features, target), head.inner(features, target, "none"))
    means = class_means(network, images)
    outputs_of_all = outputs(network.eval(), images)
    expected = torch.stack([outputs_of_all.features[images.labels == c].mean(0) for c in range(10)])
    torch.testing.assert_close(means.float(), expected, rtol=1e-4, atol=1e-5)
    head.restart(means)
    near = head.inner.neighbors(4)
    assert torch.equal(head.near.long(), near)
    torch.testing.assert_close(
        head.losses(features, target), head.inner(features, target, "none", shortlist=near[target])
    )


@pytest.mark.parametrize(("epochs", "restart"), [(2, 1), (3, 2), (6, 3)])
def test_the_restart_comes_at_half_time(epochs, restart):
    assert replace(FINISHED, epochs=epochs).restart == restart
    assert replace(RECIPE, epochs=epochs).restart is None
    assert replace(RECIPE, epochs=epochs).key != replace(FINISHED, epochs=epochs).key


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"head": "linear", "loss": "ce", "shortlist": 4}, "head many"),
        ({"loss": "unhinged", "shortlist": 4}, "sum of squares"),
        ({"shortlist": 0}, "shortlist"),
        ({"shortlist": 4, "epochs": 1}, "at least 2"),
    ],
)
def test_a_shortlist_that_cannot_be_followed_is_refused(changes, what):
    with pytest.raises(RecipeError, match=what):
        replace(RECIPE, **changes)


def test_a_shortlist_of_all_classes_is_refused():
    with pytest.raises(RecipeError, match="below the number of classes"):
        network_of(replace(RECIPE, shortlist=10), load("digits").training)


def test_a_loss_of_more_than_three_numbers_is_refused():
    with pytest.raises(RecipeError, match="head many has the losses"):
        Recipe(head="many", loss="ce")
