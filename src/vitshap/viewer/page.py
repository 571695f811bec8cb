"""Self-contained pages: the viewer's modules joined into one script, stored explanations as JSON, photos embedded.

Modules are joined by their imports: every module follows those it imports, and ``import`` and ``export`` are taken away.
So names must be unique over all modules, and imports must be of the one form that ``_IMPORT`` describes; both are checked.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import Any

from PIL import Image

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content security policy of a page that is complete in itself: it can load nothing and send nothing."""
FRAME_HEIGHT = 900
"""Pixels of a notebook's frame."""
_IMPORT = re.compile(r'^import \{ [\w, ]+ \} from "\./([\w-]+\.js)";$', re.MULTILINE)
_ANY_IMPORT = re.compile(r"^\s*import\b.*$", re.MULTILINE)
_TOP_LEVEL = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
_QUALITY = 80


def static_text(name: str) -> str:
    """Return a file of the viewer."""
    return (files("vitshap.viewer") / "static" / name).read_text(encoding="utf-8")


def stylesheet() -> str:
    """Return the viewer's CSS."""
    return static_text("style.css").strip()


def module_names(*entries: str) -> list[str]:
    """Return the names of these modules and of all that they import."""
    sources: dict[str, str] = {}
    for entry in entries:
        _collect(entry, sources)
    return sorted(sources)


@lru_cache
def joined_script(entry: str = "report.js") -> str:
    """Return a module and all that it imports as one script, to be put inline into a page."""
    sources: dict[str, str] = {}
    _collect(entry, sources)
    names = Counter(name for source in sources.values() for name in _TOP_LEVEL.findall(source))
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"names must be unique over all modules of the viewer; defined twice: {', '.join(twice)}")
    parts = [re.sub(r"^export ", "", _IMPORT.sub("", source), flags=re.MULTILINE) for source in sources.values()]
    script = '"use strict";\n(() => {\n' + "\n".join(part.strip() for part in parts) + "\n})();"
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE)


def _collect(name: str, sources: dict[str, str], above: tuple[str, ...] = ()) -> None:
    """Add a module to ``sources``, after those that it imports."""
    if name in above:
        raise ValueError(f"modules of the viewer import each other: {' -> '.join((*above, name))}")
    if name in sources:
        return
    source = static_text(name)
    if len(_ANY_IMPORT.findall(source)) != len(_IMPORT.findall(source)) or "export default" in source:
        raise ValueError(f'{name}: a module of the viewer imports as in import {{ a, b }} from "./c.js"; on one line')
    for imported in _IMPORT.findall(source):
        _collect(imported, sources, (*above, name))
    sources[name] = source


def view_html(data: Mapping[str, Any], without_script: str = "") -> str:
    """Return the place of one explanation: its JSON, which the viewer replaces, and HTML for browsers without scripts."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&\u2028\u2029":  # a script element must not end early, whatever the classes are called
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    fallback = f"<noscript>{without_script}</noscript>" if without_script else ""
    return f'<div class="view"><script type="application/json">{text}</script>{fallback}</div>'


def page_html(title: str, views: Iterable[str]) -> str:
    """Return a complete page of views, for a notebook's frame."""
    cards = "\n".join(f'<article class="card">{view}</article>' for view in views)
    return (
        f'<!doctype html>\n<html lang="en" class="framed"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<style>\n{stylesheet()}\n</style></head>\n'
        f"<body><main>{cards}</main>\n<script>\n{joined_script()}\n</script></body></html>"
    )


def page_start(
    title: str, heading: str, lead: str, *, skip: tuple[str, str], generator: str, css: str | None = None
) -> str:
    """Return a page up to its first section: head, heading and the button of the theme.

    ``skip``: identifier of the main section, and the text of the link to it; ``css``: default the viewer's.
    """
    place, text = skip
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{escape(generator)}">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{stylesheet() if css is None else css}
</style>
</head>
<body>
<a class="skip" href="#{place}">{escape(text)}</a>
<header class="top">
<div>
<h1>{escape(heading)}</h1>
<p class="lead">{escape(lead)}</p>
</div>
<button type="button" id="theme" hidden>Theme: system</button>
</header>
<main>"""


def page_end(script: str = "") -> str:
    """Return the end of a page that ``page_start`` began: footer, the theme's script and ``script``."""
    theme = static_text("theme.js").replace("export ", "")
    return f"""</main>
<footer><p>Made by vitshap. This file is complete in itself: it loads nothing and sends nothing.</p></footer>
<script>
(() => {{
{theme}
startTheme(document.getElementById("theme"));
}})();
{script}
</script>
</body>
</html>"""


def frame_html(page: str, title: str, height: int = FRAME_HEIGHT) -> str:
    """Return a frame that holds the page itself, so that neither style nor script touches the notebook around it."""
    style = f"width:100%;height:{height}px;border:0;border-radius:8px"
    return f'<iframe title="{escape(title)}" style="{style}" srcdoc="{escape(page)}"></iframe>'


def photo_uri(picture: Image.Image, *, most: int) -> str:
    """Return a picture as a ``data:`` address of WebP, its longer side at most ``most`` pixels."""
    shown = picture.convert("RGB")
    shown.thumbnail((most, most), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    shown.save(buffer, "WEBP", quality=_QUALITY, method=2)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
