"""Weights of a timm net from a file: all of them or a clear refusal, and of the head what fits the data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitshap.errors import first_line
from vitshap.files import read_tensors, state_difference
from vitshap.training.recipes import ModelSettings

_OF_A_WRAPPED_NET = "net."


def read_state(path: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, in float32; ``best.safetensors`` of a training of ours is one."""
    try:
        state = read_tensors(Path(os.path.expanduser(path)))
    except ValueError as error:
        raise ValueError(f"model.weights: {first_line(error)}") from error
    ours = all(name.startswith(_OF_A_WRAPPED_NET) for name in state)
    return {name.removeprefix(_OF_A_WRAPPED_NET) if ours else name: value.float() for name, value in state.items()}


def load_state(net: nn.Module, state: dict[str, Tensor], settings: ModelSettings) -> None:
    """All weights of the file; a head of another size stays as it was drawn."""
    own = net.state_dict()
    state = dict(state)
    for name in [name for name in state if name.startswith(("head.", "head_dist."))]:
        if name in own and own[name].shape != state[name].shape:
            state[name] = own[name]
    if odd := state_difference(own, state):
        raise ValueError(f"model.weights: {settings.weights} does not hold the weights of {settings.name}: {odd}")
    net.load_state_dict(state)


def keep_rows(net: Any, rows: tuple[int, ...], classes: int) -> None:
    """Of a pre-trained head the rows of the classes that the data has."""
    if type(net.head) is not nn.Linear:
        raise ValueError(f"model.head_rows: the head of {type(net).__name__} is not one linear layer")
    if len(rows) != classes:
        raise ValueError(f"model.head_rows must be {classes} rows, one per class, got {len(rows)}")
    weight, bias = net.head.weight.detach(), net.head.bias.detach()
    if not all(0 <= row < len(weight) for row in rows):
        raise ValueError(f"model.head_rows: the head has rows 0 to {len(weight) - 1}, got {list(rows)}")
    net.reset_classifier(classes)
    with torch.no_grad():
        net.head.weight.copy_(weight[list(rows)])
        net.head.bias.copy_(bias[list(rows)])
