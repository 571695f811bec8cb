"""The pages of results are what the committed results give, and show numbers when there are any."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import timm
import torch

from tests.reproduce.small import TINY
from vitshap import wrap
from vitshap.files import load_weights
from vitshap.reproduce import pages
from vitshap.reproduce.cells import ROWS, finished_parts, joined
from vitshap.reproduce.context import Context, Sources
from vitshap.reproduce.profiles import PROFILES, Scale
from vitshap.reproduce.runner import Runner
from vitshap.reproduce.sources import EARLIER_TRAINING, of_earlier_training, source_lines
from vitshap.reproduce.specifications import SPECIFICATIONS
from vitshap.reproduce.steps import STEPS
from vitshap.reproduce.store import RESULT, Result, Store
from vitshap.reproduce.summary import PARTS, all_numbers
from vitshap.reproduce.views import Viewer

DOCS = Path(__file__).parents[2] / "docs" / "results"


def test_committed_pages_are_made_from_the_committed_results() -> None:
    made = pages.pages(DOCS)
    for name, text in made.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"run vitshap reproduce --pages docs/results: {name}"
    lines = "\n".join(made.values()).splitlines()
    pictures = {DOCS / line.split("(")[1].rstrip(")") for line in lines if line.startswith("![")}
    assert {path for path in (DOCS / pages.IMAGES).rglob("*") if path.is_file()} == pictures
    assert sum(path.stat().st_size for path in DOCS.rglob("*") if path.is_file()) < 5_000_000


@pytest.mark.parametrize("name", [pages.PUBLISHED, pages.BRIEF])
def test_committed_results_belong_to_the_present_settings(name: str) -> None:
    profile, store = PROFILES[name], Store(DOCS / pages.DATA / name)
    for path in sorted((DOCS / pages.DATA / name).glob(f"*/*/{RESULT}")):
        setting, step = profile.names()[path.parents[1].name], path.parent.name
        context = Context(profile, setting, store, Sources({}), torch.device("cpu"))
        assert store.finished(setting.name, step, STEPS[step].inputs(context)) is not None, path


def test_pages_have_every_table_and_figure_and_say_what_was_not_run(tmp_path: Path) -> None:
    made = pages.pages(tmp_path)
    for one in SPECIFICATIONS.values():
        page = made["tables.md" if one.id.startswith("table") else "figures.md"]
        assert f": {one.title}\n" in page
    assert "not run" in made["tables.md"]
    assert "0.981 ± 0.002" in made["index.md"], "the paper's numbers are there in any case"
    assert "reproduced here" not in made["tables.md"]


def test_numbers_of_finished_steps_appear(finished: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, pages.PUBLISHED, TINY)
    pages.collect(finished.store.out, tmp_path, PROFILES["small"])
    stored = tmp_path / pages.DATA / TINY.name
    stored.rename(tmp_path / pages.DATA / pages.PUBLISHED)
    assert not list(tmp_path.rglob("*.safetensors"))
    made = pages.pages(tmp_path)
    mean = finished.store.find("digits", "evaluate-main-explainer-default").values["target"]["metrics"]["insertion"][
        "vitshap"
    ]["mean"]
    assert f"{mean:.3f}" in made["index.md"]
    cells = joined(finished_parts(finished.store, "digits", "evaluate-main")).values["target"]["metrics"]["insertion"]
    best = ROWS[max((row for row in cells if row != "random"), key=lambda row: cells[row]["mean"])]
    assert "not run" not in made["tables.md"]
    assert "`vitshap reproduce --step digits/removal --profile smoke`" in made["figures.md"]
    assert "| complete |" in made["index.md"]
    assert f"| insertion, target classes | {best} 0." in made["index.md"]
    assert "| insertion, target classes | not run |" in made["cpu.md"], "another profile, of which nothing was run"


def test_results_of_another_profile_are_not_collected(finished: Runner, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="was made with --profile smoke, not with cpu"):
        pages.collect(finished.store.out, tmp_path, PROFILES["cpu"])
    assert not list(tmp_path.iterdir())


def test_pages_say_what_a_profile_has_less_of(tmp_path: Path) -> None:
    made = pages.pages(tmp_path)
    for name, page in ((pages.PUBLISHED, made["index.md"]), (pages.BRIEF, made["cpu.md"])):
        scale, full = asdict(PROFILES[name].scale), asdict(PROFILES["full"].scale)
        differing = [field for field, value in scale.items() if field in pages.SMALLER and value != full[field]]
        assert differing
        for field in differing:
            assert f"| {pages.SMALLER[field][0]} | " in page
    known = {*pages.SMALLER, "roar_counts", "training", "default_training"}
    rest = {field.name for field in fields(Scale)} - known
    assert all(field.startswith(("procedure_", "convergence_")) for field in rest), "of experiments beyond the paper"
    assert "| non-target classes of each image, imagenette | 1 | all |" in made["cpu.md"]


def test_results_of_an_earlier_training_are_named(finished: Runner, tmp_path: Path) -> None:
    store = Store(tmp_path)
    shutil.copytree(finished.store.out / "digits", tmp_path / "digits", ignore=shutil.ignore_patterns("*.safetensors"))
    setting = TINY.names()["digits"]
    result = store.find("digits", "evaluate-main-rivals")
    assert not of_earlier_training(store, setting, "evaluate-main-rivals", result)
    trained = store.find("digits", "train-surrogate")
    later = {**trained.record, "weights": "other", "date": "2999-01-01"}
    (trained.folder / RESULT).write_text(json.dumps(later), encoding="utf-8")
    assert of_earlier_training(store, setting, "evaluate-main-rivals", result)
    older = Result(result.folder, {key: one for key, one in result.record.items() if key != "networks"})
    assert of_earlier_training(store, setting, "evaluate-main-rivals", older), "by the date"
    classifier = store.find("digits", "train-classifier")
    assert not of_earlier_training(store, setting, "train-classifier", classifier), "it needs no other network"
    assert EARLIER_TRAINING in "\n".join(source_lines(Viewer(TINY, store).view(SPECIFICATIONS["table-7"]).sources))


def test_the_readme_compares_by_the_committed_results() -> None:
    numbers = {str(row["method"].value): row for row in all_numbers(DOCS / pages.DATA, pages.PUBLISHED).rows}
    names = {
        "vitshap's explainer": "vitshap (default procedure)",
        "the paper's procedure": "ViT Shapley (the paper's procedure)",
        "leave-one-out": "Leave-one-out",
        "GradCAM": "GradCAM (LN)",
        "integrated gradients": "IntGrad (Pixel)",
        "attention rollout": "Attention rollout",
        "random order": "Random",
    }
    lines = (DOCS.parents[1] / "README.md").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  | | insertion"))
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[start + 2 : start + 11]]
    assert len(rows) == 9
    for name, *cells in rows:
        measured = [str(numbers[names.get(name, name)][f"{classes} {metric}"].value) for classes, metric in PARTS]
        for cell, text in zip(cells, measured, strict=True):
            assert text.replace("**", "").startswith(cell.strip("*")), (name, cell, text)
            assert text.startswith("**") == cell.startswith("**"), (name, cell, text)


def test_committed_weights_are_those_behind_the_committed_results() -> None:
    profile, committed = PROFILES[pages.PUBLISHED], Store(DOCS / pages.DATA / pages.PUBLISHED)
    store = Store(DOCS.parents[1] / "benchmarks" / "weights" / profile.name)
    folders = sorted(path.parent for path in store.out.glob(f"*/*/{RESULT}"))
    assert {one.name for one in folders} >= {"train-classifier", "train-surrogate", "train-explainer-default", "truth"}
    for folder in folders:
        found, shown = (each.find(folder.parent.name, folder.name) for each in (store, committed))
        assert found.record == shown.record, folder
        if folder.name.startswith("train-"):
            assert all(bool(one.isfinite().all()) for one in found.weights().values())
    net = timm.create_model("deit_tiny_patch16_224", num_classes=10)
    load_weights(net, store.find("imagenette", "train-classifier").weights(), store.out)
    assert wrap(net, check=False).fingerprint() == store.find("imagenette", "train-surrogate").values["classifier"]
