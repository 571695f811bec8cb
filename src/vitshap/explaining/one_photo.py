"""``vitshap.explain``: one photo in one line, with choices of method and budget that are said aloud."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitshap.errors import did_you_mean
from vitshap.explainers import Explainer, bundle
from vitshap.explaining import budget as budgets
from vitshap.explaining.photos import InMemory, read_photo
from vitshap.explaining.source import EXPLAINER, NOT_FINE_TUNED, Source, open_bundle, open_model, source_of
from vitshap.explaining.stream import DEFAULT_TARGET, Prepared, explain_prepared, model_input
from vitshap.explanation import Explanation
from vitshap.methods import Target, most_classes
from vitshap.models import MaskedModel, wrap
from vitshap.models.base import net_device_dtype
from vitshap.models.load import is_name
from vitshap.models.preprocess import is_photo
from vitshap.models.stored import is_bundle

Explainable: TypeAlias = str | os.PathLike[str] | Explainer | MaskedModel | nn.Module
OnePhoto: TypeAlias = str | os.PathLike[str] | Image.Image | np.ndarray | Tensor


def explain(
    model: Explainable,
    photo: OnePhoto,
    /,
    *,
    target: Target = DEFAULT_TARGET,
    method: str | None = None,
    budget: int | None = None,
    device: str | torch.device | None = None,
    quiet: bool = False,
) -> Explanation:
    """Explain one photo, and say on the standard error which method is used, how long that takes, and what to doubt.

    Args:
        model: a stored explainer (shipped name or folder), a timm name, a folder or hub id of transformers, an
            ``Explainer``, a network wrapped by ``vitshap.wrap``, or any other network, which is wrapped here.
        photo: a path (of a DICOM file too), a PIL image, an array uint8 ``[H, W, 3]``, or the model's input as a tensor.
        target: the classes to explain; see ``vitshap.methods.Target``.
        method: a name of ``vitshap.list_methods()``; by default the explainer, or refine where there is none.
        budget: evaluations of a method that samples; by default as many as fit 60 seconds (2 on a GPU).
        device: where a model that is given by name computes; default: the CPU. Others stay where they are.
        quiet: say nothing.
    """
    source = _source(model, method, device)
    say = (lambda *lines: None) if quiet else _say
    if source.method.samples:
        source = _with_budget(source, target, budget, say)
    elif budget is not None:
        raise ValueError(f"budget is for methods that sample, such as kernelshap; {source.method.name} takes none")
    else:
        one_pass = ", one forward pass" if source.method.name == EXPLAINER else ""
        say(f"{source.name}: method {source.method.name}{one_pass}")
    say(*(f"note: {warning}" for warning in source.warnings))
    started = time.perf_counter()
    explanation, warnings = _explained(source, photo, target)
    say(*(f"warning: {warning}" for warning in warnings))
    count = explanation.evaluations
    say(f"done in {time.perf_counter() - started:.1f} s, {count:,} evaluation{'' if count == 1 else 's'}")
    return explanation


def _source(model: Explainable, method: str | None, device: str | torch.device | None) -> Source:
    if isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        where = "cpu" if device is None else device
        if is_bundle(name):
            return open_bundle(name, method_name=method, device=where)
        if not is_name(name):
            known = did_you_mean(name, bundle.shipped())
            raise ValueError(f'"{name}" is neither a stored explainer nor a model of timm or transformers{known}')
        return open_model(name, method_name=method, device=where)
    if isinstance(model, Explainer):
        if method in (None, EXPLAINER):
            return source_of(model.surrogate, model, "this explainer")
        return source_of(model.surrogate, method, "the explainer's surrogate")
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model is a name or folder, a network, or an Explainer; got {type(model).__name__}")
    wrapped = model if isinstance(model, MaskedModel) else wrap(model)
    doubt = () if isinstance(model, MaskedModel) else (NOT_FINE_TUNED,)
    return replace(source_of(wrapped, method, type(wrapped.net).__name__), warnings=doubt)


def _with_budget(source: Source, target: Target, budget: int | None, say: Any) -> Source:
    classes = most_classes(target, source.model.num_classes)
    cost = budgets.measure_cost(source, classes, budget or budgets.MOST)
    device = source.model.device
    chosen = budgets.choose(cost, device) if budget is None else budget
    why = "as requested" if budget is not None else budgets.reason(chosen, cost, device)
    seconds = cost.seconds(chosen)
    expected = "less than a second" if seconds < 1 else f"about {seconds:.0f} s"
    say(f"{source.name}: method {source.method.name}, budget={chosen} evaluations ({why}), {expected}")
    return source.with_budget(chosen)


def _explained(source: Source, photo: OnePhoto, target: Target) -> tuple[Explanation, tuple[str, ...]]:
    """Return the explanation, and why it may be unreliable."""
    if not is_photo(photo) or not isinstance(photo, str | os.PathLike | Image.Image | np.ndarray):
        if not isinstance(photo, Tensor | np.ndarray):
            raise TypeError(f"a photo is a path, a PIL image, an array or a tensor; got {type(photo).__name__}")
        explanation = source.method(_batch(photo, source.model), target=target)
        warning = source.low_confidence(explanation.prediction)
        return explanation, () if warning is None else (warning,)
    if source.model.preprocess is None:
        source.model.prepare(photo)  # raises the error that says what to do
    given = Path(photo).expanduser() if isinstance(photo, str | os.PathLike) else InMemory(photo)
    opened = read_photo(given)
    pixels, box = model_input(opened, source.model)
    prepared = Prepared(given, pixels, box, opened.picture, opened.size, opened.notes)
    entry = explain_prepared([prepared], source, target)[0]
    return entry.explanation, (*entry.warnings, *entry.notes)


def _batch(photo: Tensor | np.ndarray, model: MaskedModel) -> Tensor:
    """Return the model's input as a batch of one image."""
    given = photo.to(*net_device_dtype(model.net)) if isinstance(photo, Tensor) else photo
    pixels = model.prepare(given).pixels
    if len(pixels) != 1:
        raise ValueError(f"vitshap.explain explains one photo, got {len(pixels)}: call a method, vitshap.method(...)")
    return pixels


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
