"""What came out, measured on test images that no training has seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vitshap.coalitions import fixed_size
from vitshap.data import PixelSource, sample_coalitions
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.training.batches import Images
from vitshap.training.loop import LOG
from vitshap.training.objectives import surrogate_loss
from vitshap.training.scores import scores

COALITIONS = 4
"""Of each test image and size."""


def summarise(
    classifier: MaskedModel,
    surrogate: MaskedModel,
    test: PixelSource,
    class_names: Sequence[str],
    explainer_folder: Path,
    *,
    batch: int = 256,
) -> dict[str, Any]:
    """Accuracy of the classifier, distance of the surrogate, loss of the explainer beside that of knowing nothing.

    ``class_names``: of the test images' labels.
    """
    found: dict[str, Any] = {"test_images": len(test)}
    if _same_classes(classifier, class_names):
        found["classifier"] = _accuracy(classifier, test, batch)
    found["surrogate"] = distances(classifier, surrogate, test, batch=batch)
    found["explainer"] = best_line(explainer_folder / LOG)
    return found


def distances(
    classifier: MaskedModel, surrogate: MaskedModel, test: PixelSource, *, batch: int = 256
) -> dict[str, float]:
    """Mean divergence of the surrogate with a half and a quarter of the patches from the classifier with all.

    KL for softmax; see ``surrogate_loss`` for other outputs.
    """
    images, d = Images(classifier, test, None, seed=0), surrogate.num_players
    laws = {f"divergence_{n}_of_{d}": fixed_size(d, n) for n in (d // 2, d // 4)}
    totals, count = dict.fromkeys(laws, 0.0), 0
    with torch.no_grad(), evaluating(classifier), evaluating(surrogate):
        for pixels, drawn in images.in_order(batch):
            wanted = classifier.logits(pixels)
            for name, law in laws.items():
                some = sample_coalitions(law, drawn.indices, seed=0, epoch=0, n=COALITIONS, purpose="summary")
                loss = surrogate_loss(wanted, surrogate.logits(pixels, some), surrogate.output)
                totals[name] += float(loss) * len(pixels)
            count += len(pixels)
    return {name: total / count for name, total in totals.items()}


def best_line(log: Path) -> dict[str, float]:
    """Of an explainer's log, the epoch whose weights were kept."""
    history = [json.loads(line) for line in log.read_text().splitlines()]
    chosen_by = "selection_loss" if "selection_loss" in history[0] else "loss"
    best = min(history, key=lambda line: line[chosen_by])
    return {f"validation_{key}": best[key] for key in ("loss", "uniform_loss") if key in best} | {
        "epoch": best["epoch"]
    }


def in_words(summary: dict[str, Any]) -> list[str]:
    """A line for each net."""
    said = []
    if "classifier" in summary:
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in summary["classifier"].items() if name != "loss")
        said.append(f"classifier on {summary['test_images']:,} test images: {numbers}")
    parts = ", ".join(
        f"{value:.4f} with {name.removeprefix('divergence_').replace('_', ' ')} patches"
        for name, value in summary["surrogate"].items()
    )
    said.append(f"surrogate, divergence from the classifier: {parts}")
    losses = summary["explainer"]
    uniform = f", of the uniform explanation {losses['validation_uniform_loss']:.4g}"
    said.append(f"explainer, validation loss {losses['validation_loss']:.4g}{uniform} (epoch {losses['epoch']})")
    return said


def _same_classes(classifier: MaskedModel, class_names: Sequence[str]) -> bool:
    """Whether the net's classes are the data's; one logit is that of the second of two."""
    own, given = list(classifier.class_names or ()), list(class_names)
    return classifier.output != "identity" and own == (given[1:] if classifier.num_classes == 1 else given)


def _accuracy(classifier: MaskedModel, test: PixelSource, batch: int) -> dict[str, float]:
    logits, labels = [], []
    with torch.no_grad(), evaluating(classifier):
        for pixels, drawn in Images(classifier, test, None, seed=0).in_order(batch):
            logits.append(classifier.logits(pixels).float())
            labels.append(drawn.labels)
    return scores(torch.cat(logits), torch.cat(labels), classifier.output)
