"""Devices by name, as all commands take them."""

from __future__ import annotations

import torch


def resolve_device(name: str | torch.device) -> torch.device:
    """Turn "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1" into a device; ``ValueError`` if it is not there."""
    if str(name) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"--device is auto, cpu or cuda; got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device is auto, cpu or cuda; got {name!r}")
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise ValueError(f"--device {name}: there is no such CUDA device")
    return device
