"""The steps: every training and measurement of the paper, what it needs, and what it depends on.

A step computes one thing for one setting and leaves a result (``store.py``). ``needs`` are the steps before it; ``reads``
are the settings that its result depends on, as paths into ``Context.described``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from vitshap.errors import did_you_mean
from vitshap.reproduce.context import Context
from vitshap.reproduce.specifications import (
    ABLATIONS,
    ESTIMATORS,
    EVALUATED_PARTS,
    EXPLAINER_ERRORS,
    Specification,
    evaluated_step,
    panel_steps,
)
from vitshap.reproduce.store import digest

Run = Callable[[Context, Path], Any]
"""Computes a step with a folder for intermediate files; returns the measured values, and weights if it trains."""
NETWORK = ("recipe.data", "recipe.model", "scale.split", "seed")
MODELS = ("train-classifier", "train-surrogate")
EXPLAINERS = ("train-explainer-paper", "train-explainer-default")
RETRAINED = ("roar-retrained", "roar-retrained-no-positions")


@dataclass(frozen=True)
class Step:
    """One unit of computation."""

    name: str
    what: str
    run: str
    """``module:function`` within ``vitshap.reproduce``."""
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    """Further arguments of the function."""

    def __call__(self, context: Context, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Compute the step: measured values, and weights if it trains."""
        module, _, name = self.run.partition(":")
        function: Run = getattr(import_module(f"vitshap.reproduce.{module}"), name)
        found = partial(function, **dict(self.options))(context, folder)
        return found if isinstance(found, tuple) else (found, {})

    @property
    def trains(self) -> bool:
        """Whether it spends its time on trainings, of one network or of many."""
        return self.run.startswith("trainings:") or self.name in (*RETRAINED, "procedure")

    def inputs(self, context: Context) -> str:
        """Return the hash of everything that the result depends on; the steps before it must have finished."""
        settings = {path: _at(context.described, path) for path in self.reads}
        before = {name: context.result(name).inputs for name in self.needs}
        return digest({"step": self.name, "settings": settings, "before": before})


def _at(content: Any, path: str) -> Any:
    for key in path.split("."):
        content = content[key]
    return content


def _trainings() -> Iterable[Step]:
    model = "trainings:train_explainer"
    yield Step("train-classifier", "the classifier", "trainings:train_classifier", (), (*NETWORK, "recipe.classifier"))
    yield Step(
        "train-surrogate",
        "its surrogate: attention masked",
        "trainings:train_surrogate",
        ("train-classifier",),
        ("recipe.surrogate",),
    )
    for name, procedure in zip(EXPLAINERS, ("the paper's procedure", "our default procedure"), strict=True):
        reads = ("recipe.explainer",) if name == EXPLAINERS[0] else ("default",)
        yield Step(name, f"explainer by {procedure}", model, MODELS, reads, (("step", name),))
    yield Step(
        "train-surrogate-pixels",
        "a surrogate with withheld pixels set to zero",
        "trainings:train_surrogate_pixels",
        ("train-classifier",),
        ("recipe.surrogate",),
    )
    yield Step(
        "train-masked-classifier",
        "a classifier trained with masked patches",
        "trainings:train_masked_classifier",
        (),
        (*NETWORK, "recipe.classifier"),
    )
    yield Step(
        "train-explainer-masked",
        "explainer of the masked classifier by the paper's procedure",
        "trainings:train_explainer_masked",
        ("train-masked-classifier",),
        ("recipe.explainer",),
    )


def _estimates() -> Iterable[Step]:
    compared = ("scale.shapley_images",)
    yield Step("truth", "converged Shapley values", "shapley:compute_truth", MODELS, (*compared, "scale.truth"))
    for name, what in ESTIMATORS.items():
        before = (*MODELS, EXPLAINERS[1], "truth") if name == "refine-explainer" else (*MODELS, "truth")
        size = "refined" if name.startswith("refine-") else "unpaired" if name == "kernelshap-unpaired" else "paired"
        calibration = ("recipe.calibration",) if name == "refine-explainer" else ()
        reads, options = (*compared, f"scale.{size}", *calibration), (("kind", name),)
        yield Step(name, f"error of {what}", "shapley:measure_estimator", before, reads, options)
    for name, trained in zip(EXPLAINER_ERRORS, EXPLAINERS, strict=True):
        what, options = f"error of {trained.removeprefix('train-')}", (("trained", trained),)
        yield Step(name, what, "shapley:measure_explainer", (*MODELS, trained, "truth"), compared, options)
    yield Step(
        "evaluate-kernelshap",
        "insertion and deletion of KernelSHAP, our estimators and the truth",
        "measurements:evaluate_kernelshap",
        (*MODELS, *EXPLAINERS, "truth", *(name for name in ESTIMATORS if name != "kernelshap-unpaired")),
        ("setting",),
    )
    yield Step(
        "maps-kernelshap",
        "maps of the explainers and of KernelSHAP",
        "maps:draw_kernelshap",
        (*MODELS, *EXPLAINERS),
        (*compared, "scale.grid_images", "scale.paired"),
    )


def _evaluations() -> Iterable[Step]:
    subsets = ("scale.images", "scale.masks", "scale.subsets")
    for name, what in (("main", "predicted class and all others"), ("abnormal", "images predicted abnormal, or not")):
        reads = (*subsets, "setting")
        for part in EVALUATED_PARTS:
            needs = (*MODELS, part) if part in EXPLAINERS else MODELS
            chosen = (("which", name), ("part", part))
            of = f"insertion, deletion and faithfulness, {part.removeprefix('train-')}: {what}"
            yield Step(evaluated_step(name, part), of, "measurements:evaluate_methods", needs, reads, chosen)
        suffix = "" if name == "main" else "-abnormal"
        yield Step(
            f"sensitivity{suffix}",
            f"sensitivity-n of all methods: {what}",
            "measurements:measure_sensitivity",
            (*MODELS, *EXPLAINERS),
            reads,
            (("which", name),),
        )
        yield Step(
            f"maps{suffix}",
            f"maps of all methods: {what}",
            "maps:draw_maps",
            (*MODELS, *EXPLAINERS),
            ("scale.grid_images", "setting"),
            (("which", name),),
        )
    yield Step(
        "evaluate-masked",
        "the same metrics for the masked classifier",
        "measurements:evaluate_masked",
        ("train-masked-classifier", "train-explainer-masked"),
        (*subsets, "setting"),
    )
    yield Step(
        "removal",
        "predictions with patches removed in seven ways",
        "measurements:measure_removal",
        (*MODELS, "train-surrogate-pixels"),
        ("scale.removal_step",),
    )
    yield Step(
        "timing",
        "time per image of all methods",
        "measurements:measure_times",
        (*MODELS, *EXPLAINERS),
        ("scale.timed_images", "scale.masks"),
    )


def _roar() -> Iterable[Step]:
    reads = ("scale.roar_counts", "scale.masks")
    settings = ("counts", "methods", "from", "epochs")
    retrained = ("scale.masks", *(f"scale.retrained_{name}" for name in settings), "recipe.classifier")
    for name, what, needs, own in (
        ("surrogate", "the surrogate", (), reads),
        ("masked", "a separate masked classifier", ("train-masked-classifier", "roar-surrogate"), reads),
        ("retrained", "classifiers retrained on masked images", (), retrained),
        ("retrained-no-positions", "the same without positional embeddings", (), retrained),
    ):
        yield Step(
            f"roar-{name}",
            f"accuracy when important patches are inserted or deleted, by {what}",
            "roar:measure_roar",
            (*MODELS, *EXPLAINERS, *needs),
            own,
            (("evaluator", name),),
        )


def _ablations() -> Iterable[Step]:
    for name, what in ABLATIONS.items():
        yield Step(
            f"ablation-{name}",
            f"explainer variant: {what}",
            "trainings:ablation",
            (*MODELS, "truth"),
            ("recipe.explainer", "scale.ablation_epochs", "scale.shapley_images"),
            (("variant", name),),
        )


def _experiments() -> Iterable[Step]:
    yield Step(
        "procedure",
        "explainers with each step beyond the paper's procedure, alone and together",
        "experiments:measure_procedure",
        (*MODELS, "truth"),
        ("scale.procedure_views", "scale.procedure_variants", "scale.shapley_images"),
    )
    yield Step(
        "convergence",
        "evaluations until Shapley values converge, by estimator",
        "experiments:measure_convergence",
        (*MODELS, "truth"),
        ("scale.shapley_images", "scale.convergence_budgets", "scale.truth"),
    )


STEPS = {
    one.name: one for one in (*_trainings(), *_estimates(), *_evaluations(), *_roar(), *_ablations(), *_experiments())
}
"""All steps; those of ``_experiments`` belong to no table or figure of the paper."""
EXPERIMENTS = tuple(one.name for one in _experiments())


def step(name: str) -> Step:
    """Return the step of this name."""
    if name not in STEPS:
        raise ValueError(f"there is no step {name!r}{did_you_mean(name, list(STEPS))}")
    return STEPS[name]


def with_needs(names: Iterable[str]) -> list[str]:
    """Return these steps and all that they need, each after what it needs."""
    ordered: dict[str, None] = {}

    def add(name: str) -> None:
        if name not in ordered:
            for one in step(name).needs:
                add(one)
            ordered[name] = None

    for name in names:
        add(name)
    return list(ordered)


def needed(specification: Specification) -> list[str]:
    """Return all steps of a table or figure, in order."""
    return with_needs(step for panel in specification.panels for step in panel_steps(panel.step))
