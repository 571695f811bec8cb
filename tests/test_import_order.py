"""A package imports only packages above it in this list, lazy imports included."""

import ast
from pathlib import Path

import pytest

import vitshap

ORDER = [
    "_version",
    "compat",
    "errors",
    "registry",
    "files",
    "counter_rng",
    "coalitions",
    "players",
    "game",
    "analytic",
    "shapiq_games",
    "models",
    "plots",
    "viewer",
    "explanation",
    "methods",
    "estimators",
    "baselines",
    "metrics",
    "explainers",
    "data",
    "training",
    "explaining",
    "serving",
    "exporting",
    "experiments",
    "evaluation",
    "certifying",
    "reproduce",
    "demo",
    "bench",
    "cli",
    "__main__",
]
SOURCE = Path(vitshap.__file__).parent
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def _package(module: str) -> str:
    return module.removeprefix("vitshap").lstrip(".").partition(".")[0]


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which package is meant"
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "vitshap" else {node.module}
            )
    return {name for name in found if name.partition(".")[0] == "vitshap"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_order(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in ORDER, f"{own} is a new package: add it to ORDER"
    for name in _imports(path):
        package = _package(name)
        assert package in ORDER[: ORDER.index(own) + 1], f"{own} imports {name}, which comes later in ORDER"


def test_a_violation_is_found(tmp_path: Path) -> None:
    path = tmp_path / "game.py"
    path.write_text("def lazily():\n    from vitshap.models import wrap\n    from vitshap import metrics\n")
    assert {_package(name) for name in _imports(path)} == {"models", "metrics"}
