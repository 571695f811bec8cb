"""transformers' CLIP and SigLIP for image classification: a vision encoder and a classifier of its mean patch token."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vitshap.models.base import masked_mean
from vitshap.models.huggingface import HuggingFaceViT


class HuggingFaceCLIP(HuggingFaceViT):
    """CLIP: a class token, a norm before the blocks, and the mean of the patch tokens without a final norm."""

    reads_patches = True

    def _find_trunk(self) -> Any:
        return self._net.vision_model

    @property
    def patch_embedding(self) -> nn.Module:
        module: nn.Module = self.trunk.embeddings.patch_embedding
        return module

    @property
    def final_norm(self) -> nn.Module:
        module: nn.Module = self.trunk.post_layernorm  # trained for the class token; the classifier does not use it
        return module

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.trunk.encoder.layers)

    def embed(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.trunk.pre_layrnorm(super().embed(images))  # spelled so by transformers
        return tokens

    def encode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        for layer in self.blocks:
            tokens = layer(tokens, attention_mask=None)
        return tokens

    def readout(self, tokens: Tensor, valid: Tensor) -> Tensor:
        logits: Tensor = self._net.classifier(masked_mean(tokens[:, self.prefix :], valid[:, self.prefix :]))
        return logits


class HuggingFaceSiglip(HuggingFaceCLIP):
    """SigLIP: no class token and no norm before the blocks; the vision encoder's attention pooling is not used."""

    def _count_prefix(self) -> int:
        return 0

    def embed(self, images: Tensor) -> Tensor:
        return HuggingFaceViT.embed(self, images)

    def readout(self, tokens: Tensor, valid: Tensor) -> Tensor:
        return super().readout(self.trunk.post_layernorm(tokens), valid)
