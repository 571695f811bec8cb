"""A net by its name, with its own classes and their names, ready to be asked about photos."""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import torch

from vitshap.data import ImageData
from vitshap.models import MaskedModel

HUB_SECONDS = 3.0
"""What the hub may take to answer before what is stored on this machine has to do; its own client tries for a minute."""


def load_model(name: str, weights: str | None = None) -> tuple[MaskedModel, tuple[str, ...]]:
    """The net with its own classes, wrapped, and what should be said about it."""
    from vitshap.training.nets import build_model
    from vitshap.training.recipes import ModelSettings

    if name == "vit":
        raise ValueError(
            '"vit" names a family, not a trained net; give a name of timm, or a hub id or folder of transformers'
        )
    channels = _channels(name)
    # The net keeps its own classes
    nobody = ImageData(torch.zeros(2, channels, 1, 1), torch.tensor([0, 1]), ("a", "b"), channels=channels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            with reachable_hub(None if weights is not None else name):
                model = build_model(ModelSettings(name=name, weights=weights), nobody, keep_head=True)
        except ValueError as error:
            raise ValueError(_in_our_words(str(error))) from error
    model.class_names = model.adapter.class_names()
    return model, tuple(dict.fromkeys(_text(one) for one in caught if _concerns(one, name)))


@contextmanager
def reachable_hub(name: str | None) -> Iterator[None]:
    """Within, a hub that cannot be reached is not asked again and again: what it would be asked for must be stored here.

    ``name`` is what may have to be fetched, None for nothing. Behind a proxy it is not known whether the hub answers: then
    nothing is changed.
    """
    from huggingface_hub import constants

    local = name is None or Path(os.path.expanduser(name)).exists()
    if local or constants.HF_HUB_OFFLINE or urllib.request.getproxies() or _answers(constants.ENDPOINT):
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except ValueError as error:
        said = re.sub(r"\s*To [^.]*HF_HUB_OFFLINE[^.]*\.", "", str(error))
        raise ValueError(f"{said}; the Hugging Face hub cannot be reached from here") from error
    finally:
        constants.HF_HUB_OFFLINE = False


def _answers(address: str) -> bool:
    parts = urlsplit(address)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=HUB_SECONDS).close()
    except OSError:
        return False
    return True


def _text(warning: warnings.WarningMessage) -> str:
    return " ".join(str(warning.message).split())


def _concerns(warning: warnings.WarningMessage, name: str) -> bool:
    """Whether it is about this net: our own warnings are, of libraries' those that name it."""
    own = Path(warning.filename).is_relative_to(Path(__file__).parents[1])
    return own or name in _text(warning)


def _channels(name: str) -> int:
    """1 for transformers' nets of grey images, else 3."""
    file = Path(os.path.expanduser(name)) / "config.json"
    try:
        said = json.loads(file.read_text()).get("num_channels") if file.is_file() else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return 3
    return said if said in (1, 3) else 3


def _in_our_words(message: str) -> str:
    """The training's settings under the names of this command's options."""
    message = re.sub(r"give a file with --set [^;]*", "give a file with --weights", message)
    return message.replace("model.weights", "--weights")
