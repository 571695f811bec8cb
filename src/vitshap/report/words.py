"""Numbers and meanings as a reader takes them in; used by the page and by the terminal."""

from __future__ import annotations

from typing import Literal

import torch

from vitshap.estimators.estimate import reliability_from_errors
from vitshap.explanation import Explanation
from vitshap.plots.colours import Z
from vitshap.report.entries import Explained
from vitshap.report.patches import patches

PALE = 0.05
"""A map whose largest value is below this share of the strongest map's is called weak."""
HALF = 0.5
"""Of what speaks for a class: the patches that make it up are named first."""
SMALL = 2.0
"""Pixels along a patch's side below which a photo is called too small."""
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


def size_text(value: float, unit: str) -> str:
    """The size of a value: of a probability in percentage points, to a tenth of a point where that says anything."""
    if unit != "probability":
        return plain(abs(value))
    points = abs(100 * value)
    return f"{points:.1f}" if points >= 0.1 or points == 0 else f"{points:.1g}"


def value_text(value: float, unit: str) -> str:
    """A value with its sign, of a probability in percentage points."""
    return ("+" if value > 0 else "\N{MINUS SIGN}") + size_text(value, unit) if value else "0"


def with_unit(text: str, unit: str) -> str:
    """The text of a value with its unit, where it has one."""
    return f"{text} points" if unit == "probability" else text


def headline(entry: Explained, outputs: Literal["probability", "output"]) -> str:
    """What the model says and where in the photo that comes from, in words for everybody."""
    predicted, value = entry.predicted(1)[0]
    name, output = entry.label(predicted), output_text(value, outputs)
    said = f"The model says {name} ({output})." if outputs == "probability" else f"The model's output is {output}."
    if outputs == "output" and len(entry.explanation.prediction[0]) > 1:
        said = f"The model's largest output is {output}, for {name}."
    main = entry.main
    if main != predicted:
        asked = output_text(float(entry.explanation.prediction[0, main]), outputs)
        said += f" The map is for {entry.label(main)} ({asked}), which was asked for."
    return f"{said} {_looks_at(entry, main)}"


def _looks_at(entry: Explained, index: int) -> str:
    """Which patches make up half of what speaks for a class, and where most of them are."""
    explanation = entry.explanation
    values = explanation.values[0, :, entry.classes.index(index)].double()
    total = float(values.clamp(min=0).sum())
    if total <= 0:
        return f"No patch of the photo speaks for {entry.label(index)}."
    ordered = values.clamp(min=0).sort(descending=True).values.cumsum(0)
    count = int((ordered < HALF * total).sum()) + 1
    places: dict[str, float] = {}
    key = patches(entry, count, index)
    for patch in key:
        places[patch.place] = places.get(patch.place, 0.0) + patch.value
    strongest = sorted(places, key=lambda place: -places[place])[:2]
    weight = sum(places.values())
    where = " of the part that it sees" if entry.zoomed else ""
    most = HALF * weight * (1 + 1e-6)
    if places[strongest[0]] > most:
        looks = f"It mostly looks at the {strongest[0]}{where}"
    elif sum(places[place] for place in strongest) > most:
        looks = f"It mostly looks at the {strongest[0]} and the {strongest[1]}{where}"
    else:
        looks = "It looks at many places"
    single = explanation.values.shape[1] == explanation.players[0].numel()
    parts = f"{count} of {_existing(explanation)} {'patches' if single else 'groups of patches'}"
    half = f"{parts} {'makes' if count == 1 else 'make'} up half of what speaks for {entry.label(index)}"
    if explanation.unit == "probability":
        half += f", {value_text(float(sum(patch.value for patch in key)), 'probability')} percentage points"
    doubtful = sum(patch.stderr is not None and patch.value <= Z * patch.stderr for patch in key)
    doubt = f" Most of this is uncertain: the 95 % interval of {doubtful} of these {count} includes zero."
    reliable = reliability(entry, index)
    if reliable is not None and reliable < NOISY:
        doubt = f" But this map is mostly noise: its estimated reliability is {reliable:.2f}."
    elif 2 * doubtful < count:
        doubt = ""
    return f"{looks}: {half}.{doubt}"


def _existing(explanation: Explanation) -> int:
    return explanation.values.shape[1] if explanation.player_mask is None else int(explanation.player_mask[0].sum())


def hints(entry: Explained) -> list[str]:
    """What is unusual about the photo and how the explanation is to be read then."""
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
        found.append(
            f"the model sees only {_share(entry.seen)} of this photo (x {max(round(left), 0)} to "
            f"{min(round(right), width)}, y {max(round(top), 0)} to {min(round(bottom), height)}); nothing else had an "
            "influence. To have another part explained, cut it out and explain that picture"
        )
    return found


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "less than 1%"


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


def accuracy(entry: Explained, index: int, *, points: bool = False) -> str | None:
    """How sure the method is of the values for a class, of probabilities in points if asked; None if it does not say."""
    explanation = entry.explanation
    if explanation.stderr is None:
        return None
    column = entry.classes.index(index)
    values, errors = explanation.values[0, :, column], explanation.stderr[0, :, column]
    largest, spread = float(errors.max()), float(values.max() - values.min())
    if largest == 0:
        return "exact"
    share = f", {largest / spread:.0%} of the values' range" if spread > 0 else ""
    unit = explanation.unit if points else ""
    reliable = reliability(entry, index)
    said = "" if reliable is None else f"; estimated reliability {reliability_text(reliable)}"
    return f"standard error up to {with_unit(size_text(largest, unit), unit)}{share}{said}"


def uncertain(entry: Explained, index: int) -> str | None:
    """How many patches are drawn pale because their 95 % interval includes zero."""
    explanation = entry.explanation
    if explanation.stderr is None:
        return None
    column = entry.classes.index(index)
    values, errors = explanation.values[0, :, column], explanation.stderr[0, :, column]
    pale = int(((values.abs() <= Z * errors) & (errors > 0)).sum())
    if pale == 0:
        return None
    return f"paler: the {pale} of {_existing(explanation)} patches whose 95 % interval includes zero"


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
    """A word of caution about a map that looks strong only on its own scale."""
    sizes = entry.explanation.values[0].abs().amax(0)  # [T]
    own, strongest = float(sizes[entry.classes.index(index)]), float(sizes.max())
    if own >= PALE * strongest or strongest == 0:
        return None
    return f"weak: at most 1/{strongest / own:.0f} of the strongest map" if own > 0 else "all values are zero"


def common_limit(explanation: Explanation) -> float:
    """The largest magnitude in the maps of an image, which all of them are drawn on."""
    return float(torch.nan_to_num(explanation.values[0]).abs().max()) or 1.0
