"""Recipes: data, model and the three trainings in one typed dataclass that is read from YAML.

Shipped recipes are files in ``vitshap/recipes``; your own is given by its path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from vitshap.data import Splits, load_data
from vitshap.errors import did_you_mean
from vitshap.training.configs import (
    Auto,
    CalibrationConfig,
    ClassifierTraining,
    ExplainerTraining,
    SurrogateTraining,
    check,
)
from vitshap.training.recipes.settings import SettingsError, describe, from_plain, read_yaml, set_keys

STAGES = ("classifier", "surrogate", "explainer")
"""The trainings of a run, in order."""
Size = Literal["tiny", "small", "base", "large"]


@dataclass(frozen=True)
class DataSettings:
    """The images: where they are and how they are split."""

    source: str | None = None
    """"digits" (embedded), a folder, an archive or a folder of archives; null: given with --data."""
    layout: str = "auto"
    """Layout of the folder: auto, folder (a folder per class), imagenette, pets, mura or chest."""
    channels: int = 3
    """Channels of the images: 1 (greyscale, as digits) or 3 (RGB; greyscale images are converted)."""
    seed: int = 0
    """Seed of the random split into training, validation and test images, where the data set has no split of its own."""
    split: Literal["own", "authors"] = "own"
    """own: the data set's own split, its missing parts drawn by the seed; authors: the images and the class order of the
    paper's authors, for ImageNette, Pets and MURA."""
    groups: str | None = None
    """Images that must stay in one part, such as those of one patient: a regular expression whose parenthesised group is
    searched for in the image's path, or a .csv file with the columns file and group."""
    cache: str | None = None
    """Folder into which archives are unpacked; null: beside them."""
    unpack_limit: float | None = None
    """Largest unpacked size of an archive in GiB; null: 20 times its own size, at most 256."""


@dataclass(frozen=True)
class ModelSettings:
    """The model to be explained; its classes and channels are those of the data."""

    name: str = "vit"
    """A timm name, a transformers hub id or folder, or "vit": an untrained ViT of transformers with the sizes below."""
    library: Literal["auto", "transformers", "timm"] = "auto"
    """Library that the name belongs to; auto: transformers for folders and names with a slash, otherwise timm."""
    pretrained: bool = True
    """Start from the library's pre-trained weights ("vit" has none)."""
    tag: str | None = None
    """Tag of timm's pre-trained weights for a name without one, as in vit_tiny_patch16_224.TAG; null: timm's default."""
    fresh_head: Literal["library", "torch"] = "library"
    """Initialisation of a timm model's new head: timm's own, or PyTorch's for a linear layer."""
    weights: str | None = None
    """Safetensors file with the weights of a timm model; a head of another size is replaced by a new one."""
    head_rows: tuple[int, ...] | None = None
    """Rows of a timm model's pre-trained head to keep: one for each class of the data, in their order."""
    as_transformers: bool = False
    """Convert the timm model to the equivalent transformers model, so that the result loads without timm."""
    output: Literal["auto", "softmax", "sigmoid", "identity"] = "auto"
    """Function from logits to explained values; auto: softmax, or sigmoid for a single logit."""
    removal: Literal["attention", "softmax", "pixels", "embeddings"] = "attention"
    """How patches are withheld, also in the surrogate's training; see vitshap.wrap."""
    crop: float | None = None
    """Side of the centre crop as a share of the image's side; 1: the whole image; null: the model's own."""
    resize: int | None = None
    """Side in pixels to which images are resized before the centre crop; null: the model's own."""
    squash: bool | None = None
    """Resize to a square without keeping the aspect ratio; null: the model's own."""
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] | None = None
    """Interpolation when images are resized; null: the model's own."""
    mean: tuple[float, ...] | None = None
    """Mean that is subtracted from pixels in 0..1, one number per channel; null: the model's own."""
    std: tuple[float, ...] | None = None
    """Standard deviation by which they are then divided, one number per channel; null: the model's own."""
    seed: int = 0
    """Seed of random weights: those of a new head, or of a model that is not pre-trained."""
    image_size: int | None = None
    """Side of the images in pixels; null: that of the model or its image processor, 224 for "vit"."""
    size: Size = "tiny"
    """Preset of width, layers and heads of "vit"; the keys below override it."""
    patch_size: int = 16
    """Side of a patch of "vit", in pixels."""
    hidden_size: int | None = None
    """Width of "vit"; null: that of its size."""
    layers: int | None = None
    """Transformer blocks of "vit"; null: those of its size."""
    heads: int | None = None
    """Attention heads of "vit"; null: those of its size."""
    mlp_size: int | None = None
    """Hidden width of the MLPs of "vit"; null: four times its width."""

    def __post_init__(self) -> None:
        sizes = ("image_size", "resize", "patch_size", "hidden_size", "layers", "heads", "mlp_size")
        check(self, sizes, lambda size: size >= 1, "at least 1")
        check(self, ("mean", "std"), lambda given: len(given) in (1, 3), "1 or 3 numbers, one per channel")
        check(self, ("std",), lambda given: min(given) > 0, "positive")
        if self.crop is not None and self.resize is not None:
            raise ValueError("crop and resize both set the part of the image that the model sees: give one of them")


@dataclass(frozen=True)
class Recipe:
    """All settings of a run, from images to an explainer."""

    description: str = ""
    """What this recipe does, in one sentence."""
    resources: str = ""
    """Time and GPU memory that the recipe needs as it is, measured or projected."""
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    masked: bool = False
    """Train the classifier with masked patches, so that it is its own surrogate and no other is trained."""
    classifier: ClassifierTraining | None = field(default_factory=ClassifierTraining)
    """Fine-tuning of the model; null: explain it as it is, with its own classes."""
    surrogate: SurrogateTraining | None = field(default_factory=SurrogateTraining)
    """Fine-tuning of a copy that predicts with patches withheld; null: the classifier is its own surrogate."""
    explainer: ExplainerTraining = field(default_factory=ExplainerTraining)
    calibration: CalibrationConfig | None = field(default_factory=CalibrationConfig)
    """Standard errors of the explainer's values; null: none."""
    half: bool = False
    """Store the weights of the bundle in float16."""

    def __post_init__(self) -> None:
        if self.masked and self.classifier is None:
            raise SettingsError("masked: true trains the classifier, but classifier is null")
        if self.model.output == "identity" and self.classifier is not None:
            raise SettingsError(
                "model.output identity is regression, which class folders cannot be used for: set classifier to null to "
                "explain the model as it is, or use vitshap.training from Python"
            )
        for path, count in self._counts():
            if count != "auto" and count < 1:
                raise SettingsError(f"{path} must be at least 1, got {count}")
        for key in ("coalitions", "validation_coalitions"):
            if (n := getattr(self.explainer, key)) % 2:
                raise SettingsError(f"explainer.{key} must be even (coalitions come in complementary pairs), got {n}")

    def _counts(self) -> Iterator[tuple[str, int | Auto]]:
        """Yield the numbers that must be at least one."""
        for name in STAGES:
            for key in ("coalitions", "validation_coalitions", "validation_batch_size"):
                if hasattr(training := getattr(self, name), key):
                    yield f"{name}.{key}", getattr(training, key)
        for key in ("views", "coalitions"):
            yield f"explainer.values.{key}", getattr(self.explainer.values, key)


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes."""
    files = (resources.files("vitshap") / "recipes").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_images(settings: DataSettings) -> Splits:
    """Load the images of a recipe; their source must be set."""
    assert settings.source is not None
    return load_data(
        settings.source,
        layout=settings.layout,
        channels=settings.channels,
        split=settings.split,
        groups=settings.groups,
        seed=settings.seed,
        cache=settings.cache,
        unpack_limit=settings.unpack_limit,
    )


def load_recipe(
    name: str | Path, *, data: str | None = None, model: str | None = None, settings: Sequence[str] = ()
) -> Recipe:
    """Load a shipped recipe by name or your own by path, with the changes of ``--data``, ``--model`` and ``--set``."""
    recipe = from_plain(Recipe(), read_yaml(_text(name), str(name)) or {})
    changes: dict[str, Any] = {}
    if data is not None:
        changes["data"] = {"source": data}
    if model is not None:  # its library follows from the name, whatever the recipe's own model was
        changes["model"] = {"name": model, "library": "auto"}
    return set_keys(from_plain(recipe, changes), settings)


def _text(name: str | Path) -> str:
    known = recipe_names()
    if str(name) in known:
        return (resources.files("vitshap") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    path = Path(os.path.expanduser(name))
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise SettingsError(f"there is no recipe file {path}")
        return path.read_text(encoding="utf-8")
    if not str(name):
        raise SettingsError(f"give the name of a recipe or the path of a YAML file; known: {', '.join(known)}")
    raise SettingsError(f"there is no recipe or YAML file {str(name)!r}{did_you_mean(str(name), known)}")


def print_recipes(console: Console) -> None:
    """Print names, descriptions, time and memory of the shipped recipes."""
    table = Table(box=None, show_header=False)
    for name in recipe_names():
        recipe = load_recipe(name)
        table.add_row(name, Group(Text(recipe.description), Text(recipe.resources, "dim")))
    console.print(table)


def print_keys(recipe: Recipe, console: Console) -> None:
    """Print all settings with their values and their help."""
    console.print("Set with --set KEY=VALUE:", highlight=False)
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    for key in describe(recipe):
        takes = "" if key.takes == "a group of keys" else f"({key.takes})"
        table.add_row(f"[bold]{key.path}[/]", Group(Text(key.value), Text(f"{key.help} {takes}".strip(), "dim")))
    console.print(table)
