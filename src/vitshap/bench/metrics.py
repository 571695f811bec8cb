"""Time metrics: on a GPU beside plain evaluations of coalitions, on a CPU beside Quantus in one run.

Beside Quantus: the same removal, and withheld patches masked out of attention.

Deletion is Quantus' ``PixelFlipping`` whose steps are whole patches: the same images are evaluated. For sensitivity-n,
``FaithfulnessCorrelation`` blanks as many pixels, but chosen one by one: as many forward passes, of the same cost. Rounds
alternate between the ways, so that a slow moment of the machine does not favour one of them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitshap.bench import speed
from vitshap.bench.speed import Arch, Library, build_net, describe, seconds, synchronize, threads
from vitshap.experiments.tables import Column, Table
from vitshap.explanation import Explanation
from vitshap.methods import method
from vitshap.metrics import deletion, faithfulness, insertion, sensitivity_n
from vitshap.models import wrap
from vitshap.training.values.store import Evaluator

QUIET = {"disable_warnings": True, "display_progressbar": False}


def measure(
    library: Library,
    arch: Arch,
    device: torch.device,
    *,
    images: int = 4,
    step: int = 7,
    subsets: int = 16,
    rounds: int = 3,
    note: Callable[[str], object] = lambda text: None,
) -> Table:
    """Time deletion in steps of ``step`` patches and sensitivity-n of one size with ``subsets`` subsets; one CPU thread."""
    torch.manual_seed(0)
    net = build_net(library, arch).to(device).eval()
    masked, blanked = wrap(net), wrap(net, removal="pixels")
    pixels = torch.randn(images, 3, *masked.image_size, device=device)
    explanation = method("random", masked)(pixels, target=0)
    d = masked.num_players
    table = Table(
        f"{library} ViT-{arch}, {images} images, {describe(device)}",
        (
            Column("metric"),
            Column("way"),
            Column("evaluations", ",.0f"),
            Column("seconds", ".2f", "s"),
            Column("ratio", ".2f", title="times as fast as Quantus"),
        ),
        notes=[
            f"medians of {rounds} alternating rounds after one to warm up; on a CPU one thread and its own time; the "
            "explanations are given. Evaluations are those of Quantus; deletion also evaluates the whole image."
        ],
    )
    steps, half = -(-d // step), d // 2
    work = {
        f"deletion, {step} patches a step": (
            images * steps,
            {
                "Quantus, zero pixels": lambda: quantus_deletion(net, pixels, explanation, step),
                "zero pixels": lambda: deletion(blanked, pixels, explanation, step=step),
                "attention masked, packed": lambda: deletion(masked, pixels, explanation, step=step),
            },
        ),
        f"sensitivity-n, n = {half}": (
            images * (subsets + 1),
            {
                "Quantus, zero pixels": lambda: quantus_sensitivity(net, pixels, explanation, half, subsets),
                "zero pixels": lambda: sensitivity_n(blanked, pixels, explanation, sizes=[half], subsets=subsets),
                "attention masked, packed": lambda: sensitivity_n(
                    masked, pixels, explanation, sizes=[half], subsets=subsets
                ),
            },
        ),
    }
    for name, (evaluations, ways) in work.items():
        note(name)
        with _one_thread(device):
            spent = _alternating(ways, device, rounds)
        first = next(iter(spent.values()))
        for way, took in spent.items():
            table.add(metric=name, way=way, evaluations=evaluations, seconds=took, ratio=first / took)
    return table


def measure_rates(
    library: Library,
    arch: Arch,
    device: torch.device,
    *,
    images: int = 1000,
    batch: int = 64,
    subsets: int = 1000,
    note: Callable[[str], object] = lambda text: None,
) -> Table:
    """Time metrics on a GPU as ``evaluate`` computes them, beside the rate of ``bench coalitions`` in the same run.

    Insertion and deletion are of all ten classes of a quarter of the images, faithfulness of all images.
    """
    coalitions = speed.measure(library, arch, device, note=note)
    rate = dict(zip(coalitions.values("way"), coalitions.values("per_second"), strict=True))["packed and compiled"]
    torch.manual_seed(0)
    evaluator = Evaluator(wrap(build_net(library, arch).to(device)), compiled=True)
    pixels = torch.randn(images, 3, *evaluator.model.image_size, device=device).to(evaluator.dtype)
    drawn = method("random", evaluator.model)(pixels[:batch])
    explanation = replace(drawn, values=torch.randn(drawn.values.shape), class_specific=True)
    inner = (evaluator.model.num_players - 1) * evaluator.model.num_classes
    work: dict[str, tuple[int, int, Callable[..., object]]] = {
        "insertion": (images // 4, inner + 2, insertion),
        "deletion": (images // 4, inner + 2, deletion),
        "faithfulness": (images, subsets + 1, partial(faithfulness, subsets=subsets)),
    }
    table = Table(
        f"{library} ViT-{arch}, {describe(device)}",
        (
            Column("metric"),
            Column("images", ",.0f"),
            Column("seconds", ".2f", "s"),
            Column("evaluations", ",.0f", "1/s"),
            Column("share", ".0%", title="share of the rate of bench coalitions"),
        ),
        notes=[f"bench coalitions in the same run: {rate:,.0f} evaluations per second, packed and compiled"],
    )
    for name, (count, evaluations, metric) in work.items():
        note(name)

        def run(count: int = count, metric: Callable[..., object] = metric) -> None:
            for start in range(0, count, batch):
                some = pixels[start : min(start + batch, count)]
                metric(evaluator.model, some, explanation[: len(some)])

        spent = seconds(run, device, rounds=1)
        done = count * evaluations / spent
        table.add(metric=name, images=count, seconds=spent, evaluations=done, share=done / rate)
    return table


def quantus_deletion(net: nn.Module, pixels: Tensor, explanation: Explanation, step: int) -> NDArray[np.floating]:
    """Return Quantus' curves of the first explained class, ``[B, steps]``: the output after 1, 2, ... steps."""
    import quantus

    players = explanation.values.shape[1]
    per_patch = pixels[0].numel() // players
    metric = quantus.PixelFlipping(
        features_in_step=per_patch * step, perturb_baseline=0.0, abs=False, normalise=False, **QUIET
    )
    return _run(metric, net, pixels, explanation)


def quantus_sensitivity(
    net: nn.Module, pixels: Tensor, explanation: Explanation, size: int, subsets: int
) -> NDArray[np.floating]:
    """Return Quantus' correlations of the first explained class, ``[B]``, with as many pixels as ``size`` patches have."""
    import quantus

    per_patch = pixels[0].numel() // explanation.values.shape[1]
    metric = quantus.FaithfulnessCorrelation(
        nr_runs=subsets,
        subset_size=size * per_patch,
        perturb_baseline=0.0,
        abs=False,
        normalise=False,
        return_aggregate=False,
        **QUIET,
    )
    return _run(metric, net, pixels, explanation)


class OneChannel(nn.Module):
    """A network as Quantus calls it: images with their channels one below the other, to logits.

    Quantus' steps must divide the number of pixels of one channel; with a single channel a step can be whole patches.
    """

    def __init__(self, net: nn.Module, channels: int) -> None:
        super().__init__()
        self.net, self.channels = net, channels

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, also of networks that return an object."""
        found = self.net(images.view(len(images), self.channels, -1, images.shape[3]))
        logits: Tensor = getattr(found, "logits", found)
        return logits


def _run(
    metric: Callable[..., object], net: nn.Module, pixels: Tensor, explanation: Explanation
) -> NDArray[np.floating]:
    """Evaluate a metric of Quantus for the first explained class of each image."""
    batch, channels, height, width = pixels.shape
    labels = explanation.players.expand(batch, *explanation.grid).flatten(1)
    maps = explanation.values[..., 0].gather(1, labels).view(batch, 1, *explanation.grid)
    shares = nn.functional.interpolate(maps, (height, width)).repeat(1, 1, channels, 1)  # [B, 1, C * H, W]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = metric(
            model=OneChannel(net, channels).eval(),
            x_batch=pixels.cpu().flatten(1, 2)[:, None].numpy(),
            y_batch=explanation.classes[:, 0].numpy(),
            a_batch=shares.numpy(),
            channel_first=True,
            softmax=True,
            device=str(pixels.device),
        )
    return np.asarray(found, dtype=np.float64)


def _alternating(ways: dict[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, float]:
    """Return the median seconds of each way over rounds in which all are timed, after one that is not.

    On a CPU they are the process's own, which other processes do not lengthen; all ways have one thread.
    """
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 1):
        for way, run in ways.items():
            start = clock()
            run()
            synchronize(device)
            times[way].append(clock() - start)
    return {way: sorted(spent[1:])[rounds // 2] for way, spent in times.items()}


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    if device.type == "cuda":
        yield
        return
    with threads(1):
        yield
