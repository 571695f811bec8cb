"""How many evaluations an image gets where nobody says: the largest rung of a fixed ladder that is expected to fit a time.

A ladder, and not whatever number fits, so that the choice is the same on machines of similar speed, and so that
``--budget`` with the number that is printed gives the same values bit for bit.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from PIL import Image
from torch import Tensor

from vitshap import plots
from vitshap.coalitions import Coalitions, shapley_kernel
from vitshap.explaining.photos import SHOWN
from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import Method
from vitshap.models.base import net_device_dtype

if TYPE_CHECKING:
    from vitshap.explaining.sources import Source

LADDER = tuple(1024 << step for step in range(7))
"""Evaluations per image, 1,024 to 65,536."""
SECONDS = {"cpu": 60.0, "cuda": 2.0}
"""What an image may take, by kind of device."""
ENOUGH = {"cpu": 1.5, "cuda": 0.2}
"""Seconds of evaluations that are timed: few at once are slower, one by one, than the thousands that follow."""
MOST = 4096
"""Coalitions that are timed at once: as many as methods give to the net at a time."""


def seconds_per_evaluation(source: Source, classes: int, most: int = MOST) -> float:
    """Of the net and of the method's own work for so many classes, from timing both; the net with ``most`` at once."""
    device, dtype = net_device_dtype(source.model.net)
    blank = torch.zeros(1, source.model.adapter.channels, *source.model.image_size, device=device, dtype=dtype)
    game = _game(source, blank)
    most = max(16, min(most, MOST))
    law, generator = shapley_kernel(game.num_players), torch.Generator().manual_seed(0)
    draw = law.sample(most + most % 2, paired=True, generator=generator).to(device)[None]
    game(draw[:, :8])  # the first call pays for what is set up once
    count, spent = 8, 0.0
    while spent < ENOUGH[device.type] and count < most:
        count = min(4 * count, most)
        start = time.perf_counter()
        game(draw[:, :count]).sum().item()  # waits for the device
        spent = time.perf_counter() - start
    return spent / count + own_work(source.method, blank, game.num_players, classes)


def choose(seconds: float, device: torch.device) -> int:
    """The largest rung that is expected to fit, at ``seconds`` per evaluation; the lowest where none does."""
    return max((rung for rung in LADDER if rung * seconds <= SECONDS[device.type]), default=LADDER[0])


def reason(budget: int, seconds: float, device: torch.device) -> str:
    """Why this rung was chosen, in words."""
    limit, where = SECONDS[device.type], "a GPU" if device.type == "cuda" else "a CPU"
    if budget * seconds > limit:
        return f"the fewest of a fixed ladder, though more than {limit:g} s an image are expected"
    rungs = f"{LADDER[0]:,}, {LADDER[1]:,}, ... {LADDER[-1]:,}"
    return f"the most of {rungs} that are expected to take at most {limit:g} s an image on {where}"


def own_work(method: Any, blank: Tensor, players: int, classes: int) -> float:
    """Seconds per evaluation that a method takes itself, from letting it play a game that costs nothing."""
    if not isinstance(method, Method) or not is_dataclass(method) or not hasattr(method, "budget"):
        return 0.0
    weights = torch.linspace(-1, 1, players * classes, device=blank.device).view(players, classes)

    def value(coalitions: Coalitions) -> Tensor:
        return coalitions.float() @ weights

    targets = torch.arange(classes, device=blank.device)[None]
    for budget in LADDER:  # many players need more than the lowest rung
        game = Game(value, num_players=players, num_outputs=classes, device=blank.device)
        start = time.perf_counter()
        try:
            replace(cast(Any, method), budget=budget).compute(game, blank, targets).values.sum().item()
        except ValueError:
            continue
        return (time.perf_counter() - start) / budget
    return 0.0


def seconds_per_map(source: Source) -> float:
    """Of a heatmap as a file, from drawing one twice: the first pays for what is set up once."""
    labels = source.model.players.labels[:1].cpu()
    blank = Explanation(
        values=torch.linspace(-1, 1, source.model.num_players)[None, :, None],
        classes=torch.zeros(1, 1, dtype=torch.int64),
        additive=False,
        unit="score",
        prediction=torch.zeros(1, source.model.num_classes),
        prediction_by="classifier",
        players=labels,
        method=source.method_name,
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2):
            start = time.perf_counter()
            plots.save(blank.plot(Image.new("RGB", (SHOWN, SHOWN)), target=0), Path(folder) / f"{number}.png")
    return time.perf_counter() - start


def _game(source: Source, blank: Tensor) -> Game:
    own = getattr(source.method, "game", None)  # in the precision that the method will use
    if own is not None:
        game: Game = own(blank)
        return game
    return source.model.game(blank, players=getattr(source.method, "players", None))
