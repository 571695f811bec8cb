"""Conversion of games to and from the package shapiq, so that either package's estimators run on the other's games.

shapiq is imported only when a game is converted to it. A shapiq game has one number per coalition, so one input and one
output of a vitshap game are chosen.
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
    """The part of a shapiq game that is used here."""

    n_players: int

    def __call__(self, coalitions: npt.NDArray[np.bool_]) -> npt.NDArray[np.floating[Any]]:
        """Evaluate boolean coalitions ``[n, n_players]``: values ``[n]``."""


def as_shapiq(game: Game, /, output: ClassLike, *, index: int = 0) -> ShapiqGame:
    """Convert one output of one input of ``game`` to a ``shapiq.Game``; the empty coalition gets the value 0.

    ``output`` is a class by number, or by name if the game has ``class_names``. Every call evaluates the whole batch of
    ``game``: convert a game of one input if evaluations are expensive.
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
    """Convert a shapiq game to a ``Game`` of one input and one output."""
    evaluate: Callable[[npt.NDArray[np.bool_]], npt.NDArray[np.floating[Any]]] = shapiq_game

    def value(coalitions: Coalitions) -> Tensor:
        values = np.asarray(evaluate(coalitions[0].cpu().numpy()), dtype=np.float64)
        return torch.from_numpy(values.reshape(1, -1, 1))

    return Game(value, num_players=shapiq_game.n_players, num_outputs=1)


def _values(game: Game, coalitions: npt.NDArray[np.bool_], index: int, output: int) -> npt.NDArray[np.float64]:
    members = torch.from_numpy(np.ascontiguousarray(coalitions, dtype=bool)).to(game.device)
    values: npt.NDArray[np.float64] = game(members)[index, :, output].to(torch.float64).cpu().numpy()
    return values
