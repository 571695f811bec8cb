"""Failures of ``vitshap train``: reported in one line with exit code 2, before hours are spent, and nothing is lost."""

import json
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification
from typer.testing import CliRunner

from tests.data import trees
from vitshap import files
from vitshap.cli import app
from vitshap.data import load_data
from vitshap.errors import user_errors
from vitshap.explainers import Explainer
from vitshap.training.loop import BEST
from vitshap.training.recipes import load_recipe
from vitshap.training.recipes.run import build_model
from vitshap.training.recipes.settings import to_plain, to_yaml

SMALL = ["model.image_size=8", "model.patch_size=4", "model.hidden_size=16", "model.layers=1", "model.heads=2"]
FEW = [f"{s}.loop.{key}" for s in ("classifier", "surrogate", "explainer") for key in ("epochs=1", "batch_size=8")]
FEW += ["explainer.values.views=1", "explainer.values.coalitions=4", "explainer.validation_coalitions=4"]


def _train(images: Path, out: Path, *options: str, model: str | Path = "vit", settings: list[str] = SMALL) -> Any:
    sets = [part for setting in [*settings, *FEW] for part in ("--set", setting)]
    words = ["train", "folder", "--data", images, "--model", model, "--out", out, "--device", "cpu"]
    return CliRunner().invoke(app, [*map(str, words), *sets, *options])


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_one_bad_image_is_no_reason_to_stop_wherever_it_is(tmp_path: Path) -> None:
    images = trees.class_folders(tmp_path / "images", {"cats": 70, "dogs": 50})
    splits = load_data(images)
    (images / splits.test.images[1].relative_to(images)).write_bytes(b"no image")  # 1 of 120, but of 12 in its part
    result = _train(images, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "11 test images" in result.output
    for i in (2, 3):
        (images / splits.train.images[i].relative_to(images)).write_bytes(b"no image %d" % i)
    result = _train(images, tmp_path / "other")
    assert result.exit_code == 2
    assert "of 120 images cannot be read, which is more than 1 %" in result.output
    assert not (tmp_path / "other").exists(), "reported before anything is started, so that it can be tried again"


def test_a_run_is_not_resumed_with_other_images(tmp_path: Path) -> None:
    images = trees.class_folders(tmp_path / "images", {"cats": 24, "dogs": 20})
    out = tmp_path / "out"
    assert _train(images, out).exit_code == 0
    moved = next((images / "cats").iterdir())
    moved = moved.rename(moved.with_stem("another"))
    renamed = _train(images, out, "--resume")
    assert renamed.exit_code == 2
    assert "was started with other images (" in renamed.output
    moved.unlink()
    fewer = _train(images, out, "--resume")
    assert fewer.exit_code == 2
    assert " then, " in fewer.output


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("images.json", "[" * 200_000, "images.json is damaged: nested too deeply"),
        ("images.json", "[1, 2]", "images.json is damaged"),
        ("images.json", "no JSON", "images.json is damaged"),
        ("recipe.yaml", "[" * 200_000, "recipe.yaml is nested too deeply"),
    ],
)
def test_damaged_records_of_a_run(tmp_path: Path, name: str, text: str, said: str) -> None:
    images = trees.class_folders(tmp_path / "images", {"cats": 24, "dogs": 20})
    out = tmp_path / "out"
    recipe = load_recipe("folder", data=str(images), model="vit", settings=[*SMALL, *FEW])
    files.write_text(out / "recipe.yaml", to_yaml(to_plain(recipe)))
    files.write_text(out / name, text)
    result = _train(images, out, "--resume")
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert len(result.stderr.strip().splitlines()) == 1


def test_all_batches_that_are_too_large_are_named_at_once(tmp_path: Path) -> None:
    images = trees.class_folders(tmp_path / "images", {"cats": 24, "dogs": 20})
    sets = [f"{name}.loop.batch_size=64" for name in ("classifier", "explainer")]
    result = _train(images, tmp_path / "out", *(part for setting in sets for part in ("--set", setting)))
    assert result.exit_code == 2
    assert "(--set classifier.loop.batch_size=N --set explainer.loop.batch_size=N)" in result.output


def test_a_plain_vit_whatever_library_the_recipe_has(tmp_path: Path) -> None:
    assert load_recipe("folder").model.library == "timm"
    data = load_data(trees.class_folders(tmp_path / "images", {"cats": 24, "dogs": 20})).train
    settings = load_recipe("folder", settings=["model.name=vit", *SMALL]).model
    assert isinstance(build_model(settings, data).net, ViTForImageClassification)


def test_settings_of_a_training_that_has_not_started_may_change(tmp_path: Path) -> None:
    images = trees.class_folders(tmp_path / "images", {"cats": 24, "dogs": 20})
    out = tmp_path / "out"
    assert _train(images, out, "--set", "explainer.network.extra_block=false").exit_code == 0
    shutil.rmtree(out / "explainer")
    assert _train(images, out, "--resume", "--set", "surrogate=null").exit_code == 2
    refused = _train(images, out, "--resume", "--set", "surrogate.coalitions=3")
    assert refused.exit_code == 2
    assert "surrogate.coalitions: 1 / 3" in refused.output
    assert "explainer" not in refused.output
    resumed = _train(images, out, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "surrogate: already trained" in resumed.output
    best = out / "surrogate" / BEST
    best.write_bytes(best.read_bytes()[:100])
    damaged = _train(images, out, "--resume")
    assert damaged.exit_code == 2
    assert f"{best.name} cannot be read as safetensors" in damaged.output


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Images, and a net whose classes are theirs in another order."""
    root = tmp_path_factory.mktemp("zoo")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    names = {0: "zebra", 1: "ant", 2: "monkey"}
    config = ViTConfig(image_size=8, patch_size=4, id2label=names, label2id={v: k for k, v in names.items()}, **size)
    ViTForImageClassification(config).save_pretrained(root / "net")
    says = {"image_mean": 0.5, "image_std": None, "rescale_factor": None}
    (root / "net" / "preprocessor_config.json").write_text(json.dumps(says))
    return trees.class_folders(root / "images", dict.fromkeys(("ant", "monkey", "zebra"), 16)), root / "net"


def test_a_net_that_is_not_trained_keeps_its_own_names(zoo: tuple[Path, Path], tmp_path: Path) -> None:
    images, net = zoo
    none = [setting for setting in FEW if not setting.startswith("classifier")]
    sets = [part for setting in ["classifier=null", *none] for part in ("--set", setting)]
    words = ["train", "folder", "--data", images, "--model", net, "--out", tmp_path / "out", "--device", "cpu"]
    result = CliRunner().invoke(app, [*map(str, words), *sets])
    assert result.exit_code == 0, result.output
    assert Explainer.from_pretrained(tmp_path / "out" / "bundle").surrogate.class_names == ["zebra", "ant", "monkey"]
    assert "accuracy" not in result.output, "its classes are not in the order of the folders"
    trained = _train(images, tmp_path / "trained", model=net, settings=[])
    assert trained.exit_code == 0, trained.output
    assert Explainer.from_pretrained(tmp_path / "trained" / "bundle").surrogate.class_names == [
        "ant",
        "monkey",
        "zebra",
    ]


def test_weights_that_do_not_fit_are_not_drawn_instead(zoo: tuple[Path, Path], tmp_path: Path) -> None:
    images, net = zoo
    for spoiled in ("wide", "short", "shallow"):
        folder = tmp_path / spoiled
        folder.mkdir()
        for file in net.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    (tmp_path / "wide" / "config.json").write_text(json.dumps({**config, "intermediate_size": 24}))
    shallow = {key: value for key, value in load_file(net / "model.safetensors").items() if ".0." not in key}
    save_file(shallow, tmp_path / "shallow" / "model.safetensors", {"format": "pt"})
    weights = tmp_path / "short" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    expected = {
        "wide": "do not fit its configuration",
        "short": "cannot be loaded with transformers",
        "shallow": "tensors of its blocks",
    }
    for spoiled, said in expected.items():
        result = _train(images, tmp_path / "out", model=tmp_path / spoiled, settings=[])
        assert result.exit_code == 2, result.output
        assert said in " ".join(result.output.split())


def test_parts_by_other_names_are_parts(tmp_path: Path) -> None:
    for part in ("training_set", "test_set"):
        trees.class_folders(tmp_path / "both", {"cats": 6, "dogs": 6}, prefix=f"{part}/")
    splits = load_data(tmp_path / "both")
    assert splits.train.class_names == ("cats", "dogs")
    assert len(splits.test) == 12
    trees.class_folders(tmp_path / "half", {"cats": 6, "dogs": 6}, prefix="test/")
    trees.class_folders(tmp_path / "half", {"cats": 6, "dogs": 6}, prefix="val/")
    with pytest.raises(ValueError, match="but none of training images"):
        load_data(tmp_path / "half")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.patch_size=0", "model.patch_size must be at least 1"),
        ("model.hidden_size=-4", "model.hidden_size must be at least 1"),
        ("model.patch_size=8", "the image is a single patch"),
        ("explainer.loop.max_grad_norm=-1", "explainer.loop.max_grad_norm must be positive"),
        ("classifier.class_weights=[1,2,3]", "class_weights must be 2 numbers"),
    ],
)
def test_settings_that_cannot_work(setting: str, said: str, tmp_path: Path) -> None:
    images = trees.class_folders(tmp_path / "images", {"cats": 24, "dogs": 20})
    result = _train(images, tmp_path / "out", "--set", setting)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_in_the_midst_of_a_long_call(number: signal.Signals) -> None:
    program = """
import signal, torch
from vitshap.errors import user_errors
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command does
signal.signal(signal.SIGINT, signal.default_int_handler)  # which jobs in the background of a shell ignore
matrix = torch.rand(6000, 6000)
with user_errors():
    print("ready", flush=True)
    torch.linalg.eigvals(matrix)  # minutes
print("finished")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)  # it is computing by now
    process.send_signal(number)
    said, errors = process.communicate()
    assert process.returncode == 128 + number
    assert said == ""
    assert errors == "error: interrupted; the same command with --resume continues\n"


def test_commands_show_no_warnings_of_what_pytorch_puts_right_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(), user_errors():
        warnings.simplefilter("always")
        warnings.warn("Attempting to run cuBLAS, but there was no current CUDA context! (Triggered)", stacklevel=1)
        warnings.warn("another\n warning", stacklevel=1)
    assert capsys.readouterr().err == "warning: another warning\n"
