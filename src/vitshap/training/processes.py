"""Distributed training (``accelerate launch``): communication between processes, and the random state of each.

Data that one process reads is broadcast as bytes: tensors in their own format, everything else as JSON. Nothing is pickled.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from accelerate import PartialState
from torch import Tensor

from vitshap.data.pixels import free_bytes

_ERRORS: tuple[type[Exception], ...] = (ValueError, OSError, RuntimeError)
"""Types that an error of the main process may have on the other processes: the first that matches."""
_TIMEOUT = timedelta(days=1)
"""How long processes wait for one another: the main process evaluates and calibrates alone, on CPUs for hours."""


def join(device: torch.device) -> None:
    """Join the process group, if a launcher started several processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and count() == 1:
        PartialState(cpu=device.type == "cpu", timeout=_TIMEOUT)
        atexit.register(_leave)  # otherwise a process that ends while a thread of its group runs is aborted


def count() -> int:
    """Return the number of processes."""
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


def rank() -> int:
    """Return the number of this process; 0 is the main process."""
    return distributed.get_rank() if count() > 1 else 0


def mean(number: Tensor) -> Tensor:
    """Return the mean over all processes, on every process."""
    if count() == 1:
        return number
    total = number.clone()
    distributed.all_reduce(total)
    return total / count()


def from_main(read: Callable[[], Any], /) -> Any:
    """Run `read` on the main process; return or raise its result on every process.

    The result must be JSON: files that the main process wrote may be on its disk only.
    """
    return tensors_from_main(lambda: ({}, read()))[1]


def tensors_from_main(read: Callable[[], tuple[dict[str, Tensor], Any]], /) -> tuple[dict[str, Tensor], Any]:
    """Do the same with named tensors, returned on the CPU, and a JSON value."""
    if count() == 1:
        return read()
    tensors: dict[str, Tensor] = {}
    message: dict[str, Any] = {}
    failed: Exception | None = None
    if rank() == 0:
        try:
            tensors, message["found"] = read()
            message["tensors"] = [
                (name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()
            ]
        except Exception as error:  # otherwise the other processes would wait for ever
            failed, message = error, {"error": str(error), "kind": _kind(error)}
    message = json.loads(_broadcast(json.dumps(message).encode()))
    if "error" in message:
        _wait()
        raise failed or _ERRORS[message["kind"]](message["error"])
    found = {}
    for name, dtype, shape in message["tensors"]:
        mine = (
            tensors[name].detach().cpu().contiguous()
            if rank() == 0
            else torch.empty(shape, dtype=getattr(torch, dtype))
        )
        found[name] = _broadcast_tensor(mine)
    _wait()
    return found, message["found"]


def memory_limit(device: torch.device) -> int:
    """Return half of the free memory in bytes, the least of all processes: either all of them cache something or none."""
    limit = free_bytes(device) // 2
    if count() == 1:
        return limit
    least = torch.tensor(limit, device=device)
    distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
    return int(least)


@contextmanager
def kept_random_state(device: torch.device | None = None) -> Iterator[None]:
    """Restore the caller's global random state afterwards (CPU, and ``device`` or any GPU in use)."""
    if device is not None and device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = list(range(torch.cuda.device_count())) if used else []
    with torch.random.fork_rng(devices=gpus):
        yield


def seed_device(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of ``device``; ``torch.manual_seed`` would seed every GPU, used or not."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _kind(error: Exception) -> int:
    return next((i for i, kind in enumerate(_ERRORS) if isinstance(error, kind)), len(_ERRORS) - 1)


def _broadcast(message: bytes) -> bytes:
    """Return the main process's bytes on every process."""
    device = PartialState().device
    length = torch.tensor([len(message)], device=device)
    distributed.broadcast(length, 0)
    data = torch.empty(int(length), dtype=torch.uint8, device=device)
    if rank() == 0:
        data = torch.frombuffer(bytearray(message), dtype=torch.uint8).to(device)
    distributed.broadcast(data, 0)
    return bytes(data.cpu().numpy())


def _broadcast_tensor(tensor: Tensor) -> Tensor:
    """Return the main process's tensor on every process, on the CPU; sent as bytes, which every backend supports."""
    data = tensor.reshape(-1).view(torch.uint8).to(PartialState().device)
    if len(data):
        distributed.broadcast(data, 0)
    return data.cpu().view(tensor.dtype).reshape(tensor.shape)


def _wait() -> None:
    """Wait for all processes: one that ends while it is sending is aborted."""
    PartialState().wait_for_everyone()
