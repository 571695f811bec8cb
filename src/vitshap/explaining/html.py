"""The HTML of one image: the map of the predicted class, predictions, patches, maps of other classes; all in text.

Pictures are embedded, small enough that hundreds fit on a page: the photo once, and the colours of each map over it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from string import Template

from PIL import Image

from vitshap import plots
from vitshap.explaining import text
from vitshap.explaining.entries import Box, Explained, Patch, Summary, patches
from vitshap.plots.figures import scale_ends

PREDICTIONS = 5
LARGE, SMALL = 34, 15
"""Greatest heights of the first map and of the others, in rem."""
UNSEEN = 0.25
"""A sentence says so if the model does not see at least this share of the photo."""
PHOTO_SIDE, PANORAMA_SIDE = 640, 1600
"""Most pixels of the photo's longer side; the larger number for a photo of which the model sees a small part."""
LEAST_SIDE = 160
_QUALITY = 80


@lru_cache
def template(name: str) -> Template:
    """Return a template of this package, or another file of its pages."""
    return Template((files("vitshap.explaining") / name).read_text(encoding="utf-8").strip())


def card(entry: Explained, number: int, summary: Summary, *, k: int) -> str:
    """Return the HTML of one image, with its ``k`` most important patches; every name in it is escaped."""
    first = entry.main
    best = patches(entry, k, first)
    width, height = entry.size
    points = entry.explanation.unit == "probability"
    return template("card.html").substitute(
        number=number,
        name=escape(entry.name),
        headline=escape(text.headline(entry, summary.outputs)),
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
    warnings, notes = list(entry.warnings), [*entry.notes, *text.hints(entry)]
    converged = text.convergence(entry.explanation)
    if converged is not None and "NOT" in converged:
        warnings.append(converged)
    return "\n".join(
        f'<p class="{kind}"><strong>{word}:</strong> {escape(message)}</p>'
        for kind, word, messages in (("warning", "Warning", warnings), ("note", "Note", notes))
        for message in messages
    )


def _marks(entry: Explained, best: list[Patch]) -> str:
    """Draw on the photo: the edge of the model's crop, and the numbered patches, the first one on top.

    On a small crop there are no numbers, which would hide it.
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
    numbers = f"Numbers: the {count} patches listed." if count > 1 else "Number: the patch listed."
    return numbers if _sees_all(entry) else f"{numbers} Dashed: what the model sees."


def _bar(entry: Explained, index: int, value: float, summary: Summary) -> str:
    share = f'<span class="bar"><span style="width:{100 * min(max(value, 0), 1):.1f}%"></span></span>'
    bar = share if summary.outputs == "probability" else ""
    output = text.output_text(value, summary.outputs)
    return (
        f'<li><span class="name">{escape(entry.label(index))}</span><span class="n">{escape(output)}</span>{bar}</li>'
    )


def _ends(entry: Explained, index: int, summary: Summary) -> tuple[str, str, str] | None:
    """Return v of no patch and of all patches, and their difference, as text; None if values do not add up."""
    explanation = entry.explanation
    if explanation.base_values is None or explanation.full_values is None:
        return None
    column = entry.classes.index(index)
    base, full = (float(ends[0, column]) for ends in (explanation.base_values, explanation.full_values))
    total = text.with_unit(text.value_text(full - base, explanation.unit), explanation.unit)
    return text.output_text(base, summary.outputs), text.output_text(full, summary.outputs), total


def _sum(entry: Explained, index: int, summary: Summary) -> str:
    ends = _ends(entry, index, summary)
    if ends is None:
        return '<p class="sum">The values of this method do not add up to the prediction.</p>'
    base, full, total = (escape(end) for end in ends)
    return (
        f'<p class="sum"><em>{escape(entry.label(index))}</em> has {base} with no patch and {full} with all of them: '
        f"the patches add up to {total}.</p>"
    )


def _row(rank: int, patch: Patch, unit: str) -> str:
    error = "" if patch.stderr is None else f' <span class="error">± {text.size_text(patch.stderr, unit)}</span>'
    value = escape(text.value_text(patch.value, unit))
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
    """Draw one class's map with its legend; ``best`` are the patches that can be highlighted in the first, large map."""
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
    output = text.output_text(float(entry.explanation.prediction[0, index]), summary.outputs)
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
    """Return the CSS that places the box in the window, both in pixels of the photo."""
    left, top, right, bottom = window
    across, down = 100 / (right - left), 100 / (bottom - top)
    return (
        f"left:{(box[0] - left) * across:.3f}%;top:{(box[1] - top) * down:.3f}%;"
        f"width:{(box[2] - box[0]) * across:.3f}%;height:{(box[3] - box[1]) * down:.3f}%"
    )


def _limits(entry: Explained, index: int) -> dict[str, float]:
    """Return the value at the ends of each scale, the common and the map's own; one entry if they are equal."""
    own = float(entry.explanation.values[0, :, entry.classes.index(index)].abs().max()) or 1.0
    common = text.common_limit(entry.explanation)
    return {"": own} if own == common else {"common": common, "own": own}


def _colours(entry: Explained, index: int) -> str:
    values = entry.explanation.values[0, :, entry.classes.index(index)]
    unit = entry.explanation.unit
    lowest, highest = (text.value_text(float(value), unit) for value in (values.min(), values.max()))
    strongest = patches(entry, 1, index)[0].place
    spread = f"values from {lowest} to {text.with_unit(highest, unit)}, the largest at the {strongest}"
    alt = escape(f"Map for {entry.label(index)}: {spread} of the photo.")
    return "".join(
        f'<img{_of(scale)} src="{map_uri(entry, index, limit)}" alt="{alt}">'
        for scale, limit in _limits(entry, index).items()
    )


def _legend(entry: Explained, index: int, *, large: bool) -> str:
    """Return what blue and red mean, with the values at the ends of the scale; a small map's name is under it."""
    unit = entry.explanation.unit
    name = "" if unit == "output" and entry.explanation.class_names is None else f"'{entry.label(index)}'"
    (lower, _), (higher, _) = scale_ends(unit, 1.0, name)
    if not large and unit != "score":
        lower, higher = "lowers", "raises"
    numbers = "".join(
        f"<span{_of(scale)}>\N{MINUS SIGN}{size}</span><span{_of(scale)}>0</span>"
        f"<span{_of(scale)}>+{text.with_unit(size, unit)}</span>"
        for scale, limit in _limits(entry, index).items()
        for size in (text.size_text(limit, unit),)
    )
    return (
        f'<div class="scale"><span class="low">{escape(lower)}</span><span class="high">{escape(higher)}</span>'
        f'<span class="strip" aria-hidden="true"></span>{numbers}</div>'
    )


def _of(scale: str) -> str:
    return f' class="{scale}"' if scale else ""


def _lines(entry: Explained, index: int, large: bool) -> list[str]:
    """Return the lines under a map."""
    lines = [text.accuracy(entry, index), text.uncertain(entry, index)]
    if large and entry.zoomed:
        lines.append("Shown: only the part of the photo that the model sees.")
    elif large and entry.seen < 1 - UNSEEN:
        lines.append(f"The model sees {text.percent(entry.seen)} of the photo; the rest is dimmed.")
    if not large:
        lines.append(text.weak(entry, index))
    return [line for line in lines if line is not None]


def _technical(entry: Explained, summary: Summary) -> str:
    explanation = entry.explanation
    width, height = entry.size
    evaluations = f"{explanation.evaluations:,} evaluation{'s' if explanation.evaluations != 1 else ''}"
    left, top, right, bottom = entry.box
    facts = [
        ("photo", f"{width} \N{MULTIPLICATION SIGN} {height} pixels"),
        ("seen by the model", f"x {left:.0f} to {right:.0f}, y {top:.0f} to {bottom:.0f}"),
        ("method", f"{explanation.method}, {evaluations} in {text.plain(explanation.seconds)} s"),
    ]
    converged = text.convergence(explanation)
    facts += [] if converged is None else [("accuracy", converged)]
    for index in entry.classes:
        ends = _ends(entry, index, summary)
        if ends is not None:
            facts.append((entry.label(index), f"{ends[0]} with no patch, {ends[1]} with all: {ends[2]}"))
    return pairs_html(facts)


def photo_uri(entry: Explained) -> str:
    """Return the photo as a ``data:`` address."""
    most = PANORAMA_SIDE if entry.zoomed else PHOTO_SIDE
    # No more pixels than the photo can fill: a photo of 32 pixels says no more at 640.
    return data_uri(plots.thumbnail(entry.picture, min(most, max(LEAST_SIDE, 4 * max(entry.picture.size)))))


def map_uri(entry: Explained, index: int, limit: float) -> str:
    """Return the colours of one class's map, to be laid over the model's crop of the photo."""
    heat, errors = entry.explanation.heatmap(index)[0], entry.explanation.stderr_map(index)
    stderr = None if errors is None else errors[0].numpy()
    return data_uri(plots.colours_png(heat.numpy(), stderr=stderr, limit=limit), lossless=True)


def scale_uri() -> str:
    """Return the colours from the lowest value to the highest."""
    return data_uri(plots.colour_scale_png(256, 1), lossless=True)


def data_uri(image: Image.Image, *, lossless: bool = False) -> str:
    """Return the image as a ``data:`` address: PNG if ``lossless``, else WebP."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True) if lossless else image.save(buffer, "WEBP", quality=_QUALITY, method=2)
    kind = "png" if lossless else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def pairs_html(pairs: Sequence[tuple[str, str]]) -> str:
    """Return names and values as the body of a description list."""
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)


def table_html(label: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers; wide ones scroll."""

    def row(cells: Sequence[str], tag: str) -> str:
        numbers = ("", *[' class="n"'] * (len(cells) - 1))
        return "".join(
            f"<{tag}{number}>{escape(cell)}</{tag[:2]}>" for number, cell in zip(numbers, cells, strict=True)
        )

    head = row(headings, 'th scope="col"')
    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure_html(image: Image.Image, caption: str) -> str:
    """Return a picture with a caption; a wide one scrolls."""
    width, height = image.size
    caption = escape(caption)
    return (
        f'<figure class="drawn"><div class="wide" tabindex="0" role="region" aria-label="{caption}">'
        f'<img src="{data_uri(image.convert("RGB"))}" width="{width}" height="{height}" alt="{caption}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )
