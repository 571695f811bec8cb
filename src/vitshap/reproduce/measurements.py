"""Steps that measure methods with the surrogate: insertion, deletion, faithfulness, sensitivity-n; removal; times.

All follow the authors where a number stands beside the paper's: rivals explain the classifier, leave-one-out and RISE with
pixels set to zero, and the explained class is the classifier's prediction. Faithfulness and sensitivity-n are measured in
both definitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitshap.data import ImageData
from vitshap.estimators.truth import Truth
from vitshap.evaluation import Evaluation, evaluate
from vitshap.evaluation.explanations import explanation_of_truth
from vitshap.evaluation.rows import MethodSpec
from vitshap.explainers import Explainer
from vitshap.methods import method
from vitshap.metrics import MetricResult, deletion, insertion
from vitshap.metrics.intervals import half_widths
from vitshap.metrics.removal_quality import removal_mechanisms, removal_quality
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.reproduce.context import EXPLAINER_STEPS, SEED, Context
from vitshap.reproduce.shapley import predictions, stored_truth, stored_values
from vitshap.reproduce.specifications import ALL_METHODS, ESTIMATED_ROWS, EXPLAINERS, MAIN_METHODS
from vitshap.training.batches import Images, evenly
from vitshap.training.values.store import Evaluator

FAITHFULNESS = {"faithfulness": "faithfulness:authors", "faithfulness formula": "faithfulness"}
"""Our names of the two definitions, the authors' first."""
GRID_POINTS = {"insertion": "points", "deletion": "points", "sensitivity": "by_size"}
CLASSES = {"target": "target", "non-target": "others"}
REFERENCE = 64
"""Training images, spread over all of them, whose patches replace withheld ones in the removal mechanism "random"."""
BATCHED = ("attention-last", "attention-rollout", *EXPLAINERS)
"""Timed in batches of 16, as in the paper; the others one image at a time."""


def rivals(context: Context, names: tuple[str, ...] = ALL_METHODS) -> dict[str, MethodSpec]:
    """Return the methods of a table by their row, with the authors' options; explainers are not among them."""
    found: dict[str, MethodSpec] = {}
    for name in names:
        if name in EXPLAINERS:
            continue
        occludes = name in ("leave-one-out", "rise")
        options: dict[str, Any] = {"removal": "pixels"} if occludes else {}
        if name == "rise":
            options["masks"] = context.scale.masks
        found[name] = (name, options)
    return found


def evaluate_methods(context: Context, folder: Path, *, which: str, part: str) -> dict[str, Any]:
    """Measure insertion, deletion and faithfulness of some methods, for target and non-target classes.

    ``which``: "main": the predicted class, and the mean over all others; "abnormal": one class, of images predicted to be
    of it (target) and of all other images (non-target). ``part``: "rivals" (those of the paper's main text, and random),
    "variants" (its other rivals), or the step that trained an explainer.
    """
    methods: dict[str, MethodSpec]
    if part in ("rivals", "variants"):
        main = rivals(context, MAIN_METHODS)
        methods = main if part == "rivals" else {k: v for k, v in rivals(context).items() if k not in main}
    else:
        methods = {row: context.explainer(step) for row, step in EXPLAINER_STEPS.items() if step == part}
    return _tables(context, folder, context.surrogate, context.classifier, methods, _metrics(context), which)


def evaluate_masked(context: Context, folder: Path) -> dict[str, Any]:
    """Measure the same for the masked classifier, which is its own surrogate, and its explainer."""
    model = context.trained("train-masked-classifier")
    explainer = context.explainer("train-explainer-masked", model)
    methods = {**rivals(context), EXPLAINERS[0]: explainer}
    return _tables(context, folder, model, model, methods, _metrics(context), "target")


def _metrics(context: Context) -> list[str]:
    """Return insertion, deletion, and faithfulness in both definitions, at the profile's scale."""
    step = context.scale.curve_step
    curves = [name if step == 1 else f"{name}:step={step}:area=trapezoid" for name in ("insertion", "deletion")]
    return [*curves, *(f"{name}:subsets={context.scale.subsets}" for name in FAITHFULNESS.values())]


def measure_sensitivity(context: Context, folder: Path, *, which: str) -> dict[str, Any]:
    """Measure sensitivity-n, in the authors' definition and in the paper's formula."""
    methods = {**rivals(context, MAIN_METHODS), **context.explainers()}
    metrics = [f"sensitivity-n:{one}:subsets={context.scale.subsets}" for one in ("authors", "paper")]
    return _tables(context, folder, context.surrogate, context.classifier, methods, metrics, which)


def _tables(
    context: Context,
    folder: Path,
    surrogate: MaskedModel,
    classifier: MaskedModel,
    methods: Mapping[str, MethodSpec],
    metrics: list[str],
    which: str,
) -> dict[str, Any]:
    """Compare methods; return means and curves of target and non-target classes."""
    shared: dict[str, Any] = {
        "methods": methods,
        "metrics": metrics,
        "classifier": classifier,
        "compiled": surrogate.device.type == "cuda",
        "progress": _progress(context),
    }
    data = context.evaluated
    if which != "abnormal":
        classes: Literal["target", "all"] = "target" if which == "target" or surrogate.num_classes == 1 else "all"
        others = context.setting.explained_others
        done = evaluate(surrogate, data, classes=classes, others=others, folder=folder / "parts", **shared)
        wanted = CLASSES if classes == "all" else {"target": "target"}
        return {name: _summary(done, key) for name, key in wanted.items()}
    output = context.setting.abnormal
    assert output is not None, "a setting whose images are chosen by prediction names the class"
    found = {}
    predicted = predicted_as(classifier, context.pixels(classifier, data), output)
    for name, chosen in (("target", predicted), ("non-target", ~predicted)):
        if not bool(chosen.any()):
            context.console.print(
                f"no image is predicted {'to be' if name == 'target' else 'not to be'} of class {output}"
            )
            found[name] = {"images": 0, "metrics": {}, "curves": {}}
            continue
        some = data.subset(chosen.nonzero()[:, 0])
        done = evaluate(surrogate, some, target=output, folder=folder / f"parts-{name}", **shared)
        found[name] = _summary(done, "target")
    return found


def predicted_as(model: MaskedModel, pixels: Tensor, output: int) -> Tensor:
    """Return which images are predicted to be of a class, bool ``[n]``; by probability 1/2 for a single logit."""
    with torch.no_grad(), evaluating(model.net):
        outputs = torch.cat([model(some) for some in pixels.split(64)])  # type: ignore[no-untyped-call]
    return (outputs[:, 0] >= 0.5 if outputs.shape[1] == 1 else outputs.argmax(1) == output).cpu()


def _summary(done: Evaluation, classes: Any) -> dict[str, Any]:
    """Return means, intervals and curves by metric and row."""
    found: dict[str, Any] = {"images": len(done.images), "metrics": {}, "curves": {}}
    for metric in done.metrics:
        name = _name(metric.name)
        cells, curves = {}, {}
        for row in done.rows:
            result = done.result(row.name, metric.name, classes)
            if result is None:
                continue
            cells[row.name] = cell(result)
            points = done.curve(row.name, metric.name, GRID_POINTS.get(name.partition(" ")[0], ""), classes)
            if points is not None:
                curves[row.name] = {"mean": _digits(points[0]), "interval": _digits(points[1])}
            sizes = done.shared(row.name, metric.name, "sizes")
            if sizes is not None:
                found["sizes"] = [int(size) for size in sizes.tolist()]
        found["metrics"][name] = cells
        if curves:
            found["curves"][name] = curves
    return found


def cell(result: MetricResult) -> dict[str, Any]:
    """Return a mean, its 95 % interval and the number of images, as JSON."""
    low, high = result.interval()
    images = len(result.values) - result.undefined
    return {"mean": result.mean, "low": low, "high": high, "images": images, "undefined": result.undefined}


def _name(metric: str) -> str:
    """Return our name of a metric: the authors' definition has the plain name."""
    kind, *options = metric.split(":")
    kind = {"sensitivity-n": "sensitivity"}.get(kind, kind)
    return kind if kind in ("insertion", "deletion") or "authors" in options else f"{kind} formula"


def _digits(points: Tensor) -> list[float]:
    return [round(float(one), 5) for one in points]


def _progress(context: Context) -> Callable[[str, int, int], None]:
    said: set[tuple[str, int]] = set()

    def note(row: str, done: int, total: int) -> None:
        quarter = 4 * done // total
        if (row, quarter) not in said and quarter:
            said.add((row, quarter))
            context.console.print(f"{row}: {done:,} of {total:,} images", highlight=False)

    return note


def evaluate_kernelshap(context: Context, folder: Path) -> dict[str, Any]:
    """Measure insertion and deletion of the explainers, of the estimators' last values and of the truth."""
    surrogate, known, targets = context.surrogate, stored_truth(context), predictions(context)
    evaluator = Evaluator(surrogate, compiled=surrogate.device.type == "cuda")
    pixels = context.pixels(surrogate, context.compared)
    step = context.scale.curve_step
    options: dict[str, Any] = {} if step == 1 else {"step": step, "area": "trapezoid"}
    sources: dict[str, Explainer | Truth] = {
        **context.explainers(),
        **{row: _with_values(known, stored_values(context, step)) for row, step in ESTIMATED_ROWS.items()},
        "truth": known,
    }
    found: dict[str, Any] = {name: {"images": len(targets), "metrics": {}} for name in CLASSES}
    evaluator.choose_precision(pixels)
    for row, source in sources.items():
        for name, metric in (("insertion", insertion), ("deletion", deletion)):
            results = []
            for here in torch.arange(len(pixels)).split(16):  # type: ignore[no-untyped-call]
                if isinstance(source, Truth):
                    explanation = explanation_of_truth(source, here, None, surrogate)
                else:
                    explanation = source(pixels[here])
                results.append(metric(evaluator.model, pixels[here].to(evaluator.dtype), explanation, **options))
            whole = _joined(results)
            parts = {"target": whole.target(targets), "non-target": whole.others(targets)}
            for classes, part in parts.items():
                if part.undefined < len(targets):
                    found[classes]["metrics"].setdefault(name, {})[row] = cell(part)
    return {name: part for name, part in found.items() if part["metrics"]}


def _with_values(known: Truth, values: Tensor) -> Truth:
    return Truth(known.specification, values, known.stderr, known.base_values, known.full_values, known.reliability)


def _joined(results: list[Any]) -> MetricResult:
    first: MetricResult = results[0]
    return MetricResult(
        metric=first.metric,
        values=torch.cat([one.values for one in results]),
        classes=torch.cat([one.classes for one in results]),
        higher_is_better=first.higher_is_better,
        class_specific=first.class_specific,
    )


def measure_removal(context: Context, folder: Path) -> dict[str, Any]:
    """Measure divergence and accuracy of predictions with patches removed in seven ways, on the whole test split."""
    classifier = context.classifier
    models = removal_mechanisms(
        classifier,
        reference=context.pixels(classifier, reference_images(context)),
        surrogate=context.surrogate,
        fine_tuned_pixels=context.trained("train-surrogate-pixels"),
    )
    d, parts, first = classifier.num_players, [], 0
    step = context.scale.removal_step
    counts = sorted({round(d * n / 196) for n in range(0, 197, step)} | {0, d})
    for pixels, batch in Images(classifier, context.splits.test, None, seed=SEED).in_order(256):
        parts.append(removal_quality(classifier, models, pixels, batch.labels.cpu(), counts=counts, first=first))
        first += len(pixels)
    found: dict[str, Any] = {"kept": parts[0].counts.tolist(), "images": first, "divergence": {}, "accuracy": {}}
    for name in models:
        for key, field in (("divergence", "divergence"), ("accuracy", "correct")):
            values = torch.cat([getattr(part, field)[name] for part in parts])  # [B, N]
            interval = half_widths(values, binary=key == "accuracy")
            found[key][name] = {"mean": _digits(values.mean(0)), "interval": _digits(interval)}
    return found


def reference_images(context: Context) -> ImageData:
    """Return training images of all classes, whose patches replace withheld ones: splits may be sorted by class."""
    train = context.splits.train
    return train.subset(evenly(len(train), REFERENCE))


def measure_times(context: Context, folder: Path) -> dict[str, Any]:
    """Measure milliseconds per image for all classes: batches of 16 or single images, as in the paper, after a warm-up."""
    classifier, count = context.classifier, context.scale.timed_images
    test = context.splits.test
    data: ImageData = test.subset(torch.arange(min(count, len(test))))
    pixels = context.pixels(classifier, data)
    methods: dict[str, Any] = {
        name: method(spec[0], classifier, **spec[1])
        for name, spec in rivals(context, MAIN_METHODS).items()
        if isinstance(spec, tuple) and name != "random"
    }
    found = {}
    for name, one in {**methods, **context.explainers()}.items():
        size = 16 if name in BATCHED else 1
        some = pixels if size > 1 else pixels[: max(1, len(pixels) // 4)]
        one(some[:size])
        started = _now()
        for batch in some.split(size):  # type: ignore[no-untyped-call]
            one(batch)
        found[name] = {"milliseconds": 1e3 * (_now() - started) / len(some), "batch": size, "images": len(some)}
        context.console.print(f"{name}: {found[name]['milliseconds']:.2f} ms per image", highlight=False)
    return {"rows": found}


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
