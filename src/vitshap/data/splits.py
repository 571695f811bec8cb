"""Divide a data set into training, validation and test images, reproducibly.

Images are ordered by SHA-256 hashes of (seed, name), without a random number generator: the split is the same on every
machine and with every version of every library, and a missing image moves only images next to a border between two
parts. Classes are spread evenly. Groups, such as the images of one patient, are never divided, because results on
images of patients seen in training say little about others. ``published.py`` has the known splits of the paper's data
sets.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction

from vitshap.data.layouts import Entry, Listing

Parts = dict[str, list[Entry]]
"""Entries of "train", "val" and "test", each sorted by name."""


def divide(listing: Listing, *, seed: int = 0) -> Parts:
    """Use official splits where there are any, and split off the missing ones.

    Without a test set the validation set is halved; without a validation set a share of the training set becomes it;
    without either, a tenth is split off for each. Groups are not divided.
    """
    official: Parts = defaultdict(list)
    for entry in listing.entries:
        official[entry.part or "train"].append(entry)
    train, val, test = (official[part] for part in ("train", "val", "test"))
    if val and not test:
        test, val = _split_off(val, len(val) - len(val) // 2, seed)
    elif not val:
        share = max(1, round(len(train) * listing.val_share))
        if not test:
            test, train = _split_off(train, share, seed)
        val, train = _split_off(train, share, seed)
    parts = {"train": sorted(train), "val": sorted(val), "test": sorted(test)}
    _require_images(listing, parts)
    return parts


def warn_of_divided_groups(parts: Parts) -> None:
    """Warn about groups that the data set's own folders divide among several parts."""
    where: dict[str, set[str]] = defaultdict(set)
    for part, entries in parts.items():
        for entry in entries:
            where[entry.group].add(part)
    divided = sorted(group for group, found in where.items() if len(found) > 1)
    if divided:
        warnings.warn(
            f"{len(divided):,} groups have images in several of the folders train, val and test ({', '.join(divided[:5])}"
            f"{', ...' if len(divided) > 5 else ''}): results on these images are better than on new groups",
            stacklevel=3,
        )


def names_hash(paths: Iterable[str]) -> str:
    """Return the SHA-256 of the sorted names, one per line."""
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()


def _require_images(listing: Listing, parts: Parts) -> None:
    for part, entries in parts.items():
        if not entries:
            raise ValueError(f"{listing.root}: too few images (or groups of images) to split: none are left for {part}")
    learned = {entry.label for entry in parts["train"]}
    if lost := [name for label, name in enumerate(listing.class_names) if label not in learned]:
        raise ValueError(
            f"{listing.root}: no training images are left for {', '.join(lost)}: such classes need more images"
        )


def _split_off(entries: Sequence[Entry], count: int, seed: int) -> tuple[list[Entry], list[Entry]]:
    """Return ``count`` entries and the rest; whole groups where there are groups."""
    if any(entry.group for entry in entries):
        return _cut_by_group(entries, count, seed)
    rest, chosen = _cut(entries, len(entries) - count, seed)
    return chosen, rest


def _cut(entries: Sequence[Entry], count: int, seed: int) -> tuple[list[Entry], list[Entry]]:
    """Return the first ``count`` entries and the rest, in an order that spreads every class evenly."""
    of_class: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        of_class[entry.label].append(entry)
    place: dict[Entry, tuple[Fraction, bytes]] = {}
    for members in of_class.values():
        members.sort(key=lambda entry: _rank(seed, entry.path))
        for position, entry in enumerate(members):
            place[entry] = Fraction(2 * position + 1, 2 * len(members)), _rank(seed, entry.path)
    order = sorted(entries, key=lambda entry: place[entry])
    return order[:count], order[count:]


def _cut_by_group(entries: Sequence[Entry], count: int, seed: int) -> tuple[list[Entry], list[Entry]]:
    """Return whole groups of at most ``count`` entries in all, and the rest; the smallest group if all are larger."""
    size: dict[str, int] = defaultdict(int)
    for entry in entries:
        size[entry.group] += 1
    order = sorted(size, key=lambda group: _rank(seed, group))
    chosen, left = set(), count
    for group in order:
        if size[group] <= left:
            chosen.add(group)
            left -= size[group]
    chosen = chosen or {min(order, key=lambda group: size[group])}
    return [e for e in entries if e.group in chosen], [e for e in entries if e.group not in chosen]


def _rank(seed: int, what: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{what}".encode()).digest()
