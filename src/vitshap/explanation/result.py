"""The result of every method: the value of each player for each explained class, with what is needed to read it.

All methods return this frozen object, so metrics, plots and reports do not depend on the method. It is checked when it is
made: shapes, and for an additive explanation that the values add up. Its tensors are detached and on the CPU.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitshap import plots
from vitshap.errors import first_line
from vitshap.explanation.checks import PredictionBy, Unit, check, is_one_class
from vitshap.explanation.export import Pictures, describe, position, to_dataframe, to_shap
from vitshap.explanation.view import Original, notebook_html
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
    """A player, its value, and its position in the grid: row and column for images, counted from 0.

    The position of a player with several tokens is the token nearest to their centre.
    """

    player: int
    value: float
    position: tuple[int, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """Values of ``d`` players for ``T`` classes of each of ``B`` images."""

    values: Tensor
    """float32 ``[B, d, T]``; 0 for players that are absent from an image."""
    classes: Tensor
    """Explained classes, int64 ``[B, T]``."""
    additive: bool
    """Whether the values of an image add up to ``full_values - base_values``."""
    unit: Unit
    prediction: Tensor
    """Output of the model for the whole images, float32 ``[B, K]``."""
    prediction_by: PredictionBy
    players: Tensor
    """The player of each token, int64 ``[B or 1, *grid]``; -1 means no player."""
    method: str
    base_values: Tensor | None = None
    """v of the empty coalition, float32 ``[B, T]``; None if not additive."""
    full_values: Tensor | None = None
    """v of the full coalition, float32 ``[B, T]``; None if not additive."""
    stderr: Tensor | None = None
    """Standard error of each value, float32 ``[B, d, T]``; None if the method gives none."""
    player_mask: Tensor | None = None
    """Which players exist, bool ``[B, d]``; None if all do."""
    image_box: Tensor | None = None
    """Left, top, right, bottom of the model's input in the original image, float32 ``[B, 4]``."""
    converged: Tensor | None = None
    """Whether the requested accuracy was reached, bool ``[B]``; None if none was requested."""
    seconds: float = 0.0
    """Wall-clock time per image."""
    evaluations: int = 0
    """Coalitions evaluated per image, the empty and the full one included; their mean, rounded up, if they differ."""
    evaluations_each: Tensor | None = None
    """Coalitions evaluated for each image, int64 ``[B]``, if they differ."""
    class_names: tuple[str, ...] | None = None
    class_specific: bool = True
    """False if the values are the same for every class."""
    posterior: bool = False
    """Whether the values are predictions (an explainer's, or a posterior mean) and ``stderr`` is how far the exact values
    vary around them; otherwise ``stderr`` is how far the values vary around the exact ones."""
    originals: tuple[Original, ...] | None = None
    """The photos, for notebooks; ``save`` does not write them."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` unless the fields are consistent."""
        check(self)

    def __repr__(self) -> str:
        """Return method, images, players, classes and cost in one line."""
        return describe(self)

    def _repr_html_(self) -> str | None:
        """Show the explanation in a notebook: the map over the photo, classes, patches, in a frame of its own.

        None, and so one line of text, if the players are not on a grid of rows and columns.
        """
        return notebook_html(self) if len(self.grid) == 2 else None

    @property
    def grid(self) -> tuple[int, ...]:
        """Shape of the token grid."""
        return tuple(self.players.shape[1:])

    def __len__(self) -> int:
        """Number of images."""
        return self.values.shape[0]

    def __getitem__(self, index: int | slice) -> Explanation:
        """Return the explanation of one image or of a slice of them; both keep the batch dimension."""
        if isinstance(index, slice):
            chosen = index
        else:
            start = range(len(self))[index]  # IndexError if there is no such image
            chosen = slice(start, start + 1)
        parts: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            shared = field.name == "players" and value.shape[0] == 1
            if isinstance(value, Tensor) and not shared:
                parts[field.name] = value[chosen]
        if self.evaluations_each is not None and len(parts["evaluations_each"]):
            parts["evaluations"] = math.ceil(float(parts["evaluations_each"].double().mean()))
        if self.originals is not None:
            parts["originals"] = self.originals[chosen]
        return replace(self, **parts)

    def __iter__(self) -> Iterator[Explanation]:
        """Iterate over explanations of one image each."""
        return (self[i] for i in range(len(self)))

    def select(self, classes: Sequence[int], /) -> Explanation:
        """Return the explanation of these explained classes (numbers) only, in this order and each of them once."""
        column = torch.stack([self._columns(one) for one in dict.fromkeys(classes)], 1)  # [B, selected]
        parts: dict[str, Any] = {}
        for name in ("values", "classes", "base_values", "full_values", "stderr"):
            numbers: Tensor | None = getattr(self, name)
            if numbers is not None:
                at = column if numbers.ndim == 2 else column[:, None].expand(-1, numbers.shape[1], -1)
                parts[name] = numbers.gather(-1, at)
        return replace(self, **parts)

    def efficiency_gap(self) -> Tensor:
        """Return ``sum(values) - (full - base)``, float64 ``[B, T]``: the rounding error of an additive explanation."""
        if self.base_values is None or self.full_values is None:
            raise ValueError(f"{self.method} is not additive: its values have no meaningful sum")
        return self.values.double().sum(1) - (self.full_values.double() - self.base_values.double())

    def interval(self, level: float = plots.LEVEL) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of the intervals that hold the exact values with this probability.

        float32 ``[B, d, T]`` each; normal intervals, ``value - z stderr`` to ``value + z stderr``.
        """
        if not 0 < level < 1:
            raise ValueError(f"level is a probability between 0 and 1, got {level}")
        if self.stderr is None:
            raise ValueError(f"this explanation by {self.method} has no standard errors, and so no intervals")
        half = NormalDist().inv_cdf((1 + level) / 2) * self.stderr
        return self.values - half, self.values + half

    def heatmap(self, target: ClassLike | None = None) -> Tensor:
        """Return the values on the grid, float32 ``[B, *grid]``.

        Every token has the whole value of its player, not a share of it; NaN if it belongs to no player. ``target`` is
        one of the explained classes; the default is each image's predicted class if it was explained, otherwise the
        first explained class.
        """
        return self._on_grid(self.values, target)

    def stderr_map(self, target: ClassLike | None = None) -> Tensor | None:
        """Return the standard errors on the grid, as ``heatmap`` does for values; None if the method gives none."""
        return None if self.stderr is None else self._on_grid(self.stderr, target)

    def top(self, k: int, target: ClassLike | None = None) -> list[list[PlayerValue]]:
        """Return the ``k`` players of largest value of each image, largest first; fewer if it has fewer players."""
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

        A PIL image, path or array is the original image, in which the map covers ``image_box``; a tensor is the
        model's input, which the map covers completely. For a batch, draw ``explanation[i].plot(...)``.

        Red raises the class and blue lowers it, over the photo in light grey; a value whose 95 % interval includes zero
        has half the opacity. ``base="photo"`` keeps the photo's colours, ``smooth=True`` interpolates between patches,
        ``cmap`` is a diverging colour map of matplotlib, ``overlay_alpha`` the opacity of the largest values, and
        ``style="paper"`` draws as the paper does.
        """
        if len(self) != 1:
            raise ValueError(f"plot draws one image, this explanation has {len(self)}: use explanation[i].plot(...)")
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

    def plot_intervals(self, k: int = 10, /, *, target: ClassLike | None = None, level: float = plots.LEVEL) -> Figure:
        """Draw the ``k`` largest values of one image, of either sign, with their intervals; pale ones include zero."""
        if len(self) != 1:
            raise ValueError(f"one image is drawn, not {len(self)}: use explanation[i].plot_intervals()")
        values, low, high = (self._column_of(one, target)[0] for one in (self.values, *self.interval(level)))
        present = torch.ones_like(values) if self.player_mask is None else self.player_mask[0]
        order = torch.where(present > 0, values.abs(), -1).argsort(descending=True)[: min(k, int(present.sum()))]
        cells = [position(self, 0, player) for player in order.tolist()]
        return plots.interval_figure(
            [f"row {row + 1}, column {column + 1}" for row, column in cells],
            *(one[order].numpy() for one in (values, low, high)),
            title=self._caption(target),
            x_label=f"{plots.UNIT_LABELS[self.unit]}, {100 * level:g} % interval",
        )

    def to_shap(
        self,
        *,
        images: Pictures | None = None,
        target: ClassLike | None = None,
        allow_non_additive: bool = False,
    ) -> shap.Explanation:
        """Convert to a ``shap.Explanation``: values ``[B, d, T]`` of players, or ``[B, d]`` for one class.

        With ``images``, for ``shap.image_plot``: values ``[B, H, W, C, T]``, where the pixels of a player add up to its
        value. Images are given as to ``plot``: a tensor is the model's input; pictures are the originals. ``target`` is
        one of the explained classes (default: all). Values that are not additive are an error unless
        ``allow_non_additive``, because bars in shap's plots are read as parts of the output.
        """
        return to_shap(self, images=images, target=target, allow_non_additive=allow_non_additive)

    def to_dataframe(self) -> pandas.DataFrame:
        """Convert to a pandas table with a row for every image, explained class and existing player.

        Columns: image, class, class_name, player, row, column (from 0; for a player with several patches, the one
        nearest to their centre), value, stderr, lower and upper (of the 95 % interval; NaN if the method gives no errors),
        prediction (output of the class).
        """
        return to_dataframe(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one safetensors file, atomically."""
        everything = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "originals"}
        tensors = {k: v for k, v in everything.items() if isinstance(v, Tensor)}
        plain = {k: v for k, v in everything.items() if not isinstance(v, Tensor)}
        header = json.dumps({"version": FORMAT_VERSION, "fields": plain})
        write_tensors(Path(path), tensors, {FORMAT: header})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Explanation:
        """Read a file written by ``save``."""
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
        """Return the column of the target in ``classes`` for each image, int64 ``[B]``."""
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
