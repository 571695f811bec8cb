"""An explanation in other forms: values spread over pixels, ``shap.Explanation``, a pandas table, one line of text.

Packages that know only images need a value per pixel. A pixel belongs to the token that covers its centre, and every
pixel of a player gets an equal share of its value. So the pixels of a player add up to its value whatever the players
are. Where the image divides into the grid, as every model's own input does, a token's pixels are exactly its patch.

shap keeps values as an array whose leading axes are those of the data: a row of features per image for its bar, waterfall
and heatmap plots, or whole images for ``shap.image_plot``. Both are offered; with pictures it is the latter.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitshap.game import ClassLike
from vitshap.players import covering
from vitshap.plots import Picture, as_pixels

if TYPE_CHECKING:
    import shap

    from vitshap.explanation.result import Explanation

if TYPE_CHECKING:
    import pandas

    from vitshap.explanation.result import Explanation


def pixel_owners(labels: Tensor, size: Sequence[int], box: Sequence[float] | None = None) -> Tensor:
    """Return the player of each pixel, int64 ``[B or 1, H, W]``, from label maps ``[B or 1, rows, columns]``.

    ``size`` is (height, width). ``box`` (left, top, right, bottom) is the position of the grid in the image, by default
    all of it. Pixels outside the grid or of no player are -1.
    """
    (height, width), (rows, columns) = size, labels.shape[1:]
    left, top, right, bottom = (0, 0, width, height) if box is None else box
    row = covering(height, top, bottom, rows).to(labels.device)
    column = covering(width, left, right, columns).to(labels.device)
    framed = F.pad(labels, (0, 1, 0, 1), value=-1)  # one more row and column, for the pixels outside
    return framed[:, row[:, None], column[None, :]]


def spread(values: Tensor, owners: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Spread values ``[B, d, T]`` over the pixels of ``owners`` (``[B or 1, H, W]``): ``[B, T, H, W]`` on their device.

    Shares are computed in float64 and rounded once; in half precision they may be subnormal, and their sums rough.
    """
    batch, players, explained = values.shape
    height, width = owners.shape[1:]
    flat = owners.flatten(1)
    flat = flat.where(flat >= 0, players)  # [B or 1, H * W]; no player: last
    count = torch.zeros(len(flat), players + 1, dtype=torch.int64, device=flat.device)
    count = count.scatter_add_(1, flat, torch.ones_like(flat))[:, :-1].to(values.device)
    lost = ((count == 0) & (values != 0).any(2)).nonzero()
    if len(lost):
        image, player = lost[0].tolist()
        raise ValueError(
            f"player {player} has no pixel in image {image} of {height} x {width}: "
            "the image is too small for the grid, or not the one that was explained"
        )
    shares = values.double() / count.clamp(min=1)[..., None]
    shares = F.pad(shares, (0, 0, 0, 1)).transpose(1, 2).to(dtype).to(owners.device)  # [B, T, d + 1]
    return shares.gather(2, flat[:, None, :].expand(batch, explained, -1)).view(batch, explained, height, width)


Pictures: TypeAlias = "Picture | Sequence[Picture]"
"""A tensor ``[B, C, H, W]``, an array ``[B, H, W, C]``, or a picture per image, all of one size."""

NAMES_SHOWN = 3


def to_shap(
    e: Explanation, /, *, images: Pictures | None, target: ClassLike | None, allow_non_additive: bool
) -> shap.Explanation:
    """Implement ``Explanation.to_shap``."""
    package = _optional("shap", "vitshap[shap]")
    if not e.additive and not allow_non_additive:
        raise ValueError(
            f"{e.method} is not additive: its values do not add up to the output, as shap's plots assume. "
            "allow_non_additive=True converts them nevertheless"
        )
    if target is None:
        columns = torch.arange(e.classes.shape[1]).expand(len(e), -1)
    else:
        columns = e._columns(target)[:, None]
    form = _players_form(e, columns) if images is None else _pixels_form(e, columns, images)
    made: shap.Explanation = package.Explanation(**form, compute_time=e.seconds * len(e))
    return made


def _optional(package: str, install: str) -> Any:
    """Import a package that vitshap does not require."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"this needs the package {package}: pip install {install}") from error


def _players_form(e: Explanation, columns: Tensor) -> dict[str, Any]:
    """Return values ``[B, d, T]``, or ``[B, d]`` for one class: shap's plots take one output at a time."""
    form: dict[str, Any] = {
        "values": _take(e.values, columns),
        "base_values": _base(e, columns),
        "error_std": None if e.stderr is None else _take(e.stderr, columns),
    }
    names = _output_names(e, columns, form["values"].shape)
    if columns.shape[1] > 1:
        return {**form, "output_names": names, "feature_names": _player_names(e)}
    form = {name: None if array is None else array[..., 0] for name, array in form.items()}
    return {**form, "output_names": _joined(np.ravel(names).tolist()), "feature_names": _player_names(e)}


def _pixels_form(e: Explanation, columns: Tensor, images: Pictures) -> dict[str, Any]:
    """Return values ``[B, H, W, C, T]`` and the pictures ``[B, H, W, C]`` in 0..1."""
    pictures = _picture_list(images)
    shown = [_shown(picture) for picture in pictures]
    if len(pictures) != len(e) or len({picture.shape for picture in shown}) > 1:
        sizes = ", ".join(" x ".join(map(str, size)) for size in sorted({picture.shape for picture in shown}))
        wanted = f"shap needs one picture per image ({len(e)}), all of one size"
        raise ValueError(f"{wanted}; got {len(pictures)} of {sizes}: use explanation[i].to_shap(...)")
    height, width, channels = shown[0].shape
    owners = [
        pixel_owners(e[i].players, (height, width), None if isinstance(picture, Tensor) else _box(e, i))
        for i, picture in enumerate(pictures)
    ]
    values = spread(torch.from_numpy(_take(e.values, columns)) / channels, torch.cat(owners))  # [B, T, H, W]
    values = values.permute(0, 2, 3, 1)[:, :, :, None].expand(-1, -1, -1, channels, -1).contiguous()
    return {
        "values": values.numpy(),
        "base_values": _base(e, columns),
        "data": np.stack(shown),
        "output_names": _output_names(e, columns, values.shape),
    }


def _picture_list(images: Pictures) -> list[Picture]:
    """Return one picture per image; a single picture becomes a list of one."""
    if isinstance(images, str | os.PathLike | Image.Image):
        return [images]
    if isinstance(images, Tensor):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    return list(images)


def _shown(picture: Picture) -> NDArray[np.float64]:
    """Return the picture as ``[H, W, C]`` in 0..1; one channel stays one."""
    pixels = as_pixels(picture)
    grey = isinstance(picture, Tensor) and picture.shape[0] == 1
    return pixels[..., :1] if grey else pixels


def _box(e: Explanation, image: int) -> list[float] | None:
    """Return the box of the model's input in the original picture."""
    if e.image_box is None:
        return None
    box: list[float] = e.image_box[image].tolist()
    return box


def _take(tensor: Tensor, columns: Tensor) -> NDArray[np.float32]:
    """Select the columns ``[B, T]`` of ``[B, d, all]``: ``[B, d, T]``."""
    array: NDArray[np.float32] = tensor.gather(2, columns[:, None, :].expand(-1, tensor.shape[1], -1)).numpy()
    return array


def _base(e: Explanation, columns: Tensor) -> NDArray[np.float32] | None:
    return None if e.base_values is None else e.base_values.gather(1, columns).numpy()


def _output_names(e: Explanation, columns: Tensor, shape: Sequence[int]) -> list[str] | NDArray[np.str_]:
    """Return the names of the classes: a list if they are the same for all images, otherwise ``[B, T]``."""
    rows = [[e._name(index) for index in row] for row in e.classes.gather(1, columns).tolist()]
    if all(row == rows[0] for row in rows):
        return rows[0]
    if shape[-2] == len(rows):  # shap, which guesses axes by their sizes, would read [B, T] as two axes of outputs
        return [_joined(column) for column in zip(*rows, strict=True)]
    return np.array(rows)


def _joined(names: Sequence[str]) -> str:
    """Join several class names."""
    unique = list(dict.fromkeys(names))
    return " / ".join(unique[:NAMES_SHOWN] + ["..."] * (len(unique) > NAMES_SHOWN))


def _player_names(e: Explanation) -> list[str]:
    """Name patches by row and column; players of several tokens, or that differ between images, by number."""
    d = e.values.shape[1]
    labels = e.players[0].flatten()
    if len(e.players) == 1 and torch.equal(labels[labels >= 0].sort().values, torch.arange(d)):
        return ["patch " + ",".join(map(str, (e.players[0] == i).nonzero()[0].tolist())) for i in range(d)]
    return [f"player {i}" for i in range(d)]


def describe(e: Explanation) -> str:
    """Return one line about what was explained and at what cost."""
    images, players, classes = e.values.shape
    grid = " x ".join(map(str, e.grid))
    counts = (
        f"{images} image{'s' * (images != 1)}",
        f"{players} player{'s' * (players != 1)} on a grid of {grid}",
        f"{classes} of {e.prediction.shape[1]} classes",
        f"unit {e.unit}",
        f"{e.evaluations:,} evaluation{'s' * (e.evaluations != 1)} and {e.seconds:.3g} s per image",
    )
    return f"<Explanation by {e.method}: {', '.join(counts)}>"


def position(e: Explanation, image: int, player: int) -> tuple[int, ...]:
    """Return a player's position in the grid, counted from 0: its token nearest to the centre of all its tokens."""
    tokens = (e.players[image if len(e.players) > 1 else 0] == player).nonzero()  # [n, axes], in reading order
    distance = (tokens - tokens.double().mean(0)).square().sum(1)
    return tuple(tokens[int(distance.argmin())].tolist())


def to_dataframe(e: Explanation) -> pandas.DataFrame:
    """Implement ``Explanation.to_dataframe``."""
    package = _optional("pandas", "pandas")
    axes = ("row", "column") if len(e.grid) == 2 else tuple(f"axis_{i}" for i in range(len(e.grid)))
    shared = [position(e, 0, player) for player in range(e.values.shape[1])] if e.player_mask is None else None
    intervals = () if e.stderr is None else e.interval()
    rows: list[dict[str, Any]] = []
    for i in range(len(e)):
        mask = None if e.player_mask is None else e.player_mask[i]
        players = range(e.values.shape[1]) if mask is None else mask.nonzero().flatten().tolist()
        one_map = shared if len(e.players) == 1 else None
        where = {player: one_map[player] if one_map else position(e, i, player) for player in players}
        values = e.values[i].tolist()
        ends = None if e.stderr is None else [end[i].tolist() for end in intervals]
        errors = None if e.stderr is None else e.stderr[i].tolist()
        for t, index in enumerate(e.classes[i].tolist()):
            name = None if e.class_names is None else e.class_names[index]
            output = float(e.prediction[i, index])
            for player in players:
                rows.append(
                    {
                        "image": i,
                        "class": index,
                        "class_name": name,
                        "player": player,
                        **dict(zip(axes, where[player], strict=True)),
                        "value": values[player][t],
                        "stderr": float("nan") if errors is None else errors[player][t],
                        "lower": float("nan") if ends is None else ends[0][player][t],
                        "upper": float("nan") if ends is None else ends[1][player][t],
                        "prediction": output,
                    }
                )
    table: pandas.DataFrame = package.DataFrame(rows)
    return table
