"""The network of a recipe: its seeds, its head, its last ReLU, and the rescaled gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unhinge.data import load
from unhinge.training import Recipe, RecipeError, fit, machine
from unhinge.training.network import network_of, prototypes_of

HEADS = {"linear": "ce", "pal": "unhinged", "fnpal": "unhinged", "etf-init": "ce"}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("model", ["convnet", "resnet8"])
def test_features_are_free_in_sign_exactly_where_prototypes_are_fixed(few, head, model):
    network = network_of(Recipe(head=head, model=model, width=4), few.train)
    _, features = network(few.train.normalize(few.train.images[:32]), return_features=True)
    assert bool((features < 0).any()) == (head in ("pal", "fnpal"))


@pytest.mark.parametrize("last_relu", [False, True])
@pytest.mark.parametrize("head", ["linear", "pal"])
def test_a_recipe_may_say_otherwise(few, head, last_relu):
    network = network_of(Recipe(head=head, width=4, last_relu=last_relu), few.train)
    _, features = network(few.train.normalize(few.train.images[:32]), return_features=True)
    assert bool((features < 0).any()) != last_relu


@pytest.mark.parametrize("head", ["pal", "fnpal", "etf-init"])
def test_prototypes_start_as_a_simplex_of_the_asked_length(few, head):
    weight = prototypes_of(network_of(Recipe(head=head, width=4, head_scale=2.0), few.train)).detach().double()
    wanted = 4 * (10 / 9 * torch.eye(10, dtype=torch.float64) - 1 / 9)
    torch.testing.assert_close(weight @ weight.T, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_prototypes_change_in_training_exactly_where_they_are_trainable(tmp_path, few, head):
    recipe = Recipe(head=head, loss=HEADS[head], width=4, epochs=1, batch=32)
    before = prototypes_of(network_of(recipe, few.train)).detach().clone()
    fit(recipe, tmp_path, material=few)
    from unhinge.training.evaluation import load_network

    after = prototypes_of(load_network(tmp_path, few.train))
    assert torch.equal(before, after) == (head in ("pal", "fnpal"))


def test_seeds_are_one_for_each_purpose(few):
    def weights(**seeds: int) -> list[torch.Tensor]:
        return list(network_of(Recipe(head="pal", width=4, **seeds), few.train).state_dict().values())

    def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    assert same(weights(seed=3), weights(seed=3))
    assert same(weights(seed=3), weights(seed=0, seed_init=3))
    assert same(weights(seed=3), weights(seed=3, seed_order=5, seed_data=7))
    assert not any(torch.equal(x, y) for x, y in zip(weights(seed=3), weights(seed=4), strict=True) if x.ndim in (2, 4))


def test_making_a_network_leaves_the_global_generator_alone(few):
    before = torch.get_rng_state()
    network_of(Recipe(head="pal"), few.train)
    assert torch.equal(torch.get_rng_state(), before)


def test_too_many_classes_for_the_features_is_a_recipe_error(few):
    with pytest.raises(RecipeError, match="head pal on 8 features"):
        network_of(Recipe(head="pal", width=2), few.train)


@pytest.mark.parametrize("rescale", [False, True])
def test_rescaling_multiplies_the_gradient_of_each_feature_by_its_norm_and_nothing_else(few, rescale):
    """By hand: dL/dh of -(1+g) w_y.h/|h| is -(1+g) (w_y - u u.w_y)/|h|, and |h| cancels when rescaled."""
    network = network_of(Recipe(head="fnpal", loss="unhinged", rescale=rescale, width=4), few.train).double()
    features = torch.randn(5, 16, dtype=torch.float64) * torch.tensor([[0.1], [1.0], [3.0], [10.0], [100.0]])
    features.requires_grad_()
    target = torch.tensor([0, 3, 9, 3, 1])
    logits = network.head(features)
    gamma = 1 / 9
    loss = (gamma * logits.sum(1) - (1 + gamma) * logits.gather(1, target[:, None]).squeeze(1)).sum()
    (gradient,) = torch.autograd.grad(loss, features)
    for h, y, actual in zip(features.detach(), target, gradient, strict=True):
        w, u = prototypes_of(network)[y], h / h.norm()
        wanted = -(1 + gamma) * (w - u * (u @ w)) / (1.0 if rescale else h.norm())
        torch.testing.assert_close(actual, wanted, rtol=1e-6, atol=1e-8)  # the frame is rounded to float32


def test_a_penalty_beside_the_rescaled_head_keeps_its_own_gradient(few):
    network = network_of(Recipe(head="fnpal", loss="unhinged", rescale=True, width=4), few.train)
    network.body = nn.Flatten()
    x = torch.randn(3, 16, requires_grad=True)
    _, features = network(x, return_features=True)
    features.square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


@pytest.mark.parametrize("width", [10**6, 10**9, 2**62])
def test_a_network_that_no_memory_holds_is_refused_before_it_is_made(width):
    with pytest.raises(RecipeError, match=r"GiB; this machine has|too large to count"):
        network_of(Recipe(width=width), load("digits").training)


def test_where_the_system_does_not_tell_its_memory_nothing_is_refused(monkeypatch):
    monkeypatch.delattr(machine.os, "sysconf")
    assert machine.total_memory() is None
    network_of(Recipe(width=4), load("digits").training)
