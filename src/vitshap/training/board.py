"""What a training shows: a progress bar, and curves for TensorBoard where it is installed; nothing depends on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


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


@contextmanager
def progress_bar(console: Console, steps: int, done: int, batch_size: int) -> Iterator[Callable[[int, float], None]]:
    """A bar with loss, samples per second and time left; yields a function of the number of steps done and the loss."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    started = time.perf_counter()
    with Progress(*columns, console=console, disable=console.quiet) as bar:
        shown = bar.add_task("training", total=steps, completed=done, rate="")

        def advance(step: int, loss: float) -> None:
            rate = (step - done) * batch_size / (time.perf_counter() - started)
            bar.update(shown, completed=step, description=f"loss {loss:.4g}", rate=f"{rate:,.0f} samples/s")

        yield advance
