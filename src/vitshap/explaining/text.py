"""Numbers and sentences about an explanation, shared by the report and the terminal."""

from __future__ import annotations

import math
from typing import Literal

from vitshap.estimators.estimate import reliability_from_errors
from vitshap.explaining.curves import supporting_players
from vitshap.explaining.entries import HALF, Explained, Patch, patches
from vitshap.explanation import Explanation
from vitshap.plots.colours import Z

STILL = 0.8
"""The output is said to be "still" so much if it stays above this share of that for the whole photo, or falls by less than
the rest of that share if it is negative, and if a single probability stays at or above a half."""
SMALL = 2.0
"""A photo is called too small if the side of a patch is below this many of its pixels."""
UNRELIABLE = 0.5
"""A map is called unreliable below this reliability: then less than half of the variance between patches is
signal, and its expected correlation with the converged map is below 0.71, the square root of that."""
_QUANTITY = {"probability": "probability", "logit": "logit", "output": "output"}


def percent(share: float, digits: int = 0) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.{digits}f} %"


def output_text(value: float, outputs: Literal["probability", "output"]) -> str:
    """Return the model's output for a class: a percentage, or a number."""
    if outputs == "output":
        return plain(value)
    if 0 < value < 0.0005:
        return "<0.1 %"
    return ">99.9 %" if 0.9995 <= value < 1 else percent(value, 1)


def plain(value: float) -> str:
    """Return a number with three digits."""
    text = f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.3g}"
    return text.removesuffix(".").replace("e-0", "e-").replace("-", "\N{MINUS SIGN}")


def size_text(value: float, unit: str) -> str:
    """Return the magnitude of a value; of a probability in percentage points, to a tenth of a point if it is that large."""
    if unit != "probability":
        return plain(abs(value))
    points = abs(100 * value)
    return f"{points:.1f}" if points >= 0.1 or points == 0 else f"{points:.1g}"


def value_text(value: float, unit: str) -> str:
    """Return a value with its sign; of a probability in percentage points."""
    return ("+" if value > 0 else "\N{MINUS SIGN}") + size_text(value, unit) if value else "0"


def interval_text(interval: tuple[float, float], unit: str) -> str:
    """Return the ends of an interval of a value, "5.9 to 7.1"; of a probability in percentage points."""
    if unit == "probability":
        points = [100 * end for end in interval]
        largest = max(abs(end) for end in points)
        digits = 1 if largest >= 0.1 or largest == 0 else -math.floor(math.log10(largest))
        ends = [f"{round(end, digits) + 0.0:.{digits}f}" for end in points]  # + 0.0: never minus zero
        return " to ".join(ends).replace("-", "\N{MINUS SIGN}")
    return " to ".join(plain(end) for end in interval)


def with_unit(text: str, unit: str) -> str:
    """Return the text of a value with its unit, if it has one."""
    return f"{text} points" if unit == "probability" else text


def headline(entry: Explained, outputs: Literal["probability", "output"]) -> str:
    """Return the prediction and where in the photo it comes from, in everyday words."""
    if entry.one_probability:
        given = f"The model gives {entry.label(0)} a probability of {probability_text(entry)}."
        return f"{given} {_support(entry, 0, outputs)}"
    predicted, value = entry.predicted(1)[0]
    name, output = entry.label(predicted), output_text(value, outputs)
    if outputs == "probability":  # below a half, of several labels none is predicted
        text = f"The model {f'predicts {name}' if value >= HALF else f'finds {name} most probable'} ({output})."
    elif len(entry.explanation.prediction[0]) > 1:
        text = f"The model's largest output is {output}, for {name}."
    else:
        text = f"The model's output is {output}."
    main = entry.main
    if main != predicted:
        asked = output_text(float(entry.explanation.prediction[0, main]), outputs)
        text += f" The map is for {entry.label(main)} ({asked}), as requested."
    return f"{text} {_support(entry, main, outputs)}"


def probability_text(entry: Explained) -> str:
    """Return the probability of a model that has only one, and on which side of a half it is."""
    value = output_text(float(entry.explanation.prediction[0, 0]), "probability")
    return f"{value} ({'at or above' if entry.at_least_half else 'below'} 50 %)"


def important_patches(entry: Explained, k: int, index: int) -> list[tuple[str, list[Patch]]]:
    """Return the ``k`` patches that matter most to a class, with a heading; scores of either sign only rank patches.

    Of one probability there are two lists, of the patches that raise and that lower it: first those on its side of a half.
    """
    name, found = entry.label(index), patches(entry, k, index)
    raising = [patch for patch in found if patch.value > 0]
    if not _has_sides(entry):
        supporting = found if entry.explanation.unit == "score" else raising
        return [(f"patches that support {name} most" if supporting else f"no patch supports {name}", supporting)]
    lowering = [patch for patch in patches(entry, k, index, lowest=True) if patch.value < 0]
    lists = [
        (
            f"patches that {verb} the probability of {name} most"
            if found
            else f"no patch {verb}s the probability of {name}",
            found,
        )
        for verb, found in (("raise", raising), ("lower", lowering))
    ]
    return lists if entry.at_least_half else lists[::-1]


def _has_sides(entry: Explained) -> bool:
    """Whether patches raise or lower a single probability; scores only rank patches."""
    return entry.one_probability and entry.explanation.unit != "score"


def _support(entry: Explained, index: int, outputs: Literal["probability", "output"]) -> str:
    """Return where the patches are that matter most to a class, and what the output would be without them.

    They are the fewest patches that make up half of the support (of a single probability below a half: of what lowers it);
    the output is known if the curve was evaluated.
    """
    explanation, sides = entry.explanation, _has_sides(entry)
    lowers = sides and not entry.at_least_half
    acts = "lowers" if lowers else "raises"
    output, support = ("it", "that") if sides else (f"its {outputs}", f"the support for {entry.label(index)}")
    values = explanation.values[0, :, entry.classes.index(index)]
    count = supporting_players(-values if lowers else values)
    if count == 0:
        return f"No patch of the photo {f'{acts} it' if sides else f'supports {entry.label(index)}'}."
    key = patches(entry, count, index, lowest=lowers)
    places: dict[str, float] = {}
    for patch in key:
        places[patch.place] = places.get(patch.place, 0.0) + abs(patch.value)
    single = explanation.values.shape[1] == explanation.players[0].numel()
    parts = f"{count} of {_existing(explanation)} {'patches' if single else 'groups of patches'}"
    evaluated = entry.curves and entry.curves[0].index == index and not lowers
    without = entry.curves[0].without(count) if evaluated else None
    if without is not None:
        full = float(explanation.prediction[0, index])
        still = without > full - (1 - STILL) * abs(full) and (without >= HALF or not sides)
        would = f"{output} would {'still ' if still else ''}be {output_text(without, outputs)}"
        said = f"without {'this' if count == 1 else 'these'} {parts} {would}"
    else:
        said = f"{parts} {'makes' if count == 1 else 'make'} up half of {support}"
        if explanation.unit == "probability":
            said += f", {value_text(float(sum(patch.value for patch in key)), 'probability')} percentage points"
    uncertain_patches = sum(patch.stderr is not None and abs(patch.value) <= Z * patch.stderr for patch in key)
    reliable = reliability(entry, index)
    caution = ""
    if reliable is not None and reliable < UNRELIABLE:
        caution = f" But this map is unreliable: its estimated reliability is {reliable:.2f}."
    elif 2 * uncertain_patches >= count:
        interval = f"the 95 % interval of {uncertain_patches} of these {count} includes zero"
        caution = f" Most of this is uncertain: {interval}."
    subject, verb = (f"What {acts} it is", "at") if sides else ("It", "looks at")
    return f"{_looks_at(places, ' of its crop' if entry.zoomed else '', subject, verb)}: {said}.{caution}"


def _looks_at(places: dict[str, float], where: str, subject: str, verb: str) -> str:
    """Return the one or two parts of the photo that hold more than half of the values in ``places``."""
    strongest = sorted(places, key=lambda place: -places[place])[:2]
    most = 0.5 * sum(places.values()) * (1 + 1e-6)
    if places[strongest[0]] > most:
        return f"{subject} mostly {verb} the {strongest[0]}{where}"
    if sum(places[place] for place in strongest) > most:
        return f"{subject} mostly {verb} the {strongest[0]} and the {strongest[1]}{where}"
    return f"{subject} {verb} many places"


def _existing(explanation: Explanation) -> int:
    return explanation.values.shape[1] if explanation.player_mask is None else int(explanation.player_mask[0].sum())


def hints(entry: Explained) -> list[str]:
    """Return what is unusual about the photo's size and shape, and what to do about it."""
    found = []
    (left, top, right, bottom), (rows, columns) = entry.box, entry.explanation.grid
    width, height = entry.size
    side = min((right - left) / columns, (bottom - top) / rows)
    if side < SMALL:
        found.append(
            f"the photo is very small, {width} \N{MULTIPLICATION SIGN} {height} pixels for {columns} "
            f"\N{MULTIPLICATION SIGN} {rows} patches: it was enlarged, and a patch is {side:.1g} pixels wide. Use a larger "
            "photo if there is one"
        )
    if entry.zoomed:
        share = percent(entry.seen) if entry.seen >= 0.01 else "less than 1 %"
        found.append(
            f"the model sees only {share} of this photo (x {max(round(left), 0)} to "
            f"{min(round(right), width)}, y {max(round(top), 0)} to {min(round(bottom), height)}); nothing else had an "
            "influence. To explain another part, crop the photo to that part"
        )
    return found


def meaning(explanation: Explanation) -> str:
    """Return what a value means, in one sentence."""
    if explanation.unit == "score":
        return (
            "A patch's score ranks it: patches with higher scores mattered more to the prediction. Scores have no unit and "
            "do not add up to the prediction."
        )
    quantity = _QUANTITY[explanation.unit]
    if not explanation.additive:
        return (
            f"A patch's value is the change in the class's {quantity} that {explanation.method} attributes to it: positive "
            "values support the class, negative ones count against it. They do not add up to the prediction."
        )
    return (
        f"A patch's value is how much seeing that patch raises (or, if negative, lowers) the class's {quantity}, averaged "
        "over all orders in which patches could be revealed. The values of all patches add up to the difference between "
        f"the {quantity} with all patches and with none."
    )


def intervals(entry: Explained) -> str:
    """Return where the intervals come from, and when they may be wrong; nothing if there are none."""
    said = entry.stderr_from or ""
    return f"{said}; for images unlike these they may be too narrow" if said.startswith("calibrated") else said


def accuracy(entry: Explained, index: int) -> str | None:
    """Return how accurate the values for a class are; None if the method does not estimate that."""
    explanation = entry.explanation
    if explanation.stderr is None:
        return None
    column = entry.classes.index(index)
    values, errors = explanation.values[0, :, column], explanation.stderr[0, :, column]
    largest, spread = float(errors.max()), float(values.max() - values.min())
    if largest == 0:
        return "exact"
    share = f", {percent(largest / spread)} of the values' range" if spread > 0 else ""
    reliable = reliability(entry, index)
    estimated = "" if reliable is None else f"; estimated reliability {reliability_text(reliable)}"
    return f"standard error up to {with_unit(size_text(largest, explanation.unit), explanation.unit)}{share}{estimated}"


def reliability(entry: Explained, index: int) -> float | None:
    """Return the estimated share of the variance between patches that is not error, 0 to 1; None if unknown."""
    if entry.explanation.stderr is None:
        return None
    return max(0.0, float(reliability_from_errors(entry.explanation)[0, entry.classes.index(index)]))


def reliability_text(value: float) -> str:
    """Return a reliability, with a remark if it is low."""
    return f"{value:.2f} (unreliable)" if value < UNRELIABLE else f"{value:.2f}"


def convergence(explanation: Explanation) -> str | None:
    """Return whether the requested accuracy was reached; None if none was requested."""
    if explanation.converged is None:
        return None
    if bool(explanation.converged[0]):
        return "the requested accuracy was reached"
    return "NOT as accurate as requested for every explained class: give a larger --budget, or fewer classes"
