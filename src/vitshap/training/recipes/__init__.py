"""Recipes, the settings of a whole run, and their runs: from images to a stored explainer."""

from vitshap.training.recipes.recipe import DataSettings, ModelSettings, Recipe, load_recipe, recipe_names

__all__ = ["DataSettings", "ModelSettings", "Recipe", "load_recipe", "recipe_names"]
