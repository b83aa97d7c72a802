"""Named recipes: each of the paper's settings at three scales, each a few changes away from another.

A name is SETTING/METHOD, such as ``cifar10-lt100/pal``. `paper` is the paper's own size, `small` the same question on
the same images for a machine without a GPU, `quick` asks it of scikit-learn's digits within seconds.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unhinge.training.recipe import Recipe, RecipeError

__all__ = ["METHODS", "SCALES", "SETTINGS", "named_recipes", "recipe_named"]

SCALES = ("quick", "small", "paper")

# What is done about the loss. The penalties are the paper's, of the sum over a batch of 256; radii are ours.
METHODS: Mapping[str, Mapping[str, Any]] = {
    "ce": {},
    "ce+penalty": {"feature_penalty": 1e-5},
    "ce+sqrt": {"class_weight": 0.5},
    "ce+inverse": {"class_weight": 1.0},
    "ce+adjusted": {"logit_adjustment": 1.0},
    "pal": {"loss": "unhinged", "head": "pal"},
    "pal+penalty": {"loss": "unhinged", "head": "pal", "feature_penalty": 5e-7},
    "pal+radius": {"loss": "unhinged", "head": "pal", "radius": 10.0},
    "pal+sqrt": {"loss": "unhinged", "head": "pal", "class_weight": 0.5},
    "pal+radius+sqrt": {"loss": "unhinged", "head": "pal", "radius": 10.0, "class_weight": 0.5},
    "pal+inverse": {"loss": "unhinged", "head": "pal", "class_weight": 1.0},
    "fnpal": {"loss": "unhinged", "head": "fnpal"},
    "fnpal+rescale": {"loss": "unhinged", "head": "fnpal", "rescale": True},
    "fnpal+sqrt": {"loss": "unhinged", "head": "fnpal", "class_weight": 0.5},
    "adjusted": {"loss": "adjusted", "head": "fnpal"},
    "unhinged": {"loss": "unhinged"},
    "unhinged+sqrt": {"loss": "unhinged", "class_weight": 0.5},
    "etf-init": {"head": "etf-init"},
}

PAPER = Recipe(data="cifar10", model="resnet18", epochs=200, batch=256, lr=0.1, momentum=0.9, weight_decay=5e-4)
SMALL = replace(PAPER, model="resnet18", width=16, epochs=15, batch=128)
QUICK = Recipe(data="digits", model="convnet", width=16, epochs=30, batch=64, lr=0.05, weight_decay=5e-4)


def _settings() -> dict[str, dict[str, Any]]:
    """What is asked, as changes to the scale's own recipe; `quick` keeps only what makes sense on digits."""
    settings: dict[str, dict[str, Any]] = {
        "cifar10": {"data": "cifar10", "model": "resnet18"},
        "cifar100": {"data": "cifar100", "model": "resnet34"},
        "imagenet100": {"data": "imagenet100", "model": "resnet50", "epochs": 100},
    }
    for data in ("cifar10", "cifar100"):
        for ratio in (10, 20, 50, 100):
            settings[f"{data}-lt{ratio}"] = settings[data] | {"imbalance": f"exp:{ratio}"}
            settings[f"{data}-step{ratio}"] = settings[data] | {"imbalance": f"step:{ratio}"}
        for percent in (20, 40, 60):
            settings[f"{data}-noise{percent}"] = settings[data] | {"label_noise": percent / 100}
    return settings


SETTINGS = _settings()
_KEPT_WHEN_QUICK = ("imbalance", "label_noise")


def named_recipes() -> list[str]:
    """Every name, SETTING/METHOD."""
    return [f"{setting}/{method}" for setting in SETTINGS for method in METHODS]


def recipe_named(name: str, scale: str = "quick") -> Recipe:
    """The recipe of that name at a scale.

    Example:
        >>> recipe_named("cifar10-lt100/pal", "paper").imbalance
        'exp:100'
        >>> recipe_named("cifar10-lt100/pal").data
        'digits'
    """
    if scale not in SCALES:
        raise RecipeError(f"there is no scale {scale!r}. Choose one of: {', '.join(SCALES)}.")
    setting, _, method = name.partition("/")
    for what, part, known in (("setting", setting, SETTINGS), ("method", method, METHODS)):
        if part not in known:
            near = difflib.get_close_matches(part, known, n=3)
            hint = f"The nearest: {', '.join(near)}." if near else f"There are: {', '.join(known)}."
            raise RecipeError(f"a recipe's name is SETTING/METHOD, and there is no {what} {part!r}. {hint}")
    asked, done = SETTINGS[setting], METHODS[method]
    if scale == "paper":
        return replace(PAPER, **asked, **done)
    if scale == "small":
        # One network for all: what is compared is the methods, and this one fits the machine.
        return replace(SMALL, **{key: value for key, value in asked.items() if key not in ("model", "epochs")}, **done)
    return replace(QUICK, **{key: value for key, value in asked.items() if key in _KEPT_WHEN_QUICK}, **done)
