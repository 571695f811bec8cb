"""``Explainer``: a surrogate and the network that predicts its Shapley values; it is called as every method is."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from vitshap.explainers.network import ExplainerConfig, ExplainerNetwork, normalised
from vitshap.explanation import Explanation
from vitshap.methods import Target, resolve_target, take_classes
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating


class Explainer(nn.Module):
    """Shapley values in one forward pass, efficient by construction."""

    null_values: Tensor

    def __init__(self, surrogate: MaskedModel, config: ExplainerConfig | None = None) -> None:
        """A network with a fresh head on the surrogate's trunk; the surrogate itself is not trained with it."""
        super().__init__()
        if surrogate.removal == "random":
            raise ValueError('with removal="random" v(0) differs between images: an explainer needs another removal')
        self._surrogate = [surrogate]  # in a list: its weights are neither this module's parameters nor saved with it
        self.network = ExplainerNetwork(surrogate, config)
        blank = torch.zeros(1, surrogate.adapter.channels, *surrogate.image_size)
        parameter = next(surrogate.net.parameters())
        # With every patch withheld images cannot differ, so v(0) is computed once.
        self.register_buffer("null_values", surrogate.game(blank.to(parameter)).null)

    @property
    def surrogate(self) -> MaskedModel:
        """The game whose values are predicted."""
        return self._surrogate[0]

    def values(self, pixels: Tensor, full: Tensor) -> Tensor:
        """Values of all players and classes ``[B, d, K]``, given v(1) ``[B, K]``; gradients flow into the network."""
        raw = self.network(pixels, self.surrogate.players)
        return normalised(raw, self.null_values.expand_as(full), full)

    def forward(self, images: Any, /, target: Target = None) -> Explanation:
        """Explain images (a tensor as the net takes it, PIL images or paths) for ``target``, or for all classes."""
        surrogate = self.surrogate
        prepared = surrogate.prepare(images)
        started = time.perf_counter()
        with torch.no_grad(), evaluating(self), evaluating(surrogate.net):
            full = surrogate(prepared.pixels)
            targets = resolve_target(target, full, surrogate.class_names)
            values = take_classes(self.values(prepared.pixels, full), targets).float().cpu()
        full, targets = full.cpu(), targets.cpu()
        return Explanation(
            values=values,
            classes=targets,
            additive=True,
            unit=surrogate.unit,
            prediction=full,
            prediction_by="surrogate",
            players=surrogate.players.labels.cpu(),
            method="explainer",
            base_values=self.null_values.cpu().expand_as(full).gather(1, targets),
            full_values=full.gather(1, targets),
            image_box=prepared.boxes,
            seconds=(time.perf_counter() - started) / len(full),
            evaluations=1,
            class_names=None if surrogate.class_names is None else tuple(surrogate.class_names),
        )
