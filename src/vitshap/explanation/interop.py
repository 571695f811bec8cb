"""Explanation methods as captum and Quantus call them. Neither package is imported.

captum asks for attributes and calls only: ``attribute(inputs, target)`` returns a tensor of the inputs' shape. With the
mixin ``InputShaped`` a method can be wrapped by ``captum.attr.NoiseTunnel`` and measured by ``captum.metrics``.

Quantus asks for a function ``(model, inputs, targets) -> np.ndarray``. Some of its metrics call it with a model that they
have changed (its weights randomised, for example) and judge how the explanation changes. A method is made for one model,
so it is made anew for the one that Quantus gives, or an error says that it cannot be.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable
from numbers import Integral
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitshap.explanation.export import pixel_owners, spread
from vitshap.explanation.result import Explanation
from vitshap.models import MaskedModel
from vitshap.models.base import net_device_dtype

CaptumTarget: TypeAlias = "int | str | tuple[int, ...] | list[int] | list[tuple[int, ...]] | Tensor | None"
"""One class for all images (an int, a name, a tuple of one), or one per image (a list or tensor ``[B]``)."""

Inputs = TypeVar("Inputs", Tensor, tuple[Tensor, ...])
P = ParamSpec("P")
R = TypeVar("R")


class _Explains(Protocol):
    def __call__(self, images: Any, /, target: Any = None) -> Explanation: ...


def _unwrappable(function: Callable[P, R]) -> Callable[P, R]:
    """The same function with a ``__wrapped__``: ``NoiseTunnel`` calls that instead, to pass captum's own logging by."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return call


class InputShaped:
    """A mixin for what is called ``explain(images, target)`` and returns an ``Explanation``."""

    @property
    @abstractmethod
    def forward_func(self) -> Any:
        """The net that is explained, from images to outputs ``[B, K]``."""

    @property
    def multiplies_by_inputs(self) -> bool:
        """Values are contributions to the output, not slopes."""
        return True

    def has_convergence_delta(self) -> bool:
        """No ``delta`` is returned: what an additive explanation misses is rounding."""
        return False

    @_unwrappable
    def attribute(self, inputs: Inputs, target: CaptumTarget = None) -> Inputs:
        """A tensor of the inputs' shape, type and device, whose sum over a player's pixels and channels is its value.

        ``inputs`` ``[B, C, H, W]`` as the net takes them, or a tuple of that one tensor (then the result is one, too).
        ``target`` is read as captum reads it: a list holds one class per image. None is the predicted class of each
        image; where images are to be perturbed name the class, as their prediction may change.
        Pixels that belong to no player get 0. No gradient flows.
        """
        if isinstance(inputs, tuple):
            if len(inputs) != 1:
                raise ValueError(f"a vision transformer has one input, images; got a tuple of {len(inputs)}")
            return (_attribute(cast(_Explains, self), inputs[0], target),)
        return _attribute(cast(_Explains, self), inputs, target)


def _attribute(explain: _Explains, images: Tensor, target: CaptumTarget) -> Tensor:
    if not isinstance(images, Tensor):
        raise TypeError(f"inputs are a tensor [B, C, H, W], as the result has their shape; got {type(images).__name__}")
    if images.ndim != 4:
        raise ValueError(f"inputs are [B, C, H, W], as the result has their shape; got {list(images.shape)}")
    images = images.detach()
    explanation = explain(images, target=_one_class(target, len(images)))
    channels, *size = images.shape[1:]
    owners = pixel_owners(explanation.players.to(images.device), size)
    values = spread(explanation.values / channels, owners, dtype=images.dtype)  # [B, 1, H, W]
    return values.expand(-1, channels, -1, -1).contiguous()  # captum flattens with view


def _one_class(target: CaptumTarget, images: int) -> int | str | Tensor:
    """captum's target as ours: there a list is one class per image, here a list is several classes for every image."""
    if target is None:
        return "predicted"
    if isinstance(target, Tensor) and target.numel() == 1:
        return target.reshape(())
    if isinstance(target, tuple):
        return _from_tuple(target)
    if isinstance(target, list):
        classes = [_from_tuple(one) if isinstance(one, tuple) else one for one in target]
        if not all(isinstance(one, Integral) and not isinstance(one, bool) for one in classes):
            raise TypeError(f"a list of targets holds one class number per image, got {target}")
        target = torch.tensor(classes, dtype=torch.int64)
    if isinstance(target, Tensor) and list(target.shape) != [images]:
        raise ValueError(f"one target per image is expected, [{images}]; got {list(target.shape)}")
    return target


def _from_tuple(target: tuple[int, ...]) -> int:
    if len(target) != 1:
        raise ValueError(f"outputs are [B, K], so a tuple has one number, the class; got {target}")
    return target[0]


QuantusFunction: TypeAlias = Callable[..., NDArray[np.floating]]
"""Called as ``explain(model, inputs, targets, **kwargs)``."""

ADDED_BY_QUANTUS = ("device", "method")
"""Keyword arguments that Quantus gives by itself; a method has its device and its name already."""


def quantus_explain_func(explain: InputShaped, /, *, strict: bool = True) -> QuantusFunction:
    """``explain_func`` for Quantus' metrics, from a method or an explainer.

    Give the metric the wrapped model: ``metric(model=model, x_batch=..., y_batch=..., explain_func=...)``. The function
    returns ``[B, 1, H, W]``: every pixel's share of its player's value, channels together.
    With ``strict=False`` a net that the method cannot be made for is ignored and the method's own explained; do this
    for metrics that leave the net as it is.
    """
    if not isinstance(explain, InputShaped):
        raise TypeError(f"a method or an explainer is expected, got {type(explain).__name__}")

    def explain_func(model: Any, inputs: Any, targets: Any, **kwargs: Any) -> NDArray[np.floating]:
        unknown = [name for name in kwargs if name not in ADDED_BY_QUANTUS]
        if unknown:
            raise TypeError(f'no option "{unknown[0]}" here: give it to the method, vitshap.method(name, model, ...)')
        made = _made_for(model, explain, strict)
        values = made.attribute(_pixels(inputs, made), _classes(targets))
        shares: NDArray[np.floating] = values.float().sum(1, keepdim=True).cpu().numpy()
        return shares

    return explain_func


def _made_for(model: Any, explain: InputShaped, strict: bool) -> InputShaped:
    """The method for the net that Quantus gave."""
    own = explain.forward_func
    if model is None or model is own or model is getattr(own, "net", None):
        return explain
    if isinstance(model, MaskedModel) and dataclasses.is_dataclass(explain):
        return cast(InputShaped, dataclasses.replace(explain, model=model))
    if not strict:
        return explain
    raise ValueError(
        f"Quantus gave a {type(model).__name__} that {type(explain).__name__} was not made for, perhaps a randomised copy. "
        "Give the metric the wrapped model (then methods follow it; a trained explainer explains its surrogate alone), "
        "or strict=False to explain the method's own model whatever net is given"
    )


def _pixels(inputs: Any, explain: InputShaped) -> Tensor:
    """Quantus computes in numpy, often in float64: the net gets its own type."""
    net = getattr(explain.forward_func, "net", None)
    device, dtype = (torch.device("cpu"), torch.float32) if net is None else net_device_dtype(net)
    return torch.from_numpy(np.ascontiguousarray(inputs)).to(device, dtype)


def _classes(targets: Any) -> Tensor:
    classes = np.asarray(targets)
    if not np.issubdtype(classes.dtype, np.integer):
        raise TypeError(f"targets are class numbers, got an array of {classes.dtype}")
    return torch.from_numpy(classes.astype(np.int64))
