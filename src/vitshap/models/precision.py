"""Evaluations in another precision than the model's own: half precision is several times as fast on a GPU.

The model itself is never changed: a converted copy is evaluated, and kept as long as the model exists and its weights do
not change. float16 is eight times as precise as bfloat16 and as fast, but overflows above 65,504: then bfloat16 is used.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.models.base import evaluating, net_device_dtype
from vitshap.players import Players

if TYPE_CHECKING:
    from vitshap.models.masked import MaskedModel

Precision: TypeAlias = Literal["auto", "float32", "float16", "bfloat16"]
"""Precision of evaluations. "auto": float16 for a float32 model on a GPU, bfloat16 if that overflows; otherwise, and
always on a CPU, the model's own precision."""


@dataclass(eq=False)
class _Copies:
    """Converted copies of a model with these weights."""

    weights: tuple[object, ...]
    models: dict[torch.dtype, MaskedModel] = field(default_factory=dict)
    overflowed: set[torch.dtype] = field(default_factory=set)


_COPIES: WeakKeyDictionary[MaskedModel, _Copies] = WeakKeyDictionary()


def converted(model: MaskedModel, dtype: torch.dtype) -> MaskedModel:
    """Return a copy of the model in this precision, in evaluation mode."""
    made = copy.deepcopy(model).to(dtype).eval()
    if made.reference is not None:
        made.reference = made.reference.to(dtype)
    return made


def precisions(model: MaskedModel, precision: Precision) -> tuple[torch.dtype, ...]:
    """Return the precisions to try, in this order; empty: the model's own."""
    device, own = net_device_dtype(model.net)
    if precision == "auto":
        half = device.type == "cuda" and own == torch.float32 and not torch.is_autocast_enabled("cuda")
        if not half or model.removal == "random":
            return ()
        known = _copies(model).overflowed
        return tuple(dtype for dtype in (torch.float16, torch.bfloat16) if dtype not in known)
    asked: torch.dtype = getattr(torch, precision)
    if asked == own:
        return ()
    on_cpu = asked == torch.bfloat16 and device.type == "cpu"
    if on_cpu or model.removal == "random":  # which reference image fills a patch is a hash of the pixels as they are
        why = (
            "bfloat16 is for GPUs: on some CPUs it ends the process"
            if on_cpu
            else 'with removal="random" it is the only one'
        )
        raise ValueError(f'give precision="auto", the model\'s own precision, {own}: {why}')
    return (asked,)


class FastValues:
    """Values ``[B, S, K]`` of coalitions ``[B, S, d]`` of these images, from a copy of the model in another precision."""

    def __init__(self, model: MaskedModel, pixels: Tensor, players: Players, precision: Precision) -> None:
        """Set up; the model is copied at the first evaluation."""
        self._model, self._pixels, self._players = model, pixels, players
        self._automatic = precision == "auto"
        self._left = list(precisions(model, precision))
        self._open: tuple[MaskedModel, object] | None = None

    def __call__(self, coalitions: Coalitions) -> Tensor | None:
        """Return values, or None where the model's own precision is to be used."""
        while self._left:
            dtype = self._left[0]
            try:
                values = self._evaluate(coalitions, dtype)
            except (RuntimeError, TypeError) as error:
                if not self._automatic or isinstance(error, torch.OutOfMemoryError):
                    raise
                warnings.warn(f"this model cannot be evaluated in {dtype} ({error}): float32 is used", stacklevel=2)
                self._left.clear()
                return None
            if bool(torch.isfinite(values).all()):
                return values
            if not self._automatic:
                raise ValueError(f'the model has values that are not finite in {dtype}: give precision="float32"')
            _copies(self._model).overflowed.add(dtype)
            _copies(self._model).models.pop(dtype, None)
            self._left.pop(0)
            self._open = None
        return None

    def _evaluate(self, coalitions: Coalitions, dtype: torch.dtype) -> Tensor:
        if self._open is None:
            model = _kept(self._model, dtype)
            with torch.no_grad(), evaluating(model.net), model.adapter.ready():
                self._open = model, model.open_session(self._pixels.to(dtype))
        model, session = self._open
        with torch.no_grad(), evaluating(model.net), model.adapter.ready():
            return model.link(model.run_session(session, coalitions, self._players))  # type: ignore[arg-type]


def _kept(model: MaskedModel, dtype: torch.dtype) -> MaskedModel:
    """Return the copy of this precision, which is made when it is first needed and after the weights have changed."""
    copies = _copies(model)
    if dtype not in copies.models:
        copies.models[dtype] = converted(model, dtype)
    made = copies.models[dtype]
    made.evaluation, made.removal, made.output = model.evaluation, model.removal, model.output
    made.max_tokens = min((n for n in (made.max_tokens, model.max_tokens) if n is not None), default=None)
    made._encode = model._encode
    return made


def _copies(model: MaskedModel) -> _Copies:
    weights = _weights(model)
    if model not in _COPIES or _COPIES[model].weights != weights:
        _COPIES[model] = _Copies(weights)
    return _COPIES[model]


def _weights(model: MaskedModel) -> tuple[object, ...]:
    """Return a key that changes whenever a weight does: addresses, versions and sums of the tensors."""
    tensors = [tensor.detach() for tensor in (*model.net.parameters(), *model.net.buffers())]
    sums = torch.stack([tensor.sum(dtype=torch.float64) for tensor in tensors]).tolist()
    versions = [None if tensor.is_inference() else tensor._version for tensor in tensors]
    return (*sums, *versions, *(tensor.data_ptr() for tensor in tensors), net_device_dtype(model.net))
