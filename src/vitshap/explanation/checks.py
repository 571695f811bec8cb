"""What must be true of an explanation, checked when it is made, and what its words mean."""

from __future__ import annotations

import math
from numbers import Integral
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard, get_args

import torch
from torch import Tensor

from vitshap.game import ClassLike
from vitshap.players import Players

if TYPE_CHECKING:
    from vitshap.explanation.result import Explanation

Unit: TypeAlias = Literal["probability", "logit", "output", "score"]
PredictionBy: TypeAlias = Literal["surrogate", "classifier"]

TENSORS: dict[str, tuple[torch.dtype, tuple[str, ...]]] = {
    "values": (torch.float32, ("B", "d", "T")),
    "classes": (torch.int64, ("B", "T")),
    "prediction": (torch.float32, ("B", "K")),
    "base_values": (torch.float32, ("B", "T")),
    "full_values": (torch.float32, ("B", "T")),
    "stderr": (torch.float32, ("B", "d", "T")),
    "player_mask": (torch.bool, ("B", "d")),
    "image_box": (torch.float32, ("B", "4")),
    "converged": (torch.bool, ("B",)),
}
OPTIONAL = ("base_values", "full_values", "stderr", "player_mask", "image_box", "converged")


def check(e: Explanation) -> None:
    """Raise unless all fields fit together and what they claim holds."""
    _check_plain_fields(e)
    _check_tensors(e)
    _check_classes(e)
    _check_players(e)
    _check_claims(e)


def is_one_class(target: object) -> TypeGuard[ClassLike]:
    """Whether this is a number or a name, not several."""
    return isinstance(target, Integral | str) or (isinstance(target, Tensor) and target.ndim == 0)


def _check_plain_fields(e: Explanation) -> None:
    for name, allowed in (("unit", get_args(Unit)), ("prediction_by", get_args(PredictionBy))):
        if getattr(e, name) not in allowed:
            raise ValueError(f"{name} is one of {', '.join(allowed)}; got {getattr(e, name)!r}")
    for name, kind in (("additive", bool), ("class_specific", bool), ("method", str), ("evaluations", int)):
        if type(getattr(e, name)) is not kind:
            raise ValueError(f"{name} must be {kind.__name__}, got {getattr(e, name)!r}")
    if not isinstance(e.seconds, float) or not 0 <= e.seconds < math.inf:
        raise ValueError(f"seconds must be a float, not negative; got {e.seconds!r}")
    names = e.class_names
    if names is not None and not (isinstance(names, tuple) and all(isinstance(n, str) for n in names)):
        raise ValueError(f"class_names must be a tuple of strings, got {type(names).__name__}")


def _check_tensors(e: Explanation) -> None:
    sizes: dict[str, int] = {"4": 4}
    for name, (dtype, axes) in TENSORS.items():
        tensor = getattr(e, name)
        if tensor is None and name in OPTIONAL:
            continue
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.device.type != "cpu" or tensor.requires_grad:
            raise ValueError(f"{name} must be a detached tensor on the CPU, this one is on {tensor.device}")
        if tensor.dtype != dtype:
            raise ValueError(f"{name} must be {dtype}, got {tensor.dtype}")
        expected = [sizes.get(axis) for axis in axes]
        if tensor.ndim != len(axes) or any(b not in (None, a) for a, b in zip(tensor.shape, expected, strict=True)):
            known = ", ".join(f"{axis} = {sizes[axis]}" for axis in axes if axis in sizes)
            raise ValueError(f"{name} must be [{', '.join(axes)}] with {known}, got {list(tensor.shape)}")
        sizes.update(zip(axes, tensor.shape, strict=True))
    if 0 in sizes.values():
        raise ValueError(f"an explanation has at least one image, player and class, got {sizes}")


def _check_classes(e: Explanation) -> None:
    count = e.prediction.shape[1]
    if not 0 <= int(e.classes.min()) <= int(e.classes.max()) < count:
        raise ValueError(f"classes must be 0 to {count - 1} as in prediction, got {e.classes.tolist()[:4]}")
    if e.class_names is not None and len(e.class_names) != count:
        raise ValueError(f"{len(e.class_names)} class names for {count} classes")


def _check_players(e: Explanation) -> None:
    images, d, _ = e.values.shape
    labels = e.players
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.device.type != "cpu":
        raise ValueError("players must be an int64 tensor on the CPU")
    if labels.ndim < 2 or labels.numel() == 0 or labels.shape[0] not in (1, images):
        raise ValueError(f"players is a label map [{images} or 1, *grid], got {list(labels.shape)}")
    if not -1 <= int(labels.min()) <= int(labels.max()) < d:
        raise ValueError(f"players holds labels -1 to {d - 1}, as there are {d} players")
    mask = torch.ones(images, d, dtype=torch.bool) if e.player_mask is None else e.player_mask
    nowhere = (mask & ~Players(labels, d).player_mask).nonzero()
    if len(nowhere):
        image, player = nowhere[0].tolist()
        raise ValueError(f"player {player} has no token in image {image}: player_mask must leave it out")
    if bool(e.values.masked_fill(mask[..., None], 0).any()):
        raise ValueError("values must be 0 for the players that player_mask leaves out")


def _check_claims(e: Explanation) -> None:
    for name in ("base_values", "full_values"):
        if (getattr(e, name) is not None) != e.additive:
            raise ValueError(f"{name} is given exactly when additive is True; additive is {e.additive}")
    for name in ("values", "base_values", "full_values", "prediction"):
        tensor = getattr(e, name)
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} has entries that are not finite (NaN or infinity)")
    if not e.class_specific and not torch.equal(e.values, e.values[..., :1].expand_as(e.values)):
        raise ValueError("class_specific is False, but the values differ between classes")
    if e.base_values is not None and e.full_values is not None:
        gap = e.efficiency_gap().abs()
        size = e.values.abs().double().sum(1) + e.base_values.abs() + e.full_values.abs()
        if bool((gap > 1e-4 * size + 1e-7).any()):  # far above float32 rounding, far below a wrong formula
            raise ValueError(f"additive is True, but values miss full - base by up to {float(gap.max()):.3g}")
