"""``MaskedModel``: a model that can be evaluated on any subset of patches, and ``ImageGame``, the game of its images."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitshap.coalitions import Coalitions
from vitshap.errors import did_you_mean
from vitshap.game import ClassLike, Game, check_coalitions
from vitshap.models import removal as sessions
from vitshap.models.base import Adapter, apply_link, evaluating, fingerprint, net_device_dtype, unwrapped
from vitshap.models.linear import fast_linear
from vitshap.models.packed import EncodePacked, encode_packed, evaluate_rows, token_budget
from vitshap.models.precision import FastValues, Precision
from vitshap.models.preprocess import Preprocess, from_array, is_photo, open_image
from vitshap.players import Players, PlayersLike, resolve
from vitshap.shapiq_games import ShapiqGame, as_shapiq

Output: TypeAlias = Literal["softmax", "sigmoid", "identity"]
Evaluation: TypeAlias = Literal["packed", "full", "explicit"]
Photo: TypeAlias = str | PathLike[str] | Image.Image | np.ndarray
Images: TypeAlias = Tensor | Photo | Sequence[Photo]
"""Tensors and float arrays are the model's input; PIL images, paths and uint8 arrays ``[H, W, 3]`` are photos."""


PER_COALITION = 4
"""Fixed cost of a coalition, whatever its size, in tokens: a low estimate."""


class Prepared(NamedTuple):
    """Images as the model takes them, and the part of the original that each shows."""

    pixels: Tensor
    boxes: Tensor | None
    """Left, top, right, bottom in pixels of the original, float32 ``[B, 4]``; None for tensors."""


class _Values:
    """Computes the values of coalitions: not the game itself, which would then refer to itself and stay in memory."""

    def __init__(self, model: MaskedModel, pixels: Tensor, players: Players, precision: Precision | None) -> None:
        self.own_precision = False
        self._model, self._pixels, self._players = model, pixels, players
        self._fast = None if precision is None else FastValues(model, pixels, players, precision)
        self._session: sessions.Session | None = None  # opened at the first evaluation

    def __call__(self, coalitions: Coalitions) -> Tensor:
        if self._fast is not None and not self.own_precision and (values := self._fast(coalitions)) is not None:
            return values
        model = self._model
        with torch.no_grad(), evaluating(model.net), model.adapter.ready():
            self._session = self._session or model.open_session(self._pixels)
            return model.link(model.run_session(self._session, coalitions, self._players))


class ImageGame(Game):
    """The game of a batch of images, which are embedded once and evaluated for any coalitions of their patches."""

    players: Players

    def __init__(
        self, model: MaskedModel, prepared: Prepared, players: Players, precision: Precision | None = None
    ) -> None:
        self.players = players
        self.boxes = prepared.boxes
        self._values = _Values(model, prepared.pixels, players, precision)
        present = players.player_mask
        super().__init__(
            self._values,
            num_players=players.num_players,
            num_outputs=model.num_classes,
            batch_size=len(prepared.pixels),
            device=prepared.pixels.device,
            player_mask=None if bool(present.all()) else present.expand(len(prepared.pixels), -1),
        )
        self.class_names = model.class_names

    def _end(self, member: bool) -> Tensor:
        """Evaluate the empty or the full coalition, in the model's own precision whatever the others are."""
        self._values.own_precision = True
        try:
            return super()._end(member)
        finally:
            self._values.own_precision = False

    def as_shapiq(self, target: ClassLike, /, *, index: int = 0) -> ShapiqGame:
        """Return class ``target`` (number or name) of image ``index`` as a game of the shapiq package."""
        return as_shapiq(self, target, index=index)


class MaskedModel(nn.Module):
    """A model, its players, and how their patches are withheld. Made by ``vitshap.wrap``.

    ``evaluation`` chooses how ``removal="attention"`` is computed: "packed" (the default: withheld tokens cost nothing),
    "full" (every token, fused attention with a mask) or "explicit" (every token, the mask in the scores). All three give
    the same values; the latter two serve for comparison.
    """

    reference: Tensor | None

    def __init__(
        self,
        net: nn.Module,
        adapter: Adapter,
        *,
        players: Players,
        removal: str,
        output: Output,
        preprocess: Any = None,
        class_names: list[str] | None = None,
        reference: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.adapter = adapter
        self.players = players
        self.removal = removal
        self.output: Output = output
        self.preprocess = preprocess
        self.class_names = class_names
        self.register_buffer("reference", reference, persistent=False)  # moves with the network
        self.classifier_fingerprint: str | None = None
        """Fingerprint of the classifier that this model is the surrogate of; ``fit_surrogate`` sets it."""
        self.evaluation: Evaluation = "packed"
        self.max_tokens: int | None = None
        """Tokens computed at once; None: by free memory. It is reduced after an out-of-memory error."""
        self._encode: EncodePacked = encode_packed
        self.training = net.training  # not self.train(): every module keeps its mode

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.adapter.grid

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that the model takes."""
        return self.adapter.image_size

    @property
    def num_players(self) -> int:
        """Number of players of one image."""
        return self.players.num_players

    @property
    def num_classes(self) -> int:
        """Number of outputs of the model."""
        return self.adapter.num_classes

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return net_device_dtype(self.net)[0]

    @property
    def same_null(self) -> bool:
        """Whether v(0), with every player withheld, is the same for all images.

        It is not if some tokens belong to no player and are always kept, if withheld tokens still count in the
        softmax's denominator, or if they are replaced by patches of other images.
        """
        return self.removal not in ("softmax", "random") and bool((self.players.labels >= 0).all())

    @property
    def unit(self) -> Literal["probability", "output"]:
        """Unit of the values of coalitions."""
        return "output" if self.output == "identity" else "probability"

    def forward(
        self, images: Images, coalitions: Coalitions | None = None, /, *, players: PlayersLike | None = None
    ) -> Tensor:
        """Return probabilities (or outputs): ``[B, K]`` of whole images, ``[B, S, K]`` of coalitions bool ``[B, S, d]``."""
        return self.link(self.logits(images, coalitions, players=players))

    def logits(
        self,
        images: Images,
        coalitions: Coalitions | None = None,
        /,
        *,
        players: PlayersLike | None = None,
        finite: bool = True,
    ) -> Tensor:
        """Return the logits, before the link function; ``finite=False`` as in ``prepare``."""
        pixels = self.prepare(images, finite=finite).pixels
        if coalitions is None:
            with fast_linear(pixels.device):
                return self.adapter.predict(pixels)
        who = self._players(players, len(pixels))
        check_coalitions(coalitions, who.num_players)
        if coalitions.ndim != 3 or coalitions.shape[0] != len(pixels):
            raise ValueError(
                f"coalitions must be [B, S, d] with B = {len(pixels)} and d = {who.num_players}, "
                f"got {list(coalitions.shape)}"
            )
        with self.adapter.ready():
            return self.run_session(self.open_session(pixels), coalitions, who)

    def link(self, logits: Tensor) -> Tensor:
        """From logits to the values that are explained, in float32."""
        return apply_link(logits.float(), self.output)

    def game(
        self, images: Images, /, *, players: PlayersLike | None = None, precision: Precision | None = None
    ) -> ImageGame:
        """Return the game of these images: in evaluation mode, without gradients, with patches embedded once.

        ``precision`` evaluates coalitions in another precision than the model's own ("auto": half on a GPU); values are
        always float32, and the empty and the full coalition are evaluated in the model's own precision.
        """
        prepared = self.prepare(images)
        return ImageGame(self, prepared, self._players(players, len(prepared.pixels)), precision)

    def with_removal(self, removal: str) -> MaskedModel:
        """Return a model of the same network whose patches are withheld in another way."""
        if removal not in sessions.REMOVALS:
            raise ValueError(f'no removal is named "{removal}"{did_you_mean(removal, sessions.REMOVALS)}')
        if removal == self.removal:
            return self
        return MaskedModel(
            self.net,
            self.adapter,
            players=self.players,
            removal=removal,
            output=self.output,
            preprocess=self.preprocess,
            class_names=self.class_names,
            reference=self.reference,
        )

    def prepare(self, images: Images, /, *, finite: bool = True) -> Prepared:
        """Return the model's input: tensors are checked and never altered, PIL images and paths are preprocessed.

        So are uint8 arrays ``[H, W, 3]``; float arrays are the model's input, ``[3, H, W]`` or ``[B, 3, H, W]``. A single
        image may lack the batch dimension. ``finite=False`` skips ``check_finite``, which synchronises with a GPU.
        """
        if isinstance(images, np.ndarray) and not is_photo(images):
            images = from_array(images, self.adapter.channels, self.image_size)
            if isinstance(images, Tensor):
                images = images.to(*net_device_dtype(self.net))
        if isinstance(images, Tensor):
            if list(images.shape) == [self.adapter.channels, *self.image_size]:
                images = images[None]
            self._check_pixels(images)
            if finite:
                check_finite(images)
            return Prepared(images, None)
        if not is_photo(images):
            raise TypeError(
                f"images are a tensor or an array, or PIL images or paths, one or a list; got {_kinds(images)}"
            )
        if self.preprocess is None:
            raise ValueError(
                "this model does not define its preprocessing: give wrap(..., preprocess=...) a function from a PIL image "
                "to a tensor, a transformers image processor, or a vitshap.models.Preprocess"
            )
        sources = list(images) if isinstance(images, Sequence) and not isinstance(images, str) else [images]
        rows, boxes = [], []
        for source in sources:
            with open_image(source) as photo:  # one file at a time
                rows.append(self.preprocess(photo))
                if isinstance(self.preprocess, Preprocess):
                    boxes.append(self.preprocess.box(photo))
        pixels = torch.stack(rows).to(*net_device_dtype(self.net))
        self._check_pixels(pixels)
        check_finite(pixels)
        return Prepared(pixels, torch.tensor(boxes) if boxes else None)

    def fingerprint(self) -> str:
        """Return the SHA-256 of weights and buffers with names and types, which reference values and bundles refer to."""
        return fingerprint(unwrapped(self.net).state_dict())  # wrappers rename weights

    def evaluation_cost(self) -> Tensor:
        """Return the approximate cost of coalitions by size in tokens (1 if all cost the same), float64 ``[d + 1]``."""
        size = torch.arange(self.num_players + 1, dtype=torch.float64)
        if self.removal != "attention" or self.evaluation != "packed":
            return torch.ones_like(size)
        patches = self.grid[0] * self.grid[1]
        return size * patches / self.num_players + self.adapter.prefix + PER_COALITION

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the packed evaluation (``torch.compile``), for many evaluations on a GPU."""
        options.setdefault("dynamic", True)
        self._encode = torch.compile(encode_packed, *args, **options)

    def open_session(self, pixels: Tensor) -> sessions.Session:
        """Compute once per image what does not depend on the coalition."""
        if self.removal == "attention" and self.evaluation == "packed":
            return sessions.AttentionSession(self.adapter, pixels, self._encode)
        return self._every_token(pixels)

    def full_length_logits(self, pixels: Tensor, keep: Tensor) -> Tensor:
        """Return logits ``[B, S, K]`` of the patches ``keep``, bool ``[B, S, N]``, computing every token at once.

        No shape depends on ``keep``, so that it can be compiled. The images are not checked, and the caller has entered
        ``adapter.ready()``.
        """
        return self._every_token(pixels).run_each(keep)

    def _every_token(self, pixels: Tensor) -> sessions.FullLengthSession | sessions.PixelsSession:
        return sessions.every_token(
            self.removal, self.adapter, pixels, reference=self.reference, explicit=self.evaluation == "explicit"
        )

    def run_session(self, session: sessions.Session, coalitions: Coalitions, players: Players) -> Tensor:
        """Return logits ``[B, S, K]``, computed in chunks that fit into memory."""
        budget = self.max_tokens or token_budget(session.bytes_per_token, coalitions.device)
        with fast_linear(coalitions.device):
            return evaluate_rows(session, coalitions, players, budget, self._shrink)

    def _shrink(self, budget: int) -> None:
        self.max_tokens = budget

    def _players(self, players: PlayersLike | None, batch: int) -> Players:
        who = self.players if players is None else resolve(players, self.grid)
        if who.per_image and who.labels.shape[0] != batch:
            raise ValueError(f"players are given for {who.labels.shape[0]} images, but there are {batch}")
        return who

    def _check_pixels(self, pixels: Tensor) -> None:
        expected = [self.adapter.channels, *self.image_size]
        if pixels.ndim != 4 or list(pixels.shape[1:]) != expected or len(pixels) == 0:
            raise ValueError(
                f"images must be [B, {', '.join(map(str, expected))}], at least one; got {list(pixels.shape)}"
            )


def check_finite(pixels: Tensor) -> None:
    """Raise ``ValueError`` for NaN and infinity, which would otherwise spread over the whole image."""
    if not bool(torch.isfinite(pixels).all()):
        raise ValueError("images contain pixels that are not finite (NaN or infinity)")


def _kinds(images: object) -> str:
    if not isinstance(images, list | tuple):
        return type(images).__name__
    kinds = sorted({type(image).__name__ for image in images if not is_photo(image)})
    return f"a {type(images).__name__} of {', '.join(kinds)}" if kinds else f"an empty {type(images).__name__}"
