"""Draws the README's picture with the bundle in the package: ``python docs/images/make.py [FOLDER]``.

The photo is scikit-learn's china.jpg, CC BY 2.0, "Some rights reserved by danielbuechele"
(https://www.flickr.com/photos/danielbuechele/6061409035). Run it again whenever the bundle is replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from sklearn.datasets import load_sample_images

import vitshap
from vitshap import metrics, plots
from vitshap.explainers import bundle

RANDOM_ORDERS = 5


def main(folder: Path) -> None:
    """Photo, map of the predicted class, and both curves beside those of random orders."""
    explainer = vitshap.Explainer.from_pretrained(bundle.shipped()[0])
    surrogate = explainer.surrogate
    path = next(name for name in load_sample_images().filenames if name.endswith("china.jpg"))
    explanation = explainer(path, target="predicted")
    name = explanation.class_names[int(explanation.classes[0, 0])]
    seen = Image.open(path).crop([round(side) for side in explanation.image_box[0].tolist()])  # the model's crop

    def curves(of: vitshap.Explanation) -> tuple[np.ndarray, np.ndarray]:
        return tuple(
            metric(surrogate, path, of).points[0, 0].numpy() for metric in (metrics.insertion, metrics.deletion)
        )

    random = [
        curves(vitshap.method("random", surrogate, seed=seed)(path, target="predicted"))
        for seed in range(RANDOM_ORDERS)
    ]
    figure = plots.curves_figure(
        explanation.heatmap()[0].numpy(),
        seen,
        *curves(explanation),
        unit=explanation.unit,
        title=f"{name}: {explanation.base_values.item():.2f} to {explanation.full_values.item():.2f}",
        picture_title="the model's crop",
        label=f"'{name}'",
        name="explainer",
        compare={
            f"{RANDOM_ORDERS} random orders": tuple(np.mean(order, axis=0) for order in zip(*random, strict=True))
        },
        value_label=f"probability of {name}",
    )
    saved = plots.save(figure, folder / "china.png", dpi=100)
    known = PngInfo()
    known.add_text("Software", plots.SOFTWARE)
    Image.open(saved).convert("RGB").save(saved, optimize=True, pnginfo=known)
    print(f"{saved}: {saved.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
