"""What can be set, with its type, its value and its help: read from the dataclasses, so that nothing is written twice.

The help of a field is the string literal under it in the source.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import yaml

from vitshap.training.settings import group, type_words


class Key(NamedTuple):
    """One thing that can be set."""

    path: str
    takes: str
    """The type, in words."""
    value: str
    """As YAML."""
    help: str


def describe(settings: Any, path: str = "") -> Iterator[Key]:
    """Every key of a nest of dataclasses; a group that is null is shown with the keys that it could have."""
    cls: Any = type(settings)
    hints, helps = get_type_hints(cls), field_docs(cls)
    for field in dataclasses.fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        here = f"{path}.{field.name}" if path else field.name
        nested = group(hint)
        text = helps.get(field.name, "")
        if nested is None:
            yield Key(here, type_words(hint), _as_yaml(value), text)
            continue
        yield Key(here, type_words(hint), "null" if value is None else "", text or _first_line(nested))
        if value is not None:
            yield from describe(value, here)
        else:
            yield from (key._replace(value="") for key in describe(nested(), here))


@cache
def field_docs(cls: type) -> dict[str, str]:
    """The string literals under the fields of a class, as one line each."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[field.target.id] = " ".join(after.value.value.split())
    return found


def _first_line(cls: Any) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def _as_yaml(value: Any) -> str:
    if isinstance(value, tuple):
        value = list(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")
