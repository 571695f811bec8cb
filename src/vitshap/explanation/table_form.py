"""An explanation as a table and in one line: what notebooks and terminals show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from vitshap.explanation.result import Explanation


def describe(e: Explanation) -> str:
    """``repr``: what was explained and at what cost, without the numbers."""
    images, players, classes = e.values.shape
    grid = " x ".join(map(str, e.grid))
    counts = (
        f"{images} image{'s' * (images != 1)}",
        f"{players} player{'s' * (players != 1)} on a grid of {grid}",
        f"{classes} of {e.prediction.shape[1]} classes",
        f"unit {e.unit}",
        f"{e.evaluations:,} evaluation{'s' * (e.evaluations != 1)} and {e.seconds:.3g} s per image",
    )
    return f"<Explanation by {e.method}: {', '.join(counts)}>"


def position(e: Explanation, image: int, player: int) -> tuple[int, ...]:
    """Where a player is in the grid, counted from 0: its token nearest to the centre of all its tokens."""
    tokens = (e.players[image if len(e.players) > 1 else 0] == player).nonzero()  # [n, axes], in reading order
    distance = (tokens - tokens.double().mean(0)).square().sum(1)
    return tuple(tokens[int(distance.argmin())].tolist())


def to_dataframe(e: Explanation) -> pandas.DataFrame:
    """``Explanation.to_dataframe``."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_dataframe makes a table of the pandas package: pip install pandas") from error
    axes = ("row", "column") if len(e.grid) == 2 else tuple(f"axis_{i}" for i in range(len(e.grid)))
    shared = [position(e, 0, player) for player in range(e.values.shape[1])] if e.player_mask is None else None
    rows: list[dict[str, Any]] = []
    for i in range(len(e)):
        mask = None if e.player_mask is None else e.player_mask[i]
        players = range(e.values.shape[1]) if mask is None else mask.nonzero().flatten().tolist()
        one_map = shared if len(e.players) == 1 else None
        where = {player: one_map[player] if one_map else position(e, i, player) for player in players}
        values = e.values[i].tolist()
        errors = None if e.stderr is None else e.stderr[i].tolist()
        for t, index in enumerate(e.classes[i].tolist()):
            name = None if e.class_names is None else e.class_names[index]
            output = float(e.prediction[i, index])
            for player in players:
                rows.append(
                    {
                        "image": i,
                        "class": index,
                        "class_name": name,
                        "player": player,
                        **dict(zip(axes, where[player], strict=True)),
                        "value": values[player][t],
                        "stderr": float("nan") if errors is None else errors[player][t],
                        "prediction": output,
                    }
                )
    return pandas.DataFrame(rows)
