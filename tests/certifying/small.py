"""An explainer of four players of digits that is good after seconds of training, and one whose head was never trained."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

from tests.evaluation.small import digits_net
from vitshap.data import load_digits
from vitshap.explainers import Explainer
from vitshap.metrics.bound import kernel_moments
from vitshap.models import MaskedModel, wrap


@lru_cache
def surrogate() -> MaskedModel:
    """Return a network of 2 x 2 players, trained on digits of which some players are withheld."""
    net = digits_net()
    model = wrap(net.net, class_names=net.class_names, players=2)
    train = load_digits().train
    pixels, labels = torch.as_tensor(train.images), train.labels
    random = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.net.parameters(), 3e-3)
    for _ in range(250):
        some = torch.randint(len(pixels), (128,), generator=random)
        shown = torch.rand(128, 1, 4, generator=random) > 0.8 * torch.rand(128, 1, 1, generator=random)
        shown[:64] = True
        loss = F.cross_entropy(model.logits(pixels[some], shown)[:, 0], labels[some])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def untrained() -> Explainer:
    """Return an explainer with a new head."""
    torch.manual_seed(1)
    return Explainer(surrogate()).eval()


@lru_cache
def trained() -> Explainer:
    """Return an explainer that has learned the exact values of the training digits."""
    explainer, pixels = untrained(), torch.as_tensor(load_digits().train.images)
    with torch.no_grad():
        exact = kernel_moments(explainer.surrogate.game(pixels)).shapley_values().float()
        full = explainer.surrogate(pixels)
    scale = exact.std((0, 1))
    random = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(explainer.parameters(), 3e-3)
    for _ in range(250):
        some = torch.randint(len(pixels), (128,), generator=random)
        loss = ((explainer.values(pixels[some], full[some]) - exact[some]) / scale).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return explainer.eval()
