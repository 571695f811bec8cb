"""Small nets of every family that ``wrap`` must mask exactly, and an independent way to drop their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

CLASSES = 5
SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": CLASSES}


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, **{**SMALL, "img_size": 32, "patch_size": 8, **options})


def _transformers(cls: str, attention: str = "sdpa", **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        net_class = getattr(transformers, cls)
        config = net_class.config_class(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            num_labels=CLASSES,
            **{"image_size": 32, "patch_size": 8, **options},
        )
        config._attn_implementation = attention
        return net_class(config)

    return build


def _vision(cls: str, attention: str = "sdpa", **options: Any) -> Callable[[], nn.Module]:
    """CLIP and SigLIP: the vision encoder has a configuration of its own."""

    def build() -> nn.Module:
        net_class = getattr(transformers, cls)
        vision = {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "image_size": 32,
            "patch_size": 8,
            **options,
        }
        config = net_class.config_class(vision_config=vision, num_labels=CLASSES)
        config._attn_implementation = attention
        return net_class(config)

    return build


def _torchvision() -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=CLASSES
    )


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "timm ViT": _timm("vit_tiny_patch16_224"),
    "timm ViT, wide grid": _timm("vit_tiny_patch16_224", img_size=(24, 40)),
    "timm DeiT": _timm("deit_tiny_patch16_224"),
    "timm DeiT distilled": _timm("deit_tiny_distilled_patch16_224"),
    "timm DeiT3": _timm("deit3_small_patch16_224"),
    "timm CLIP": _timm("vit_base_patch16_clip_224"),
    "timm DINOv2 registers": _timm("vit_small_patch14_reg4_dinov2", dynamic_img_size=False),
    "timm average pooling": _timm("vit_tiny_patch16_224", global_pool="avg"),
    "timm average pooling, no class token": _timm("vit_tiny_patch16_224", global_pool="avg", class_token=False),
    "timm average pooling with prefix": _timm("vit_tiny_patch16_224", global_pool="avg", pool_include_prefix=True),
    "timm max pooling": _timm("vit_tiny_patch16_224", global_pool="avgmax"),
    "timm SigLIP": _timm("vit_base_patch16_siglip_224"),
    "timm EVA02": _timm("eva02_tiny_patch14_224", mlp_ratio=2),
    "timm EVA": _timm("eva_large_patch14_196", mlp_ratio=2),
    "timm DINOv3": _timm("vit_small_patch16_dinov3"),
    "timm RoPE mixed": _timm("vit_small_patch16_rope_mixed_224"),
    "transformers ViT": _transformers("ViTForImageClassification"),
    "transformers ViT eager": _transformers("ViTForImageClassification", "eager"),
    "transformers DeiT": _transformers("DeiTForImageClassification"),
    "transformers DeiT distilled": _transformers("DeiTForImageClassificationWithTeacher", "eager"),
    "transformers DINOv2": _transformers("Dinov2ForImageClassification", mlp_ratio=2),
    "transformers DINOv2 registers": _transformers(
        "Dinov2WithRegistersForImageClassification", "eager", mlp_ratio=2, num_register_tokens=3
    ),
    "transformers BEiT mean": _transformers(
        "BeitForImageClassification", use_mean_pooling=True, use_relative_position_bias=True
    ),
    "transformers BEiT class token": _transformers(
        "BeitForImageClassification", "eager", use_mean_pooling=False, use_shared_relative_position_bias=True
    ),
    "transformers CLIP": _vision("CLIPForImageClassification"),
    "transformers CLIP eager": _vision("CLIPForImageClassification", "eager"),
    "transformers SigLIP": _vision("SiglipForImageClassification"),
    "transformers SigLIP eager": _vision("SiglipForImageClassification", "eager"),
    "torchvision ViT": _torchvision,
}


def build(name: str, seed: int = 0) -> nn.Module:
    """A net of this family with random weights everywhere (libraries start heads, biases and scales at zero)."""
    torch.manual_seed(seed)
    net = FAMILIES[name]().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim < 2 else 0.15))
    return net


def image_size(name: str) -> tuple[int, int]:
    return (24, 40) if "wide" in name else (32, 32)


def images(name: str, n: int = 2, seed: int = 1) -> Tensor:
    return torch.randn(n, 3, *image_size(name), generator=torch.Generator().manual_seed(seed))


def blocks(net: Any) -> list[nn.Module]:
    if hasattr(net, "blocks"):
        return list(net.blocks)
    if hasattr(net, "vision_model"):
        return list(net.vision_model.encoder.layers)
    if hasattr(net, "base_model"):
        trunk = net.base_model
        return list(trunk.layers if hasattr(trunk, "layers") else trunk.encoder.layer)
    return list(net.encoder.layers)


@contextmanager
def dropping(net: nn.Module, keep: Tensor, prefix: int) -> Iterator[None]:
    """The library's own forward pass, with withheld tokens cut out of its sequence before the first block.

    ``keep``: bool [N]. Knows nothing of vitshap: rows of rotary tables and of position biases are cut alike.
    """
    patches = keep.nonzero().flatten()
    tokens = torch.cat([torch.arange(prefix), prefix + patches])

    def cut_tokens(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (args[0][:, tokens], *args[1:]), kwargs

    def cut_rotations(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("rope") is not None:
            kwargs = {**kwargs, "rope": kwargs["rope"][..., patches, :]}
        return args, kwargs

    def cut_bias(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bias = kwargs.get("attention_mask")
        if bias is not None:
            kwargs = {**kwargs, "attention_mask": bias[:, :, tokens][..., tokens]}
        return args, kwargs

    handles = [blocks(net)[0].register_forward_pre_hook(cut_tokens, with_kwargs=True)]
    for block in blocks(net):
        handles.append(block.register_forward_pre_hook(cut_rotations, with_kwargs=True))
        if "Beit" in type(block).__name__:
            handles.append(block.attention.register_forward_pre_hook(cut_bias, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def dropped_probabilities(net: nn.Module, pixels: Tensor, keep: Tensor, prefix: int) -> Tensor:
    """Probabilities [B, S, K] for keep-masks [B, S, N], one coalition at a time, tokens physically dropped."""
    rows = []
    with torch.no_grad():
        for image, masks in zip(pixels, keep, strict=True):
            for mask in masks:
                with dropping(net, mask, prefix):
                    output = net(image[None])
                rows.append(getattr(output, "logits", output).softmax(-1)[0])
    return torch.stack(rows).view(*keep.shape[:2], -1)
