"""torchvision can be imported although its compiled operators do not fit torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REGISTERS = """
from torchvision import extension
import torch

@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    return dets

@torch.library.register_fake("torchvision::qnms")
def qnms(dets, scores, iou_threshold):
    return dets

whole = True
"""


def _python(code: str, *paths: Path) -> str:
    """Return what a process prints that has these folders first in its path."""
    given = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([*map(str, paths), *([given] if given else [])])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _torchvision(folder: Path, code: str) -> Path:
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(code)
    (folder / "torchvision" / "extension.py").write_text("loads = []")
    return folder


def test_vitshap_imports_neither_torchvision_nor_the_libraries_that_use_it() -> None:
    code = "import json, sys, vitshap; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    assert not {"torchvision", "timm", "transformers"} & set(json.loads(_python(code)))


def test_missing_operators_do_not_matter(tmp_path: Path) -> None:
    place = _torchvision(tmp_path, REGISTERS)
    failed = "try:\n    import torchvision\nexcept RuntimeError as error:\n    print(error)"
    assert "torchvision::nms does not exist" in _python(failed, place), "it is broken without vitshap"
    used = (
        "import torchvision.extension as e; print(torchvision.whole, torchvision.extension is e, torchvision.__file__)"
    )
    for first in ("import vitshap", f"{failed}\nimport vitshap"):
        said = _python(f"{first}\nimport torchvision\n{used}", place).splitlines()[-1]
        assert said == f"True True {place / 'torchvision' / '__init__.py'}"


def test_a_working_torchvision_is_loaded_once_and_by_its_own_loader(tmp_path: Path) -> None:
    place = _torchvision(tmp_path, "print('loaded')")
    code = "import vitshap, torchvision; print(type(torchvision.__loader__).__name__, torchvision.__spec__.loader)"
    loaded, loader = _python(code, place).splitlines()
    assert loaded == "loaded"
    assert loader.startswith("SourceFileLoader <_frozen_importlib_external.SourceFileLoader")


@pytest.mark.parametrize("raised", ["RuntimeError('something else')", "ImportError('operator torchvision::nms')"])
def test_other_errors_are_not_hidden(tmp_path: Path, raised: str) -> None:
    place = _torchvision(tmp_path, f"print('loaded')\nraise {raised}")
    code = "import vitshap\ntry:\n    import torchvision\nexcept Exception as error:\n    print(repr(error))"
    assert _python(code, place).splitlines() == ["loaded", raised]
