"""The registry of methods, and what all of them share.

A method is looked up by name and loaded only then, so that this file knows none of them: each later part adds
a file and a line to the table. A method made from a model is called ``m(images, target=None)`` and returns an
``Explanation``. What is the same for all of them (reading the target, timing, counting, assembling the
result) is done once, here; a method itself only says how values come out of a game.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, cast

import torch
from torch import Tensor

from vitshap.errors import did_you_mean
from vitshap.explanation import CaptumTarget, ClassLike, Explanation, InputShaped, PredictionBy, Unit, class_index
from vitshap.game import Game
from vitshap.players import Players, PlayersLike

Target: TypeAlias = ClassLike | Sequence[ClassLike] | Tensor | Callable[[Tensor], Tensor] | None
"""A class, a list of classes for every image, a tensor ``[B]`` (one class per image) or ``[B, T]``,
``"predicted"``, a function from predictions ``[B, K]`` to such a tensor, or None for all classes."""

_TABLE = {
    "exact": "vitshap.estimators.as_methods:Exact",
    "kernelshap": "vitshap.estimators.as_methods:KernelShap",
    "kernelshap-original": "vitshap.estimators.as_methods:KernelShapOriginal",
    "permutation": "vitshap.estimators.as_methods:Permutation",
    "leave-one-out": "vitshap.baselines.occlusion:LeaveOneOut",
    "random": "vitshap.baselines.chance:Random",
}

NUMBERS_AT_ONCE = 2**24
"""Bound on the numbers that a chunk of coalitions and its values hold; 64 MiB in float32."""


class PreparedImages(Protocol):
    """Images as the net takes them, and where they lie in the originals."""

    @property
    def pixels(self) -> Tensor: ...  # [B, C, H, W]
    @property
    def boxes(self) -> Tensor | None: ...  # float [B, 4]


class ExplainableModel(Protocol):
    """What a method asks of a model; a wrapped net is one. Its games have an attribute ``players``."""

    @property
    def class_names(self) -> Sequence[str] | None: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def unit(self) -> Literal["probability", "output"]: ...
    def prepare(self, images: Any, /) -> PreparedImages: ...
    def game(self, images: Any, /, *, players: PlayersLike | None = None) -> Game: ...


class Explains(Protocol):
    """What a registered method gives for a model: every ``Method`` does."""

    def __call__(self, images: Any, /, target: Target = None) -> Explanation: ...
    def attribute(self, inputs: Tensor, target: CaptumTarget = None) -> Tensor: ...


class Attribution(NamedTuple):
    """What a method computes: ``values`` (and ``stderr``, if it knows it) ``[B, d, T]``."""

    values: Tensor
    stderr: Tensor | None = None
    converged: Tensor | None = None
    """Whether the asked accuracy was reached, bool ``[B]``; None where none was asked for."""


@dataclass(frozen=True, eq=False)
class Method(InputShaped, ABC):
    """A method made for a model. Subclasses are frozen dataclasses whose fields are the method's options."""

    model: ExplainableModel
    _: KW_ONLY
    players: PlayersLike | None = None
    """Who plays; None: as the model was wrapped."""
    prediction_by: PredictionBy | None = None
    """What kind of net the model is; None: a surrogate if it says that it stands for a classifier."""

    name: ClassVar[str]
    additive: ClassVar[bool] = False
    unit: ClassVar[Unit | None] = None
    """None: the unit of the model's output."""
    class_specific: ClassVar[bool] = True

    @property
    def forward_func(self) -> ExplainableModel:
        """The model, as captum asks for it."""
        return self.model

    def game(self, pixels: Tensor, /) -> Game:
        """The game that is asked about prepared images."""
        return self.model.game(pixels, players=self.players)

    @abstractmethod
    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Values of the game's players for ``targets`` (classes, int64 ``[B, T]`` on the game's device)."""

    def __call__(self, images: Any, /, target: Target = None) -> Explanation:
        """Explain images: a tensor as the net takes it, or PIL images or paths.

        ``seconds`` run from prepared images to values: reading files is no part of a method.
        """
        prepared = self.model.prepare(images)
        start = _now(prepared.pixels.device)
        game = self.game(prepared.pixels)
        targets = resolve_target(target, game.grand, self.model.class_names)
        attribution = self.compute(game, prepared.pixels, targets)
        if self.additive:
            _ = game.null  # base_values are part of the answer: their time counts
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


def methods() -> list[str]:
    """Names that ``method`` knows."""
    return list(_TABLE)


def method(name: str, model: ExplainableModel, /, **options: Any) -> Explains:
    """The method of this name for this model; call it with images. Unknown options are a ``TypeError``."""
    if name not in _TABLE:
        raise ValueError(f'no method is named "{name}"{did_you_mean(name, methods())}')
    if not (hasattr(model, "game") and hasattr(model, "prepare")):
        given = type(model).__name__
        if hasattr(model, "surrogate"):
            raise TypeError(f"{name} asks a wrapped net, not an explainer ({given}): give explainer.surrogate")
        raise TypeError(f"{name} asks a wrapped net, got {given}: wrap it first, vitshap.wrap(net)")
    module, _, attribute = _TABLE[name].partition(":")
    factory = getattr(importlib.import_module(module), attribute)
    known = list(inspect.signature(factory).parameters)[1:]  # the first is the model
    for option in options:
        if option not in known:
            raise TypeError(f'{name} has no option "{option}"{did_you_mean(option, known)}')
    return cast(Explains, factory(model, **options))


def register(name: str, location: str, /) -> None:
    """Add a method: ``location`` is ``"module:attribute"``, called as ``attribute(model, **options)``."""
    module, separator, attribute = location.partition(":")
    if not (module and separator and attribute):
        raise ValueError(f'a method\'s location is "module:attribute", got "{location}"')
    if _TABLE.get(name, location) != location:
        raise ValueError(f'the name "{name}" is taken by {_TABLE[name]}')
    _TABLE[name] = location


def _kind(model: ExplainableModel) -> PredictionBy:
    return "classifier" if getattr(model, "classifier_fingerprint", None) is None else "surrogate"


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
    """The explanation made of a game and of the values computed for ``targets`` (int64 ``[B, T]``).

    Values of players that an image lacks are set to 0.
    """
    players = getattr(game, "players", None)
    if not isinstance(players, Players):
        raise TypeError("the game must say who plays: it needs an attribute players, of vitshap.players.Players")
    mask = players.player_mask.expand(game.batch_size, -1).cpu()
    absent = ~mask[..., None]
    stderr = attribution.stderr
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
        prediction=_result(game.grand),
        prediction_by=prediction_by,
        players=players.labels.cpu(),
        player_mask=None if bool(mask.all()) else mask,
        image_box=None if boxes is None else _result(boxes),
        method=method,
        seconds=seconds,
        evaluations=game.evaluations,
        class_names=None if class_names is None else tuple(class_names),
        class_specific=class_specific,
    )


def resolve_target(target: Target, prediction: Tensor, class_names: Sequence[str] | None) -> Tensor:
    """Turn what the user wrote into classes, int64 ``[B, T]``; ``prediction`` is ``[B, K]``."""
    images, num_classes = prediction.shape
    if callable(target):
        target = target(prediction)
    if target is None:
        return torch.arange(num_classes, device=prediction.device).expand(images, -1).contiguous()
    if isinstance(target, str) and target == "predicted":
        return prediction.argmax(1, keepdim=True)
    if isinstance(target, Tensor) and target.ndim > 0:
        return _target_tensor(target, images, num_classes).to(prediction.device)
    if isinstance(target, Tensor):
        target = target.item()  # type: ignore[assignment]
    if isinstance(target, Integral | str):
        listed: Sequence[ClassLike] = [target]
    elif isinstance(target, list | tuple | range):
        listed = target
    else:
        kinds = 'a class (number or name), a list of them, a tensor, "predicted" or None'
        raise TypeError(f"target is {kinds}; got {target!r}")
    if not listed:
        raise ValueError("target is an empty list: name at least one class, or give None for all")
    classes = [class_index(one, class_names, num_classes) for one in listed]
    return torch.tensor([classes], device=prediction.device).repeat(images, 1)


def take_classes(values: Tensor, targets: Tensor) -> Tensor:
    """Of values for all classes ``[B, d, K]`` those for ``targets`` (int64 ``[B, T]``): ``[B, d, T]``."""
    return values.gather(2, targets[:, None, :].expand(-1, values.shape[1], -1))


def bounded_chunk(game: Game) -> int:
    """How many coalitions of every input to evaluate at once, so that they and their values stay small."""
    return max(1, NUMBERS_AT_ONCE // (game.batch_size * (game.num_players + game.num_outputs)))


def image_generators(pixels: Tensor, seed: int) -> list[torch.Generator]:
    """A CPU random generator per image, from its pixels and ``seed``.

    So chance treats an image alike in any batch and order, and different images independently.
    """
    key = str(int(seed)).encode()
    bytes_of = (image.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() for image in pixels)
    digests = (hashlib.blake2b(raw, digest_size=7, key=key).digest() for raw in bytes_of)
    return [torch.Generator().manual_seed(int.from_bytes(digest, "big")) for digest in digests]


def _target_tensor(target: Tensor, images: int, num_classes: int) -> Tensor:
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(f"a target tensor holds integers, got {target.dtype}")
    classes = target.to(torch.int64)
    if classes.ndim == 1:
        classes = classes[:, None]
    if classes.ndim != 2 or classes.shape[0] != images or classes.numel() == 0:
        raise ValueError(f"a target tensor is [{images}] or [{images}, T], got {list(target.shape)}")
    if not 0 <= int(classes.min()) <= int(classes.max()) < num_classes:
        raise ValueError(f"classes are 0 to {num_classes - 1}, got {classes.flatten().tolist()[:8]}")
    return classes


def _result(tensor: Tensor) -> Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float32)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
