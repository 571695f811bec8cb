"""The viewer: JavaScript modules, style and page in ``static``, and what makes one self-contained page of them.

The same modules are served by ``vitshap serve`` (``static/index.html`` loads them as they are), joined into one inline
script for ``report.html``, and shown in notebooks in a frame of their own. There is no build step.
"""

from vitshap.viewer.page import frame_html, joined_script, page_html, photo_uri, stylesheet, view_html

__all__ = ["frame_html", "joined_script", "page_html", "photo_uri", "stylesheet", "view_html"]
