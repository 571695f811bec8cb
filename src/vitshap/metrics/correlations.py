"""Sensitivity-n, faithfulness and single-patch: values of withheld players correlated with the drop of the output.

Their coalitions do not depend on the explanation. ``coalition_responses`` evaluates them once for a batch of images, and
every method's explanation is compared with the same responses.

For one image the Pearson correlation of the sum of the withheld values with the drop, ``s'phi`` with
``f(x) - f(x_{1-s})``, is that of the sum of the kept values with the output, so both definitions below are correlations
of ``c'phi`` with ``f(x_c)`` over the evaluated coalitions ``c`` of kept players:

==========  ===========  ==============================================================
definition  correlation  sensitivity-n: a subset of n players is
==========  ===========  ==============================================================
"paper"     Pearson      withheld (the paper's formula)
"authors"   Spearman     kept (the code that its authors published)
==========  ===========  ==============================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions, fixed_size, uniform_size
from vitshap.explanation import Explanation
from vitshap.game import NUMBERS_AT_ONCE, Game
from vitshap.methods import ExplainableModel, take_classes
from vitshap.metrics.base import MetricResult, check_matches, game_of
from vitshap.metrics.statistics import Correlation, correlate, is_constant
from vitshap.players import PlayersLike

Definition: TypeAlias = Literal["paper", "authors"]
ResponseMetric: TypeAlias = Literal["sensitivity-n", "faithfulness", "single-patch"]
SUBSETS = 1000
SHARES = 14
"""Sensitivity-n withholds 1/14, 2/14, ... 13/14 of the players: 14, 28, ... 182 of 196."""


@dataclass(frozen=True, eq=False)
class CoalitionResponses:
    """Outputs of a surrogate for coalitions that several explanations are compared with."""

    metric: ResponseMetric
    coalitions: Coalitions
    """The kept players, bool ``[S, d]``, the same for all images, or ``[B, S, d]``, where players differ in number."""
    outputs: Tensor
    """float32 ``[B, S, K]``, or ``[B, S, T]`` of ``classes``."""
    full: Tensor
    """Outputs of the whole images, float32 ``[B, K]`` or ``[B, T]``."""
    classes: Tensor | None = None
    """The outputs that were kept, int64 ``[B, T]``; None: all."""

    def __getitem__(self, images: slice) -> CoalitionResponses:
        """Return the responses of some of the images."""
        coalitions = self.coalitions[images] if self.coalitions.ndim == 3 else self.coalitions
        classes = None if self.classes is None else self.classes[images]
        return CoalitionResponses(self.metric, coalitions, self.outputs[images], self.full[images], classes)

    def of(self, classes: Tensor, subsets: slice) -> Tensor:
        """Return the outputs of these classes (int64 ``[B, T]``) and coalitions, ``[B, T, S]``."""
        columns = self._columns(classes).to(self.outputs.device)
        part = self.outputs[:, subsets]
        return take_classes(part, columns).transpose(1, 2)

    def full_of(self, classes: Tensor) -> Tensor:
        """Return the outputs of the whole images for these classes, ``[B, T]``."""
        return self.full.gather(1, self._columns(classes).to(self.full.device))

    def _columns(self, classes: Tensor) -> Tensor:
        if self.classes is None:
            return classes
        hit = classes[:, :, None] == self.classes.to(classes.device)[:, None]  # [B, T, kept]
        if not bool(hit.any(2).all()):
            image, column = (~hit.any(2)).nonzero()[0].tolist()
            wanted = int(classes[image, column])
            raise ValueError(f"the responses of image {image} do not have class {wanted}: compute them with it")
        return hit.long().argmax(2)


@dataclass(frozen=True, eq=False, kw_only=True)
class SensitivityN(MetricResult):
    """Correlations for every subset size; ``values`` is their mean over the sizes where they are defined."""

    sizes: Tensor
    """Players in a subset, int64 ``[N]``."""
    by_size: Tensor
    """float64 ``[B, T, N]``; NaN where there is no variance."""

    @property
    def undefined_correlations(self) -> int:
        """Number of correlations without variance, over images, classes and sizes."""
        return int(self.by_size.isnan().sum())


def sensitivity_sizes(d: int) -> tuple[int, ...]:
    """Return the subset sizes of sensitivity-n for ``d`` players: 14, 28, ... 182 of 196, or those shares of d."""
    sizes = sorted({round(d * k / SHARES) for k in range(1, SHARES)} & set(range(1, d)))
    if not sizes:
        raise ValueError(f"sensitivity-n needs at least 2 players, got {d}")
    return tuple(sizes)


def coalition_responses(
    surrogate: ExplainableModel,
    images: Any,
    metric_name: ResponseMetric,
    *,
    players: PlayersLike | None = None,
    seed: int = 0,
    subsets: int = SUBSETS,
    sizes: Sequence[int] | None = None,
    definition: Definition = "paper",
    classes: Tensor | None = None,
) -> CoalitionResponses:
    """Evaluate the coalitions of a metric for a batch of images, to be given to it as ``responses=``.

    The options are those of the metric. ``classes`` (int64 ``[B, T]``) keeps only the outputs of these classes: memory is
    images x coalitions x classes numbers. With the default sizes, both definitions of sensitivity-n share responses.
    """
    game = surrogate.game(surrogate.prepare(images).pixels, players=players)
    coalitions = _coalitions(metric_name, game.num_players, seed, subsets, sizes, definition)
    if metric_name == "sensitivity-n":
        coalitions = _of_present(coalitions, game.player_mask, seed)
    coalitions = coalitions.to(game.device)
    kept = None if classes is None else classes.to(game.device)
    full = game.grand if kept is None else game.grand.gather(1, kept)
    outputs = torch.cat([part.float() for part in game.stream(coalitions, kept)], 1)
    return CoalitionResponses(metric_name, coalitions, outputs, full.float(), classes)


def sensitivity_n(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    /,
    *,
    sizes: Sequence[int] | None = None,
    subsets: int = SUBSETS,
    definition: Definition = "paper",
    seed: int = 0,
    responses: CoalitionResponses | None = None,
) -> SensitivityN:
    """Correlate subset sums of the values with the output over subsets of n players, for several n; higher is better.

    ``sizes``: the n (default: ``sensitivity_sizes``). ``subsets``: random subsets of each size, the same for all images and
    methods. ``responses`` from ``coalition_responses`` replace the evaluations and these options. An image with fewer
    players than others has n of its own withheld (or all but n of the largest image's kept), where it has more than n.
    """
    _require(definition)
    d = explanation.values.shape[1]
    name: ResponseMetric = "sensitivity-n"
    if responses is None:
        coalitions = _of_present(_coalitions(name, d, seed, subsets, sizes, definition), explanation.player_mask, seed)
    else:
        coalitions = _checked(responses, name, surrogate, images, explanation).coalitions
    kept = coalitions.sum(-1).view(-1, coalitions.shape[-2])[0].tolist()  # sizes of the coalitions, in blocks
    starts = [i for i, size in enumerate(kept) if i == 0 or size != kept[i - 1]]
    blocks = [slice(start, end) for start, end in zip(starts, [*starts[1:], len(kept)], strict=True)]
    found = _correlations(surrogate, images, explanation, coalitions, blocks, definition, responses)
    number = torch.tensor([d - kept[b.start] if definition == "paper" else kept[b.start] for b in blocks])
    order = number.argsort()
    by_size = found[..., order]
    return SensitivityN(
        metric=name,
        values=by_size.nanmean(2),
        classes=explanation.classes,
        higher_is_better=True,
        class_specific=explanation.class_specific,
        sizes=number[order],
        by_size=by_size,
    )


def faithfulness(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    /,
    *,
    subsets: int = SUBSETS,
    definition: Definition = "paper",
    seed: int = 0,
    responses: CoalitionResponses | None = None,
) -> MetricResult:
    """Correlate subset sums of the values with the output over subsets of all sizes; higher is better.

    A subset's size is uniform on 0 to d, then its members are: the distribution that surrogates are trained with.
    Options as for ``sensitivity_n``.
    """
    _require(definition)
    name: ResponseMetric = "faithfulness"
    if responses is None:
        coalitions = _coalitions(name, explanation.values.shape[1], seed, subsets, None, definition)
    else:
        coalitions = _checked(responses, name, surrogate, images, explanation).coalitions
    everything = [slice(0, coalitions.shape[-2])]
    found = _correlations(surrogate, images, explanation, coalitions, everything, definition, responses)
    return MetricResult(
        metric=name,
        values=found[..., 0],
        classes=explanation.classes,
        higher_is_better=True,
        class_specific=explanation.class_specific,
    )


def single_patch(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    /,
    *,
    responses: CoalitionResponses | None = None,
) -> MetricResult:
    """Rank correlation of the values with the drop of the output when one player alone is withheld; higher is better.

    Leave-one-out on the surrogate is 1 by construction: this favours methods that resemble it.
    """
    name: ResponseMetric = "single-patch"
    if responses is None:
        game = game_of(surrogate, surrogate.prepare(images).pixels, explanation)
        targets = explanation.classes.to(game.device)
        coalitions = _coalitions(name, game.num_players, 0, 0, None, "paper").to(game.device)
        outputs = torch.cat(list(game.stream(coalitions, targets)), 1)
        responses = CoalitionResponses(
            name, coalitions, outputs, game.grand.gather(1, targets), classes=explanation.classes
        )
    else:
        _checked(responses, name, surrogate, images, explanation)
    outputs = responses.of(explanation.classes, slice(None))
    drop = responses.full_of(explanation.classes)[..., None] - outputs
    present = None if explanation.player_mask is None else explanation.player_mask[:, None].to(drop.device)
    values = explanation.values.to(drop.device).transpose(1, 2)  # [B, T, d]
    found = correlate(values, drop, "spearman", present)
    saturated = is_constant(outputs, present)  # the drop is then rounding, of whatever size
    return MetricResult(
        metric=name,
        values=found.masked_fill(saturated, torch.nan).cpu(),
        classes=explanation.classes,
        higher_is_better=True,
        class_specific=explanation.class_specific,
    )


def _correlations(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    coalitions: Coalitions,
    blocks: list[slice],
    definition: Definition,
    responses: CoalitionResponses | None,
) -> Tensor:
    """Correlate the sums of the kept values with the outputs within every block of coalitions: ``[B, T, blocks]``.

    Images are taken a group at a time, so that outputs and sums of one block have at most ``NUMBERS_AT_ONCE`` elements.
    """
    kind: Correlation = "pearson" if definition == "paper" else "spearman"
    pixels = None if responses is not None else surrogate.prepare(images).pixels
    if pixels is not None:
        check_matches(surrogate, pixels, explanation)
    largest = max(block.stop - block.start for block in blocks)
    group = max(1, NUMBERS_AT_ONCE // (largest * explanation.classes.shape[1]))
    groups = []
    for start in range(0, len(explanation), group):
        rows = slice(start, min(start + group, len(explanation)))
        part = explanation[rows]
        game = None if pixels is None else game_of(surrogate, pixels[rows], part)
        groups.append(torch.stack([_block(game, part, coalitions, b, kind, responses, rows) for b in blocks], 2).cpu())
    return torch.cat(groups)


def _block(
    game: Game | None,
    part: Explanation,
    coalitions: Coalitions,
    block: slice,
    kind: Correlation,
    responses: CoalitionResponses | None,
    rows: slice,
) -> Tensor:
    """Correlate sums and outputs of one block of coalitions for some images: ``[B, T]``."""
    if game is not None:
        some = (coalitions if coalitions.ndim == 2 else coalitions[rows])[..., block, :].to(game.device)
        outputs = torch.cat(list(game.stream(some, part.classes.to(game.device))), 1).transpose(1, 2)  # [B, T, S]
    else:
        assert responses is not None
        some = responses[rows].coalitions[..., block, :]
        outputs = responses[rows].of(part.classes, block)
        some = some.to(outputs.device)
    values = part.values.to(outputs.device).double().transpose(1, 2)  # [B, T, d]
    members = some.double().transpose(-1, -2)  # [d, S] or [B, d, S]
    # one product of two matrices if the coalitions are shared: expanding them over images would need much memory
    sums = (values.flatten(0, 1) @ members).view(outputs.shape) if members.ndim == 2 else values @ members  # [B, T, S]
    return correlate(sums, outputs, kind)


def _coalitions(
    metric_name: ResponseMetric,
    d: int,
    seed: int,
    subsets: int,
    sizes: Sequence[int] | None,
    definition: Definition,
) -> Coalitions:
    """Return the kept players of every evaluation of a metric, bool ``[S, d]``; of sensitivity-n size by size."""
    _require(definition)
    if metric_name == "single-patch":
        return ~torch.eye(d, dtype=torch.bool)
    if metric_name not in get_args(ResponseMetric):
        known = ", ".join(get_args(ResponseMetric))
        raise ValueError(f'coalitions that all methods share belong to {known}, not to "{metric_name}"')
    if subsets < 2:
        raise ValueError(f"a correlation needs at least 2 subsets, got {subsets}")
    generator = torch.Generator().manual_seed(seed)
    if metric_name == "faithfulness":
        return uniform_size(d).sample(subsets, generator=generator)
    given = sensitivity_sizes(d) if sizes is None else sorted(set(sizes))
    if not given or given[0] < 1 or given[-1] >= d:
        raise ValueError(f"sizes of subsets of {d} players are 1 to {d - 1}, got {list(given)}")
    kept = sorted(d - n if definition == "paper" else n for n in given)
    return torch.cat([fixed_size(d, n).sample(subsets, generator=generator) for n in kept])


def _of_present(coalitions: Coalitions, present: Tensor | None, seed: int) -> Coalitions:
    """Return coalitions ``[B, S, d]`` that withhold as many of an image's own players as ``coalitions`` ``[S, d]`` of all.

    Absent players would count among those withheld, and sums of values would go with the number of those left. Images
    that have all players, and all images if ``present`` (bool ``[B, d]``) is None, keep the coalitions as they are.
    """
    if present is None or bool(present.all()):
        return coalitions
    withheld = (~coalitions).sum(1, keepdim=True)  # [S, 1]
    order = torch.rand(coalitions.shape, generator=torch.Generator().manual_seed(seed))  # of the players, for any image
    made = [
        coalitions if bool(there.all()) else (order + ~there).argsort(1).argsort(1) >= withheld
        for there in present.cpu()
    ]
    return torch.stack(made)


def _checked(
    responses: CoalitionResponses,
    name: ResponseMetric,
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
) -> CoalitionResponses:
    """Return the responses if they can be of this metric and explanation."""
    batch, d, _ = explanation.values.shape
    if responses.metric != name:
        raise ValueError(f"these responses are of {responses.metric}, not of {name}")
    if len(responses.outputs) != batch or responses.coalitions.shape[-1] != d:
        given = f"{len(responses.outputs)} images and {responses.coalitions.shape[-1]} players"
        raise ValueError(f"the explanation is of {batch} images and {d} players, the responses of {given}")
    if isinstance(images, Tensor):
        check_matches(surrogate, images if images.ndim == 4 else images[None], explanation)
    return responses


def _require(definition: str) -> None:
    if definition not in get_args(Definition):
        raise ValueError(f'definition is "paper" or "authors", got {definition!r}')
