"""A cooperative game: the value v(s) of every coalition s, for a batch of inputs at once.

Estimators and metrics use nothing but a ``Game``, so they work with a vision transformer, with a table of values and with
a textbook game. A game is deterministic, stores the values of the empty and of the full coalition once they are computed,
and counts its evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral
from typing import TypeAlias

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.errors import did_you_mean
from vitshap.players import Players

ClassLike: TypeAlias = int | str
"""A class by its index or by its name."""
NUMBERS_AT_ONCE = 2**24
"""Largest number of elements in a chunk of coalitions and its values; 64 MiB in float32."""


class Game:
    """Values of coalitions for a batch of ``batch_size`` inputs and ``num_outputs`` outputs (classes)."""

    players: Players | None = None
    """The tokens of each player, if this is a game of images."""

    def __init__(
        self,
        value: Callable[[Coalitions], Tensor],
        /,
        *,
        num_players: int,
        num_outputs: int,
        batch_size: int = 1,
        device: torch.device | str = "cpu",
        player_mask: Tensor | None = None,
    ) -> None:
        """Make a game of ``value``, a function from coalitions bool ``[B, S, d]`` to values ``[B, S, K]``.

        ``player_mask`` (bool ``[B, d]``) marks the players that exist, if inputs have different numbers of players.
        """
        self._value = value
        self.num_players = num_players
        self.num_outputs = num_outputs
        self.batch_size = batch_size
        self.device = torch.device(device)
        self.player_mask = player_mask
        self.class_names: Sequence[str] | None = None
        """Names of the outputs, if they have any."""
        self.evaluations = 0
        """Coalitions evaluated so far per input, the empty and the full one included."""
        self._null: Tensor | None = None
        self._grand: Tensor | None = None

    def __call__(self, coalitions: Coalitions, /, targets: Tensor | None = None) -> Tensor:
        """Evaluate coalitions: values ``[B, S, K]``, or ``[B, S, T]`` for ``targets`` int64 ``[B, T]``.

        ``coalitions``: bool ``[B, S, d]``, or ``[S, d]`` to evaluate the same coalitions for every input.
        """
        check_coalitions(coalitions, self.num_players)
        if coalitions.ndim == 2:
            coalitions = coalitions.expand(self.batch_size, -1, -1)
        if coalitions.ndim != 3 or len(coalitions) != self.batch_size:
            shapes = f"[S, d] or [B, S, d] with B = {self.batch_size}"
            raise ValueError(f"coalitions must be {shapes}, got {list(coalitions.shape)}")
        values = self._value(coalitions)
        expected = (self.batch_size, coalitions.shape[1], self.num_outputs)
        if tuple(values.shape) != expected:
            raise ValueError(f"the game must return values of shape {list(expected)}, got {list(values.shape)}")
        if not bool(torch.isfinite(values).all()):
            raise ValueError("the game returned a value that is not finite (NaN or infinity)")
        self.evaluations += coalitions.shape[1]
        return values if targets is None else _take(values, targets)

    def stream(
        self,
        coalitions: Coalitions | Iterable[Coalitions],
        /,
        targets: Tensor | None = None,
        *,
        chunk: int | None = None,
    ) -> Iterator[Tensor]:
        """Yield values chunk by chunk, so that not all values are in memory at once.

        ``coalitions`` is a tensor, which is split into chunks of ``chunk`` coalitions per input (default:
        ``bounded_chunk``), or an iterable of tensors, which are evaluated one by one.
        """
        if isinstance(coalitions, Tensor):
            coalitions = coalitions.split(chunk or self.bounded_chunk, dim=-2)  # type: ignore[no-untyped-call]
        for part in coalitions:
            yield self(part, targets)

    @property
    def bounded_chunk(self) -> int:
        """Number of coalitions per input that are evaluated at once so that they and their values stay small."""
        return max(1, NUMBERS_AT_ONCE // (self.batch_size * (self.num_players + self.num_outputs)))

    @property
    def null(self) -> Tensor:
        """v of the empty coalition, ``[B, K]``; evaluated once."""
        if self._null is None:
            self._null = self._end(False)
        return self._null

    @property
    def grand(self) -> Tensor:
        """v of the full coalition, ``[B, K]``; evaluated once."""
        if self._grand is None:
            self._grand = self._end(True)
        return self._grand

    def only(self, targets: Tensor, /) -> Game:
        """Return the same game restricted to the outputs ``targets`` (int64 ``[B, T]``); both count its evaluations."""
        part = Game(
            lambda coalitions: self(coalitions, targets),
            num_players=self.num_players,
            num_outputs=targets.shape[1],
            batch_size=self.batch_size,
            device=self.device,
            player_mask=self.player_mask,
        )
        part._null, part._grand = (_take(end[:, None], targets)[:, 0] for end in (self.null, self.grand))
        return part

    def _end(self, member: bool) -> Tensor:
        """Evaluate the full (``member=True``) or the empty coalition, ``[B, K]``."""
        return self(torch.full((1, self.num_players), member, device=self.device))[:, 0]


def class_index(target: ClassLike, class_names: Sequence[str] | None, num_classes: int) -> int:
    """Return the index of a class given by index or name; an unknown name is a ``ValueError`` with a suggestion."""
    if isinstance(target, Tensor) and target.ndim == 0 and not target.is_floating_point():
        target = target.item()
    if isinstance(target, bool) or not isinstance(target, Integral | str):
        raise TypeError(f"a class is an int or a name, got {type(target).__name__}")
    if not isinstance(target, str):
        if not 0 <= target < num_classes:
            raise ValueError(f"classes are 0 to {num_classes - 1}, got {target}")
        return int(target)
    if class_names is None:
        raise ValueError(f'"{target}" is a class name, but the model has none: give the class by number')
    found = [i for i, name in enumerate(class_names) if name == target]
    if len(found) > 1:
        raise ValueError(f'"{target}" names several classes, {found}: give the number')
    if not found:
        raise ValueError(f'no class is named "{target}"{did_you_mean(target, class_names)}')
    return found[0]


def check_coalitions(coalitions: Coalitions, num_players: int) -> None:
    """Raise ``ValueError`` unless these are one or more boolean coalitions of ``num_players`` players."""
    if coalitions.dtype != torch.bool or coalitions.shape[-1:] != (num_players,) or coalitions.numel() == 0:
        given = f"{coalitions.dtype} {list(coalitions.shape)}"
        raise ValueError(f"coalitions must be a bool tensor over {num_players} players (last dimension), got {given}")


def _take(values: Tensor, targets: Tensor) -> Tensor:
    index = targets[:, None, :].expand(-1, values.shape[1], -1)
    return values.gather(2, index.to(values.device))
