"""What all methods share: the base classes, and how an ``Explanation`` is made from computed values.

A method made for a model is called ``m(images, target=None)`` and returns an ``Explanation``. Reading the target, timing,
counting evaluations and assembling the result are done here, once; a subclass only computes values:

- ``Method``: from a game, in ``compute(game, pixels, targets)``
- ``SamplingMethod``: the same, with a budget of evaluations
- ``TokenMethod``: from the network itself, in ``score_tokens(pixels, targets)``
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from vitshap.explanation import CaptumTarget, Explanation, InputShaped, PredictionBy, Unit
from vitshap.game import Game
from vitshap.methods.targets import Target, fixed_target, resolve_target
from vitshap.models.base import Adapter, apply_link, evaluating, within_memory
from vitshap.models.masked import MaskedModel
from vitshap.models.precision import Precision
from vitshap.players import Players, PlayersLike


class PreparedImages(Protocol):
    """Images as the model takes them, and the box that each of them covers in its original."""

    @property
    def pixels(self) -> Tensor: ...  # [B, C, H, W]
    @property
    def boxes(self) -> Tensor | None: ...  # float [B, 4]


class ExplainableModel(Protocol):
    """What a method needs of a model; a wrapped network (``MaskedModel``) has it. Its games have ``players``."""

    @property
    def adapter(self) -> Adapter: ...  # the network's modules: for methods that read its tokens or attention
    @property
    def class_names(self) -> Sequence[str] | None: ...
    @property
    def classifier_fingerprint(self) -> str | None: ...  # of the classifier that a surrogate approximates
    @property
    def num_classes(self) -> int: ...
    @property
    def unit(self) -> Literal["probability", "output"]: ...
    @property
    def output(self) -> str: ...  # "softmax", "sigmoid" or "identity"
    def prepare(self, images: Any, /) -> PreparedImages: ...
    def game(self, images: Any, /, *, players: PlayersLike | None = None) -> Game: ...
    def with_removal(self, removal: str, /) -> ExplainableModel: ...


class MethodLike(Protocol):
    """What ``vitshap.method`` returns: a ``Method``, or an ``Explainer``."""

    name: ClassVar[str]
    samples: ClassVar[bool]
    """Whether it is a ``SamplingMethod``: its accuracy depends on a budget of evaluations."""

    def __call__(self, images: Any, /, target: Target = None) -> Explanation: ...
    def attribute(self, inputs: Tensor, target: CaptumTarget = None) -> Tensor: ...


class Attribution(NamedTuple):
    """What a method computes: ``values`` and, where available, their standard errors ``stderr``, ``[B, d, T]`` each."""

    values: Tensor
    stderr: Tensor | None = None
    converged: Tensor | None = None
    """Whether the requested accuracy was reached, bool ``[B]``; None if none was requested."""
    prediction: Tensor | None = None
    """The model's outputs for the whole images, ``[B, K]``, if the method has computed them; else the game's are used."""
    evaluations: Tensor | None = None
    """Coalitions evaluated for each image, int64 ``[B]``, if they differ between images."""
    posterior: bool = False
    """Whether ``values`` are the mean of a posterior and ``stderr`` its standard deviation."""


class TokenScores(NamedTuple):
    """What a method that reads the network may return: scores of patch tokens, and the logits that it has computed."""

    scores: Tensor
    """``[B, N, T]``."""
    logits: Tensor
    """Of the whole images, ``[B, K]``; the network need not be run again for its prediction."""


@dataclass(frozen=True, eq=False)
class Method(InputShaped, ABC):
    """A method made for a model. Subclasses are frozen dataclasses whose fields are the method's options."""

    model: ExplainableModel
    _: KW_ONLY
    players: PlayersLike | None = None
    """Patches, blocks or groups of patches; None: as chosen in ``vitshap.wrap``."""
    prediction_by: PredictionBy | None = None
    """Whether the model is a classifier or a surrogate; None: a surrogate if it has a ``classifier_fingerprint``."""

    name: ClassVar[str]
    samples: ClassVar[bool] = False
    additive: ClassVar[bool] = False
    """Whether the values of an image add up to v(all players) - v(no player)."""
    unit: ClassVar[Unit | None] = None
    """None: the unit of the model's output."""
    class_specific: ClassVar[bool] = True
    """False if the values are the same for every class."""

    def __post_init__(self) -> None:
        """Raise ``TypeError`` if the model is not wrapped."""
        if hasattr(self.model, "game") and hasattr(self.model, "prepare"):
            return
        advice = "give explainer.surrogate" if hasattr(self.model, "surrogate") else "wrap it first, vitshap.wrap(net)"
        raise TypeError(f"{self.name} needs a wrapped network, got {type(self.model).__name__}: {advice}")

    @property
    def forward_func(self) -> ExplainableModel:
        """The model, under the name that captum uses."""
        return self.model

    def game(self, pixels: Tensor, /) -> Game:
        """Return the game of prepared images."""
        return self.model.game(pixels, players=self.players)

    @abstractmethod
    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Compute the values of the game's players for ``targets`` (classes, int64 ``[B, T]`` on the game's device)."""

    def __call__(self, images: Any, /, target: Target = None) -> Explanation:
        """Explain images: a tensor as the model takes it, PIL images or paths.

        ``seconds`` in the result is the time from prepared images to values, without reading files.
        """
        prepared = self.model.prepare(images)
        start = _now(prepared.pixels.device)
        game = self.game(prepared.pixels)
        names = self.model.class_names
        targets = fixed_target(target, len(prepared.pixels), game.num_outputs, names, game.device)
        if targets is None:
            targets = resolve_target(target, game.grand, names)
        attribution = self.compute(game, prepared.pixels, targets)
        if self.additive:
            _ = game.null  # base_values are part of the result: their time counts
        return explain_game(
            game,
            attribution,
            targets,
            method=self.name,
            additive=self.additive,
            unit=self.model.unit if self.unit is None else self.unit,
            class_specific=self.class_specific,
            prediction_by=self.prediction_by or _kind(self.model),
            class_names=self.model.class_names,
            boxes=prepared.boxes,
            seconds=(_now(prepared.pixels.device) - start) / game.batch_size,
        )


@dataclass(frozen=True, eq=False)
class SamplingMethod(Method):
    """A method whose accuracy grows with the number of coalitions that it evaluates."""

    budget: int = 4096
    """Evaluations per image, the empty and the full coalition included; never exceeded."""
    seed: int = 0
    progress: Callable[[Any], object] | None = None
    """Called with every partial estimate; see ``vitshap.estimators.estimate.progress_bar``."""

    samples: ClassVar[bool] = True

    def with_budget(self, budget: int, /) -> Self:
        """Return the same method with this many evaluations per image."""
        return replace(self, budget=budget)

    def with_progress(self, progress: Callable[[Any], object], /) -> Self:
        """Return the same method calling ``progress`` with every partial estimate."""
        return replace(self, progress=progress)


IMAGES_ON_CPU = 4
"""Images whose graphs are in memory at once on a CPU; more are slower there, and take gigabytes."""


@dataclass(frozen=True, eq=False)
class TokenMethod(Method):
    """A method that scores the tokens of the network's grid; the score of a player is the sum over its tokens.

    ``self.model.adapter`` gives access to the network: its blocks, its tokens, the number of tokens before the patches.
    """

    unit: ClassVar[Unit | None] = "score"

    @abstractmethod
    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor | TokenScores:
        """Return a score of every patch token for ``targets`` (classes, int64 ``[B, T]``): ``[B, N, T]``.

        The network is in evaluation mode, and its attention can be overridden (``vitshap.models.attention``). Gradients
        are recorded unless the method turns them off.
        """

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Sum the token scores into players; the game is not evaluated."""
        adapter = self.model.adapter
        at_once = IMAGES_ON_CPU if pixels.device.type == "cpu" else len(pixels)

        def scored(rows: Tensor) -> tuple[Tensor, ...]:
            found = self.score_tokens(pixels[rows], targets[rows])
            scores, logits = found if isinstance(found, TokenScores) else (found, None)
            return (scores.detach(),) if logits is None else (scores.detach(), logits.detach().float())

        with evaluating(adapter.net), adapter.ready():
            (scores, *logits), _ = within_memory(scored, torch.arange(len(pixels)), at_once)
        prediction = apply_link(logits[0], self.model.output) if logits else None
        return Attribution(players_of(game).sum_tokens(scores), prediction=prediction)


def _kind(model: ExplainableModel) -> PredictionBy:
    return "classifier" if model.classifier_fingerprint is None else "surrogate"


def explain_game(
    game: Game,
    attribution: Attribution,
    targets: Tensor,
    /,
    *,
    method: str,
    additive: bool,
    unit: Unit,
    seconds: float,
    class_specific: bool = True,
    prediction_by: PredictionBy = "classifier",
    class_names: Sequence[str] | None = None,
    boxes: Tensor | None = None,
) -> Explanation:
    """Assemble the explanation from a game and the values computed for ``targets`` (int64 ``[B, T]``).

    Values of players that are absent from an image are set to 0.
    """
    players = players_of(game)
    mask = players.player_mask.expand(game.batch_size, -1).cpu()
    absent = ~mask[..., None]
    stderr, spent = attribution.stderr, attribution.evaluations
    targets = targets.cpu()
    return Explanation(
        values=_result(attribution.values).masked_fill(absent, 0),
        stderr=None if stderr is None else _result(stderr).masked_fill(absent, 0),
        converged=None if attribution.converged is None else attribution.converged.cpu(),
        classes=targets,
        additive=additive,
        base_values=_result(game.null).gather(1, targets) if additive else None,
        full_values=_result(game.grand).gather(1, targets) if additive else None,
        unit=unit,
        prediction=_result(game.grand if attribution.prediction is None else attribution.prediction),
        prediction_by=prediction_by,
        players=players.labels.cpu(),
        player_mask=None if bool(mask.all()) else mask,
        image_box=None if boxes is None else _result(boxes),
        method=method,
        seconds=seconds,
        # at least the prediction, also where it is the method's own
        evaluations=max(1, game.evaluations) if spent is None else -(-int(spent.sum()) // len(spent)),
        evaluations_each=None if spent is None else spent.cpu(),
        posterior=attribution.posterior,
        class_names=None if class_names is None else tuple(class_names),
        class_specific=class_specific,
    )


def game_in(model: ExplainableModel, pixels: Tensor, players: PlayersLike | None, precision: Precision) -> Game:
    """Return the game of prepared images, evaluated in this precision."""
    if isinstance(model, MaskedModel):
        return model.game(pixels, players=players, precision=precision)
    if precision != "auto":
        raise TypeError(f"precision= needs a model made by vitshap.wrap, got {type(model).__name__}")
    return model.game(pixels, players=players)


def players_of(game: Game) -> Players:
    """Return the players of a game of images."""
    if game.players is None:
        raise TypeError("the game of an explainable model needs an attribute players, a vitshap.players.Players")
    return game.players


def take_classes(values: Tensor, targets: Tensor) -> Tensor:
    """Select the values ``[B, d, T]`` of ``targets`` (int64 ``[B, T]``) from those of all classes, ``[B, d, K]``."""
    return values.gather(2, targets[:, None, :].expand(-1, values.shape[1], -1))


def image_generators(pixels: Tensor, seed: int) -> list[torch.Generator]:
    """Return a CPU random generator per image, seeded with its pixels and ``seed``.

    An image gets the same random numbers in any batch and order; different images get independent ones.
    """
    key = str(int(seed)).encode()
    bytes_of = (image.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() for image in pixels)
    digests = (hashlib.blake2b(raw, digest_size=7, key=key).digest() for raw in bytes_of)
    return [torch.Generator().manual_seed(int.from_bytes(digest, "big")) for digest in digests]


def _result(tensor: Tensor) -> Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float32)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
