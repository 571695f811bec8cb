"""Training, validation and test images: one rule, and the proof that it gave what it gave before.

Who goes where is decided by sorting SHA-256 hashes of (seed, name): no random number generator, hence the same on
every machine and with every version of every library, and an image that is missing moves no other across a border but
those at it. Where there are no groups, classes are spread evenly; groups, such as the images of one patient, are never
divided: a net recognises a patient, so that images of those it was trained on say little about others. For the paper's
data sets the package holds the number of images of each split and a hash of their names (``published.py``), and a copy
that differs gives a warning. The split of the paper's authors is another (``authors.py``).
"""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from vitshap.data.layouts import Entry, Listing
from vitshap.data.published import PUBLISHED, PublishedSplit

Parts = dict[str, list[Entry]]
"""Entries of "train", "val" and "test", each sorted by name."""


def divide(listing: Listing, *, seed: int = 0) -> Parts:
    """Official splits where there are any, the missing ones split off.

    Without a test set the validation set is halved; without a validation set a share of the training set becomes it;
    without either, a tenth is set aside for each. Groups stay whole, where there are groups.
    """
    official: Parts = defaultdict(list)
    for entry in listing.entries:
        official[entry.part or "train"].append(entry)
    train, val, test = (official[part] for part in ("train", "val", "test"))
    if not train:
        raise ValueError(f"{listing.root} has no training images")
    if val and not test:
        test, val = _set_aside(val, len(val) - len(val) // 2, seed)
    elif not val:
        share = _share(len(train), listing.val_share)
        if not test:
            test, train = _set_aside(train, share, seed)
        val, train = _set_aside(train, share, seed)
    parts = {"train": sorted(train), "val": sorted(val), "test": sorted(test)}
    _require_something_everywhere(listing, parts)
    return parts


def check_published(
    listing: Listing, parts: Parts, records: Mapping[str, PublishedSplit] = PUBLISHED, *, strict: bool = False
) -> None:
    """Warn (or, if strict, refuse) when the splits are not those that the package has on record for this data set."""
    record = records.get(listing.layout)
    if record is None:
        return
    counts = {part: len(entries) for part, entries in parts.items()}
    wrong = [
        f"{part} has {counts[part]:,} images, on record are {record.counts[part]:,}"
        for part in parts
        if counts[part] != record.counts[part]
    ]
    if not wrong and record.sha256 is not None:
        wrong = [
            f"{part} has the {counts[part]:,} images on record in number, but not in name"
            for part, entries in parts.items()
            if names_hash(entry.path for entry in entries) != record.sha256[part]
        ]
    if not wrong:
        return
    message = (
        f"{listing.root} is not the copy of {listing.layout} whose split is on record ({record.note}): "
        + "; ".join(wrong)
    )
    if strict:
        raise ValueError(message)
    warnings.warn(f"{message}. Results do not compare with those on that split.", stacklevel=3)


def warn_of_divided_groups(parts: Parts) -> None:
    """Say which groups the data set's own folders put into several parts."""
    where: dict[str, set[str]] = defaultdict(set)
    for part, entries in parts.items():
        for entry in entries:
            where[entry.group].add(part)
    divided = sorted(group for group, found in where.items() if len(found) > 1)
    if divided:
        warnings.warn(
            f"{len(divided):,} groups have images in several of the folders train, val and test ({', '.join(divided[:5])}"
            f"{', ...' if len(divided) > 5 else ''}): results on these images are better than they would be on new groups",
            stacklevel=3,
        )


def names_hash(paths: Iterable[str]) -> str:
    """SHA-256 of the sorted names, one per line."""
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()


def _require_something_everywhere(listing: Listing, parts: Parts) -> None:
    for part, entries in parts.items():
        if not entries:
            raise ValueError(f"{listing.root}: too few images (or groups of images), none are left for {part}")
    learned = {entry.label for entry in parts["train"]}
    if lost := [name for label, name in enumerate(listing.class_names) if label not in learned]:
        raise ValueError(
            f"{listing.root}: no image is left to learn {', '.join(lost)} from: such classes need more images"
        )


def _share(n: int, share: Fraction) -> int:
    if n < 3:
        raise ValueError(f"{n} images cannot be split into training, validation and test images")
    return max(1, round(n * share))


def _set_aside(entries: Sequence[Entry], count: int, seed: int) -> tuple[list[Entry], list[Entry]]:
    """``count`` entries and the rest; whole groups where there are groups."""
    if any(entry.group for entry in entries):
        return _cut_by_group(entries, count, seed)
    rest, chosen = _cut(entries, len(entries) - count, seed)
    return chosen, rest


def _cut(entries: Sequence[Entry], count: int, seed: int) -> tuple[list[Entry], list[Entry]]:
    """The first ``count`` entries and the rest, in an order that deals every class out evenly."""
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
    """Whole groups of ``count`` entries together, and the rest; a group that would be too many is passed over, but where
    all are too large the smallest is taken."""
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
