"""The page of a certificate: the verdict, what it rests on, and the worst images, in one file that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitshap import plots
from vitshap.certifying.certificate import Certificate
from vitshap.certifying.formats import BOUND_NOTE, bound_numbers, interval_text, metric_numbers
from vitshap.certifying.measure import Compared, ImageSet
from vitshap.certifying.verdict import ALL_OUTPUTS, ONLY, PREDICTED, Finding, Level
from vitshap.evaluation.marks import Measured
from vitshap.explaining.html import pairs_html, table_html
from vitshap.explaining.text import output_text, percent
from vitshap.plots import SOFTWARE
from vitshap.viewer.page import page_end, page_start, photo_uri, stylesheet

WORST = 6
"""Images of the lowest correlation that are shown."""
SIDE = 224
"""Pixels of a picture."""
UNIT = " Losses and distances are in the explainer's unit of each output, its standard deviation in training."
BINS = 20
"""Bars of the histogram of correlations, from 0 to 1; negative ones are in the first."""
_MINUS = "\N{MINUS SIGN}"
_CLASS: dict[Level, str] = {
    "reliable": "good",
    "use with care": "fair",
    "not usable": "bad",
    "other images": "bad",
    "no verdict": "fair",
}


@lru_cache
def template(name: str) -> Template:
    """Return a file of this package's page."""
    return Template((files("vitshap.certifying") / name).read_text(encoding="utf-8").strip())


def to_html(certificate: Certificate, title: str) -> str:
    """Return the page."""
    verdict, compared = certificate.verdict, certificate.compared
    lead = (
        f"{certificate.test.images:,} test images, {len(compared.names):,} of them with converged Shapley values "
        f"({certificate.settings.budget:,} evaluations each)."
    )
    css, skip = f"{stylesheet()}\n{template('page.css').template}", ("verdict", "Skip to the verdict")
    return template("page.html").substitute(
        start=page_start(title, title, lead, skip=skip, generator=SOFTWARE, css=css),
        kind=_CLASS[verdict.level],
        level=escape(verdict.level),
        sentence=escape(verdict.sentence),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in certificate.notes),
        rules="".join(_rule(one) for one in verdict.findings),
        quality=table_html("Quality on test images", ["measure", "value", "95 % interval"], _quality(certificate)),
        histogram=_histogram(compared.correlations()),
        bound=_bound(certificate),
        drift=_drift(certificate),
        worst="".join(_image(compared, int(i), certificate) for i in worst_images(compared)),
        shown="The output of the lowest correlation" if compared.judged == ALL_OUTPUTS else f"The {compared.judged}",
        unit=UNIT if compared.judged == ALL_OUTPUTS else "",
        facts=pairs_html(_facts(certificate)),
        end=page_end(),
    )


def worst_images(compared: Compared) -> Tensor:
    """Return the images of the lowest correlation of what is judged, worst first."""
    found = compared.correlations()
    order = found.nan_to_num(torch.inf).argsort()
    return order[: min(WORST, int((~found.isnan()).sum()))]


def _rule(finding: Finding) -> str:
    if finding.level is None:
        mark, word = "fair", "does not count"
    else:
        mark, word = _CLASS[finding.level], "met" if finding.level == "reliable" else finding.level
    interval = "" if finding.value is None else f" (95 % interval {interval_text(finding)})"
    return (
        f'<li><span class="mark {mark}">{escape(word)}</span><div><b>{escape(finding.rule)}</b>'
        f"<p>{escape(finding.sentence)}{escape(interval)}</p></div></li>"
    )


def _quality(certificate: Certificate) -> list[list[str]]:
    compared, test, validation = certificate.compared, certificate.test, certificate.validation
    rows: list[tuple[str, Measured | float | None]] = []
    for words, classes in ((compared.judged, "target"), ("other classes", "others")):
        for kind in ("pearson", "spearman"):
            found = compared.correlation(classes, kind)  # type: ignore[arg-type]
            rows.append((f"{kind.capitalize()} correlation with converged values, {words}", found))
        rows.append((f"reliability of the converged values, {words}", compared.reliability(classes)))  # type: ignore[arg-type]
    by_class = compared.judged == PREDICTED
    rows += [
        (f"Shapley value estimation error, {'all classes' if by_class else compared.judged}", compared.distance()),
        (f"Shapley value estimation error, {PREDICTED}", compared.distance("target") if by_class else None),
        ("loss saved of the uniform explanation's", compared.improvement),
        ("validation loss", validation.loss),
        ("validation loss of the uniform explanation", validation.uniform_loss),
        ("test loss", test.loss),
        ("test loss of the uniform explanation", test.uniform_loss),
        ("coverage of 95 % intervals", compared.coverage()),
        ("coverage of the player covered least", compared.least_coverage),
        ("images below the threshold of confidence", test.below(certificate.threshold)),
        ("accuracy of the surrogate", test.accuracy),
    ]
    if certificate.threshold is not None and compared.coverage() is not None:
        low = compared.explanation.prediction.amax(1) < certificate.threshold
        rows.append(("coverage, images below the threshold", compared.coverage(low)))
        rows.append(("coverage, images above the threshold", compared.coverage(~low)))
    rows += [(f"{metric}, {row}", value) for metric, row, value in metric_numbers(certificate)]
    return [[name, *_cells(value)] for name, value in rows if value is not None and not _nan(value)]


def _bound(certificate: Certificate) -> str:
    found = bound_numbers(certificate)
    rows = [["measured distance", *_cells(found["distance"])[:1], ""]]
    for key, words in (
        ("bound", "bound by the measured loss"),
        ("chebyshev", "Chebyshev, 95 %: loose"),
        ("hoeffding", "Hoeffding, 95 %: loose"),
    ):
        valid, estimated = found["valid"][key], found["estimated"][key]
        if valid is not None:
            rows.append([words, number(valid), number(estimated)])
    optimum = (
        f"On the images with converged values L is {number(found['loss'])} and L* about {number(found['optimum'])}, not "
        "multiplied by the number of patches."
    )
    headings = ["mean distance from the exact values", "with L* = 0: valid", "with L* estimated"]
    return (
        f"{table_html('Bounds of Theorem 1', headings, rows)}"
        f'<p class="small">{escape(optimum)} {escape(BOUND_NOTE)}</p>'
    )


def _drift(certificate: Certificate) -> str:
    if not certificate.drift:
        return '<p class="small">No other images were measured.</p>'
    headings = ["images", "number", "below the threshold", "ROC area", "accuracy", "loss / uniform"]
    headings += ["correlation", "promised", "coverage", "verdict"]
    rows = [_drift_row(certificate, one) for one in (certificate.test, *certificate.drift)]
    used = [column for column in range(len(headings)) if any(row[column] for row in rows)]
    shown = [[row[column] for column in used] for row in (headings, *rows)]
    return table_html("Other images", shown[0], shown[1:])


def _drift_row(certificate: Certificate, images: ImageSet) -> list[str]:
    compared, below = images.compared, images.below(certificate.threshold)
    correlation = None if compared is None else compared.correlation()
    coverage = None if compared is None else compared.coverage()
    separated = None if images is certificate.test else certificate.separation(images)
    return [
        images.name,
        f"{images.images:,}",
        "" if below is None else percent(below.mean, 1),
        "" if separated is None else f"{separated:.3f}",
        "" if images.accuracy is None else percent(images.accuracy, 1),
        f"{images.loss.mean / images.uniform_loss.mean:.3f}",
        "" if compared is None or correlation is None else f"{signed(correlation.mean)} ({len(compared.names)} images)",
        "" if images.promised is None else f"{float(images.promised.mean()):.3f}",
        "" if coverage is None else percent(coverage.mean, 1),
        certificate.verdict_on(images).level,
    ]


def _histogram(correlations: Tensor) -> str:
    """Return the correlations of the images as bars."""
    found = correlations[~correlations.isnan()].clamp(0, 1)
    if not len(found):
        return ""
    counts = torch.histc(found, bins=BINS, min=0, max=1).tolist()
    wide, high, low = 640, 150, 30
    most = max([*counts, 1])
    step = wide / BINS
    bars = "".join(
        f'<rect x="{i * step + 1:.1f}" y="{high - high * count / most:.1f}" width="{step - 2:.1f}" '
        f'height="{high * count / most:.1f}"><title>{i / BINS:.2f} to {(i + 1) / BINS:.2f}: {count:.0f}</title></rect>'
        for i, count in enumerate(counts)
        if count
    )
    ticks = "".join(
        f'<text x="{wide * at:.0f}" y="{high + 22}" class="{side}">{at:.2f}</text>'
        for at, side in ((0.0, "start"), (0.25, ""), (0.5, ""), (0.75, ""), (1.0, "end"))
    )
    label = (
        f"Correlation with converged values, {len(found)} images: least {found.min():.2f}, median {found.median():.2f}"
    )
    return (
        f'<figure class="histogram"><svg viewBox="0 0 {wide} {high + low}" role="img" aria-label="{label}">{bars}'
        f'<path d="M0 {high}H{wide}"/>{ticks}</svg><figcaption>{escape(label)} (not corrected; negative ones count as 0)'
        "</figcaption></figure>"
    )


def _image(compared: Compared, i: int, certificate: Certificate) -> str:
    """Return one image with the explainer's and the converged map on one scale."""
    explanation, judged = compared.explanation, compared.target[i]
    index = int(compared.error.pearson[i].nan_to_num(0.0).masked_fill(~judged, torch.inf).argmin())
    column = explanation.classes[i].tolist().index(index)
    players = explanation.players[0 if len(explanation.players) == 1 else i]
    known = compared.truth.values[i, :, index]
    maps = [_on_grid(values, players) for values in (explanation.values[i, :, column].double(), known)]
    limit = max(float(np.nanmax(np.abs(one))) for one in maps) or 1.0
    picture = _picture(compared.pixels[i])
    names = certificate.about.get("class_names")
    kind = "output" if compared.judged == ALL_OUTPUTS else "class"
    said = {PREDICTED: "predicted", ONLY: "probability of", ALL_OUTPUTS: "shown:"}[compared.judged]
    label = f"{kind} {index}" if names is None else str(names[index])
    output = output_text(float(explanation.prediction[i, index]), _outputs(certificate))
    shown = [("photo", picture)]
    shown += [
        (words, plots.overlay_png(one, picture, limit=limit, max_side=SIDE))
        for words, one in zip(("explainer", "converged"), maps, strict=True)
    ]
    cells = "".join(
        f'<figure><img src="{photo_uri(drawn, most=SIDE)}" width="{SIDE}" height="{SIDE}" '
        f'alt="{escape(f"{compared.names[i]}, {words}")}"><figcaption>{words}</figcaption></figure>'
        for words, drawn in shown
    )
    correlation = signed(float(compared.correlations()[i]))
    return (
        f"<li><p><b>correlation {correlation}</b>, {said} {escape(label)} ({escape(output)})<br>"
        f'<span class="small">{escape(compared.names[i])}</span></p><div class="trio">{cells}</div></li>'
    )


def _on_grid(values: Tensor, players: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return values of players on the grid of patches; NaN where a patch has no player."""
    shown = values[players.clamp(min=0)].masked_fill(players < 0, torch.nan)
    return np.asarray(shown.numpy(), dtype=np.float64)


def _picture(pixels: Tensor) -> Image.Image:
    """Return the model's input as a picture, its darkest and brightest numbers as black and white."""
    low, high = float(pixels.min()), float(pixels.max())
    scaled = ((pixels - low) / ((high - low) or 1.0) * 255).round().byte().permute(1, 2, 0).numpy()
    picture = Image.fromarray(scaled[..., 0] if scaled.shape[2] == 1 else scaled)
    small = max(picture.size) < SIDE
    return picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.NEAREST) if small else picture.convert("RGB")


def _outputs(certificate: Certificate) -> Literal["probability", "output"]:
    return "probability" if certificate.about.get("unit", "probability") == "probability" else "output"


def _facts(certificate: Certificate) -> list[tuple[str, str]]:
    names = {
        "bundle": "bundle",
        "data": "data",
        "players": "patches (players)",
        "outputs": "outputs",
        "calibration_images": "images that calibrated the error bars",
        "surrogate": "surrogate's weights (SHA-256)",
        "device": "device",
        "made": "made",
        "vitshap": "vitshap",
    }
    about, settings = certificate.about, certificate.settings
    found = [(words, str(about[key])[:64]) for key, words in names.items() if about.get(key) is not None]
    if certificate.threshold is not None:
        found.append(("threshold of confidence", f"{certificate.threshold:.2f}"))
    return [*found, ("coalitions for the losses", f"{settings.coalitions} of each image")]


def signed(correlation: float) -> str:
    """Return a correlation with three decimals."""
    return f"{correlation:.3f}".replace("-", _MINUS)


def number(value: float) -> str:
    """Return a number with four digits."""
    return f"{value:.4g}".replace("-", _MINUS)


def _cells(value: Measured | float | None) -> Sequence[str]:
    """Return the cells of a number and of its interval."""
    if value is None:
        return ["", ""]
    if not isinstance(value, Measured):
        return [number(value), ""]
    interval = "" if math.isnan(value.low) else f"{number(value.low)} to {number(value.high)}"
    return [number(value.mean), interval]


def _nan(value: Measured | float) -> bool:
    return math.isnan(value.mean if isinstance(value, Measured) else value)
