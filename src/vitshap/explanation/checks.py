"""Consistency checks of an explanation, which run when it is made."""

from __future__ import annotations

from collections.abc import Sequence
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
    "evaluations_each": (torch.int64, ("B",)),
}
OPTIONAL = ("base_values", "full_values", "stderr", "player_mask", "image_box", "converged", "evaluations_each")
FINITE = ("values", "base_values", "full_values", "prediction")


def check(e: Explanation) -> None:
    """Raise ``ValueError`` unless the fields are consistent and additive values add up."""
    for name, allowed in (("unit", get_args(Unit)), ("prediction_by", get_args(PredictionBy))):
        if getattr(e, name) not in allowed:
            raise ValueError(f"{name} is one of {', '.join(allowed)}; got {getattr(e, name)!r}")
    sizes = {"4": 4}
    for name, (dtype, axes) in TENSORS.items():
        tensor = getattr(e, name)
        if tensor is not None or name not in OPTIONAL:
            _check_tensor(name, tensor, dtype, axes, sizes)
    if e.originals is not None and len(e.originals) != len(e):
        raise ValueError(f"originals are one photo per image: {len(e)} images, {len(e.originals)} photos")
    _check_classes(e)
    _check_players(e)
    _check_additive(e)


def is_one_class(target: object) -> TypeGuard[ClassLike]:
    """Return whether this is one class, by number or name."""
    return isinstance(target, Integral | str) or (isinstance(target, Tensor) and target.ndim == 0)


def _check_tensor(name: str, tensor: object, dtype: torch.dtype, axes: Sequence[str], sizes: dict[str, int]) -> None:
    """Compare a tensor with the ``sizes`` of the axes known so far, and add its own to them."""
    given = type(tensor).__name__
    if isinstance(tensor, Tensor):
        fits = tensor.ndim == len(axes) and all(
            sizes.get(a, n) == n > 0 for a, n in zip(axes, tensor.shape, strict=True)
        )
        plain = tensor.dtype == dtype and tensor.device.type == "cpu" and not tensor.requires_grad
        if fits and plain and (name not in FINITE or bool(torch.isfinite(tensor).all())):
            sizes.update(zip(axes, tensor.shape, strict=True))
            return
        given = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}, requires_grad {tensor.requires_grad}"
        given += ", not finite (NaN or infinity)" * bool(name in FINITE and not torch.isfinite(tensor).all())
    known = "".join(f", {axis} = {sizes[axis]}" for axis in axes if axis in sizes)
    kind = f"{'finite ' * (name in FINITE)}{dtype} [{', '.join(axes)}]"
    raise ValueError(f"{name} must be {kind}, not empty, detached and on the CPU{known}; got {given}")


def _check_classes(e: Explanation) -> None:
    count, names = e.prediction.shape[1], e.class_names
    if int(e.classes.min()) < 0 or int(e.classes.max()) >= count or (names is not None and len(names) != count):
        given = f"{e.classes.tolist()[:4]}" if names is None else f"{e.classes.tolist()[:4]} and {len(names)} names"
        raise ValueError(f"classes must be 0 to {count - 1} as in prediction, class_names one for each; got {given}")


def _check_players(e: Explanation) -> None:
    images, d, _ = e.values.shape
    labels = e.players
    mask = torch.ones(images, d, dtype=torch.bool) if e.player_mask is None else e.player_mask
    shaped = labels.dtype == torch.int64 and labels.ndim >= 2 and labels.numel() > 0 and len(labels) in (1, images)
    if shaped and -1 <= int(labels.min()) <= int(labels.max()) < d:
        nowhere = (mask & ~Players(labels, d).player_mask).nonzero().tolist()
        given = f"no token of player {nowhere[0][1]} in image {nowhere[0][0]}" if nowhere else None
    else:
        given = f"{labels.dtype} {list(labels.shape)}"
    if given is not None:
        kind = f"int64 label map [{images} or 1, *grid] with labels -1 to {d - 1}"
        raise ValueError(
            f"players must be an {kind}, and player_mask must exclude players without a token; got {given}"
        )


def _check_additive(e: Explanation) -> None:
    if {e.base_values is None, e.full_values is None} != {not e.additive}:
        raise ValueError(f"base_values and full_values are given exactly when additive is True; it is {e.additive}")
    if e.base_values is not None and e.full_values is not None:
        gap = e.efficiency_gap().abs()
        size = e.values.abs().double().sum(1) + e.base_values.abs() + e.full_values.abs()
        if bool((gap > 1e-4 * size + 1e-7).any()):  # far above float32 rounding, far below a wrong formula
            raise ValueError(f"additive is True, but values miss full - base by up to {float(gap.max()):.3g}")
