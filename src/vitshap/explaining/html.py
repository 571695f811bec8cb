"""The HTML of one image: its first line, messages, the place of the viewer with its data, and technical details.

What a photo shows is drawn by the viewer (``vitshap.viewer``) from the stored values. For browsers without scripts there
is the map of the first class as a picture, with the predictions and the most important patches as tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from PIL import Image

from vitshap import plots
from vitshap.explaining import text
from vitshap.explaining.dataset import FEWEST, DataSetSummary
from vitshap.explaining.entries import Explained, Patch, Summary, patches, printable
from vitshap.explanation import Explanation, view_data
from vitshap.viewer import photo_uri, view_html

PREDICTIONS = 5
PHOTO_SIDE, PANORAMA_SIDE = 640, 1600
"""Most pixels of the photo's longer side; the larger number for a photo of which the model sees a small part."""
MEAN_SIDE, MEAN_MAPS = 168, 24
"""Pixels of a mean map's longer side, and most mean maps in a report."""
PLAIN_SIDE = 320
"""The same for the picture that browsers without scripts show."""


@lru_cache
def template(name: str) -> Template:
    """Return a template of this package."""
    return Template((files("vitshap.explaining") / name).read_text(encoding="utf-8").strip())


def card(entry: Explained, number: int, summary: Summary, *, k: int) -> str:
    """Return the HTML of one image, with its ``k`` most important patches; every name in it is escaped."""
    return template("card.html").substitute(
        number=number,
        name=escape(entry.name),
        headline=escape(text.headline(entry, summary.outputs)).replace(" %", "&nbsp;%"),
        messages=_messages(entry),
        view=view_html(entry_data(entry, summary, k=k), _without_script(entry, summary, k)),
        technical=_technical(entry, summary),
    )


def entry_data(entry: Explained, summary: Summary, *, k: int) -> dict[str, Any]:
    """Return what the viewer needs of one image: the photo, all values, the curves, and the maps of other methods."""
    data = _explanation_data(entry, entry.explanation, summary)
    indices = [one["index"] for one in data["predictions"]]
    for one in data["classes"]:
        one["reliability"] = text.reliability(entry, one["index"])
    return {
        **data,
        "name": entry.name,
        "stderr_from": entry.stderr_from or data["stderr_from"],
        "listed": k,
        "picture": photo_uri(entry.picture, most=PANORAMA_SIDE if entry.zoomed else PHOTO_SIDE),
        "curves": [curve.view_data(indices) for curve in entry.curves],
        "others": [_explanation_data(entry, other, summary) for other in entry.others],
    }


def _explanation_data(entry: Explained, explanation: Explanation, summary: Summary) -> dict[str, Any]:
    data = view_data(explanation, entry.size)
    for one in (*data["predictions"], *data["classes"]):
        one["name"] = printable(one["name"])
    return {**data, "outputs": summary.outputs}


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


def _without_script(entry: Explained, summary: Summary, k: int) -> str:
    """Return the map of the first class, the predictions and the best patches as plain HTML."""
    index, unit = entry.main, entry.explanation.unit
    heat, errors = entry.explanation.heatmap(index)[0], entry.explanation.stderr_map(index)
    map_picture = plots.overlay_png(
        heat.numpy(),
        entry.seen_picture if entry.zoomed else entry.picture,
        None if entry.zoomed else entry.picture_box,
        stderr=None if errors is None else errors[0].numpy(),
        max_side=PLAIN_SIDE,
    )
    best = patches(entry, 1, index)
    predicted = [
        [entry.label(one), text.output_text(value, summary.outputs)] for one, value in entry.predicted(PREDICTIONS)
    ]
    headings = ["#", "percentage points" if unit == "probability" else "value", "where", "row, column", "pixels"]
    alternative = escape(_alternative(entry, index, best[0]))
    intervals = "" if errors is None else ", with 95 % intervals"
    lists = ""
    for heading, found in text.important_patches(entry, k, index):
        rows = [_row(rank, patch, unit) for rank, patch in enumerate(found, 1)]
        lists += f"<h3>{escape(heading[0].upper() + heading[1:])}{intervals if found else ''}</h3>"
        lists += table_html(f"Most important patches of {entry.name}", headings, rows) if found else ""
    prediction = "Probability" if entry.one_probability else "Prediction"
    return (
        f'<figure><img src="{photo_uri(map_picture, most=PLAIN_SIDE)}" alt="{alternative}"></figure>'
        f"<h3>{prediction}</h3>{table_html(f'{prediction} for {entry.name}', ['class', 'output'], predicted)}{lists}"
        "<p>Rows and columns are counted from 1, from the top left of the model's crop. With scripts allowed, this page "
        "shows the maps of all classes.</p>"
    )


def _alternative(entry: Explained, index: int, best: Patch) -> str:
    values, unit = entry.explanation.values[0, :, entry.classes.index(index)], entry.explanation.unit
    lowest, highest = (text.value_text(float(value), unit) for value in (values.min(), values.max()))
    spread = f"values from {lowest} to {text.with_unit(highest, unit)}, the largest at the {best.place}"
    return f"Map for {entry.label(index)}: {spread} of the photo."


def _row(rank: int, patch: Patch, unit: str) -> list[str]:
    interval = "" if patch.interval is None else f" ({text.interval_text(patch.interval, unit)})"
    value = f"{text.value_text(patch.value, unit)}{interval}"
    return [str(rank), value, patch.place, f"{patch.row + 1}, {patch.column + 1}", patch.pixels]


def _ends(entry: Explained, index: int, summary: Summary) -> tuple[str, str, str] | None:
    """Return v of no patch and of all patches, and their difference, as text; None if values do not add up."""
    explanation = entry.explanation
    if explanation.base_values is None or explanation.full_values is None:
        return None
    column = entry.classes.index(index)
    base, full = (float(ends[0, column]) for ends in (explanation.base_values, explanation.full_values))
    total = text.with_unit(text.value_text(full - base, explanation.unit), explanation.unit)
    return text.output_text(base, summary.outputs), text.output_text(full, summary.outputs), total


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
        ends, accuracy = _ends(entry, index, summary), text.accuracy(entry, index)
        added = "values do not add up" if ends is None else f"{ends[0]} with no patch, {ends[1]} with all: {ends[2]}"
        facts.append((entry.label(index), added if accuracy is None else f"{added}; {accuracy}"))
    return pairs_html(facts)


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
        f'<img src="{photo_uri(image, most=max(image.size))}" width="{width}" height="{height}" alt="{caption}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def dataset_html(found: DataSetSummary, link: Callable[[int], str]) -> str:
    """Return the page of the data set; ``link`` is the address of an image by its number."""
    several = [one for one in found.classes if one.images >= FEWEST] or found.classes
    limit = max(float(abs(one.mean).max()) for one in several) or 1.0  # the map of one image would dwarf mean maps
    size = text.with_unit(text.size_text(limit, found.unit), found.unit)
    figures = "".join(
        f'<figure><img src="{photo_uri(plots.overlay_png(one.mean, limit=limit, max_side=MEAN_SIDE), most=MEAN_SIDE)}" '
        f'width="{MEAN_SIDE}" alt="{escape(f"Mean map of {one.label}, {one.images} images")}">'
        f'<figcaption><span class="name">{escape(one.label)}</span><span class="n">{one.images:,}</span>'
        f'<span class="line">border {text.percent(one.border)}, corners {text.percent(one.corners)}</span>'
        "</figcaption></figure>"
        for one in found.classes[:MEAN_MAPS]
    )
    more = (
        f" The {MEAN_MAPS} most frequent of {len(found.classes):,} classes." if len(found.classes) > MEAN_MAPS else ""
    )
    predicts, kind = found.outputs == "probability", "class" if found.outputs == "probability" else "output"
    of_class, their = (" of each predicted class", " of their class") if predicts else (" by largest output", "")
    of_class, their = ("", "") if found.single else (of_class, their)
    parts = [
        f'<p class="say">{escape(_dataset_headline(found))}</p><h3>Mean map{of_class}</h3>',
        f'<p class="small">One scale, up to ±{size}; the number of images; and how much of the positive values lies in the '
        f"outermost patches ({text.percent(found.border_area)} of the area) and in the corners "
        f"({text.percent(found.corner_area)}). Much more than their area suggests that the model reads the background, a "
        f'marker or a watermark.{more}</p><div class="maps means">{figures}</div>',
    ]
    if found.unlike:
        rows = [(one.number, [one.name, one.label, f"{one.correlation:.2f}"]) for one in found.unlike]
        parts.append(f"<h3>Images that differ most from the mean map{their}</h3>")
        parts.append(_linked_table(["image", kind, "correlation"], rows, link))
    if found.disagreements is not None:
        rows = [
            (one.number, [one.name, *one.labels, "" if one.correlation is None else f"{one.correlation:.2f}"])
            for one in found.disagreements
        ]
        parts.append(
            f"<h3>Images on which this run and the earlier one disagree most ({found.compared:,} were compared)</h3>"
        )
        parts.append(_linked_table(["image", "earlier run", "this run", "correlation of maps"], rows, link))
    return "".join(parts)


def _dataset_headline(found: DataSetSummary) -> str:
    """Return the most frequent class and where the model looks over all images, in everyday words."""
    first = found.classes[0]
    border = sum(one.border * one.images for one in found.classes) / found.images
    most = "most often predicted" if found.outputs == "probability" else "the largest output is most often"
    often = f"{found.images:,} images{'' if found.single else f'; {most}: {first.label} ({first.images:,})'}."
    if found.at_least_half is not None:
        often = f"{found.at_least_half:,} of {found.images:,} images at or above 50 % {first.label}."
    share = f"{text.percent(border)} of the positive values lie at the border of the crop"
    return f"{often} {share}, which is {text.percent(found.border_area)} of the area."


def _linked_table(
    headings: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]], link: Callable[[int], str]
) -> str:
    """Return a table whose first column links to images of the report."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = ""
    for number, (first, *rest) in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        body += f'<tr><td><a href="{link(number)}">{escape(first)}</a></td>{cells}</tr>'
    label = escape(", ".join(headings))
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table class="linked">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
