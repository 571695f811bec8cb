"""Settings: conversion between YAML and nested typed dataclasses, and the list of keys with their help.

The dataclasses define the keys. An unknown key is an error that suggests the most similar one; a value of the wrong type is
an error that names the key, the value and the expected type. A key that is not given keeps the default of its place in the
recipe, which may differ from the default of its class. The help of a key is the docstring under the field in the source.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
import reprlib
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from vitshap.errors import did_you_mean

T = TypeVar("T")
_SHORT = reprlib.Repr()  # for values in error messages, which may be huge
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 200, 200


class SettingsError(ValueError):
    """A setting is unknown or invalid; the message is one line that names it."""


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-5 is a number and a duplicate key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            raise SettingsError(f"the key {twice!r} is given twice, in the group from line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:float"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$|^[-+]?\.(?:inf|nan)$"),
    list("-+0123456789."),
)


class _Dumper(yaml.SafeDumper):
    """Quotes text that the loader would read as a number."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def read_yaml(text: str, where: str) -> Any:
    """Parse YAML; ``where`` names its origin in errors."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise SettingsError(f"{where}{line} is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise SettingsError(f"{where} is nested too deeply") from error


def to_yaml(plain: Mapping[str, Any]) -> str:
    """Return text that ``read_yaml`` reads back. Non-ASCII letters are escaped: YAML treats some of them as line breaks."""
    text: str = yaml.dump(dict(plain), Dumper=_Dumper, sort_keys=False, width=110)
    return text


def from_plain(default: T, plain: Any, path: str = "") -> T:
    """Return ``default`` (a dataclass instance) with the checked settings of ``plain``; ``path``: the key of this group."""
    if not isinstance(plain, Mapping):
        raise SettingsError(f"{path or 'the recipe'} must be a group of keys, got {_SHORT.repr(plain)}")
    cls: Any = type(default)
    hints = get_type_hints(cls)
    known = [field.name for field in dataclasses.fields(cls) if field.init]
    changed = {}
    for key, value in plain.items():
        if key not in known:
            raise SettingsError(f"unknown key {_join(path, str(key))}{did_you_mean(str(key), known)}")
        changed[key] = _value(hints[key], value, _join(path, key), getattr(default, key))
    try:
        result: T = dataclasses.replace(default, **changed)  # type: ignore[type-var]
    except SettingsError:
        raise
    except ValueError as error:  # from the checks of the dataclass itself
        begins_with_key = str(error).partition(" ")[0] in known
        joint = "." if begins_with_key else ": "
        raise SettingsError(f"{path}{joint}{error}" if path else str(error)) from error
    return result


def to_plain(value: Any) -> Any:
    """Convert nested dataclasses to dicts and tuples to lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def set_keys(default: T, assignments: Iterable[str]) -> T:
    """Return ``default`` with assignments such as ``explainer.loop.epochs=3``, whose values are YAML.

    Settings that depend on one another may be given in any order: they are checked together.
    """
    together: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"a setting is written key=value, got {assignment!r}")
        value = read_yaml(text, f"the value of {key.strip()}")
        for part in reversed(key.strip().split(".")):
            value = {part: value}
        if _replaces_group(together, value):  # such as classifier=null and then one of its keys: one after the other
            default, together = from_plain(default, together), {}
        together = _merged(together, value)
    return from_plain(default, together)


def _replaces_group(one: Any, other: Any) -> bool:
    """Return whether a key is a group in one of two nested dicts, and in the other it is not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return any(_replaces_group(one[key], other[key]) for key in one.keys() & other.keys())
    return isinstance(one, dict) or isinstance(other, dict)


def _merged(one: Any, other: Any) -> Any:
    """Return ``one`` with the values of ``other``."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other
    return one | {key: _merged(one.get(key), value) for key, value in other.items()}


def differing_keys(one: Any, other: Any, path: str = "") -> list[str]:
    """Return the differences of two nested dicts: ``["model.name: 'a' / 'b'"]``."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = dict.fromkeys([*one, *other])
        return [line for key in keys for line in differing_keys(one.get(key), other.get(key), _join(path, str(key)))]
    return [] if one == other and type(one) is type(other) else [f"{path}: {one!r} / {other!r}"]


def type_words(hint: Any) -> str:
    """Return the type of a key in words."""
    if _is_union(hint):
        return " or ".join(type_words(part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(str(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        return f"a list of {_PLURAL[parts[0]]}" if parts[-1] is ... else f"a list of {len(parts)} {_PLURAL[parts[0]]}"
    if dataclasses.is_dataclass(hint):
        return "a group of keys"
    return _WORDS.get(hint, str(hint))


def group(hint: Any) -> Any | None:
    """Return the dataclass that a key holds or may hold, or None."""
    return next((part for part in (get_args(hint) or (hint,)) if dataclasses.is_dataclass(part)), None)


_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
}
_PLURAL: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts", bool: "truth values"}


def _value(hint: Any, value: Any, path: str, default: Any) -> Any:
    """Return ``value`` converted to the type ``hint``."""
    nested = group(hint)
    if nested is not None and isinstance(value, Mapping):
        # A group that was null starts from the defaults of its class.
        return from_plain(default if dataclasses.is_dataclass(default) else nested(), value, path)
    for part in get_args(hint) if _is_union(hint) else (hint,):
        fits, converted = _converted(part, value)
        if fits:
            return converted
    raise SettingsError(f"{path} must be {type_words(hint)}; got {_shown(value)}")


def _converted(hint: Any, value: Any) -> tuple[bool, Any]:
    """Return whether the value has that type, and the converted value; a bool is no number, text is no list."""
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return math.isfinite(value), float(value)
    if get_origin(hint) is Literal:
        return any(value == part and type(value) is type(part) for part in get_args(hint)), value
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        if not isinstance(value, list | tuple) or (parts[-1] is not ... and len(value) != len(parts)):
            return False, None
        items = [_converted(parts[0], item) for item in value]
        return all(fits for fits, _ in items), tuple(item for _, item in items)
    return isinstance(hint, type) and type(value) is hint, value


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return f"{_SHORT.repr(value)} ({'text' if isinstance(value, str) else type(value).__name__})"


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


class Key(NamedTuple):
    """One setting."""

    path: str
    takes: str
    """Its type in words."""
    value: str
    """Its value as YAML."""
    help: str


def describe(settings: Any, path: str = "") -> Iterator[Key]:
    """Yield all keys of nested dataclasses; for a group that is null, the keys that it could have."""
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
    """Return the docstrings under the fields of a dataclass, as one line each."""
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
