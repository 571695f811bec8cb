"""A converted net is equal to its original, on whole images and on coalitions, or it is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import transformers
from torch import Tensor, nn

import vitshap
from vitshap.models.convert import as_transformers

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5, "img_size": 32, "patch_size": 8}


def _net(name: str = "vit_tiny_patch16_224", **options: Any) -> nn.Module:
    """Random weights everywhere: libraries start biases at zero, where a lost one would not be missed."""
    torch.manual_seed(0)
    net = timm.create_model(name, **options).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            scale = 0.3 if parameter.ndim < 2 else parameter[0].numel() ** -0.5
            parameter.add_(torch.randn_like(parameter) * scale)
    return net


def _images(net: Any, n: int = 2) -> Tensor:
    size = net.patch_embed.img_size
    return torch.randn(n, net.in_chans, *size, generator=torch.Generator().manual_seed(1))


EQUAL: dict[str, dict[str, Any]] = {
    "ViT": {},
    "DeiT": {"name": "deit_tiny_patch16_224"},
    "wide images": {"img_size": (24, 40)},
    "grey images": {"in_chans": 1},
    "one class": {"num_classes": 1},
    "narrow MLP": {"mlp_ratio": 1.5},
    "no qkv bias": {"qkv_bias": False},
    "no projection bias": {"proj_bias": False},
    "no position of the class token": {"no_embed_class": True},
    "another eps": {"norm_layer": lambda width, **options: nn.LayerNorm(width, eps=1e-3, **options)},
    "trained with dropout and stochastic depth": {"drop_path_rate": 0.2, "proj_drop_rate": 0.1, "drop_rate": 0.1},
    "timm's own GELU": {"act_layer": "gelu"},
}


@pytest.mark.parametrize("options", EQUAL.values(), ids=list(EQUAL))
def test_logits_are_equal(options: dict[str, Any]) -> None:
    net = _net(**{**SMALL, **options})
    converted = as_transformers(net)
    images = _images(net)
    with torch.no_grad():
        logits = net(images)
        assert torch.allclose(converted(images).logits, logits, atol=1e-5, rtol=1e-5)
    assert (logits[0] - logits[1]).abs().max() > 1e-2, "a net that ignores its image proves nothing"


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_small_patch32_224", "vit_tiny_patch16_384"])
def test_logits_are_equal_at_full_size(name: str) -> None:
    net = _net(name, num_classes=10)
    with torch.no_grad():
        assert torch.allclose(as_transformers(net)(_images(net, 1)).logits, net(_images(net, 1)), atol=1e-5, rtol=1e-5)


def test_coalitions_are_equal() -> None:
    net = _net(**SMALL)
    images, converted = _images(net), as_transformers(net)
    coalitions = torch.rand(2, 6, 16, generator=torch.Generator().manual_seed(2)) < 0.5
    coalitions[:, 0], coalitions[:, 1] = False, True
    with torch.no_grad():
        theirs = vitshap.wrap(net).logits(images, coalitions)
        ours = vitshap.wrap(converted).logits(images, coalitions)
    assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    assert (theirs[:, 2:] - theirs[:, 1:2]).abs().max() > 1e-2, "withholding patches must matter for this to be a test"


def test_the_config_says_what_the_net_is() -> None:
    names = ["ant", "bee", "cow", "dog", "eel"]
    converted = as_transformers(_net(**SMALL), id2label=names)
    assert isinstance(converted, transformers.ViTForImageClassification)
    assert converted.config.layer_norm_eps == 1e-6
    assert converted.config.num_labels == 5
    assert vitshap.wrap(converted).class_names == names
    assert as_transformers(_net(**SMALL), id2label=dict(enumerate(names))).config.label2id["cow"] == 2
    rebuilt = transformers.ViTForImageClassification(converted.config)
    rebuilt.load_state_dict(converted.state_dict())  # nothing is missing, nothing is left over


def test_weights_are_the_converted_nets_own() -> None:
    net = _net(**SMALL).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    converted = as_transformers(net)
    assert converted.training
    assert all(parameter.requires_grad for parameter in converted.parameters())
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_precision_is_kept() -> None:
    converted = as_transformers(_net(**SMALL).double())
    assert {parameter.dtype for parameter in converted.parameters()} == {torch.float64}


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "register": ("register tokens", {"reg_tokens": 2}),
    "distilled": ("distillation token", {"name": "deit_tiny_distilled_patch16_224"}),
    "qk-norm": ("qk_norm", {"qk_norm": True}),
    "layer scale": ("layer scale", {"init_values": 0.1}),
    "average": ('pooling "avg"', {"global_pool": "avg"}),
    "map": ('pooling "map"', {"global_pool": "map"}),
    "activation": ("activation", {"act_layer": nn.SiLU}),
    "approximate GELU": ("activation", {"act_layer": "gelu_tanh"}),
    "pre_norm": ("pre_norm", {"pre_norm": True}),
    "no class token": ("class token", {"class_token": False, "global_pool": "avg"}),
    "no positions": ("positions", {"pos_embed": "none"}),
    "fc_norm": ("fc_norm", {"fc_norm": True}),
    "no classes": ("num_classes=0", {"num_classes": 0}),
    "several sizes": ("dynamic_img_size", {"dynamic_img_size": True}),
    "inner norms": ("scale_mlp_norm", {"scale_mlp_norm": True}),
    "no layer norm": ("norm", {"norm_layer": "rmsnorm"}),
    "parallel blocks": ("ParallelThingsBlock", {"name": "vit_small_patch16_18x2_224"}),
    "rotary": ("Eva", {"name": "vit_small_patch16_rope_224"}),
}


@pytest.mark.parametrize(("what", "options"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_expressed_is_named(what: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=what):
        as_transformers(_net(**{**SMALL, **options}))


def test_a_layer_that_is_not_plain_is_refused() -> None:
    net: Any = _net(**SMALL)
    torch.nn.utils.parametrizations.weight_norm(net.blocks[1].mlp.fc1)
    with pytest.raises(ValueError, match="plain Linear"):
        as_transformers(net)


def test_other_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="Linear"):
        as_transformers(nn.Linear(2, 2))
