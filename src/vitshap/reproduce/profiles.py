"""Profiles: the same specifications and steps at four sizes. Only data, model and the numbers of a measurement differ.

``smoke`` checks that everything works, on the embedded digits; its numbers say nothing about the paper. ``cpu`` is
DeiT-Tiny on the real data sets with short trainings and few test images, for two CPU cores. ``small`` is the same at
length, for a GPU. Both have chest radiographs in place of MURA, which may not be redistributed. ``full`` is the paper's
own: ViT-Base, and ViT-Tiny, -Small and -Large on ImageNette.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vitshap.errors import did_you_mean
from vitshap.reproduce import seconds

Label = Literal["smoke", "reduced scale", "reproduced here"]


@dataclass(frozen=True)
class Setting:
    """A data set, a model, and the recipes by which they are trained."""

    name: str
    data: str
    """Name by which ``--data NAME=PATH`` gives the images."""
    recipe: str
    """Recipe of classifier, surrogate and the explainer by the paper's procedure."""
    default_recipe: str
    """Recipe whose settings of the explainer are the default procedure here."""
    model: str | None = None
    """Model in place of the recipe's."""
    architecture: str = ""
    """Name of the model on the pages, where it is not the paper's."""
    changes: tuple[str, ...] = ()
    """Changes of the recipe's settings, as for ``vitshap train --set``."""
    default_changes: tuple[str, ...] = ()
    """Changes of the default explainer's settings."""
    abnormal: int | None = None
    """Class that is explained for images predicted to be of it (target) and for all others (non-target), as in MURA."""
    explained_others: int | None = None
    """Non-target classes of an image that are explained, drawn once; None: all."""
    label: Label = "reproduced here"
    note: str = ""
    """How the setting differs from the paper's."""


@dataclass(frozen=True)
class Scale:
    """Numbers of the measurements; the defaults are the paper's."""

    split: tuple[int, int | None, int | None] | None = None
    """Training, validation and test images at most; None: all."""
    images: int | None = None
    """Evaluated images at most; None: those of the authors."""
    curve_step: int = 1
    """Patches between the points of insertion and deletion; the area is then that of the trapezoidal rule."""
    loss_images: int | None = None
    """Validation and test images on which an explainer's loss is measured, at most; None: all."""
    subsets: int = 1000
    """Of faithfulness and sensitivity-n, per image."""
    shapley_images: int | None = None
    """Images with reference values at most; None: the authors' 100."""
    truth: int = 2**18
    """Evaluations per image of the reference values."""
    paired: int = 2**18
    unpaired: int = 3 * 2**17
    """Evaluations per image of KernelSHAP as published."""
    refined: int = 4096
    """Evaluations per image of ``refine``."""
    masks: int = 2000
    """Of RISE."""
    retrained_methods: tuple[str, ...] | None = None
    """Methods in masked retraining; None: all of the figure."""
    roar_counts: tuple[int, ...] | None = None
    """Numbers of inserted or deleted patches; None: the paper's, as shares of the number of patches."""
    retrained_counts: tuple[int, ...] | None = None
    """The same in masked retraining."""
    retrained_from: Literal["initial", "classifier"] = "initial"
    """Weights that masked retraining starts from."""
    retrained_epochs: int = 25
    removal_step: int = 14
    """Patches between the points of the removal figure, for 196 patches."""
    ablation_epochs: int = 100
    procedure_views: int = 5
    """Views of every training image in the comparison of our steps with the paper's procedure."""
    procedure_variants: tuple[int, ...] | None = None
    """Numbers of the compared variants; None: all."""
    convergence_budgets: tuple[int, ...] = (4096, 16384, 32000, 40000)
    timed_images: int = 112
    grid_images: int = 24
    """Images in the comparison of maps with KernelSHAP."""
    training: tuple[str, ...] = ()
    """Changes of the recipes' settings, before those of a setting."""
    default_training: tuple[str, ...] = ()
    """Changes of the default explainer's settings, before those of a setting."""


@dataclass(frozen=True)
class Profile:
    """Which setting stands for a data set and model of the paper, and how large the measurements are."""

    name: str
    description: str
    settings: Mapping[tuple[str, str], Setting]
    """By data set and model of the paper; what is not there is not run."""
    scale: Scale = field(default_factory=Scale)
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Estimated time of each step, or of SETTING/STEP; that of ablations without an entry of their own under "ablation"."""
    hardware: str = ""
    """What the estimates are for."""

    def setting(self, data: str, model: str) -> Setting | None:
        """Return what stands for a data set and a model of the paper; None: it is not part of the profile."""
        return self.settings.get((data, model))

    def expected(self, setting: str, step: str) -> float | None:
        """Return the estimated seconds of a setting's step; None where nothing is known."""
        names = (step, "ablation") if step.startswith("ablation-") else (step,)
        known = (self.seconds.get(key) for name in names for key in (f"{setting}/{name}", name))
        return next((one for one in known if one is not None), None)

    def names(self) -> dict[str, Setting]:
        """Return all settings by name."""
        return {one.name: one for one in self.settings.values()}


PAPER_SETTINGS = (
    ("imagenette", "vit-base"),
    ("imagenette", "vit-tiny"),
    ("imagenette", "vit-small"),
    ("imagenette", "vit-large"),
    ("mura", "vit-base"),
    ("pets", "vit-base"),
)
_DIGITS = Setting(
    "digits",
    "digits",
    "digits",
    "digits",
    architecture="very small ViT",
    changes=("explainer.procedure=paper",),
    abnormal=1,
    label="smoke",
    note="digits and a very small ViT, which say nothing about the paper's results",
)
_DEIT = "deit_tiny_patch16_224"
SMOKE = Profile(
    "smoke",
    "embedded digits and a very small ViT: checks that every table and figure is filled",
    dict.fromkeys(PAPER_SETTINGS, _DIGITS),
    Scale(
        images=48,
        subsets=64,
        shapley_images=10,
        truth=4096,
        paired=4096,
        unpaired=4096,
        refined=512,
        masks=200,
        retrained_methods=None,
        roar_counts=(4, 12),
        retrained_counts=(4, 12),
        retrained_epochs=2,
        ablation_epochs=4,
        procedure_views=2,
        procedure_variants=(0, 2, 13),
        convergence_budgets=(256, 1024),
        timed_images=16,
        grid_images=6,
        training=(
            "classifier.loop.epochs=20",
            "surrogate.loop.epochs=15",
            "surrogate.coalitions=2",
            "explainer.loop.epochs=10",
            "explainer.coalitions=16",
            "calibration={images: 40, evaluations: 512}",
        ),
        default_training=("explainer.loop.epochs=15", "explainer.values.views=15"),
    ),
    seconds.SMOKE,
    hardware="one thread of an idle CPU",
)
_BRIEFLY = "trained briefly on two CPU cores"
CPU = Profile(
    "cpu",
    "DeiT-Tiny on ImageNette, Pets and chest radiographs, short trainings and few images, two CPU cores",
    {
        **dict.fromkeys(
            (("imagenette", "vit-tiny"), ("imagenette", "vit-base")),
            Setting(
                "imagenette",
                "imagenette",
                "imagenette-deit-tiny",
                "imagenette-deit-tiny",
                model=_DEIT,
                architecture="DeiT-Tiny",
                changes=(
                    "data.split=authors",
                    "model.head_rows=[482, 569, 0, 217, 497, 701, 566, 491, 574, 571]",  # in the authors' order
                    "explainer.procedure=paper",
                ),
                explained_others=1,
                label="reduced scale",
                note="DeiT-Tiny (ImageNet-1k) in place of the paper's ViTs (ImageNet-21k), " + _BRIEFLY,
            ),
        ),
        ("mura", "vit-base"): Setting(
            "chest",
            "chest",
            "chest",
            "imagenette-deit-tiny",
            model=_DEIT,
            architecture="DeiT-Tiny",
            changes=(
                "classifier.loop={epochs: 4, batch_size: 32, learning_rate: 5e-5}",
                "surrogate.loop={epochs: 4, batch_size: 32}",
                "explainer.loop.epochs=3",
            ),
            default_changes=("explainer.loop={epochs: 6, batch_size: 32}", "explainer.values.views=6"),
            abnormal=0,
            label="reduced scale",
            note="DeiT-Tiny, and chest radiographs (pneumonia or normal) in place of MURA, " + _BRIEFLY,
        ),
        ("pets", "vit-base"): Setting(
            "pets",
            "pets",
            "paper-pets",
            "imagenette-deit-tiny",
            model=_DEIT,
            architecture="DeiT-Tiny",
            changes=("classifier.loop={epochs: 4, learning_rate: 1e-4}",),
            explained_others=1,
            label="reduced scale",
            note="DeiT-Tiny in place of ViT-Base; images of 160 pixels, " + _BRIEFLY,
        ),
    },
    Scale(
        split=(6000, 256, None),
        images=64,
        curve_step=7,
        loss_images=64,
        subsets=200,
        shapley_images=8,
        truth=2**13,
        paired=2**14,
        unpaired=2**14,
        refined=2048,
        masks=500,
        retrained_methods=("vitshap", "random"),
        retrained_counts=(56, 112),
        retrained_from="classifier",
        retrained_epochs=1,
        removal_step=28,
        ablation_epochs=1,
        procedure_views=1,
        procedure_variants=(0, 2, 13),
        convergence_budgets=(1024, 4096),
        timed_images=16,
        grid_images=4,
        training=(
            "classifier.loop={epochs: 1, batch_size: 64, learning_rate: 1e-5, warmup_steps: 20}",
            "surrogate.loop={epochs: 2, batch_size: 64, learning_rate: 1e-4, warmup_steps: 20}",
            "surrogate.augmentation={vertical_flip: 0, crop_scale: [0.5, 1.0]}",
            "explainer.loop={epochs: 1, batch_size: 64, learning_rate: 1e-4, warmup_steps: 20, validate_every: 1}",
            "explainer.coalitions=32",
            "explainer.validation_coalitions=8",
            "calibration.images=50",
        ),
        default_training=(
            "explainer.loop={epochs: 3, batch_size: 64, learning_rate: 3e-4, warmup_steps: 20, validate_every: 1}",
            "explainer.augmentation={vertical_flip: 0, crop_scale: [0.5, 1.0]}",
            "explainer.values={views: 3, coalitions: 12, low_confidence_oversampling: 1}",
            "explainer.validation_coalitions=8",
        ),
    ),
    {},
    hardware="two CPU cores",
)
_ONCE = "explainer.values.low_confidence_oversampling=1"
SMALL = Profile(
    "small",
    "DeiT-Tiny on ImageNette, Pets and chest radiographs, one GPU",
    {
        ("imagenette", "vit-tiny"): (
            _imagenette := Setting(
                "imagenette",
                "imagenette",
                "paper-imagenette",
                "imagenette-deit-tiny",
                model=_DEIT,
                architecture="DeiT-Tiny",
                label="reduced scale",
                note="DeiT-Tiny (ImageNet-1k) in place of the paper's ViTs (ImageNet-21k)",
            )
        ),
        ("imagenette", "vit-base"): _imagenette,
        ("mura", "vit-base"): Setting(
            "chest",
            "chest",
            "chest",
            "imagenette-deit-tiny",
            model=_DEIT,
            architecture="DeiT-Tiny",
            default_changes=(_ONCE,),  # oversampling needs a softmax
            abnormal=0,
            label="reduced scale",
            note="DeiT-Tiny, and chest radiographs (pneumonia or normal) in place of MURA",
        ),
        ("pets", "vit-base"): Setting(
            "pets",
            "pets",
            "paper-pets",
            "imagenette-deit-tiny",
            model=_DEIT,
            architecture="DeiT-Tiny",
            default_changes=(_ONCE,),  # with 37 breeds most training images may be of low confidence
            explained_others=10,
            label="reduced scale",
            note="DeiT-Tiny in place of ViT-Base; images of 160 pixels",
        ),
    },
    Scale(
        ablation_epochs=25,
        retrained_methods=("vitshap", "lrp", "leave-one-out", "random"),
        retrained_counts=(14, 56, 112, 168),
        retrained_from="classifier",
        retrained_epochs=3,
        # four fifths of the recipe's views, so that a training takes less than nine minutes
        default_training=("explainer.values.views=80", "explainer.loop.epochs=80"),
    ),
    seconds.SMALL,
    hardware="one H200, projected",
)
FULL = Profile(
    "full",
    "the paper's own: ViT-Base on three data sets, and ViT-Tiny, -Small and -Large on ImageNette",
    {
        **{
            ("imagenette", f"vit-{size}"): Setting(
                f"imagenette-{size}",
                "imagenette",
                "paper-imagenette",
                "imagenette-deit-tiny",
                model=f"vit_{size}_patch16_224",
            )
            for size in ("base", "tiny", "small", "large")
        },
        ("mura", "vit-base"): Setting(
            "mura", "mura", "paper-mura", "imagenette-deit-tiny", default_changes=(_ONCE,), abnormal=0
        ),
        ("pets", "vit-base"): Setting(
            "pets",
            "pets",
            "paper-pets",
            "imagenette-deit-tiny",
            default_changes=(_ONCE,),
            explained_others=10,
            note="ten of each image's 36 non-target classes",
        ),
    },
    seconds=seconds.FULL,
    hardware="one H200, projected",
)
PROFILES = {one.name: one for one in (SMOKE, CPU, SMALL, FULL)}


def profile(name: str) -> Profile:
    """Return the profile of this name."""
    if name not in PROFILES:
        raise ValueError(f"there is no profile {name!r}{did_you_mean(name, list(PROFILES))}")
    return PROFILES[name]
