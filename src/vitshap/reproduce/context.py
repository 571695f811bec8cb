"""What a step works with: the images, networks and earlier results of one setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from vitshap import files
from vitshap.data import ImageData, PixelSource, Splits, open_pixels
from vitshap.data.published import authors_evaluation_images
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel
from vitshap.reproduce.profiles import Profile, Scale, Setting
from vitshap.reproduce.specifications import EXPLAINERS, OURS
from vitshap.reproduce.store import Result, Store, digest_of_files
from vitshap.training.batches import Images, decoding, evenly
from vitshap.training.configs import ClassifierTraining, ExplainerTraining, SurrogateTraining, resolve_auto
from vitshap.training.explainer import network_config
from vitshap.training.recipes import load_recipe
from vitshap.training.recipes.recipe import Recipe, load_images
from vitshap.training.recipes.run import build_model
from vitshap.training.recipes.settings import to_plain

SEED = 0
EVALUATED = 1024
"""Images of a test split that the authors evaluated: the first in an order shuffled by ``SHUFFLE``."""
SHUFFLE = 42


@dataclass(frozen=True)
class Sources:
    """Where images and pre-trained weights are."""

    data: Mapping[str, str]
    """Folders or archives, by the name of the data set; "" for every other one."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Safetensors files with the weights that models start from, by setting; "" for every other one. Default: timm's."""
    cache: Path | None = None
    """Where archives are unpacked."""


EXPLAINER_STEPS = {EXPLAINERS[0]: "train-explainer-paper", OURS: "train-explainer-default"}
"""The steps that train both explainers, by their row."""


class Context:
    """One setting of a profile, on one device."""

    def __init__(
        self,
        profile: Profile,
        setting: Setting,
        store: Store,
        sources: Sources,
        device: torch.device,
        console: Console | None = None,
    ) -> None:
        self.profile, self.setting, self.store, self.sources = profile, setting, store, sources
        self.device, self.console = device, console or Console(quiet=True)

    @property
    def scale(self) -> Scale:
        """Numbers of the measurements."""
        return self.profile.scale

    @property
    def weights(self) -> str | None:
        """File of the weights that the model starts from, if one was given."""
        return self.sources.weights.get(self.setting.name) or self.sources.weights.get("")

    @cached_property
    def pretrained_digest(self) -> str | None:
        """Digest of that file."""
        return None if self.weights is None else digest_of_files([Path(self.weights)])

    @cached_property
    def recipe(self) -> Recipe:
        """Recipe of classifier, surrogate and the explainer by the paper's procedure."""
        setting = self.setting
        source = self.sources.data.get(setting.data) or self.sources.data.get("")
        changes = [*self.scale.training, *setting.changes]
        if self.sources.cache is not None:
            changes.append(f"data.cache={self.sources.cache}")
        if self.weights is not None:
            changes.append(f"model.weights={self.weights}")
        return load_recipe(setting.recipe, data=source, model=setting.model, settings=changes)

    @cached_property
    def classifier_training(self) -> ClassifierTraining:
        """Settings of the classifier and of the masked classifier."""
        return replace(self.recipe.classifier or ClassifierTraining(), compiled=self.device.type == "cuda")

    @cached_property
    def surrogate_training(self) -> SurrogateTraining:
        """Settings of the surrogates."""
        return replace(self.recipe.surrogate or SurrogateTraining(), compiled=self.device.type == "cuda")

    @cached_property
    def default_explainer(self) -> ExplainerTraining:
        """Settings of the explainer by our default procedure."""
        changes = [*self.scale.default_training, *self.setting.default_changes]
        recipe = load_recipe(self.setting.default_recipe, settings=changes)
        return replace(recipe.explainer, compiled=self.device.type == "cuda")

    @cached_property
    def paper_explainer(self) -> ExplainerTraining:
        """Settings of the explainer by the paper's procedure."""
        return replace(self.recipe.explainer, compiled=self.device.type == "cuda")

    @cached_property
    def described(self) -> dict[str, Any]:
        """Everything that steps of this setting depend on, besides earlier steps, as JSON."""
        recipe = to_plain(self.recipe)
        for key in ("source", "cache", "unpack_limit"):  # the images are the same wherever they are
            recipe["data"].pop(key)
        recipe["model"].pop("weights")
        default = {**to_plain(self.default_explainer), "compiled": None}
        recipe["explainer"]["compiled"] = None  # a result is the same with and without, but for rounding
        for name in ("classifier", "surrogate"):
            if recipe[name] is not None:
                del recipe[name]["compiled"]  # results that are older than this setting are still valid
        setting: dict[str, Any] = {"abnormal": self.setting.abnormal, "explained_others": self.setting.explained_others}
        # left out at the default, so that results that are older than these settings are still valid
        if self.scale.curve_step != 1:
            setting["curve_step"] = self.scale.curve_step
        if self.scale.loss_images is not None:
            default["loss_images"] = recipe["explainer"]["loss_images"] = self.scale.loss_images
        return {"recipe": recipe, "default": default, "setting": setting, "scale": asdict(self.scale), "seed": SEED}

    @cached_property
    def splits(self) -> Splits:
        """The images."""
        settings = self.recipe.data
        if settings.source is None:
            raise ValueError(f"where are the images of {self.setting.data}? Give --data {self.setting.data}=PATH")
        try:
            splits = load_images(settings)
        except (OSError, ValueError) as error:
            raise ValueError(f"the images of {self.setting.data}: {error}") from error
        if self.scale.split is None:
            return splits
        most = (len(part) if count is None else count for part, count in zip(splits, self.scale.split, strict=True))
        return Splits(*(part.subset(evenly(len(part), count)) for part, count in zip(splits, most, strict=True)))

    def opened(self, part: str, model: MaskedModel) -> PixelSource:
        """Open the images of a part ("train", "val" or "test") for a model."""
        return self._opened(getattr(self.splits, part), model)

    def of_losses(self, part: str, model: MaskedModel) -> PixelSource:
        """Open the images of a part on which losses of explainers are measured."""
        data: ImageData = getattr(self.splits, part)
        if self.scale.loss_images is not None:
            data = data.subset(evenly(len(data), self.scale.loss_images))
        return self._opened(data, model)

    def _opened(self, data: ImageData, model: MaskedModel) -> PixelSource:
        return open_pixels(data, decoding(model), device=self.device)

    @cached_property
    def evaluated(self) -> ImageData:
        """The test images of tables and curves: the authors', or the first of the shuffled test split."""
        test = self.splits.test
        if self.recipe.data.split == "authors" and test.name in ("imagenette", "pets"):
            test = authors_evaluation_images(test, "tables")
        elif self.setting.abnormal is not None and self.scale.images is None:
            order = list(range(len(test)))
            Random(SHUFFLE).shuffle(order)
            test = test.subset(sorted(order[:EVALUATED]))
        if self.scale.images is not None and self.scale.images < len(test):
            test = test.subset(evenly(len(test), self.scale.images))
        return test

    @cached_property
    def compared(self) -> ImageData:
        """The test images whose Shapley values are estimated with many evaluations."""
        test = self.splits.test
        if self.recipe.data.split == "authors" and test.name == "imagenette":
            test = authors_evaluation_images(test, "kernelshap")
        elif self.scale.shapley_images is None:
            test = test.subset(evenly(len(test), 100))
        if self.scale.shapley_images is not None:
            test = test.subset(evenly(len(test), self.scale.shapley_images))
        return test

    def pixels(self, model: MaskedModel, data: ImageData) -> Tensor:
        """Return preprocessed images ``[n, C, H, W]``."""
        return torch.cat([pixels for pixels, _ in Images(model, data, None, seed=SEED).in_order(256)])

    def initial(self) -> MaskedModel:
        """Return the network that training starts from: pre-trained, or with random weights."""
        return build_model(self.recipe.model, self.splits.train).to(self.device)

    def result(self, step: str) -> Result:
        """Return the result of an earlier step."""
        found = self.store.find(self.setting.name, step)
        if found is None:
            raise ValueError(f"{self.setting.name}/{step} has not been run")
        return found

    def trained(self, step: str) -> MaskedModel:
        """Return the network that a training step left."""
        spec = self.recipe.model
        if step == "train-surrogate-pixels":
            spec = replace(spec, removal="pixels")
        model = build_model(replace(spec, pretrained=False, weights=None), self.splits.train)
        result = self.result(step)
        files.load_weights(model.net, result.weights(), result.folder)
        if step != "train-classifier" and "classifier" in result.values:
            model.classifier_fingerprint = result.values["classifier"]
        return model.to(self.device).eval()

    @cached_property
    def classifier(self) -> MaskedModel:
        """The classifier that is explained."""
        return self.trained("train-classifier")

    @cached_property
    def surrogate(self) -> MaskedModel:
        """Its surrogate."""
        return self.trained("train-surrogate")

    def explainer(self, step: str, surrogate: MaskedModel | None = None) -> Explainer:
        """Return the explainer that a training step left."""
        surrogate = self.surrogate if surrogate is None else surrogate
        config = resolve_auto(self.explainer_config(step), surrogate, len(self.splits.train))
        explainer = Explainer(surrogate, network_config(config, surrogate.num_players))
        result = self.result(step)
        files.load_weights(explainer, result.weights(), result.folder)
        return explainer.to(self.device).eval()

    def explainer_config(self, step: str) -> ExplainerTraining:
        """Return the settings of a step that trains an explainer."""
        return self.default_explainer if step == "train-explainer-default" else self.paper_explainer

    def explainers(self) -> dict[str, Explainer]:
        """Return both explainers of the surrogate, by their row."""
        return {row: self.explainer(step) for row, step in EXPLAINER_STEPS.items()}
