"""Run a model's own forward pass while single operations get another backward pass.

A torch-function mode sees every operation of the forward pass. It returns the same value, with a backward pass that
follows the rules of an attribution method, and records the attention weights. The model is neither patched nor hooked:
the mode belongs to its thread, and an exception ends it.

Parameters are detached when an operation receives them, so ``requires_grad`` of a tensor means that it depends on the
image. This distinguishes a residual connection from an added bias, and a gated product from a layer scale. ``.grad`` and
``requires_grad`` of the parameters are never written.

With relevance rules, the backward pass carries g = R / x, relevance divided by activation. Operations without a rule
(views, concatenation, scaling, added positions) then follow LRP-0, R_in = x * J^T (R_out / y), without further code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from vitshap.baselines.rules import Rules
from vitshap.errors import first_line
from vitshap.models.attention import AttentionOverride
from vitshap.models.base import Adapter, gpu_memory_left, within_memory

Leaf: TypeAlias = Literal["embedding", "pixels"]
Graph: TypeAlias = Literal["whole", "last block", "none"]
"""Which part of the forward pass is recorded for gradients; "last block" starts at the attention of the block before it."""

NUMBERS_AT_ONCE = 2**27
"""Bound on the numbers that a backward pass over several classes holds on a CPU; 512 MiB in float32."""
INTERMEDIATE = 8
"""Numbers that a backward pass holds for each number of its result, roughly: hidden layers and attention are wider."""


@dataclass
class Trace:
    """A recorded forward pass; all tensors are part of one graph."""

    leaf: Tensor
    """What the graph starts from: the patch embedding ``[B, D, rows, columns]``, or the pixels."""
    logits: Tensor
    """``[B, K]``."""
    attention: list[Tensor] = field(default_factory=list)
    """Attention weights ``[B, H, queries, keys]`` in order: blocks, then a pooling head if there is one."""
    mixed: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Output ``[B, H, queries, c]`` and values ``[B, H, keys, c]`` of each attention."""
    tokens: Tensor | None = None
    """Tokens after the last block, ``[B, prefix + N, D]``."""
    normed: Tensor | None = None
    """Layer-normed input of the last block's attention, ``[B, prefix + N, D]``."""


def trace(
    adapter: Adapter,
    pixels: Tensor,
    rules: Rules | None = None,
    *,
    leaf: Leaf = "embedding",
    dtype: torch.dtype | None = None,
    replace: Callable[[Tensor], Tensor] | None = None,
    graph: Graph = "whole",
) -> Trace:
    """Run the model on ``pixels`` and record the graph from ``leaf`` to the logits.

    The model must be in evaluation mode and ``adapter.ready()``, as it is in ``TokenMethod.score_tokens``.
    ``dtype`` computes in another precision than the model's own; ``replace`` changes the leaf before it is used.
    """
    with torch.inference_mode(False), torch.set_grad_enabled(graph == "whole"):
        pixels = pixels.detach().clone().to(dtype or pixels.dtype)  # a clone, for tensors made in inference mode
        if leaf == "pixels":
            pixels = (pixels if replace is None else replace(pixels)).requires_grad_()
        plain = rules is None and dtype is None
        mode = _Recording(adapter, leaf, replace) if plain else _Interception(adapter, leaf, replace, rules, dtype)
        mode.graph_after = {"whole": None, "last block": len(adapter.blocks) - 1, "none": None}[graph]
        with mode:
            logits = adapter.predict(pixels)
    found = mode.leaf if leaf == "embedding" else pixels
    if found is None:
        raise ValueError(f"{type(adapter.net).__name__} has no patch convolution, which this method starts from")
    return Trace(found, logits, mode.attention, mode.mixed, mode.tokens, mode.normed)


def numbers_at_once(device: torch.device) -> int:
    """Return how many numbers a backward pass over several classes may hold: on a GPU by its free memory."""
    if device.type != "cuda":
        return NUMBERS_AT_ONCE
    return gpu_memory_left(device) // 32  # float64, a quarter of the memory


def patch_embedding(adapter: Adapter, pixels: Tensor) -> Tensor:
    """Compute the output of the patch convolution, ``[B, D, rows, columns]``."""

    class Found(Exception):
        pass

    found: list[Tensor] = []

    def stop(embedding: Tensor) -> Tensor:
        found.append(embedding)
        raise Found

    with suppress(Found):
        trace(adapter, pixels, replace=stop)
    return found[0]


def gradients(
    output: Tensor, wanted: list[Tensor], seeds: Tensor, *, at_once: int | None = None
) -> Iterator[tuple[Tensor, ...]]:
    """Yield vector-Jacobian products of ``output`` (``[B, K]``) for ``seeds`` ``[T, B, K]``: ``[t, *shape]`` per tensor.

    ``at_once``: how many of the T seeds to compute in one backward pass; by default as many as fit into memory.
    """
    if at_once is None:
        held = INTERMEDIATE * sum(tensor.numel() for tensor in wanted)
        at_once = max(1, numbers_at_once(output.device) // max(1, held))

    def product(seed: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, wanted, seed, retain_graph=True, materialize_grads=True)

    def products(part: Tensor) -> tuple[Tensor, ...]:
        # torch.vmap, and not is_grads_batched=True, whose older implementation computes some operations one by one
        return torch.vmap(product)(part) if len(part) > 1 else tuple(one[None] for one in product(part[0]))

    fitting = at_once
    for start in range(0, len(seeds), at_once):
        part = seeds[start : start + at_once]
        found, fitting = within_memory(products, part, fitting)
        if not all(bool(torch.isfinite(one).all()) for one in found):
            raise ValueError(f"the gradient is not finite: {_operation_with_nan(product, part)}")
        yield found


def _operation_with_nan(product: Callable[[Tensor], tuple[Tensor, ...]], seeds: Tensor) -> str:
    """Return PyTorch's message about the operation whose backward pass gives NaN."""
    for seed in seeds:
        try:
            with torch.autograd.set_detect_anomaly(True, check_nan=True):
                product(seed)
        except RuntimeError as error:
            return first_line(error)
    return "a value is too large"


def one_hot_seeds(targets: Tensor, output: Tensor) -> Tensor:
    """Return seeds ``[T, B, K]`` that select the classes ``targets`` (int64 ``[B, T]``) of ``output`` (``[B, K]``)."""
    return F.one_hot(targets.T, output.shape[1]).to(output)


class _Recording(AttentionOverride):
    """Record the leaf, the attention weights and the norms of a forward pass with plain gradients."""

    def __init__(
        self, adapter: Adapter, leaf: Leaf, replace: Callable[[Tensor], Tensor] | None, rules: Rules | None = None
    ) -> None:
        super().__init__()
        self.rules, self.replace = rules or Rules(), replace
        self.depth = len(adapter.blocks)
        self.length = adapter.prefix + adapter.grid[0] * adapter.grid[1]
        self.wants_leaf = leaf == "embedding"
        self.graph_after: int | None = None
        """Number of attention calls after which the graph starts; None: it is recorded as a whole, or not at all."""
        self.leaf: Tensor | None = None
        self.attention: list[Tensor] = []
        self.mixed: list[tuple[Tensor, Tensor]] = []
        self.tokens: Tensor | None = None
        self.normed: Tensor | None = None
        self._last_norm: Tensor | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        if name == "conv2d":
            return self._conv2d(func, args, kwargs)
        if name in ("layer_norm", "rms_norm"):
            return self._recorded_norm(func(*args, **kwargs))
        return self._attention_or_as_it_is(func, types, args, kwargs)

    def _attention_or_as_it_is(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if func is F.multi_head_attention_forward and args[0] is not args[1]:
            return func(*args, **kwargs)  # a pooling head with a learned query: not recorded
        return super().__torch_function__(func, types, args, kwargs)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, dropout: float
    ) -> Tensor:
        """Compute attention by the rules, and record its weights and its output."""
        scores = self.rules.scores(q, k, q.shape[-1] ** -0.5 if scale is None else scale)
        weights = self.rules.softmax(scores, bias)
        self.attention.append(weights)
        if len(self.attention) == self.depth:
            self.normed = self._last_norm
        mixed = self.rules.mix(weights, v)
        self.mixed.append((mixed, v))
        if len(self.attention) == self.graph_after:
            torch.set_grad_enabled(True)  # until the end of the forward pass: ``trace`` restores it
            mixed.requires_grad_()
        return mixed

    def _conv2d(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        if self.wants_leaf and self.leaf is None:
            output = output.detach()
            self.leaf = output = (output if self.replace is None else self.replace(output)).requires_grad_()
            if self.graph_after == 0:
                torch.set_grad_enabled(True)
        return output

    def _recorded_norm(self, y: Tensor) -> Tensor:
        if y.ndim == 3 and y.shape[1] == self.length:
            self._last_norm = y
        return y


class _Interception(_Recording):
    """Also compute operations by rules, and in another precision."""

    def __init__(
        self,
        adapter: Adapter,
        leaf: Leaf,
        replace: Callable[[Tensor], Tensor] | None,
        rules: Rules | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(adapter, leaf, replace, rules)
        self.dtype = dtype

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = _name(func)
        if name in ("get", "set"):  # __get__ and __set__: attributes of tensors
            return func(*args, **(kwargs or {}))
        args = tuple([self._prepared(one) for one in args])
        kwargs = {key: self._prepared(one) for key, one in kwargs.items()} if kwargs else {}
        answer = _ANSWERS.get(name)
        if answer is None:
            return self._attention_or_as_it_is(func, types, args, kwargs)
        return answer(self, func, args, kwargs)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.rules.linear(x, weight, bias) if x.requires_grad else F.linear(x, weight, bias)

    def _prepared(self, argument: Any) -> Any:
        """Detach parameters; widen floating-point tensors, and the types that they are converted to."""
        if isinstance(argument, Tensor):
            if type(argument) is not Tensor and isinstance(argument, nn.Parameter):
                argument = argument.detach()
            return argument if self.dtype is None or not argument.is_floating_point() else argument.to(self.dtype)
        if isinstance(argument, list | tuple):
            return tree_map(self._prepared, argument)
        if self.dtype is not None and isinstance(argument, torch.dtype) and argument.is_floating_point:
            return self.dtype
        return argument

    def _float(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs) if self.dtype is None else args[0].to(self.dtype)

    def _linear(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.linear(*args, **{"x" if key == "input" else key: value for key, value in kwargs.items()})

    def _layer_norm(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._norm(func, args, kwargs, centred=True)

    def _rms_norm(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._norm(func, args, kwargs, centred=False)

    def _norm(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, centred: bool) -> Any:
        names = ("input", "normalized_shape", "weight", *(("bias",) if centred else ()), "eps")
        call = {**dict(zip(names, args, strict=False)), **kwargs}
        x, y = call["input"], func(*args, **kwargs)
        if x.requires_grad:
            eps = call.get("eps")
            default = 1e-5 if centred else torch.finfo(x.dtype).eps
            y = self.rules.norm(x, y, call.get("weight"), call.get("bias"), default if eps is None else eps, centred)
        return self._recorded_norm(y)

    def _activation(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        if not x.requires_grad:
            return func(*args, **kwargs)
        before = x.clone() if kwargs.get("inplace") else x
        return self.rules.activation(before, func(*args, **kwargs))

    def _gate(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.rules.gate(func(*args, **kwargs))

    def _divide(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 2 and isinstance(args[1], Tensor) and args[1].requires_grad:
            args = (args[0], self.rules.gate(args[1]))
        return func(*args, **kwargs)

    def _multiply(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 2 and _both_of_image(args):
            args = (self.rules.factor(args[0]), self.rules.factor(args[1]))
        return func(*args, **kwargs)

    def _add(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) != 2 or not _both_of_image(args) or args[0].shape != args[1].shape or args[0].ndim not in (2, 3):
            return func(*args, **kwargs)
        total = self.rules.residual(*args)
        if total.ndim == 3 and total.shape[1] == self.length:
            self.tokens = total
        return total

    def _mean(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        y = func(*args, **kwargs)
        x = args[0] if args else kwargs["input"]
        axis = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
        if x.requires_grad and x.ndim == 3 and y.shape == (x.shape[0], x.shape[2]) and axis in (1, -2, [1], (1,)):
            return self.rules.token_mean(x, y)
        return y


def _both_of_image(args: tuple[Any, ...]) -> bool:
    return all(isinstance(one, Tensor) and one.requires_grad for one in args)


_ANSWERS: dict[str, Callable[..., Any]] = {
    "float": _Interception._float,
    "conv2d": _Interception._conv2d,
    "linear": _Interception._linear,
    "layer_norm": _Interception._layer_norm,
    "rms_norm": _Interception._rms_norm,
    **dict.fromkeys(("gelu", "silu", "relu", "leaky_relu", "hardswish", "mish", "tanh"), _Interception._activation),
    **dict.fromkeys(("sigmoid", "rsqrt"), _Interception._gate),
    **dict.fromkeys(("div", "truediv", "true_divide"), _Interception._divide),
    **dict.fromkeys(("mul", "rmul", "imul", "multiply"), _Interception._multiply),
    **dict.fromkeys(("add", "radd", "iadd"), _Interception._add),
    "mean": _Interception._mean,
}
"""Operation -> how it is computed; ``add`` stands for ``add_``, ``__add__``, ``__iadd__`` too."""


@functools.cache
def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", "").strip("_")
