"""Results of batches put together, also over several processes. Nothing is pickled: names and shapes travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as distributed
from accelerate import PartialState
from torch import Tensor

from vitshap.evaluation.result import Key
from vitshap.training import processes

Found = Mapping[Key, Sequence[tuple[Tensor, Mapping[str, Tensor]]]]
"""By row and column: the places of some images, and what was found for them."""


def gathered(found: Found, keys: Sequence[Key], total: int) -> dict[Key, dict[str, Tensor]]:
    """Return tensors for all images, on every process: NaN for images without a result, ``shared.*`` as means over batches.

    Rows and columns without any result are left out.
    """
    shapes: dict[str, dict[str, list[int]]] = {}
    for known in _everyones(_shapes(found, keys)):
        for key, named in known.items():
            shapes.setdefault(key, {}).update(named)
    scores: dict[Key, dict[str, Tensor]] = {}
    for number, key in enumerate(keys):
        for name, shape in shapes.get(str(number), {}).items():
            put = _shared if name.startswith("shared.") else _rows
            scores.setdefault(key, {})[name] = put(found.get(key, ()), name, shape, total)
    return scores


def _shapes(found: Found, keys: Sequence[Key]) -> dict[str, dict[str, list[int]]]:
    """Return the shape of every tensor without its first dimension, by the number of its row and column."""
    return {
        str(number): {name: list(tensor.shape[1:]) for name, tensor in found[key][0][1].items()}
        for number, key in enumerate(keys)
        if found.get(key)
    }


def _rows(parts: Sequence[tuple[Tensor, Mapping[str, Tensor]]], name: str, shape: list[int], total: int) -> Tensor:
    values = torch.zeros(total, *shape, dtype=torch.float64)
    known = torch.zeros(total, dtype=torch.float64)
    for places, tensors in parts:
        values[places] = tensors[name]
        known[places] = 1
    values, known = _sum(values), _sum(known)
    return values.masked_fill((known == 0).view(-1, *[1] * len(shape)), torch.nan)


def _shared(parts: Sequence[tuple[Tensor, Mapping[str, Tensor]]], name: str, shape: list[int], total: int) -> Tensor:
    sizes = {len(tensors[name]) for _, tensors in parts} | {0}
    length = max(max(known) for known in _everyones(sorted(sizes)))
    values = torch.zeros(length, *shape, dtype=torch.float64)
    for _, tensors in parts:
        values += tensors[name]
    return _sum(values) / _sum(torch.tensor(float(len(parts)), dtype=torch.float64))


def _sum(tensor: Tensor) -> Tensor:
    """Return the sum over all processes."""
    if processes.count() == 1:
        return tensor
    total = tensor.to(PartialState().device)
    distributed.all_reduce(total)
    return total.cpu()


def _everyones(content: Any) -> list[Any]:
    """Return the JSON of every process, on every process."""
    if processes.count() == 1:
        return [content]
    device = PartialState().device
    own = torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8).to(device)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(processes.count())]
    distributed.all_gather(lengths, torch.tensor([len(own)], device=device))
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: len(own)] = own
    texts = [torch.zeros_like(padded) for _ in lengths]
    distributed.all_gather(texts, padded)
    pairs = zip(texts, lengths, strict=True)
    return [json.loads(bytes(text[: int(length)].cpu().numpy()).decode()) for text, length in pairs]
