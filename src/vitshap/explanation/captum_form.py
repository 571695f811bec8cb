"""captum's form: ``attribute(inputs, target)`` gives a tensor of the inputs' shape.

captum asks for nothing but attributes and calls, so it is neither imported nor subclassed: whatever can explain images
becomes, with this mixin, something that ``captum.attr.NoiseTunnel`` wraps and ``captum.metrics`` measures.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from numbers import Integral
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from vitshap.explanation.pixels import pixel_owners, spread
from vitshap.explanation.result import Explanation

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
