"""A model built by hand whose prediction depends on one marked patch: which methods rank that patch first.

The red channel of a patch marks it, the other two are its evidence for two classes. In the last block the class token
attends to marked patches and copies their evidence; every other patch has evidence for the other class and no mark.
"""

from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

import vitshap

MARKED = 6
RED, GREEN, BLUE, CLASS_TOKEN, HIGH, LOW = range(6)
OPTIONS: dict[str, dict[str, Any]] = {
    "kernelshap": {"budget": 2000},
    "kernelshap-original": {"budget": 2000},
    "permutation": {"budget": 2000},
    "expected-gradients": {"references": torch.zeros(1, 3, 8, 8, dtype=torch.float64)},
}
NOT_FIRST = {
    "random": "scores are random",
    "vargrad-pixel": "noise of standard deviation 1 marks other patches at random, and the variance is largest there",
    "vargrad-embedding": "the same",
    "gradcam-attention": "its head weight is the mean gradient over patches, here negative: the map is all zero",
    "exact": "the same values as kernelshap, in 65,536 evaluations",
    "explainer": "it needs a trained network",
}


@pytest.fixture(scope="module")
def model() -> Any:
    net = VisionTransformer(
        img_size=8, patch_size=2, embed_dim=8, depth=2, num_heads=1, mlp_ratio=1, num_classes=2, qkv_bias=False
    )
    net = net.double().eval()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        for channel in (RED, GREEN, BLUE):  # the mean of the patch's pixels
            net.patch_embed.proj.weight[channel, channel] = 0.25
        net.cls_token[..., CLASS_TOKEN] = 2
        net.pos_embed[..., HIGH], net.pos_embed[..., LOW] = 3, -3  # so that norms divide by about the same number
        qkv = net.blocks[1].attn.qkv.weight.view(3, 8, 8)
        qkv[0, 0, CLASS_TOKEN] = 8
        qkv[1, 0, RED] = 8
        qkv[2, GREEN, GREEN] = qkv[2, BLUE, BLUE] = 1
        net.blocks[1].attn.proj.weight.copy_(torch.eye(8))
        net.head.weight[0, GREEN] = net.head.weight[1, BLUE] = 2
    return vitshap.wrap(net)


@pytest.fixture(scope="module")
def image() -> Tensor:
    patches = torch.zeros(1, 3, 4, 4, dtype=torch.float64)
    patches[:, GREEN], patches[:, BLUE] = -1, 1  # evidence for the other class, unmarked
    patches.view(1, 3, 16)[0, :, MARKED] = torch.tensor([2.0, 1.0, -1.0], dtype=torch.float64)
    return patches.repeat_interleave(2, 2).repeat_interleave(2, 3)


def test_the_prediction_depends_on_the_marked_patch_alone(model: Any, image: Tensor) -> None:
    others = torch.ones(1, 2, 16, dtype=torch.bool)
    others[0, 1] = False
    others[0, 1, MARKED] = True
    with torch.no_grad():
        everything, marked_alone = model(image, others)[0]
        without = model(image, ~others[:, 1:] & others[:, :1])[0, 0]
    assert everything[0] > 0.6
    assert float((everything - marked_alone).abs().max()) < 1e-3
    assert without[0] < 0.4


@pytest.mark.parametrize("name", [name for name in vitshap.list_methods() if name not in NOT_FIRST])
def test_the_marked_patch_is_first(name: str, model: Any, image: Tensor) -> None:
    values = vitshap.method(name, model, **OPTIONS.get(name, {}))(image, target=0).values[0, :, 0]
    assert int(values.argmax()) == MARKED, name
    assert float(values[MARKED]) > 0
