"""Networks and augmentation compiled for training, because launching their kernels takes a GPU longer than computing them.

The kernels of a network are recorded once (CUDA graphs) and launched together; those of the augmentation, several hundred,
become a few. The loss is not compiled. Validation, whose batches have other shapes, uses the network that is not compiled,
and so does a training whose network cannot be compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from vitshap.data.augment import Augmentation, View
from vitshap.models.base import net_device_dtype
from vitshap.training.processes import kept_random_state, rank

T = TypeVar("T")
TRIALS = 3
"""Steps that are tried first: a GPU runs the kernels in the first and records them in the next two."""
NETWORKS = 64
"""Architectures and batch sizes that are compiled in one process; PyTorch's limit of 8 is for code that recompiles by
mistake, and beyond it nothing is compiled any more."""


def can_compile(device: torch.device) -> bool:
    """Return whether networks are compiled on this device: only GPUs gain by it."""
    return device.type == "cuda"


class Compilable(Generic[T]):
    """A function of tensors that is compiled at its first call in a training, if that is wanted and possible."""

    def __init__(
        self,
        function: Callable[..., T],
        module: nn.Module,
        *,
        wanted: bool,
        instead: Callable[..., T] | None = None,
        context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """``module``: the network that is trained; what is compiled is not used in evaluation mode.

        ``instead``: what is called without compilation, with equal results; default: ``function``.
        ``context``: entered around compiled calls.
        """
        self._function, self._module, self._instead = function, module, instead or function
        self._context = context
        self._compiled: Callable[..., T] | None = None
        self._plain = not (wanted and can_compile(net_device_dtype(module)[0]))

    def __call__(self, *inputs: Tensor | None) -> T:
        """Return what the function returns."""
        if self._module.training and not self._plain:
            with self._context():
                if self._compiled is None:
                    self._compiled = self._tried(inputs)
                    self._plain = self._compiled is None
                if self._compiled is not None:
                    return self._compiled(*inputs)
        return self._instead(*inputs)

    def _tried(self, inputs: Sequence[Tensor | None]) -> Callable[..., T] | None:
        """Return the compiled function, or None if it cannot take whole steps, backwards too; weights do not change."""
        parameters = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        device = net_device_dtype(self._module)[0]
        try:
            compiled = torch.compile(self._function, dynamic=False, mode="reduce-overhead")
            with kept_random_state(device), torch._dynamo.config.patch(recompile_limit=NETWORKS):
                for _ in range(TRIALS):
                    total = _total(compiled(*inputs))
                    with torch.autocast(device.type, enabled=False):
                        torch.autograd.grad(total, parameters, allow_unused=True)
        except Exception as error:  # of many types; an error of the network itself is raised again without compilation
            _warn_of("the network", error)
            return None
        finally:
            with torch.no_grad():
                for buffer, before in buffers:  # running means, for example
                    buffer.copy_(before)
        return compiled


def compiled_view() -> View:
    """Return the augmentation of a batch compiled, or as it is once that has failed."""
    compiled = torch.compile(Augmentation.view)
    failed = False

    def view(*inputs: Any) -> Tensor:
        nonlocal failed
        if not failed:
            try:
                return compiled(*inputs)
            except Exception as error:  # of many types, as above
                failed = True
                _warn_of("the augmentation", error)
        return Augmentation.view(*inputs)

    return view


def _warn_of(what: str, error: Exception) -> None:
    if rank() == 0:
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(
            f"{what} cannot be compiled: the training goes on without ({type(error).__name__}: {reason})", stacklevel=4
        )


def _total(outputs: Any) -> Tensor:
    """Return the sum of all outputs that have a gradient."""
    parts = outputs if isinstance(outputs, tuple) else (outputs,)
    sums = [part.float().sum() for part in parts if isinstance(part, Tensor) and part.requires_grad]
    return torch.stack(sums).sum()
