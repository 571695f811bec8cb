"""The specifications: all of the paper's tables and figures, in its order, with steps that exist."""

from __future__ import annotations

import torch
from typer.testing import CliRunner

from vitshap.cli import app
from vitshap.data import ImageData
from vitshap.methods import list_methods
from vitshap.reproduce.maps import GRIDS, images_per_picture, one_of_each_class
from vitshap.reproduce.paper import tables
from vitshap.reproduce.profiles import FULL, PAPER_SETTINGS, PROFILES, SMALL, SMOKE, Scale
from vitshap.reproduce.runner import tasks_of
from vitshap.reproduce.specifications import ESTIMATED_ROWS, EXPLAINERS, SPECIFICATIONS, panel_steps
from vitshap.reproduce.steps import EXPERIMENTS, STEPS, needed, with_needs
from vitshap.training.recipes import load_recipe

CAPTIONS = {
    "table-3": "Ablation",
    "table-5": "abnormal class of MURA images predicted normal",
    "table-10": "trained with masked patches",
    "table-12": "KernelSHAP",
    "figure-1": "insertion and deletion curves",
    "figure-5": "divergence and accuracy",
    "figure-9": "non-target",
    "figure-12": "Error of KernelSHAP",
    "figure-24": "non-target",
}


def test_there_are_twelve_tables_and_twenty_four_figures() -> None:
    expected = [f"table-{i}" for i in range(1, 13)] + [f"figure-{i}" for i in range(1, 25)]
    assert list(SPECIFICATIONS) == expected
    for name, words in CAPTIONS.items():
        assert words in SPECIFICATIONS[name].title


def test_every_block_and_row_of_the_paper_is_specified() -> None:
    for name, blocks in tables().items():
        one = SPECIFICATIONS[name]
        if one.kind == "ablations":
            continue
        assert [(p.data, p.model, p.classes) for p in one.panels] == [(b.data, b.model, b.classes) for b in blocks]
        for block in blocks:
            assert set(block.cells) <= set(one.methods), name
            assert set(block.metrics) <= set(one.metrics), name


def test_steps_and_methods_exist() -> None:
    known = {*list_methods(), *EXPLAINERS, *ESTIMATED_ROWS, "truth"}
    for one in SPECIFICATIONS.values():
        assert {step for panel in one.panels for step in panel_steps(panel.step)} <= set(STEPS), one.id
        assert all((panel.data, panel.model) in PAPER_SETTINGS for panel in one.panels), one.id
        if one.kind != "ablations":
            assert set(one.methods) <= known, one.id
    used = {name for one in SPECIFICATIONS.values() for name in needed(one)}
    assert used | set(with_needs(EXPERIMENTS)) == set(STEPS), "no step is made for nothing"


def test_the_removal_figure_has_all_three_data_sets() -> None:
    assert [panel.data for panel in SPECIFICATIONS["figure-5"].panels] == ["imagenette", "mura", "pets"]
    tasks = {task.name for task in tasks_of(SMALL, [SPECIFICATIONS["figure-5"]])}
    assert {
        f"{name}/{step}" for name in ("imagenette", "chest", "pets") for step in ("train-surrogate-pixels", "removal")
    } <= tasks


def test_every_step_comes_after_what_it_needs() -> None:
    order = [task.step for task in tasks_of(SMOKE, SPECIFICATIONS.values())]
    assert len(order) == len(set(order))
    for name in order:
        assert all(order.index(one) < order.index(name) for one in STEPS[name].needs), name
        assert set(with_needs(STEPS[name].needs)) == set(STEPS[name].needs), "a step names all that come before it"


def test_profiles_differ_only_in_settings() -> None:
    assert set(SMOKE.settings) == set(FULL.settings) == set(PAPER_SETTINGS)
    assert set(SMALL.settings) < set(PAPER_SETTINGS)
    for profile in PROFILES.values():
        for setting in profile.names().values():
            recipe = load_recipe(setting.recipe, model=setting.model, settings=setting.changes)
            assert recipe.explainer.procedure == "paper"
            assert load_recipe(setting.default_recipe).explainer.procedure == "values"
    assert SMALL.setting("imagenette", "vit-base") is SMALL.setting("imagenette", "vit-tiny")
    assert load_recipe("paper-imagenette").explainer.loop.epochs == 100


def test_the_list_names_everything_with_its_needs() -> None:
    shown = CliRunner().invoke(app, ["reproduce", "--list"])
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    for one in SPECIFICATIONS.values():
        place = lines.index(f"{one.id}: {one.title}")
        assert one.images in lines[place + 1]
        assert lines[place + 2].strip() == f"needs {', '.join(needed(one))}"
    assert any(line.startswith("procedure: ") for line in lines)


def test_maps_have_an_image_of_every_class() -> None:
    def photos(classes: int, each: int) -> ImageData:
        labels = torch.arange(classes).repeat_interleave(each)  # as sorted by class
        return ImageData(torch.zeros(len(labels), 1, 2, 2), labels, tuple(map(str, range(classes))))

    pets = photos(37, 20)
    count = GRIDS * images_per_picture(Scale().grid_images)
    assert pets.labels[one_of_each_class(pets, count)].tolist() == list(range(37)), "one test image per breed"
    imagenette = photos(10, 10)
    assert set(imagenette.labels[one_of_each_class(imagenette, Scale().grid_images)].tolist()) == set(range(10))
