"""The budget of a sampling method when the user gives none: the largest of a few fixed numbers that fits a time limit.

The numbers are fixed so that machines of similar speed choose the same one, and so that ``--budget`` with the printed
number gives the same values bit for bit.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from vitshap import plots
from vitshap.coalitions import Coalitions, shapley_kernel
from vitshap.explaining.photos import SHOWN
from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import SamplingMethod
from vitshap.models.base import net_device_dtype

if TYPE_CHECKING:
    from vitshap.explaining.source import Source

LADDER = tuple(1024 << step for step in range(7))
"""Evaluations per image, 1,024 to 65,536."""
SECONDS = {"cpu": 60.0, "cuda": 2.0}
"""Time limit per image, by kind of device."""
ENOUGH = {"cpu": 1.5, "cuda": 0.2}
"""Seconds of evaluations to time: a few evaluations take longer, each, than the thousands that follow."""
LONG = 0.5
"""Seconds of a method's own work above which a larger budget is not timed too."""
MOST = 4096
"""Coalitions that are timed at once, at most: as many as methods evaluate at once."""


class Cost(NamedTuple):
    """Expected time per image."""

    per_evaluation: float
    fixed: float = 0.0
    """Seconds that do not depend on the number of evaluations."""

    def seconds(self, budget: int) -> float:
        """Return the seconds of this many evaluations."""
        return self.fixed + self.per_evaluation * budget


def measure_cost(source: Source, classes: int, most: int = MOST) -> Cost:
    """Time the model with up to ``most`` coalitions at once and the method's own work for this many classes."""
    method = source.method
    assert isinstance(method, SamplingMethod)
    device, dtype = net_device_dtype(source.model.net)
    blank = torch.zeros(1, source.model.adapter.channels, *source.model.image_size, device=device, dtype=dtype)
    game = method.game(blank)  # in the precision that the method will use
    most = max(16, min(most, MOST))
    law, generator = shapley_kernel(game.num_players), torch.Generator().manual_seed(0)
    draw = law.sample(most + most % 2, paired=True, generator=generator).to(device)[None]
    game(draw[:, :8])  # the first call includes work that is done once
    count, spent = 8, 0.0
    while spent < ENOUGH[device.type] and count < most:
        count = min(4 * count, most)
        start = time.perf_counter()
        game(draw[:, :count]).sum().item()  # waits for the device
        spent = time.perf_counter() - start
    own = own_work(method, blank, game.num_players, classes)
    return Cost(spent / count + own.per_evaluation, own.fixed)


def choose(cost: Cost, device: torch.device) -> int:
    """Return the largest budget expected to fit the limit; the smallest if none fits."""
    return max((rung for rung in LADDER if cost.seconds(rung) <= SECONDS[device.type]), default=LADDER[0])


def reason(budget: int, cost: Cost, device: torch.device) -> str:
    """Return why this budget was chosen, in words."""
    limit, where = SECONDS[device.type], "a GPU" if device.type == "cuda" else "a CPU"
    if cost.seconds(budget) > limit:
        return f"the smallest budget, although it is expected to take more than {limit:g} s per image"
    rungs = f"{LADDER[0]:,}, {LADDER[1]:,}, ... {LADDER[-1]:,}"
    return f"the largest of {rungs} that is expected to take at most {limit:g} s per image on {where}"


def own_work(method: SamplingMethod, blank: Tensor, players: int, classes: int) -> Cost:
    """Time the method itself on a game that costs nothing, with two budgets: most of a small one's time may be fixed."""
    weights = torch.linspace(-1, 1, players * classes, device=blank.device).view(players, classes)

    def value(coalitions: Coalitions) -> Tensor:
        return coalitions.float() @ weights

    targets = torch.arange(classes, device=blank.device)[None]

    def spent(budget: int) -> float:
        game = Game(value, num_players=players, num_outputs=classes, device=blank.device)
        start = time.perf_counter()
        method.with_budget(budget).compute(game, blank, targets).values.sum().item()
        return time.perf_counter() - start

    for budget in LADDER[:-2]:  # many players need more than the smallest budget
        try:
            spent(budget)  # the first call includes work that is done once
        except ValueError:
            continue
        small = spent(budget)
        if small > LONG:
            return Cost(small / budget)
        per_evaluation = max(0.0, spent(4 * budget) - small) / (3 * budget)
        return Cost(per_evaluation, max(0.0, small - per_evaluation * budget))
    return Cost(0.0)


def seconds_per_map(source: Source) -> float:
    """Return the seconds that writing a heatmap takes, from drawing one twice: the first includes work done once."""
    labels = source.model.players.labels[:1].cpu()
    blank = Explanation(
        values=torch.linspace(-1, 1, source.model.num_players)[None, :, None],
        classes=torch.zeros(1, 1, dtype=torch.int64),
        additive=False,
        unit="score",
        prediction=torch.zeros(1, source.model.num_classes),
        prediction_by="classifier",
        players=labels,
        method=source.method.name,
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2):
            start = time.perf_counter()
            plots.save(blank.plot(Image.new("RGB", (SHOWN, SHOWN)), target=0), Path(folder) / f"{number}.png")
    return time.perf_counter() - start
