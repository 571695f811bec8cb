"""The model card of a bundle: the README of its folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NAMES_SHOWN = 20

MEASURES = {
    "target": "correlation with converged Shapley values, corrected for their reliability, own class",
    "others": "correlation with converged Shapley values, corrected for their reliability, other classes",
    "raw_target": "correlation with converged Shapley values, not corrected, own class",
    "raw_others": "correlation with converged Shapley values, not corrected, other classes",
    "reliability_target": "reliability of the converged values, own class",
    "reliability_others": "reliability of the converged values, other classes",
    "insertion": "insertion, area under the curve of the own class",
    "deletion": "deletion, area under the curve of the own class",
    "others_insertion": "insertion by the values of other classes, area under the curves of these classes",
    "random_insertion": "insertion in random order",
    "random_deletion": "deletion in random order",
    "unknown_threshold": "probability threshold: predictions below it are reported as low confidence",
}
"""Descriptions of recorded numbers; others, such as those that ``vitshap certify --record`` writes, are shown by their
names.

Measures are listed in the order in which they were recorded. "Own class": the class of the image. Only the threshold is
still recorded: the other names are in cards of earlier versions.
"""

TEMPLATE = """\
---
library_name: vitshap
tags: [vitshap, shapley-values, explainability]
license: other  # yours to fill in
---

# An explainer for {architecture}

Shapley values of image patches in one forward pass: which parts of an image drive the prediction of a {library}
`{architecture}` for images of {height} x {width} pixels. Made with vitshap {version}.

## Use

```python
import vitshap

explainer = vitshap.Explainer.from_pretrained("this folder, or owner/name on the hub")
explanation = explainer("photo.jpg", target="predicted")
explanation.plot()
```

With `classifier=model` loading fails unless `model` has exactly the weights that this explainer was made for.

## What it explains

- Players: {players}.
- A withheld patch is removed by: {removal}. Values are in units of the model's {unit}.
- {classes}
- Weights: {precision}. Files are checked against the SHA-256 in `config.json`; there is no pickle.
- Fingerprint of the explained model: {fingerprint}

## Measured quality

{quality}

## Licence

The weights derive from the explained model and its training data, whose licences apply. Whoever publishes this folder
states the licence here.
"""


def write_card(config: dict[str, Any], /) -> str:
    """Return the text of the card for a configuration."""
    surrogate = config["surrogate"]
    wrapped, net = surrogate["wrap"], surrogate["net"]
    height, width = wrapped["image_size"]
    return TEMPLATE.format(
        architecture=net["name"],
        library=net["library"],
        height=height,
        width=width,
        version=config["versions"]["vitshap"],
        players="every patch"
        if wrapped["players"] == "patch"
        else "groups of patches, by the label map in `config.json`",
        removal=wrapped["removal"],
        unit="outputs" if wrapped["output"] == "identity" else f"probabilities ({wrapped['output']})",
        classes=_classes(wrapped["class_names"]),
        precision="16 bit, computed with in 32 bit" if config["half"] else "as trained",
        fingerprint=f"`{config['classifier']['fingerprint']}`"
        if config["classifier"]["fingerprint"]
        else "not recorded.",
        quality=_quality(config["quality"]),
    )


def _classes(names: list[str] | None) -> str:
    if names is None:
        return "The classes have no names."
    more = f", and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{len(names)} classes: {', '.join(names[:NAMES_SHOWN])}{more}."


def _quality(quality: dict[str, Any] | None) -> str:
    if not quality:
        return "Not measured."
    rows = "\n".join(f"| {name} | {value} |" for name, value in measured(quality))
    return f"| measure | value |\n|---|---|\n{rows}"


def measured(quality: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the description and the text of every measured number."""
    for name, value in quality.items():
        if isinstance(value, dict):
            yield from measured(value, f"{above}{name}, ")
        else:
            said = f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")
            yield MEASURES.get(above + name, above + name), said
