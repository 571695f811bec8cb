"""The explainer network on every family of nets."""

import pytest
import torch

from tests.models import nets
from vitshap.explainers.network import ExplainerConfig, ExplainerNetwork, normalised, sum_over_players
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


def test_players_of_several_tokens_have_the_sum() -> None:
    values = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sum_over_players(values, patches((2, 3))), values)
    by_block = sum_over_players(values, blocks((2, 3), 2))
    torch.testing.assert_close(by_block[:, 0], values[:, [0, 1, 3, 4]].sum(1))
    ragged = from_labels(torch.tensor([[[0, 1, -1], [1, 1, 0]], [[0, 0, 0], [-1, 0, 0]]]), (2, 3))
    summed = sum_over_players(values, ragged)
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
