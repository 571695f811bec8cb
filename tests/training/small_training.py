"""A small but real training, as a program: a ViT learns to tell random images apart with patches missing.

python small_training.py FOLDER [epochs] [save_every] [batch]; started again it continues. Prints its pid when it starts to
train. With OWN_DISKS in the environment every process has a folder of its own, as on several machines. Processes that
would send each other pickled objects end with an error.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed import distributed_c10d

from vitshap.coalitions import uniform_size
from vitshap.data import sample_coalitions
from vitshap.models import MaskedModel, wrap
from vitshap.training.configs import LoopConfig
from vitshap.training.loop import Task, train
from vitshap.training.objectives import classification_loss

SAMPLES = 52  # not a multiple of the batch, nor is the batch of two processes


def accelerate_launch(processes: int, *options: str) -> list[str]:
    """``accelerate launch`` with processes on the CPU: --multi_gpu starts them, and without a GPU they take the CPU."""
    fixed = ("--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes", str(processes))
    machines = () if "--num_machines" in options else ("--num_machines", "1")
    return [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", *fixed, *machines, *options]


class Step(nn.Module):
    def __init__(self, model: MaskedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, labels: torch.Tensor, coalitions: torch.Tensor) -> torch.Tensor:
        return classification_loss(self.model.logits(images, coalitions)[:, 0], labels, "softmax")


def task() -> Task:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, hidden_dropout_prob=0.1, **size)
    model = wrap(ViTForImageClassification(config))
    images = torch.randn(SAMPLES, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(SAMPLES) % 3

    def batches(order: Iterable[torch.Tensor], epoch: int) -> Iterator[tuple[torch.Tensor, ...]]:
        for samples in order:
            yield (
                images[samples],
                labels[samples],
                sample_coalitions(uniform_size(4), samples, seed=0, epoch=epoch, n=1),
            )

    def validate() -> dict[str, float]:
        everything = torch.ones(SAMPLES, 1, 4, dtype=torch.bool)
        logits = model.logits(images, everything)[:, 0].detach()
        accuracy = (logits.argmax(1) == labels).float().mean()
        return {"loss": float(classification_loss(logits, labels, "softmax")), "accuracy": float(accuracy)}

    return Task(Step(model), model, batches, SAMPLES, validate)


def _refuse_pickle(*_: object) -> None:
    raise AssertionError("an object is pickled between processes")


if __name__ == "__main__":
    distributed_c10d._object_to_tensor = distributed_c10d._tensor_to_object = _refuse_pickle
    folder = Path(sys.argv[1])
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    save_every = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    batch = int(sys.argv[4]) if len(sys.argv) > 4 else 10
    if os.environ.get("OWN_DISKS"):
        folder = folder / os.environ["RANK"]
    torch.set_num_threads(1)
    chosen = task()
    if os.environ.get("WORLD_SIZE"):  # dropout is drawn by each process: without it, two processes equal one
        chosen.step.eval()
        for module in chosen.step.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    print(f"pid {os.getpid()}", flush=True)
    config = LoopConfig(epochs=epochs, batch_size=batch, learning_rate=3e-3, save_every=save_every)
    train(chosen, config, folder, resume=True)
    if distributed.is_initialized():  # others wait while the main process evaluates alone
        waiting = distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).options._timeout
        assert waiting >= timedelta(days=1), waiting
