"""A folder of transformers may bring Python code: it is never run, and nobody is asked whether it should be."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

import vitshap
from tests.models import nets
from vitshap.models.load import ModelSpec, load_with_warnings

SOURCE = Path(vitshap.__file__).parent


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a person was asked; this one says yes to everything."""
    questions: list[str] = []

    def answer(question: str = "") -> str:
        questions.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    return questions


def _with_code(folder: Path, **changed: object) -> tuple[Path, Path]:
    """A net's folder with a configuration that names code, and the file that this code would write."""
    nets.build("transformers ViT").save_pretrained(folder)
    marker = folder / "was_run"
    code = f"""
from pathlib import Path
Path({str(marker)!r}).write_text("run")
from transformers import ViTConfig as OwnConfig, ViTForImageClassification as OwnNet
"""
    (folder / "own.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "own.OwnConfig", "AutoModelForImageClassification": "own.OwnNet"}
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": names, **changed}))
    return folder, marker


def test_code_in_a_folder_is_not_run(tmp_path: Path, asked: list[str]) -> None:
    folder, marker = _with_code(tmp_path / "net", model_type="own-vit")
    surrogate = vitshap.wrap(nets.build("transformers ViT"), check=False)
    loading = (
        lambda: load_with_warnings(ModelSpec(str(folder))),
        lambda: vitshap.Explainer(surrogate, vitshap.ExplainerConfig(init=str(folder))),
    )
    for load in loading:
        with pytest.raises(ValueError, match="needs Python code of its own, which is never run") as caught:
            load()
        assert "\n" not in str(caught.value)
    assert not marker.exists()
    assert asked == []


def test_a_net_that_transformers_has_itself_needs_no_code(tmp_path: Path, asked: list[str]) -> None:
    folder, marker = _with_code(tmp_path / "net")
    model, _ = load_with_warnings(ModelSpec(str(folder)))
    assert model.num_classes == nets.CLASSES
    assert not marker.exists()
    assert asked == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "preprocessor_config.json"])
def test_pipes_in_a_folder_are_not_read(tmp_path: Path, file: str) -> None:
    nets.build("transformers ViT").save_pretrained(tmp_path / "net")
    (tmp_path / "net" / file).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "net" / file)
    if file == "preprocessor_config.json":  # as if it were absent
        model, said = load_with_warnings(ModelSpec(str(tmp_path / "net")))
        assert model.preprocess is not None
        assert any("does not say how it wants its images" in line for line in said)
        return
    with pytest.raises(ValueError, match="cannot be loaded with transformers") as caught:
        load_with_warnings(ModelSpec(str(tmp_path / "net")))
    assert "\n" not in str(caught.value)


def test_a_configuration_nested_too_deeply(tmp_path: Path) -> None:
    nets.build("transformers ViT").save_pretrained(tmp_path / "net")
    (tmp_path / "net" / "config.json").write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(ValueError, match="cannot be loaded with transformers") as caught:
        load_with_warnings(ModelSpec(str(tmp_path / "net")))
    assert "\n" not in str(caught.value)


def test_every_call_that_loads_from_transformers_forbids_it() -> None:
    calls = [
        (path.name, call)
        for path in SOURCE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("from_pretrained", "from_config")
        and ast.unparse(call.func.value).startswith("Auto")
    ]
    assert calls
    for name, call in calls:
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert given.get("trust_remote_code") == "False", f"{name}: {ast.unparse(call)}"
