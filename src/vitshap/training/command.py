"""What ``vitshap train`` prints besides training: the list of recipes and their keys."""

from __future__ import annotations

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from vitshap.training.keys import describe
from vitshap.training.recipes import Recipe, load_recipe, recipe_names


def list_recipes(console: Console) -> None:
    """Names and descriptions of the recipes that come with the package."""
    table = Table(box=None, show_header=False)
    for name in recipe_names():
        table.add_row(name, load_recipe(name).description)
    console.print(table)


def print_keys(recipe: Recipe, console: Console) -> None:
    """Everything that can be set, what it is now, and what it means."""
    console.print("Set with --set KEY=VALUE:", highlight=False)
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    for key in describe(recipe):
        takes = "" if key.takes == "a group of keys" else f"({key.takes})"
        table.add_row(f"[bold]{key.path}[/]", Group(Text(key.value), Text(f"{key.help} {takes}".strip(), "dim")))
    console.print(table)
