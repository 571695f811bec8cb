"""The explainer network on every family of nets."""

import math
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.models import nets
from vitshap.explainers import Explainer
from vitshap.explainers.network import (
    LARGEST,
    ExplainerConfig,
    ExplainerNetwork,
    Head,
    Trunk,
    normalised,
    uniform_shares,
)
from vitshap.models import wrap
from vitshap.players import blocks, from_labels, patches


@pytest.mark.parametrize("name", nets.FAMILIES)
def test_every_family_lends_its_trunk(name: str) -> None:
    model = wrap(nets.build(name), check=False)
    network = ExplainerNetwork(model).train()
    pixels = nets.images(name)
    values = network(pixels, model.players)
    assert values.shape == (2, model.num_players, nets.CLASSES)
    values.square().sum().backward()
    without = [n for n, p in network.named_parameters() if p.requires_grad and p.grad is None]
    assert without == [], "what gets no gradient must not be trained"
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in network.trunk.parameters())


def test_the_trunk_starts_as_the_surrogate_and_is_a_copy() -> None:
    model = wrap(nets.build("timm ViT"))
    network = ExplainerNetwork(model)
    for a, b in zip(network.trunk.parameters(), model.net.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a is not b
    fresh = ExplainerNetwork(model, ExplainerConfig(init="scratch"))
    pairs = list(zip(fresh.trunk.blocks.parameters(), model.net.blocks.parameters(), strict=True))
    assert all(not torch.equal(a, b) for a, b in pairs)


ABLATION = [
    *(
        ExplainerConfig(extra_block=block, train_trunk=train, init=init, tanh=tanh)
        for block, train, init, tanh in product([False, True], [False, True], ["surrogate", "scratch"], [False, True])
    ),
    ExplainerConfig(init="classifier"),
    ExplainerConfig(tanh=False, magnitudes=True),
    ExplainerConfig(trunk="unet"),
    ExplainerConfig(trunk="unet", init="scratch", extra_block=False, train_trunk=False, tanh=False),
]


@pytest.mark.parametrize("name", ["timm ViT", "transformers ViT", "torchvision ViT"])
def test_every_row_of_the_ablation_trains_what_it_says_and_nothing_idle(name: str) -> None:
    model = wrap(nets.build(name), check=False)
    classifier = wrap(nets.build(name, seed=7), check=False)
    pixels = nets.images(name)
    for config in ABLATION:
        explainer = Explainer(model, config, classifier=classifier).train()
        values = explainer.values(pixels, model(pixels))
        assert values.shape == (2, model.num_players, nets.CLASSES)
        values.square().sum().backward()
        trainable = {n: p for n, p in explainer.named_parameters() if p.requires_grad}
        assert [n for n, p in trainable.items() if p.grad is None] == [], config
        assert any(n.startswith("network.trunk.") for n in trainable) == config.train_trunk
        assert all(p.requires_grad for p in explainer.network.head.parameters())


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("transformers BEiT class token", "shared_position_bias"),
        ("timm RoPE mixed", "rope"),
    ],
)
def test_what_all_blocks_share_is_trained_too(name: str, shared: str) -> None:
    network = ExplainerNetwork(wrap(nets.build(name), check=False))
    found = [p.requires_grad for n, p in network.trunk.named_parameters() if shared in n]
    assert found
    assert all(found)


@cache
def _explained(trunk: Trunk) -> tuple[Explainer, torch.Tensor, torch.Tensor]:
    """An explainer, five images, and the values of each when explained alone."""
    torch.manual_seed(0)
    explainer = Explainer(wrap(nets.build("timm ViT")), ExplainerConfig(trunk=trunk))
    pixels = nets.images("timm ViT", n=5)
    return explainer, pixels, torch.cat([explainer(pixels[i : i + 1]).values for i in range(5)])


@pytest.mark.parametrize("trunk", ["own", "unet"])
@settings(deadline=None, max_examples=10)
@given(order=st.lists(st.integers(0, 4), min_size=1, max_size=7))
def test_an_image_has_the_same_values_in_any_batch(trunk: Trunk, order: list[int]) -> None:
    explainer, pixels, alone = _explained(trunk)
    torch.testing.assert_close(explainer(pixels[order]).values, alone[order], rtol=0, atol=1e-6)
    assert (alone[0] - alone[1]).abs().max() > 1e-3, "images must differ for this to mean anything"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_pixels_that_are_not_finite_are_named(bad: float) -> None:
    explainer, pixels, _ = _explained("own")
    pixels = pixels.clone()
    pixels[2, 0, 3, 3] = bad
    with pytest.raises(ValueError, match="pixels that are not finite"):
        explainer(pixels)


def test_values_are_learned_in_units_of_the_outputs() -> None:
    model = wrap(nets.build("timm ViT"), output="identity")
    explainer = Explainer(model)
    pixels = nets.images("timm ViT")
    full = model(pixels)
    assert torch.equal(explainer.scale, torch.ones(nets.CLASSES))
    std = torch.tensor([1.0, 2.0, 1e-3, 50.0, 7.0], dtype=torch.float64)
    before = explainer.values(pixels, full)
    explainer.set_scale(std)
    after = explainer.values(pixels, full)
    torch.testing.assert_close(after.sum(1), full - explainer.null_values)  # efficient in any unit
    # What normalisation shifts is the mean over players; differences from it are in the unit.
    centred = (before - before.mean(1, keepdim=True)) * std.float()
    torch.testing.assert_close(after - after.mean(1, keepdim=True), centred, rtol=1e-4, atol=1e-5)
    other = Explainer(model)
    other.load_state_dict(explainer.state_dict())
    assert torch.equal(other.scale, std.float())
    assert torch.equal(other.values(pixels, full), after)
    assert "scale" not in dict(explainer.named_parameters())


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 1e-60])
def test_an_impossible_scale_is_refused_and_changes_nothing(bad: float) -> None:
    explainer = Explainer(wrap(nets.build("timm ViT")))
    std = torch.ones(nets.CLASSES, dtype=torch.float64)
    std[3] = bad
    with pytest.raises(ValueError, match=r"one positive, finite standard deviation per output, \[5\]; got \["):
        explainer.set_scale(std)
    with pytest.raises(ValueError, match=r"per output, \[5\]; got \[1\.0, 1\.0, 1\.0, 1\.0\]:"):
        explainer.set_scale(torch.ones(4))
    assert torch.equal(explainer.scale, torch.ones(nets.CLASSES))


def test_a_net_without_a_trunk_is_sent_to_the_unet() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    model = wrap(net, removal="pixels", image_size=32)
    with pytest.raises(ValueError, match=r'Sequential cannot be the trunk.*trunk="unet"'):
        Explainer(model)


def test_options_of_the_ablation() -> None:
    model = wrap(nets.build("timm ViT"))
    frozen = ExplainerNetwork(model, ExplainerConfig(train_trunk=False))
    assert not any(p.requires_grad for p in frozen.trunk.parameters())
    assert all(p.requires_grad for p in frozen.head.parameters())
    short = ExplainerNetwork(model, ExplainerConfig(extra_block=False))
    assert sum(p.numel() for p in short.head.parameters()) < sum(p.numel() for p in frozen.head.parameters())
    pixels = nets.images("timm ViT")
    with torch.no_grad():
        for parameter in frozen.head.layers[-1].parameters():
            parameter.mul_(100)
        assert frozen(pixels, model.players).abs().max() <= 1
        loose = ExplainerNetwork(model, ExplainerConfig(tanh=False, output_scale=50.0))
        assert loose(pixels, model.players).abs().max() > 1


def test_magnitudes_begin_alike_and_scale_the_values_of_a_class() -> None:
    model, pixels = wrap(nets.build("timm ViT")), nets.images("timm ViT")
    plain, sized = (ExplainerNetwork(model, ExplainerConfig(tanh=False, magnitudes=sizes)) for sizes in (False, True))
    sized.head.load_state_dict(plain.head.state_dict(), strict=False)
    with torch.no_grad():
        values = plain.token_values(pixels)
        torch.testing.assert_close(sized.token_values(pixels), values)
        head = sized.head
        assert isinstance(head, Head)
        assert isinstance(head.magnitudes, torch.nn.Sequential)
        last = head.magnitudes[1]
        assert isinstance(last, torch.nn.Linear)
        last.bias[1] = 100.0  # far beyond the bound
        times = torch.ones(values.shape[2])
        times[1] = math.exp(LARGEST)
        torch.testing.assert_close(sized.token_values(pixels), values * times)


def test_profiles_begin_flat_and_change_neither_values_nor_trunk() -> None:
    model, pixels = wrap(nets.build("timm ViT")), nets.images("timm ViT")
    plain, more = (ExplainerNetwork(model, ExplainerConfig(profiles=on)) for on in (False, True))
    more.head.load_state_dict(plain.head.state_dict(), strict=False)
    values, nothing = plain.train().outputs(pixels)
    assert nothing is None
    with_profiles, shares = more.train().outputs(pixels)
    torch.testing.assert_close(with_profiles, values)
    assert shares is not None
    flat = uniform_shares(model.num_players).float()[:, None].expand(-1, model.num_classes)
    torch.testing.assert_close(shares, flat.expand_as(shares))
    shares.square().sum().backward()
    learning = {name for name, p in more.named_parameters() if p.grad is not None and bool(p.grad.abs().sum() > 0)}
    assert learning
    assert all(name.startswith("head.profiles") for name in learning)
    assert more.eval().outputs(pixels)[1] is None  # explanations need none


def test_players_of_several_tokens_have_the_sum() -> None:
    values = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(patches((2, 3)).sum_tokens(values), values)
    by_block = blocks((2, 3), 2).sum_tokens(values)
    torch.testing.assert_close(by_block[:, 0], values[:, [0, 1, 3, 4]].sum(1))
    ragged = from_labels(torch.tensor([[[0, 1, -1], [1, 1, 0]], [[0, 0, 0], [-1, 0, 0]]]), (2, 3))
    summed = ragged.sum_tokens(values)
    torch.testing.assert_close(summed[0, 1], values[0, [1, 3, 4]].sum(0))
    torch.testing.assert_close(summed[1], torch.stack([values[1, [0, 1, 2, 4, 5]].sum(0), torch.zeros(3)]))


def test_normalisation_is_the_projection_and_spares_absent_players() -> None:
    values = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    base, full = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(1))
    efficient = normalised(values, base, full)
    torch.testing.assert_close(efficient.sum(1), full - base)
    shift = efficient - values
    torch.testing.assert_close(shift, shift[:, :1].expand_as(shift))
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    efficient = normalised(values, base, full, mask)
    torch.testing.assert_close(efficient.sum(1), full - base)
    assert efficient[1, [2, 4]].abs().max() == 0


@pytest.mark.parametrize("masked", [False, True])
def test_normalised_values_add_up_whatever_is_added_to_all_players(masked: bool) -> None:
    small = 1e-4 * torch.randn(1, 196, 2, generator=torch.Generator().manual_seed(0))
    base, full = torch.full((2, 1, 2), 1e-3)
    mask = torch.arange(196)[None] < 190 if masked else None
    efficient = normalised(small + 0.95, base, full + 1e-3, mask)
    # The largest error of a float32 sum of values of this size, far below that of a sum of 196 values near 1
    assert (efficient.double().sum(1) - 1e-3).abs().max() < 1e-8
