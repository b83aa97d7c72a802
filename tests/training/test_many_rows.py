"""A network whose head is a ManyClassHead: trained, measured, stopped and continued as any other."""

from __future__ import annotations

import pytest
import torch

from unhinge.data import load
from unhinge.training import Recipe, RecipeError, evaluate, fit
from unhinge.training.loop import Interrupted
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


def test_an_interrupted_run_ends_in_the_same_bits(tmp_path):
    whole = fit(RECIPE, tmp_path / "whole")
    asked: list[int] = []

    def after_five_steps() -> bool:
        asked.append(1)
        return len(asked) == 5

    with pytest.raises(Interrupted):
        fit(RECIPE, tmp_path / "parts", interrupted=after_five_steps)
    again = fit(RECIPE, tmp_path / "parts")
    for one, other in zip(whole.records, again.records, strict=True):
        assert {k: v for k, v in one.items() if v == v} == {k: v for k, v in other.items() if v == v}
    assert (tmp_path / "whole/last.safetensors").read_bytes() == (tmp_path / "parts/last.safetensors").read_bytes()


def test_a_loss_of_more_than_three_numbers_is_refused():
    with pytest.raises(RecipeError, match="head many has the losses"):
        Recipe(head="many", loss="ce")
