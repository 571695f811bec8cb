"""What every figure must be: nothing cut off, no words over other words or over a panel."""

from itertools import combinations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

LONG = "a name so long that it must be broken into lines, and even then not all of it fits in a narrow panel"
JOINED = "n02123045_a_name_without_any_blank_as_files_and_folders_have_them"
SHAPES = {"square": (30, 30), "tall": (90, 20), "wide": (20, 110), "panorama": (10, 200), "tiny": (8, 8)}


def smooth_map(seed=0, side=14, scale=1.0):
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side]
    y, x = rng.uniform(0.2, 0.8, 2) * side
    bump = np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (side**2 / 18))
    return scale * (bump - 0.3 * bump.T + 0.05 * rng.standard_normal((side, side)))


def grey(name):
    return np.random.default_rng(0).random(SHAPES[name])


def panel_of(figure):
    """The first panel's pixels, as matplotlib draws them."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    page = np.asarray(canvas.buffer_rgba())[..., :3]
    box = figure.axes[0].get_window_extent()
    top, bottom = (round(page.shape[0] - y) for y in (box.y1, box.y0))
    return page[top:bottom, round(box.x0) : round(box.x1)].astype(float)


def words_of(figure: Figure) -> dict[str, Bbox]:
    """Everything written beside panels and charts (ticks excepted), and where."""
    found = list(figure.texts)
    for axes in figure.axes:
        found += [axes.title, axes.xaxis.label, axes.yaxis.label]
        if axes.get_legend() is not None:
            found += axes.get_legend().get_texts()
    written = [text for text in found if text.get_text()]
    return {f"{i}: {text.get_text()}": text.get_window_extent() for i, text in enumerate(written)}


def assert_legible(figure: Figure) -> None:
    figure.draw_without_rendering()
    everything = figure.get_tightbbox()  # in inches; ticks included
    width, height = figure.get_size_inches()
    assert everything.x0 >= 0, everything
    assert everything.y0 >= 0, everything
    assert everything.x1 <= width, everything
    assert everything.y1 <= height, everything
    words = words_of(figure)
    for (one, here), (other, there) in combinations(words.items(), 2):
        assert not _overlap(here, there), f"{one!r} is written over {other!r}"
    for one, here in words.items():
        for axes in figure.axes:
            assert not _overlap(here, axes.get_window_extent()), f"{one!r} is written over {axes}"


def _overlap(one: Bbox, other: Bbox) -> bool:
    """By more than a pixel."""
    return min(one.x1, other.x1) - max(one.x0, other.x0) > 1 and min(one.y1, other.y1) - max(one.y0, other.y0) > 1
