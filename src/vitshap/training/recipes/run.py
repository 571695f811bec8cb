"""``vitshap train``: run a recipe from images to a stored explainer, in stages that can be interrupted and resumed.

The output folder holds ``recipe.yaml`` (every setting as it was used) and ``images.json`` (which images), a folder for each
training with its checkpoints, log, best weights and, once it is complete, ``done.json``; then ``calibration`` (converged
values of validation images), ``summary.json`` and ``bundle``. With several processes (``accelerate launch``) all of them
compute, and the main process prints and writes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from rich.console import Console
from torch import Tensor, nn

from vitshap import files
from vitshap.data import ImageData, PixelSource, SplitRecord, Splits, open_pixels, require_a_batch
from vitshap.data.decode import Unreadable
from vitshap.explainers import Explainer
from vitshap.files import LOCK, locked_folder
from vitshap.models import MaskedModel
from vitshap.models.base import resolve_device
from vitshap.models.load import ModelSpec, load_model
from vitshap.training.batches import decoding
from vitshap.training.configs import resolve_auto
from vitshap.training.explainer import fit_explainer, network_config
from vitshap.training.fit import fit_classifier, fit_masked_classifier, fit_surrogate
from vitshap.training.loop import BEST
from vitshap.training.processes import from_main, join, kept_random_state, memory_limit, tensors_from_main
from vitshap.training.recipes import timing
from vitshap.training.recipes.clock import duration
from vitshap.training.recipes.recipe import STAGES, ModelSettings, Recipe, load_images
from vitshap.training.recipes.settings import SettingsError, differing_keys, from_plain, read_yaml, to_plain, to_yaml
from vitshap.training.recipes.summary import announcement, in_words, summarise
from vitshap.training.values.reference import calibrate_on_validation
from vitshap.training.values.store import require_confidences

RECIPE, IMAGES, DONE = "recipe.yaml", "images.json", "done.json"
SUMMARY, BUNDLE, CALIBRATION = "summary.json", "bundle", "calibration"
AUTO_KEYS = ("epochs", "batch_size", "learning_rate", "coalitions", "views", "compiled")
"""Keys whose "auto" is replaced when a training starts."""
TEXTS = ("description", "resources", "calibration")
"""Keys that do not affect a training."""
M = TypeVar("M", bound=nn.Module)


def run(
    recipe: Recipe,
    out: str | Path,
    /,
    *,
    resume: bool = False,
    console: Console | None = None,
    device: str | torch.device = "auto",
    estimate: bool = True,
) -> Explainer:
    """Run all trainings of the recipe and return the explainer; everything is written to the folder ``out``.

    ``resume`` continues a run in that folder; ``estimate`` times a few steps first and prints how long the run will take.
    """
    out = Path(os.path.expanduser(out))
    check_folder(recipe, out, resume=resume)
    state = _process_state(device)
    # A caller's Accelerator may be for another device: the argument decides.
    place = state.device if state.num_processes > 1 else resolve_device(device)
    if not state.is_main_process or console is None:
        console = Console(quiet=True)
    lock = locked_folder(out) if state.is_main_process else nullcontext()
    with lock, kept_random_state(place):
        recipe = check_folder(recipe, out, resume=resume)  # again, because another run may have just ended
        return _run(recipe, out, state, place, console, estimate)


def _run(
    recipe: Recipe, out: Path, state: PartialState, place: torch.device, console: Console, estimate: bool
) -> Explainer:
    started = time.perf_counter()
    with state.main_process_first():  # one process unpacks archives, the others find them unpacked
        splits = _load_data(recipe, console)
    from_main(lambda: check_images(splits, out))
    _say(console, f"building {recipe.model.name}")
    model = build_model(recipe.model, splits.train, keep_head=recipe.classifier is None).to(place)
    if recipe.explainer.procedure == "values":  # before the other trainings, not after them
        require_confidences(model, recipe.explainer.values.low_confidence_oversampling)
    recipe = _resolve_auto(recipe, model, len(splits.train))
    _say(console, announcement(recipe, model, splits, state))
    done = from_main(lambda: [name for name in STAGES if (out / name / DONE).is_file()])
    recipe = timing.print_estimate(recipe, model, splits, done, console if estimate else None)
    _say(console, f"reading {sum(len(part) for part in splits):,} images")
    stages = _Stages(recipe, out, _open(model, splits), state, console)
    state.wait_for_everyone()
    if state.is_main_process:  # after all images were read: a failure until then leaves nothing behind
        write_description(recipe, splits, out)
    state.wait_for_everyone()
    classifier, explainer = stages.run(model)
    if state.is_main_process:
        explainer.trained_on = split_record(recipe, splits).to_json()
        # Before testing: the trained explainer is kept even if reading test images fails.
        explainer.save_pretrained(out / BUNDLE, half=recipe.half, overwrite=True)
        if (errors := recipe.calibration) is not None:
            explainer.calibration = calibrate_on_validation(explainer, stages.val, out / CALIBRATION, errors, console)
        console.print("evaluating on test images")
        found = summarise(recipe, out, classifier, explainer, stages.train, stages.test, splits.test.class_names)
        files.write_text(out / SUMMARY, json.dumps(found, indent=2) + "\n")
        explainer.save_pretrained(out / BUNDLE, half=recipe.half, quality=found, overwrite=True)
        for line in in_words(found):
            _say(console, line)
        took = duration(time.perf_counter() - started)
        _say(console, f"{took}; the explainer is in {out / BUNDLE}")
    state.wait_for_everyone()
    return explainer


class _Stages:
    """The three trainings; a complete one is loaded, an interrupted one is resumed."""

    def __init__(
        self, recipe: Recipe, out: Path, images: list[PixelSource], state: PartialState, console: Console
    ) -> None:
        self.recipe, self.out, self.state, self.console = recipe, out, state, console
        self.train, self.val, self.test = images

    def run(self, model: MaskedModel) -> tuple[MaskedModel, Explainer]:
        recipe, self.device = self.recipe, model.device
        data, val = self.train, self.val
        classifier, surrogate = model, model
        if recipe.classifier is not None:
            fit = fit_masked_classifier if recipe.masked else fit_classifier
            classifier = self._stage(
                "classifier",
                lambda folder: fit(model, data, val, folder, recipe.classifier, resume=True, console=self.console),
                lambda: model,
            )
        surrogate = classifier
        if recipe.surrogate is not None and not recipe.masked:
            surrogate = self._stage(
                "surrogate",
                lambda folder: fit_surrogate(
                    classifier, data, val, folder, recipe.surrogate, resume=True, console=self.console
                ),
                lambda: copy.deepcopy(classifier),
            )
        config = recipe.explainer
        explainer = self._stage(
            "explainer",
            lambda folder: fit_explainer(
                surrogate, data, val, folder, config, classifier=classifier, resume=True, console=self.console
            ),
            lambda: Explainer(surrogate, network_config(config, surrogate.num_players), classifier=classifier),
        )
        return classifier, explainer

    def _stage(self, name: str, fit: Callable[[Path], M], empty: Callable[[], M]) -> M:
        """Train, or load the best weights of a complete training into an ``empty`` network."""
        folder = self.out / name
        if from_main((folder / DONE).is_file):
            _say(self.console, f"{name}: already trained, loaded from {folder / BEST}")
            net = empty()
            weights, _ = tensors_from_main(lambda: (files.read_tensors(folder / BEST), None))
            files.load_weights(net, weights, folder / BEST)
            return net.to(self.device).eval()
        self.console.print(f"training the {name}", style="bold")
        started = time.perf_counter()
        trained = fit(folder).eval()
        record = {"seconds": round(time.perf_counter() - started, 1), "processes": self.state.num_processes}
        self.state.wait_for_everyone()
        if self.state.is_main_process:
            files.write_text(folder / DONE, json.dumps(record) + "\n")
        self.state.wait_for_everyone()
        return trained


def _open(model: MaskedModel, splits: Splits) -> list[PixelSource]:
    """Open the three parts, decoded once, because all networks take images of one size.

    Unreadable images are counted over all parts, and reported before any training starts.
    """
    how, unreadable = decoding(model), Unreadable(sum(len(part) for part in splits))
    return [
        open_pixels(part, how, device=model.device, memory_limit=memory_limit(model.device), unreadable=unreadable)
        for part in splits
    ]


def _process_state(device: str | torch.device) -> Any:
    """Join the other processes and return accelerate's state."""
    place = resolve_device(device)
    join(place)
    return PartialState(cpu=place.type == "cpu")


def _resolve_auto(recipe: Recipe, model: MaskedModel, samples: int) -> Recipe:
    """Return the recipe with numbers in place of "auto"."""
    chosen = {
        name: resolve_auto(config, model, samples) for name in STAGES if (config := getattr(recipe, name)) is not None
    }
    return replace(recipe, **chosen)


def _load_data(recipe: Recipe, console: Console) -> Splits:
    settings = recipe.data
    if settings.source is None:
        raise ValueError("this recipe does not name the images: give a folder or an archive with --data PATH")
    _say(console, f"looking for images in {settings.source}")
    splits = load_images(settings)
    given = {name: getattr(recipe, name).loop.batch_size for name in STAGES if getattr(recipe, name) is not None}
    sizes = {name: 1 if size == "auto" else size for name, size in given.items()}
    count = len(splits.train)
    too_large = " ".join(f"--set {name}.loop.batch_size=N" for name, size in sizes.items() if size > count)
    require_a_batch(count, max(sizes.values()), "the training set", set_by=too_large)
    return splits


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def check_folder(recipe: Recipe, out: Path, *, resume: bool) -> Recipe:
    """Refuse to overwrite a folder, or to resume a run with other settings than those it was started with.

    Returns the recipe with the numbers that replaced "auto" when the run was started.
    """
    if out.is_file():
        raise ValueError(f"{out} is a file: give a folder")
    if not out.exists() or not any(path.name != LOCK for path in out.iterdir()):
        return recipe
    stored = out / RECIPE
    if not resume:
        hint = "continue it with --resume, or " if stored.is_file() else ""
        raise ValueError(f"the folder {out} is not empty: {hint}choose another with --out")
    if not stored.is_file():
        raise ValueError(f"{out} holds no run that could be resumed: it has no {RECIPE}")
    before = read_yaml(stored.read_text(encoding="utf-8"), str(stored))
    try:
        from_plain(recipe, before)
    except SettingsError as error:
        raise ValueError(
            f"{out} cannot be resumed: {stored.name} is damaged or of another version ({error})"
        ) from error
    recipe = from_plain(recipe, _with_chosen(to_plain(recipe), before))
    differing = differing_keys(before, to_plain(recipe))
    started = [name for name in STAGES if (out / name / "checkpoints").exists() or (out / name / DONE).is_file()]
    free = (*TEXTS, *(f"{name}{sign}" for name in STAGES if name not in started for sign in ".:"))  # may change
    if differing := [line for line in differing if not line.startswith(free)]:
        raise ValueError(
            f"{out} was started with other settings and cannot be resumed with these; {stored.name} / now: "
            f"{'; '.join(differing)}"
        )
    return recipe


def _with_chosen(now: Any, before: Any) -> Any:
    """Return ``now`` with the values of ``before`` in place of "auto"."""
    if not isinstance(now, dict) or not isinstance(before, dict):
        return now
    return {
        key: before[key]
        if key in AUTO_KEYS and value == "auto" and key in before
        else _with_chosen(value, before.get(key))
        for key, value in now.items()
    }


def check_images(splits: Splits, out: Path) -> None:
    """Refuse to resume a run with other images than those it was started with."""
    try:
        before = files.read_json(out / IMAGES)
    except FileNotFoundError:
        return  # nothing was started
    for name, now in _describe_images(splits).items():
        then = before.get(name) if isinstance(before, dict) else None
        if then == now:
            continue
        if not isinstance(then, dict):
            raise ValueError(f"{out / IMAGES} is damaged: it does not describe the {name} images")
        counts = then.get("images"), now["images"]
        how = "as many, but not the same" if counts[0] == counts[1] else f"{counts[0]} then, {counts[1]} now"
        raise ValueError(f"{out} was started with other images ({name}: {how}): choose another folder with --out")


def write_description(recipe: Recipe, splits: Splits, out: Path) -> None:
    """Write the settings and images of this run."""
    files.write_text(out / RECIPE, to_yaml(to_plain(recipe)))
    files.write_text(out / IMAGES, json.dumps(_describe_images(splits), indent=2) + "\n")


def split_record(recipe: Recipe, splits: Splits) -> SplitRecord:
    """Return which images were held out, for the bundle."""
    data = recipe.data
    return SplitRecord.of(splits, layout=data.layout, split=data.split, seed=data.seed, groups=data.groups)


def _describe_images(splits: Splits) -> dict[str, dict[str, Any]]:
    return {
        name: {"images": len(part), "sha256": _hash(part)} for name, part in zip(Splits._fields, splits, strict=True)
    }


def _hash(data: ImageData) -> str:
    """Return a hash of the images' names, or of their pixels, and of their classes."""
    digest = hashlib.sha256(json.dumps(data.class_names).encode())
    digest.update(data.labels.numpy().tobytes())
    if isinstance(data.images, Tensor):
        digest.update(data.images.contiguous().numpy().tobytes())
    else:
        digest.update("\0".join(f"{path.parent.name}/{path.name}" for path in data.images).encode())
    return digest.hexdigest()


def build_model(settings: ModelSettings, data: ImageData, *, keep_head: bool = False) -> MaskedModel:
    """Load the model for these images and wrap it, on the CPU.

    ``keep_head`` leaves a pre-trained model its own classes, for it is not going to be trained.
    """
    shared = {field.name for field in fields(ModelSpec)} & {field.name for field in fields(settings)}
    return load_model(
        ModelSpec(
            **{name: getattr(settings, name) for name in shared},
            class_names=_class_names(settings, data),
            keep_head=keep_head,
            channels=data.channels,
            raw_pixels=isinstance(data.images, Tensor),  # pixels that come as numbers are the input as they are
            option="model.{}",
        )
    )


def _class_names(settings: ModelSettings, data: ImageData) -> tuple[str, ...]:
    """Return one name per output; two classes under a sigmoid are one logit, that of the second."""
    names = tuple(data.class_names)
    if settings.output != "sigmoid":
        return names
    if len(names) != 2:
        raise ValueError(
            f"model.output sigmoid: images in folders have one class each, so it suits 2 classes, not {len(names)}"
        )
    return names[1:]
