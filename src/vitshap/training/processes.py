"""Several processes that train together (``accelerate launch``): what they have to agree on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from vitshap.data.pixels import free_bytes

T = TypeVar("T")


def join(device: torch.device) -> None:
    """Meet the others, if a launcher started several; they are alone before that."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        PartialState(cpu=device.type == "cpu")


def count() -> int:
    """How many there are."""
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


def from_main(read: Callable[[], T], /) -> T:
    """What ``read`` returns or raises in the main process, in all of them: what it wrote may be on its disk alone."""
    if count() == 1:
        return read()
    found: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            found[0] = read()
        except Exception as error:  # the others would wait for ever
            found[1] = error
    broadcast_object_list(found)
    PartialState().wait_for_everyone()  # a process that ends while it is sending is aborted
    if found[1] is not None:
        raise found[1]
    result: T = found[0]
    return result


def memory_limit(device: torch.device) -> int:
    """Half of the memory that is free, in bytes, where least of it is: all processes keep the same things or none does."""
    limit = free_bytes(device) // 2
    if count() == 1:
        return limit
    least = torch.tensor(limit, device=device)
    distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
    return int(least)
