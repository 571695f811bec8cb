"""The authors' published weights fit: their networks, written again, give what ours give with their tensors."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn

from tests.explainers import authors
from tests.models import nets
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.explainers.network import ExplainerNetwork
from vitshap.explainers.weights import convert_authors_state
from vitshap.models import MaskedModel, wrap
from vitshap.models.convert import convert_authors_net

SIZES = {"width": 32, "depth": 2, "heads": 4, "image": 32, "patch": 8}


def _random(net: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.ndim < 2 else 0.15))
    return net.eval()


def _surrogate(theirs: nn.Module) -> MaskedModel:
    net = timm.create_model("vit_tiny_patch16_224", **nets.SMALL, img_size=32, patch_size=8)
    net.load_state_dict(convert_authors_net(theirs.state_dict()))
    return wrap(net.eval())


@torch.no_grad()
def test_their_surrogate_is_ours() -> None:
    theirs = _random(authors.Surrogate(nets.CLASSES, **SIZES), 1)
    model, pixels = _surrogate(theirs), nets.images("timm ViT")
    some = torch.rand(2, 5, 16, generator=torch.Generator().manual_seed(0)) < 0.5
    expected = torch.stack([theirs(pixels, keep) for keep in some.unbind(1)], 1)
    torch.testing.assert_close(model(pixels, some), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(model(pixels), theirs(pixels), atol=1e-5, rtol=0)


@pytest.mark.parametrize("extra_blocks", [0, 1])
@torch.no_grad()
def test_their_explainer_is_ours(extra_blocks: int) -> None:
    surrogate = _random(authors.Surrogate(nets.CLASSES, **SIZES), 1)
    theirs = _random(authors.Explainer(nets.CLASSES, extra_blocks=extra_blocks, **SIZES), 2)
    pixels = nets.images("timm ViT", n=3)
    nothing = torch.zeros(1, 16, dtype=torch.bool)
    expected = theirs(pixels, surrogate(pixels), surrogate(pixels[:1], nothing))
    explainer = Explainer(_surrogate(surrogate), ExplainerConfig(extra_block=extra_blocks > 0, block_norm=False))
    result = explainer.network.load_state_dict(convert_authors_state(theirs.state_dict()), strict=False)
    assert result.unexpected_keys == []
    assert result.missing_keys == ["trunk.head.weight", "trunk.head.bias"], "which no explainer reads"
    torch.testing.assert_close(explainer(pixels).values, expected, atol=1e-5, rtol=0)
    assert expected.std() > 0.05


def test_names_are_those_of_the_published_files() -> None:
    """As they are listed for the published ViT-Base."""
    explainer = authors.Explainer(2, **SIZES).state_dict()
    head = {name.rpartition(".")[0] for name in explainer if not name.startswith("backbone.")}
    block = {f"attention_blocks.0.{name}" for name in ("attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")}
    assert head == block | {"mlps.0", "mlps.1", "mlps.3", "mlps.5"}
    surrogate = authors.Surrogate(2, **SIZES).state_dict()
    assert {name for name in surrogate if not name.startswith("backbone.")} == {"head.weight", "head.bias"}


def test_the_switch_removes_the_norms_and_nothing_else() -> None:
    model = wrap(nets.build("timm ViT"), check=False)

    def names(**config: bool) -> set[str]:
        return set(ExplainerNetwork(model, ExplainerConfig(**config)).head.state_dict())

    assert names() - names(block_norm=False) == {"block.norm1.weight", "block.norm1.bias"}
    plain = names(extra_block=False)
    assert plain - names(extra_block=False, block_norm=False) == {"layers.0.weight", "layers.0.bias"}
    norms = [m for m in ExplainerNetwork(model).head.modules() if isinstance(m, nn.LayerNorm)]
    assert {norm.eps for norm in norms} == {1e-5}


def test_other_tensors_are_refused_by_name() -> None:
    explainer: dict[str, Tensor] = authors.Explainer(2, **SIZES).state_dict()
    with pytest.raises(
        ValueError, match=r"attention_blocks\.1\.attn\.qkv\.weight is no part of the authors' explainer"
    ):
        convert_authors_state(authors.Explainer(2, extra_blocks=2, **SIZES).state_dict())
    with pytest.raises(ValueError, match=r"surrogate\.head\.weight is no part"):
        convert_authors_state({**explainer, "surrogate.head.weight": torch.zeros(2)})
    with pytest.raises(ValueError, match="a head of 2 layers is no part"):
        convert_authors_state({name: t for name, t in explainer.items() if not name.startswith("mlps.5")})
