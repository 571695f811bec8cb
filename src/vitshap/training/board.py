"""Curves for TensorBoard, where it is installed; nothing depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Board:
    """One line of a log after the other, as scalars in ``folder``; without TensorBoard nothing happens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def add(self, record: dict[str, float]) -> None:
        """The metrics of an epoch, over the steps."""
        if self._writer is None:
            self._writer = _writer(self.folder, int(record["step"]))
        if self._writer is False:
            return
        for name, value in record.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, int(record["step"]))
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._writer:
            self._writer.close()


def _writer(folder: Path, first_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    # A training that was continued may come to steps that it has been at before: the curve begins anew there.
    return SummaryWriter(str(folder), purge_step=first_step)
