"""Numbers and meanings as a reader takes them in; used by the page and by the terminal alike."""

from __future__ import annotations

from typing import Literal

from vitshap.estimators.reliability import reliability_from_errors
from vitshap.explanation import Explanation
from vitshap.report.entries import Explained

PALE = 0.05
"""A map whose largest value is below this share of the strongest map's is called weak."""
NOISY = 0.5
"""A sampled map is called mostly noise below this reliability: then less than half of the variance between patches is
signal, and its expected correlation with the converged map is below 0.71, the root of that."""
_THING = {"probability": "probability", "logit": "logit", "output": "output"}


def output_text(value: float, outputs: Literal["probability", "output"]) -> str:
    """What the net says of a class: a percentage, or a number."""
    if outputs == "output":
        return f"{value:.4g}"
    if 0 < value < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= value < 1 else f"{value:.1%}"


def signed(value: float) -> str:
    """A value with its sign, three digits."""
    return ("+" if value > 0 else "\N{MINUS SIGN}") + plain(abs(value)) if value else "0"


def plain(value: float) -> str:
    """A number, three digits."""
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}"
    return text.removesuffix(".")


def meaning(explanation: Explanation) -> str:
    """What a value means, in one sentence."""
    if explanation.unit == "score":
        return (
            "A patch's score says which patches mattered more to the prediction than others; scores have no unit and add "
            "up to nothing."
        )
    thing = _THING[explanation.unit]
    if not explanation.additive:
        return (
            f"A patch's value is the change in the class's {thing} that {explanation.method} ascribes to it: positive "
            "values speak for the class, negative ones against it, and they do not add up to the prediction."
        )
    return (
        f"A patch's value is how much seeing that patch raises (or, if negative, lowers) the class's {thing}, averaged "
        f"over all orders in which patches could be revealed; together the values make up the whole difference between the "
        f"{thing} with no patch and with all of them."
    )


def accuracy(entry: Explained, index: int) -> str | None:
    """How sure the method is of the values for a class; None where it does not say."""
    explanation = entry.explanation
    if explanation.stderr is None:
        return None
    column = entry.classes.index(index)
    values, errors = explanation.values[0, :, column], explanation.stderr[0, :, column]
    largest, spread = float(errors.max()), float(values.max() - values.min())
    if largest == 0:
        return "exact"
    share = f", {largest / spread:.0%} of the values' range" if spread > 0 else ""
    reliable = reliability(entry, index)
    said = "" if reliable is None else f"; estimated reliability {reliability_text(reliable)}"
    return f"standard error up to {plain(largest)}{share}{said}"


def reliability(entry: Explained, index: int) -> float | None:
    """Estimated share of the variance between patches that is not sampling error, 0 to 1; None where it is not known."""
    if entry.explanation.stderr is None:
        return None
    return max(0.0, float(reliability_from_errors(entry.explanation)[0, entry.classes.index(index)]))


def reliability_text(value: float) -> str:
    """A reliability, and a word where it is low."""
    return f"{value:.2f} (mostly noise)" if value < NOISY else f"{value:.2f}"


def convergence(explanation: Explanation) -> str | None:
    """Whether the accuracy that was asked for was reached; None where none was asked for."""
    if explanation.converged is None:
        return None
    return "the accuracy asked for was reached" if bool(explanation.converged[0]) else "NOT as accurate as asked for"


def weak(entry: Explained, index: int) -> str | None:
    """A word of caution about a map that looks strong only because it has its own scale."""
    sizes = entry.explanation.values[0].abs().amax(0)  # [T]
    own, strongest = float(sizes[entry.classes.index(index)]), float(sizes.max())
    if own >= PALE * strongest or strongest == 0:
        return None
    return f"weak: at most 1/{strongest / own:.0f} of the strongest map" if own > 0 else "all values are zero"
