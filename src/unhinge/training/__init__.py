"""Training real networks: a recipe in, a folder with weights, logs and measures out.

Names are imported when first asked for: the recipe book is read by shell completion, which cannot wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unhinge.training.evaluation import Evaluation, evaluate
    from unhinge.training.loop import Material, Run, fit, material_of
    from unhinge.training.parallel import processes
    from unhinge.training.recipe import Recipe, RecipeError
    from unhinge.training.recipes import named_recipes, recipe_named

__all__ = [
    "Evaluation",
    "Material",
    "Recipe",
    "RecipeError",
    "Run",
    "evaluate",
    "fit",
    "material_of",
    "named_recipes",
    "processes",
    "recipe_named",
]

_MODULE_OF = {
    "Evaluation": "evaluation",
    "Material": "loop",
    "Recipe": "recipe",
    "RecipeError": "recipe",
    "Run": "loop",
    "evaluate": "evaluation",
    "fit": "loop",
    "material_of": "loop",
    "named_recipes": "recipes",
    "processes": "parallel",
    "recipe_named": "recipes",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"unhinge.training.{_MODULE_OF[name]}"), name)
        globals()[name] = value  # the next time it is found without this function
        return value
    raise AttributeError(f"module 'unhinge.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
