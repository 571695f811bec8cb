"""Recipes: all of them parse, say what the paper says, and run at their real size."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.data import trees
from vitshap.data import Splits, load_data
from vitshap.data.layouts import IMAGENETTE_CLASSES
from vitshap.training.keys import describe
from vitshap.training.recipes import Recipe, load_recipe, recipe_names
from vitshap.training.run import run
from vitshap.training.settings import SettingsError, from_plain, read_yaml, to_plain

PAPER = [f"{data}-vit-{size}" for data in ("imagenette", "pets", "mura") for size in ("tiny", "small", "base", "large")]
PLAYERS = {"digits": 16}
WIDTH = {"tiny": 192, "small": 384, "base": 768, "large": 1024, "digits": 32, "folder": 384}


def test_the_shipped_recipes_are_these() -> None:
    assert set(recipe_names()) == {*PAPER, "chest-vit-tiny", "imagenette-deit-tiny", "digits", "folder"}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_parses_says_what_it_is_and_can_be_written_back(name: str) -> None:
    recipe = load_recipe(name)
    assert len(recipe.description) > 20
    again = from_plain(Recipe(), read_yaml(yaml.safe_dump(to_plain(recipe)), name))
    assert again == recipe


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_settings(name: str) -> None:
    recipe = load_recipe(name)
    loops = [training.loop for training in (recipe.classifier, recipe.surrogate, recipe.explainer)]
    assert [loop.epochs for loop in loops] == [25, 50, 100]
    assert [loop.learning_rate for loop in loops] == [1e-5, 1e-5, 1e-4]
    assert all(loop.batch_size == 64 and loop.weight_decay == 1e-5 and loop.clip == 1.0 for loop in loops)
    assert (recipe.explainer.procedure, recipe.explainer.coalitions) == ("paper", 32)
    assert recipe.classifier.select == ("kappa" if name.startswith("mura") else "accuracy")
    assert recipe.classifier.class_weights == ("balanced" if name.startswith("mura") else None)


def test_every_key_has_help() -> None:
    without = [key.path for key in describe(Recipe()) if not key.help]
    own_words = {"epochs", "weight_decay", "seed"}  # names that say it all
    assert {path.rpartition(".")[2] for path in without} <= own_words


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="no recipe 'imagenete-vit-tiny'; did you mean imagenette-vit-tiny"):
        load_recipe("imagenete-vit-tiny")
    with pytest.raises(SettingsError, match="there is no recipe file"):
        load_recipe("nowhere/mine.yaml")


def test_ones_own_file_and_changes_to_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("description: mine\nmodel: {name: deit_tiny_patch16_224, library: timm}\nmasked: true\n")
    recipe = load_recipe(path, data="images", model="owner/name", settings=["explainer.loop.epochs=3", "half=true"])
    assert (recipe.data.source, recipe.model.name, recipe.model.library) == ("images", "owner/name", "auto")
    assert (recipe.masked, recipe.half, recipe.explainer.loop.epochs) == (True, True, 3)
    path.write_text("model: {nam: vit}")
    with pytest.raises(SettingsError, match=r"no key model\.nam; did you mean model\.name\?"):
        load_recipe(path)
    path.write_text("")
    assert load_recipe(path) == Recipe()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["explainer.loop.epochs=0"], r"explainer\.loop\.epochs must be at least 1, got 0"),
        (["classifier.loop.learning_rate=-1"], r"classifier\.loop\.learning_rate must be positive"),
        (["explainer.coalitions=7"], r"explainer\.coalitions must be even"),
        (["explainer.values.views=0"], r"explainer\.values\.views must be at least 1"),
        (["explainer.values.milder=1.5"], r"values\.milder is a share between 0 and 1"),
        (["explainer.values.emphasis=-1"], r"values\.emphasis is 0 or more"),
        (["explainer.values.alike=-0.1"], r"values\.alike is 0 or more"),
        (["surrogate.loop.validate_every=0"], r"surrogate\.loop\.validate_every must be at least 1"),
        (["classifier=null", "masked=true"], "masked: true trains the classifier, but classifier is null"),
        (["model.output=identity"], "identity is regression"),
    ],
)
def test_settings_that_make_no_sense(settings: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_recipe("digits", settings=settings)


def _tree(name: str, root: Path) -> str:
    """A few synthetic images in the data set's own layout."""
    if name == "digits":
        return "digits"
    if name.startswith("imagenette"):
        for part in ("train", "val"):
            trees.class_folders(root, dict.fromkeys(IMAGENETTE_CLASSES, 1), prefix=f"{part}/")
    elif name.startswith("pets"):
        trees.pets(root, per_breed=3)
    elif name.startswith("mura"):
        trees.mura(root, patients=6, official_valid=2)
    elif name.startswith("chest"):
        trees.chest(root, patients=3)
    else:
        trees.class_folders(root, {"cats": 5, "dogs": 4})
    return str(root)


def _cost(name: str) -> list[pytest.MarkDecorator]:
    """The small nets run always; the others take 15 seconds to minutes each on a CPU."""
    return [] if name.endswith("-tiny") or name == "digits" else [pytest.mark.long]


@pytest.mark.filterwarnings("ignore:.*whose split is on record")
@pytest.mark.parametrize("name", [pytest.param(name, marks=_cost(name)) for name in recipe_names()])
def test_every_recipe_runs_two_steps_at_its_real_architecture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The net, its 196 (or 16) players and all three trainings are the recipe's; batches and counts are small."""
    monkeypatch.setattr("vitshap.training.explainer.PILOT_REPEATS", 2)
    monkeypatch.setattr("vitshap.training.summary.COALITIONS", 1)
    batch = 600 if name == "digits" else 2
    few = [
        f"{stage}.loop.{key}"
        for stage in ("classifier", "surrogate", "explainer")
        for key in ("epochs=1", f"batch_size={batch}")
    ]
    few += ["surrogate.coalitions=1", "surrogate.validation_coalitions=2"]
    few += ["explainer.coalitions=2", "explainer.validation_coalitions=2"]
    few += ["explainer.values.views=1", "explainer.values.coalitions=2", "model.pretrained=false"]
    with tempfile.TemporaryDirectory() as folder:  # Large writes gigabytes: gone at once, not when pytest tidies up
        images, out = Path(folder) / "images", Path(folder) / "out"
        recipe = load_recipe(name, data=_tree(name, images), settings=few)
        monkeypatch.setattr("vitshap.training.run.load_data", _only_a_few)
        explainer = run(recipe, out, device="cpu", estimate=False)
        for stage in ("classifier", "surrogate", "explainer"):
            last = json.loads((out / stage / "log.jsonl").read_text().splitlines()[-1])
            assert last["step"] >= 2  # more where images are repeated
            assert math.isfinite(last["train_loss"])
        assert (out / "bundle" / "config.json").is_file()
    surrogate = explainer.surrogate
    assert surrogate.num_players == PLAYERS.get(name, 196)
    assert surrogate.class_names is not None
    config = getattr(surrogate.net, "config", None)
    width = config.hidden_size if config else surrogate.net.embed_dim
    assert width == WIDTH[name if name in WIDTH else name.rpartition("-")[2]]
    assert (config is not None) == (name in ("digits", "imagenette-deit-tiny"))
    assert all(torch.isfinite(tensor).all() for tensor in explainer.state_dict().values())


def _only_a_few(source: str, **options: Any) -> Splits:
    """Of the training images five, so that two batches of two are an epoch; of the others one."""
    splits = load_data(source, **options)
    if source == "digits":
        return splits
    spread = torch.linspace(0, len(splits.train) - 1, 5).long()
    return Splits(splits.train.subset(spread), splits.val.subset([0]), splits.test.subset([0]))
