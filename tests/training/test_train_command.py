"""``vitshap train``: from a folder of images to a bundle, killed and continued, with errors in one line."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.data import trees
from tests.training.small_training import accelerate_launch
from vitshap.cli import app
from vitshap.data import load_data, load_digits
from vitshap.explainers import Explainer, bundle
from vitshap.files import locked_folder
from vitshap.training.recipes import load_recipe
from vitshap.training.recipes import run as running
from vitshap.training.values.reference import open_data

SMALL = ["model.image_size=16", "model.patch_size=4", "model.hidden_size=16", "model.layers=1", "model.heads=2"]
STAGES = ("classifier", "surrogate", "explainer")


def _few(*, epochs: int = 2, batch: int = 8) -> list[str]:
    few = [f"{stage}.loop.{key}" for stage in STAGES for key in (f"epochs={epochs}", f"batch_size={batch}")]
    few += ["explainer.values.views=2", "explainer.values.coalitions=4", "explainer.validation_coalitions=4"]
    return [*few, "surrogate.validation_coalitions=2", "calibration.images=20", "calibration.evaluations=100"]


def _command(*arguments: str | Path, settings: list[str]) -> list[str]:
    return ["train", *map(str, arguments), *(part for setting in settings for part in ("--set", setting))]


def _invoke(*arguments: str | Path, settings: list[str] = []) -> tuple[int, str]:  # noqa: B006
    result = CliRunner().invoke(app, _command(*arguments, settings=settings))
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.class_folders(tmp_path_factory.mktemp("images"), {"cats": 24, "dogs": 20})


def test_a_folder_of_images_becomes_an_explainer(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = [*SMALL, *_few(), "data.seed=3"]
    code, said = _invoke(
        "folder", "--data", images, "--model", "vit", "--out", out, "--device", "cpu", settings=settings
    )
    assert code == 0, said
    for line in (
        "timing a few steps",
        "in total about ",
        "training the surrogate",
        "classifier on ",
        "equal values for all patches",
        "no standard errors: 4 validation images are fewer than the 20",
    ):
        assert line in said
    assert {path.name for path in out.iterdir()} == {*STAGES, "bundle", "images.json", "recipe.yaml", "summary.json"}
    summary = json.loads((out / "summary.json").read_text())
    assert 0 <= summary["classifier"]["accuracy"] <= 1
    losses = {"validation_loss", "test_loss", "epoch"}
    assert set(summary["surrogate"]) == {"divergence_8_of_16", "divergence_4_of_16", *losses}
    assert set(summary["classifier"]) == {"accuracy", "kappa", *losses}
    assert set(summary["explainer"]) == {"validation_uniform_loss", "test_uniform_loss", *losses}
    explainer = Explainer.from_pretrained(out / "bundle")
    assert explainer.surrogate.class_names == ["cats", "dogs"]
    photo = next((images / "cats").iterdir())
    explanation = explainer(photo, target="dogs")
    assert explanation.values.shape == (1, 16, 1)
    recorded = bundle.read(explainer.save_pretrained(tmp_path / "again"))["trained_on"]  # kept by a copy
    assert recorded == bundle.read(out / "bundle")["trained_on"]
    assert recorded["seed"] == 3
    assert str(images) not in json.dumps(recorded)
    held_out = open_data(explainer.surrogate, images, trained_on=recorded)
    assert [part.images for part in held_out] == [part.images for part in load_data(images, seed=3)]
    assert held_out.test.images != load_data(images).test.images
    best = load_file(out / "explainer" / "best.safetensors")
    torch.testing.assert_close(
        explainer.state_dict()["network.head.layers.1.weight"], best["network.head.layers.1.weight"]
    )
    code, said = _invoke(out / "recipe.yaml", "--out", out, "--resume", "--device", "cpu")
    assert code == 0, said
    assert said.count("already trained") == 3
    assert "in all" not in said


def test_the_values_of_a_trained_explainer_have_standard_errors(tmp_path: Path) -> None:
    code, said = _invoke("digits", "--out", tmp_path / "out", "--device", "cpu", settings=_few(batch=300))
    assert code == 0, said
    assert "on 20 validation images, 100 evaluations each" in said
    explainer = Explainer.from_pretrained(tmp_path / "out" / "bundle")
    assert explainer.calibration is not None
    assert explainer.calibration.images == 20
    stderr = explainer(load_digits().test[0][0][None]).stderr
    assert stderr is not None
    assert float(stderr.min()) > 0
    words = ("digits", "--out", tmp_path / "out", "--resume", "--device", "cpu")
    code, said = _invoke(*words, settings=[*_few(batch=300), "calibration.images=30"])
    assert code == 0, said
    again = Explainer.from_pretrained(tmp_path / "out" / "bundle").calibration
    assert again is not None
    assert again.images == 30
    code, said = _invoke(*words, settings=[*_few(batch=300), "calibration=null"])  # no other training is needed
    assert code == 0, said
    assert Explainer.from_pretrained(tmp_path / "out" / "bundle").calibration is None


def test_oversampling_that_the_output_does_not_allow_is_refused_before_any_training(tmp_path: Path) -> None:
    images, out = trees.class_folders(tmp_path / "images", {"a": 10, "b": 10}), tmp_path / "out"
    settings = ["model.output=sigmoid", "explainer.values.low_confidence_oversampling=2"]
    settings += [f"{stage}.loop.{key}" for stage in STAGES for key in ("epochs=1", "batch_size=8")]
    code, said = _invoke("digits", "--data", images, "--out", out, "--device", "cpu", settings=settings)
    assert code != 0
    assert 'low_confidence_oversampling needs output "softmax", not "sigmoid": set it to 1' in " ".join(said.split())
    assert not (out / "classifier").exists()


def test_killed_and_continued_equals_uninterrupted(tmp_path: Path) -> None:
    settings = ["explainer.values.allocation=shapley", *_few(epochs=3, batch=300)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    base = [sys.executable, "-m", "vitshap", *_command("digits", "--device", "cpu", settings=settings)]
    hits = 0
    moments = {killed / "classifier" / "log.jsonl": signal.SIGKILL, killed / "surrogate" / "done.json": signal.SIGTERM}
    for awaited, how in moments.items():
        process = subprocess.Popen(
            [*base, "--resume", "--out", str(killed)], env=environment, stdout=subprocess.DEVNULL
        )
        limit = time.monotonic() + 120
        while process.poll() is None and not awaited.exists() and time.monotonic() < limit:
            time.sleep(0.02)
        process.send_signal(how)
        hits += process.wait() != 0
    assert hits == 2
    assert not (killed / "explainer" / "done.json").exists()
    program = "import sys; from vitshap.training.recipes.run import *; from vitshap.training.recipes import load_recipe"
    program += "\nfor out in sys.argv[1:3]:"
    program += "\n    run(load_recipe('digits', settings=sys.argv[3:]), out, resume=True, device='cpu', estimate=False)"
    subprocess.run([sys.executable, "-c", program, str(killed), str(whole), *settings], env=environment, check=True)
    for stage in STAGES:
        one, other = (load_file(out / stage / "best.safetensors") for out in (killed, whole))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert (killed / "summary.json").read_text() == (whole / "summary.json").read_text()


def test_a_folder_is_one_runs_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with locked_folder(out):
        code, said = _invoke("digits", "--out", out, "--device", "cpu", settings=_few(epochs=1, batch=600))
    assert code == 2
    assert "another run of vitshap writes into" in said
    assert not out.exists()


@pytest.mark.filterwarnings("ignore:.*(validation|test) images")
def test_the_losses_of_a_summary_are_those_of_a_validation_on_test_images(tmp_path: Path) -> None:
    """Test images that are the validation images have their losses."""
    images = trees.class_folders(tmp_path / "images", {"cats": 12, "dogs": 12}, prefix="train/")
    trees.class_folders(images, {"cats": 6, "dogs": 6}, prefix="val/")
    shutil.copytree(images / "val", images / "test")
    for masked, procedure in ((False, "values"), (True, "paper")):
        settings = [*SMALL, *_few(), f"masked={masked}", f"explainer.procedure={procedure}"]
        settings += ["classifier.class_weights=balanced"]
        recipe = load_recipe("folder", data=str(images), model="vit", settings=settings)
        running.run(recipe, tmp_path / procedure, device="cpu", estimate=False)
        summary = json.loads((tmp_path / procedure / "summary.json").read_text())
        for stage in ("classifier", "explainer") if masked else STAGES:
            assert summary[stage]["test_loss"] == pytest.approx(summary[stage]["validation_loss"], rel=1e-4)
            lines = [json.loads(text) for text in (tmp_path / procedure / stage / "log.jsonl").read_text().splitlines()]
            kept = next(line for line in lines if line["epoch"] == summary[stage]["epoch"])
            assert kept["loss"] == summary[stage]["validation_loss"]


def test_what_auto_stands_for_is_written_down_and_kept(images: Path, tmp_path: Path) -> None:
    few = [setting for setting in _few(epochs=1) if "batch_size" not in setting]
    few += [f"{stage}.loop.{key}=auto" for stage in STAGES for key in ("batch_size", "learning_rate")]
    few += [f"{stage}.compiled=auto" for stage in STAGES]
    base = ["folder", "--data", images, "--model", "vit", "--out", tmp_path / "out", "--device", "cpu"]
    code, said = _invoke(*base, settings=[*SMALL, *few])
    assert code == 0, said
    assert "surrogate: 1 epochs, batch size 32, learning rate 1e-05; explainer: 1 epochs" in " ".join(said.split())
    path = tmp_path / "out" / "recipe.yaml"
    stored = load_recipe(path)
    assert [getattr(stored, stage).loop.numbers() for stage in STAGES] == [(1, 32, 1e-5), (1, 32, 1e-5), (1, 32, 1e-4)]
    assert [getattr(stored, stage).compiled for stage in STAGES] == [False] * 3, "on a CPU"
    changed = path.read_text().replace("batch_size: 32", "batch_size: 16")  # as another machine might have chosen
    path.write_text(changed)
    code, said = _invoke(*base, "--resume", settings=[*SMALL, *few])
    assert code == 0, said
    assert path.read_text() == changed


@pytest.mark.long
def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    settings = [
        "classifier.class_weights=balanced",
        "explainer.values.low_confidence_oversampling=3",
        *_few(epochs=2, batch=300),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    machines = [
        accelerate_launch(2, "--num_machines", "2", "--machine_rank", str(rank), "--main_process_ip", "127.0.0.1")
        for rank in range(2)
    ]
    port = ["--main_process_port", str(_free_port())]
    ways = {
        "one process": [[sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"]],
        "accelerate launch": [accelerate_launch(2)],
        "two machines": [[*machine, *port] for machine in machines],
    }
    logs = []
    for name, launches in ways.items():
        out = tmp_path / name
        train = ["-m", "vitshap", *_command("digits", "--device", "cpu", "--out", out, settings=settings)]
        running = [
            subprocess.Popen(
                [*launch, *train], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for launch in launches
        ]
        said = [process.communicate(timeout=600) for process in running]
        assert [process.returncode for process in running] == [0] * len(running), said
        assert "".join(stdout for stdout, _ in said).count("the explainer is in") == 1
        logs.append(
            [json.loads(line) for stage in STAGES for line in (out / stage / "log.jsonl").read_text().splitlines()]
        )
    for other in logs[1:]:
        for one, two in zip(logs[0], other, strict=True):
            assert one == pytest.approx(two, abs=1e-4, rel=1e-3)


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def test_a_masked_classifier_is_its_own_surrogate(tmp_path: Path) -> None:
    recipe = load_recipe("digits", settings=["masked=true", *_few(epochs=1, batch=600)])
    explainer = running.run(recipe, tmp_path / "out", device="cpu", estimate=False)
    assert not (tmp_path / "out" / "surrogate").exists()
    best = load_file(tmp_path / "out" / "classifier" / "best.safetensors")
    assert all(torch.equal(best[name], tensor) for name, tensor in explainer.surrogate.state_dict().items())


def test_a_net_is_explained_as_it_is(images: Path, tmp_path: Path) -> None:
    """A transformers folder with three classes of its own, neither trained nor given another head."""
    from transformers import ViTConfig, ViTForImageClassification

    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    names = {0: "x", 1: "y", 2: "z"}
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, id2label=names, **size)).save_pretrained(
        tmp_path / "net"
    )
    (tmp_path / "net" / "preprocessor_config.json").write_text(
        json.dumps({"size": {"height": 16, "width": 16}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]})
    )
    settings = ["classifier=null", "surrogate=null", "explainer.loop.epochs=1", "explainer.loop.batch_size=8"]
    settings += ["explainer.values.views=1", "explainer.values.coalitions=4", "explainer.validation_coalitions=4"]
    recipe = load_recipe("folder", data=str(images), model=str(tmp_path / "net"), settings=settings)
    explainer = running.run(recipe, tmp_path / "out", device="cpu", estimate=False)
    assert explainer.surrogate.class_names == ["x", "y", "z"]
    assert explainer.surrogate.preprocess.mean == (0.1, 0.2, 0.3)
    assert "classifier" not in json.loads((tmp_path / "out" / "summary.json").read_text())


def test_weights_of_a_timm_net_with_another_head(images: Path, tmp_path: Path) -> None:
    import timm

    torch.manual_seed(1)
    given = timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=32)
    save_file({name: tensor.half() for name, tensor in given.state_dict().items()}, tmp_path / "weights.safetensors")
    from vitshap.data import load_data
    from vitshap.training.recipes.run import build_model

    data = load_data(images).train
    model_settings = ["model.image_size=32", f"model.weights={tmp_path / 'weights.safetensors'}"]
    settings = load_recipe("folder", model="vit_tiny_patch16_224", settings=model_settings).model
    built = build_model(settings, data)
    assert built.num_classes == 2
    torch.testing.assert_close(built.net.blocks[3].mlp.fc1.weight, given.blocks[3].mlp.fc1.weight.half().float())
    save_file({f"net.{name}": tensor for name, tensor in built.net.state_dict().items()}, tmp_path / "best.safetensors")
    own = [*model_settings[:1], f"model.weights={tmp_path / 'best.safetensors'}"]  # as a training of ours stores them
    again = build_model(load_recipe("folder", model="vit_tiny_patch16_224", settings=own).model, data)
    assert again.fingerprint() == built.fingerprint()
    chosen = [*model_settings, "model.head_rows=[4, 2]", "model.as_transformers=true"]
    converted = build_model(load_recipe("folder", model="vit_tiny_patch16_224", settings=chosen).model, data)
    torch.testing.assert_close(converted.net.classifier.weight, given.head.weight[[4, 2]].half().float())
    assert converted.class_names == ["cats", "dogs"]
    assert converted.preprocess == built.preprocess
    for wrong, said in (
        ("model.name=deit_tiny_distilled_patch16_224", "does not hold"),
        ("model.head_rows=[9, 1]", "of the head's rows 0 to 6"),
    ):
        with pytest.raises(ValueError, match=said):
            build_model(
                load_recipe("folder", settings=["model.name=vit_tiny_patch16_224", *model_settings, wrong]).model, data
            )


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        ([], [], "known: chest, digits"),
        (["digit"], [], 'did you mean "digits"?'),
        (["digits"], ["explainer.lop.epochs=1"], 'did you mean "loop"?'),
        (
            ["digits"],
            ["explainer.loop.epochs=many"],
            "explainer.loop.epochs must be a whole number or auto; got 'many'",
        ),
        (["folder"], [], "give a folder or an archive with --data PATH"),
        (["folder", "--data", "nowhere"], [], "nowhere is not a data set: there is no such file or folder"),
        (["folder", "--data", "IMAGES", "--model", "vit_tinny"], [], "timm has no model 'vit_tinny'"),
        (["folder", "--data", "IMAGES", "--model", "./nowhere"], [], "there is no folder ./nowhere"),
        (
            ["folder", "--data", "IMAGES", "--model", "vit"],
            [*SMALL, "classifier.loop.batch_size=64"],
            "fewer than one batch of 64",
        ),
        (["digits", "--device", "tpu"], [], "--device is auto, cpu or cuda"),
        (["folder", "--data", "IMAGES"], ["model.weights=nowhere.safetensors"], "cannot be read as safetensors"),
        (["digits"], ["model.image_size=16"], "is not of size (16, 16)"),
    ],
)
def test_errors_of_the_user_are_one_line(
    arguments: list[str], settings: list[str], said: str, images: Path, tmp_path: Path
) -> None:
    if not arguments or arguments[0] != "folder" or "fewer" not in said:
        settings = [
            *settings,
            "classifier.loop.batch_size=8",
            "surrogate.loop.batch_size=8",
            "explainer.loop.batch_size=8",
        ]
    given = [str(images) if argument == "IMAGES" else argument for argument in arguments]
    result = CliRunner().invoke(app, _command(*given, "--out", tmp_path / "out", settings=settings))
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_and_another_recipe_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    code, said = _invoke("digits", "--out", out)
    assert code == 2
    assert "is not empty" in said
    code, said = _invoke("digits", "--out", out, "--resume")
    assert code == 2
    assert "holds no run that could be resumed" in said
    settings = ["classifier.loop.epochs=1"]
    from vitshap.training.recipes.settings import to_plain, to_yaml

    (out / "recipe.yaml").write_text(to_yaml(to_plain(load_recipe("digits", settings=settings))))
    (out / "classifier" / "checkpoints").mkdir(parents=True)  # it has started
    code, said = _invoke("digits", "--out", out, "--resume")
    assert code == 2
    assert "classifier.loop.epochs: 1 / 40" in said
    code, said = _invoke("digits", "--out", out, settings=settings)
    assert code == 2
    assert "continue it with --resume" in said
    (out / "recipe.yaml").write_text("explainer: {values: {unsure: 1}}")
    code, said = _invoke("digits", "--out", out, "--resume")
    assert code == 2
    assert "of another version (unknown key explainer.values.unsure" in " ".join(said.split())


def test_list_and_keys() -> None:
    code, said = _invoke("--list")
    assert code == 0
    assert "paper-imagenette" in said
    assert "14.1 minutes, measured" in " ".join(said.split())
    code, said = _invoke("digits", "--keys", settings=["explainer.loop.epochs=77"])
    assert code == 0
    assert "explainer.loop.epochs" in said
    assert "77" in said
    assert "Gradients are clipped to this norm." in " ".join(said.split())
