"""Masked, packed and physically dropped tokens give the same answer, for every family."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.models import nets
from vitshap.models import wrap
from vitshap.models.attention import VariableLength
from vitshap.players import blocks


def _coalitions(d: int, sizes: list[int], seed: int = 3) -> torch.Tensor:
    """Two images, other members in each, these sizes."""
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.rand(2, len(sizes), d, generator=generator).argsort(-1).argsort(-1)
    return ranks < torch.tensor(sizes)[:, None]


@pytest.mark.parametrize("name", nets.FAMILIES)
def test_masked_dropped_and_packed_agree(name: str) -> None:
    net = nets.build(name)
    model = wrap(net)
    pixels, d = nets.images(name), model.num_players
    coalitions = _coalitions(d, [0, 1, d // 2, d - 1, d, 3])
    with torch.no_grad():
        packed = model(pixels, coalitions)
        model.evaluation = "full"
        full = model(pixels, coalitions)
        model.evaluation = "explicit"
        explicit = model(pixels, coalitions)
        whole = model(pixels)
    # Where a head averages patches, no library can average none of them: vitshap's mean of nothing is zero.
    first = 1 if model.adapter.reads_patches else 0
    dropped = nets.dropped_probabilities(net, pixels, coalitions[:, first:], model.adapter.prefix)
    assert (packed[:, first:] - dropped).abs().max() <= 1e-5
    assert (packed - full).abs().max() <= 1e-5
    assert (packed - explicit).abs().max() <= 1e-5
    assert (packed[:, 4] - whole).abs().max() <= 1e-5
    assert (packed[0, 0] - packed[1, 0]).abs().max() <= 1e-6, "with nothing shown, images cannot differ"
    assert packed.std(dim=1).mean() > 1e-3, "a net that ignores its patches proves nothing"


@pytest.mark.parametrize("name", ["timm ViT", "timm EVA02", "timm SigLIP", "transformers BEiT mean", "torchvision ViT"])
def test_gradients_are_those_of_full_length_masking(name: str) -> None:
    model = wrap(nets.build(name))
    pixels, d = nets.images(name), model.num_players
    coalitions = _coalitions(d, [0, 2, d // 2, d])
    gradients = {}
    for evaluation in ("packed", "full"):
        model.zero_grad()
        model.evaluation = evaluation
        model(pixels, coalitions).square().sum().backward()
        gradients[evaluation] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert gradients["packed"].abs().max() > 1e-3
    torch.testing.assert_close(gradients["packed"], gradients["full"], rtol=1e-3, atol=1e-4)


_MODELS: dict[str, object] = {}


@given(
    name=st.sampled_from(["timm ViT, wide grid", "timm DINOv2 registers", "timm average pooling, no class token",
                          "transformers BEiT mean", "timm EVA02", "torchvision ViT"]),
    batch=st.integers(1, 3),
    per_image=st.integers(1, 9),
    budget=st.integers(1, 200),
    side=st.integers(1, 3),
    seed=st.integers(0, 10_000),
)  # fmt: skip
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_the_answer_depends_on_neither_batch_nor_chunk(
    name: str, batch: int, per_image: int, budget: int, side: int, seed: int
) -> None:
    model = _MODELS.setdefault(name, wrap(nets.build(name)))
    players = blocks(model.grid, side)
    generator = torch.Generator().manual_seed(seed)
    pixels = nets.images(name, n=batch, seed=seed)
    shape = (batch, per_image, players.num_players)
    coalitions = torch.rand(shape, generator=generator) < torch.rand(batch, per_image, 1, generator=generator)
    model.max_tokens = budget
    together = model.game(pixels, players=players)(coalitions)
    model.max_tokens = None
    for i in range(batch):
        alone = model.game(pixels[i : i + 1], players=players)(coalitions[i : i + 1, -1:])
        torch.testing.assert_close(together[i : i + 1, -1:], alone, rtol=0, atol=1e-5)


def test_superpixels_differ_between_images() -> None:
    model = wrap(nets.build("timm ViT"))
    pixels = nets.images("timm ViT")
    labels = torch.stack([torch.arange(16).view(4, 4) % 5, torch.arange(16).view(4, 4) % 3])
    coalitions = torch.rand(2, 6, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    game = model.game(pixels, players=labels)
    assert game.num_players == 5
    assert game.player_mask.sum(1).tolist() == [5, 3]
    values = game(coalitions)
    for i in range(2):
        keep = coalitions[i][:, labels[i].flatten()]
        by_patch = model.game(pixels[i : i + 1])(keep[None])
        torch.testing.assert_close(values[i : i + 1], by_patch, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["timm ViT dynamic", "transformers ViT", "transformers DINOv2"])
def test_other_image_sizes_where_the_net_takes_them(name: str) -> None:
    if name == "timm ViT dynamic":
        import timm

        net = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, dynamic_img_size=True, **nets.SMALL)
        net.eval()
    else:
        net = nets.build(name)
    model = wrap(net, image_size=(24, 48))
    assert model.grid == (3, 6)
    pixels = torch.randn(1, 3, 24, 48, generator=torch.Generator().manual_seed(0))
    coalitions = torch.ones(1, 1, 18, dtype=torch.bool)
    torch.testing.assert_close(model(pixels, coalitions)[:, 0], model(pixels), rtol=0, atol=1e-5)


@pytest.mark.parametrize("output", ["softmax", "sigmoid", "identity"])
def test_links(output: str) -> None:
    model = wrap(nets.build("timm ViT"), output=output)
    pixels = nets.images("timm ViT")
    logits = model.net(pixels)
    expected = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid(), "identity": logits}[output]
    torch.testing.assert_close(model(pixels), expected)
    coalitions = torch.ones(2, 1, 16, dtype=torch.bool)
    torch.testing.assert_close(model(pixels, coalitions)[:, 0], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.logits(pixels, coalitions)[:, 0], logits, rtol=0, atol=1e-5)
    assert model.unit == ("output" if output == "identity" else "probability")


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("name", ["transformers ViT", "timm DINOv2 registers", "transformers BEiT mean"])
def test_gradients_are_the_same_from_run_to_run(name: str) -> None:
    model = wrap(nets.build(name))
    pixels = nets.images(name, n=96)
    coalitions = torch.rand(96, 4, model.num_players, generator=torch.Generator().manual_seed(0)) < 0.5
    found = []
    for _ in range(8):
        model.zero_grad()
        model.logits(pixels, coalitions).square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("width", [8, 12])
def test_heads_of_any_width_attend_within_sequences_of_unequal_length(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's kernel is for GPUs, and takes widths that are multiples of eight only."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    lengths = [3, 1, 5]

    def within(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # [T, H, c]
        parts = zip(*(x.transpose(0, 1).split(lengths, 1) for x in (q, k, v)), strict=True)
        return torch.cat([F.scaled_dot_product_attention(*own) for own in parts], 1).transpose(0, 1)

    def kernel(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
        assert q.shape[-1] % 8 == 0, "head_size must be a multiple of 8"
        return within(q, k, v)

    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    q, k, v = torch.randn(3, 1, 2, sum(lengths), width, generator=torch.Generator().manual_seed(0))
    attend = VariableLength(torch.tensor([0, 3, 4, 9], dtype=torch.int32), 5)
    expected = within(*(x[0].transpose(0, 1) for x in (q, k, v)))
    torch.testing.assert_close(attend(q, k, v, None, None, 0.0)[0].transpose(0, 1), expected)
