"""Adapters for transformers' image classifiers: ViT, DeiT, DINOv2 (with and without registers), BEiT."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitshap.models.base import (
    Adapter,
    CannotMask,
    attributes_set,
    logits_of,
    masked_mean,
    pair,
    patch_grid,
    require_size,
)


def adapter_for(net: Any, image_size: tuple[int, int] | None) -> Adapter:
    """Return the adapter for a transformers model, or raise ``CannotMask``."""
    place = next((ADAPTERS[cls.__name__] for cls in type(net).__mro__ if cls.__name__ in ADAPTERS), None)
    if place is None or not getattr(net.config, "num_labels", 0):
        why = f"of transformers' models these can be masked: {', '.join(sorted(ADAPTERS))}"
        if place is not None:
            why = "it has no classes (num_labels=0)"
        elif hasattr(net, "base_model_prefix") and not hasattr(net, "classifier"):
            why = "it has no classification head; load it with AutoModelForImageClassification"
        raise CannotMask(net, why)
    module, _, name = place.rpartition(".")
    adapter: Adapter = getattr(importlib.import_module(module), name)(net, image_size)
    return adapter


class HuggingFaceViT(Adapter):
    """``ViTForImageClassification``, and the base class of the others."""

    reads_patches = False
    takes_size = True
    """Whether the embeddings take an argument for interpolating positions to another image size."""

    def __init__(self, net: Any, image_size: tuple[int, int] | None) -> None:
        self.net = self._net = net
        self.trunk: Any = self._find_trunk()
        config = self.trunk.config
        self.image_size = image_size or pair(config.image_size)
        self.grid = patch_grid(self.image_size, pair(config.patch_size))
        self.resized = self.image_size != pair(config.image_size)
        self.channels = config.num_channels
        self.num_classes = net.config.num_labels
        self.prefix = self._count_prefix()

    def _find_trunk(self) -> Any:
        return self._net.base_model

    def _count_prefix(self) -> int:
        return 1

    @property
    def patch_embedding(self) -> nn.Module:
        module: nn.Module = self.trunk.embeddings.patch_embeddings
        return module

    @property
    def final_norm(self) -> nn.Module:
        module: nn.Module = self.trunk.layernorm
        return module

    @property
    def blocks(self) -> list[nn.Module]:
        trunk = self.trunk
        return list(trunk.layers if hasattr(trunk, "layers") else trunk.encoder.layer)

    def embed(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.trunk.embeddings(images, **self._size_option())
        return tokens

    def encode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        for layer in self.blocks:
            tokens = layer(tokens)
        return tokens

    def readout(self, tokens: Tensor, valid: Tensor) -> Tensor:
        logits: Tensor = self._net.classifier(self.trunk.layernorm(tokens)[:, 0])
        return logits

    def predict(self, images: Tensor) -> Tensor:
        return logits_of(self._net(images, **self._size_option()))

    def _size_option(self) -> dict[str, bool]:
        return {"interpolate_pos_encoding": True} if self.resized and self.takes_size else {}

    def class_names(self) -> list[str] | None:
        names = [str(self._net.config.id2label[i]) for i in range(self.num_classes)]
        return None if names == [f"LABEL_{i}" for i in range(self.num_classes)] else names

    def output(self) -> str | None:
        links = {
            "regression": "identity",
            "multi_label_classification": "sigmoid",
            "single_label_classification": "softmax",
        }
        return links.get(self._net.config.problem_type or "")

    @contextmanager
    def ready(self) -> Iterator[None]:
        # Eager attention cannot be overridden, and gradient checkpointing would recompute without the override.
        modules = list(self._net.modules())
        configs = {id(m.config): m.config for m in modules if hasattr(m, "config")}.values()
        changes: list[tuple[object, str, object]] = [
            (c, "_attn_implementation", "sdpa") for c in configs if c._attn_implementation != "sdpa"
        ]
        changes += [
            (m, "gradient_checkpointing", False) for m in modules if getattr(m, "gradient_checkpointing", False)
        ]
        with attributes_set(changes):
            yield


class HuggingFaceDeiT(HuggingFaceViT):
    """DeiT: with a distillation token beside the class token."""

    def _count_prefix(self) -> int:
        return 2


class HuggingFaceDistilledDeiT(HuggingFaceDeiT):
    """Distilled DeiT: logits are the mean of two heads."""

    def readout(self, tokens: Tensor, valid: Tensor) -> Tensor:
        tokens = self.trunk.layernorm(tokens)
        both = self._net.cls_classifier(tokens[:, 0]) + self._net.distillation_classifier(tokens[:, 1])
        return both / 2  # type: ignore[no-any-return]


class HuggingFaceDinov2(HuggingFaceViT):
    """DINOv2: the head reads the class token and the mean of the patches."""

    reads_patches = True
    takes_size = False  # its embeddings always interpolate

    def _count_prefix(self) -> int:
        return 1 + (getattr(self._net.config, "num_register_tokens", 0) or 0)

    def readout(self, tokens: Tensor, valid: Tensor) -> Tensor:
        tokens = self.trunk.layernorm(tokens)
        mean = masked_mean(tokens[:, self.prefix :], valid[:, self.prefix :])
        logits: Tensor = self._net.classifier(torch.cat([tokens[:, 0], mean], dim=1))
        return logits


class HuggingFaceBeit(HuggingFaceViT):
    """BEiT: relative position biases between tokens, and optionally the mean of the patches instead of a class token."""

    takes_size = False  # its embeddings always interpolate, and biases follow the resolution

    def __init__(self, net: Any, image_size: tuple[int, int] | None) -> None:
        super().__init__(net, image_size)
        config = net.config
        self.has_bias = config.use_relative_position_bias or config.use_shared_relative_position_bias
        self.reads_patches = config.use_mean_pooling
        if self.has_bias:  # its position biases fit no other size
            require_size(self.image_size, pair(config.image_size))

    def encode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        shared = None
        if self.trunk.shared_position_bias is not None:
            # The attention override selects the rows and columns of the kept tokens.
            shared = self.trunk.shared_position_bias(self.grid, dim_size=self.prefix + self.grid[0] * self.grid[1])
        for layer in self.blocks:
            tokens = layer(tokens, attention_mask=shared, resolution=self.image_size)
        return tokens

    def readout(self, tokens: Tensor, valid: Tensor) -> Tensor:
        tokens = self.trunk.layernorm(tokens)
        if self.reads_patches:
            # The pooler's mean of one token is that token.
            mean = masked_mean(tokens[:, self.prefix :], valid[:, self.prefix :])
            tokens = torch.stack([tokens[:, 0], mean], dim=1)
        logits: Tensor = self._net.classifier(self.trunk.pooler(tokens))
        return logits


ADAPTERS = {
    "ViTForImageClassification": "vitshap.models.huggingface.HuggingFaceViT",
    "DeiTForImageClassification": "vitshap.models.huggingface.HuggingFaceDeiT",
    "DeiTForImageClassificationWithTeacher": "vitshap.models.huggingface.HuggingFaceDistilledDeiT",
    "Dinov2ForImageClassification": "vitshap.models.huggingface.HuggingFaceDinov2",
    "Dinov2WithRegistersForImageClassification": "vitshap.models.huggingface.HuggingFaceDinov2",
    "BeitForImageClassification": "vitshap.models.huggingface.HuggingFaceBeit",
    "CLIPForImageClassification": "vitshap.models.clip.HuggingFaceCLIP",
    "SiglipForImageClassification": "vitshap.models.clip.HuggingFaceSiglip",
}
"""Class of transformers -> its adapter. Models of these classes, and of no other, can also be stored in bundles."""
