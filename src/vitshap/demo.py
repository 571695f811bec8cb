"""``vitshap demo``: what there is, on the embedded digits, in a minute on a CPU.

A small ViT learns 8 x 8 digits with patches missing at random, so that its answers about coalitions mean something.
With 4 x 4 = 16 patches all 65,536 coalitions can be asked, and the Shapley values are exact.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from vitshap.coalitions import all_coalitions, uniform_size
from vitshap.compat import make_torchvision_importable
from vitshap.data import ImageData, Splits, load_digits
from vitshap.methods import method
from vitshap.metrics import deletion, insertion
from vitshap.models import MaskedModel, wrap

EXPLAINED = 4
CLASSES_SHOWN = 3


def run(out: Path, console: Console, *, epochs: int = 40) -> None:
    """Train, evaluate, explain and draw; pictures and explanations go to the folder ``out``."""
    torch.manual_seed(0)
    digits = load_digits()
    start = time.perf_counter()
    model = train(digits, console, epochs=epochs)
    test, labels = _pixels(digits.test), digits.test.labels
    accuracy = (model.game(test).grand.argmax(1) == labels).float().mean()
    console.print(f"trained in {time.perf_counter() - start:.0f} s; accuracy on unseen digits: {accuracy:.1%}")

    images = test[:EXPLAINED]
    start = time.perf_counter()
    explanation = method("exact", model)(images)
    seconds = time.perf_counter() - start
    asked = EXPLAINED * len(all_coalitions(model.num_players))
    console.print(
        f"{asked:,} coalitions of {EXPLAINED} images evaluated in {seconds:.0f} s ({asked / seconds:,.0f} per second): "
        f"exact Shapley values, efficient to {float(explanation.efficiency_gap().abs().max()):.0e}"
    )
    predicted = explanation.prediction.argmax(1)
    chance = method("random", model)(images)
    for name, metric in (("insertion", insertion), ("deletion", deletion)):
        ours, theirs = (metric(model, images, e).target_area(predicted).mean() for e in (explanation, chance))
        console.print(f"{name}: exact {ours:.3f}, random {theirs:.3f}")

    out.mkdir(parents=True, exist_ok=True)
    explanation.save(out / "exact.safetensors")
    for i in range(EXPLAINED):
        likeliest = explanation.prediction[i].topk(CLASSES_SHOWN).indices.tolist()
        path = out / f"digit-{i}.png"
        picture = images[i].clamp(0, 1)
        explanation[i].plot(picture, target=likeliest, overlay_alpha=0.6).savefig(path)
        console.print(f"image {i}, a {int(labels[i])}: {path}")


def train(digits: Splits, console: Console, *, epochs: int) -> MaskedModel:
    """A ViT of width 32 and 3 layers, trained with patches missing at random: it is its own surrogate."""
    make_torchvision_importable()
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
    images, labels = _pixels(digits.train), digits.train.labels
    steps = epochs * -(-len(images) // 128)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    model.train()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("a small ViT learns digits", total=steps)
        for _ in range(epochs):
            for batch in torch.randperm(len(images)).split(128):  # type: ignore[no-untyped-call]
                coalitions = uniform_size(model.num_players).sample(len(batch))[:, None]  # one each, [B, 1, d]
                logits = model.logits(images[batch], coalitions)[:, 0]
                loss = F.cross_entropy(logits, labels[batch])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
                progress.update(task, advance=1, description=f"a small ViT learns digits, loss {loss.item():.2f}")
    return model.eval()


def _pixels(digits: ImageData) -> Tensor:
    """Digits are held as pixels, not as files."""
    if not isinstance(digits.images, Tensor):
        raise TypeError("these digits are files")
    return digits.images
