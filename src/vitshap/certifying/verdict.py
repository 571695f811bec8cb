"""The verdict on an explainer, by rules on four numbers.

| number | reliable | use with care | not usable | other images |
|---|---|---|---|---|
| share of images below the threshold of confidence | at most 20 % | | | more |
| loss saved of the uniform explanation's, of what can be saved | | | none or less | |
| correlation with converged values, predicted class | at least 0.90 | 0.50 to 0.90 | below 0.50 | |
| coverage of 95 % intervals | 92 to 98 % | other | | |

A number counts by its measured value; if it would give another verdict at an end of its 95 % interval, the verdict says
that more images could change it. The first verdict of this list that a number asks for is given: other images, not usable,
use with care, reliable. Images that the model does not know come first, because on them an explainer cannot be judged. A
number that was not measured, or that this explainer does not have (intervals, probabilities), is named and does not count;
without a correlation there is no verdict at all. A regression has no predicted class: the correlation is the mean over all
outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias

from vitshap.evaluation.marks import Measured
from vitshap.explaining.text import percent

MOST_BELOW = 0.20
"""Share of images below the threshold of confidence up to which they are images that the model knows."""
GOOD_CORRELATION = 0.90
USABLE_CORRELATION = 0.50
MINUS = "\N{MINUS SIGN}"
PREDICTED, ONLY, ALL_OUTPUTS = "predicted class", "only class", "all outputs"
"""What is judged of each image: of one probability its class, of which no image is said to be predicted; all outputs of a
regression, whose outputs are no classes."""
COVERAGE = (0.92, 0.98)
"""Of 95 % intervals; below they are too narrow, above too wide."""

CORRELATION_RULE = (
    f"a correlation with converged values of at least {GOOD_CORRELATION:.2f} (usable from {USABLE_CORRELATION:.2f})"
)

Level: TypeAlias = Literal["reliable", "use with care", "not usable", "other images", "no verdict"]
SENTENCES: dict[Level, str] = {
    "reliable": "The explainer's values can be used as they are.",
    "use with care": "The explainer shows where to look, but its values are inexact: correct those that matter with the "
    "method refine.",
    "not usable": "The explainer's values say nothing reliable about this model: train it further, or use a method that "
    "evaluates the model.",
    "other images": "These are not images that the model knows: neither its predictions nor their explanations can be "
    "relied on.",
    "no verdict": "The reference values are too noisy, or of fewer than two images: give more evaluations, or more images.",
}
ORDER: tuple[Level, ...] = ("other images", "not usable", "use with care", "reliable")


@dataclass(frozen=True)
class Numbers:
    """What the rules read; None: not measured."""

    correlation: Measured | None
    coverage: Measured | None
    improvement: Measured | None
    below: Measured | None


@dataclass(frozen=True)
class Finding:
    """What a rule says about one number."""

    rule: str
    value: Measured | None
    level: Level | None
    """The verdict that it asks for; None: it does not count."""
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """The verdict and what it rests on."""

    level: Level
    findings: tuple[Finding, ...]
    close: bool = False
    """Whether it would be another one with a number at an end of its interval, so that more images could change it."""

    @property
    def sentence(self) -> str:
        """The verdict in plain words."""
        return SENTENCES[self.level]

    @property
    def reasons(self) -> list[str]:
        """What the findings say that ask for this verdict."""
        return [one.sentence for one in self.findings if one.level == self.level]


def judge(numbers: Numbers, /, *, judged: str = PREDICTED) -> Verdict:
    """Apply the rules; ``judged`` names the outputs whose correlation was measured."""
    findings = _findings(numbers, judged)
    level = _level(findings)
    ends = [
        replace(numbers, **{field.name: Measured(end, end, end)})
        for field in fields(numbers)
        for end in (getattr(numbers, field.name) or ())[1:]
        if not math.isnan(end)
    ]
    return Verdict(level, findings, close=any(_level(_findings(one, judged)) != level for one in ends))


def _findings(numbers: Numbers, judged: str) -> tuple[Finding, ...]:
    return (
        _below(numbers.below),
        _improvement(numbers.improvement),
        _correlation(numbers.correlation, judged),
        _coverage(numbers.coverage),
    )


def _level(findings: tuple[Finding, ...]) -> Level:
    asked = {one.level for one in findings if one.level is not None}
    known = any(one.rule == CORRELATION_RULE and one.value is not None for one in findings)
    if "other images" not in asked and not known:
        return "no verdict"
    return next(level for level in ORDER if level in asked)


def _below(value: Measured | None) -> Finding:
    rule = f"at most {percent(MOST_BELOW)} of images below the threshold of confidence"
    if value is None:
        return Finding(rule, None, None, "The model has no probabilities of several classes, and so no threshold.")
    level: Level = "other images" if value.mean > MOST_BELOW else "reliable"
    said = (
        f"The model's largest probability is below the threshold of confidence for {percent(value.mean, 1)} of images."
    )
    return Finding(rule, value, level, said)


def _improvement(value: Measured | None) -> Finding:
    rule = "a lower loss than equal values for all patches"
    if value is None or math.isnan(value.mean):
        return Finding(rule, None, None, "The loss was not compared with that of equal values for all patches.")
    level: Level = "reliable" if value.mean > 0 else "not usable"
    saved = percent(value.mean, 1).replace("-", MINUS)
    said = f"Of the loss that can be saved against equal values for all patches, it saves {saved}"
    said += "." if value.mean > 0 else ": it is no better than these."
    return Finding(rule, value, level, said)


def _correlation(value: Measured | None, judged: str) -> Finding:
    rule = CORRELATION_RULE
    if value is None:
        return Finding(rule, None, None, "The correlation with converged values is not known.")
    level: Level = "not usable"
    if value.mean >= USABLE_CORRELATION:
        level = "reliable" if value.mean >= GOOD_CORRELATION else "use with care"
    number = f"{value.mean:.3f}".replace("-", MINUS)
    of = judged if judged == ALL_OUTPUTS else f"the {judged}"
    said = f"Values of {of} have a correlation of {number} with converged Shapley values."
    return Finding(rule, value, level, said)


def _coverage(value: Measured | None) -> Finding:
    low, high = COVERAGE
    rule = f"{percent(low)} to {percent(high)} of values within their 95 % intervals"
    if value is None:
        return Finding(rule, None, None, "The explainer has no error bars: vitshap bench calibrate makes them.")
    level: Level = "reliable" if low <= value.mean <= high else "use with care"
    said = f"{percent(value.mean, 1)} of values lie within their 95 % intervals"
    said += "." if level == "reliable" else f": the intervals are too {'narrow' if value.mean < low else 'wide'}."
    return Finding(rule, value, level, said)
