"""Training real networks: a recipe in, a folder with weights, logs and measures out."""

from unhinge.training.evaluate import Evaluation, evaluate
from unhinge.training.loop import Material, Run, fit, material_of
from unhinge.training.processes import processes
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
