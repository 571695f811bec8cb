"""Exported ONNX graphs against torch: families, precisions, players, the script without torch, and what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor, nn

from tests.explaining import made
from tests.full_disk import full_disk
from tests.models import nets
from vitshap.errors import CommandError
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.exporting import CannotExport, export, export_onnx, graphs
from vitshap.exporting.command import Format, Options, PrecisionName
from vitshap.exporting.command import run as run_command
from vitshap.models import MaskedModel, Preprocess, wrap

TOLERANCE = 1e-4


def explainer_of(model: MaskedModel, **config: Any) -> Explainer:
    """An explainer whose values differ from patch to patch, as after training."""
    torch.manual_seed(5)
    made = Explainer(model, ExplainerConfig(**config)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made


def small(name: str = "transformers ViT", **wrapping: Any) -> Explainer:
    options = {"preprocess": made.PREPROCESS, "class_names": made.NAMES, **wrapping}
    return explainer_of(wrap(nets.build(name), check=False, image_size=nets.image_size(name), **options))


def run(folder: Path, name: str, **inputs: np.ndarray) -> list[np.ndarray]:
    """Run a graph as anybody would."""
    session = onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def hundred_photos(preprocess: Any) -> Tensor:
    """Parts of scikit-learn's two photos, and digits."""
    photos = [Image.fromarray(array) for array in load_sample_images().images]
    parts = [
        photo.crop((x, y, x + 160, y + 120)) for photo in photos for x in range(0, 480, 80) for y in (0, 100, 200, 300)
    ]
    digits = [Image.fromarray((array * 15.9).astype(np.uint8)) for array in load_digits().images[: 100 - len(parts)]]
    return torch.stack([preprocess(photo) for photo in (*parts, *digits)])


def agrees(explainer: Explainer, folder: Path, pixels: Tensor) -> None:
    """Both graphs equal torch, for whole images and for coalitions of any size."""
    model = explainer.surrogate
    expected = explainer(pixels)
    values, predictions, base = run(folder, "explainer", pixels=pixels.numpy())
    assert np.abs(values - expected.values.numpy()).max() < TOLERANCE
    assert np.abs(predictions - expected.prediction.numpy()).max() < TOLERANCE
    assert np.abs(base - expected.base_values.numpy()).max() < TOLERANCE
    assert np.abs(base + values.sum(1) - predictions).max() < TOLERANCE
    coalitions = torch.rand(len(pixels), 3, model.num_players) < torch.rand(len(pixels), 3, 1)
    coalitions[:, 0], coalitions[:, 1] = False, True
    (played,) = run(folder, "game", pixels=pixels.numpy(), coalitions=coalitions.numpy())
    assert np.abs(played - model.game(pixels)(coalitions).numpy()).max() < TOLERANCE


class Exported(NamedTuple):
    """An explainer and its folder."""

    explainer: Explainer
    folder: Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A small net of transformers, exported once."""
    explainer, folder = small(), tmp_path_factory.mktemp("exported") / "out"
    found = export_onnx(explainer, folder, name="insects")
    assert max(found.values, found.predictions) < TOLERANCE
    assert found.correlation > 0.9999
    return Exported(explainer, folder)


@pytest.fixture
def stored_graphs(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> Explainer:
    """Exports of this explainer take the graphs that were made before: tracing takes seconds."""
    found = {name: onnx.load(exported.folder / f"{name}.onnx") for name in ("game", "explainer")}
    monkeypatch.setattr(export, "make_graphs", lambda explainer, *, one_graph: found)
    return exported.explainer


def test_graphs_equal_torch_on_a_hundred_photos(exported: Exported) -> None:
    explainer, folder = exported
    pixels = hundred_photos(made.PREPROCESS)
    assert len(pixels) == 100
    agrees(explainer, folder, pixels)
    agrees(explainer, folder, pixels[:1])
    for graph in ("game", "explainer"):
        content = (folder / f"{graph}.onnx").read_bytes()
        assert b"site-packages" not in content, "paths of the machine"
        assert b".py" not in content
    described = json.loads((folder / "description.json").read_text())
    assert described["class_names"] == made.NAMES
    assert described["compared_with_torch"]["images"] == 3
    assert described["sha256"]["game.onnx"] == export.sha256(folder / "game.onnx")


@pytest.mark.long
@pytest.mark.parametrize("name", nets.FAMILIES)
def test_every_family(name: str, tmp_path: Path) -> None:
    size = nets.image_size(name)
    preprocess = Preprocess(size, size, (0.5,) * 3, (0.5,) * 3)
    explainer = small(name, preprocess=preprocess)
    export_onnx(explainer, tmp_path / "out")
    agrees(explainer, tmp_path / "out", hundred_photos(preprocess))


@pytest.mark.long
@pytest.mark.parametrize(
    "wrapping",
    [{"players": 2, "output": "sigmoid"}, {"removal": "softmax"}, {"removal": "pixels", "trunk": "unet"}],
    ids=["blocks", "softmax", "pixels and U-Net"],
)
def test_players_removals_and_trunks(wrapping: dict[str, Any], tmp_path: Path) -> None:
    config = {"trunk": wrapping.pop("trunk"), "init": "scratch"} if "trunk" in wrapping else {}
    labels = {}
    if wrapping.get("removal") == "softmax":  # tokens of no player are always kept, so v(0) differs between images
        labels = {"players": torch.arange(16).view(4, 4).clamp(max=11).where(torch.arange(16).view(4, 4) < 12, -1)}
    explainer = explainer_of(wrap(nets.build("transformers ViT"), check=False, **wrapping, **labels), **config)
    export_onnx(explainer, tmp_path / "out")
    agrees(explainer, tmp_path / "out", nets.images("transformers ViT", n=3))
    assert (json.loads((tmp_path / "out" / "description.json").read_text())["base"] is None) == bool(labels)


def test_smaller_weights(stored_graphs: Explainer, tmp_path: Path) -> None:
    pixels = hundred_photos(made.PREPROCESS)[:8]
    sizes, found = {}, {}
    for precision in get_args(graphs.Precision):
        folder = tmp_path / precision
        export_onnx(stored_graphs, folder, precision=precision)
        sizes[precision] = (folder / "explainer.onnx").stat().st_size
        found[precision] = export.compare(stored_graphs, folder, pixels)
    assert sizes["float32"] > sizes["float16"] > sizes["int8"]
    assert found["float32"].values < found["float16"].values < found["int8"].values
    assert found["float16"].correlation > 0.9999
    assert found["int8"].correlation > 0.95
    stored = onnx.load(tmp_path / "float16" / "explainer.onnx").graph.initializer
    assert any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in stored)


def test_very_large_weights_are_stored_beside_the_graph(
    stored_graphs: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LARGEST_FILE", 10_000)
    for precision in get_args(graphs.Precision):
        folder = tmp_path / precision
        export_onnx(stored_graphs, folder, precision=precision)
        assert (folder / "explainer.onnx.data").stat().st_size > 10_000
        assert "explainer.onnx.data" in json.loads((folder / "description.json").read_text())["sha256"]
        assert export.compare(stored_graphs, folder, nets.images("transformers ViT")).correlation > 0.9


def test_the_script_runs_where_torch_cannot_be_imported(exported: Exported, tmp_path: Path) -> None:
    explainer, folder = exported
    for missing in ("torch", "vitshap", "transformers"):
        (tmp_path / "none" / missing).mkdir(parents=True)
        (tmp_path / "none" / missing / "__init__.py").write_text(f"raise ImportError('{missing} is not here')\n")
    photos = made.photos(tmp_path / "photos", 2)
    grey = np.asarray(made.picture(8).convert("L"))
    deep = {
        "16.png": grey.astype(np.uint16) * 257,
        "32.tif": grey.astype(np.int32) * 200,
        "f.tif": np.float32(grey) / 255,
    }
    for name, levels in deep.items():
        photos.append(tmp_path / "photos" / name)
        Image.fromarray(levels).save(photos[-1])
    transparent = made.picture(7).convert("RGBA")
    transparent.putalpha(Image.linear_gradient("L").resize(transparent.size))
    transparent.save(photos[1])
    blocked = {"PYTHONPATH": str(tmp_path / "none"), "PATH": ""}

    def script(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(folder / "explain.py"), *arguments]
        return subprocess.run(command, env=blocked, capture_output=True, text=True, check=False)

    done = script(*map(str, photos), "--top", "5", "--json")
    assert done.returncode == 0, done.stderr
    for photo, line in zip(photos, done.stdout.splitlines(), strict=True):
        found, expected = json.loads(line), explainer(photo)
        assert found["predictions"] == pytest.approx(expected.prediction[0].tolist(), abs=TOLERANCE)
        for one in found["classes"]:
            values = expected.values[0, :, made.NAMES.index(one["class"])]
            assert one["values"] == pytest.approx(values.tolist(), abs=TOLERANCE)
            assert set(one) == {"class", "base", "values"}, "it has no standard errors"
    said = script(str(photos[0])).stdout.splitlines()
    assert len(said) == 1 + 4
    assert made.NAMES[int(explainer(photos[0]).prediction.argmax())] in said[0]
    (tmp_path / "words.png").write_text("these are words")
    gone = script(str(tmp_path / "none.png"), str(photos[0]), str(tmp_path / "words.png"), str(photos[1]), "--json")
    assert gone.returncode == 1, "some photos could not be read"
    assert [line.partition(" cannot")[0] for line in gone.stderr.splitlines()] == [
        f"error: {tmp_path / name}" for name in ("none.png", "words.png")
    ]
    assert [json.loads(line)["photo"] for line in gone.stdout.splitlines()] == [str(photo) for photo in photos[:2]]
    check = subprocess.run([sys.executable, "-c", "import torch"], env=blocked, capture_output=True, check=False)
    assert check.returncode != 0, "the test itself: torch must not be there"


@pytest.mark.parametrize(("precision", "rounding"), [("float16", ""), ("int8", ", the rounding of int8 not included")])
def test_int8_says_that_its_rounding_is_not_in_the_errors(
    stored_graphs: Explainer, precision: graphs.Precision, rounding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert export.description(stored_graphs, precision, "insects")["stderr_from"] is None
    monkeypatch.setattr(stored_graphs, "calibration", made.calibration())
    said = export.description(stored_graphs, precision, "insects")["stderr_from"]
    assert said == f"calibrated on 120 held-out images{rounding}"


@pytest.mark.parametrize("unit", ["probability", "output"])
def test_the_script_has_the_explainers_standard_errors(
    stored_graphs: Explainer, tmp_path: Path, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_graphs, "calibration", made.calibration())
    folder = tmp_path / "out"
    export_onnx(stored_graphs, folder)
    described = json.loads((folder / "description.json").read_text())
    (folder / "description.json").write_text(json.dumps({**described, "unit": unit}))
    photos = made.photos(tmp_path / "photos", 3)

    def script(*arguments: str) -> str:
        command = [sys.executable, str(folder / "explain.py"), *map(str, photos), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    shown = script()
    for photo, line in zip(photos, script("--top", "5", "--json").splitlines(), strict=True):
        found, expected = json.loads(line), stored_graphs(photo)
        order = torch.tensor([[made.NAMES.index(one["class"]) for one in found["classes"]]])
        values = torch.tensor([one["values"] for one in found["classes"]]).T[None]
        predictions = torch.tensor([found["predictions"]])
        formula = made.calibration().stderr(values.double(), order, predictions, unit == "probability")[0].T
        for one, errors, index in zip(found["classes"], formula.tolist(), order[0].tolist(), strict=True):
            assert one["stderr"] == pytest.approx(errors, rel=TOLERANCE)
            if unit == "probability":
                assert expected.stderr is not None
                assert one["stderr"] == pytest.approx(expected.stderr[0, :, index].tolist(), rel=1e-3)
                for got, end in zip(one["interval"], expected.interval(), strict=True):
                    assert got == pytest.approx(end[0, :, index].tolist(), abs=TOLERANCE)
        assert found["stderr_from"] == "calibrated on 120 held-out images"
        most = max(found["classes"][0]["stderr"])
        assert f"standard error up to {most:.4f}, calibrated on 120 held-out images" in shown


class Bessel(nn.Module):
    """A network with an operation that ONNX lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.special.bessel_j0(images).mean((2, 3)))
        return logits


def test_an_operation_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    model = wrap(Bessel(), removal="pixels", image_size=32, output="softmax", check=False)
    explainer = explainer_of(model, trunk="unet", init="scratch")
    with pytest.raises(CannotExport, match=r"Bessel.*operation \w+\.\w*bessel_j0.*vitshap serve"):
        export_onnx(explainer, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_graphs_that_differ_from_torch_are_not_written(
    stored_graphs: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "TOLERANCE", 1e-12)
    with pytest.raises(CommandError, match="differ from torch"):
        export_onnx(stored_graphs, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(stored_graphs: Explainer, tmp_path: Path) -> None:
    with full_disk(50_000), pytest.raises(OSError, match="could not be written"):
        export_onnx(stored_graphs, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_weights_beyond_sixteen_bits(exported: Exported) -> None:
    graph = onnx.load(exported.folder / "explainer.onnx")
    tensor = max(graph.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[0] = 1e6
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    with pytest.raises(CannotExport, match="16 bits"):
        graphs.converted(graph, "float16")


def test_a_folder_that_is_not_free(exported: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(exported.folder.iterdir())
    for out, what in ((exported.folder, "not empty"), (before[0], "a file")):
        with pytest.raises(SystemExit) as ended:
            run_command(Options("imagenette-deit-tiny", format=Format.onnx, out=out))
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert what in said
        assert said.count("\n") == 1
    assert sorted(exported.folder.iterdir()) == before


@pytest.mark.long
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, out = made.bundle(tmp_path / "insects"), tmp_path / "out"
    options = Options(str(bundle), format=Format.onnx, out=out, precision=PrecisionName.int8)
    assert run_command(options) == 0
    assert "correlation of values 0.9" in capsys.readouterr().out
    assert json.loads((out / "description.json").read_text())["name"] == "insects"


def test_missing_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r'onnxruntime.*pip install "vitshap\[export\]"'):
        export_onnx(small(), tmp_path / "out")


def test_half_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="float32 on the CPU"):
        export_onnx(small().half(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
