"""The result of every method: what each player contributed to each explained class, and how to read it.

One frozen object for all methods, so that a metric, a plot or a report never asks which method it holds.
Whatever it claims is checked when it is made: shapes, and for an additive explanation that the values really
add up. Its tensors are plain ones on the CPU: a result is read, saved and drawn, not trained through.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitshap import plots
from vitshap.errors import first_line
from vitshap.explanation.checks import PredictionBy, Unit, check, is_one_class
from vitshap.explanation.export import Pictures, describe, position, to_dataframe, to_shap
from vitshap.files import write_tensors
from vitshap.game import ClassLike, class_index

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import shap
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

FORMAT = "vitshap.explanation"
FORMAT_VERSION = 1


class PlayerValue(NamedTuple):
    """A player, its value, and where it is in the grid: row and column for images, integers that count from 0.

    Of a player with several tokens it is the token nearest to the centre of them.
    """

    player: int
    value: float
    position: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """Values of ``d`` players for ``T`` classes of each of ``B`` images."""

    values: Tensor
    """float32 ``[B, d, T]``; 0 for players that an image lacks."""
    classes: Tensor
    """Explained classes, int64 ``[B, T]``."""
    additive: bool
    """Whether the values of an image add up to ``full_values - base_values``."""
    unit: Unit
    prediction: Tensor
    """What the net says of the whole images, float32 ``[B, K]``."""
    prediction_by: PredictionBy
    players: Tensor
    """Which player each token belongs to, int64 ``[B or 1, *grid]``; -1 is nobody."""
    method: str
    base_values: Tensor | None = None
    """v of the empty coalition, float32 ``[B, T]``; None when not additive."""
    full_values: Tensor | None = None
    """v of the full coalition, float32 ``[B, T]``; None when not additive."""
    stderr: Tensor | None = None
    """Standard error of each value, float32 ``[B, d, T]``; None where the method knows none."""
    player_mask: Tensor | None = None
    """Which players exist, bool ``[B, d]``; None when all do."""
    image_box: Tensor | None = None
    """Left, top, right, bottom of the net's crop in the original image, float32 ``[B, 4]``."""
    converged: Tensor | None = None
    """Whether the accuracy that was asked for was reached, bool ``[B]``; None where none was asked for."""
    seconds: float = 0.0
    """Wall-clock time per image."""
    evaluations: int = 0
    """Coalitions evaluated per image, the empty and the full one included."""
    class_names: tuple[str, ...] | None = None
    class_specific: bool = True
    """False when the values are the same for every class."""

    def __post_init__(self) -> None:
        """Raise unless all fields fit together."""
        check(self)

    def __repr__(self) -> str:
        """Method, images, players, classes and cost; the numbers are in the fields."""
        return describe(self)

    @property
    def grid(self) -> tuple[int, ...]:
        """Shape of the token grid."""
        return tuple(self.players.shape[1:])

    def __len__(self) -> int:
        """Number of images."""
        return self.values.shape[0]

    def __getitem__(self, index: int | slice) -> Explanation:
        """The explanation of one image or of a slice of them; both keep the batch dimension."""
        if isinstance(index, slice):
            chosen = index
        else:
            start = range(len(self))[index]  # an IndexError where there is no such image
            chosen = slice(start, start + 1)
        parts: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            shared = field.name == "players" and value.shape[0] == 1
            if isinstance(value, Tensor) and not shared:
                parts[field.name] = value[chosen]
        return replace(self, **parts)

    def __iter__(self) -> Iterator[Explanation]:
        """One explanation per image."""
        return (self[i] for i in range(len(self)))

    def select(self, classes: Sequence[int], /) -> Explanation:
        """Return the explanation of some of the explained classes, by number, in this order and each of them once."""
        column = torch.stack([self._columns(one) for one in dict.fromkeys(classes)], 1)  # [B, selected]
        parts: dict[str, Any] = {}
        for name in ("values", "classes", "base_values", "full_values", "stderr"):
            numbers: Tensor | None = getattr(self, name)
            if numbers is not None:
                at = column if numbers.ndim == 2 else column[:, None].expand(-1, numbers.shape[1], -1)
                parts[name] = numbers.gather(-1, at)
        return replace(self, **parts)

    def efficiency_gap(self) -> Tensor:
        """``sum(values) - (full - base)``, float64 ``[B, T]``: rounding error, for additive explanations."""
        if self.base_values is None or self.full_values is None:
            raise ValueError(f"{self.method} is not additive: its values do not add up to anything")
        return self.values.double().sum(1) - (self.full_values.double() - self.base_values.double())

    def heatmap(self, target: ClassLike | None = None) -> Tensor:
        """Values laid on the grid, float32 ``[B, *grid]``.

        Every token shows the whole value of its player (not a share of it), and NaN if it belongs to nobody.
        ``target`` is one of the explained classes; by default, image by image, the predicted class if it was
        explained and else the first explained one.
        """
        return self._on_grid(self.values, target)

    def stderr_map(self, target: ClassLike | None = None) -> Tensor | None:
        """Standard errors laid on the grid as ``heatmap`` lays values; None where the method knows none."""
        return None if self.stderr is None else self._on_grid(self.stderr, target)

    def top(self, k: int, target: ClassLike | None = None) -> list[list[PlayerValue]]:
        """For each image its ``k`` players of largest value, largest first; fewer if it has fewer players.

        Rows and columns are integers that count from 0.
        """
        values = self._values_of(target)
        best = []
        for i in range(len(self)):
            mask = None if self.player_mask is None else self.player_mask[i]
            existing = torch.arange(values.shape[1]) if mask is None else mask.nonzero().flatten()
            order = existing[values[i, existing].argsort(descending=True, stable=True)][:k]
            best.append([PlayerValue(p, float(values[i, p]), position(self, i, p)) for p in order.tolist()])
        return best

    def plot(
        self,
        picture: plots.Picture | None = None,
        /,
        *,
        target: ClassLike | Sequence[ClassLike] | None = None,
        title: str | None = None,
        style: plots.Style = "default",
        base: plots.Base | None = None,
        smooth: bool | None = None,
        cmap: str | Colormap | None = None,
        overlay_alpha: float | None = None,
    ) -> Figure:
        """Draw one image's map over ``picture``; a list of targets gives a row with a map for each, on one scale.

        A PIL image, path or array is the original image, in which the map covers ``image_box``; a tensor is
        the net's input, which the map covers whole. Of a batch, draw ``explanation[i].plot(...)``.

        Red raises the class and blue lowers it, over the photo in light grey; a value whose 95 % interval includes zero
        has half the opacity. ``base="photo"`` keeps the photo's colours, ``smooth=True`` interpolates between patches,
        ``cmap`` is a diverging colour map of matplotlib, ``overlay_alpha`` the opacity of the largest values, and
        ``style="paper"`` draws as the paper does.
        """
        if len(self) != 1:
            raise ValueError(f"one image is drawn at a time, not {len(self)}: use explanation[i].plot(...)")
        look = plots.Look(style=style, base=base, smooth=smooth, cmap=cmap, overlay_alpha=overlay_alpha)
        box = None if isinstance(picture, Tensor) or self.image_box is None else self.image_box[0].tolist()
        if target is None or is_one_class(target):
            return plots.heatmap(
                self.heatmap(target)[0].numpy(),
                picture,
                box=box,
                unit=self.unit,
                title=self._caption(target) if title is None else title,
                label=self._quoted(target),
                stderr=self._errors(target),
                look=look,
            )
        several = cast("Sequence[ClassLike]", target)
        return plots.class_row(
            [self.heatmap(one)[0].numpy() for one in several],
            picture,
            titles=[self._caption(one) for one in several],
            box=box,
            unit=self.unit,
            title=self.method if title is None else title,
            stderrs=[self._errors(one) for one in several],
            look=look,
        )

    def to_shap(
        self,
        *,
        images: Pictures | None = None,
        target: ClassLike | None = None,
        allow_non_additive: bool = False,
    ) -> shap.Explanation:
        """As a ``shap.Explanation``: values ``[B, d, T]`` of players, or ``[B, d]`` where one class is handed over.

        With ``images`` for ``shap.image_plot``: values ``[B, H, W, C, T]``, where the pixels of a player add up to its
        value. Images are given as to ``plot``: a tensor is the net's input; pictures are the originals.
        ``target`` is one of the explained classes, by default all of them. Values that are not additive are refused
        unless ``allow_non_additive``: shap's readers take bars for parts of the output.
        """
        return to_shap(self, images=images, target=target, allow_non_additive=allow_non_additive)

    def to_dataframe(self) -> pandas.DataFrame:
        """As a table of pandas, a line for every image, explained class and player that the image has.

        Columns: image, class, class_name, player, row, column (from 0; of a player with several patches, the one nearest
        to its centre), value, stderr (NaN where the method knows none), prediction (the class's output for the image).
        """
        return to_dataframe(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one safetensors file; an existing file is replaced only by a complete one."""
        everything = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {k: v for k, v in everything.items() if isinstance(v, Tensor)}
        plain = {k: v for k, v in everything.items() if not isinstance(v, Tensor)}
        header = json.dumps({"version": FORMAT_VERSION, "fields": plain})
        write_tensors(Path(path), tensors, {FORMAT: header})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Explanation:
        """Read what ``save`` wrote, exactly."""
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get(FORMAT, "null"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            version, plain = header["version"], dict(header["fields"])
            if isinstance(plain.get("class_names"), list):  # JSON has no tuples
                plain["class_names"] = tuple(plain["class_names"])
            if version == FORMAT_VERSION:
                return cls(**{**plain, **tensors})
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged or holds no vitshap explanation: {first_line(error)}") from error
        raise ValueError(f"{path} has format version {version}; this vitshap reads {FORMAT_VERSION}")

    def _values_of(self, target: ClassLike | None) -> Tensor:
        return self._column_of(self.values, target)

    def _column_of(self, numbers: Tensor, target: ClassLike | None) -> Tensor:
        column = self._columns(target)  # [B]
        return numbers.gather(2, column[:, None, None].expand(-1, numbers.shape[1], 1))[..., 0]

    def _on_grid(self, numbers: Tensor, target: ClassLike | None) -> Tensor:
        labels = self.players.expand(len(self), *self.grid).flatten(1)  # [B, N]
        spread = self._column_of(numbers, target).gather(1, labels.clamp(min=0))
        return spread.masked_fill(labels < 0, math.nan).view(len(self), *self.grid)

    def _errors(self, target: ClassLike | None) -> NDArray[np.floating] | None:
        found = self.stderr_map(target)
        return None if found is None else found[0].numpy()

    def _columns(self, target: ClassLike | None) -> Tensor:
        """Where in ``classes`` each image has the target, int64 ``[B]``."""
        if target is None:
            hit = self.classes == self.prediction.argmax(1, keepdim=True)
            return hit.int().argmax(1)  # the first where there is no hit
        wanted = class_index(target, self.class_names, self.prediction.shape[1])
        hit = self.classes == wanted
        if not bool(hit.any(1).all()):
            image = int((~hit.any(1)).nonzero()[0])
            known = ", ".join(self._name(c) for c in self.classes[image, :8].tolist())
            raise ValueError(f"{self._name(wanted)} was not explained for image {image}; explained: {known}")
        return hit.int().argmax(1)

    def _name(self, index: int) -> str:
        return f"class {index}" if self.class_names is None else self.class_names[index]

    def _quoted(self, target: ClassLike | None) -> str:
        index = int(self.classes[0, self._columns(target)[0]])
        if self.class_names is None:
            return "the output" if self.unit == "output" else f"class {index}"
        return f"'{self.class_names[index]}'"

    def _caption(self, target: ClassLike | None) -> str:
        index = int(self.classes[0, self._columns(target)[0]])
        symbol = "p=" if self.unit == "probability" else ""
        return f"{self._name(index)} ({symbol}{float(self.prediction[0, index]):.3g})"
