"""The profile of the tests: that of ``smoke`` with a net of two layers and hardly any training."""

from __future__ import annotations

from dataclasses import replace

from vitshap.reproduce.profiles import SMOKE, Profile

NET = ("model.layers=2", "model.hidden_size=16", "model.mlp_size=32", "model.heads=2")
ABNORMAL = 4
"""A digit that the net of two layers predicts often."""
TINY: Profile = replace(
    SMOKE,
    settings={key: replace(one, abnormal=ABNORMAL) for key, one in SMOKE.settings.items()},
    scale=replace(
        SMOKE.scale,
        split=(256, 64, 128),
        images=16,
        curve_step=2,
        loss_images=32,
        subsets=16,
        shapley_images=4,
        truth=256,
        paired=512,
        unpaired=512,
        refined=128,
        masks=16,
        retrained_methods=("vit-shapley", "vitshap", "random"),
        roar_counts=(6,),
        retrained_counts=(6,),
        retrained_epochs=1,
        removal_step=49,
        ablation_epochs=1,
        timed_images=4,
        grid_images=3,
        training=(
            *NET,
            "classifier.loop.epochs=30",
            "classifier.loop.batch_size=32",
            "surrogate.loop.epochs=1",
            "surrogate.coalitions=1",
            "explainer.loop.epochs=1",
            "explainer.coalitions=2",
            "calibration={images: 20, evaluations: 100}",
        ),
        default_training=("explainer.loop.epochs=1", "explainer.values.views=1", "explainer.values.coalitions=8"),
    ),
)
