"""The objective, against a loop over examples written from the definitions, and split over processes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unhinge.nn import functional as UF
from unhinge.training import Recipe
from unhinge.training.objective import objective_of


def loss_of_one(recipe: Recipe, z: list[float], y: int, counts: list[int]) -> float:
    classes = len(z)
    gamma = 1 / (classes - 1) if recipe.gamma is None else recipe.gamma
    if recipe.logit_adjustment:
        z = [v + recipe.logit_adjustment * math.log(n / sum(counts)) for v, n in zip(z, counts, strict=True)]
    aim = [(1 - recipe.label_smoothing) * (c == y) + recipe.label_smoothing / classes for c in range(classes)]
    if recipe.loss == "ce":
        normalizer = math.log(math.fsum(math.exp(v) for v in z))
        return math.fsum(a * (normalizer - v) for a, v in zip(aim, z, strict=True))
    if recipe.loss == "unhinged":
        of = [-z[c] + gamma * math.fsum(z[j] for j in range(classes) if j != c) for c in range(classes)]
        return math.fsum(a * v for a, v in zip(aim, of, strict=True))
    if recipe.loss == "hinge":
        return math.fsum(max(0.0, z[j] - z[y] + 1) for j in range(classes) if j != y)
    if recipe.loss == "taylor_softmax":
        series = [1 + v + v * v / 2 for v in z]
        return math.fsum(a * -math.log(s / math.fsum(series)) for a, s in zip(aim, series, strict=True))
    if recipe.loss == "spherical_softmax":
        squares = [v * v + 1 for v in z]
        return math.fsum(a * -math.log(s / math.fsum(squares)) for a, s in zip(aim, squares, strict=True))
    if recipe.loss == "z":
        mean = math.fsum(z) / classes
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in z) / classes)
        return math.log1p(math.exp(10 - (z[y] - mean) / spread))
    assert recipe.loss == "mse"
    return math.fsum((z[c] - (c == y)) ** 2 for c in range(classes))


def naive(recipe: Recipe, logits: Tensor, features: Tensor, target: Tensor, counts: list[int]) -> float:
    total = top = squares = weighted = 0.0
    for z, h, y in zip(logits.tolist(), features.tolist(), target.tolist(), strict=True):
        weight = counts[y] ** -recipe.class_weight
        top += weight * loss_of_one(recipe, z, y, counts)
        total += weight
        squares += sum(v * v for v in h)
        weighted += weight * sum(v * v for v in h)
    strength = recipe.feature_penalty
    if recipe.radius is not None:
        gamma = 1 / (logits.shape[1] - 1) if recipe.gamma is None else recipe.gamma
        of_mean = (1 + gamma) * recipe.head_scale / (2 * recipe.radius)
        if recipe.weighted_penalty:
            return top / total + of_mean * weighted / total
        strength = of_mean / len(target)
    return top / total + strength * squares


RECIPES = [
    Recipe(),
    Recipe(class_weight=0.5, label_smoothing=0.1),
    Recipe(logit_adjustment=1.5, feature_penalty=0.01),
    Recipe(class_weight=1.0, logit_adjustment=0.5, label_smoothing=1.0),
    Recipe(loss="unhinged"),
    Recipe(loss="unhinged", gamma=0.0, class_weight=0.7, label_smoothing=0.2, feature_penalty=0.3),
    Recipe(loss="unhinged", head="pal", radius=5.0, head_scale=2.0, class_weight=0.5),
    Recipe(loss="unhinged", head="pal", radius=5.0, head_scale=2.0, class_weight=0.5, weighted_penalty=True),
    Recipe(loss="unhinged", head="pal", radius=0.5, gamma=0.3),
    Recipe(loss="hinge", class_weight=0.5),
    Recipe(loss="taylor_softmax", class_weight=0.5),
    Recipe(loss="spherical_softmax"),
    Recipe(loss="z"),
    Recipe(loss="mse", class_weight=0.5, feature_penalty=0.1),
]


def batch(size: int, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(size, 3, generator=draw, dtype=torch.float64)
    prototypes = torch.randn(classes, 3, generator=draw, dtype=torch.float64)
    return features @ prototypes.T, features, torch.randint(classes, (size,), generator=draw), prototypes


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.key)
@given(st.integers(1, 9), st.integers(2, 5), st.integers(0, 99))
def test_the_objective_is_the_loop_over_examples(recipe, size, classes, seed):
    logits, features, target, prototypes = batch(size, classes, seed)
    counts = [3 + 7 * c * c for c in range(classes)]
    objective = objective_of(recipe, torch.tensor(counts))
    value = objective(logits, features, target, prototypes, objective.weight_of(target).sum(dtype=torch.float64), size)
    assert value.dtype == torch.float64
    expected = naive(recipe, logits, features, target, counts)
    # Weights and priors are stored in float32.
    assert value.item() == pytest.approx(expected, rel=2e-6, abs=2e-6)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.key)
@given(st.integers(0, 8), st.integers(0, 99))
def test_parts_add_up_to_the_whole_and_so_do_their_gradients(recipe, cut, seed):
    logits, features, target, prototypes = batch(8, 4, seed)
    objective = objective_of(recipe, torch.tensor([50, 20, 5, 2]))
    total = objective.weight_of(target).sum(dtype=torch.float64)
    logits.requires_grad_()
    features.requires_grad_()
    whole = objective(logits, features, target, prototypes, total, 8)
    parts = [
        objective(logits[part], features[part], target[part], prototypes, total, 8)
        for part in (slice(0, cut), slice(cut, 8))
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)
    wanted = torch.autograd.grad(whole, [logits, features], allow_unused=True)
    actual = torch.autograd.grad(sum(parts), [logits, features], allow_unused=True)
    for one, other in zip(actual, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_radius_asks_for_the_same_feature_norm_at_any_batch_size(size):
    """At fixed prototypes of mean zero the minimum over a feature is at `radius` times its prototype."""
    prototypes = 3 * (torch.eye(4, dtype=torch.float64) - 0.25) * math.sqrt(4 / 3)
    objective = objective_of(
        Recipe(loss="unhinged", head="pal", radius=5.0, head_scale=3.0), torch.tensor([9, 9, 9, 9])
    )
    target = torch.arange(size) % 4
    features = (5 / 3 * prototypes[target]).requires_grad_()
    total = objective.weight_of(target).sum()
    objective(features @ prototypes.T, features, target, prototypes, total, size).backward()
    assert features.grad.abs().max() < 1e-12


@pytest.mark.parametrize("rescale", [False, True])
def test_the_adjusted_loss_is_rescaled_too_where_the_recipe_says_so(rescale):
    """It takes the features past the head; their gradient is to be multiplied by their norm all the same."""
    logits, features, target, prototypes = batch(6, 4, 0)
    features.requires_grad_()
    objective = objective_of(Recipe(loss="adjusted", head="fnpal", rescale=rescale), torch.tensor([9, 9, 9, 9]))
    objective(logits, features, target, prototypes, torch.tensor(6.0), 6).backward()
    plain = features.detach().clone().requires_grad_()
    UF.adjusted_margin_loss(plain, prototypes, target).backward()
    norm = plain.detach().norm(dim=1, keepdim=True) if rescale else 1.0
    torch.testing.assert_close(features.grad, plain.grad * norm)


def test_logit_adjustment_of_a_class_without_images_is_refused():
    with pytest.raises(ValueError, match="a class has no images"):
        objective_of(Recipe(logit_adjustment=1.0), torch.tensor([3, 0]))


def test_a_class_weight_of_zero_power_weighs_all_alike():
    assert objective_of(Recipe(), torch.tensor([3, 1])).weight_of(torch.tensor([0, 1])).tolist() == [1.0, 1.0]
