"""Steps that train: classifier, surrogates, masked classifier, explainers. They continue from their checkpoints."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitshap.data import PixelSource
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.files import write_tensors
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating, unwrapped
from vitshap.models.wrap import wrap
from vitshap.reproduce.context import SEED, Context
from vitshap.reproduce.shapley import stored_truth
from vitshap.training.batches import Images
from vitshap.training.configs import ExplainerTraining
from vitshap.training.explainer import SAMPLERS, fit_explainer
from vitshap.training.fit import fit_classifier, fit_masked_classifier, fit_surrogate
from vitshap.training.loop import LOG, best_record
from vitshap.training.objectives import classification_metrics, explainer_loss
from vitshap.training.recipes.summary import distances
from vitshap.training.values.store import Evaluator
from vitshap.training.values.validation import ValidationSet

Outcome = tuple[dict[str, Any], dict[str, Tensor]]
"""What a training step measured, and the weights that it leaves."""
TEST_SUBSETS = 32
"""Fixed subsets per test image on which losses of explainers are measured."""
MEASURED = 64
"""Images of which the loss is measured at once: a U-Net holds gigabytes for as many."""


def train_classifier(context: Context, folder: Path) -> Outcome:
    """Train the classifier that is explained."""
    return _classifier(context, folder, masked=False)


def train_masked_classifier(context: Context, folder: Path) -> Outcome:
    """Train a classifier with masked patches, from the pre-trained weights: its own surrogate, and a separate evaluator."""
    return _classifier(context, folder, masked=True)


def _classifier(context: Context, folder: Path, *, masked: bool) -> Outcome:
    model, config = context.initial(), context.classifier_training
    fit = fit_masked_classifier if masked else fit_classifier
    train, val = (context.opened(part, model) for part in ("train", "val"))
    trained = fit(model, train, val, folder, config, resume=True, console=context.console)
    values = {**accuracy(trained, context.opened("test", trained)), **_history(folder, "accuracy")}
    return values, _state(trained)


def train_surrogate(context: Context, folder: Path) -> Outcome:
    """Fine-tune a copy of the classifier to predict with patches withheld from attention."""
    return _surrogate(context, folder, context.classifier)


def train_surrogate_pixels(context: Context, folder: Path) -> Outcome:
    """Do the same with withheld pixels set to zero."""
    classifier = context.classifier
    pixels = wrap(
        copy.deepcopy(classifier.net),
        preprocess=classifier.preprocess,
        class_names=classifier.class_names,
        output=classifier.output,
        removal="pixels",
    )
    return _surrogate(context, folder, pixels)


def _surrogate(context: Context, folder: Path, classifier: MaskedModel) -> Outcome:
    train, val = (context.opened(part, classifier) for part in ("train", "val"))
    config = context.surrogate_training
    trained = fit_surrogate(classifier, train, val, folder, config, resume=True, console=context.console)
    distance = distances(classifier, trained, context.opened("test", trained), batch=256)
    values = {"classifier": classifier.fingerprint(), **distance, **_history(folder, "loss")}
    return values, _state(trained)


def train_explainer(context: Context, folder: Path, step: str) -> Outcome:
    """Train an explainer of the surrogate by the paper's procedure or by the default one."""
    config = context.explainer_config(step)
    return fitted(context, folder, context.surrogate, config, classifier=context.classifier)


def train_explainer_masked(context: Context, folder: Path) -> Outcome:
    """Train an explainer of the masked classifier by the paper's procedure."""
    model = context.trained("train-masked-classifier")
    return fitted(context, folder, model, context.paper_explainer, classifier=model)


def fitted(
    context: Context, folder: Path, surrogate: MaskedModel, config: ExplainerTraining, *, classifier: MaskedModel
) -> Outcome:
    """Train an explainer; measure its losses and leave its weights."""
    train, val = (context.opened(part, surrogate) for part in ("train", "val"))
    explainer = fit_explainer(
        surrogate, train, val, folder, config, classifier=classifier, resume=True, console=context.console
    )
    metric = "selection_loss" if config.procedure == "values" else "loss"
    values = {**losses(context, explainer), **_history(folder, metric)}
    return values, explainer.state_dict()


def ablation(context: Context, folder: Path, variant: str) -> Outcome:
    """Train one variant of the explainer's architecture by the paper's procedure, and measure its losses.

    The excess is the loss beyond that of reference values on the same subsets of the images that have them.
    """
    surrogate, classifier = context.surrogate, context.classifier
    config = _variant(context, folder, variant)
    train, val = (context.opened(part, surrogate) for part in ("train", "val"))
    explainer = fit_explainer(
        surrogate, train, val, folder, config, classifier=classifier, resume=True, console=context.console
    )
    values = {**losses(context, explainer), **_history(folder, "loss")}
    return {**values, **excess(context, explainer)}, {}


def _variant(context: Context, folder: Path, variant: str) -> ExplainerTraining:
    """Return the paper's training with one change."""
    paper = replace(context.paper_explainer, procedure="paper")
    network = paper.network or ExplainerConfig()
    changes: dict[str, dict[str, Any]] = {
        "no-block-frozen": {"extra_block": False, "train_trunk": False},
        "no-block-trained": {"extra_block": False},
        "block-frozen": {"train_trunk": False},
        "block-trained": {},
        "scratch": {"init": "scratch"},
        "unet": {"trunk": "unet"},
        "no-tanh": {"tanh": False},
        "no-class-token": {"class_token": False},
        "from-classifier": {"init": "classifier"},
        "from-pretrained": {},
        "authors-sampler": {},
    }
    change = changes[variant]
    if variant == "from-pretrained":
        path = folder / "initial.safetensors"
        write_tensors(path, unwrapped(context.initial().net).state_dict())
        change = {"init": str(path)}
    loop = replace(paper.loop, epochs=context.scale.ablation_epochs)
    sampler = "authors" if variant == "authors-sampler" else paper.sampler
    made = replace(paper, network=replace(network, **change), loop=loop, sampler=sampler)
    return replace(made, validation_batch_size=min(MEASURED, made.validation_batch_size))


def excess(context: Context, explainer: Explainer) -> dict[str, float]:
    """Measure how much larger an explainer's loss is than that of reference values, on the same subsets."""
    known, surrogate = stored_truth(context), explainer.surrogate
    evaluate = Evaluator(surrogate)
    generator = torch.Generator().manual_seed(SEED)
    law = SAMPLERS["shapley"](surrogate.num_players)
    pixels, losses = context.pixels(surrogate, context.compared), []
    for here in torch.arange(len(pixels)).split(16):  # type: ignore[no-untyped-call]
        some = pixels[here]
        drawn = torch.stack([law.sample(TEST_SUBSETS, paired=True, generator=generator) for _ in here])
        drawn = drawn.to(some.device)
        full, values = evaluate(some, drawn)
        with torch.no_grad(), evaluating(explainer):
            base = explainer.base_values(some)
            own = explainer.values(some, full, base)
        true = known.values[here].to(own)
        losses.append([float(explainer_loss(one, drawn, values, base)) * len(here) for one in (own, true)])
    own_loss, true_loss = (torch.tensor(losses).sum(0) / len(pixels)).tolist()
    return {"reference_loss": true_loss, "excess": own_loss - true_loss}


def losses(context: Context, explainer: Explainer) -> dict[str, float]:
    """Measure the paper's loss on validation and test images, beside that of equal values for all patches."""
    found: dict[str, float] = {}
    surrogate = explainer.surrogate
    for part, name in (("validation", "val"), ("test", "test")):
        images = Images(surrogate, context.of_losses(name, surrogate), None, seed=SEED)
        fixed = ValidationSet(None, Evaluator(surrogate), images, pairs=TEST_SUBSETS)
        with evaluating(explainer):
            measured = fixed.losses(explainer, MEASURED)
        found |= {f"{part}_{name}": measured[name] for name in ("loss", "uniform_loss")}
    return found


def accuracy(model: MaskedModel, test: PixelSource) -> dict[str, float]:
    """Measure a classifier's accuracy and Cohen's kappa on whole test images."""
    logits, labels = [], []
    with torch.no_grad(), evaluating(model.net):
        for pixels, batch in Images(model, test, None, seed=SEED).in_order(256):
            logits.append(model.logits(pixels).float())
            labels.append(batch.labels)
    return {
        f"test_{name}": value
        for name, value in classification_metrics(torch.cat(logits), torch.cat(labels), model.output, None).items()
    }


def _history(folder: Path, metric: str) -> dict[str, Any]:
    """Return which epoch was kept, of how many."""
    records = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
    best = best_record(records, metric)
    return {"best_epoch": int(best["epoch"]), "epochs": int(records[-1]["epoch"])}


def _state(model: MaskedModel) -> dict[str, Tensor]:
    return dict(model.net.state_dict())
