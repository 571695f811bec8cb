"""Convert timm's plain vision transformer to the equal model of transformers, and the authors' tensor names to timm's.

Shipped bundles must load with the core dependencies, and timm is not one of them. The two libraries store the same
network differently: timm has query, key and value in one matrix, transformers in three. Only the weights are converted; a
network with a part that transformers' ViT lacks is refused with the name of that part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitshap.models.base import pair, unwrapped

if TYPE_CHECKING:
    from transformers import ViTForImageClassification


def as_transformers(
    net: nn.Module, /, *, id2label: Mapping[int, str] | Sequence[str] | None = None
) -> ViTForImageClassification:
    """Return a ``ViTForImageClassification`` with the same outputs as this timm ``VisionTransformer`` and copied weights.

    The network has a class token that the linear head reads, learned positions, pre-norm blocks and exact GELU, as
    ``deit_tiny_patch16_224`` or ``vit_base_patch16_224``; otherwise a ``ValueError`` names what cannot be converted.
    Dropout and stochastic depth, used in training only, are not converted. ``id2label`` gives the names of the classes.
    """
    plain: Any = unwrapped(net)
    obstacle = next(_obstacles(plain), None)
    if obstacle is not None:
        raise ValueError(f"{type(plain).__name__} has no equal among transformers' ViTs: it has {obstacle}")
    from transformers import ViTConfig, ViTForImageClassification

    names = dict(enumerate(id2label)) if isinstance(id2label, Sequence) else id2label
    if names is None:
        names = {i: f"LABEL_{i}" for i in range(plain.num_classes)}
    config = ViTConfig(**_sizes(plain), id2label=names, label2id={name: i for i, name in names.items()})
    with torch.device("meta"):  # without drawing weights that are replaced at once
        converted: ViTForImageClassification = ViTForImageClassification(config)
    state = {name: tensor.detach().clone() for name, tensor in _weights(plain, config.qkv_bias)}
    converted.load_state_dict(state, assign=True)
    return converted.train(plain.training)


def convert_authors_net(state: Mapping[str, Tensor], /) -> dict[str, Tensor]:
    """Rename the tensors of the authors' classifier, surrogate or masked classifier to those of timm's ViT."""
    return {name.removeprefix("backbone."): tensor for name, tensor in state.items()}


def _obstacles(net: Any) -> Iterator[str]:
    """Yield what transformers' ViT cannot represent."""
    try:
        from timm.models.vision_transformer import PatchEmbed, VisionTransformer
    except ModuleNotFoundError:
        yield f"the class {type(net).__name__}, which is not timm's VisionTransformer (timm is not installed)"
        return
    if hasattr(net, "dist_token"):
        yield "a distillation token"
    if type(net) is not VisionTransformer:
        yield f"the class {type(net).__name__}, which is not timm's plain VisionTransformer"
        return
    stem = net.patch_embed
    if type(stem) is not PatchEmbed or not _is_nothing(stem.norm):
        yield f"a patch embedding ({type(stem).__name__}) that is more than one convolution"
    if net.dynamic_img_size or stem.img_size is None or stem.dynamic_img_pad:
        yield "images of several sizes (dynamic_img_size)"
    if net.cls_token is None:
        yield "no class token"
    if net.reg_token is not None:
        yield f"{net.num_reg_tokens} register tokens"
    if net.pos_embed is None:
        yield "no learned positions"
    if not _is_nothing(net.norm_pre):
        yield "a norm before the blocks (pre_norm)"
    if net.global_pool != "token" or net.attn_pool is not None:
        yield f'pooling "{net.global_pool}" instead of a class token'
    if not _is_nothing(net.fc_norm) or not isinstance(net.norm, nn.LayerNorm):
        yield "no norm right after the blocks (final_norm, fc_norm)"
    if net.num_classes == 0:
        yield "no classification head (num_classes=0)"
    elif type(net.head) is not nn.Linear:
        yield f"a head ({type(net.head).__name__}) that is not linear"
    for block in net.blocks:
        yield from _obstacles_in_block(block)
    yield from _unequal(net)


def _obstacles_in_block(block: Any) -> Iterator[str]:
    from timm.models.vision_transformer import Attention, Block, Mlp

    if type(block) is not Block:
        yield f"blocks ({type(block).__name__}) that are not plain pre-norm blocks"
        return
    if not (_is_nothing(block.ls1) and _is_nothing(block.ls2)):
        yield "layer scale (init_values)"
    attention, mlp = block.attn, block.mlp
    if type(attention) is not Attention or type(mlp) is not Mlp:
        yield f"layers ({type(attention).__name__}, {type(mlp).__name__}) that are not timm's plain attention and MLP"
        return
    if not (_is_nothing(attention.q_norm) and _is_nothing(attention.k_norm)):
        yield "norms of queries and keys (qk_norm)"
    if not (_is_nothing(attention.norm) and _is_nothing(mlp.norm)):
        yield "norms inside attention or MLP (scale_attn_norm, scale_mlp_norm)"
    if getattr(attention, "gate", None) is not None:
        yield "gated attention"
    # timm has its own GELU besides torch's.
    if type(mlp.act).__name__ != "GELU" or getattr(mlp.act, "approximate", "none") != "none":
        yield f"the activation {mlp.act!r} instead of exact GELU"
    for layer in (attention.qkv, attention.proj, mlp.fc1, mlp.fc2):
        if type(layer) is not nn.Linear:  # for example a LoRA layer, which computes more than its weight
            yield f"a layer of the kind {type(layer).__name__} where a plain Linear is expected"


def _unequal(net: Any) -> Iterator[str]:
    """Yield sizes that differ between blocks but are the same for all blocks in transformers."""
    norms = [net.norm, *(norm for block in net.blocks for norm in (block.norm1, block.norm2))]
    if any(not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None for norm in norms):
        yield f"norms that are not layer norms with weight and bias ({type(norms[-1]).__name__})"
    elif len({norm.eps for norm in norms}) > 1:
        yield "norms with unequal eps"
    if len({(block.attn.num_heads, block.mlp.fc1.out_features) for block in net.blocks}) > 1:
        yield "blocks of unequal sizes"
    if any(block.attn.proj.in_features != net.embed_dim for block in net.blocks):
        yield "heads whose widths do not add up to the network's width"


def _is_nothing(module: nn.Module) -> bool:
    return isinstance(module, nn.Identity)


def _sizes(net: Any) -> dict[str, Any]:
    """Return the fields of a ``ViTConfig`` for this network."""
    first = net.blocks[0]
    image, patch = pair(net.patch_embed.img_size), pair(net.patch_embed.patch_size)
    return {
        "hidden_size": net.embed_dim,
        "num_hidden_layers": len(net.blocks),
        "num_attention_heads": first.attn.num_heads,
        "intermediate_size": first.mlp.fc1.out_features,
        "hidden_act": "gelu",
        "layer_norm_eps": net.norm.eps,
        "image_size": image[0] if image[0] == image[1] else image,
        "patch_size": patch[0] if patch[0] == patch[1] else patch,
        "num_channels": net.patch_embed.proj.in_channels,
        "qkv_bias": any(block.attn.qkv.bias is not None for block in net.blocks),
    }


def _weights(net: Any, qkv_bias: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors under transformers' names."""
    yield "vit.embeddings.cls_token", net.cls_token
    positions = net.pos_embed
    if net.no_embed_class:  # the class token has no position: add zero
        positions = torch.cat([torch.zeros_like(net.cls_token), positions], dim=1)
    yield "vit.embeddings.position_embeddings", positions
    yield from _affine("vit.embeddings.patch_embeddings.projection", net.patch_embed.proj)
    for i, block in enumerate(net.blocks):
        to = f"vit.layers.{i}"
        weights, biases = block.attn.qkv.weight.chunk(3), _bias(block.attn.qkv).chunk(3)
        for name, weight, bias in zip(("q_proj", "k_proj", "v_proj"), weights, biases, strict=True):
            yield f"{to}.attention.{name}.weight", weight
            if qkv_bias:
                yield f"{to}.attention.{name}.bias", bias
        yield from _affine(f"{to}.attention.o_proj", block.attn.proj)
        yield from _affine(f"{to}.layernorm_before", block.norm1)
        yield from _affine(f"{to}.layernorm_after", block.norm2)
        yield from _affine(f"{to}.mlp.fc1", block.mlp.fc1)
        yield from _affine(f"{to}.mlp.fc2", block.mlp.fc2)
    yield from _affine("vit.layernorm", net.norm)
    yield from _affine("classifier", net.head)


def _affine(name: str, layer: Any) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", layer.weight
    yield f"{name}.bias", _bias(layer)


def _bias(layer: Any) -> Tensor:
    """Return the bias, or zeros: transformers always has one."""
    bias: Tensor = layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias
    return bias
