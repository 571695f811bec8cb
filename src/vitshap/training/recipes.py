"""A recipe: data, model and the three trainings, as one typed dataclass that is read from YAML.

Recipes that come with the package are files in ``vitshap/recipes``; anybody's own is a path.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from vitshap.training.configs import ClassifierTraining, ExplainerTraining, SurrogateTraining
from vitshap.training.loop import Auto
from vitshap.training.settings import SettingsError, from_plain, read_yaml, set_keys

Size = Literal["tiny", "small", "base", "large"]


@dataclass(frozen=True)
class DataSettings:
    """Where the images are."""

    source: str | None = None
    """"digits" (embedded), a folder, an archive or a folder of archives; null: it is given with --data."""
    layout: str = "auto"
    """How the folder is laid out: auto, folder (a folder per class), imagenette, pets, mura or chest."""
    channels: int = 3
    """1 reads images as grey, 3 as red, green and blue (grey ones too). Digits have 1."""
    seed: int = 0
    """Which images are set aside for validation and test, where the data set does not say."""
    split: Literal["own", "authors"] = "own"
    """own: the data set's parts, and the missing ones by the seed; authors: the images and the order of classes of the
    paper's authors, for ImageNette, Pets and MURA."""
    groups: str | None = None
    """What must stay together in one part, such as the images of one patient: a regular expression whose group, in
    parentheses, is searched for in the image's path, or a .csv file of (file, group)."""
    cache: str | None = None
    """Folder where archives are unpacked; null: next to them."""
    unpack_limit: float | None = None
    """GiB that an archive may be unpacked to; null: 20 times its size, at most 256."""


@dataclass(frozen=True)
class ModelSettings:
    """The net that is explained; its classes and channels are those of the data."""

    name: str = "vit"
    """A timm name, a transformers hub id or local folder, or "vit": transformers' plain ViT of the sizes below."""
    library: Literal["auto", "transformers", "timm"] = "auto"
    """Whose name it is; auto: transformers for folders and for names with a slash, else timm. "vit" is always ours."""
    pretrained: bool = True
    """Start from the library's pre-trained weights; "vit" has none."""
    tag: str | None = None
    """Which of timm's pre-trained weights a name without a tag stands for, as in vit_tiny_patch16_224.TAG; null: timm's
    first."""
    fresh_head: Literal["library", "torch"] = "library"
    """How the head of a timm net is drawn for new classes: as timm draws it, or as PyTorch draws a linear layer."""
    weights: str | None = None
    """Safetensors file with the weights of a timm net; a head of another size is replaced."""
    head_rows: tuple[int, ...] | None = None
    """Rows of the pre-trained head of a timm net that are the data's classes, in their order: these are kept."""
    as_transformers: bool = False
    """Turn timm's net into the equal net of transformers, so that what is trained loads without timm."""
    output: Literal["auto", "softmax", "sigmoid", "identity"] = "auto"
    """What turns logits into values; auto: softmax, or sigmoid for one logit."""
    removal: Literal["attention", "softmax", "pixels", "embeddings"] = "attention"
    """How patches are withheld, from the surrogate in training too: see wrap."""
    crop: float | None = None
    """Share of the image's side that the net sees; null: what the model says; 1: all of it."""
    resize: int | None = None
    """Side in pixels that images are resized to before the net's part is cut; null: what the model says."""
    squash: bool | None = None
    """Resize to a square whatever the aspect ratio is; null: what the model says."""
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] | None = None
    """How images are resized; null: what the model says."""
    mean: tuple[float, ...] | None = None
    """What is subtracted from pixels in 0..1, one number per channel; null: what the model says."""
    std: tuple[float, ...] | None = None
    """What they are divided by after that; null: what the model says."""
    seed: int = 0
    """Of weights that are drawn: those of a fresh head, or of a net that is not pre-trained."""
    image_size: int | None = None
    """Side of the images in pixels; null: what the net, or the image processor stored with it, says; 224 for "vit"."""
    size: Size = "tiny"
    """Width, layers and heads of "vit", unless they are given."""
    patch_size: int = 16
    """Side of a patch of "vit", in pixels."""
    hidden_size: int | None = None
    """Width of "vit"; null: by its size."""
    layers: int | None = None
    """Blocks of "vit"; null: by its size."""
    heads: int | None = None
    """Attention heads of "vit"; null: by its size."""
    mlp_size: int | None = None
    """Width inside the MLPs of "vit"; null: four times its own."""

    def __post_init__(self) -> None:
        for key in ("image_size", "resize", "patch_size", "hidden_size", "layers", "heads", "mlp_size"):
            if (number := getattr(self, key)) is not None and number < 1:
                raise ValueError(f"{key} must be at least 1, got {number}")
        if self.crop is not None and self.resize is not None:
            raise ValueError("crop and resize both say how much of the image the net sees: give one of them")
        for key in ("mean", "std"):
            if (given := getattr(self, key)) is not None and len(given) not in (1, 3):
                raise ValueError(f"{key} is 1 or 3 numbers, one per channel, got {len(given)}")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {list(self.std)}")


@dataclass(frozen=True)
class Recipe:
    """From images to an explainer."""

    description: str = ""
    """What this recipe is."""
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    masked: bool = False
    """Train the classifier with missing patches: it is its own surrogate, and no other is trained."""
    classifier: ClassifierTraining | None = field(default_factory=ClassifierTraining)
    """Fine-tuning of the net; null: it is explained as it is, with its own classes."""
    surrogate: SurrogateTraining | None = field(default_factory=SurrogateTraining)
    """Fine-tuning of a copy that answers with missing patches; null: the classifier is used as its own surrogate."""
    explainer: ExplainerTraining = field(default_factory=ExplainerTraining)
    half: bool = False
    """Store the weights of the bundle as float16."""

    def __post_init__(self) -> None:
        if self.masked and self.classifier is None:
            raise SettingsError("masked: true trains the classifier, but classifier is null")
        if self.model.output == "identity" and self.classifier is not None:
            raise SettingsError(
                "model.output identity is regression, which class folders cannot teach: set classifier to null to explain "
                "the net as it is, or use vitshap.training from Python"
            )
        for path, count in self._counts():
            if count != "auto" and count < 1:
                raise SettingsError(f"{path} must be at least 1, got {count}")
        for key in ("coalitions", "validation_coalitions"):
            if (n := getattr(self.explainer, key)) % 2:
                raise SettingsError(
                    f"explainer.{key} must be even, for coalitions come with their complements; got {n}"
                )

    def _counts(self) -> Iterator[tuple[str, int | Auto]]:
        """Numbers that must be at least one."""
        for name in ("classifier", "surrogate", "explainer"):
            for key in ("coalitions", "validation_coalitions", "validation_batch"):
                if hasattr(training := getattr(self, name), key):
                    yield f"{name}.{key}", getattr(training, key)
        for key in ("views", "coalitions"):
            yield f"explainer.values.{key}", getattr(self.explainer.values, key)


def recipe_names() -> list[str]:
    """Recipes that come with the package."""
    return sorted(name.removesuffix(".yaml") for name in (file.name for file in _shipped()) if name.endswith(".yaml"))


def load_recipe(
    name: str | Path, *, data: str | None = None, model: str | None = None, settings: Sequence[str] = ()
) -> Recipe:
    """A shipped recipe by name or one's own by path, with what ``--data``, ``--model`` and ``--set`` change."""
    recipe = from_plain(Recipe(), read_yaml(_text(name), str(name)) or {})
    changes: dict[str, Any] = {}
    if data is not None:
        changes["data"] = {"source": data}
    if model is not None:  # whose it is follows from the name, whatever the recipe's own model was
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
        raise SettingsError(f"which recipe? Known: {', '.join(known)}; or the path of a YAML file")
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ";"
    raise SettingsError(f"there is no recipe {str(name)!r}{hint} Known: {', '.join(known)}; or the path of a YAML file")


def _shipped() -> Iterator[Any]:
    yield from (resources.files("vitshap") / "recipes").iterdir()
