"""What an explainer is selected by: fixed, seeded (image, coalition) tuples of unseen images, evaluated once.

They are stored with the run, so that a resumed one compares with the same numbers.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitshap.coalitions import shapley_kernel
from vitshap.data import sample_coalitions
from vitshap.explainers import Explainer
from vitshap.training.batches import Images
from vitshap.training.fit import VALIDATION
from vitshap.training.noise import inverse_noise, residuals, shapley_plan
from vitshap.training.objectives import explainer_loss, uniform_explanation
from vitshap.training.values import ROWS, Evaluator

FILE = "validation.safetensors"


class HeldOut:
    """Values of pairs of coalitions of unseen images."""

    def __init__(
        self, images: Images, num_players: int, indices: Tensor, full: Tensor, worth: Tensor, base: Tensor
    ) -> None:
        self.images, self.num_players, self.indices = images, num_players, indices
        self.full, self.worth = full, worth  # [n, K], [n, S, K]
        self.base = base  # [1, K]
        self.typical_noise = self._mean_noise()

    @classmethod
    def opened(cls, folder: Path, evaluate: Evaluator, images: Images, coalitions: int, base: Tensor) -> HeldOut:
        """Read from the run's folder, or evaluated and stored there."""
        path = folder / FILE
        device, players = evaluate.model.device, evaluate.model.num_players
        if path.exists():
            stored = {name: tensor.to(device) for name, tensor in load_file(path).items()}
            if stored["worth"].shape[1] == coalitions:
                return cls(images, players, stored["indices"], stored["full"], stored["worth"], base)
        parts = []
        for pixels, batch in images.in_order(max(1, ROWS // (coalitions + 1))):
            found = evaluate(pixels, _fixed(batch.indices, players, coalitions, images.seed))
            parts.append((batch.indices, *found))
        indices, full, worth = (torch.cat(part) for part in zip(*parts, strict=True))
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{FILE}.{os.getpid()}.tmp"
        save_file({"indices": indices.cpu(), "full": full.cpu(), "worth": worth.cpu()}, temporary)
        os.replace(temporary, path)
        return cls(images, players, indices, full, worth, base)

    def losses(self, explainer: Explainer, batch_size: int) -> dict[str, float]:
        """The paper's loss, that of the uniform explanation, and the one without size effect, weighed by noise."""
        totals = dict.fromkeys(("loss", "uniform_loss", "weighted_loss"), 0.0)
        start = 0
        for pixels, batch in self.images.in_order(batch_size):
            here = slice(start, start := start + len(pixels))
            full, worth = self.full[here], self.worth[here]
            values = explainer.values(pixels, full).float()
            with torch.autocast(pixels.device.type, enabled=False):
                for name, loss in self._losses(values, batch.indices, full, worth).items():
                    totals[name] += loss * len(pixels)
        return {name: total / len(self.full) for name, total in totals.items()}

    def _losses(self, values: Tensor, indices: Tensor, full: Tensor, worth: Tensor) -> dict[str, float]:
        d = values.shape[1]
        base = self.base.expand_as(full)
        coalitions = _fixed(indices, d, worth.shape[1], self.images.seed)
        left = residuals(shapley_plan(d), coalitions, worth, base, full)
        weights = inverse_noise(left.noise, self.typical_noise)
        return {
            "loss": float(explainer_loss(values, coalitions, worth, base)),
            "uniform_loss": float(explainer_loss(uniform_explanation(base, full, d), coalitions, worth, base)),
            "weighted_loss": float((weights * left.squared_error(values)).mean()),
        }

    def _mean_noise(self) -> float:
        """Over images and classes."""
        total = 0.0
        for start in range(0, len(self.full), 256):
            indices, full, worth = (t[start : start + 256] for t in (self.indices, self.full, self.worth))
            coalitions = _fixed(indices, self.num_players, worth.shape[1], self.images.seed)
            left = residuals(shapley_plan(self.num_players), coalitions, worth, self.base.expand_as(full), full)
            total += float(left.noise.mean()) * len(full)
        return total / len(self.full)


def _fixed(indices: Tensor, d: int, n: int, seed: int) -> Tensor:
    return sample_coalitions(shapley_kernel(d), indices, seed=seed, epoch=0, n=n, paired=True, purpose=VALIDATION)
