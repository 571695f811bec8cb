"""A hook of mkdocs that puts notebooks into pages: ``<!-- notebook: NAME.ipynb -->`` becomes its cells and outputs."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

_PLACE = re.compile(r"<!-- notebook: ([\w-]+\.ipynb) -->")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace the places of notebooks in a page."""
    folder = Path(page.file.abs_src_path).parent
    return _PLACE.sub(lambda found: _cells(folder / found[1]), markdown)


def _cells(path: Path) -> str:
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"^# .*\n", "", source))
        else:
            parts.append(f"```{{.python}}\n{source}\n```")
            parts.extend(_output(output) for output in cell["outputs"])
    return "\n\n".join(parts)


def _output(output: dict[str, Any]) -> str:
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    if "text/html" in data:
        return f"<div>{data['text/html']}</div>"
    for kind in ("image/jpeg", "image/png"):
        if kind in data:
            return (
                f'<img alt="{escape(data.get("text/plain", "figure"))}" src="data:{kind};base64,{data[kind].strip()}">'
            )
    text = "".join(output.get("text", "")) or data.get("text/plain", "")
    return f"```text\n{text.rstrip()}\n```"
