"""The U-Net: any image, any grid, any net; one image's values are its own."""

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.models import nets
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.explainers.unet import UNet
from vitshap.models import MaskedModel, wrap
from vitshap.players import blocks

UNET = ExplainerConfig(trunk="unet")


@settings(deadline=None, max_examples=40)
@given(
    grid=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    patch=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    channels=st.integers(1, 4),
    depth=st.integers(0, 4),
    data=st.data(),
)
def test_any_size_works_and_no_image_sees_its_batch(
    grid: tuple[int, int], patch: tuple[int, int], channels: int, depth: int, data: st.DataObject
) -> None:
    torch.manual_seed(0)
    size = (grid[0] * patch[0], grid[1] * patch[1])
    # in training mode too; in float64, for the norm of a group that hardly varies magnifies rounding
    unet = UNet(channels, size, grid, width=16, depth=depth).double().train()
    images = torch.randn(4, channels, *size, dtype=torch.float64)
    together = unet(images)
    assert together.shape == (4, grid[0] * grid[1], 16)
    order = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    torch.testing.assert_close(unet(images[order]), together[order], rtol=1e-9, atol=1e-9)
    together.square().sum().backward()
    assert [n for n, p in unet.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()] == []


def test_every_weight_matters() -> None:
    torch.manual_seed(0)
    unet = UNet(3, (24, 40), (3, 5), width=16)
    assert len(unet.down) == 4  # 24, 12, 6, 3
    unet(torch.randn(2, 3, 24, 40)).square().sum().backward()
    assert [n for n, p in unet.named_parameters() if p.grad is None or p.grad.abs().max() == 0] == []


def test_it_is_as_deep_as_the_image_allows() -> None:
    depths = {side: len(UNet(1, (side, 64), (1, 1), width=16).up) for side in (1, 2, 3, 4, 8, 28, 32, 64)}
    assert depths == {1: 0, 2: 0, 3: 0, 4: 1, 8: 2, 28: 3, 32: 4, 64: 4}


def test_it_learns_which_patch_is_which() -> None:
    """Brightness of each patch on a grid that is not square: values would not fit were rows and columns confused."""
    torch.manual_seed(0)
    unet = nn.Sequential(UNet(1, (6, 10), (3, 5), width=16), nn.Linear(16, 1))
    optimiser = torch.optim.Adam(unet.parameters(), lr=1e-2)
    brightness = torch.rand(64, 3, 5)
    images = brightness.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None]
    wanted = brightness.flatten(1)
    for _ in range(60):
        loss = (unet(images[:48])[..., 0] - wanted[:48]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        unseen = (unet(images[48:])[..., 0] - wanted[48:]).square().mean()
    assert unseen < 0.2 * wanted.var()


def _timm(**options: object) -> MaskedModel:
    return wrap(timm.create_model("vit_tiny_patch16_224", **{**nets.SMALL, **options}).eval(), check=False)


MODELS = {
    "grid of 3 x 7": lambda: _timm(img_size=(6, 14), patch_size=2),
    "one channel, K = 1": lambda: _timm(img_size=10, patch_size=2, in_chans=1, num_classes=1),
    "one patch": lambda: _timm(img_size=4, patch_size=4),
    "blocks": lambda: wrap(nets.build("transformers ViT"), players=3, check=False),
    "convolutions": lambda: wrap(
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
        removal="pixels",
        image_size=(16, 48),
    ),
    "zeroed embeddings": lambda: wrap(nets.build("torchvision ViT"), removal="embeddings", check=False),
}


@pytest.mark.parametrize("name", MODELS)
def test_any_net_can_have_one(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    explainer = Explainer(model, UNET)
    pixels = torch.randn(3, model.adapter.channels, *model.image_size)
    explanation = explainer(pixels)
    assert explanation.values.shape == (3, model.num_players, model.num_classes)
    torch.testing.assert_close(
        explanation.values.sum(1), explanation.full_values - explanation.base_values, rtol=1e-5, atol=1e-5
    )
    alone = torch.cat([explainer(pixels[i : i + 1]).values for i in (2, 0)])
    torch.testing.assert_close(explanation.values[[2, 0]], alone, rtol=0, atol=1e-6)
    explainer.train().values(pixels, model(pixels)).square().sum().backward()
    assert [n for n, p in explainer.named_parameters() if p.grad is None] == []


def test_a_block_has_the_sum_of_its_patches() -> None:
    torch.manual_seed(0)
    model = _timm(img_size=(6, 14), patch_size=2)
    network = Explainer(model, UNET).network.eval()
    pixels = torch.randn(2, 3, 6, 14)
    single = network(pixels, model.players).view(2, 3, 7, nets.CLASSES)
    grouped = network(pixels, blocks((3, 7), 2))
    torch.testing.assert_close(grouped[:, 0], single[:, :2, :2].sum((1, 2)))
    torch.testing.assert_close(grouped[:, -1], single[:, 2, 6])


def test_a_frozen_unet_trains_its_last_layer_alone() -> None:
    model = _timm(img_size=8, patch_size=2)
    explainer = Explainer(model, ExplainerConfig(trunk="unet", train_trunk=False))
    trainable = {n for n, p in explainer.named_parameters() if p.requires_grad}
    assert trainable == {"network.head.weight", "network.head.bias"}
