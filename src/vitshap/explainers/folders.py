"""The folder that an explainer is stored in: found by name, read only when every byte is what was written, replaced whole.

``config.json`` names the format, its version and the SHA-256 of each safetensors file. File names are this module's own,
never the configuration's, so that no configuration can point outside of its folder. A new folder is written beside the old
one and takes its place by renaming when it is complete: a full disk leaves the old one as it was. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from vitshap._version import __version__
from vitshap.errors import first_line

FORMAT = "vitshap.explainer"
VERSION = 1
CONFIG, CARD = "config.json", "README.md"
SURROGATE, EXPLAINER, CLASSIFIER = "surrogate.safetensors", "explainer.safetensors", "classifier.safetensors"
QUALITY_LEVELS = 8
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class BundleError(ValueError):
    """A stored explainer that is missing, damaged, foreign or made for something else; the message is one line."""


def shipped() -> list[str]:
    """Names of the explainers that come with this package."""
    place = _shipped_folder()
    return sorted(path.parent.name for path in place.glob(f"*/{CONFIG}")) if place.is_dir() else []


def find(name: str | os.PathLike[str]) -> Path:
    """The folder of a shipped explainer, a folder of this machine, or a copy of a repository of the Hugging Face hub."""
    if name in shipped():
        return _shipped_folder() / str(name)
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return path
    if path.exists():
        raise BundleError(f"{path} is a file; an explainer is stored as a folder")
    if isinstance(name, str) and HUB_ID.fullmatch(name):
        return _from_hub(name)
    known = ", ".join(shipped()) or "there are none"
    raise BundleError(
        f"there is no folder {str(name)!r}, nor is it a shipped explainer ({known}) or a hub id owner/name"
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a stored explainer of a version that can be read."""
    try:
        config = json.loads(_read(folder / CONFIG).decode("utf-8"))
    except FileNotFoundError as error:
        raise BundleError(f"{folder} holds no explainer: there is no {CONFIG} in it") from error
    except RecursionError as error:
        raise BundleError(f"{folder / CONFIG} cannot be read: its values are nested too deeply") from error
    except (OSError, ValueError) as error:
        raise BundleError(f"{folder / CONFIG} cannot be read: {first_line(error)}") from error
    kind = config.get("format") if isinstance(config, dict) else None
    if kind != FORMAT:
        what = config.get("architectures") or config.get("model_type") if isinstance(config, dict) else None
        raise BundleError(f"{folder} is no vitshap explainer: its {CONFIG} is of {what or kind or 'something else'}")
    version = config.get("version")
    if not isinstance(version, int) or version < 1:
        raise BundleError(f"{folder / CONFIG} has no format version, got {version!r}")
    if version > VERSION:
        raise BundleError(
            f"{folder} has format version {version}, vitshap {__version__} reads up to {VERSION}: upgrade vitshap"
        )
    quality = config.get("quality")
    if not isinstance(quality, dict | None) or not _is_shallow(quality, QUALITY_LEVELS):
        raise BundleError(
            f"{folder / CONFIG}: quality must be numbers and text by name, in at most {QUALITY_LEVELS} levels"
        )
    return config  # type: ignore[no-any-return]


def read_tensors(folder: Path, file: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of one of the three files, after its hash was found right."""
    hashes = config.get("sha256")
    expected = hashes.get(file) if isinstance(hashes, dict) else None
    if not isinstance(expected, str):
        raise BundleError(f"{folder / CONFIG} has no hash of {file}")
    try:
        data = _read(folder / file)  # once: what is hashed is what is used
    except OSError as error:
        raise BundleError(f"{folder / file} is missing or cannot be read: {first_line(error)}") from error
    got = hashlib.sha256(data).hexdigest()
    if got != expected:
        raise BundleError(f"{folder / file} is damaged: its SHA-256 is {got[:12]}..., expected {expected[:12]}...")
    try:
        return load(data)
    except SafetensorError as error:
        raise BundleError(f"{folder / file} is not a safetensors file: {first_line(error)}") from error


def write(
    folder: str | os.PathLike[str],
    tensors: dict[str, dict[str, Tensor]],
    config: dict[str, Any],
    card: str,
    *,
    overwrite: bool = False,
) -> Path:
    """Write a whole folder (tensors by file name) or leave everything as it was."""
    final = Path(os.path.expanduser(folder)).resolve()
    check_free(final, overwrite=overwrite)
    partial = final.parent / f".{final.name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        for file, named in tensors.items():
            save_file(named, partial / file)
        hashes = {file: hashlib.sha256((partial / file).read_bytes()).hexdigest() for file in tensors}
        whole = {"format": FORMAT, "version": VERSION, **config, "sha256": hashes}
        (partial / CONFIG).write_text(json.dumps(whole, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        (partial / CARD).write_text(card, encoding="utf-8")
        for file in tensors:
            shutil.copymode(partial / CONFIG, partial / file)  # safetensors lets nobody but its owner read
        _take_place(partial, final)
    except (OSError, SafetensorError) as error:
        raise OSError(f"{final} could not be written ({first_line(error)}); what was there is untouched") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def rewrite(folder: Path, config: dict[str, Any], card: str) -> None:
    """Replace configuration and card of a stored explainer; its tensors stay."""
    texts = {CONFIG: json.dumps(config, indent=2, allow_nan=False) + "\n", CARD: card}
    for name, text in texts.items():
        temporary = folder / f".{name}.{os.getpid()}.tmp"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, folder / name)


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken; nothing but a stored explainer is ever replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise BundleError(f"{folder} is a file; an explainer is stored as a folder")
    if not overwrite:
        raise BundleError(f"{folder} exists already: give overwrite=True to replace it, or another folder")
    if any(folder.iterdir()):
        read_config(folder)


def _read(path: Path) -> bytes:
    """The bytes of a regular file, or of one that a link leads to: reading a pipe or a device might never end."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")
    return path.read_bytes()


def _is_shallow(value: Any, levels: int) -> bool:
    """Whether lists and groups are nested at most so deeply."""
    if not isinstance(value, dict | list):
        return True
    return levels > 0 and all(
        _is_shallow(item, levels - 1) for item in (value.values() if isinstance(value, dict) else value)
    )


def _take_place(partial: Path, final: Path) -> None:
    """Rename; a folder cannot be renamed onto a full one, so the old one steps aside, and back if that fails."""
    if not final.exists():
        os.replace(partial, final)
        return
    aside = final.parent / f".{final.name}.{os.getpid()}.old"
    os.replace(final, aside)
    try:
        os.replace(partial, final)
    except OSError:
        os.replace(aside, final)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _shipped_folder() -> Path:
    return Path(str(files("vitshap"))) / "bundles"


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, CARD, SURROGATE, EXPLAINER, CLASSIFIER]))
    except Exception as error:  # the hub's client raises its own errors, its HTTP library's and the system's
        known = ", ".join(shipped()) or "there are none"
        raise BundleError(
            f"{name!r} is neither a folder here nor a shipped explainer ({known}), and it cannot be fetched from the "
            f"Hugging Face hub: {first_line(error)}"
        ) from error
