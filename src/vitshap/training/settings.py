"""From plain values, as YAML has them, to typed nested dataclasses and back.

The dataclasses are the only list of what can be set: a key that they do not have is an error that names its nearest
neighbour, a value of another type one that says where, what was given and what is expected. A key that is not given keeps
the default of the place where it stands, which may differ from the default of its class.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import reprlib
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

T = TypeVar("T")
_SHORT = reprlib.Repr()  # what errors show of a value, which may be huge
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 200, 200


class SettingsError(ValueError):
    """A setting that is unknown or of the wrong type; one line that names it."""


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 1e-5 is a number, and a key that stands twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            raise SettingsError(f"the key {twice!r} stands twice, again in line {node.start_mark.line + 1} ff.")
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
    """Quotes what the loader would take for a number."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def read_yaml(text: str, where: str) -> Any:
    """The plain values in a text; ``where`` it comes from is named in errors."""
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
    """As text that ``read_yaml`` gives back. Letters beyond ASCII are escaped: YAML takes some of them for line breaks."""
    text: str = yaml.dump(dict(plain), Dumper=_Dumper, sort_keys=False, width=110)
    return text


def from_plain(default: T, plain: Any, path: str = "") -> T:
    """``default`` (a dataclass instance) with what ``plain`` sets, checked; ``path`` is the key it stands under."""
    if not isinstance(plain, Mapping):
        raise SettingsError(f"{path or 'the recipe'} is a group of keys, got {_SHORT.repr(plain)}")
    cls: Any = type(default)
    hints = get_type_hints(cls)
    known = [field.name for field in dataclasses.fields(cls) if field.init]
    changed = {}
    for key, value in plain.items():
        if key not in known:
            raise SettingsError(_unknown(_join(path, str(key)), str(key), known))
        changed[key] = _value(hints[key], value, _join(path, key), getattr(default, key))
    try:
        result: T = dataclasses.replace(default, **changed)  # type: ignore[type-var]
    except SettingsError:
        raise
    except ValueError as error:  # the dataclass itself knows more than types
        begins_with_key = str(error).partition(" ")[0] in known
        joint = "." if begins_with_key else ": "
        raise SettingsError(f"{path}{joint}{error}" if path else str(error)) from error
    return result


def to_plain(value: Any) -> Any:
    """Dataclasses as dicts and tuples as lists, all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def set_keys(default: T, assignments: Iterable[str]) -> T:
    """``default`` with assignments such as ``explainer.loop.epochs=3``; what follows the = is YAML."""
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"a setting is written key=value, got {assignment!r}")
        value = read_yaml(text, f"the value of {key.strip()}")
        for part in reversed(key.strip().split(".")):
            value = {part: value}
        default = from_plain(default, value)
    return default


def differing_keys(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two nests of plain values differ: ``["model.name: 'a' / 'b'"]``."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = dict.fromkeys([*one, *other])
        return [line for key in keys for line in differing_keys(one.get(key), other.get(key), _join(path, str(key)))]
    return [] if one == other and type(one) is type(other) else [f"{path}: {one!r} / {other!r}"]


def type_words(hint: Any) -> str:
    """What a key takes, in words."""
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
    """The dataclass that a key holds, or may hold."""
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
    """``value`` as ``hint`` wants it."""
    nested = group(hint)
    if nested is not None and isinstance(value, Mapping):
        # A group that was null so far starts from its class's defaults.
        return from_plain(default if dataclasses.is_dataclass(default) else nested(), value, path)
    for part in get_args(hint) if _is_union(hint) else (hint,):
        fits, converted = _converted(part, value)
        if fits:
            return converted
    raise SettingsError(f"{path} must be {type_words(hint)}; got {_shown(value)}")


def _converted(hint: Any, value: Any) -> tuple[bool, Any]:
    """Whether the value is of that type, and the value as that type; a truth value is no number, text is no list."""
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


def _unknown(path: str, key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"; did you mean {path.removesuffix(key) + near[0]}?" if near else ";"
    return f"there is no key {path}{hint} Known here: {', '.join(known)}"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return f"{_SHORT.repr(value)} ({'text' if isinstance(value, str) else type(value).__name__})"


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
