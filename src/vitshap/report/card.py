"""One image on the page: photo with numbered patches, predictions, patches, and a map per explained class."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template

from vitshap.report import words
from vitshap.report.entries import Box, Explained, Summary
from vitshap.report.inline import map_uri, photo_uri
from vitshap.report.patches import Patch, patches

PREDICTIONS = 5
_TEMPLATE = Template((files("vitshap.report") / "card.html").read_text(encoding="utf-8").strip())


def card(entry: Explained, number: int, summary: Summary, *, k: int) -> str:
    """HTML of one image, with the ``k`` most important patches; every name in it is escaped."""
    first = entry.classes[0]
    best = patches(entry, k, first)
    width, height = entry.size
    return _TEMPLATE.substitute(
        number=number,
        name=escape(entry.name),
        meta=escape(_meta(entry)),
        messages=_messages(entry),
        photo=photo_uri(entry),
        alt=escape(f"The photo {entry.name}"),
        width=width,
        height=height,
        marks=_marks(entry, best),
        caption=_caption(entry, len(best)),
        bars="".join(_bar(entry, index, value, summary) for index, value in entry.predicted(PREDICTIONS)),
        sum=_sum(entry, first, summary),
        first=escape(entry.label(first)),
        patches="".join(_row(rank, patch) for rank, patch in enumerate(best, 1)),
        maps="".join(_map(entry, index, summary) for index in entry.classes),
    )


def _meta(entry: Explained) -> str:
    explanation = entry.explanation
    evaluations = f"{explanation.evaluations:,} evaluation{'s' if explanation.evaluations != 1 else ''}"
    width, height = entry.size
    return f"{width} \N{MULTIPLICATION SIGN} {height} pixels · {evaluations} in {words.plain(explanation.seconds)} s"


def _messages(entry: Explained) -> str:
    converged = words.convergence(entry.explanation)
    warnings, notes = list(entry.warnings), list(entry.notes)
    if converged is not None:
        (warnings if "NOT" in converged else notes).append(converged)
    return "\n".join(
        f'<p class="{kind}"><strong>{word}:</strong> {escape(text)}</p>'
        for kind, word, texts in (("warning", "Careful", warnings), ("note", "Note", notes))
        for text in texts
    )


def _marks(entry: Explained, best: list[Patch]) -> str:
    """What is drawn on the photo: the edge of the net's view, and the numbered patches, the first one on top."""
    size = max(entry.size) / 26
    frame = "" if _sees_all(entry) else _rectangle(entry.box, "crop back") + _rectangle(entry.box, "crop")
    drawn = []
    for rank, patch in reversed(list(enumerate(best, 1))):
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
    text = f"Numbers: the {count} patches listed." if count > 1 else "Number: the patch listed."
    return text if _sees_all(entry) else f"{text} Dashed: what the net sees."


def _bar(entry: Explained, index: int, value: float, summary: Summary) -> str:
    share = f'<span class="bar"><span style="width:{100 * min(max(value, 0), 1):.1f}%"></span></span>'
    bar = share if summary.outputs == "probability" else ""
    text = words.output_text(value, summary.outputs)
    return f'<li><span class="name">{escape(entry.label(index))}</span><span class="n">{escape(text)}</span>{bar}</li>'


def _ends(entry: Explained, index: int, summary: Summary) -> tuple[str, str, float] | None:
    """v of no patch and of all patches in words, and their difference; None where values do not add up."""
    explanation = entry.explanation
    if explanation.base_values is None or explanation.full_values is None:
        return None
    column = entry.classes.index(index)
    base, full = (float(ends[0, column]) for ends in (explanation.base_values, explanation.full_values))
    return words.output_text(base, summary.outputs), words.output_text(full, summary.outputs), full - base


def _sum(entry: Explained, index: int, summary: Summary) -> str:
    ends = _ends(entry, index, summary)
    if ends is None:
        return '<p class="sum">The values of this method do not add up to the prediction.</p>'
    base, full, total = ends
    return (
        f'<p class="sum"><em>{escape(entry.label(index))}</em> has {escape(base)} when no patch is seen and {escape(full)} '
        f"when all are: together the patches make {escape(words.signed(total))}.</p>"
    )


def _row(rank: int, patch: Patch) -> str:
    error = "" if patch.stderr is None else f' <span class="error">± {words.plain(patch.stderr)}</span>'
    return (
        f'<tr data-rank="{rank}" tabindex="0"><td>{rank}</td><td class="n">{escape(words.signed(patch.value))}{error}</td>'
        f"<td>{escape(patch.place)}</td><td>{patch.row:g}, {patch.column:g}</td><td>{escape(patch.pixels)}</td></tr>"
    )


def _map(entry: Explained, index: int, summary: Summary) -> str:
    column = entry.classes.index(index)
    values = entry.explanation.values[0, :, column]
    limit = words.plain(float(values.abs().max()))
    name, ends = entry.label(index), _ends(entry, index, summary)
    lines = [] if ends is None else [f"{ends[0]} with no patch, {ends[1]} with all"]
    lines += [text for text in (words.accuracy(entry, index), words.weak(entry, index)) if text is not None]
    spread = f"{words.signed(float(values.min()))} to {words.signed(float(values.max()))}"
    strongest = patches(entry, 1, index)[0].place
    alt = f"Map for {name}: values from {spread}, the largest at the {strongest} of the photo."
    output = words.output_text(float(entry.explanation.prediction[0, index]), summary.outputs)
    width, height = entry.picture.size
    return (
        f'<figure><img src="{map_uri(entry, index)}" alt="{escape(alt)}" width="{width}" height="{height}">'
        f'<div class="scale" aria-hidden="true"><span class="strip"></span>'
        f"<span>\N{MINUS SIGN}{limit}</span><span>0</span><span>+{limit}</span></div>"
        f'<figcaption><span class="name">{escape(name)}</span> <span class="n">{escape(output)}</span>'
        + "".join(f'<span class="line">{escape(line)}</span>' for line in lines)
        + "</figcaption></figure>"
    )
