"""Where the prior of ``refine`` comes from: another explanation, an explainer, or the network's own tokens.

Patches with similar tokens have similar values. Their similarity is ``exp(p (cos - 1))`` of the tokens, centred over the
image, averaged over four depths; which p from 1 to 2 hardly matters. In some networks (of two layers, for example) tokens
that are similar have similar values only if they are near each other too: the second candidate is that similarity times a
Gaussian of the distance. Patches that the head reads more of, by the attention of the last block, have larger values: their
variance grows as that attention or as its root. The evaluations decide between these.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from vitshap.estimators.posterior import Prior
from vitshap.estimators.refine import equal_shares
from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import take_classes
from vitshap.models.attention import AttentionOverride, KeysOnly
from vitshap.models.base import Adapter, evaluating
from vitshap.players import Players

POWER = 1.5
"""Of the similarity of tokens."""
NEAR = 1.5
"""Standard deviation of the Gaussian of the distance between players, in widths of a player."""
DEPTHS = (1 / 4, 1 / 2, 3 / 4, 1)
"""Of the blocks whose tokens are compared, as shares of all blocks."""
READ = (0.5, 1.0)
"""Powers of a player's attention, relative to its mean, that may be the variance of its value."""
UNREAD = 0.1
"""Added to that variance."""
UNEXPLAINED = 0.2
"""Variance of the error of values without standard errors, relative to that of the values (or to their squared mean, if
that is larger): of trained explainers."""
UNEXPLAINED_SPREAD = 1.5
"""Standard deviation of its logarithm: long training leaves a tenth, one epoch half of the variance."""
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


class Tokens(NamedTuple):
    """What the tokens of images tell of their players."""

    similarity: Tensor
    """Similarity of players by their tokens, and by tokens and distance; correlations, float64 ``[B, 2, d, d]``."""
    attention: Tensor
    """How much the head reads of a player through the last block, relative to the mean over players, float64 ``[B, d]``."""


def token_prior(game: Game, tokens: Tokens | None) -> Prior:
    """Return equal shares of v(1) - v(0), with deviations correlated as the tokens are, and larger where attention is."""
    if tokens is None:
        return equal_shares(game)
    return Prior(equal_shares(game).mean, _by_attention(tokens))


def _by_attention(tokens: Tokens) -> Tensor:
    """Return covariances by tokens, larger where attention is, ``[B, 4, d, d]``."""
    roots = [(tokens.attention**power + UNREAD).sqrt() for power in READ]  # of the variance, [B, d]
    return torch.cat([root[:, None, :, None] * tokens.similarity * root[:, None, None] for root in roots], 1)


def explained_prior(
    explanation: Explanation, game: Game, targets: Tensor, tokens: Tokens | None, known: Calibrated | None = None
) -> Prior:
    """Return the prior whose mean are the values of an explanation of the same images, players and classes.

    ``game`` has the outputs ``targets`` (int64 ``[B, T]``). Where the explanation has standard errors, they are the
    prior's.
    """
    columns = _columns(explanation, targets.cpu())  # [B, T]
    mean = take_classes(explanation.values.double(), columns).to(game.device)
    similarity = None if tokens is None else tokens.similarity
    if explanation.stderr is None:
        candidates = None if tokens is None else torch.cat([tokens.similarity, _by_attention(tokens)], 1)
        size = torch.maximum(mean.var(1), mean.mean(1).square())  # equal values are not known to be right
        return Prior(mean, candidates, UNEXPLAINED * size, spread=UNEXPLAINED_SPREAD)
    stderr = take_classes(explanation.stderr.double(), columns).to(game.device)  # [B, d, T]
    squares = stderr.square()
    present = (squares > 0).any(2)  # [B, d]
    variance = squares.sum(1) / present.sum(1, keepdim=True).clamp(min=1)  # [B, T]
    tiny = torch.finfo(squares.dtype).tiny
    profile = (squares / variance[:, None].clamp(min=tiny)).clamp(min=1e-6).log().mean(2).exp()  # [B, d]
    # Sampling errors of players are independent; those of an explainer are correlated as its calibration found.
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


def read_tokens(adapter: Adapter, pixels: Tensor, players: Players) -> Tokens | None:
    """Run the network on whole images and compare the tokens of players; None for a network without blocks of tokens.

    A player's token, place and attention are the means over its patches. Absent players are like nobody.
    """
    if not adapter.blocks:
        return None
    depths, attention = _forward(adapter, pixels)
    counts = players.sum_tokens(attention.new_ones(*attention.shape, 1))  # [B, d, 1]
    here = (counts > 0).to(attention)
    each = [_similarity(players.sum_tokens(one.double()) / counts.clamp(min=1), here) for one in depths]
    similarity = torch.stack(each).mean(0)  # [B, d, d]
    cells = torch.cartesian_prod(*(torch.arange(side, device=pixels.device) for side in players.grid)).to(attention)
    places = players.sum_tokens(cells.expand(len(pixels), -1, -1)) / counts.clamp(min=1)  # [B, d, 2]
    area = counts.sum(1, keepdim=True) / here.sum(1, keepdim=True)  # [B, 1, 1]: patches of a player
    near = torch.exp(-torch.cdist(places, places).square() / (2 * NEAR**2 * area))
    read = players.sum_tokens(attention[..., None]) / counts.clamp(min=1)  # [B, d, 1]
    mean = read.sum(1, keepdim=True) / here.sum(1, keepdim=True)
    return Tokens(
        torch.stack([similarity, similarity * near], 1), (read / mean.clamp(min=torch.finfo(read.dtype).tiny))[..., 0]
    )


def _similarity(tokens: Tensor, here: Tensor) -> Tensor:
    """Return the similarity ``[B, d, d]`` of players' tokens ``[B, d, D]``; ``here`` (``[B, d, 1]``): 1 if present."""
    centred = (tokens - (tokens * here).sum(1, keepdim=True) / here.sum(1, keepdim=True)) * here
    directions = torch.nn.functional.normalize(centred, dim=2)
    cosine = directions @ directions.transpose(1, 2)
    cosine.diagonal(dim1=1, dim2=2).fill_(1)
    return torch.exp(POWER * (cosine - 1))


class _LastAttention(KeysOnly):
    """Attention over all keys, which remembers the queries and keys of the last call."""

    def __init__(self) -> None:
        super().__init__(None)
        self.last: tuple[Tensor, Tensor, Tensor | None, float | None] | None = None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, dropout: float
    ) -> Tensor:
        self.last = q, k, bias, scale
        return super().__call__(q, k, v, bias, scale, dropout)

    def read(self, weights: Tensor | None) -> Tensor | None:
        """Return the attention of what the head reads (``weights`` over queries; None: all equal), float64 ``[B, L]``."""
        if self.last is None:
            return None
        q, k, bias, scale = self.last
        weights = q.new_ones(q.shape[-2]) if weights is None else weights.to(q.device)
        read = weights.nonzero()[:, 0]  # often the class token alone
        scores = q[:, :, read].float() @ k.float().transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
        rows = (scores if bias is None else scores + bias[..., read, :]).softmax(-1).double().mean(1)  # [B, R, L]
        return (weights[read] / weights.sum()).to(rows) @ rows


def _forward(adapter: Adapter, pixels: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return patch tokens ``[B, N, D]`` of whole images at ``DEPTHS``, and what the head reads of them, ``[B, N]``."""
    found: list[Tensor] = []

    def record(module: Any, args: Any, output: Any) -> None:
        found.append((output[0] if isinstance(output, tuple) else output)[:, adapter.prefix :])

    blocks = adapter.blocks
    chosen = sorted({max(round(share * len(blocks)) - 1, 0) for share in DEPTHS})
    handles = [blocks[index].register_forward_hook(record) for index in chosen]
    attention = _LastAttention()
    try:
        with torch.no_grad(), evaluating(adapter.net), adapter.ready(), AttentionOverride(attention):
            tokens = adapter.embed(pixels)
            adapter.encode(tokens, torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1))
    finally:
        for handle in handles:
            handle.remove()
    read = attention.read(adapter.readout_weights())
    everywhere = torch.ones(found[0].shape[:2], dtype=torch.float64, device=pixels.device)
    return found, everywhere if read is None else read[:, adapter.prefix :]


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
