"""Where the prior of ``refine`` comes from: another explanation, an explainer, or the network's own tokens.

Patches whose tokens look alike have alike values. Their similarity is taken from the tokens of a middle block, centred
over the image: ``exp(p (cos - 1))``. Which block and which p from 1 to 2 hardly matters. In some networks (of two layers,
for example) tokens that look alike have alike values only if they are near each other too: the second candidate is that
similarity times a Gaussian of the distance. The evaluations decide between the two.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vitshap.estimators.posterior import Prior
from vitshap.estimators.refine import equal_shares
from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import take_classes
from vitshap.models.base import Adapter, evaluating
from vitshap.players import Players

POWER = 1.5
"""Of the similarity of tokens."""
NEAR = 1.5
"""Standard deviation of the Gaussian of the distance between players, in widths of a player."""
UNEXPLAINED = 0.12
"""Variance of the error of values without standard errors, relative to that of the values: of trained explainers."""
UNEXPLAINED_SPREAD = 1.0
"""Standard deviation of its logarithm between images."""
SPREAD = 0.5
"""The same for values with standard errors, if it is not known."""
SAME_OUTPUT = 0.1
"""Largest difference of the logarithm of an output at which two predictions can be of the same image."""


class Calibrated(Protocol):
    """What is known of the errors of an explainer beside their size."""

    @property
    def spread(self) -> float: ...  # standard deviation of the logarithm of an image's error variance
    @property
    def white(self) -> float: ...  # share of the variance that is each player's own


@runtime_checkable
class PriorMethod(Protocol):
    """An explainer, as far as a prior is concerned."""

    @property
    def surrogate(self) -> Any: ...
    def __call__(self, images: Any, /, target: Any = None) -> Explanation: ...


def token_prior(game: Game, similarity: Tensor | None) -> Prior:
    """Return equal shares of v(1) - v(0), with a covariance by the similarities ``[B, M, d, d]`` of players."""
    return Prior(equal_shares(game).mean, similarity)


def explained_prior(
    explanation: Explanation, game: Game, targets: Tensor, similarity: Tensor | None, known: Calibrated | None = None
) -> Prior:
    """Return the prior whose mean are the values of an explanation of the same images, players and classes.

    ``game`` has the outputs ``targets`` (int64 ``[B, T]``). Where the explanation has standard errors, they are the
    prior's.
    """
    columns = _columns(explanation, targets.cpu())  # [B, T]
    mean = take_classes(explanation.values.double(), columns).to(game.device)
    if explanation.stderr is None:
        variance = UNEXPLAINED * mean.var(1)
        return Prior(mean, similarity, variance, spread=UNEXPLAINED_SPREAD)
    stderr = take_classes(explanation.stderr.double(), columns).to(game.device)  # [B, d, T]
    squares = stderr.square()
    present = (squares > 0).any(2)  # [B, d]
    variance = squares.sum(1) / present.sum(1, keepdim=True).clamp(min=1)  # [B, T]
    tiny = torch.finfo(squares.dtype).tiny
    profile = (squares / variance[:, None].clamp(min=tiny)).clamp(min=1e-6).log().mean(2).exp()  # [B, d]
    # Sampling errors of players are independent; those of an explainer are as alike as its calibration found.
    spread, white = (SPREAD, 1.0) if known is None else (known.spread, known.white)
    return Prior(mean, similarity, variance, profile, spread, white, stderr)


def check_prior(explanation: Explanation, game: Game, targets: Tensor, players: Players | None) -> None:
    """Raise ``ValueError`` unless the explanation is additive and of these images, players and classes."""
    wrong = None
    if not explanation.additive:
        wrong = f"{explanation.method} is not additive: its values are no prior for Shapley values"
    elif len(explanation) != game.batch_size:
        wrong = f"it explains {len(explanation)} images, and {game.batch_size} are given"
    elif players is not None and not _same_players(explanation, players, game.batch_size):
        wrong = f"its players or their grid of {explanation.grid} are others than the method's on {players.grid}"
    elif explanation.prediction.shape[1] != game.num_outputs:
        wrong = f"its model has {explanation.prediction.shape[1]} outputs, this one {game.num_outputs}"
    elif not _same_outputs(explanation, game.grand):
        wrong = "the model's outputs for the images are others: it explains other images or another model"
    elif not bool((explanation.classes[:, None] == targets.cpu()[:, :, None]).any(2).all()):
        wrong = f"it lacks some of the classes to explain: it has {explanation.classes[0].tolist()} of the first image"
    if wrong is not None:
        raise ValueError(f"prior: {wrong}")


def token_similarity(adapter: Adapter, pixels: Tensor, players: Players) -> Tensor | None:
    """Return how alike the tokens of players are, and how alike and near; None for a network without blocks of tokens.

    float64 ``[B, 2, d, d]``. A player's token and place are the means over its patches. Absent players are like nobody.
    """
    if not adapter.blocks:
        return None
    tokens = middle_tokens(adapter, pixels).double()  # [B, N, D]
    counts = players.sum_tokens(torch.ones_like(tokens[..., :1]))  # [B, d, 1]
    here = (counts > 0).to(tokens)
    means = players.sum_tokens(tokens) / counts.clamp(min=1)  # [B, d, D]
    means = (means - (means * here).sum(1, keepdim=True) / here.sum(1, keepdim=True)) * here
    directions = torch.nn.functional.normalize(means, dim=2)
    cosine = directions @ directions.transpose(1, 2)
    cosine.diagonal(dim1=1, dim2=2).fill_(1)
    alike = torch.exp(POWER * (cosine - 1))
    cells = torch.cartesian_prod(*(torch.arange(side, device=tokens.device) for side in players.grid))
    places = players.sum_tokens(cells.to(tokens).expand(len(tokens), -1, -1)) / counts.clamp(min=1)  # [B, d, 2]
    area = counts.sum(1, keepdim=True) / here.sum(1, keepdim=True)  # [B, 1, 1]: patches of a player
    near = torch.exp(-torch.cdist(places, places).square() / (2 * NEAR**2 * area))
    return torch.stack([alike, alike * near], 1)


def middle_tokens(adapter: Adapter, pixels: Tensor) -> Tensor:
    """Return the patch tokens of whole images after the middle block, ``[B, N, D]``."""
    found: list[Tensor] = []

    def record(module: Any, args: Any, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    block = adapter.blocks[len(adapter.blocks) // 2]
    handle = block.register_forward_hook(record)
    try:
        with torch.no_grad(), evaluating(adapter.net), adapter.ready():
            tokens = adapter.embed(pixels)
            adapter.encode(tokens, torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1))
    finally:
        handle.remove()
    return found[0][:, adapter.prefix :]


def _columns(explanation: Explanation, targets: Tensor) -> Tensor:
    """Return the column of each class ``targets`` ``[B, T]`` in the explanation."""
    return (explanation.classes[:, None] == targets[:, :, None]).int().argmax(2)


def _same_players(explanation: Explanation, players: Players, images: int) -> bool:
    one, other = explanation.players, players.labels.cpu()
    if explanation.values.shape[1] != players.num_players or one.shape[1:] != other.shape[1:]:
        return False
    return torch.equal(one.expand(images, *one.shape[1:]), other.expand(images, *other.shape[1:]))


def _same_outputs(explanation: Explanation, grand: Tensor) -> bool:
    given, own = explanation.prediction.double(), grand.double().cpu()
    if explanation.unit == "probability":
        return bool(((given + 1e-6).log() - (own + 1e-6).log()).abs().max() <= SAME_OUTPUT)
    return bool((given - own).abs().max() <= SAME_OUTPUT * own.abs().max().clamp(min=1e-6))
