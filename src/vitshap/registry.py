"""Tables of names and what they stand for, imported when it is asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from vitshap.errors import OptionError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Functions or classes by name, each as ``"module:attribute"``."""

    def __init__(self, kind: str, table: dict[str, str]) -> None:
        """``kind`` is what error messages call an entry."""
        self.kind = kind
        self.table = table

    def names(self) -> list[str]:
        """Return the known names, in the order in which they were added."""
        return list(self.table)

    def load(self, name: str, options: Iterable[str] = (), *, skip: int = 1) -> Callable[..., T]:
        """Import the entry of this name; an ``OptionError``, a ``TypeError``, if it does not take ``options``.

        ``skip`` is the number of its parameters that are no options, the model for example.
        """
        if name not in self.table:
            raise ValueError(f'no {self.kind} is named "{name}"{did_you_mean(name, self.names())}')
        module, _, attribute = self.table[name].partition(":")
        found: Callable[..., T] = getattr(importlib.import_module(module), attribute)
        known = list(inspect.signature(found).parameters)[skip:]
        for option in options:
            if option not in known:
                raise OptionError(f'{name} has no option "{option}"{did_you_mean(option, known)}')
        return found

    def register(self, name: str, location: str, /) -> None:
        """Add an entry; a name that stands for something else already is a ``ValueError``."""
        if self.table.get(name, location) != location:
            raise ValueError(f'the name "{name}" is taken by {self.table[name]}')
        self.table[name] = location
