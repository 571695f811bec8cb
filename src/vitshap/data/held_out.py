"""Which images a training held out: recorded with its result, so that it is measured on them and on no others.

The record has the settings that decide the split and hashes of the images' names, but no names and no place on a disk. If
the same images are divided otherwise, images of the training are among those that are measured: an error, or a warning
where the user asked for another split. Other images, such as those of another hospital, are divided by their own folders,
with a warning. So are those of the training with some added or removed, of which seed and file of groups move but a few.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from vitshap.data.dataset import Splits
from vitshap.data.load import load_data
from vitshap.data.splits import names_hash

ALL = "all"
"""All images, however they are divided."""
_HELD_OUT = {"val": "validation", "test": "test"}


class Part(NamedTuple):
    """Some images of a data set."""

    images: int
    sha256: str
    """Of their names within the data set, or of their pixels where they have no names."""


@dataclass(frozen=True)
class SplitRecord:
    """How the images of a training were divided."""

    layout: str
    split: Literal["own", "authors"]
    seed: int
    groups: str | None
    """A regular expression, or a csv file: relative as it was given, or its name alone."""
    parts: dict[str, Part]
    """Of "all", "val" and "test"."""

    @classmethod
    def of(
        cls, splits: Splits, *, layout: str, split: Literal["own", "authors"], seed: int, groups: str | None
    ) -> SplitRecord:
        """Describe images that ``load_data`` divided by these settings."""
        if groups is not None and _is_file(groups) and (path := Path(os.path.expanduser(groups))).is_absolute():
            groups = path.name
        return cls(layout, split, seed, groups, describe(splits))

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads."""
        return {**asdict(self), "parts": {name: part._asdict() for name, part in self.parts.items()}}

    @classmethod
    def from_json(cls, given: Any) -> SplitRecord:
        """Read the record of a bundle; ``ValueError`` if it is damaged."""
        try:
            parts = {name: Part(int(part["images"]), str(part["sha256"])) for name, part in given["parts"].items()}
            record = cls(given["layout"], given["split"], given["seed"], given["groups"], parts)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError("the bundle's record of the images it was trained on is damaged") from error
        kinds = isinstance(record.layout, str), isinstance(record.seed, int), isinstance(record.groups, str | None)
        if not all(kinds) or record.split not in ("own", "authors") or set(parts) != {ALL, *_HELD_OUT}:
            raise ValueError("the bundle's record of the images it was trained on is damaged")
        return record

    def load(
        self,
        source: str | os.PathLike[str],
        *,
        layout: str = "auto",
        split: Literal["own", "authors"] = "own",
        cache: str | os.PathLike[str] | None = None,
        channels: int = 3,
    ) -> Splits:
        """Load images, divided as in the training; ``layout`` and ``split`` other than the defaults replace the record's.

        Warns if the images held out are not those of the training. The same images divided otherwise, though nothing was
        replaced, are a ``ValueError``.
        """
        chosen = (self.layout if layout == "auto" else layout), (self.split if split == "own" else split)
        common: dict[str, Any] = {"seed": self.seed, "cache": cache, "channels": channels}
        how = {"layout": chosen[0], "split": chosen[1], **common}
        try:
            splits = load_data(source, **how, groups=self._groups(source, how))
        except ValueError:  # settings that do not fit these images: those of other images
            splits = load_data(source, layout=layout, split=split, **common)
            if describe(splits)[ALL] == self.parts[ALL]:
                raise
        self._check(splits, source, replaced=chosen != (self.layout, self.split))
        return splits

    def _knows(self, source: str | os.PathLike[str], how: Mapping[str, Any]) -> bool:
        """Whether these are the images of the training, however they are divided."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about a division that is not used
            try:
                found = load_data(source, **how)
            except ValueError:
                return False
        return describe(found)[ALL] == self.parts[ALL]

    def _groups(self, source: str | os.PathLike[str], how: Mapping[str, Any]) -> str | None:
        """Return the setting ``groups``, with the place of its file.

        A pattern from a bundle is searched for in names only if these are the images that it was written for.
        """
        if self.groups is None:
            return None
        if not _is_file(self.groups):
            return self.groups if self._knows(source, how) else None
        given, data = Path(self.groups), Path(os.path.expanduser(source))
        found = next((p for p in (given, data / given.name, data.parent / given.name) if p.exists()), None)
        if found is None:
            raise ValueError(
                f"the explainer's images were divided by the groups of {self.groups} in its training, but this file is "
                f"neither in the current folder nor in {data} or beside it: put it there"
            )
        return str(found)

    def _check(self, splits: Splits, source: str | os.PathLike[str], *, replaced: bool) -> None:
        """Warn, or raise ``ValueError``, if these are not the images that were held out."""
        now = describe(splits)
        differing = [part for part in _HELD_OUT if now[part] != self.parts[part]]
        if not differing:
            return
        counts = ", ".join(
            f"{now[part].images:,} {_HELD_OUT[part]} images now, {self.parts[part].images:,} then" for part in differing
        )
        message = f"{source}: these are not the images that were held out in the explainer's training ({counts})"
        if now[ALL] != self.parts[ALL]:
            message += (
                ". If this is the data set of its training with images added, removed or renamed, it may have been "
                "trained on some of those that it is measured on"
            )
        else:
            message += ", but its data set divided otherwise: it was trained on some of those that it is measured on"
            if not replaced:
                raise ValueError(f"{message}. Does {self.groups or 'the data set'} say the same as in the training?")
        warnings.warn(message, stacklevel=4)


def describe(splits: Splits) -> dict[str, Part]:
    """Return number and hash of all images, of the validation and of the test images; the data set may be anywhere."""
    files = [str(image) for part in splits for image in part.images if isinstance(image, Path)]
    root = os.path.commonpath(files) if files else ""
    named = {name: _names(part.images, root) for name, part in splits._asdict().items()}
    named[ALL] = [name for names in named.values() for name in names]
    return {name: Part(len(named[name]), names_hash(named[name])) for name in (ALL, *_HELD_OUT)}


def _names(images: Sequence[Path] | Tensor, root: str) -> list[str]:
    if isinstance(images, Tensor):
        return [hashlib.sha256(image.contiguous().numpy().tobytes()).hexdigest() for image in images]
    return [str(path)[len(root) :].lstrip(os.sep).replace(os.sep, "/") for path in images]


def _is_file(groups: str) -> bool:
    """Whether groups are read from a file, as ``load_data`` decides it."""
    return groups.lower().endswith(".csv")
