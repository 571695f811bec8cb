"""The table of methods by name. A method's module is imported when the method is asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from vitshap.errors import did_you_mean
from vitshap.methods.base import MethodLike

_TABLE = {
    "exact": "vitshap.estimators.as_methods:Exact",
    "kernelshap": "vitshap.estimators.as_methods:KernelShap",
    "kernelshap-original": "vitshap.estimators.as_methods:KernelShapOriginal",
    "permutation": "vitshap.estimators.as_methods:Permutation",
    "leave-one-out": "vitshap.baselines.occlusion:LeaveOneOut",
    "random": "vitshap.baselines.chance:Random",
    "explainer": "vitshap.explainers.explainer:explainer_method",
}


def list_methods() -> list[str]:
    """Return the names that ``method`` knows."""
    return list(_TABLE)


def method(name: str, model: Any, /, **options: Any) -> MethodLike:
    """Return the method of this name for ``model``; call it with images.

    ``model`` is a network wrapped by ``vitshap.wrap``; for "explainer", an ``Explainer`` or the name or folder of a
    bundle. Unknown options are a ``TypeError``.
    """
    factory = load(name)
    known = list(inspect.signature(factory).parameters)[1:]  # the first is the model
    for option in options:
        if option not in known:
            raise TypeError(f'{name} has no option "{option}"{did_you_mean(option, known)}')
    made: MethodLike = factory(model, **options)
    return made


def load(name: str, /) -> Callable[..., MethodLike]:
    """Import the class (or function) that makes the method of this name."""
    if name not in _TABLE:
        raise ValueError(f'no method is named "{name}"{did_you_mean(name, list_methods())}')
    module, _, attribute = _TABLE[name].partition(":")
    factory: Callable[..., MethodLike] = getattr(importlib.import_module(module), attribute)
    return factory


def register(name: str, location: str, /) -> None:
    """Add a method: ``location`` is ``"module:attribute"``, called as ``attribute(model, **options)``."""
    module, separator, attribute = location.partition(":")
    if not (module and separator and attribute):
        raise ValueError(f'a method\'s location is "module:attribute", got "{location}"')
    if _TABLE.get(name, location) != location:
        raise ValueError(f'the name "{name}" is taken by {_TABLE[name]}')
    _TABLE[name] = location
