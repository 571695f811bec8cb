"""Estimated seconds of every step in the profiles ``smoke``, ``small`` and ``full``; one entry stands for most ablations.

An entry for one setting, SETTING/STEP, goes before that of the step.
"""

SMOKE = {
    "train-classifier": 9,
    "train-surrogate": 9,
    "train-explainer-paper": 18,
    "train-explainer-default": 30,
    "train-surrogate-pixels": 14,
    "train-masked-classifier": 7,
    "train-explainer-masked": 21,
    "truth": 3,
    "kernelshap-paired": 3,
    "kernelshap-unpaired": 3,
    **dict.fromkeys(("kernelshap-default", "refine-tokens", "refine-explainer"), 1),
    **dict.fromkeys(("explainer-error-paper", "explainer-error-default"), 1),
    "evaluate-main-rivals": 10,
    "evaluate-main-variants": 6,
    **dict.fromkeys(("evaluate-main-explainer-paper", "evaluate-main-explainer-default"), 2),
    "evaluate-abnormal-rivals": 5,
    "evaluate-abnormal-variants": 3,
    **dict.fromkeys(("evaluate-abnormal-explainer-paper", "evaluate-abnormal-explainer-default"), 1),
    "evaluate-masked": 10,
    "evaluate-kernelshap": 1,
    "sensitivity": 9,
    "sensitivity-abnormal": 7,
    "removal": 3,
    "roar-surrogate": 12,
    "roar-masked": 12,
    "roar-retrained": 60,
    "roar-retrained-no-positions": 60,
    "timing": 3,
    "maps": 6,
    "maps-abnormal": 4,
    "maps-kernelshap": 1,
    "ablation": 9,
    "procedure": 60,
    "convergence": 10,
}
"""Measured, one thread of an otherwise idle core; those of ROAR are projected."""
_IMAGENETTE: dict[str, float] = {
    "train-classifier": 180,
    "train-surrogate": 280,
    "train-explainer-paper": 500,
    "train-explainer-default": 600,
    "train-surrogate-pixels": 280,
    "train-masked-classifier": 170,
    "train-explainer-masked": 500,
    "truth": 200,
    "kernelshap-paired": 260,
    "kernelshap-unpaired": 380,
    "kernelshap-default": 180,
    "refine-tokens": 160,
    "refine-explainer": 250,
    **dict.fromkeys(("explainer-error-paper", "explainer-error-default"), 11),
    "evaluate-main-rivals": 420,
    "evaluate-main-variants": 230,
    **dict.fromkeys(("evaluate-main-explainer-paper", "evaluate-main-explainer-default"), 75),
    "evaluate-abnormal-rivals": 150,
    "evaluate-abnormal-variants": 90,
    **dict.fromkeys(("evaluate-abnormal-explainer-paper", "evaluate-abnormal-explainer-default"), 30),
    "evaluate-masked": 200,
    "evaluate-kernelshap": 60,
    "sensitivity": 300,
    "sensitivity-abnormal": 150,
    "removal": 60,
    "roar-surrogate": 300,
    "roar-masked": 100,
    "roar-retrained": 32 * 30,
    "roar-retrained-no-positions": 32 * 30,
    "timing": 60,
    "maps": 60,
    "maps-abnormal": 60,
    "maps-kernelshap": 60,
    "ablation": 200,
    "ablation-unet": 600,
    "procedure": 1500,
    "convergence": 650,
}
"""Those of classifier, surrogate, both explainers, reference values, our estimators, rivals and removal were measured on
ImageNette, most of them two to four beside one another on one H200. The others are projected from 148,000 evaluations a
second, 16 to 31 ms a step of training, and 40 to 100 s until a training has read its images and compiled its networks."""
_START = 60
"""Of the seconds of a training: reading the images, and compiling."""
_TRAINED, _EVALUATED = 9469, 1024
"""Training images of ImageNette, and evaluated ones."""


def _setting(name: str, trained: int, evaluated: int) -> dict[str, float]:
    """Return ImageNette's seconds for as many images of another setting, by SETTING/STEP."""
    found: dict[str, float] = {}
    for step, seconds in _IMAGENETTE.items():
        if step.startswith("train-"):
            seconds = _START + (seconds - _START) * trained / _TRAINED
        elif step.startswith(("evaluate-", "sensitivity", "removal")):
            seconds *= evaluated / _EVALUATED
        found[f"{name}/{step}"] = seconds
    return found


SMALL = {**_IMAGENETTE, **_setting("chest", 1890, 624), **_setting("pets", 5879, 735)}
FULL_FACTOR = 6.5
"""ViT-Base evaluates 148,000 / 22,600 times as slowly. Retraining: 13 methods, 11 numbers of patches, in both directions;
ablations have 100 epochs in place of 25."""
FULL = {
    **{
        name: FULL_FACTOR * spent
        for name, spent in {**_IMAGENETTE, **_setting("mura", 33071, 1024), **_setting("pets", 5879, 735)}.items()
    },
    **dict.fromkeys(("roar-retrained", "roar-retrained-no-positions"), 286 * 200 * FULL_FACTOR),
    "ablation": 4 * 200 * FULL_FACTOR,
    "ablation-unet": 4 * 600,  # its size does not depend on the ViT's
}
