"""Randomisation: does an explanation change when the model's weights become random (Adebayo et al. 2018)?

The efficient form (Hedström et al. 2024) needs one more explanation: the complexity of the map, the entropy of the
histogram of its values, should rise when all weights are random, because a random model has nothing to point at. The
original form randomises layer by layer from the head to the input and compares each map with the first one: a method
whose map stays similar does not explain the model. Weights are randomised in a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from vitshap.explanation import Explanation
from vitshap.methods import ExplainableModel, Method, MethodLike
from vitshap.metrics.base import MetricResult, check_matches, named_method
from vitshap.metrics.statistics import correlate, is_constant

MethodFactory: TypeAlias = Callable[[Any], Any]
"""From a model to a method made for it."""
BINS = 100


@dataclass(frozen=True, eq=False, kw_only=True)
class Randomisation(MetricResult):
    """Complexities and similarities; ``values`` is the relative rise of the complexity, (after - before) / before."""

    before: Tensor
    """Entropy of the histogram of the given explanation's values, float64 ``[B, T]``; NaN for constant values."""
    after: Tensor
    """The same for the model with random weights, ``[B, T]``."""
    layers: tuple[str, ...]
    """Layers in the order in which they were randomised, from the head; empty if all were at once."""
    similarity: Tensor
    """Spearman correlation with the given explanation after each of the ``layers``, float64 ``[B, T, L]``."""


def randomisation(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    /,
    *,
    method: MethodLike | MethodFactory | None = None,
    layer_by_layer: bool = False,
    bins: int = BINS,
    seed: int = 0,
) -> Randomisation:
    """Explain the images again with random weights; higher is better: the map becomes more complex.

    ``method``: the method that made the explanation, of whose model a copy is randomised; or a function from a model to a
    method, which is given a copy of ``surrogate``; None: the method of the explanation's name with its default options.
    ``layer_by_layer``: randomise the head first, then each block before it, and explain after every step. It is undefined
    for a trained explainer, which explains the surrogate that it was trained for only, and for stored values.
    """
    pixels = surrogate.prepare(images).pixels
    check_matches(surrogate, pixels, explanation)
    if bins < 2:
        raise ValueError(f"a histogram needs at least 2 bins, got {bins}")
    before = complexity(explanation.values, explanation.player_mask, bins)
    made = _model_and_factory(method, explanation, surrogate)
    layers, similarity, after = [], [], torch.full_like(before, torch.nan)
    if made is not None:
        model, factory = copy.deepcopy(made[0]), made[1]
        groups = weight_groups(model)
        for number, (name, modules) in enumerate(groups):
            _randomise(modules, seed + number)
            if not layer_by_layer and number < len(groups) - 1:
                continue
            found = _again(factory, model, pixels, explanation)
            after = complexity(found.values, explanation.player_mask, bins)
            if layer_by_layer:
                layers.append(name)
                similarity.append(_similarity(explanation, found))
    return Randomisation(
        metric="randomisation",
        values=(after - before) / before,
        classes=explanation.classes,
        higher_is_better=True,
        class_specific=explanation.class_specific,
        before=before,
        after=after,
        layers=tuple(layers),
        similarity=torch.stack(similarity, 2) if similarity else before.new_empty(*before.shape, 0),
    )


def _model_and_factory(
    method: MethodLike | MethodFactory | None, explanation: Explanation, surrogate: ExplainableModel
) -> tuple[ExplainableModel, MethodFactory] | None:
    """Return the model to be randomised and how a method is made for it; None if it cannot be made for another model."""
    if method is None:
        return None if named_method(explanation, surrogate) is None else (surrogate, partial(named_method, explanation))
    if isinstance(method, Method):
        return method.model, lambda model: replace(method, model=model)
    return None if hasattr(method, "samples") else (surrogate, method)


def complexity(values: Tensor, player_mask: Tensor | None = None, bins: int = BINS) -> Tensor:
    """Return the entropy of the histogram of values ``[B, d, T]`` between their extremes, in nats: float64 ``[B, T]``."""
    numbers = values.double().transpose(1, 2)  # [B, T, d]
    where = torch.ones_like(numbers, dtype=torch.bool)
    if player_mask is not None:
        where = player_mask[:, None].expand_as(numbers)
    constant = is_constant(values.transpose(1, 2), where)
    low = numbers.masked_fill(~where, torch.inf).amin(2, keepdim=True)
    high = numbers.masked_fill(~where, -torch.inf).amax(2, keepdim=True)
    width = (high - low).clamp(min=torch.finfo(torch.float64).tiny)
    place = ((numbers - low) / width * bins).long().clamp(0, bins - 1)
    count = numbers.new_zeros(*numbers.shape[:2], bins).scatter_add(2, place, where.double())
    share = count / count.sum(2, keepdim=True)
    return -torch.xlogy(share, share).sum(2).masked_fill(constant, torch.nan)


def weight_groups(model: ExplainableModel) -> list[tuple[str, list[nn.Module]]]:
    """Return names and modules with weights of their own, from the head to the input.

    Head, blocks and embedding of a transformer; of another network, each of its modules.
    """
    net = model.adapter.net
    block_of = {id(module): i for i, block in enumerate(model.adapter.blocks) for module in block.modules()}
    owners = [(name, m) for name, m in net.named_modules() if any(True for _ in m.parameters(recurse=False))]
    if not block_of:
        return [(name or type(module).__name__, [module]) for name, module in reversed(owners)]
    groups: dict[str, list[nn.Module]] = {}
    last = max(i for i, (_, module) in enumerate(owners) if id(module) in block_of)
    for i, (_, module) in enumerate(owners):
        block = block_of.get(id(module))
        name = f"block {block}" if block is not None else "head" if i > last else "embedding"
        groups.setdefault(name, []).append(module)
    order = ["head", *(f"block {i}" for i in reversed(range(len(model.adapter.blocks)))), "embedding"]
    return [(name, groups[name]) for name in order if name in groups]


def _randomise(modules: list[nn.Module], seed: int) -> None:
    """Initialise weights anew; those without an initialisation of their own keep their mean and standard deviation."""
    devices = {parameter.device for module in modules for parameter in module.parameters(recurse=False)}
    with torch.random.fork_rng(devices=[d for d in devices if d.type == "cuda"]), torch.no_grad():
        torch.manual_seed(seed)
        for module in modules:
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.numel() > 1:
                    parameter.normal_(float(parameter.mean()), float(parameter.std()))


def _again(factory: MethodFactory, model: Any, pixels: Tensor, explanation: Explanation) -> Explanation:
    found: Explanation = factory(model)(pixels, target=explanation.classes)
    if found.values.shape != explanation.values.shape:
        given, wanted = list(found.values.shape), list(explanation.values.shape)
        raise ValueError(
            f"make returned a method with values {given}, the explanation has {wanted}: give it the same players"
        )
    return found


def _similarity(one: Explanation, two: Explanation) -> Tensor:
    where = None if one.player_mask is None else one.player_mask[:, None]
    return correlate(one.values.transpose(1, 2), two.values.transpose(1, 2), "spearman", where)
