"""A progress bar for a wait whose end is not known: how far the error has fallen, and how much is probably left.

The ratio of error to range falls as one over the square root of the evaluations, so what is left can be forecast from
where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vitshap.estimators.estimate import Checkpoint, Estimate, Watcher


def forecast(checkpoint: Checkpoint, threshold: float) -> float:
    """Evaluations still needed for the worst class to fall below ``threshold``; infinity while no error is known."""
    excess = (checkpoint.worst_ratio / threshold) ** 2 - 1
    return max(0.0, checkpoint.evaluations * excess)


@contextmanager
def progress_bar(budget: int, threshold: float | None = None, *, console: Console | None = None) -> Iterator[Watcher]:
    """Yield a function for ``progress=``: a bar that shows the ratio falling and the evaluations left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} evaluations"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("first evaluations", total=budget)

        def watch(estimate: Estimate) -> None:
            if not estimate.history:
                return
            last = estimate.history[-1]
            total = float(budget)
            if threshold is not None:
                total = min(total, last.evaluations + forecast(last, threshold))
            bar.update(task, completed=last.evaluations, total=total, description=describe(last, threshold))

        yield watch


def describe(checkpoint: Checkpoint, threshold: float | None) -> str:
    """One line: the ratio of the worst class, that of the target, and what is left."""
    text = f"error/range {checkpoint.worst_ratio:.3f} (target {checkpoint.target_ratio:.3f})"
    if threshold is None:
        return text
    left = forecast(checkpoint, threshold)
    if left == float("inf"):
        return f"{text}, to {threshold:g}: not known yet"
    return f"{text}, to {threshold:g}: about {left:,.0f} left"
