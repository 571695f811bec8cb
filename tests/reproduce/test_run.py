"""One run of all steps: every table and figure is filled, from its own results, and a second run does nothing."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

from tests.reproduce.small import TINY
from vitshap.cli import app
from vitshap.data import pixels
from vitshap.experiments import ablation
from vitshap.files import FolderInUse, locked_folder, write_text
from vitshap.reproduce import command, roar, shapley, store
from vitshap.reproduce.context import Context, Sources
from vitshap.reproduce.measurements import reference_images
from vitshap.reproduce.profiles import PROFILES, SMALL
from vitshap.reproduce.runner import Runner, Task, beside, named_tasks, tasks_of
from vitshap.reproduce.shapley import predictions, stored_truth, stored_values
from vitshap.reproduce.sources import of_earlier_training, source_lines
from vitshap.reproduce.specifications import ALL_METHODS, ESTIMATORS, EXPLAINERS, MAIN_METHODS, SPECIFICATIONS
from vitshap.reproduce.steps import RETRAINED
from vitshap.reproduce.store import SHARD, Store, rounded
from vitshap.reproduce.views import ROWS, Viewer, crossing
from vitshap.training import loop

run = CliRunner().invoke
LARGEST, FILES = 28 * 2**20, 8
"""Bytes and files that a finished step leaves at most, so that it can be moved to another machine."""


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_every_table_and_figure_is_filled(finished: Runner, name: str) -> None:
    view = Viewer(TINY, finished.store).view(SPECIFICATIONS[name])
    one, retrained = SPECIFICATIONS[name], TINY.scale.retrained_methods
    left_out = len(one.methods) - len(retrained) if one.kind == "roar" else 0  # by each of two evaluators
    assert view.filled > 0
    assert view.not_run == 2 * left_out * len(one.metrics)
    assert view.sources, "every number says where it comes from"
    assert all("smoke" in line and "seed 0" in line for line in source_lines(view.sources))
    assert view.tables or view.charts or view.pictures
    assert not any("not run" in table.to_markdown() for table in view.tables)
    assert all(path.stat().st_size > 1000 for path in view.pictures)


def test_a_view_shows_the_numbers_of_its_step_and_of_the_paper(finished: Runner) -> None:
    view = Viewer(TINY, finished.store).view(SPECIFICATIONS["table-1"])
    measured = finished.store.find("digits", "evaluate-main-rivals").values["target"]["metrics"]
    row = next(row for row in view.tables[0].rows if row["method"].value == "LRP")
    assert f"{measured['deletion']['lrp']['mean']:.3f}" in row["deletion"].value
    assert row["deletion paper"].value == "0.779 ± 0.014"
    assert f"{measured['faithfulness formula']['lrp']['mean']:.3f}" in row["faithfulness formula"].value


def test_methods_that_were_not_evaluated_are_not_run(finished: Runner, tmp_path: Path) -> None:
    shutil.copytree(finished.store.folder("digits", "evaluate-main-rivals"), tmp_path / "digits/evaluate-main-rivals")
    view = Viewer(TINY, Store(tmp_path)).view(SPECIFICATIONS["table-7"])
    cells = {row["method"].value: row["insertion"].value for row in view.tables[0].rows}
    assert {method for method, cell in cells.items() if cell == "not run"} == {
        ROWS[row] for row in (*EXPLAINERS, *set(ALL_METHODS) - set(MAIN_METHODS))
    }
    assert view.filled > 0
    assert view.not_run > 0


def test_a_view_says_which_images_and_classes_were_measured(finished: Runner) -> None:
    """The images of the profile, not those of the paper; one line for all steps of a setting."""
    one = {key: replace(setting, explained_others=1) for key, setting in TINY.settings.items()}
    viewer = Viewer(replace(TINY, settings=one), finished.store)
    (line,) = source_lines(viewer.view(SPECIFICATIONS["table-2"]).sources)
    assert "; 16 images; non-target: 1 of each image's other classes" in line
    assert "`vitshap reproduce --step digits/STEP --profile smoke`: evaluate-main-rivals " in line
    assert "variants" not in line, "they are not in this table"
    (line,) = source_lines(viewer.view(SPECIFICATIONS["table-5"]).sources)
    normal = finished.store.find("digits", "evaluate-abnormal-rivals").values["non-target"]["images"]
    assert f"; {normal} images predicted normal; " in line
    (line,) = source_lines(viewer.view(SPECIFICATIONS["figure-2"]).sources)
    assert "; 128 images; " in line
    assert "`vitshap reproduce --step digits/removal --profile smoke`: " in line
    notes = viewer.view(SPECIFICATIONS["figure-12"]).tables[0].notes
    assert "KernelSHAP 512 with" in notes[-1]
    assert "kernelshap 64, refine 128, truth 256. Reliability of the truth" in notes[-1]


def test_methods_of_steps_that_were_not_run_are_not_undefined(finished: Runner, tmp_path: Path) -> None:
    """Also where no image is predicted to be normal."""
    place = tmp_path / "digits" / "evaluate-abnormal-rivals"
    shutil.copytree(finished.store.folder("digits", place.name), place)
    record = json.loads((place / "result.json").read_text())
    record["values"]["non-target"] = {"images": 0, "metrics": {}, "curves": {}}
    write_text(place / "result.json", json.dumps(record))
    view = Viewer(TINY, Store(tmp_path)).view(SPECIFICATIONS["table-5"])
    cells = {row["method"].value: row["insertion"].value for row in view.tables[0].rows}
    assert cells["LRP"] == "undefined"
    assert cells["vitshap (default procedure)"] == "not run"


def test_charts_are_drawn(finished: Runner, tmp_path: Path) -> None:
    view = Viewer(TINY, finished.store).view(SPECIFICATIONS["figure-12"])
    command.write_view(view, tmp_path / "report")
    drawn = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert drawn == ["figure-12-errors-non-target.png", "figure-12-errors-target.png", "figure-12.md"]


def test_a_step_leaves_little(finished: Runner) -> None:
    for path in finished.store.out.glob("*/*/result.json"):
        left = list(path.parent.iterdir())
        assert len(left) <= FILES, path
        assert sum(one.stat().st_size for one in left) <= LARGEST
        assert all(one.stat().st_size <= SHARD for one in left)
        assert json.loads(path.read_text())["command"].startswith("vitshap reproduce --step digits/")
    work = finished.store.out / "work"
    assert not [path for path in work.rglob("*") if path.is_file()], "intermediate files are removed"


def test_a_second_run_does_nothing(finished: Runner) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.store.out.rglob("*") if path.is_file()}
    again = Runner(TINY, finished.store.out, Sources({}), torch.device("cpu"))
    tasks = tasks_of(TINY, SPECIFICATIONS.values())
    assert again.seconds(tasks) == {}
    again.run(tasks)
    assert {path: path.stat().st_mtime_ns for path in finished.store.out.rglob("*") if path.is_file()} == before


def test_times_are_those_of_the_setting(tmp_path: Path) -> None:
    runner = Runner(SMALL, tmp_path, Sources({}), torch.device("cpu"))
    expected = runner.seconds(tasks_of(SMALL, SPECIFICATIONS.values()))
    assert all(expected.values())
    classifier = [expected[f"{name}/train-classifier"] or 0 for name in ("chest", "pets", "imagenette")]
    assert classifier == sorted(classifier), "the training sets are of 1,890, 5,879 and 9,469 images"
    assert SMALL.expected("pets", "ablation-no-tanh") == SMALL.expected("imagenette", "ablation-scratch")
    assert expected["imagenette/ablation-unet"] > expected["imagenette/ablation-scratch"]
    assert SMALL.expected("pets", "unknown") is None


def test_results_of_other_settings_are_not_overwritten(finished: Runner) -> None:
    other = replace(TINY, scale=replace(TINY.scale, removal_step=98))
    runner = Runner(other, finished.store.out, Sources({}), torch.device("cpu"))
    with pytest.raises(ValueError, match="removal was made with other settings"):
        runner.run(named_tasks(other, ["digits/removal"]))
    assert runner.run(named_tasks(other, ["digits/timing"])), "which does not depend on it"


def test_a_step_alone_does_not_take_earlier_steps_of_other_settings(finished: Runner) -> None:
    changes = (*TINY.scale.training, "surrogate.loop.epochs=2")
    other = replace(TINY, scale=replace(TINY.scale, training=changes))
    runner = Runner(other, finished.store.out, Sources({}), torch.device("cpu"))
    with pytest.raises(ValueError, match="train-surrogate was made with other settings"):
        runner.run(named_tasks(other, ["digits/removal"]))


def test_results_do_not_depend_on_compilation(tmp_path: Path) -> None:
    """Trainings are compiled on a GPU only, and a step that finished there is not run again on a CPU."""
    setting = TINY.setting("imagenette", "vit-base")
    cpu, gpu = (Context(TINY, setting, Store(tmp_path), Sources({}), torch.device(name)) for name in ("cpu", "cuda"))
    for context, compiled in ((cpu, False), (gpu, True)):
        trainings = (context.classifier_training, context.surrogate_training, context.paper_explainer)
        assert [one.compiled for one in trainings] == [compiled] * 3
    assert cpu.described == gpu.described
    changed = replace(TINY, scale=replace(TINY.scale, training=(*TINY.scale.training, "surrogate.compiled=true")))
    assert Context(changed, setting, cpu.store, Sources({}), cpu.device).described["recipe"] == cpu.described["recipe"]


def test_steps_need_those_before_them(tmp_path: Path) -> None:
    runner = Runner(TINY, tmp_path, Sources({}), torch.device("cpu"))
    with pytest.raises(ValueError, match="digits/train-surrogate needs digits/train-classifier first"):
        runner.run(named_tasks(TINY, ["digits/train-surrogate"]))
    assert not list(tmp_path.iterdir())


def test_steps_run_side_by_side_and_one_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    said = StringIO()
    runner = Runner(TINY, tmp_path, Sources({}), torch.device("cpu"), Console(file=said, width=200))
    tasks = named_tasks(TINY, ["digits/train-surrogate", "digits/train-classifier", "digits/train-masked-classifier"])
    with (
        locked_folder(tmp_path / "digits" / "train-masked-classifier"),
        pytest.raises(ValueError, match=r"^digits/train-masked-classifier failed: see .*masked-classifier\.log$"),
    ):
        runner.run_together(tasks, 2)
    assert "ValueError: digits/train-masked-classifier is being run by another process" in said.getvalue()
    assert runner.store.find("digits", "train-classifier") is not None
    surrogate = runner.store.find("digits", "train-surrogate")
    assert surrogate is not None, "it waited for the classifier"
    alone = Runner(TINY, tmp_path / "alone", Sources({}), torch.device("cpu"))
    together = runner.store.find("digits", "train-classifier").values
    assert together == pytest.approx(alone.run(tasks[1:2])[0].values, rel=1e-3)
    assert [one.folder for one in runner.run_together(tasks[:2], 2)] == [
        tmp_path / "digits" / name for name in ("train-surrogate", "train-classifier")
    ]


def test_times_are_measured_beside_no_other_step(finished: Runner, tmp_path: Path) -> None:
    shutil.copytree(finished.store.out / "digits", tmp_path / "digits")
    for name in ("timing", "removal"):
        shutil.rmtree(tmp_path / "digits" / name)
    said = StringIO()
    runner = Runner(TINY, tmp_path, Sources({}), torch.device("cpu"), Console(file=said, width=200))
    results = runner.run_together(named_tasks(TINY, ["digits/timing", "digits/removal"]), 2)
    lines = [line for line in said.getvalue().splitlines() if "finished before" not in line]
    order = [line.split(":")[0] + (" started" if "started" in line else " ended") for line in lines]
    assert order == ["digits/removal started", "digits/removal ended", "digits/timing started", "digits/timing ended"]
    assert [one.record.get("jobs") for one in results] == [None, 2]


def test_trainings_run_before_measurements_and_beside_none() -> None:
    truth, removal, timing, train, ablation = named_tasks(
        TINY, [f"digits/{name}" for name in ("truth", "removal", "timing", "train-surrogate", "ablation-unet")]
    )
    assert beside([], [truth, timing, train, ablation]) == [train, ablation]
    assert beside([train], [truth, timing, ablation]) == [ablation]
    assert beside([train], [truth, timing]) == []
    assert beside([], [timing, truth, removal]) == [truth, removal]
    assert beside([truth], [timing, removal]) == [removal]
    assert beside([truth], [removal, ablation]) == [], "the training waits until no measurement runs"
    assert beside([], [timing]) == [timing]
    assert beside([timing], [removal]) == beside([timing], [train]) == beside([truth], [timing]) == []
    many = named_tasks(TINY, [f"digits/{name}" for name in (*RETRAINED, "procedure")])
    assert beside([], [truth, *many]) == many, "they train networks too"


def test_a_short_retraining_reaches_its_learning_rate_and_decays() -> None:
    """The recipe's warm-up of 500 steps is longer than three epochs of ImageNette."""
    for profile, setting, warmup in ((SMALL, "imagenette", "capped"), (PROFILES["full"], "imagenette-base", "exact")):
        one = profile.names()[setting]
        config = roar.retraining(Context(profile, one, Store(Path()), Sources({}), torch.device("cpu")))
        assert config.loop.epochs == profile.scale.retrained_epochs
        assert config.loop.warmup == warmup
        total = profile.scale.retrained_epochs * (9469 // 64)
        rates = [loop.learning_rate(step, total, config.loop) for step in range(total)]
        assert max(rates) == pytest.approx(1e-5)
        assert rates[-1] < 1e-8


def test_roar_reads_the_images_once(finished: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each method."""
    shutil.copytree(finished.store.out / "digits", tmp_path / "digits")
    read: list[int] = []
    cached = pixels.cache_pixels

    def counted(data: Any, *arguments: Any, **options: Any) -> Any:
        read.append(len(data))
        return cached(data, *arguments, **options)

    for step, sizes in (("roar-surrogate", [128]), ("roar-retrained", [256, 64, 128])):
        before = finished.store.find("digits", step)
        shutil.rmtree(tmp_path / "digits" / step)
        monkeypatch.setattr(pixels, "cache_pixels", counted)
        (again,) = Runner(TINY, tmp_path, Sources({}), torch.device("cpu")).run(named_tasks(TINY, [f"digits/{step}"]))
        monkeypatch.undo()
        assert read == sizes
        assert before is not None
        assert again.values == before.values
        read.clear()


def test_both_evaluators_of_roar_use_the_same_orders(
    finished: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images are explained again only where the surrogate's step has left none."""
    shutil.copytree(finished.store.out / "digits", tmp_path / "digits")
    before = finished.store.find("digits", "roar-masked")
    assert before is not None
    explained: list[str] = []
    methods = roar._methods

    def counted(context: Context, names: tuple[str, ...]) -> dict[str, list[Any]]:
        def one(name: str, method: Any) -> Any:
            return lambda *given, **options: (explained.append(name), method(*given, **options))[1]

        return {name: [one(name, each) for each in made] for name, made in methods(context, names).items()}

    monkeypatch.setattr(roar, "_methods", counted)
    for wanted in ([], list(MAIN_METHODS)):
        shutil.rmtree(tmp_path / "digits" / "roar-masked")
        (again,) = Runner(TINY, tmp_path, Sources({}), torch.device("cpu")).run(
            named_tasks(TINY, ["digits/roar-masked"])
        )
        assert list(dict.fromkeys(explained)) == wanted
        assert again.values == before.values
        (tmp_path / "digits" / "roar-surrogate" / roar.ORDERS).unlink(missing_ok=True)


def test_results_of_networks_that_were_trained_again_are_not_used(finished: Runner, tmp_path: Path) -> None:
    """The settings are the same, the weights are not."""
    shutil.copytree(finished.store.out / "digits", tmp_path / "digits")
    runner = Runner(TINY, tmp_path, Sources({}), torch.device("cpu"))
    task = Task(TINY.setting("imagenette", "vit-base"), "evaluate-main-rivals")
    result = runner.run_one(task)
    surrogate = runner.store.find("digits", "train-surrogate")
    assert result.networks["train-surrogate"] == surrogate.weights_digest
    record = {**surrogate.record, "weights": "other"}
    write_text(surrogate.folder / "result.json", json.dumps(record))
    with pytest.raises(
        ValueError, match=r"evaluate-main-rivals was made with other weights of train-surrogate: remove"
    ):
        runner.run_one(task)
    assert of_earlier_training(runner.store, task.setting, task.step, result)
    work = runner.store.begin("digits", "truth", "a", {"train-surrogate": "one"})
    with store.Stopwatch(work, "a", {"train-surrogate": "one"}):
        pass
    assert runner.store.begin("digits", "truth", "a", {"train-surrogate": "one"}) == work
    with pytest.raises(ValueError, match="intermediate files"):
        runner.store.begin("digits", "truth", "a", {"train-surrogate": "two"})


def test_patches_of_other_images_are_of_all_classes(finished: Runner) -> None:
    """Also if the images are sorted by class, as those of folders are."""
    context = Context(TINY, TINY.setting("imagenette", "vit-base"), finished.store, Sources({}), torch.device("cpu"))
    train = context.splits.train
    context.splits = context.splits._replace(train=train.subset(torch.as_tensor(train.labels).argsort()))
    labels = torch.as_tensor(reference_images(context).labels)
    assert len(labels) == 64
    assert len(labels.unique()) == 10


def test_intervals_of_few_images(finished: Runner) -> None:
    """Student's t of the errors of estimators, Wilson's of accuracies."""
    errors = torch.rand(2, 8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = shapley.by_class(errors, torch.zeros(8, dtype=torch.long))["target"]
    low, high = stats.t.interval(0.95, 7, loc=found["mean"], scale=stats.sem(errors[..., 0], axis=1))
    assert found["interval"] == pytest.approx((high - low) / 2)
    removal = finished.store.find("digits", "removal").values
    for curve in removal["accuracy"].values():
        right = [round(share * removal["images"]) for share in curve["mean"]]
        ends = [stats.binomtest(k, removal["images"]).proportion_ci(method="wilson") for k in right]
        assert curve["interval"] == pytest.approx([(one.high - one.low) / 2 for one in ends], abs=1e-4)


def test_weights_are_given_for_all_settings_or_for_one(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.safetensors", "pets.safetensors")]
    for path in files:
        path.write_bytes(path.name.encode())
    full = PROFILES["full"]
    sources = command._sources(full, [], [str(files[0]), f"pets={files[1]}"], tmp_path)
    given = {
        name: Context(full, setting, Store(tmp_path), sources, torch.device("cpu")).recipe.model.weights
        for name, setting in full.names().items()
    }
    assert given == {name: str(files[name == "pets"]) for name in full.names()}
    digests = {
        Context(full, full.names()[name], Store(tmp_path), sources, torch.device("cpu")).pretrained_digest
        for name in ("pets", "mura")
    }
    assert len(digests) == 2
    with pytest.raises(ValueError, match="there is no file"):
        command._sources(full, [], ["pets=none.safetensors"], tmp_path)
    with pytest.raises(ValueError, match=r"the profile full has the settings .*pets; got pest=x"):
        command._sources(full, [], ["pest=x"], tmp_path)


def test_steps_side_by_side_end_with_the_main_process(tmp_path: Path) -> None:
    """Also if it is killed: a step's folder is free again, and the step continues when it is run again."""
    script = f"""
from dataclasses import replace
from pathlib import Path
import torch
from tests.reproduce.small import TINY
from vitshap.reproduce.context import Sources
from vitshap.reproduce.runner import Runner, named_tasks

if __name__ == "__main__":
    long = replace(TINY, scale=replace(TINY.scale, training=(*TINY.scale.training, "classifier.loop.epochs=100000")))
    runner = Runner(long, Path({str(tmp_path)!r}), Sources({{}}), torch.device("cpu"))
    runner.run_together(named_tasks(long, ["digits/train-classifier"]), 2)
"""
    (tmp_path / "main.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    main = subprocess.Popen([sys.executable, tmp_path / "main.py"], env=environment)
    folder = tmp_path / "digits" / "train-classifier"

    def waited(for_use: bool) -> bool:
        ends = time.monotonic() + 120
        while time.monotonic() < ends:
            try:
                with locked_folder(folder) if folder.exists() else nullcontext():
                    in_use = False
            except FolderInUse:
                in_use = True
            if in_use == for_use:
                return True
            time.sleep(0.2)
        return False

    try:
        assert waited(True), "the step has begun"
    finally:
        main.kill()
        main.wait()
    assert waited(False), "it has ended"


def test_steps_side_by_side_need_those_before_them(tmp_path: Path) -> None:
    runner = Runner(TINY, tmp_path, Sources({}), torch.device("cpu"))
    with pytest.raises(ValueError, match=r"^steps before these have not been run: digits/train-surrogate$"):
        runner.run_together(named_tasks(TINY, ["digits/train-surrogate"]), 2)


def test_weights_are_those_that_later_steps_use(finished: Runner) -> None:
    """A network read twice is the same, in float16, and the truth belongs to it."""
    context = finished.context(TINY.setting("imagenette", "vit-base"))
    state = context.trained("train-classifier").net.state_dict()
    assert all(torch.equal(one, one.half().float()) for one in state.values() if one.is_floating_point())
    assert context.surrogate.classifier_fingerprint == context.classifier.fingerprint()
    accuracy = finished.store.find("digits", "train-classifier").values["test_accuracy"]
    assert accuracy > 0.2, "two layers and some epochs: better than chance"


def test_an_interrupted_training_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that ends in the middle leaves its checkpoint and its time, and the same command continues from them."""
    setting = TINY.setting("imagenette", "vit-base")
    short = ("classifier.loop.epochs=6", "classifier.loop.save_every=10")
    scale = replace(TINY.scale, training=(*TINY.scale.training, *short))
    profile = replace(TINY, scale=scale)
    whole, halved = (Runner(profile, tmp_path / name, Sources({}), torch.device("cpu")) for name in ("whole", "halved"))
    expected = whole.run_one(Task(setting, "train-classifier"))
    steps, take = [0], loop._Run.take_step
    written = halved.store.work("digits", "train-classifier") / store.SECONDS
    monkeypatch.setattr(store, "EVERY", 0.01)

    def stop(self: loop._Run, *arguments: object) -> object:
        steps[0] += 1
        if steps[0] == 25:
            while not written.is_file():  # also without an orderly end: the time is written while a step runs
                time.sleep(0.01)
            raise KeyboardInterrupt
        return take(self, *arguments)

    monkeypatch.setattr(loop._Run, "take_step", stop)
    with pytest.raises(KeyboardInterrupt):
        halved.run_one(Task(setting, "train-classifier"))
    assert halved.store.find("digits", "train-classifier") is None
    left = json.loads(written.read_text())
    assert left["seconds"] > 0
    write_text(written, json.dumps({**left, "seconds": left["seconds"] + 5000}))  # as if the first part had been long
    found = halved.run_one(Task(setting, "train-classifier"))
    assert steps[0] <= 25 + 6 * 8 - 20, "it did not start again"
    for name, tensor in expected.weights().items():
        assert torch.equal(tensor, found.weights()[name])
    assert found.record["seconds"] > 5000 + left["seconds"] - 0.1, "of both parts"
    assert expected.record["seconds"] < 5000
    assert not written.exists()


def test_time_that_cannot_be_read_does_not_count(tmp_path: Path) -> None:
    write_text(tmp_path / store.SECONDS, json.dumps({"inputs": "a", "seconds": 5000}))
    assert store.Stopwatch(tmp_path, "a").seconds >= 5000
    write_text(tmp_path / store.SECONDS, "[1]")
    assert store.Stopwatch(tmp_path, "a").seconds < 5000


def test_intermediate_files_of_other_settings_are_not_used(
    finished: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of an estimator are stored in parts; those of another number of evaluations would be taken for its own."""
    for name in ("train-classifier", "train-surrogate", "truth"):
        shutil.copytree(finished.store.folder("digits", name), tmp_path / "digits" / name)
    task = Task(TINY.setting("imagenette", "vit-base"), "kernelshap-paired")
    first = Runner(TINY, tmp_path, Sources({}), torch.device("cpu"))

    def stop(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shapley, "read_tensors", stop)  # after the first part was written
        with pytest.raises(KeyboardInterrupt):
            first.run_one(task)
    other = replace(TINY, scale=replace(TINY.scale, paired=256))
    with pytest.raises(ValueError, match="kernelshap-paired has intermediate files of other settings"):
        Runner(other, tmp_path, Sources({}), torch.device("cpu")).run_one(task)
    assert first.run_one(task).values == finished.store.find("digits", "kernelshap-paired").values


def test_damaged_results_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "digits" / "truth" / "result.json"
    write_text(path, "[1]")
    with pytest.raises(ValueError, match="is damaged"):
        Store(tmp_path).find("digits", "truth")


@pytest.mark.parametrize("name", [*ESTIMATORS])
def test_errors_of_estimators_are_those_of_their_last_values(finished: Runner, name: str) -> None:
    context = finished.context(TINY.setting("imagenette", "vit-base"))
    found, targets = context.result(name).values, predictions(context)
    wrong = stored_values(context, name) - stored_truth(context).values  # [N, d, K]
    distance = wrong[torch.arange(len(targets)), :, targets].square().sum(1).sqrt()
    assert found["curves"]["distance"]["target"]["mean"][-1] == pytest.approx(float(distance.mean()), rel=1e-4)
    budget = TINY.scale.refined if name.startswith("refine") else TINY.scale.paired
    assert found["evaluations"] == sorted(found["evaluations"])
    assert found["evaluations"][-1] <= budget


def test_refine_corrects_the_explainer(finished: Runner) -> None:
    context = finished.context(TINY.setting("imagenette", "vit-base"))
    before = context.result("explainer-error-default").values["rows"]["vitshap"]["distance"]["target"]["mean"][0]
    after = context.result("refine-explainer").values["curves"]["distance"]["target"]["mean"][-1]
    assert after < 0.5 * before, "128 evaluations of 16 players"


def test_numbers_are_stored_short_and_finite() -> None:
    assert rounded({"a": [0.12345678, math.nan], "b": torch.tensor([1.5])}) == {"a": [0.123457, None], "b": [1.5]}


def test_crossings_are_interpolated() -> None:
    evaluations, curve = [100.0, 1000.0, 10000.0], [4.0, 2.0, 1.0]
    assert crossing(evaluations, curve, 3.0) == pytest.approx(100 * 10**0.5)
    assert crossing(evaluations, curve, 5.0) == 100
    assert crossing(evaluations, curve, 0.5) is None
    assert crossing(evaluations, [0.9, 0.5, 0.1], 0.1) == 10000
    assert crossing(evaluations, [0.1393145, 0.5, 0.1], 0.139314) == 100, "stored numbers are rounded"


def test_the_command_estimates_runs_and_reports(finished: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "smoke", TINY)
    out = ["--profile", "smoke", "--out", str(finished.store.out)]
    shown = run(app, ["reproduce", "table-12", *out, "--device", "cpu"])
    assert shown.exit_code == 0, shown.output
    assert "all finished before" in shown.output
    assert "KernelSHAP" in shown.output
    assert (finished.store.out / "report" / "table-12.md").is_file()
    planned = run(app, ["reproduce", "--step", "digits/procedure", "--step", "convergence", *out, "--dry-run"])
    assert "2 of 2 steps to run" in planned.output
    lacking = run(app, ["reproduce", "table-1", "--profile", "small", "--out", str(finished.store.out / "none")])
    assert lacking.exit_code == 2
    assert "--data chest=PATH" in lacking.output or "--data imagenette=PATH" in lacking.output


@pytest.mark.long
def test_further_experiments(finished: Runner) -> None:
    results = finished.run(named_tasks(TINY, ["digits/procedure", "digits/convergence"]))
    assert [row["variant"] for row in results[0].values["rows"]] == ["paper", "stored values", "all together"]
    assert {row["estimator"] for row in results[1].values["budgets"]} >= {"kernelshap", "permutation"}


def test_further_experiments_continue(finished: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an interruption within a variant that has left a checkpoint."""
    shutil.copytree(finished.store.out / "digits", tmp_path / "digits")
    shutil.rmtree(tmp_path / "digits" / "procedure", ignore_errors=True)
    scale = replace(TINY.scale, procedure_views=1, procedure_variants=(1, 2))
    runner = Runner(replace(TINY, scale=scale), tmp_path, Sources({}), torch.device("cpu"))
    (task,) = named_tasks(TINY, ["digits/procedure"])
    trained, train = [], ablation.train_explainer

    def interrupted(*arguments: Any, **options: Any) -> Any:
        history = train(*arguments, **options)
        trained.append(history)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return history

    monkeypatch.setattr(ablation, "train_explainer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.run_one(task)
    rows = runner.run_one(task).values["rows"]
    assert [row["variant"] for row in rows] == ["stored values, tanh", "stored values"]
    assert len(trained) == 3, "the first variant is not trained again"
