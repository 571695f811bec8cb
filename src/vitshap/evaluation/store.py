"""Finished parts of an evaluation on disk, each found by what it was computed from.

A part is one method's result for one batch of images: its explanation, or the values of one metric. The name of its file
is the hash of everything that the numbers depend on: weights, method and metric with their options and their code, pixels
and classes of the images. So a changed setting is another file, and adding a method computes only that method. Files are
written whole or not at all and hold a checksum: a damaged one is computed again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitshap._version import __version__
from vitshap.files import read_tensors, write_tensors

FORMAT = 1
CHECKSUM = "sha256"


class Store:
    """Named tensors by the description of what they were computed from."""

    def __init__(self, folder: Path | None) -> None:
        """``folder`` None: nothing is stored."""
        self.folder = folder
        self.damaged = 0
        """Files that were found damaged and are computed again."""

    def load(self, description: Mapping[str, Any] | None) -> dict[str, Tensor] | None:
        """Return what is stored for a description; None if there is nothing, or if it is damaged."""
        path = self.path(description)
        if path is None or not path.is_file():
            return None
        try:
            tensors = read_tensors(path)
        except ValueError:
            tensors = {}
        checksum = tensors.pop(CHECKSUM, None)
        if checksum is not None and bytes(checksum.numpy()) == _checksum(tensors):
            return tensors
        self.damaged += 1
        return None

    def save(self, description: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]) -> None:
        """Store tensors, atomically; a part without a description is not stored."""
        if (path := self.path(description)) is not None:
            checksum = torch.frombuffer(bytearray(_checksum(tensors)), dtype=torch.uint8)
            write_tensors(path, {**tensors, CHECKSUM: checksum})

    def path(self, description: Mapping[str, Any] | None) -> Path | None:
        """Return the file of a description."""
        if self.folder is None or description is None:
            return None
        name = digest({"format": FORMAT, **description})
        return self.folder / name[:2] / f"{name}.safetensors"


def digest(content: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's type, shape and bytes."""
    found = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def code_version(thing: Any) -> str:
    """Return the SHA-256 of the source file of a function or class; where there is none, the package's version."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    try:
        return hashlib.sha256(inspect.getsource(module).encode()).hexdigest() if module else __version__
    except (OSError, TypeError):
        return __version__


def _checksum(tensors: Mapping[str, Tensor]) -> bytes:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(f"{name} {tensor_digest(tensors[name])}\n".encode())
    return found.digest()
