"""The wheel, installed elsewhere beside its core dependencies alone, explains a photo without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sklearn.datasets import load_sample_images

from vitshap import __version__
from vitshap.explainers import bundle

ROOT = Path(__file__).parent.parent
EXTRAS = ("timm", "torchvision", "shap", "captum", "quantus", "shapiq", "peft")
OFFLINE = """
import socket

def refuse(*_):
    raise OSError("a test that must work offline asked the network")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: what an earlier build left in the tree must not get into it."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    _done([*pip, "--wheel-dir", str(out), str(copy)], out)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a new environment: the wheel, and links to what its core requirements need here."""
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place, with_pip=False, symlinks=True)
    bin_folder = place / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(bin_folder / "python")]
    _done([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], place)
    (packages,) = place.glob("lib/python*/site-packages")
    for found in _core(distribution("vitshap").requires or []).values():
        _link(found, packages)
    (packages / "offline.py").write_text(OFFLINE)
    (packages / "offline.pth").write_text("import offline\n")
    return bin_folder


def test_the_wheel_holds_what_the_package_reads(wheel: Path) -> None:
    source = ROOT / "src" / "vitshap"
    read = {path for kind in ("yaml", "txt", "html", "css", "js", "typed") for path in source.rglob(f"*.{kind}")}
    read |= {path for name in bundle.shipped() for path in (source / "bundles" / name).iterdir() if path.is_file()}
    read |= set(source.rglob("*.py"))
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {path.relative_to(source.parent).as_posix() for path in read} - names == set()


def test_the_version_stands_in_one_place(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert wheel.name.startswith(f"vitshap-{__version__}-")
    assert re.search(
        rf"^## .*{re.escape(__version__.partition('.dev')[0])}\b", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def test_the_environment_is_whole_and_has_no_extras(fresh: Path, tmp_path: Path) -> None:
    _done([sys.executable, "-m", "pip", "--python", str(fresh / "python"), "check"], tmp_path)
    code = "\n".join(
        [
            "import sys, json, importlib.util as u, vitshap",
            "from vitshap.explainers.bundle import shipped",
            f"extras = [name for name in {EXTRAS} if u.find_spec(name)]",
            "print(json.dumps([vitshap.__file__, vitshap.__version__, shipped(), extras]))",
        ]
    )
    file, version, shipped, extras = json.loads(_done([str(fresh / "python"), "-c", code], tmp_path))
    assert Path(file).is_relative_to(fresh.parent)
    assert (version, shipped, extras) == (__version__, bundle.shipped(), [])


def test_the_command_answers(fresh: Path, tmp_path: Path) -> None:
    assert _done([str(fresh / "vitshap"), "--version"], tmp_path).strip() == __version__
    assert "digits" in _done([str(fresh / "vitshap"), "train", "--list"], tmp_path)


def test_a_photo_is_explained_offline(fresh: Path, tmp_path: Path) -> None:
    photo = load_sample_images().filenames[0]
    said = _done([str(fresh / "vitshap"), "explain", photo, "--json", "-", "--no-heatmaps"], tmp_path)
    line = json.loads(said.splitlines()[-1])
    assert line["file"] == photo
    assert line["method"] == "explainer"
    best, explained = line["predicted"][0], line["explained"][0]
    assert explained["name"] == best["name"]
    assert sum(_flat(explained["values"])) == pytest.approx(explained["full"] - explained["base"], abs=1e-4)
    assert (tmp_path / "vitshap-output" / "report.html").stat().st_size > 10_000


def test_the_readme_needs_core_dependencies_only(fresh: Path, tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "block.py").write_text(block)
    _done([str(fresh / "python"), "block.py"], tmp_path)
    assert (tmp_path / "explained.png").stat().st_size > 10_000


def _done(command: list[str], where: Path) -> str:
    """What it printed; nothing of this tree, this environment or a cache is in its way."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_", "VIRTUAL_ENV"))}
    home = {"HOME": str(where), "HF_HOME": str(where / "hub"), "MPLCONFIGDIR": str(where / "mpl"), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=where, env=kept | home, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _core(requirements: list[str]) -> dict[str, Distribution]:
    """What is installed here of the requirements and of theirs, without extras that nobody asked for."""
    found: dict[str, Distribution] = {}
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        if name not in found:
            found[name] = distribution(name)
            waiting += [(Requirement(text), "") for text in found[name].requires or []]
        for asked in requirement.extras:
            waiting += [(Requirement(text), asked) for text in found[name].requires or [] if "extra" in text]
    return found


def _link(found: Distribution, packages: Path) -> None:
    for name in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
        source, place = Path(str(found.locate_file(name))), packages / name
        if source.exists() and not place.exists():
            place.symlink_to(source, target_is_directory=source.is_dir())


def _flat(values: object) -> list[float]:
    return [number for one in values for number in _flat(one)] if isinstance(values, list) else [float(values)]  # type: ignore[arg-type]
