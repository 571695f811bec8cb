"""``vitshap train``: a recipe from beginning to end, in stages that can be interrupted and continued.

The folder holds ``recipe.yaml`` (every setting as it was used) and ``images.json`` (which images), a folder for each
training with its checkpoints, log, best weights and, once it has ended, ``done.json``; then ``summary.json`` and
``bundle``. With several processes (``accelerate launch``) all compute, and one prints and writes.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from rich.console import Console
from torch import nn

from vitshap import files
from vitshap.data import PixelSource, Splits, load_data, open_pixels, require_a_batch
from vitshap.data.decode import Unreadable
from vitshap.devices import resolve_device
from vitshap.explainers import Explainer
from vitshap.files import locked_folder
from vitshap.models import MaskedModel
from vitshap.training import timing
from vitshap.training.batches import decodes_by
from vitshap.training.begun import DONE, STAGES, check_folder, check_images, note
from vitshap.training.configs import suited
from vitshap.training.explainer import fit_explainer, network_config
from vitshap.training.fit import fit_classifier, fit_masked_classifier, fit_surrogate
from vitshap.training.loop import BEST
from vitshap.training.nets import build_model
from vitshap.training.processes import from_main, join, kept_random_state, memory_limit, tensors_from_main
from vitshap.training.recipes import Recipe
from vitshap.training.summary import in_words, summarise

SUMMARY, BUNDLE = "summary.json", "bundle"
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
    """Train what the recipe says and return the explainer; everything is kept in the folder ``out``.

    ``resume`` continues what the folder holds; ``estimate`` times a few steps first and prints how long it will take.
    """
    out = Path(os.path.expanduser(out))
    check_folder(recipe, out, resume=resume)
    state = _processes(device)
    # Where the caller has an Accelerator for another device, what was asked for here counts.
    place = state.device if state.num_processes > 1 else resolve_device(device)
    if not state.is_main_process or console is None:
        console = Console(quiet=True)
    alone = locked_folder(out) if state.is_main_process else nullcontext()
    with alone, kept_random_state(place):
        recipe = check_folder(recipe, out, resume=resume)  # again, for another run may just have ended
        return _run(recipe, out, state, place, console, estimate)


def _run(
    recipe: Recipe, out: Path, state: PartialState, place: torch.device, console: Console, estimate: bool
) -> Explainer:
    started = time.perf_counter()
    with state.main_process_first():  # one process unpacks archives, the others find them unpacked
        splits = _data(recipe, console)
    from_main(lambda: check_images(splits, out))
    console.print(f"building {recipe.model.name}", highlight=False, soft_wrap=True)
    model = build_model(recipe.model, splits.train, keep_head=recipe.classifier is None).to(place)
    recipe = _with_numbers(recipe, model, len(splits.train))
    _announce(recipe, model, splits, state, console)
    recipe = _estimated(recipe, model, splits, out, console if estimate else None)
    console.print(f"reading {sum(len(part) for part in splits):,} images", highlight=False)
    stages = _Stages(recipe, out, _opened(model, splits), state, console)
    state.wait_for_everyone()
    if state.is_main_process:  # not before all images were read: what fails until then leaves nothing behind
        note(recipe, splits, out)
    state.wait_for_everyone()
    classifier, explainer = stages.run(model)
    if state.is_main_process:
        # Before anything is measured: whatever may be wrong with test images, what was trained is kept.
        explainer.save_pretrained(out / BUNDLE, half=recipe.half, overwrite=True)
        console.print("measuring on test images")
        found = summarise(recipe, out, classifier, explainer, stages.train, stages.test, splits.test.class_names)
        files.write_text(out / SUMMARY, json.dumps(found, indent=2) + "\n")
        explainer.save_pretrained(out / BUNDLE, half=recipe.half, quality=found, overwrite=True)
        for line in in_words(found):
            console.print(line, highlight=False, soft_wrap=True)
        took = timing.about(time.perf_counter() - started).removeprefix("about ")
        console.print(f"{took}; the explainer is in {out / BUNDLE}", highlight=False, soft_wrap=True)
    state.wait_for_everyone()
    return explainer


class _Stages:
    """The three trainings; one that is done is loaded, one that was interrupted continues."""

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
        """Train, or put the best weights of a training that is done into an ``empty`` net."""
        folder = self.out / name
        if from_main((folder / DONE).is_file):
            self.console.print(f"{name}: done before, loaded from {folder / BEST}", highlight=False, soft_wrap=True)
            net = empty()
            files.load_weights(
                net, tensors_from_main(lambda: (files.read_tensors(folder / BEST), None))[0], folder / BEST
            )
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


def _opened(model: MaskedModel, splits: Splits) -> list[PixelSource]:
    """The three parts, decoded once, for all nets see images of one size. What cannot be read is counted together, and
    told before hours are spent."""
    how, unreadable = decodes_by(model), Unreadable(sum(len(part) for part in splits))
    return [
        open_pixels(part, how, device=model.device, memory_limit=memory_limit(model.device), unreadable=unreadable)
        for part in splits
    ]


def _processes(device: str | torch.device) -> Any:
    """accelerate's view of the processes."""
    place = resolve_device(device)
    join(place)
    return PartialState(cpu=place.type == "cpu")


def _with_numbers(recipe: Recipe, model: MaskedModel, samples: int) -> Recipe:
    """The recipe with batches and learning rates in place of "auto"."""
    chosen = {name: suited(config, model, samples) for name in STAGES if (config := getattr(recipe, name)) is not None}
    return replace(recipe, **chosen)


def _estimated(recipe: Recipe, model: MaskedModel, splits: Splits, out: Path, console: Console | None) -> Recipe:
    """Say how long it will take (``console`` None: nothing is timed), and decide whether to compile where it is "auto"."""
    done = from_main(lambda: [name for name in STAGES if (out / name / DONE).is_file()])
    stages: list[timing.StageTime] = []
    if console is not None and timing.needed(recipe, done):
        console.print("timing a few steps of each training")
        stages = timing.estimate(recipe, model, splits, done=done)
    if recipe.explainer.compiled == "auto":
        slow = bool(stages) and stages[-1].name == "explainer" and stages[-1].seconds > timing.LONG
        pays = bool(from_main(lambda: slow and model.device.type == "cuda"))
        recipe = replace(recipe, explainer=replace(recipe.explainer, compiled=pays))
        stages = [*stages[:-1], timing.compiled(stages[-1])] if pays else stages
    if console is not None:
        for line in timing.lines(stages):
            console.print(line, highlight=False, soft_wrap=True)
    return recipe


def _data(recipe: Recipe, console: Console) -> Splits:
    settings = recipe.data
    if settings.source is None:
        raise ValueError("this recipe does not say where the images are: give a folder or an archive with --data PATH")
    console.print(f"looking for images in {settings.source}", highlight=False, soft_wrap=True)
    splits = load_data(
        settings.source,
        layout=settings.layout,
        channels=settings.channels,
        split=settings.split,
        groups=settings.groups,
        seed=settings.seed,
        cache=settings.cache,
        unpack_limit=settings.unpack_limit,
    )
    given = {name: getattr(recipe, name).loop.batch_size for name in STAGES if getattr(recipe, name) is not None}
    sizes = {name: 1 if size == "auto" else size for name, size in given.items()}
    count = len(splits.train)
    too_large = " ".join(f"--set {name}.loop.batch_size=N" for name, size in sizes.items() if size > count)
    require_a_batch(count, max(sizes.values()), "the training set", set_by=too_large)
    return splits


def _names(classes: Sequence[str]) -> str:
    """How many, and which."""
    shown = ", ".join(classes[:12]) + (", ..." if len(classes) > 12 else "")
    return f"{len(classes)} classes ({shown})"


def _announce(recipe: Recipe, model: MaskedModel, splits: Splits, state: Any, console: Console) -> None:
    if recipe.description:
        console.print(recipe.description, highlight=False, soft_wrap=True)
    train, val, test = splits
    where = f"{state.device.type}, {state.num_processes} processes" if state.num_processes > 1 else state.device.type
    weights = sum(p.numel() for p in model.net.parameters())
    console.print(
        f"data: {recipe.data.source}, {len(train):,} images to train on, {len(val):,} to validate, {len(test):,} to test, "
        f"{_names(train.class_names)}\n"
        f"model: {recipe.model.name}, {weights / 1e6:.3g} million weights, {model.num_players} players, "
        f"{model.num_classes} outputs, on {where}\n"
        f"{'; '.join(_loops(recipe))}",
        highlight=False,
        soft_wrap=True,
    )


def _loops(recipe: Recipe) -> Iterator[str]:
    for name in STAGES:
        if (config := getattr(recipe, name)) is not None and not (name == "surrogate" and recipe.masked):
            epochs, size, rate = config.loop.numbers()
            yield f"{name}: {epochs} epochs, batches of {size}, learning rate {rate:.3g}"
    if recipe.explainer.procedure == "values":
        values = recipe.explainer.values
        yield f"{values.views} views of every image with {values.coalitions} coalitions each"
