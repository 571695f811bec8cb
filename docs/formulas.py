"""A hook of mkdocs that converts formulas to MathML when the site is built; pages need no script and no other host."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.+?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.+?)\\\]\s*</div>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Convert the formulas that arithmatex has marked."""
    html = _DISPLAY.sub(lambda found: f"<p>{convert(unescape(found[1]).strip(), display='block')}</p>", html)
    return _INLINE.sub(lambda found: convert(unescape(found[1]).strip()), html)
