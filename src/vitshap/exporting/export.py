"""``export_onnx``: a folder with two graphs that run without torch, and what all exported folders share.

A folder is written beside its final name and renamed when it is complete and checked: an error or a full disk leaves
nothing behind. The graphs are compared with torch before: the float32 graphs must agree, the smaller ones are measured.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor

from vitshap._version import __version__
from vitshap.errors import CommandError, first_line
from vitshap.explainers import Explainer
from vitshap.explaining.source import source_of
from vitshap.exporting.graphs import Precision, converted, make_graphs, open_graph, require_packages, write_graph
from vitshap.models.base import unwrapped
from vitshap.models.preprocess import Preprocess

TOLERANCE = 1e-4
"""Largest difference from torch's values and predictions, relative to outputs above 1."""
DESCRIPTION = "description.json"
SCRIPT = "explain.py"
FORMAT = "vitshap.onnx"
SAMPLES = ("temple.jpg", "flower.jpg", "portrait.jpg")
"""Photos of the package on which graphs are compared with torch."""
COALITIONS = 4
_README = """{name} as ONNX graphs ({precision} weights), exported by vitshap {version}.

    pip install numpy onnxruntime pillow
    python explain.py PHOTO

explainer.onnx   pixels [B, C, H, W] -> values [B, players, classes], predictions [B, classes], base [B, classes]
game.onnx        pixels [B, C, H, W], coalitions bool [B, S, players] -> predictions [B, S, classes]
description.json preprocessing, class names, the player of each patch, and how the graphs compare with torch; the numbers
                 from which explain.py computes standard errors, if the explainer was calibrated

Values add up to predictions - base. The batch B and the number of coalitions S are free.
"""


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How graphs compare with torch on some images."""

    images: int
    values: float
    """Largest absolute difference of values."""
    predictions: float
    """Largest absolute difference of predictions, of whole images and of coalitions."""
    correlation: float
    """Mean over images of the correlation of values, for the class that torch predicts."""
    lowest_correlation: float


def export_onnx(
    explainer: Explainer,
    folder: str | os.PathLike[str],
    /,
    *,
    precision: Precision = "float32",
    name: str = "explainer",
) -> Agreement:
    """Write a new folder with the explainer and its game as ONNX graphs, and a script that needs numpy and onnxruntime.

    Args:
        explainer: in float32, on the CPU.
        precision: of the weights; the graphs compute in float32 unless it is "int8".
        name: of the bundle, for people.
    """
    require_packages()
    with new_folder(folder) as partial:
        agreement = write_graphs(explainer, partial, precision, one_graph=True)
        script = (files("vitshap.exporting") / "onnx_script.py").read_text(encoding="utf-8")
        (partial / SCRIPT).write_text(script, encoding="utf-8")
        text = _README.format(name=name, precision=precision, version=__version__)
        (partial / "README.txt").write_text(text, encoding="utf-8")
        write_description(explainer, partial, precision, name, agreement)
    return agreement


def write_graphs(explainer: Explainer, folder: Path, precision: Precision, *, one_graph: bool) -> Agreement:
    """Write the graphs (see ``make_graphs``) into a folder and compare them with torch."""
    graphs = make_graphs(explainer, one_graph=one_graph)
    pixels = _sample_pixels(explainer)
    for kind, graph in graphs.items():
        write_graph(graph, folder / f"{kind}.onnx")
    agreement = compare(explainer, folder, pixels)
    scale = 1.0 if explainer.surrogate.unit == "probability" else max(1.0, _largest_output(explainer, pixels))
    if not max(agreement.values, agreement.predictions) <= TOLERANCE * scale:
        raise CommandError(
            f"the exported graphs differ from torch by {agreement.values:.1e} in values and {agreement.predictions:.1e} "
            f"in predictions, more than {TOLERANCE * scale:.0e}: nothing was written"
        )
    if precision != "float32":
        for kind, graph in graphs.items():
            for old in folder.glob(f"{kind}.onnx*"):
                old.unlink()
            write_graph(converted(graph, precision), folder / f"{kind}.onnx")
        agreement = compare(explainer, folder, pixels)
    return agreement


def compare(explainer: Explainer, folder: Path, pixels: Tensor, /) -> Agreement:
    """Compare the graphs of a folder with torch on images ``[B, C, H, W]`` and random coalitions of them."""
    surrogate = explainer.surrogate
    game = open_graph(folder / "game.onnx")
    whole = folder / "explainer.onnx"
    explain = open_graph(whole if whole.exists() else folder / "values.onnx")
    generator = torch.Generator().manual_seed(0)
    differences, correlations = np.zeros((len(pixels), 2)), []
    for i, image in enumerate(pixels.split(1)):  # type: ignore[no-untyped-call]
        coalitions = _coalitions(surrogate.num_players, generator)
        expected = explainer(image)
        with torch.no_grad():
            outputs = surrogate.game(image)(coalitions[None]).numpy()
        array = image.numpy()
        (played,) = game(pixels=array, coalitions=coalitions[None].numpy())
        if whole.exists():
            values, full, base = explain(pixels=array)
        else:  # the last two coalitions are everybody and nobody
            full, base = played[:, -1], played[:, -2]
            (values,) = explain(pixels=array, full=full, base=base)
        truth, prediction = expected.values.numpy(), expected.prediction.numpy()
        off = max(np.abs(full - prediction).max(), np.abs(played - outputs).max())
        off = max(off, np.abs(base - expected.base_values.numpy()).max())
        differences[i] = np.abs(values - truth).max(), off
        best = int(prediction[0].argmax())
        correlations.append(correlation(values[0, :, best], truth[0, :, best]))
    most = differences.max(0)
    return Agreement(
        len(pixels), float(most[0]), float(most[1]), float(np.mean(correlations)), float(np.min(correlations))
    )


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two maps; 1 for a single player, whose value is known."""
    if len(a) == 1 or not (a.std() and b.std()):
        return 1.0 if np.allclose(a, b, atol=TOLERANCE) else 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _coalitions(players: int, generator: torch.Generator) -> Tensor:
    """Return random coalitions of all sizes, and at last nobody and everybody, bool ``[S, d]``."""
    share = torch.rand(COALITIONS, 1, generator=generator)
    some = torch.rand(COALITIONS, players, generator=generator) < share
    ends = torch.tensor([[False], [True]]).expand(2, players)
    return torch.cat([some, ends])


def _sample_pixels(explainer: Explainer) -> Tensor:
    """Return the photos of the package as the model takes them, or noise if it does not say how it wants photos."""
    surrogate = explainer.surrogate
    if not isinstance(surrogate.preprocess, Preprocess):
        generator = torch.Generator().manual_seed(0)
        return torch.randn(len(SAMPLES), surrogate.adapter.channels, *surrogate.image_size, generator=generator)
    rows = []
    for name in SAMPLES:
        with (files("vitshap.viewer") / "static" / "samples" / name).open("rb") as file, Image.open(file) as photo:
            rows.append(surrogate.preprocess(photo))
    return torch.stack(rows)


def _largest_output(explainer: Explainer, pixels: Tensor) -> float:
    with torch.no_grad():
        return float(explainer.surrogate(pixels).abs().max())


def description(explainer: Explainer, precision: Precision, name: str) -> dict[str, Any]:
    """Return what is needed to use the graphs, ready for JSON."""
    surrogate, calibration = explainer.surrogate, explainer.calibration
    prepared = surrogate.preprocess if isinstance(surrogate.preprocess, Preprocess) else None
    names = surrogate.class_names
    rounding = ", the rounding of int8 not included" if precision == "int8" else ""
    return {
        "format": FORMAT,
        "version": 1,
        "vitshap": __version__,
        "name": name,
        "network": type(unwrapped(surrogate.net)).__name__,
        "surrogate": surrogate.fingerprint(),
        "precision": precision,
        "channels": surrogate.adapter.channels,
        "image_size": list(surrogate.image_size),
        "preprocess": None if prepared is None else dataclasses.asdict(prepared),
        "pillow": int(PIL.__version__.partition(".")[0]),  # 13 resizes in another order
        "class_names": [f"class {i}" for i in range(surrogate.num_classes)] if names is None else list(names),
        "grid": list(surrogate.grid),
        "num_players": surrogate.num_players,
        "players": surrogate.players.labels[0].flatten().tolist(),
        "unit": surrogate.unit,
        "base": explainer.null_values[0].tolist() if surrogate.same_null else None,
        "low_confidence": source_of(surrogate, explainer, name).confidence_threshold,
        "calibration": None if calibration is None else calibration.to_json(),
        "stderr_from": None
        if calibration is None
        else f"calibrated on {calibration.images:,} held-out images{rounding}",
    }


def write_description(
    explainer: Explainer, folder: Path, precision: Precision, name: str, agreement: Agreement, **more: Any
) -> None:
    """Write ``description.json``, with hashes of all graphs; ``more`` entries are added."""
    graphs = sorted(path.name for path in folder.glob("*.onnx*"))
    content = {
        **description(explainer, precision, name),
        "compared_with_torch": dataclasses.asdict(agreement),
        "sha256": {graph: sha256(folder / graph) for graph in graphs},
        **more,
    }
    (folder / DESCRIPTION).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_free(folder: str | os.PathLike[str], /) -> Path:
    """Return the absolute path of a folder that does not exist or is empty; ``ValueError`` for any other."""
    final = Path(os.path.expanduser(folder)).resolve()
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        kind = "a folder that is not empty" if final.is_dir() else "a file"
        raise ValueError(f"{final} is {kind}: choose a new folder with --out")
    return final


@contextmanager
def new_folder(folder: str | os.PathLike[str], /) -> Iterator[Path]:
    """Give a temporary folder that becomes ``folder`` at the end; an error leaves nothing behind."""
    final = check_free(folder)
    partial = final.parent / f".{final.name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        if final.exists():
            final.rmdir()
        os.replace(partial, final)
    except OSError as error:
        raise OSError(f"{final} could not be written ({first_line(error)}); nothing was left behind") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def total_bytes(folder: Path) -> int:
    """Return the size of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
