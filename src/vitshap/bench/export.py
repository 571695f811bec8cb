"""Exported graphs compared with torch: milliseconds, differences and correlations on the same photos, and the page.

Every photo goes through torch, onnxruntime with weights of each precision, and the exported page in Chromium, one after
another, so that ratios hold on a machine whose speed changes. The page gets photos as PNG: what is compared is the
preprocessing and the graphs, not decoders of JPEG.
"""

from __future__ import annotations

import base64
import functools
import io
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image

from vitshap.bench.command import ProgressLines
from vitshap.experiments.tables import Cell, Column, Table
from vitshap.explainers import Explainer
from vitshap.explaining.photos import find_photos, read_photo
from vitshap.exporting import export_web
from vitshap.exporting.export import correlation, total_bytes, write_graphs
from vitshap.exporting.graphs import Precision, Session, converted, open_graph, write_graph

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LOAD_SECONDS, PAGE_SECONDS = 120, 60
PAGE_PHOTOS = 5
COLUMNS = (
    Column("runtime"),
    Column("explain", ",.1f", "ms"),
    Column("ratio", ".2f", title="ratio to torch"),
    Column("coalition", ",.1f", "ms"),
    Column("values", ".1e", title="largest difference of values"),
    Column("predictions", ".1e", title="of predictions"),
    Column("correlation", ".5f"),
    Column("lowest", ".5f", title="lowest correlation"),
    Column("size", ",.1f", "MB"),
)
NOTES = [
    "explain: one photo, from the model's input to values of all classes (in the browser from the file); coalition: one "
    "evaluation of half of the patches; medians over photos, ratios within each photo (quartiles)",
    "differences and correlations are to torch, correlations for the class that torch predicts, their mean over photos",
]
_EXPLAIN = """async ([text, bits]) => {
  const photo = new File([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], "photo.png");
  const { backend } = window.vitshap;
  const started = performance.now();
  const { prediction, classes } = await backend.explain(photo, {});
  const explained = performance.now();
  const { predictions } = await backend.predict(photo, [bits]);
  const values = Object.fromEntries(classes.map((one) => [one.index, one.values]));
  const coalition = performance.now() - explained;
  return { prediction, values, played: predictions[0], explain: explained - started, coalition };
}"""
_DROPPED = """async (text) => {
  const photo = new File([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], "photo.png");
  const started = performance.now();
  await window.vitshap.take(photo);
  await new Promise((resolve) => { requestAnimationFrame(() => setTimeout(resolve)); });
  return performance.now() - started;
}"""
_BRUSHED = """async (count) => {
  const { viewer } = window.vitshap.panes[0];
  const players = [...viewer.coalition.hidden.keys()].slice(0, count);
  const started = performance.now();
  const predicted = new Promise((resolve) => { viewer.addEventListener("predicted", resolve, { once: true }); });
  viewer.hide(players);
  await predicted;
  return performance.now() - started;
}"""


@dataclass
class Measured:
    """What one runtime did with all photos."""

    explain: list[float] = field(default_factory=list)
    """Milliseconds of each photo."""
    coalition: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    """Largest difference of each photo's values from torch's."""
    predictions: list[float] = field(default_factory=list)
    correlation: list[float] = field(default_factory=list)
    size: float | None = None


def measure(
    explainer: Explainer,
    name: str,
    photos: Sequence[str],
    *,
    images: int,
    runtime: Path | None,
    progress: ProgressLines,
) -> list[Table]:
    """Export an explainer in all forms and compare them on photos; the page is left out where there is no Chromium."""
    pictures = _pictures(photos, images)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        progress.start(f"exporting {name}")
        sessions, measured = _graphs(explainer, Path(folder))
        page, why = None, ""
        try:
            page = stack.enter_context(_open_page(explainer, name, Path(folder) / "web", runtime))
            measured["onnxruntime-web float16, Chromium"] = Measured(size=total_bytes(Path(folder) / "web") / 1e6)
        except ModuleNotFoundError as error:
            why = f"the page was not measured: {error}"
        progress.start("photos", len(pictures))
        for i, picture in enumerate(pictures):
            _one_photo(explainer, picture, sessions, page, measured, i)
            progress.advance(1)
        tables = [_table(name, len(pictures), measured, why)]
        if page is not None:
            tables.append(_page_table(page, pictures, total_bytes(Path(folder) / "web")))
    return tables


def _pictures(photos: Sequence[str], images: int) -> list[Image.Image]:
    """Return up to ``images`` photos, spread evenly."""
    found = find_photos(photos)
    if found.missing or not found.photos:
        raise ValueError(f"there are no photos in {', '.join(photos)}")
    chosen = np.linspace(0, len(found.photos) - 1, min(images, len(found.photos))).round().astype(int)
    return [read_photo(found.photos[i]).picture.convert("RGB") for i in chosen]


def _graphs(explainer: Explainer, folder: Path) -> tuple[dict[str, tuple[Session, Session]], dict[str, Measured]]:
    """Write the graphs in every precision; return sessions of explainer and game, by name."""
    import onnx

    sessions, measured = {}, {"torch": Measured()}
    (folder / "float32").mkdir()
    write_graphs(explainer, folder / "float32", "float32", one_graph=True)
    for precision in get_args(Precision):
        place = folder / precision
        place.mkdir(exist_ok=True)
        for kind in ("explainer", "game"):
            write_graph(converted(onnx.load(folder / "float32" / f"{kind}.onnx"), precision), place / f"{kind}.onnx")
        label = f"onnxruntime {precision}"
        sessions[label] = (open_graph(place / "explainer.onnx"), open_graph(place / "game.onnx"))
        measured[label] = Measured(size=total_bytes(place) / 1e6)
    return sessions, measured


def _one_photo(
    explainer: Explainer,
    picture: Image.Image,
    sessions: dict[str, tuple[Session, Session]],
    page: Any,
    measured: dict[str, Measured],
    seed: int,
) -> None:
    model = explainer.surrogate
    pixels = model.prepare(picture).pixels
    half = torch.randperm(model.num_players, generator=torch.Generator().manual_seed(seed)) < model.num_players // 2
    coalition = half[None, None]
    started = time.perf_counter()
    expected = explainer(pixels)
    explained = time.perf_counter()
    played = model.game(pixels)(coalition)[0, 0].numpy()
    ended = time.perf_counter()
    measured["torch"].explain.append(1e3 * (explained - started))
    measured["torch"].coalition.append(1e3 * (ended - explained))
    truth, prediction = expected.values[0].numpy(), expected.prediction[0].numpy()
    best, found = int(prediction.argmax()), {}
    for label, (explain, game) in sessions.items():
        started = time.perf_counter()
        values, full, _ = explain(pixels=pixels.numpy())
        explained = time.perf_counter()
        (outputs,) = game(pixels=pixels.numpy(), coalitions=coalition.numpy())
        times = 1e3 * (explained - started), 1e3 * (time.perf_counter() - explained)
        found[label] = (values[0], full[0], outputs[0, 0], *times)
    if page is not None:
        bits = "".join(str(int(one)) for one in half)
        answer = page.evaluate(_EXPLAIN, [_png(picture), bits])
        values = np.array([answer["values"][str(i)] for i in range(len(prediction))]).T
        times = answer["explain"], answer["coalition"]
        found[list(measured)[-1]] = (values, np.array(answer["prediction"]), np.array(answer["played"]), *times)
    for label, (values, full, outputs, explain_ms, coalition_ms) in found.items():
        row = measured[label]
        row.explain.append(explain_ms)
        row.coalition.append(coalition_ms)
        row.values.append(float(np.abs(values - truth).max()))
        row.predictions.append(float(max(np.abs(full - prediction).max(), np.abs(outputs - played).max())))
        row.correlation.append(correlation(values[:, best], truth[:, best]))


def _table(name: str, images: int, measured: dict[str, Measured], why: str) -> Table:
    title = f"{name} on {images} photos, {torch.get_num_threads()} threads of torch and onnxruntime, 1 of the browser"
    table = Table(title, COLUMNS)
    table.notes.extend([*NOTES, *([why] if why else [])])
    for label, row in measured.items():
        ratios = np.divide(row.explain, measured["torch"].explain)
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        compared: dict[str, float | None] = {"values": None, "predictions": None, "correlation": None, "lowest": None}
        if row.values:
            compared = {
                "values": max(row.values),
                "predictions": max(row.predictions),
                "correlation": float(np.mean(row.correlation)),
                "lowest": min(row.correlation),
            }
        table.add(
            runtime=label,
            explain=median(row.explain),
            ratio=Cell(float(middle), interval=(float(low), float(high))),
            coalition=median(row.coalition),
            size=row.size,
            **compared,
        )
    return table


@contextmanager
def _open_page(explainer: Explainer, name: str, folder: Path, runtime: Path | None) -> Iterator[Any]:
    """Export the page, serve its folder, and open it in Chromium with its model loaded."""
    from playwright.sync_api import sync_playwright

    executable = next((path for browser in BROWSERS if (path := shutil.which(browser))), None)
    if executable is None:
        raise ModuleNotFoundError("there is no Chromium here")
    export_web(explainer, folder, name=name, runtime=runtime)
    with static_host(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page()
            page.goto(address)
            deadline = time.monotonic() + LOAD_SECONDS
            while not page.evaluate("Boolean(window.vitshap?.model)"):
                if time.monotonic() > deadline:
                    raise OSError(f"the page has no model after {LOAD_SECONDS} s")
                page.wait_for_timeout(50)
            yield page
        finally:
            browser.close()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@contextmanager
def static_host(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine, as any static host would; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_QuietHandler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def _page_table(page: Any, pictures: Sequence[Image.Image], size: int) -> Table:
    """Time what a person waits for: from a photo to its map, and from the brush to the new prediction."""
    dropped, brushed = [], []
    for picture in pictures[:PAGE_PHOTOS]:
        dropped.append(page.evaluate(_DROPPED, _png(picture)))
        deadline = time.monotonic() + PAGE_SECONDS
        while not page.evaluate("Boolean(window.vitshap.panes[0].viewer.curve)") and time.monotonic() < deadline:
            page.wait_for_timeout(50)
        brushed += [page.evaluate(_BRUSHED, count) for count in (3, 7)]
    table = Table(
        f"The page ({size / 1e6:.1f} MB)", (Column("action"), Column("median", ",.0f", "ms"), Column("times", "d"))
    )
    table.add(action="from dropping a photo to its map", median=median(dropped), times=len(dropped))
    table.add(action="from brushing to the new prediction", median=median(brushed), times=len(brushed))
    return table


def _png(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    return base64.b64encode(buffer.getvalue()).decode()
