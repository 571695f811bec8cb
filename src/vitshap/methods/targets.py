"""Targets: which classes of each image are explained, as a user writes them and as class numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from vitshap.game import ClassLike, class_index

Target: TypeAlias = ClassLike | Sequence[ClassLike] | Tensor | Callable[[Tensor], Any] | None
"""Which classes to explain:

- None or ``"all"``: all classes, in the order of their numbers
- ``"predicted"``: the most probable class of each image
- ``"top-5"`` (any ``"top-K"``): the K most probable classes of each image, the most probable first
- a class by its number or name
- a list of any of these, for every image
- a tensor of class numbers, ``[B]`` (one class per image) or ``[B, T]``
- a function from predictions ``[B, K]`` to any of these
"""

_TOP = re.compile(r"top-([1-9][0-9]*)")


class _Rank(NamedTuple):
    """The class of this place in the order of an image's probabilities, 0 for the predicted class."""

    place: int


def resolve_target(target: Target, prediction: Tensor, class_names: Sequence[str] | None) -> Tensor:
    """Return the classes to explain, int64 ``[B, T]``; ``prediction`` is the value of the whole images, ``[B, K]``.

    T depends on the target alone, never on the images: with the target ``["predicted", 3]``, an image whose predicted
    class is 3 has this class twice. ``Explanation.select`` removes the repetition.
    """
    if callable(target):
        target = target(prediction)
    images, num_classes = prediction.shape
    found = fixed_target(target, images, num_classes, class_names, prediction.device)
    if found is not None:
        return found
    ranked = prediction.argsort(dim=1, descending=True, stable=True)
    columns = [
        ranked[:, one.place] if isinstance(one, _Rank) else torch.full_like(ranked[:, 0], one)
        for one in _classes(target, num_classes, class_names)
    ]
    return torch.stack(columns, 1)


def fixed_target(
    target: Target, images: int, num_classes: int, class_names: Sequence[str] | None, device: torch.device
) -> Tensor | None:
    """Return the classes to explain, int64 ``[images, T]``; None if they depend on the predictions."""
    if callable(target):
        return None
    if isinstance(target, Tensor) and target.ndim > 0:
        return _target_tensor(target, images, num_classes).to(device)
    classes = _classes(target, num_classes, class_names)
    if any(isinstance(one, _Rank) for one in classes):
        return None
    return torch.tensor(classes, device=device).repeat(images, 1)


def _classes(target: object, num_classes: int, class_names: Sequence[str] | None) -> list[int | _Rank]:
    """One entry per class, without repetitions: its number, or its place in the order of probability."""
    asked = [
        one if isinstance(one, _Rank) else class_index(one, class_names, num_classes)
        for one in _expand(target, num_classes)
    ]
    return list(dict.fromkeys(asked))


def target_from_words(
    words: Sequence[str], class_names: Sequence[str] | None, num_classes: int, *, default: Target = None
) -> Target:
    """Read the words of a command line: names, numbers, "predicted", "all" and "top-K"; ``default`` if there are none.

    A decimal number is a class number unless a class has that name. "all" means all classes, the most probable first.
    An unknown name is a ``ValueError`` that suggests a known one.
    """
    if not words:
        return default
    listed: list[ClassLike] = []
    for word in words:
        number = word.isdecimal() and word not in (class_names or ())
        if not _is_special(word):
            listed.append(class_index(int(word) if number else word, class_names, num_classes))
        else:
            listed.append(f"top-{num_classes}" if word == "all" else word)
    return list(dict.fromkeys(listed))


def most_classes(target: Target, num_classes: int) -> int:
    """Return how many classes of an image are explained for ``target``, at most."""
    if callable(target):
        return num_classes
    if isinstance(target, Tensor) and target.ndim > 0:
        return 1 if target.ndim == 1 else target.shape[1]
    return min(num_classes, len(dict.fromkeys(_expand(target, num_classes))))


def names_classes(target: Target) -> bool:
    """Return whether every class is asked for by itself ("predicted" included), and none through "all" or "top-K"."""
    if target is None or callable(target):
        return False
    if isinstance(target, Tensor):
        return True
    listed: Sequence[ClassLike] = [target] if isinstance(target, int | str) else target
    return all(one == "predicted" or not _is_special(one) for one in listed)


def _expand(target: object, num_classes: int) -> list[ClassLike | _Rank]:
    """One entry per class: a place in the order of probability, or the class as it was given."""
    if isinstance(target, Tensor):
        target = target.item()
    if target is None or isinstance(target, Integral | str):
        target = ["all" if target is None else target]
    if not isinstance(target, list | tuple | range):
        kinds = 'a class (number or name), "predicted", "top-K", "all", a list of these, a tensor or None'
        raise TypeError(f"target is {kinds}; got {target!r}")
    if not target:
        raise ValueError("target is an empty list: name at least one class, or give None for all")
    found: list[ClassLike | _Rank] = []
    for one in target:
        if isinstance(one, str) and one == "all":
            return list(range(num_classes))
        if isinstance(one, str) and _is_special(one):
            top = _TOP.fullmatch(one)
            found += map(_Rank, range(min(int(top[1]), num_classes) if top else 1))
        else:
            found.append(one)
    return found


def _is_special(one: object) -> bool:
    return isinstance(one, str) and (one in ("all", "predicted") or _TOP.fullmatch(one) is not None)


def _target_tensor(target: Tensor, images: int, num_classes: int) -> Tensor:
    whole = not (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool)
    if not whole or target.ndim > 2 or len(target) != images or target.numel() == 0:
        given = f"{target.dtype} {list(target.shape)}"
        raise ValueError(f"a target tensor holds integers, [{images}] or [{images}, T]; got {given}")
    classes = target.to(torch.int64).view(images, -1)
    if not 0 <= int(classes.min()) <= int(classes.max()) < num_classes:
        raise ValueError(f"classes are 0 to {num_classes - 1}, got {classes.flatten().tolist()[:8]}")
    return classes
