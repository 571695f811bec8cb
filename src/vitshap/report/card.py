"""One image on the page: the map of the predicted class first, then predictions, patches, and maps of other classes."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template

from vitshap.plots.figures import scale_ends
from vitshap.report import words
from vitshap.report.entries import Box, Explained, Summary
from vitshap.report.inline import map_uri, photo_uri
from vitshap.report.patches import Patch, patches

PREDICTIONS = 5
LARGE, SMALL = 34, 15
"""Greatest heights of the first map and of the others, in rem."""
UNSEEN = 0.25
"""Share of the photo that the net does not see from which a sentence says so."""
_TEMPLATE = Template((files("vitshap.report") / "card.html").read_text(encoding="utf-8").strip())


def card(entry: Explained, number: int, summary: Summary, *, k: int) -> str:
    """HTML of one image, with the ``k`` most important patches; every name in it is escaped."""
    first = entry.main
    best = patches(entry, k, first)
    width, height = entry.size
    points = entry.explanation.unit == "probability"
    return _TEMPLATE.substitute(
        number=number,
        name=escape(entry.name),
        headline=escape(words.headline(entry, summary.outputs)),
        messages=_messages(entry),
        main=_map(entry, first, summary, best),
        photo=photo_uri(entry),
        alt=escape(f"The photo {entry.name}"),
        width=width,
        height=height,
        marks=_marks(entry, best),
        caption=_caption(entry, len(best)),
        bars="".join(_bar(entry, index, value, summary) for index, value in entry.predicted(PREDICTIONS)),
        sum=_sum(entry, first, summary),
        first=escape(entry.label(first)),
        unit="percentage points" if points else "value",
        patches="".join(_row(rank, patch, entry.explanation.unit) for rank, patch in enumerate(best, 1)),
        others=_others(entry, first, summary),
        technical=_technical(entry, summary),
    )


def _messages(entry: Explained) -> str:
    warnings, notes = list(entry.warnings), [*entry.notes, *words.hints(entry)]
    converged = words.convergence(entry.explanation)
    if converged is not None and "NOT" in converged:
        warnings.append(converged)
    return "\n".join(
        f'<p class="{kind}"><strong>{word}:</strong> {escape(text)}</p>'
        for kind, word, texts in (("warning", "Careful", warnings), ("note", "Note", notes))
        for text in texts
    )


def _marks(entry: Explained, best: list[Patch]) -> str:
    """What is drawn on the photo: the edge of the net's view, and the numbered patches, the first one on top.

    Where the net sees a small part, numbers would hide it.
    """
    size = max(entry.size) / 26
    frame = "" if _sees_all(entry) else _rectangle(entry.box, "crop back") + _rectangle(entry.box, "crop")
    drawn = []
    for rank, patch in reversed(list(enumerate([] if entry.zoomed else best, 1))):
        left, top, right, bottom = patch.box
        middle = f'x="{(left + right) / 2:.1f}" y="{(top + bottom) / 2:.1f}" font-size="{size:.1f}"'
        drawn.append(
            f'<g class="mark" data-rank="{rank}">{_rectangle(patch.box, "under")}{_rectangle(patch.box, "edge")}'
            f"<text {middle}>{rank}</text></g>"
        )
    return frame + "".join(drawn)


def _rectangle(box: Box, kind: str) -> str:
    left, top, right, bottom = box
    size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
    return f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" {size}/>'


def _sees_all(entry: Explained) -> bool:
    left, top, right, bottom = entry.box
    width, height = entry.size
    return left < 1 and top < 1 and right > width - 1 and bottom > height - 1


def _caption(entry: Explained, count: int) -> str:
    if entry.zoomed:
        return "Dashed: what the model sees."
    text = f"Numbers: the {count} patches listed." if count > 1 else "Number: the patch listed."
    return text if _sees_all(entry) else f"{text} Dashed: what the model sees."


def _bar(entry: Explained, index: int, value: float, summary: Summary) -> str:
    share = f'<span class="bar"><span style="width:{100 * min(max(value, 0), 1):.1f}%"></span></span>'
    bar = share if summary.outputs == "probability" else ""
    text = words.output_text(value, summary.outputs)
    return f'<li><span class="name">{escape(entry.label(index))}</span><span class="n">{escape(text)}</span>{bar}</li>'


def _ends(entry: Explained, index: int, summary: Summary) -> tuple[str, str, str] | None:
    """v of no patch and of all patches, and their difference, in words; None where values do not add up."""
    explanation = entry.explanation
    if explanation.base_values is None or explanation.full_values is None:
        return None
    column = entry.classes.index(index)
    base, full = (float(ends[0, column]) for ends in (explanation.base_values, explanation.full_values))
    total = words.with_unit(words.value_text(full - base, explanation.unit), explanation.unit)
    return words.output_text(base, summary.outputs), words.output_text(full, summary.outputs), total


def _sum(entry: Explained, index: int, summary: Summary) -> str:
    ends = _ends(entry, index, summary)
    if ends is None:
        return '<p class="sum">The values of this method do not add up to the prediction.</p>'
    base, full, total = (escape(text) for text in ends)
    return (
        f'<p class="sum"><em>{escape(entry.label(index))}</em> has {base} when no patch is seen and {full} '
        f"when all are: together the patches make {total}.</p>"
    )


def _row(rank: int, patch: Patch, unit: str) -> str:
    error = "" if patch.stderr is None else f' <span class="error">± {words.size_text(patch.stderr, unit)}</span>'
    value = escape(words.value_text(patch.value, unit))
    return (
        f'<tr data-rank="{rank}" tabindex="0"><td>{rank}</td><td class="n">{value}{error}</td>'
        f"<td>{escape(patch.place)}</td><td>{patch.row + 1}, {patch.column + 1}</td><td>{escape(patch.pixels)}</td></tr>"
    )


def _others(entry: Explained, first: int, summary: Summary) -> str:
    others = [index for index in entry.classes if index != first]
    if not others:
        return ""
    maps = "".join(_map(entry, index, summary) for index in others)
    switch = '<button type="button" class="switch" hidden>Each map on its own scale</button>'
    return f'<div class="heading"><h3>Other classes</h3>{switch}</div><div class="maps">{maps}</div>'


def _map(entry: Explained, index: int, summary: Summary, best: list[Patch] | None = None) -> str:
    """One class's map with its legend; ``best`` are the patches that can be lit in the first, large one."""
    name = entry.label(index)
    left, top, right, bottom = entry.window
    width, height = right - left, bottom - top
    marks = ""
    if best is not None:
        drawn = "".join(
            f'<g class="mark" data-rank="{rank}">{_rectangle(patch.box, "under")}{_rectangle(patch.box, "edge")}</g>'
            for rank, patch in enumerate(best, 1)
        )
        marks = f'<svg viewBox="{left:.1f} {top:.1f} {width:.1f} {height:.1f}" aria-hidden="true">{drawn}</svg>'
    highest = LARGE if best is not None else SMALL
    widest = f"--width:min(100%,{highest * width / height:.2f}rem)"
    photo = (0.0, 0.0, float(entry.size[0]), float(entry.size[1]))
    output = words.output_text(float(entry.explanation.prediction[0, index]), summary.outputs)
    return (
        f'<figure class="{"main" if best is not None else "other"}" style="{widest}">'
        f'<div class="map" style="aspect-ratio:{width:.1f}/{height:.1f}">'
        f'<div class="base" style="{_placed(photo, entry.window)}"></div>'
        f'<div class="{"seen" if _sees_all(entry) else "seen cropped"}" style="{_placed(entry.box, entry.window)}">'
        f"{_colours(entry, index)}</div>{marks}</div>{_legend(entry, index, large=best is not None)}"
        f'<figcaption><span class="name">{escape(name)}</span> <span class="n">{escape(output)}</span>'
        + "".join(f'<span class="line">{escape(line)}</span>' for line in _lines(entry, index, best is not None))
        + "</figcaption></figure>"
    )


def _placed(box: Box, window: Box) -> str:
    """CSS that lays the box where it is in the window, both in pixels of the photo."""
    left, top, right, bottom = window
    across, down = 100 / (right - left), 100 / (bottom - top)
    return (
        f"left:{(box[0] - left) * across:.3f}%;top:{(box[1] - top) * down:.3f}%;"
        f"width:{(box[2] - box[0]) * across:.3f}%;height:{(box[3] - box[1]) * down:.3f}%"
    )


def _limits(entry: Explained, index: int) -> dict[str, float]:
    """What the ends of the scale stand for, by scale; one where both are the same."""
    own = float(entry.explanation.values[0, :, entry.classes.index(index)].abs().max()) or 1.0
    common = words.common_limit(entry.explanation)
    return {"": own} if own == common else {"common": common, "own": own}


def _colours(entry: Explained, index: int) -> str:
    values = entry.explanation.values[0, :, entry.classes.index(index)]
    unit = entry.explanation.unit
    lowest, highest = (words.value_text(float(value), unit) for value in (values.min(), values.max()))
    strongest = patches(entry, 1, index)[0].place
    spread = f"values from {lowest} to {words.with_unit(highest, unit)}, the largest at the {strongest}"
    alt = escape(f"Map for {entry.label(index)}: {spread} of the photo.")
    return "".join(
        f'<img{_of(scale)} src="{map_uri(entry, index, limit)}" alt="{alt}">'
        for scale, limit in _limits(entry, index).items()
    )


def _legend(entry: Explained, index: int, *, large: bool) -> str:
    """What blue and red mean, and which values the ends of the scale stand for; a small map's name stands under it."""
    unit = entry.explanation.unit
    name = "" if unit == "output" and entry.explanation.class_names is None else f"'{entry.label(index)}'"
    (lower, _), (higher, _) = scale_ends(unit, 1.0, name)
    if not large and unit != "score":
        lower, higher = "lowers", "raises"
    numbers = "".join(
        f"<span{_of(scale)}>\N{MINUS SIGN}{size}</span><span{_of(scale)}>0</span>"
        f"<span{_of(scale)}>+{words.with_unit(size, unit)}</span>"
        for scale, limit in _limits(entry, index).items()
        for size in (words.size_text(limit, unit),)
    )
    return (
        f'<div class="scale"><span class="low">{escape(lower)}</span><span class="high">{escape(higher)}</span>'
        f'<span class="strip" aria-hidden="true"></span>{numbers}</div>'
    )


def _of(scale: str) -> str:
    return f' class="{scale}"' if scale else ""


def _lines(entry: Explained, index: int, large: bool) -> list[str]:
    """What is said under a map."""
    texts = [words.accuracy(entry, index, points=True), words.uncertain(entry, index)]
    if large and entry.zoomed:
        texts.append("Shown: only the part of the photo that the model sees.")
    elif large and entry.seen < 1 - UNSEEN:
        texts.append(f"The model sees {entry.seen:.0%} of the photo; the rest is dimmed.")
    if not large:
        texts.append(words.weak(entry, index))
    return [text for text in texts if text is not None]


def _technical(entry: Explained, summary: Summary) -> str:
    explanation = entry.explanation
    width, height = entry.size
    evaluations = f"{explanation.evaluations:,} evaluation{'s' if explanation.evaluations != 1 else ''}"
    left, top, right, bottom = entry.box
    facts = [
        ("photo", f"{width} \N{MULTIPLICATION SIGN} {height} pixels"),
        ("seen by the model", f"x {left:.0f} to {right:.0f}, y {top:.0f} to {bottom:.0f}"),
        ("method", f"{explanation.method}, {evaluations} in {words.plain(explanation.seconds)} s"),
    ]
    converged = words.convergence(explanation)
    facts += [] if converged is None else [("accuracy", converged)]
    for index in entry.classes:
        ends = _ends(entry, index, summary)
        if ends is not None:
            facts.append((entry.label(index), f"{ends[0]} with no patch, {ends[1]} with all: {ends[2]}"))
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
