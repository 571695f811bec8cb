"""Recipes: all of them parse, say what the paper says, and run at their real size."""

import json
import math
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.data import trees
from vitshap.data import Augmentation, ImageData, Splits, load_data, normalised
from vitshap.data.layouts import IMAGENETTE_CLASSES
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.models import Preprocess
from vitshap.training.batches import Images
from vitshap.training.recipes import Recipe, load_recipe, recipe_names
from vitshap.training.recipes.run import build_model, run
from vitshap.training.recipes.settings import SettingsError, describe, from_plain, read_yaml, to_plain

PAPER = ["paper-imagenette", "paper-pets", "paper-mura"]
SIZES = ("tiny", "small", "base", "large")
PLAYERS = {"digits": 16}
WIDTH = {"tiny": 192, "small": 384, "base": 768, "large": 1024, "digits": 32, "folder": 384, "chest": 192}
AUTHORS_TAG = "augreg_in21k_ft_in1k"


def test_the_shipped_recipes_are_these() -> None:
    assert set(recipe_names()) == {*PAPER, "chest", "imagenette-deit-tiny", "digits", "folder"}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_parses_says_what_it_is_and_can_be_written_back(name: str) -> None:
    recipe = load_recipe(name)
    assert len(recipe.description) > 20
    assert re.search("measured|projected", recipe.resources)
    again = from_plain(Recipe(), read_yaml(yaml.safe_dump(to_plain(recipe)), name))
    assert again == recipe


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_settings(name: str) -> None:
    recipe = load_recipe(name)
    loops = [training.loop for training in (recipe.classifier, recipe.surrogate, recipe.explainer)]
    assert [loop.epochs for loop in loops] == [25, 50, 100]
    assert [loop.learning_rate for loop in loops] == [1e-5, 1e-5, 1e-4]
    assert all(loop.batch_size == 64 and loop.weight_decay == 1e-5 and loop.max_grad_norm == 1.0 for loop in loops)
    assert all((loop.adam_epsilon, loop.warmup_steps, loop.warmup) == (1e-6, 500, "exact") for loop in loops)
    assert recipe.explainer.network == ExplainerConfig(block_norm=False)
    assert recipe.explainer.sampler == "shapley", "the authors' sampler is there for comparison only"
    assert (recipe.explainer.procedure, recipe.explainer.coalitions) == ("paper", 32)
    assert recipe.classifier.selection_metric == ("kappa" if name == "paper-mura" else "accuracy")
    assert recipe.classifier.class_weights == ((0.596, 0.404) if name == "paper-mura" else None)
    assert recipe.model.output == ("sigmoid" if name == "paper-mura" else "auto")
    assert recipe.data.split == "authors"
    assert (recipe.surrogate.validation_coalitions, recipe.explainer.validation_coalitions) == (1, 2)
    authors = Augmentation(jitter_order="random", whole_pixels=True)
    assert (authors.crop_scale, authors.crop_ratio) == ((0.8, 1.2), (3 / 4, 4 / 3))
    for training in (recipe.classifier, recipe.surrogate, recipe.explainer):
        assert training.augmentation == authors


@pytest.mark.parametrize(("name", "size"), [*((name, "tiny") for name in PAPER), (PAPER[0], "small")])
def test_the_authors_weights_and_preprocessing_at_any_size(name: str, size: str) -> None:
    model = f"vit_{size}_patch16_224"
    settings = replace(load_recipe(name, model=model).model, pretrained=False)
    built = build_model(settings, _two_classes())
    assert built.net.pretrained_cfg["architecture"] == model
    assert built.net.pretrained_cfg["tag"] == AUTHORS_TAG
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    assert built.preprocess == Preprocess((224, 224), (256, 256), mean, std, "bilinear", squash=True)
    assert (built.num_classes, built.output) == ((1, "sigmoid") if name == "paper-mura" else (2, "softmax"))
    assert built.class_names == (["dogs"] if name == "paper-mura" else ["cats", "dogs"])
    head = built.net.head.weight.detach()  # PyTorch's own: uniform within 1 / sqrt(width)
    bound = head.shape[1] ** -0.5
    assert 0.9 * bound < float(head.abs().max()) <= bound
    assert float(built.net.head.bias.detach().abs().max()) > 0


def test_a_head_that_weights_from_a_file_bring_is_kept(tmp_path: Path) -> None:
    given = timm.create_model("vit_tiny_patch16_224", num_classes=2)
    save_file(given.state_dict(), tmp_path / "weights.safetensors")
    chosen = [f"model.weights={tmp_path / 'weights.safetensors'}"]
    settings = load_recipe("paper-pets", model="vit_tiny_patch16_224", settings=chosen).model
    assert torch.equal(build_model(settings, _two_classes()).net.head.weight, given.head.weight)


def test_without_a_model_the_papers_recipes_are_of_vit_base() -> None:
    for name in PAPER:
        assert (load_recipe(name).model.name, load_recipe(name).model.tag) == ("vit_base_patch16_224", AUTHORS_TAG)
        for size in SIZES:  # they exist under this name in timm
            assert timm.list_models(f"vit_{size}_patch16_224.{AUTHORS_TAG}", pretrained=True)


def test_a_tag_that_a_net_does_not_have_is_not_forced_on_it() -> None:
    settings = load_recipe("paper-pets", model="deit_tiny_patch16_224", settings=["model.pretrained=false"]).model
    assert build_model(settings, _two_classes()).net.pretrained_cfg["architecture"] == "deit_tiny_patch16_224"
    own = load_recipe(
        "paper-pets", model="vit_tiny_patch16_224.augreg_in21k", settings=["model.pretrained=false"]
    ).model
    assert build_model(own, _two_classes()).net.pretrained_cfg["tag"] == "augreg_in21k"


def _two_classes() -> ImageData:
    return ImageData([Path("a.png"), Path("b.png")], torch.tensor([0, 1]), ("cats", "dogs"))


def test_every_key_has_help() -> None:
    without = [key.path for key in describe(Recipe()) if not key.help]
    own_words = {"epochs", "weight_decay", "seed"}  # names that say it all
    assert {path.rpartition(".")[2] for path in without} <= own_words


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(
        SettingsError, match=r"no recipe or YAML file 'paper-imagenete'; did you mean .paper-imagenette."
    ):
        load_recipe("paper-imagenete")
    with pytest.raises(SettingsError, match="there is no recipe file"):
        load_recipe("nowhere/mine.yaml")


def test_ones_own_file_and_changes_to_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("description: mine\nmodel: {name: deit_tiny_patch16_224, library: timm}\nmasked: true\n")
    recipe = load_recipe(path, data="images", model="owner/name", settings=["explainer.loop.epochs=3", "half=true"])
    assert (recipe.data.source, recipe.model.name, recipe.model.library) == ("images", "owner/name", "auto")
    assert (recipe.masked, recipe.half, recipe.explainer.loop.epochs) == (True, True, 3)
    path.write_text("model: {nam: vit}")
    with pytest.raises(SettingsError, match=r"unknown key model\.nam; did you mean .name.\?"):
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
        (
            ["explainer.values.weak_augmentation_fraction=1.5"],
            r"weak_augmentation_fraction must be between 0 and 1",
        ),
        (["explainer.values.predicted_class_weight=-1"], r"values\.predicted_class_weight must be 0 or more"),
        (["explainer.values.noise_offset=-0.1"], r"values\.noise_offset must be 0 or more"),
        (["surrogate.loop.validate_every=0"], r"surrogate\.loop\.validate_every must be at least 1"),
        (["classifier=null", "masked=true"], "masked: true trains the classifier, but classifier is null"),
        (["model.output=identity"], "identity is regression"),
        (["model.crop=0.9", "model.resize=256"], r"crop and resize both set"),
        (["model.mean=[0.5, 0.5]"], r"model\.mean must be 1 or 3 numbers"),
        (["model.std=[0]"], r"model\.std must be positive"),
        (["model.removal=blur"], r"model\.removal must be attention or softmax or pixels or embeddings"),
        (["data.split=theirs"], r"data\.split must be own or authors"),
    ],
)
def test_settings_that_make_no_sense(settings: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_recipe("digits", settings=settings)


def _tree(name: str, root: Path) -> str:
    """A few synthetic images in the data set's own layout."""
    if name == "digits":
        return "digits"
    if "imagenette" in name:
        for part in ("train", "val"):
            trees.class_folders(root, dict.fromkeys(IMAGENETTE_CLASSES, 1), prefix=f"{part}/")
    elif name == "paper-pets":
        trees.pets(root, per_breed=3)
    elif name == "paper-mura":
        trees.mura(root, patients=6, official_valid=2)
    elif name == "chest":
        trees.chest(root, patients=3)
    else:
        trees.class_folders(root, {"cats": 5, "dogs": 4})
    return str(root)


def _cost(name: str, size: str) -> list[pytest.MarkDecorator]:
    """Small networks are always run; others take 15 seconds to minutes each, and Pets' recipe differs in its data only."""
    always = size in ("tiny", "digits", "chest") and name != "paper-pets"
    return [] if always else [pytest.mark.long]


RUNS = [
    *((name, "tiny") for name in PAPER),
    *(("paper-imagenette", size) for size in SIZES[1:]),  # the paper's recipes differ in their data only
    ("imagenette-deit-tiny", "tiny"),
    *((name, name) for name in ("chest", "digits", "folder")),
]


@pytest.mark.filterwarnings("ignore:.*is not the known copy of", "ignore:there are no (validation|test) images")
@pytest.mark.parametrize(("name", "size"), [pytest.param(*one, marks=_cost(*one)) for one in RUNS])
def test_every_recipe_runs_two_steps_at_its_real_architecture(
    name: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The net, its 196 (or 16) players and all three trainings are the recipe's; batches and counts are small."""
    monkeypatch.setattr("vitshap.training.values.pilot.PILOT_REPEATS", 2)
    monkeypatch.setattr("vitshap.training.recipes.summary.COALITIONS", 1)
    batch = 600 if name == "digits" else 2
    few = [
        f"{stage}.loop.{key}"
        for stage in ("classifier", "surrogate", "explainer")
        for key in ("epochs=1", f"batch_size={batch}")
    ]
    few += ["surrogate.coalitions=1", "surrogate.validation_coalitions=2"]
    few += ["explainer.coalitions=2", "explainer.validation_coalitions=2"]
    few += ["explainer.values.views=1", "explainer.values.coalitions=2", "model.pretrained=false", "data.split=own"]
    model = f"vit_{size}_patch16_224" if name in PAPER else None
    with tempfile.TemporaryDirectory() as folder:  # Large writes gigabytes: gone at once, not when pytest tidies up
        images, out = Path(folder) / "images", Path(folder) / "out"
        recipe = load_recipe(name, data=_tree(name, images), model=model, settings=few)
        monkeypatch.setattr("vitshap.training.recipes.recipe.load_data", _only_a_few)
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
    assert width == WIDTH[size]
    assert (config is not None) == (name in ("digits", "imagenette-deit-tiny"))
    assert all(torch.isfinite(tensor).all() for tensor in explainer.state_dict().values())


def _only_a_few(source: str, **options: Any) -> Splits:
    """Of the training images five, so that two batches of two are an epoch; of the others one."""
    splits = load_data(source, **options)
    if source == "digits":
        return splits
    spread = torch.linspace(0, len(splits.train) - 1, 5).long()
    return Splits(splits.train.subset(spread), splits.val.subset([0]), splits.test.subset([0]))


SMALL = {"image_size": 8, "patch_size": 2, "hidden_size": 16, "layers": 1, "heads": 2, "mlp_size": 32}
QUICK = [f"{stage}.loop.epochs=2" for stage in ("classifier", "surrogate", "explainer")]
QUICK += [f"{stage}.loop.batch_size=16" for stage in ("classifier", "surrogate", "explainer")]
QUICK += ["explainer.coalitions=4", "explainer.validation_coalitions=2", "classifier.loop.learning_rate=1e-3"]


def _small(root: Path, *settings: str) -> Recipe:
    """A recipe of two classes and a net that trains in seconds."""
    data = str(trees.class_folders(root, {"cats": 30, "dogs": 30}))
    model = [f"model.{key}={value}" for key, value in SMALL.items()]
    return load_recipe("folder", data=data, model="vit", settings=[*model, *QUICK, *settings])


def test_a_surrogate_learns_to_answer_with_zeroed_pixels(tmp_path: Path) -> None:
    recipe = _small(tmp_path / "images", "model.removal=pixels", "explainer.procedure=paper")
    explainer = run(recipe, tmp_path / "out", device="cpu", estimate=False)
    surrogate = explainer.surrogate
    assert surrogate.removal == "pixels"
    assert Explainer.from_pretrained(tmp_path / "out" / "bundle").surrogate.removal == "pixels"
    images = torch.rand(2, 3, 8, 8)
    kept = torch.zeros(2, 1, 16, dtype=torch.bool)
    kept[:, :, 0] = True
    by_hand = torch.zeros_like(images)
    by_hand[:, :, :2, :2] = images[:, :, :2, :2]
    torch.testing.assert_close(surrogate(images, kept)[:, 0], surrogate(by_hand))
    one, other = (load_file(tmp_path / "out" / stage / "best.safetensors") for stage in ("classifier", "surrogate"))
    assert any(not torch.equal(one[name], other[name]) for name in one), "it was trained"


def test_one_logit_with_class_weights_is_selected_by_kappa(tmp_path: Path) -> None:
    weighted = [
        "classifier.class_weights=[0.596, 0.404]",
        "classifier.selection_metric=kappa",
        "explainer.procedure=paper",
    ]
    recipe = _small(tmp_path / "images", "model.output=sigmoid", *weighted)
    explainer = run(recipe, tmp_path / "out", device="cpu", estimate=False)
    assert (explainer.surrogate.num_classes, explainer.surrogate.class_names) == (1, ["dogs"])
    lines = [json.loads(line) for line in (tmp_path / "out/classifier/log.jsonl").read_text().splitlines()]
    assert all(-1 <= line["kappa"] <= 1 and math.isfinite(line["loss"]) for line in lines)
    assert json.loads((tmp_path / "out/summary.json").read_text())["classifier"].keys() >= {"accuracy", "kappa"}
    balanced = replace(recipe, classifier=replace(recipe.classifier, class_weights="balanced"))
    assert run(balanced, tmp_path / "balanced", device="cpu", estimate=False).surrogate.num_classes == 1


def test_training_crops_from_all_of_the_squashed_image_and_validates_on_its_middle(tmp_path: Path) -> None:
    data = load_data(trees.class_folders(tmp_path, {"cats": 10, "dogs": 10})).train
    square = ["model.resize=12", "model.squash=true", "model.interpolation=bilinear"]
    constants = ["model.mean=[0.485, 0.456, 0.406]", "model.std=[0.229, 0.224, 0.225]"]
    model = build_model(_small(tmp_path / "other", *square, *constants).model, data)
    how = Augmentation(horizontal_flip=0, vertical_flip=0, jitter=0)
    images = Images(model, data, how, seed=0)
    assert images.source.pixels.shape[-2:] == (12, 12)
    ((pixels, _),) = images.in_order(len(data))
    torch.testing.assert_close(pixels, torch.stack([model.preprocess(Image.open(path)) for path in data.images]))
    whole = replace(how, crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0))
    ((seen, _),) = Images(model, images.source, whole, seed=0).views([torch.arange(len(data))], 0)
    assert seen.shape == pixels.shape
    unit = images.source.pixels.float() / 255
    scaled = torch.nn.functional.interpolate(unit, (8, 8), mode="bilinear", align_corners=False)
    torch.testing.assert_close(seen, normalised(scaled, model.preprocess.mean, model.preprocess.std), atol=1e-5, rtol=0)


def test_weights_from_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "weights.safetensors")
    settings = load_recipe("chest", settings=[f"model.weights={tmp_path / 'weights.safetensors'}"]).model
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        build_model(settings, _two_classes())


def test_a_pattern_of_groups_can_be_given_on_the_command_line(tmp_path: Path) -> None:
    trees.write(tmp_path, *(f"{name}/s{i}-{k}.png" for name in "ab" for i in range(12) for k in range(3)))
    given = load_recipe("folder", data=str(tmp_path), settings=[r"data.groups=/(s\d+|t\d+)-"]).data
    assert given.groups == r"/(s\d+|t\d+)-"
    groups = [set(part.groups or ()) for part in load_data(given.source, groups=given.groups)]
    assert sum(len(group) for group in groups) == len(set.union(*groups)) == 12


def test_settings_that_depend_on_one_another_may_come_in_any_order() -> None:
    both = ["model.output=identity", "classifier=null"]
    assert load_recipe("digits", settings=both) == load_recipe("digits", settings=both[::-1])
    again = load_recipe("digits", settings=["classifier=null", "classifier.loop.epochs=3", "classifier.loop.seed=4"])
    assert again.classifier is not None
    assert (again.classifier.loop.epochs, again.classifier.loop.seed) == (3, 4)
    assert again.classifier.loop.batch_size == 64  # a group that was null starts from the defaults of its class
    assert load_recipe("digits", settings=["classifier.loop.epochs=3", "classifier=null"]).classifier is None
