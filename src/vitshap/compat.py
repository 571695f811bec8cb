"""Work-arounds for incompatibilities of other packages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch

_held: list[torch.library.Library] = []  # its definitions are removed with the object


def make_torchvision_importable() -> None:
    """Make ``import torchvision`` succeed if only its compiled operators are missing.

    torchvision's public wheel cannot load its operators with a CPU-only torch. Then its import fails, and with it that of
    timm and of transformers' models, although none of them needs these operators here. Its Python code works once the
    operators that it registers shapes for have a schema. Nothing is imported by this call: a hook acts when torchvision is
    first imported, and changes nothing if that import succeeds. ``import vitshap`` calls this.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Find torchvision with the other finders, and load it with ``_Loader``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torchvision":
            return None
        for finder in sys.meta_path:
            spec = None if isinstance(finder, _Finder) else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Load torchvision; if its operators are missing, declare them and load it again."""

    def __init__(self, plain: Loader) -> None:
        self.plain = plain

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.plain.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.plain
        if module.__spec__ is not None:
            module.__spec__.loader = self.plain
        try:
            self.plain.exec_module(module)
        except RuntimeError as error:
            if "operator torchvision::" not in str(error):
                raise
            for name in [name for name in sys.modules if name.startswith("torchvision.")]:
                del sys.modules[name]
            _declare_operators()
            self.plain.exec_module(module)


def _declare_operators() -> None:
    if _held:  # torch rejects a second declaration
        return
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    _held.append(library)
