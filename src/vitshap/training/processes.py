"""Several processes that train together (``accelerate launch``): what they have to agree on."""

from __future__ import annotations

import os

import torch
import torch.distributed as distributed
from accelerate import PartialState

from vitshap.data.pixels import free_bytes


def join(device: torch.device) -> None:
    """Meet the others, if a launcher started several; they are alone before that."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        PartialState(cpu=device.type == "cpu")


def count() -> int:
    """How many there are."""
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


def memory_limit(device: torch.device) -> int:
    """Half of the memory that is free, in bytes, where least of it is: all processes keep the same things or none does."""
    limit = free_bytes(device) // 2
    if count() == 1:
        return limit
    least = torch.tensor(limit, device=device)
    distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
    return int(least)
