"""A recipe is frozen, told as JSON, and refused with the reason when it makes no sense."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unhinge.training import Recipe, RecipeError

NAMES = [field.name for field in fields(Recipe)]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.just("unhinged")
    | st.just("pal"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
APART = (
    "epsilon",
    "loss",
    "head",
    "radius",
    "weighted_penalty",
    "rescale",
    "shortlist",
    "image_size",
    "fonts",
    "characters",
    "gamma",
    "head_rate",
)  # valid only with others
GOOD = {
    "data": st.sampled_from(["digits", "cifar10", "folder:a b/c"]),
    "imbalance": st.none() | st.sampled_from(["exp:100", "step:2.5"]),
    "loss": st.sampled_from(["ce", "unhinged", "hinge", "mse"]),
    "head": st.sampled_from(["linear", "pal", "fnpal", "etf-init"]),
    "lr": st.floats(0, 1e6),
    "head_scale": st.floats(1e-3, 2),
    "feature_penalty": st.floats(0, 1),
    "class_weight": st.floats(0, 2),
    "epochs": st.integers(1, 10**6),
    "seed": st.integers(0, 2**63 - 1),
    "seed_init": st.none() | st.integers(0, 9),
    "augment": st.booleans(),
    "last_relu": st.none() | st.booleans(),
}


def test_a_recipe_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Recipe().lr = 1.0  # type: ignore[misc]


@given(st.fixed_dictionaries({}, optional=GOOD))
def test_json_brings_back_the_same_recipe_and_key(settings):
    recipe = Recipe(**settings)
    again = Recipe.from_json(recipe.to_json())
    assert again == recipe
    assert again.key == recipe.key
    assert json.loads(recipe.to_json()).keys() == set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in APART])
def test_every_setting_is_part_of_the_key(name):
    others = {"data": "cifar10", "model": "resnet8", "imbalance": "exp:10", "augment": False, "last_relu": False}
    others |= {"label_noise": 0.5, "label_smoothing": 0.5, "momentum": 0.5, "head_scale": 2.0}
    value = others[name] if name in others else (getattr(Recipe(), name) or 0) + 1
    assert replace(Recipe(), **{name: value}).key != Recipe().key
    adjusted = Recipe(loss="adjusted", head="pal")
    assert replace(adjusted, epsilon=0.5).key != adjusted.key
    assert Recipe(loss="unhinged", gamma=0.5).key != Recipe(loss="unhinged").key
    assert Recipe(data="imagenet100", image_size=64).key != Recipe(data="imagenet100").key
    assert Recipe(loss="z", head="many", head_rate=1.0).key != Recipe(loss="z", head="many").key


def test_fonts_count_by_name_use_and_checksum_but_not_by_place():
    entry = f"fonts/a.ttf train sha256:{64 * '0'}"
    recipe = Recipe(data="glyphs", fonts=(entry,), characters="41-5A")
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert replace(recipe, fonts=(f"elsewhere/{entry}",)).key == recipe.key
    for other in ({"fonts": (entry.replace("train", "test"),)}, {"fonts": ()}, {"characters": None}):
        assert replace(recipe, **other).key != recipe.key
    with pytest.raises(RecipeError, match="for data glyphs"):
        Recipe(characters="41-5A")
    with pytest.raises(RecipeError, match="fonts must be tuple"):
        Recipe.from_json('{"data": "glyphs", "fonts": [1]}')


def test_the_key_of_a_recipe_with_fonts_is_what_it_was_before_a_typeface_could_have_several_files():
    entries = (f"fonts/a.ttf train sha256:{64 * '0'}", f"c++/b+c.ttc#2 test sha256:{64 * 'f'}")
    assert Recipe(data="glyphs", fonts=entries).key == "28078e2dcc62"


def test_every_file_of_a_typeface_counts_by_name_and_checksum_but_not_by_place():
    def key(entry: str) -> str:
        return Recipe(data="glyphs", fonts=(entry,)).key

    zeros, ones = 64 * "0", 64 * "1"
    first = key(f"a.ttf train sha256:{zeros}+b.ttf sha256:{ones}")
    assert key(f"here/a.ttf train sha256:{zeros}+c++/there/b.ttf sha256:{ones}") == first
    for other in (
        f"a.ttf train sha256:{zeros}",
        f"b.ttf train sha256:{ones}",
        f"other.ttf train sha256:{zeros}+b.ttf sha256:{ones}",
        f"a.ttf train sha256:{zeros}+b.ttf sha256:{zeros}",
        f"b.ttf train sha256:{ones}+a.ttf sha256:{zeros}",
    ):
        assert key(other) != first


def test_whole_numbers_stand_for_floats_and_give_the_same_key():
    assert Recipe.from_json('{"lr": 1, "head_scale": 2}').key == Recipe(lr=1.0, head_scale=2.0).key


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"learning_rate": 0.1}, "learning_rate"),
        ({"epoch": 3}, "did you mean epochs"),
        ({"class_weigth": 0.5}, "did you mean class_weight"),
        ({"qqqqqq": 1}, "There are: data, image_size, shrink"),
        ({"lr": 1e39}, "lr must be a number of at least 0 and at most 3.40282"),
        ({"data": "cifar10", "image_size": 16}, "the data are cifar10. Pass shrink="),
        ({"lr": "0.1"}, "lr must be float, got '0.1'"),
        ({"lr": None}, "lr must be float, got None"),
        ({"lr": True}, "lr must be float, got True"),
        ({"epochs": 2.5}, "epochs must be int, got 2.5"),
        ({"epochs": [1]}, "epochs must be int"),
        ({"augment": 1}, "augment must be bool, got 1"),
        ({"data": 3}, "data must be str, got 3"),
        ({"imbalance": 100}, "imbalance must be str"),
        ({"loss": "crossentropy"}, "one of ce, unhinged, adjusted, hinge, mse"),
        ({"loss": 3}, "one of ce"),
        ({"head": {}}, "one of linear, pal"),
        ({"epochs": 0}, "at least 1"),
        ({"batch": -4}, "at least 1"),
        ({"threads": 1_000_000}, "threads must be a whole number of at least 1 and at most 1024"),
        ({"lr": -0.1}, "at least 0"),
        ({"lr": float("nan")}, "lr must be a number"),
        ({"lr": float("inf")}, "lr must be a number"),
        ({"lr": 10**400}, "lr must be a number"),
        ({"seed": 2**70}, "seed must be a whole number"),
        ({"seed_order": -1}, "at least 0"),
        ({"width": 0}, "at least 1"),
        ({"label_noise": 1.5}, "at most 1"),
        ({"epsilon": 0}, "strictly between"),
        ({"epsilon": 1}, "strictly between"),
        ({"radius": 0, "loss": "unhinged", "head": "pal"}, "above 0"),
        ({"head_scale": 0}, "above 0"),
        ({"imbalance": "exp"}, "exp:100 or step:10"),
        ({"imbalance": "exp:0.01"}, "Papers that write 0.01 mean 100"),
        ({"imbalance": "line:10"}, "exp, step"),
        ({"radius": 5.0, "feature_penalty": 1e-5, "loss": "unhinged", "head": "pal"}, "twice"),
        ({"radius": 5.0}, "give feature_penalty"),
        ({"radius": 5.0, "loss": "unhinged", "head": "fnpal"}, "normalized: leave it out"),
        ({"gamma": 0.5}, "gamma is for losses unhinged and adjusted"),
        ({"head_rate": 1.0}, "head_rate is for the head many"),
        ({"weighted_penalty": True, "class_weight": 0.5}, "give both of them"),
        ({"weighted_penalty": True, "radius": 5.0, "loss": "unhinged", "head": "pal"}, "give both of them"),
        ({"rescale": True, "head": "pal"}, "head fnpal"),
        ({"loss": "adjusted"}, "fixed prototypes"),
        ({"loss": "adjusted", "head": "etf-init"}, "fixed prototypes"),
        ({"loss": "unhinged", "logit_adjustment": 1.0}, "for loss ce"),
        ({"loss": "hinge", "label_smoothing": 0.1}, "ce and unhinged"),
        ({"loss": "unhinged", "head": "many", "label_smoothing": 0.1}, "a head other than many"),
        ({"loss": "ce", "epsilon": 0.3}, "epsilon is for the loss adjusted"),
        ({"momentum": 1.0}, "momentum must lie in"),
        ({"epochs": 3, "warmup": 3}, "shorter than the run"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused_with_the_reason(settings, told):
    with pytest.raises(RecipeError, match=told.replace("(", r"\(")):
        Recipe.of(settings)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"a"', "[" * 100_000, '{"lr": 1' + "0" * 5000 + "}"])
def test_what_is_no_object_of_settings_is_refused(text):
    with pytest.raises(RecipeError, match="recipe is a JSON object"):
        Recipe.from_json(text)


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=6), VALUES, max_size=5))
def test_any_settings_make_a_recipe_or_a_recipe_error(settings):
    try:
        recipe = Recipe.of(settings)
    except RecipeError:
        return
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_a_setting_left_at_its_default_does_not_change_the_name():
    """So that runs keep their names when a later version adds a setting."""
    assert Recipe(epochs=7).key == Recipe(epochs=7, threads=1, measure_every=1, largest=None).key
    assert len({Recipe().key, Recipe(threads=2).key, Recipe(largest=5).key, Recipe(measure_every=2).key}) == 4
