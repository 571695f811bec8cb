"""Work-arounds for what other packages get wrong together."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import torch

_held: list[torch.library.Library] = []  # a library's definitions end with the object


def make_torchvision_importable() -> None:
    """Let ``import torchvision`` succeed where only its compiled operators are missing.

    torchvision's public wheel cannot load its operators beside a CPU-only torch. Then its import fails, and with it that
    of timm and of transformers' models, although none of the three needs these operators here. Its Python code works
    once the operators that it registers shapes for have a schema. Without torchvision, or with a sound one, nothing
    is done.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _held.append(library)
        importlib.import_module("torchvision")
