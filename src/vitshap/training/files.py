"""Files of a run: written whole or not at all, read with a complaint that names them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


def write(path: Path, fill: Callable[[Path], Any]) -> None:
    """Let ``fill`` write under another name and rename it: a full disk or a killed process leaves what was there."""
    rank = os.environ.get("RANK", "0")  # processes of one training may write the same file
    temporary = path.with_name(f".{path.name}.{rank}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(temporary)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written ({error}); what was there before is untouched") from error


def write_text(path: Path, text: str) -> None:
    """A text, whole."""
    write(path, lambda place: place.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """What a JSON file holds, or a ``ValueError``; ``OSError`` where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # damaged, or nested without end
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{path} is damaged: {why}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], made_of: str = "") -> None:
    """Tensors as safetensors; ``made_of`` is what ``read_tensors`` may ask for."""
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write(path, lambda place: save_file(whole, place, {"made_of": made_of}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, or a ``ValueError``."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or missing: {error}") from error


def read_tensors_of(path: Path, made_of: str) -> dict[str, Tensor] | None:
    """The tensors, if the file is sound and was made of that; else None."""
    try:
        with safe_open(path, "pt") as file:
            same = (file.metadata() or {}).get("made_of") == made_of
        return load_file(path) if same else None
    except (SafetensorError, OSError):
        return None


def load_weights(net: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put all weights into ``net``, or say that they are those of another."""
    if odd := misfit(net.state_dict(), tensors):
        raise ValueError(f"{path} holds the weights of another net: {odd}")
    net.load_state_dict(dict(tensors))


def misfit(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str | None:
    """In words, what keeps ``given`` from taking the place of a net's ``own`` tensors."""
    odd = sorted(own.keys() ^ given.keys()) or [name for name in own if own[name].shape != given[name].shape]
    return f"{len(odd)} tensors are missing, unknown or of another shape, {odd[0]} first" if odd else None
