"""The small net whose games of 16 players the estimators are compared on: digits, learned with patches missing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.coalitions import uniform_size
from vitshap.data import Splits
from vitshap.models import MaskedModel, wrap

EPOCHS, BATCH, RATE = 40, 128, 3e-3


def train(digits: Splits, *, epochs: int = EPOCHS) -> MaskedModel:
    """A ViT of width 32 and 3 layers, trained with patches missing at random: it is its own surrogate."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        id2label={i: str(i) for i in range(10)},
        label2id={str(i): i for i in range(10)},
    )
    model = wrap(ViTForImageClassification(config))
    images, labels = digits.train.images, digits.train.labels
    if not isinstance(images, Tensor):
        raise TypeError("these digits are files")
    steps = epochs * -(-len(images) // BATCH)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH):  # type: ignore[no-untyped-call]
            coalitions = uniform_size(model.num_players).sample(len(batch))[:, None]  # one each, [B, 1, d]
            logits = model.logits(images[batch], coalitions)[:, 0]
            loss = F.cross_entropy(logits, labels[batch])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return model.eval()
