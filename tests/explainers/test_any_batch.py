"""An image has the same values alone and in any batch, order or chunking."""

from __future__ import annotations

import pytest
import torch

from tests.explaining import made
from vitshap.bench.explain import build
from vitshap.explainers import Explainer, bundle

IMAGES = 9


def _random_tiny() -> Explainer:
    """Of the shipped one's size: ViT-Tiny, 196 patches, ten classes; its values differ as learned ones do."""
    explainer, _ = build("tiny", torch.device("cpu"))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in explainer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return explainer


def _shipped() -> Explainer:
    return bundle.load(bundle.shipped()[0])


@pytest.mark.parametrize("make", [_random_tiny, _shipped, made.explainer], ids=["ViT-Tiny", "shipped", "small"])
def test_values_do_not_depend_on_the_batch(make: object) -> None:
    explainer: Explainer = make()  # type: ignore[operator]
    surrogate = explainer.surrogate
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(IMAGES, surrogate.adapter.channels, *surrogate.image_size, generator=generator)
    together = explainer(images)
    assert together.values.std(1).min() > 1e-5, "values that are all alike would prove nothing"
    order = torch.randperm(IMAGES, generator=generator)
    mixed = explainer(images[order])
    for found, wanted in ((mixed.values, together.values[order]), (mixed.prediction, together.prediction[order])):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    for size in (1, 2, 4):
        parts = [explainer(part) for part in images.split(size)]
        for field in ("values", "prediction", "full_values"):
            chunked = torch.cat([getattr(part, field) for part in parts])
            torch.testing.assert_close(chunked, getattr(together, field), rtol=0, atol=1e-6)


def test_chosen_classes_have_the_values_that_all_have() -> None:
    explainer = made.explainer()
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    everything, some = explainer(images), explainer(images, target=[4, 1])
    torch.testing.assert_close(some.values, everything.values[..., [4, 1]], rtol=0, atol=0)
