"""Networks whose Shapley values are known, and explanations of given values, for tests of metrics."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from vitshap.explanation import Explanation
from vitshap.methods import method
from vitshap.models import MaskedModel, wrap


class Additive(nn.Module):
    """Outputs that are sums of a number for every patch, unless it is blank: an additive game."""

    def __init__(self, weights: Tensor, side: int) -> None:
        """``weights``: ``[patches, K]``; patches have ``side`` x ``side`` pixels."""
        super().__init__()
        self.weights = nn.Parameter(weights)
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        blank = nn.functional.max_pool2d(images.abs().amax(1, keepdim=True), self.side).flatten(1) == 0
        return (~blank).to(self.weights.dtype) @ self.weights


def additive_model(rows: int, columns: int, outputs: int = 2, seed: int = 0, **options: object) -> MaskedModel:
    """A wrapped additive network over a grid; the values of its players are ``model.net.weights``."""
    weights = torch.randn(rows * columns, outputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    players = torch.arange(rows * columns).view(rows, columns)
    size = (2 * rows, 2 * columns)
    made = {"output": "identity", **options}
    return wrap(Additive(weights, 2), removal="pixels", image_size=size, players=players, **made)


def explain(model: MaskedModel, images: Tensor, values: Tensor, **changes: object) -> Explanation:
    """Return given values ``[B, d, K]`` for all classes as an explanation."""
    made = method("random", model)(images)
    values = values.detach().float()
    return replace(made, values=values.expand(len(images), -1, -1).contiguous(), class_specific=True, **changes)
