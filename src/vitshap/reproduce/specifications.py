"""What each of the paper's twelve tables and twenty-four figures shows, and from which measurements it is made.

A specification is a view of finished steps (``steps.py``): it computes nothing itself. Each of its panels is one step of
one setting, that is of a data set and a model; which data and which model stand for those of the paper depends on the
profile (``profiles.py``). The paper's own numbers are in ``paper.py``; what it shows only as a picture has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitshap.errors import did_you_mean
from vitshap.reproduce.paper import METHODS, Classes

Kind = Literal[
    "metrics",
    "ablations",
    "times",
    "kernelshap-areas",
    "class-maps",
    "removal",
    "sensitivity",
    "roar",
    "curves",
    "kernelshap-error",
    "maps",
]
OURS = "vitshap"
"""Row of the explainer that is trained by our default procedure; ``vit-shapley`` is trained by the paper's."""
EXPLAINERS = ("vit-shapley", OURS)
ALL_METHODS = (*(name for name in METHODS if name not in ("vit-shapley", "random")), *EXPLAINERS, "random")
"""Rows of the paper's longest tables, and ours."""
_LEFT_OUT = (
    "gradcam-attention",
    "integrated-gradients-embedding",
    "vanilla-pixel",
    "smoothgrad-pixel",
    "vargrad-pixel",
)
MAIN_METHODS = tuple(name for name in ALL_METHODS if name not in _LEFT_OUT)
"""Rows of the tables in its main text, and ours."""
EVALUATED_PARTS = ("rivals", "variants", "train-explainer-paper", "train-explainer-default")
"""Methods that are evaluated in a step of their own: those of the main text, their variants, each explainer."""
ESTIMATORS = {
    "kernelshap-paired": "KernelSHAP, paired",
    "kernelshap-unpaired": "KernelSHAP, unpaired",
    "kernelshap-default": "kernelshap (ours)",
    "refine-tokens": "refine (ours), without an explainer",
    "refine-explainer": "refine (ours), with vitshap's explainer",
}
"""Steps that measure errors of estimators against converged Shapley values, and what they are called."""
EXPLAINER_ERRORS = ("explainer-error-paper", "explainer-error-default")
"""Steps that measure the same for the explainers by the paper's and by our default procedure."""
ESTIMATED_ROWS = {
    "kernelshap-original": "kernelshap-paired",
    "kernelshap": "kernelshap-default",
    "refine-tokens": "refine-tokens",
    "refine-explainer": "refine-explainer",
}
"""Rows of table 12 and the steps whose values they show."""
MAP_METHODS = (
    "attention-last",
    "attention-rollout",
    "vanilla-embedding",
    "integrated-gradients-pixel",
    "smoothgrad-embedding",
    "lrp",
    "leave-one-out",
    *EXPLAINERS,
)
"""Columns of its comparisons of maps, and ours."""
ABLATIONS = {
    "no-block-frozen": "no extra block, frozen",
    "no-block-trained": "no extra block, trained",
    "block-frozen": "extra block, frozen",
    "block-trained": "extra block, trained",
    "scratch": "scratch",
    "unet": "unet",
    "no-tanh": "without tanh",
    "no-class-token": "class token dropped before the head",
    "from-classifier": "initialised from the classifier",
    "from-pretrained": "initialised from the pre-trained network",
    "authors-sampler": "the authors' sampler",
}
"""Variants of the explainer, and their rows in the paper's table (the first six) or what they are."""
METRICS = ("insertion", "deletion", "faithfulness")
BOTH: tuple[Classes, Classes] = ("target", "non-target")
IMAGENETTE_IMAGES = "the authors' 1,024 ImageNette test images"
MURA_IMAGES = "MURA test images: the first 1,024 of the authors' order, by the classifier's prediction"
PETS_IMAGES = "all 735 Pets test images of the authors"
SHAPLEY_IMAGES = "the authors' 100 ImageNette test images, ten per class"
FAITHFULNESS = (
    "Faithfulness beside the paper's is the authors' code's: Spearman correlation with the output for the kept patches. "
    "The paper's formula (Pearson, with the drop) is in the column 'faithfulness formula' of the tables."
)
SAMPLER = "The authors' sampler is not the Shapley kernel: 12 % of its subsets are empty or full."
MURA_INTERVALS = "The paper's MURA intervals are too narrow: they divide by all 1,024 images, not by those in the mean."
SAME_RUN = (
    "The authors' truth is the end of the very run whose error they plot, so that its error reaches zero; here it is an "
    "independent estimate."
)
REPEATED = (
    "The paper's row of ViT Shapley has the numbers of tables 1 and 2, which are of 1,024 images; its row of KernelSHAP is "
    "of 100."
)
LAST_EPOCH = "The authors' retrained accuracies are those of the last epoch, not of the best."


@dataclass(frozen=True)
class Panel:
    """One step of one setting, as far as a table or figure shows it."""

    data: str
    model: str
    step: str
    classes: Classes = "target"


@dataclass(frozen=True)
class Specification:
    """One table or figure of the paper."""

    id: str
    title: str
    kind: Kind
    panels: tuple[Panel, ...]
    images: str
    methods: tuple[str, ...] = ()
    """Rows of a table, lines of a chart, or columns of a grid of maps."""
    metrics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What the authors' code does that moves a number, and how ours is defined."""
    part: tuple[int, int] = (0, 1)
    """Of several figures with the maps of different images: which one, of how many."""

    @property
    def data(self) -> tuple[str, ...]:
        """Data sets, in the order of the panels."""
        return tuple(dict.fromkeys(panel.data for panel in self.panels))

    @property
    def models(self) -> tuple[str, ...]:
        """Architectures, in the order of the panels."""
        return tuple(dict.fromkeys(panel.model for panel in self.panels))


def _metrics(
    number: int, title: str, blocks: tuple[Panel, ...], methods: tuple[str, ...], images: str, *notes: str
) -> Specification:
    about = (FAITHFULNESS, *notes)
    return Specification(f"table-{number}", title, "metrics", blocks, images, methods, METRICS, about)


def evaluated_step(which: str, part: str) -> str:
    """Return the name of the step that evaluates a part of the methods."""
    return f"evaluate-{which}-{part.removeprefix('train-')}"


def panel_steps(step: str) -> tuple[str, ...]:
    """Return the steps of a panel: "evaluate-main" and "evaluate-abnormal" are measured in parts, all others in one."""
    if step not in ("evaluate-main", "evaluate-abnormal"):
        return (step,)
    return tuple(evaluated_step(step.removeprefix("evaluate-"), part) for part in EVALUATED_PARTS)


def _evaluated(data: str, model: str, *classes: Classes, step: str = "evaluate-main") -> tuple[Panel, ...]:
    return tuple(Panel(data, model, step, one) for one in classes)


def _metric_tables() -> list[Specification]:
    imagenette = _evaluated("imagenette", "vit-base", "target")
    mura = _evaluated("mura", "vit-base", "target", step="evaluate-abnormal")
    photos_and_mura = f"{IMAGENETTE_IMAGES}; {MURA_IMAGES}"
    direct = _evaluated("imagenette", "vit-base", "target", step="evaluate-masked")
    others = [
        _metrics(
            number,
            f"Metrics for ViT-{size.capitalize()} on ImageNette",
            _evaluated("imagenette", f"vit-{size}", *BOTH),
            ALL_METHODS,
            IMAGENETTE_IMAGES,
        )
        for number, size in ((7, "tiny"), (8, "small"), (9, "large"))
    ]
    return [
        _metrics(1, "Metrics for target classes", imagenette + mura, MAIN_METHODS, photos_and_mura, MURA_INTERVALS),
        _metrics(
            2,
            "Metrics for non-target classes of ImageNette",
            _evaluated("imagenette", "vit-base", "non-target"),
            MAIN_METHODS,
            IMAGENETTE_IMAGES,
        ),
        _metrics(
            4,
            "Metrics for target classes, all variants of the baselines",
            imagenette + mura,
            ALL_METHODS,
            photos_and_mura,
            MURA_INTERVALS,
        ),
        _metrics(
            5,
            "Metrics for the abnormal class of MURA images predicted normal",
            _evaluated("mura", "vit-base", "non-target", step="evaluate-abnormal"),
            MAIN_METHODS,
            MURA_IMAGES,
            MURA_INTERVALS,
        ),
        _metrics(
            6,
            "Metrics for ViT-Base on Pets",
            _evaluated("pets", "vit-base", *BOTH),
            ALL_METHODS,
            PETS_IMAGES,
        ),
        *others,
        _metrics(10, "Metrics for a classifier trained with masked patches", direct, ALL_METHODS, IMAGENETTE_IMAGES),
    ]


def _other_tables() -> list[Specification]:
    ablations = tuple(Panel("imagenette", "vit-base", f"ablation-{name}", "all") for name in ABLATIONS)
    times = tuple(Panel(data, "vit-base", "timing", "all") for data in ("imagenette", "mura", "pets"))
    kernelshap = _evaluated("imagenette", "vit-base", *BOTH, step="evaluate-kernelshap")
    return [
        Specification(
            "table-3",
            "Ablations of the explainer's architecture",
            "ablations",
            ablations,
            "ImageNette's validation and test images",
            tuple(ABLATIONS),
            ("validation loss", "test loss"),
            (
                "The loss is d times the mean squared error; most of it is the variance of the values themselves, which no "
                "explainer can reduce. 'Excess' is the loss beyond that of converged Shapley values on the same subsets.",
                SAMPLER,
            ),
        ),
        Specification(
            "table-11",
            "Time per image for all classes",
            "times",
            times,
            "112 test images of each data set, in batches of 16 (attention methods, explainers) or one by one",
            MAIN_METHODS,
            ("milliseconds",),
            (
                "The authors' times are those of an RTX 2080 Ti; attention methods leave out the forward pass there, and "
                "include it here. Times of different machines cannot be compared, only ratios within a column.",
            ),
        ),
        Specification(
            "table-12",
            "Insertion and deletion of converged KernelSHAP",
            "kernelshap-areas",
            kernelshap,
            SHAPLEY_IMAGES,
            (*EXPLAINERS, *ESTIMATED_ROWS, "truth"),
            ("insertion", "deletion"),
            (SAME_RUN, REPEATED),
        ),
    ]


def _each(step: str, *data: str, model: str = "vit-base", classes: Classes = "target") -> tuple[Panel, ...]:
    return tuple(Panel(name, model, step, classes) for name in data)


def _charts() -> list[Specification]:
    evaluators = ("roar-surrogate", "roar-masked", "roar-retrained", "roar-retrained-no-positions")
    removed = "1,920 ImageNette and 3,136 MURA test images, the whole batches of 64 of each test split"
    retrained = "the whole test split; for the first two evaluators the authors' 1,024 images"
    removal = _each("removal", "imagenette", "mura")

    def roar(number: int, model: str, what: str, *metrics: str) -> Specification:
        panels = tuple(Panel("imagenette", model, step, "all") for step in evaluators)
        return Specification(f"figure-{number}", what, "roar", panels, retrained, MAIN_METHODS, metrics, (LAST_EPOCH,))

    def curves(number: int, name: str, data: str, classes: tuple[Classes, ...], images: str) -> Specification:
        step = "evaluate-abnormal" if data == "mura" else "evaluate-main"
        panels = _evaluated(data, "vit-base", *classes, step=step)
        title = f"{name}: average insertion and deletion curves"
        return Specification(f"figure-{number}", title, "curves", panels, images, MAIN_METHODS, METRICS[:2])

    return [
        Specification(
            "figure-2",
            "Predictions with patches removed: divergence",
            "removal",
            removal,
            removed,
            metrics=("divergence",),
        ),
        Specification(
            "figure-3",
            "Sensitivity-n for target classes",
            "sensitivity",
            (*_each("sensitivity", "imagenette"), *_each("sensitivity-abnormal", "mura")),
            f"{IMAGENETTE_IMAGES}; {MURA_IMAGES}",
            MAIN_METHODS,
            notes=("The authors' code draws 240 distinct subsets per size, the same for all images.",),
        ),
        roar(4, "vit-base", "Accuracy when important patches are deleted, four evaluators", "deletion"),
        Specification(
            "figure-5",
            "Predictions with patches removed: divergence and accuracy",
            "removal",
            (*removal, *_each("removal", "pets")),
            removed,
            metrics=("divergence", "accuracy"),
            notes=("The paper has no curves of Pets; they are added here, on all test images.",),
        ),
        curves(6, "ImageNette", "imagenette", BOTH, IMAGENETTE_IMAGES),
        curves(7, "MURA", "mura", ("target",), MURA_IMAGES),
        curves(8, "Pets", "pets", BOTH, PETS_IMAGES),
        Specification(
            "figure-9",
            "Sensitivity-n for non-target classes",
            "sensitivity",
            _each("sensitivity", "imagenette", classes="non-target"),
            IMAGENETTE_IMAGES,
            MAIN_METHODS,
        ),
        roar(10, "vit-base", "Accuracy when patches are inserted or deleted, ViT-Base", "insertion", "deletion"),
        roar(11, "vit-small", "Accuracy when patches are inserted or deleted, ViT-Small", "insertion", "deletion"),
        Specification(
            "figure-12",
            "Error of KernelSHAP against evaluations",
            "kernelshap-error",
            tuple(Panel("imagenette", "vit-base", step) for step in (*ESTIMATORS, *EXPLAINER_ERRORS)),
            SHAPLEY_IMAGES,
            (*ESTIMATED_ROWS, *EXPLAINERS),
            ("distance", "pearson", "spearman"),
            (SAME_RUN,),
        ),
    ]


def _maps() -> list[Specification]:
    def grids(first: int, count: int, name: str, data: str, images: str) -> list[Specification]:
        return [
            Specification(
                f"figure-{first + i}",
                f"Maps of all methods, {name}, {i + 1} of {count}",
                "maps",
                _each("maps-abnormal" if data == "mura" else "maps", data),
                images,
                MAP_METHODS,
                part=(i, count),
            )
            for i in range(count)
        ]

    return [
        Specification(
            "figure-1",
            "Maps of target and non-target classes with insertion and deletion curves",
            "class-maps",
            (*_each("maps", "imagenette"), *_each("maps-abnormal", "mura")),
            "test images",
            EXPLAINERS,
        ),
        Specification(
            "figure-13",
            "Maps of the explainers and of KernelSHAP",
            "maps",
            _each("maps-kernelshap", "imagenette"),
            "24 of the authors' 100 ImageNette test images",
            (*EXPLAINERS, "kernelshap-original"),
            notes=("KernelSHAP stops when its largest standard error is below 0.2 of the range of its values.",),
        ),
        *grids(14, 3, "ImageNette", "imagenette", "test images of every class"),
        *grids(17, 3, "MURA", "mura", "test images predicted abnormal"),
        *grids(20, 4, "Pets", "pets", "one test image per breed"),
        Specification(
            "figure-24",
            "Maps of non-target classes",
            "maps",
            _each("maps", "imagenette", classes="non-target"),
            "test images, each with its most probable non-target class",
            MAP_METHODS,
        ),
    ]


def _in_order(*given: Specification) -> list[Specification]:
    return sorted(given, key=lambda one: int(one.id.partition("-")[2]))


SPECIFICATIONS = {
    one.id: one for one in (*_in_order(*_metric_tables(), *_other_tables()), *_in_order(*_charts(), *_maps()))
}
"""The paper's twelve tables and twenty-four figures, by ``"table-1"`` to ``"figure-24"``."""


def specification(name: str) -> Specification:
    """Return the specification of this id."""
    if name not in SPECIFICATIONS:
        raise ValueError(f"there is no {name!r}{did_you_mean(name, list(SPECIFICATIONS))}")
    return SPECIFICATIONS[name]
