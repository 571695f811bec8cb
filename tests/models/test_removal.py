"""The other ways to withhold a patch, each against a computation of its own."""

import pytest
import timm
import torch

from tests.models import nets
from vitshap.coalitions import uniform_size
from vitshap.models import wrap

PIXELS = nets.images("timm ViT")
KEEP = uniform_size(16).sample(10, generator=torch.Generator().manual_seed(5)).view(2, 5, 16)


def _pixel_mask(keep: torch.Tensor) -> torch.Tensor:
    return torch.kron(keep.view(4, 4).float(), torch.ones(8, 8)).bool()


@pytest.mark.parametrize("name", ["timm ViT", "transformers BEiT mean", "torchvision ViT"])
def test_pixels_are_zero_in_the_input(name: str) -> None:
    net = nets.build(name)
    values = wrap(net, removal="pixels").game(PIXELS)(KEEP)
    with torch.no_grad():
        for i in range(2):
            for j in range(5):
                output = net((PIXELS[i] * _pixel_mask(KEEP[i, j]))[None])
                expected = getattr(output, "logits", output).softmax(-1)[0]
                torch.testing.assert_close(values[i, j], expected, rtol=0, atol=1e-5)


def test_embeddings_are_zero_before_positions_are_added() -> None:
    net = nets.build("timm ViT")
    values = wrap(net, removal="embeddings").game(PIXELS)(KEEP)
    with torch.no_grad():
        for i in range(2):
            for j in range(5):
                patches = net.patch_embed(PIXELS[i : i + 1]) * KEEP[i, j][None, :, None]
                logits = net.forward_head(net.norm(net.blocks(net._pos_embed(patches))))
                torch.testing.assert_close(values[i, j], logits.softmax(-1)[0], rtol=0, atol=1e-5)
    assert not net.patch_embed._forward_hooks


def test_softmax_masking_drops_weight_after_the_softmax() -> None:
    net = nets.build("timm ViT")
    values = wrap(net, removal="softmax").game(PIXELS)(KEEP)
    keep = torch.cat([torch.tensor([True]), KEEP[1, 2]]).float()

    def attention(module: torch.nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        x = args[0]
        q, k, v = module.qkv(x).reshape(1, 17, 3, 4, 8).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1) * keep
        return module.proj((weights @ v).transpose(1, 2).reshape(1, 17, 32))

    handles = [block.attn.register_forward_hook(attention) for block in net.blocks]
    with torch.no_grad():
        expected = net(PIXELS[1:2]).softmax(-1)[0]
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(values[1, 2], expected, rtol=0, atol=1e-5)


def test_random_patches_come_from_the_reference_and_the_game_is_a_function() -> None:
    net = nets.build("timm ViT")
    reference = torch.stack([torch.full((3, 32, 32), float(i)) for i in range(4)])
    seen = []
    handle = net.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model = wrap(net, removal="random", reference=reference)
    values = model.game(PIXELS)(KEEP)
    inputs = torch.cat(seen).view(2, 5, 3, 32, 32)
    handle.remove()
    for i in range(2):
        for j in range(5):
            kept = _pixel_mask(KEEP[i, j])
            assert torch.equal(inputs[i, j][:, kept], PIXELS[i][:, kept])
            filled = inputs[i, j][:, ~kept]
            assert set(filled.unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}
    chosen = inputs[:, :, 0][~torch.stack([_pixel_mask(k) for k in KEEP.flatten(0, 1)]).view(2, 5, 32, 32)]
    assert torch.bincount(chosen.long(), minlength=4).min() > 0.1 * len(chosen), "all reference images are used"
    again = model.game(PIXELS[[1]])(KEEP[[1]][:, [3]])
    torch.testing.assert_close(again[0, 0], values[1, 3], rtol=0, atol=1e-6)


def test_all_ways_agree_on_the_whole_image() -> None:
    net = nets.build("timm ViT")
    everything = torch.ones(2, 1, 16, dtype=torch.bool)
    expected = net(PIXELS).softmax(-1).detach()
    for removal in ("attention", "softmax", "pixels", "embeddings"):
        torch.testing.assert_close(wrap(net, removal=removal)(PIXELS, everything)[:, 0], expected, rtol=0, atol=1e-5)
    model = wrap(net, removal="random", reference=PIXELS)
    torch.testing.assert_close(model(PIXELS, everything)[:, 0], expected, rtol=0, atol=1e-5)


def test_pixels_work_with_a_net_that_cannot_be_masked() -> None:
    net = timm.create_model("resnet10t", num_classes=3).eval()
    with pytest.raises(ValueError, match='removal="pixels"'):
        wrap(net)
    model = wrap(net, removal="pixels", image_size=64)
    assert model.grid == (4, 4)
    pixels = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    values = model.game(pixels)(KEEP[:1])
    kept = torch.kron(KEEP[0, 0].view(4, 4).float(), torch.ones(16, 16))
    torch.testing.assert_close(values[0, 0], net(pixels * kept).softmax(-1)[0].detach(), rtol=0, atol=1e-5)


def test_a_label_map_gives_the_grid_where_the_net_has_none() -> None:
    net = timm.create_model("resnet10t", num_classes=3).eval()
    model = wrap(net, removal="pixels", image_size=(60, 80), players=torch.arange(12).view(3, 4))
    assert model.grid == (3, 4)
    with pytest.raises(ValueError, match="do not divide"):
        wrap(net, removal="pixels", image_size=(61, 80))
