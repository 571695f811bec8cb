"""Fully connected layers on a CPU by oneDNN, where PyTorch's own choice is slower.

PyTorch multiplies float32 matrices with MKL, which uses AVX-512 on Intel's CPUs only. On AMD's oneDNN, which is part of
PyTorch too, is twice as fast. A torch-function mode replaces ``F.linear``, so the user's modules run unchanged; the
results differ by rounding only. The choice depends on the CPU and the size of the product, never on a timing: a resumed
training repeats it.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

SMALLEST = 1 << 22
"""Multiplications of a product (rows x inputs x outputs) from which oneDNN is faster; below, its calls cost more."""


@cache
def onednn_is_faster() -> bool:
    """Return whether this CPU has AVX-512 that MKL does not use, and PyTorch has the operator."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or "AuthenticAMD" not in _processor():
        return False
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _processor() -> str:
    """Return what the system says of its processor."""
    described = Path("/proc/cpuinfo")
    return described.read_text() if described.exists() else platform.processor()


def fast_linear(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which fully connected layers on ``device`` are computed as fast as they can be.

    Nothing is changed in code that is being exported or compiled.
    """
    if device.type != "cpu" or torch.compiler.is_compiling() or not onednn_is_faster():
        return nullcontext()
    return LinearByOneDNN()


class LinearByOneDNN(TorchFunctionMode):
    """While active, ``F.linear`` of large float32 matrices on the CPU is computed by oneDNN."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        return _linear(*args, **kwargs) if func is F.linear else func(*args, **kwargs)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # named as by F.linear
    plain = type(input) is Tensor and input.device.type == "cpu" and input.dtype == weight.dtype == torch.float32
    if not plain or input.numel() * len(weight) < SMALLEST or torch.is_autocast_enabled("cpu"):
        return F.linear(input, weight, bias)
    return _differentiable(input, weight, bias)


def _differentiable(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the product, with its graph where gradients are recorded."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (rows, weight, bias)):
        return cast(Tensor, _WithGradients.apply(rows, weight, bias))  # type: ignore[no-untyped-call]
    return _product(rows, weight, bias)


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``rows @ weight.T + bias``, without gradients."""
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], ""))


class _WithGradients(torch.autograd.Function):
    """The same product with gradients, which are products of the same kind and can be differentiated too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        flat = gradient.flatten(0, -2)
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            _differentiable(gradient, weight.t()) if of_rows else None,
            _differentiable(flat.t(), rows.flatten(0, -2).t()) if of_weight else None,
            flat.sum(0) if of_bias else None,
        )
