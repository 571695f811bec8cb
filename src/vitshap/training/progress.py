"""What a training reports while it runs: the loss of each step, a progress bar, and curves for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor


class DeferredLoss:
    """The loss of a step, copied from the device without blocking.

    Reading a number from a GPU waits for all work that was queued before the read. So the copy is queued with the step,
    and reading it later waits for that copy only, while the GPU works on the next step.
    """

    def __init__(self, step: int, rate: float, loss: Tensor) -> None:
        self.step, self.rate = step, rate
        self._loss = loss.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event() if loss.is_cuda else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            # Without a stream it would be recorded on the current GPU, which need not be that of the loss.
            self._copied.record(torch.cuda.current_stream(loss.device))

    def read(self) -> float:
        """Wait for the copy and return the loss."""
        if self._copied is not None:
            self._copied.synchronize()
        return float(self._loss)


class TensorBoard:
    """Writes the metrics of a training as TensorBoard scalars; does nothing if TensorBoard is not installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def add(self, record: dict[str, float]) -> None:
        """Write the metrics of one validation."""
        if self._writer is None:
            self._writer = _summary_writer(self.folder, int(record["step"]))
        if self._writer is False:
            return
        for name, value in record.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, int(record["step"]))
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer:
            self._writer.close()


def _summary_writer(folder: Path, first_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    # A resumed training may repeat steps that it had logged before: the curve continues from there.
    return SummaryWriter(str(folder), purge_step=first_step)


@contextmanager
def progress_bar(console: Console, steps: int, done: int, batch_size: int) -> Iterator[Callable[[int, float], None]]:
    """Show a bar with loss, samples per second and remaining time; yield a function of the steps done and the loss."""
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
