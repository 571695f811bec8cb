"""Several processes that train together (``accelerate launch``): what they have to agree on; and random numbers, which a
training seeds and gives back.

What one process reads goes to the others as bytes: tensors as they are, everything else as JSON. Nothing is pickled.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as distributed
from accelerate import PartialState
from torch import Tensor

from vitshap.data.pixels import free_bytes

_ERRORS: tuple[type[Exception], ...] = (ValueError, OSError, RuntimeError)
"""What an error of the main process becomes in the others: the first of these that it is."""


def join(device: torch.device) -> None:
    """Meet the others, if a launcher started several; they are alone before that."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and count() == 1:
        PartialState(cpu=device.type == "cpu")
        atexit.register(_leave)  # a process that ends while a thread of its group is running is aborted


def count() -> int:
    """How many there are."""
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


def rank() -> int:
    """The number of this one; 0 is the main process."""
    return distributed.get_rank() if count() > 1 else 0


def mean(number: Tensor) -> Tensor:
    """Of a tensor's values in all processes, in all of them."""
    if count() == 1:
        return number
    total = number.clone()
    distributed.all_reduce(total)
    return total / count()


def from_main(read: Callable[[], Any], /) -> Any:
    """What ``read`` returns (plain values, as JSON has them) or raises in the main process, in all of them: what it wrote
    may be on its disk alone."""
    return tensors_from_main(lambda: ({}, read()))[1]


def tensors_from_main(read: Callable[[], tuple[dict[str, Tensor], Any]], /) -> tuple[dict[str, Tensor], Any]:
    """The same of named tensors, which come to the CPU, and plain values."""
    if count() == 1:
        return read()
    tensors: dict[str, Tensor] = {}
    told: dict[str, Any] = {}
    failed: Exception | None = None
    if rank() == 0:
        try:
            tensors, told["found"] = read()
            told["tensors"] = [
                (name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()
            ]
        except Exception as error:  # the others would wait for ever
            failed, told = error, {"error": str(error), "kind": _kind(error)}
    told = json.loads(_sent(json.dumps(told).encode()))
    if "error" in told:
        _wait()
        raise failed or _ERRORS[told["kind"]](told["error"])
    found = {}
    for name, dtype, shape in told["tensors"]:
        mine = (
            tensors[name].detach().cpu().contiguous()
            if rank() == 0
            else torch.empty(shape, dtype=getattr(torch, dtype))
        )
        found[name] = _sent_tensor(mine)
    _wait()
    return found, told["found"]


def memory_limit(device: torch.device) -> int:
    """Half of the memory that is free, in bytes, where least of it is: all processes keep the same things or none does."""
    limit = free_bytes(device) // 2
    if count() == 1:
        return limit
    least = torch.tensor(limit, device=device)
    distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
    return int(least)


@contextmanager
def kept_random_state(device: torch.device | None = None) -> Iterator[None]:
    """Whatever is seeded and drawn within, the caller's random numbers (CPU, and ``device`` or any GPU in use) go on as if
    nothing had been."""
    if device is not None and device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = list(range(torch.cuda.device_count())) if used else []
    with torch.random.fork_rng(devices=gpus):
        yield


def seed_device(seed: int, device: torch.device) -> None:
    """Seed the CPU's generator and that of ``device``; ``torch.manual_seed`` would seed every GPU, used or not."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _kind(error: Exception) -> int:
    return next((i for i, kind in enumerate(_ERRORS) if isinstance(error, kind)), len(_ERRORS) - 1)


def _sent(message: bytes) -> bytes:
    """The main process's bytes, in all."""
    device = PartialState().device
    length = torch.tensor([len(message)], device=device)
    distributed.broadcast(length, 0)
    data = torch.empty(int(length), dtype=torch.uint8, device=device)
    if rank() == 0:
        data = torch.frombuffer(bytearray(message), dtype=torch.uint8).to(device)
    distributed.broadcast(data, 0)
    return bytes(data.cpu().numpy())


def _sent_tensor(tensor: Tensor) -> Tensor:
    """The main process's tensor, on the CPU, in all: as bytes, which every backend can send."""
    data = tensor.reshape(-1).view(torch.uint8).to(PartialState().device)
    if len(data):
        distributed.broadcast(data, 0)
    return data.cpu().view(tensor.dtype).reshape(tensor.shape)


def _wait() -> None:
    """A process that ends while it is sending is aborted."""
    PartialState().wait_for_everyone()
