"""A net by its name, with its own classes and their names, ready to be asked about photos."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path

import torch

from vitshap.data import ImageData
from vitshap.models import MaskedModel


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
            model = build_model(ModelSettings(name=name, weights=weights), nobody, keep_head=True)
        except ValueError as error:
            raise ValueError(_in_our_words(str(error))) from error
    model.class_names = model.adapter.class_names()
    return model, tuple(dict.fromkeys(_text(one) for one in caught if _concerns(one, name)))


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
    message = re.sub(r"give a file with --set .*", "give a file with --weights", message)
    return message.replace("model.weights", "--weights")
