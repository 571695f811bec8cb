"""A certificate as JSON, as lines for the terminal, and as the numbers of a bundle's card.

The card has no names and no pictures of images: they stay in the certificate's own folder.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

from vitshap.certifying.certificate import Certificate
from vitshap.certifying.measure import Classes, Compared, ImageSet
from vitshap.certifying.verdict import ALL_OUTPUTS, PREDICTED, Finding, Verdict
from vitshap.evaluation.marks import Measured
from vitshap.explaining.entries import HALF
from vitshap.explaining.text import percent

DIGITS = 6
BOUND_NOTE = (
    "Theorem 1 bounds the mean distance from the exact values by the loss. With L* = 0 the bound is valid; with L* from "
    "converged values it is an estimate. Chebyshev's and Hoeffding's inequalities take each image as one independent "
    "observation; Chebyshev's with the measured variance, Hoeffding's with the largest loss that any measured image could "
    "have. All of these bounds are loose: the measured distance is the number to go by."
)


def to_json(certificate: Certificate, title: str) -> str:
    """Return all numbers, with those of every image that has converged values."""
    content = {
        "title": title,
        "about": dict(certificate.about),
        "settings": dataclasses.asdict(certificate.settings),
        "threshold": certificate.threshold,
        "verdict": _verdict(certificate.verdict),
        "notes": certificate.notes,
        "test": _image_set(certificate, certificate.test),
        "validation": _image_set(certificate, certificate.validation),
        "drift": [_image_set(certificate, one) for one in certificate.drift],
        "bound": bound_numbers(certificate),
        "metrics": [
            {"metric": metric, "method": row, "value": value} for metric, row, value in metric_numbers(certificate)
        ],
        "images": _images(certificate.compared, certificate.test),
    }
    return json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"


def bound_numbers(certificate: Certificate) -> dict[str, Any]:
    """Return Theorem 1's bounds on the test images, beside the measured distance."""
    test, compared = certificate.test, certificate.compared
    found: dict[str, Any] = {
        "distance": compared.distance(),
        "loss": float(compared.losses.mean()),
        "optimum": compared.optimum,
    }
    for name, bound in (("valid", test.bound), ("estimated", test.estimated_bound)):
        if bound is not None:
            found[name] = {"bound": bound.bound, "chebyshev": bound.chebyshev, "hoeffding": bound.hoeffding}
    return {**found, "probability": test.bound.level, "note": BOUND_NOTE}


def metric_numbers(certificate: Certificate) -> Iterator[tuple[str, str, Measured]]:
    """Yield metric, method, and the mean over test images with its interval."""
    evaluation = certificate.evaluation
    for metric in () if evaluation is None else evaluation.metrics:
        for row in evaluation.rows if evaluation is not None else ():
            result = None if evaluation is None else evaluation.result(row.name, metric.name)
            if result is not None and result.undefined < len(result.values):
                yield metric.name, row.name, Measured(result.mean, *result.interval())


def card_numbers(certificate: Certificate) -> dict[str, Any]:
    """Return what a bundle's card lists: no image is named."""
    compared, test, verdict = certificate.compared, certificate.test, certificate.verdict
    numbers: dict[str, Any] = {
        "verdict": verdict.level,
        "test images": test.images,
        "test images with converged values": len(compared.names),
        "evaluations of each of these": certificate.settings.budget,
        f"correlation with converged values, {compared.judged}": compared.correlation(),
        "correlation with converged values, other classes": compared.correlation("others"),
        "Shapley value estimation error": compared.distance(),
        "coverage of 95 % intervals": compared.coverage(),
        "loss saved of the uniform explanation's": compared.improvement,
        "validation loss": certificate.validation.loss,
        "validation loss of the uniform explanation": certificate.validation.uniform_loss,
        "test loss": test.loss,
        "test loss of the uniform explanation": test.uniform_loss,
        "test images below the threshold of confidence": test.below(certificate.threshold),
    }
    numbers |= {f"{metric}, {row}": value for metric, row, value in metric_numbers(certificate)}
    for one in certificate.drift:
        numbers[f"{one.name}: verdict"] = certificate.verdict_on(one).level
    known = {name: value.mean if isinstance(value, Measured) else value for name, value in numbers.items()}
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in known.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }


def lines(certificate: Certificate) -> Iterator[str]:
    """Yield the verdict and what it rests on, for the terminal."""
    verdict = certificate.verdict
    yield f"{verdict.level.upper()}. {verdict.sentence}"
    for one in verdict.findings:
        yield f"  {one.sentence}{'' if one.value is None else f' (95 % interval {interval_text(one)})'}"
    for note in certificate.notes:
        yield f"  {note}"
    for drifted in certificate.drift:
        yield f"{drifted.name}: {certificate.verdict_on(drifted).level}"


def interval_text(finding: Finding) -> str:
    """Return the interval of a finding: shares in percent, correlations as numbers."""
    assert finding.value is not None
    ends = finding.value[1:]
    if any(math.isnan(end) for end in ends):
        return "not known"
    shown = (f"{end:.3f}" if "correlation" in finding.rule else percent(end, 1) for end in ends)
    return " to ".join(shown).replace("-", "\N{MINUS SIGN}")


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "level": verdict.level,
        "sentence": verdict.sentence,
        "reasons": verdict.reasons,
        "more_images_could_change_it": verdict.close,
        "rules": [
            {"rule": one.rule, "value": one.value, "asks_for": one.level, "sentence": one.sentence}
            for one in verdict.findings
        ],
    }


def _image_set(certificate: Certificate, images: ImageSet) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": images.name,
        "images": images.images,
        "loss": images.loss,
        "uniform_loss": images.uniform_loss,
        "accuracy": images.accuracy,
        "below_threshold": images.below(certificate.threshold),
        "promised_correlation": None if images.promised is None else float(images.promised.mean()),
    }
    if images is not certificate.test and images is not certificate.validation:
        found |= {"roc_auc": certificate.separation(images), "verdict": _verdict(certificate.verdict_on(images))}
    if images.compared is not None:
        found["converged"] = _compared(certificate, images.compared)
    return found


def _compared(certificate: Certificate, compared: Compared) -> dict[str, Any]:
    both: tuple[Classes, ...] = ("target", "others")
    correlations = {
        f"{kind}_{classes}": compared.correlation(classes, kind) for kind in ("pearson", "spearman") for classes in both
    }
    low = None
    if certificate.threshold is not None:
        low = compared.explanation.prediction.amax(1) < certificate.threshold
    return {
        "images": len(compared.names),
        "target": compared.judged,
        **correlations,
        **{f"reliability_{classes}": compared.reliability(classes) for classes in both},
        "distance": compared.distance(),
        "distance_target": compared.distance("target"),
        "loss_saved": compared.improvement,
        "optimum": compared.optimum,
        "coverage": compared.coverage(),
        "coverage_low_confidence": None if low is None else compared.coverage(low),
        "coverage_high_confidence": None if low is None else compared.coverage(~low),
        "least_coverage_of_a_player": compared.least_coverage,
    }


def _images(compared: Compared, images: ImageSet) -> list[dict[str, Any]]:
    correlations, distances = compared.correlations(), compared.distances.mean(1)
    reliability = compared.of(compared.truth.reliability)
    return [
        {
            "image": name,
            **_outputs(compared, i),
            "correlation": float(correlations[i]),
            "reliability": float(reliability[i]),
            "distance": float(distances[i]),
        }
        for i, name in enumerate(compared.names)
    ]


def _outputs(compared: Compared, i: int) -> dict[str, Any]:
    """Return an image's predicted class with its output, of one probability whether that is at least a half, or all
    outputs of a regression."""
    outputs = compared.explanation.prediction[i]
    if compared.judged == ALL_OUTPUTS:
        return {"outputs": outputs.tolist()}
    found = {"predicted": int(outputs.argmax()), "output": float(outputs.max())}
    return found if compared.judged == PREDICTED else {**found, "at_least_half": found["output"] >= HALF}


def _plain(content: Any) -> Any:
    """Return JSON types: means with intervals as objects, None for what is not finite."""
    if isinstance(content, Measured):
        mean, low, high = (_plain(float(one)) for one in content)
        return {"mean": mean, "interval": [low, high]}
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float):
        return float(f"{content:.{DIGITS}g}") if math.isfinite(content) else None
    return content
