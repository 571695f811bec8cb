"""A net that is built from its description computes what the described one does; what cannot be described is refused."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from tests.models import nets
from vitshap.models.architecture import build, describe

SIZES = {"img_size": 32, "patch_size": 8, **nets.SMALL}
VISION = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 48}


def _rebuilt(net: nn.Module) -> nn.Module:
    other = build(json.loads(json.dumps(describe(net)))).train(net.training)
    other.load_state_dict(net.state_dict())
    return other


def _answer(net: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        output = net(images)
    return getattr(output, "logits", output)


CHANGED: dict[str, dict[str, Any]] = {
    "as named": {},
    "MLP of no simple ratio": {"mlp_ratio": 1.7},
    "no qkv bias": {"qkv_bias": False},
    "qk-norm": {"qk_norm": True},
    "layer scale": {"init_values": 0.3},
    "registers": {"reg_tokens": 3},
    "no position of the class token": {"no_embed_class": True},
    "norm before the blocks": {"pre_norm": True},
    "grey images": {"in_chans": 1},
    "several sizes": {"dynamic_img_size": True},
    "dropout and stochastic depth, which act in training only": {"drop_path_rate": 0.3, "proj_drop_rate": 0.2},
}


@pytest.mark.parametrize("options", CHANGED.values(), ids=list(CHANGED))
def test_what_was_changed_in_a_timm_net_is_found_in_it(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = timm.create_model("vit_tiny_patch16_224", **{**SIZES, **options}).eval()
    images = torch.randn(2, options.get("in_chans", 3), 32, 32)
    assert torch.equal(_answer(_rebuilt(net), images), _answer(net, images))


def test_only_what_is_unusual_is_written() -> None:
    net = timm.create_model("deit_tiny_patch16_224", num_classes=7)
    assert describe(net) == {
        "library": "timm",
        "name": "deit_tiny_patch16_224",
        "arguments": {"num_classes": 7},
        "dtype": "float32",
    }


def test_a_timm_net_without_a_name() -> None:
    net = VisionTransformer(img_size=(24, 40), patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=5).eval()
    images = torch.randn(2, 3, 24, 40)
    assert torch.equal(_answer(_rebuilt(net), images), _answer(net, images))


def test_torchvision_and_precision() -> None:
    net = torchvision.models.VisionTransformer(**VISION, num_classes=5, representation_size=24).eval().double()
    net.heads[-1] = nn.Linear(24, 9).double()  # for other classes, as people do
    nn.init.normal_(net.heads[-1].weight)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert torch.equal(_answer(_rebuilt(net), images), _answer(net, images))


def test_a_transformers_net_keeps_its_attention_and_its_labels() -> None:
    net: Any = nets.build("transformers ViT eager")
    net.config.id2label = dict(enumerate("abcde"))
    net.config.custom = "kept out"
    other: Any = _rebuilt(net)
    assert other.config._attn_implementation == "eager"
    assert other.config.id2label == net.config.id2label
    assert not hasattr(other.config, "custom")
    for secret in ("_name_or_path", "auto_map", "transformers_version"):
        assert secret not in describe(net)["arguments"]


class Subclass(transformers.ViTForImageClassification):
    """Somebody's own."""


def _exchanged(name: str, path: str, layer: nn.Module) -> nn.Module:
    net = nets.build(name)
    net.set_submodule(path, layer)
    return net


def _narrow(net: nn.Module) -> nn.Module:
    net.get_submodule("blocks.1.attn").num_heads = 2
    return net


REFUSED = {
    "activation": (lambda: _exchanged("timm ViT", "blocks.0.mlp.act", nn.ReLU()), "ReLU instead of GELU"),
    "eps": (
        lambda: torchvision.models.VisionTransformer(**VISION, norm_layer=partial(nn.LayerNorm, eps=1e-3)),
        "eps is 0.001 instead of 1e-06",
    ),
    "size": (lambda: _exchanged("timm ViT", "blocks.0.mlp.fc1", nn.Linear(32, 9)), "blocks.0.mlp.fc1"),
    "head": (lambda: _exchanged("transformers ViT", "classifier", nn.Sequential(nn.Linear(32, 5))), "classifier"),
    "heads": (lambda: _narrow(nets.build("timm ViT")), "blocks.1.attn.num_heads is 2 instead of 4"),
    "subclass": (lambda: Subclass(nets.build("transformers ViT").config), "Subclass"),
    "convolutional": (lambda: torchvision.models.resnet18(), "ResNet"),
    "own": (lambda: nn.Sequential(nn.Linear(2, 2)), "Sequential is not a class of"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=list(REFUSED))
def test_a_net_that_was_changed_by_hand_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe(make())
