"""Where a run may write: not over a photo, not into a bundle, and no file twice.

All of this is refused before anything is loaded: a result that another one replaces would be lost without a word. Foreign
reports are ``report.refuse_foreign_report``'s concern.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vitshap.explaining.photos import SUFFIXES
from vitshap.explaining.report import PAGE_NAME
from vitshap.models.stored import is_bundle

STANDARD_OUTPUT = "-"


def check_folder(out: Path) -> None:
    """Raise if ``out`` is a file, or the folder of a bundle."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; it must be a folder")
    if is_bundle(os.path.realpath(out)):
        raise ValueError(f"--out {out} is the folder of a bundle, which holds nothing else: give another folder")


def check_files(targets: Sequence[tuple[str, str | None]], out: Path, photos: Sequence[Path]) -> None:
    """Raise if a file (``(option, file)``, None: not asked for) is a photo, a page of the report, another option's, or in
    the folder of a bundle."""
    asked = [(option, target) for option, target in targets if target not in (None, STANDARD_OUTPUT)]
    known = {os.path.realpath(photo) for photo in photos} if asked else set()  # a link to itself is no error here
    taken: dict[Path, str] = {}
    for option, target in asked:
        place = Path(os.path.realpath(os.path.expanduser(target)))
        if place.suffix.lower() in SUFFIXES or str(place) in known:
            raise ValueError(f"{option} takes the name of a file to write, but {target} is a photo")
        if str(place.parent) == os.path.realpath(out) and PAGE_NAME.fullmatch(place.name):
            raise ValueError(
                f"{option} {target} is where the report goes: give another file, or another folder with --out"
            )
        if is_bundle(str(place.parent)):
            raise ValueError(
                f"{option} {target} is in the folder of a bundle, which holds nothing else: give another file"
            )
        if place in taken:
            raise ValueError(f"{option} and {taken[place]} both name {target}: give each a file of its own")
        taken[place] = option
