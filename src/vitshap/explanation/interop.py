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
    """Give the function a ``__wrapped__``, which ``NoiseTunnel`` calls to bypass captum's logging."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return call


class InputShaped:
    """Mixin for callables ``explain(images, target)`` that return an ``Explanation``: adds captum's interface."""

    @property
    @abstractmethod
    def forward_func(self) -> Any:
        """The explained model, from images to outputs ``[B, K]``."""

    @property
    def multiplies_by_inputs(self) -> bool:
        """True: values are contributions to the output, not gradients."""
        return True

    def has_convergence_delta(self) -> bool:
        """Return False: an additive explanation has no error but rounding."""
        return False

    @_unwrappable
    def attribute(self, inputs: Inputs, target: CaptumTarget = None) -> Inputs:
        """Return a tensor of the inputs' shape, type and device; a player's pixels and channels add up to its value.

        ``inputs`` are ``[B, C, H, W]`` as the model takes them, or a tuple of that tensor (the result is then a tuple).
        ``target`` has captum's meaning: a list holds one class per image. None is the predicted class of each image; give
        the class if images are perturbed, because the prediction may change. Pixels of no player get 0. There is no
        gradient.
        """
        if isinstance(inputs, tuple):
            (images,) = inputs
            return (_attribute(cast(_Explains, self), images, target),)
        return _attribute(cast(_Explains, self), inputs, target)


def _attribute(explain: _Explains, images: Tensor, target: CaptumTarget) -> Tensor:
    if not isinstance(images, Tensor) or images.ndim != 4:
        given = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"inputs are a tensor [B, C, H, W], as the result has their shape; got {given}")
    images = images.detach()
    explanation = explain(images, target=_one_class(target, len(images)))
    channels, *size = images.shape[1:]
    owners = pixel_owners(explanation.players.to(images.device), size)
    values = spread(explanation.values / channels, owners, dtype=images.dtype)  # [B, 1, H, W]
    return values.expand(-1, channels, -1, -1).contiguous()  # captum flattens with view


def _one_class(target: CaptumTarget, images: int) -> int | str | Tensor:
    """Convert captum's target, in which a list is one class per image; in vitshap it is several for every image."""
    if target is None:
        return "predicted"
    if isinstance(target, Tensor) and target.numel() == 1:
        return target.reshape(())
    if isinstance(target, tuple):
        (one_class,) = target  # outputs are [B, K]
        return one_class
    if isinstance(target, list):
        target = torch.tensor(target).view(len(target), -1).squeeze(1)
    if isinstance(target, Tensor) and list(target.shape) != [images]:
        raise ValueError(f"one target per image is expected, [{images}]; got {list(target.shape)}")
    return target


QuantusFunction: TypeAlias = Callable[..., NDArray[np.floating]]
"""Called as ``explain(model, inputs, targets, **kwargs)``."""


def quantus_explain_func(explain: InputShaped, /, *, strict: bool = True) -> QuantusFunction:
    """Return an ``explain_func`` for Quantus' metrics, from a method or an explainer.

    Give the metric the wrapped model: ``metric(model=model, x_batch=..., y_batch=..., explain_func=...)``. The function
    returns ``[B, 1, H, W]``: every pixel's share of its player's value, channels together.
    With ``strict=False``, a model that the method cannot be made for is ignored and the method's own is explained; use
    this for metrics that do not change the model.
    """

    def explain_func(
        model: Any, inputs: Any, targets: Any, *, device: object = None, method: object = None
    ) -> NDArray[np.floating]:
        # Quantus always gives device and method; a method has both already. Options are given to vitshap.method.
        made = _made_for(model, explain, strict)
        values = made.attribute(_pixels(inputs, made), torch.as_tensor(targets))
        shares: NDArray[np.floating] = values.float().sum(1, keepdim=True).cpu().numpy()
        return shares

    return explain_func


def _made_for(model: Any, explain: InputShaped, strict: bool) -> InputShaped:
    """Return the method for the model that Quantus gave."""
    own = explain.forward_func
    if model is None or model is own or model is getattr(own, "net", None):
        return explain
    if isinstance(model, MaskedModel) and dataclasses.is_dataclass(explain):
        return cast(InputShaped, dataclasses.replace(explain, model=model))
    if not strict:
        return explain
    raise ValueError(
        f"Quantus gave a {type(model).__name__} that {type(explain).__name__} was not made for, perhaps a randomised copy. "
        "Give the metric the wrapped model (methods are made for it; a trained explainer explains its surrogate only), "
        "or use strict=False to explain the method's own model whatever is given"
    )


def _pixels(inputs: Any, explain: InputShaped) -> Tensor:
    """Convert Quantus' numpy arrays, often float64, to the model's type."""
    net = getattr(explain.forward_func, "net", None)
    device, dtype = (torch.device("cpu"), torch.float32) if net is None else net_device_dtype(net)
    return torch.from_numpy(np.ascontiguousarray(inputs)).to(device, dtype)
