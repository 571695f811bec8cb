"""Games to and from shapiq: its approximators run on our games, ours on its games.

shapiq is imported only when a game is handed to it. A shapiq game has one number per coalition, so one input and one
output of ours is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.game import ClassLike, Game, class_index


class ShapiqGame(Protocol):
    """What we need of a shapiq game."""

    n_players: int

    def __call__(self, coalitions: npt.NDArray[np.bool_]) -> npt.NDArray[np.floating[Any]]:
        """Values ``[n]`` of boolean coalitions ``[n, n_players]``."""


def as_shapiq(game: Game, /, output: ClassLike, *, index: int = 0) -> ShapiqGame:
    """One output of one input of ``game`` as a ``shapiq.Game``, normalised so that the empty coalition has the value 0.

    ``output`` is the number of a class, or its name where the game has names (``game.class_names``). The game is asked
    for its whole batch: give a game of one input where evaluations are expensive.
    """
    number = class_index(output, game.class_names, game.num_outputs)
    if not 0 <= index < game.batch_size:
        raise ValueError(f"index is 0 to {game.batch_size - 1} for this game, got {index}")
    try:
        import shapiq
    except ImportError as error:
        raise ImportError("as_shapiq needs shapiq: pip install shapiq") from error

    class VitshapGame(shapiq.Game):  # type: ignore[misc]  # shapiq is optional, so unknown to the type checker
        """Values of a vitshap game."""

        def value_function(self, coalitions: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
            return _values(game, coalitions, index, number)

    empty = np.zeros((1, game.num_players), dtype=bool)
    normalization = float(_values(game, empty, index, number)[0])
    wrapped: ShapiqGame = VitshapGame(game.num_players, normalize=True, normalization_value=normalization)
    return wrapped


def from_shapiq(shapiq_game: ShapiqGame, /) -> Game:
    """A game of one input and one output that asks a shapiq game."""
    ask: Callable[[npt.NDArray[np.bool_]], npt.NDArray[np.floating[Any]]] = shapiq_game

    def value(coalitions: Coalitions) -> Tensor:
        values = np.asarray(ask(coalitions[0].cpu().numpy()), dtype=np.float64)
        return torch.from_numpy(values.reshape(1, -1, 1))

    return Game(value, num_players=shapiq_game.n_players, num_outputs=1)


def _values(game: Game, coalitions: npt.NDArray[np.bool_], index: int, output: int) -> npt.NDArray[np.float64]:
    members = torch.from_numpy(np.ascontiguousarray(coalitions, dtype=bool)).to(game.device)
    values: npt.NDArray[np.float64] = game(members)[index, :, output].to(torch.float64).cpu().numpy()
    return values
