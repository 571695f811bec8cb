"""Quantus' form: a function ``(model, inputs, targets) -> np.ndarray`` that its metrics call, again and again.

Some metrics call it with a net that they have changed (its weights randomised, say) and judge how the explanation
changes. A method is made for one model, so it is made anew for the one that Quantus gives; what cannot be made anew says
so instead of explaining the old net. Quantus itself is not imported: the function is all it asks for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitshap.explanation.captum_form import InputShaped
from vitshap.models import MaskedModel
from vitshap.models.base import net_device_dtype

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
