"""Every setting of the paper has a recipe by name, at three scales."""

from __future__ import annotations

import pytest
import torch

from unhinge.data import load
from unhinge.nn import LDAMLoss
from unhinge.nn.backbones import build_model
from unhinge.training import Recipe, RecipeError, material_of, named_recipes, recipe_named
from unhinge.training.objective import objective_of
from unhinge.training.recipes import (
    ALIASES,
    CLASSES,
    METHODS,
    PAPER_BATCH,
    SCALES,
    SETTINGS,
    Method,
    recipe_of,
    train_images,
)

PAPER = {"momentum": 0.9, "lr": 0.1, "weight_decay": 5e-4, "batch": 256, "warmup": 0}
NETWORKS = {"cifar10": ("resnet18", 200), "cifar100": ("resnet34", 200), "imagenet100": ("resnet50", 100)}


@pytest.mark.parametrize("scale", SCALES)
def test_every_name_is_a_recipe_and_no_two_are_the_same(scale):
    made = {name: recipe_named(name, scale) for name in named_recipes()}
    assert len(made) == len(SETTINGS) * len(METHODS)
    if scale != "quick":  # on digits the data sets are one and the same
        assert len({recipe.key for recipe in made.values()}) == len(made)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_paper_scale_is_the_papers_own(setting):
    for method in METHODS:
        recipe = recipe_named(f"{setting}/{method}", "paper")
        assert (recipe.model, recipe.epochs) == NETWORKS[recipe.data]
        assert {name: getattr(recipe, name) for name in PAPER} == PAPER
        assert recipe.width is None
        assert recipe.augment
        assert recipe.without_last_relu == (recipe.head in ("pal", "fnpal"))


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
@pytest.mark.parametrize("ratio", [10, 20, 50, 100])
@pytest.mark.parametrize(("word", "kind"), [("lt", "exp"), ("step", "step")])
def test_the_imbalances_of_the_tables_are_there_at_every_scale(data, ratio, word, kind):
    for scale in SCALES:
        assert recipe_named(f"{data}-{word}{ratio}/ce", scale).imbalance == f"{kind}:{ratio}"


def test_the_papers_penalties_are_those_it_names():
    assert recipe_named("cifar10/ce+penalty", "paper").feature_penalty == 1e-5
    assert recipe_named("cifar10/pal+penalty", "paper").feature_penalty == 5e-7


@pytest.mark.parametrize(
    ("name", "scale", "told"),
    [
        ("cifar10-lt100/pall", "quick", "no method 'pall'. The nearest: pal"),
        ("cifar10lt100/pal", "quick", "no setting 'cifar10lt100'. The nearest: cifar10-lt100"),
        ("pal", "quick", "SETTING/METHOD"),
        ("cifar10/ce", "huge", "quick, small, paper"),
    ],
)
def test_a_name_that_is_not_there_names_the_nearest(name, scale, told):
    with pytest.raises(RecipeError) as error:
        recipe_named(name, scale)
    assert told in str(error.value)


@pytest.mark.parametrize("alias", ALIASES)
def test_another_name_is_the_same_training(alias):
    assert recipe_named(f"cifar10-lt100/{alias}", "small") == recipe_named(f"cifar10-lt100/{ALIASES[alias]}", "small")


def test_ldam_is_its_loss_on_the_cosines_of_the_head():
    counts = torch.tensor([40, 10, 4])
    objective = objective_of(Recipe(loss="ldam", head="fnpal", head_scale=30.0), counts)
    features, frame = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.eye(3, 5)
    cosines, target = torch.nn.functional.normalize(features) @ frame.T, torch.arange(6) % 3
    expected = LDAMLoss(counts, reduction="none")(cosines, target)
    torch.testing.assert_close(objective.losses(30 * cosines, features, target, frame), expected)
    with pytest.raises(RecipeError, match="cosines"):
        Recipe(loss="ldam")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_penalty_has_the_papers_effect_on_an_example_at_any_batch(method, scale):
    recipe = recipe_named(f"cifar10/{method}", scale)
    assert recipe.feature_penalty * recipe.batch == pytest.approx(METHODS[method].penalty * PAPER_BATCH)
    other = recipe_of(SETTINGS["cifar10"], METHODS[method], scale, batch=32)
    assert other.feature_penalty * 32 == pytest.approx(METHODS[method].penalty * PAPER_BATCH)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_features_have_room_for_a_simplex_of_the_classes(setting, scale):
    recipe = recipe_named(f"{setting}/pal", scale)
    classes = CLASSES[recipe.data][1]
    pixels = 8 if recipe.data == "digits" else 32
    assert build_model(recipe.model, classes, image_size=pixels, width=recipe.width).feature_dim >= classes - 1


def test_labels_are_rendered_from_what_a_method_does():
    assert Method("ce").label == "CE"
    assert Method("pal", radius=10.0, class_weight=0.5).label == "PAL, radius 10, 1/√n weights"
    assert Method("fnpal", penalty=5e-7, rescale=True).label == "FNPAL, λ=5e-7, rescaled"
    assert len({method.label for method in METHODS.values()}) == len(METHODS)
    with pytest.raises(RecipeError, match="no kind of method 'pall'"):
        Method("pall")


@pytest.mark.parametrize("setting", ["cifar10", "cifar10-lt20", "cifar10-step10"])
def test_the_images_of_a_recipe_are_about_those_it_gets(setting):
    recipe = recipe_named(f"{setting}/ce")
    assert train_images(recipe) == pytest.approx(len(material_of(recipe).train), rel=0.05)
    assert CLASSES["digits"] == pytest.approx((len(load("digits").training) / 10, 10), rel=0.05)
