"""The authors' files as bundles: made here in the form of theirs, and compared with their networks written again."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import vitshap
from tests.explainers import authors
from vitshap.cli import app
from vitshap.data.published import IMAGENETTE_ORDER
from vitshap.explainers import Explainer

SIZES = {"width": 64, "depth": 2, "heads": 1, "image": 32, "patch": 8}
run = CliRunner().invoke


def _random(net: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.ndim < 2 else 0.1))
    return net.eval()


def _files(folder: Path, classes: int) -> tuple[nn.Module, nn.Module, list[str]]:
    """Write two files as torch.save of a state dict makes them; return the networks and the paths."""
    nets = _random(authors.Surrogate(classes, **SIZES), 1), _random(authors.Explainer(classes, **SIZES), 2)
    paths = [folder / f"{role}_state_dict.ckpt" for role in ("surrogate", "explainer")]
    for net, path in zip(nets, paths, strict=True):
        torch.save(net.state_dict(), path)
    return *nets, [str(path) for path in paths]


def _probabilities(surrogate: nn.Module, pixels: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
    logits = surrogate.head(surrogate.backbone(pixels, keep)[:, 0])
    return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)


@pytest.mark.parametrize(("data", "classes"), [("imagenette", 10), ("pets", 37), ("mura", 1)])
@torch.no_grad()
def test_a_converted_explainer_computes_what_the_authors_does(data: str, classes: int, tmp_path: Path) -> None:
    surrogate, explainer, files = _files(tmp_path, classes)
    result = run(app, ["convert", *files, "--data", data, "--out", str(tmp_path / "bundle")])
    assert result.exit_code == 0, result.output
    loaded = Explainer.from_pretrained(tmp_path / "bundle")
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    grand = _probabilities(surrogate, pixels)
    null = _probabilities(surrogate, pixels[:1], torch.zeros(1, 16, dtype=torch.bool))
    torch.testing.assert_close(loaded(pixels).values, explainer(pixels, grand, null), atol=1e-5, rtol=0)
    torch.testing.assert_close(loaded.surrogate(pixels), grand, atol=1e-5, rtol=0)


def test_class_order_and_preprocessing_are_the_authors(tmp_path: Path) -> None:
    _, _, files = _files(tmp_path, 10)
    assert run(app, ["convert", *files, "--data", "imagenette", "--out", str(tmp_path / "bundle")]).exit_code == 0
    model = Explainer.from_pretrained(tmp_path / "bundle").surrogate
    assert tuple(model.class_names or ()) == IMAGENETTE_ORDER
    how = model.preprocess
    assert (how.size, how.resize, how.interpolation, how.squash) == ((32, 32), (36, 36), "bilinear", True)
    assert (how.mean, how.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    Image.new("RGB", (64, 48), "red").save(tmp_path / "one.png")
    shown = run(app, ["explain", str(tmp_path / "one.png"), "--bundle", str(tmp_path / "bundle"), "--target", "church"])
    assert shown.exit_code == 0, shown.output


def test_pets_are_in_alphabetical_order_ignoring_case(tmp_path: Path) -> None:
    _, _, files = _files(tmp_path, 37)
    assert run(app, ["convert", *files, "--data", "pets", "--out", str(tmp_path / "bundle")]).exit_code == 0
    names = Explainer.from_pretrained(tmp_path / "bundle").surrogate.class_names or []
    assert len(names) == 37
    assert names[:3] == ["Abyssinian", "american bulldog", "american pit bull terrier"]


def test_unknown_and_missing_tensors_are_all_listed(tmp_path: Path) -> None:
    _, explainer, files = _files(tmp_path, 10)
    state = explainer.state_dict()
    state["surrogate.head.weight"] = state["teacher.bias"] = torch.zeros(1)
    del state["mlps.5.bias"], state["backbone.blocks.1.norm1.weight"]
    torch.save(state, files[1])
    result = run(app, ["convert", *files, "--data", "imagenette", "--out", str(tmp_path / "bundle")])
    assert result.exit_code == 2
    assert "2 unknown: surrogate.head.weight, teacher.bias" in result.output
    assert "2 missing: backbone.blocks.1.norm1.weight, mlps.5.bias" in result.output
    assert not (tmp_path / "bundle").exists()


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    _, _, files = _files(tmp_path, 10)

    def refused(surrogate: str, explainer: str, data: str, text: str) -> None:
        result = run(app, ["convert", surrogate, explainer, "--data", data, "--out", str(tmp_path / "bundle")])
        assert result.exit_code == 2
        assert text in " ".join(result.output.split())

    refused(files[0], files[1], "pets", "has 10 outputs, the authors' surrogate for pets 37")
    refused(files[1], files[0], "imagenette", "attention_blocks.0.attn.proj.bias")
    refused(str(tmp_path / "none"), files[1], "imagenette", "there is no file")
    other = tmp_path / "other"
    other.mkdir()
    wider = _random(authors.Explainer(10, **{**SIZES, "width": 128, "heads": 2}), 3)
    torch.save(wider.state_dict(), other / "wide.ckpt")
    refused(files[0], str(other / "wide.ckpt"), "imagenette", "is not an explainer for")
    torch.save({"state_dict": wider.state_dict(), "epoch": 3}, other / "full.ckpt")
    refused(files[0], str(other / "full.ckpt"), "imagenette", "holds more than a dictionary of tensors")
    (other / "text.ckpt").write_text("no")
    refused(files[0], str(other / "text.ckpt"), "imagenette", "is not a state dict of torch")


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    _, _, files = _files(tmp_path, 10)
    Path(files[0]).write_bytes(pickle.dumps({"head.weight": _Bomb(tmp_path / "ran")}))
    result = run(app, ["convert", *files, "--data", "imagenette", "--out", str(tmp_path / "bundle")])
    assert result.exit_code == 2
    assert not (tmp_path / "ran").exists()


def test_no_other_module_reads_pickles() -> None:
    """The names of functions that unpickle occur nowhere else in the package, and nothing else imports the module."""
    source = Path(vitshap.__file__).parent
    readers, importers = set(), set()
    for path in source.rglob("*.py"):
        name = str(path.relative_to(source))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "pickle.load", "pickle.loads"):
                readers.add(name)
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                if {"pickle", "dill", "joblib", "cloudpickle"} & {one.partition(".")[0] for one in modules}:
                    readers.add(name)
                if "vitshap.reproduce.convert" in modules or (
                    getattr(node, "module", "") == "vitshap.reproduce" and "convert" in modules
                ):
                    importers.add(name)
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", name
    assert readers == {"reproduce/convert.py"}
    assert importers == {"cli.py"}
