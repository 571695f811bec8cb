"""Figures to files: the extension says which format, and a file is there whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitshap._version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOFTWARE = f"vitshap {__version__}"
"""What made a file, as the file itself says: "Software" in a PNG, "Creator" in PDF and SVG, "generator" in a page."""
FORMATS = ("png", "jpg", "jpeg", "webp", "pdf", "svg")
_VECTOR = ("pdf", "svg")
_LOSSY = {"quality": 92}
"""Less leaves halos around letters."""


def save(figure: Figure, path: str | os.PathLike[str], *, dpi: float | None = None) -> Path:
    """Write the figure in the format of the path's extension; folders that are missing are made.

    ``dpi``: by default the figure's own, and 200 for the pictures inside of PDF and SVG. An existing file is
    replaced only by a complete one. Returns the path.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        known = ", ".join(f".{one}" for one in FORMATS)
        given = f"the extension .{kind}" if kind else "no extension"
        raise ValueError(f"{path} has {given}; figures are saved as {known}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(f"{path} cannot be saved: {error.filename} is a file, not a folder") from error
    options: dict[str, Any] = {"dpi": dpi or (200 if kind in _VECTOR else "figure")}
    if kind in ("png", *_VECTOR):
        options["metadata"] = {"Software" if kind == "png" else "Creator": SOFTWARE}
    if kind in ("jpg", "jpeg", "webp"):
        options["pil_kwargs"] = _LOSSY
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")  # short, however long the name is
    try:
        figure.savefig(temporary, format=kind, **options)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
