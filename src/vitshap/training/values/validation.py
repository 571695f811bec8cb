"""Validation of an explainer on coalitions of unseen images: fixed, seeded, and evaluated once.

The values are stored with the run, so that a resumed run compares with the same numbers. Pairs from the Shapley kernel give
the paper's loss, which is comparable between runs. If a plan chose other coalitions for training, as many of those are
evaluated too: their loss has less noise, and selects the best weights.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from vitshap.coalitions import CoalitionLaw, Coalitions, shapley_kernel
from vitshap.data import CachedPixels, sample_coalitions
from vitshap.explainers import Explainer
from vitshap.files import read_tensors, write_tensors
from vitshap.training.batches import Images
from vitshap.training.objectives import class_importance, explainer_loss, uniform_explanation
from vitshap.training.values.labels import EQUAL_WEIGHTS, NoiseWeighting, Plan, weighted_halves
from vitshap.training.values.store import Evaluator, samples_at_once

FILE = "validation.safetensors"
VALIDATION = "validation"
"""Purpose of the validation coalitions in the counter-based generator: training draws others."""


class ValidationSet:
    """Coalition values of unseen images, and the losses of explanations on them."""

    def __init__(
        self,
        folder: Path | None,
        evaluate: Evaluator,
        images: Images,
        *,
        pairs: int,
        law: CoalitionLaw | None = None,
        plan: Plan | None = None,
        planned: int = 0,
        weighting: NoiseWeighting = EQUAL_WEIGHTS,
        predicted_class_weight: float = 0.0,
    ) -> None:
        """Evaluate the coalitions, or read their values from ``folder``; None: they are not stored.

        Each image has ``pairs`` coalitions of ``law`` (by default the Shapley kernel) and ``planned`` of ``plan``.
        """
        self.evaluator, self.images, self.plan, self.weighting = evaluate, images, plan, weighting
        self.predicted_class_weight = predicted_class_weight
        self.output = evaluate.model.output
        law = law or shapley_kernel(evaluate.model.num_players)
        self.pairs = _FixedCoalitions(law, pairs, True, VALIDATION)
        self.planned = (
            None if plan is None else _FixedCoalitions(plan.law, planned, plan.paired, f"{VALIDATION} by plan")
        )
        self.indices = torch.empty(0, dtype=torch.long)  # of the images whose values are known, increasing
        stored = self._evaluate(evaluate) if folder is None else self._read_or_evaluate(folder / FILE, evaluate)
        self.full, self.values = stored["full"], stored["values"]  # [n, K], [n, S, K]
        self.planned_values = stored.get("planned_values")

    @property
    def selection_metric(self) -> str:
        """The loss that selects the best weights."""
        return "loss" if self.plan is None else "selection_loss"

    @torch.no_grad()
    def losses(self, explainer: Explainer, batch_size: int) -> dict[str, float]:
        """Return the paper's loss, that of the uniform explanation, and with a plan the loss that training minimises.

        All are in the explainer's unit of each output, as in training.
        """
        totals: dict[str, float] = {}
        count = 0
        for pixels, batch in self.images.in_order(batch_size):
            here, known = self._rows(batch.indices)
            pixels, indices = pixels[known], batch.indices[known]
            if not len(pixels):
                continue
            count += len(pixels)
            with torch.autocast(pixels.device.type, enabled=False):  # v(0) is as exact as the stored values
                base = explainer.base_values(pixels)
            values = explainer.values(pixels, self.full[here], base).float()
            with torch.autocast(pixels.device.type, enabled=False):
                for name, loss in self._losses(values, base, indices, here, explainer.scale).items():
                    totals[name] = totals.get(name, 0.0) + loss * len(pixels)
        return {name: total / count for name, total in totals.items()}

    def _rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of images whose values are known, and which of these images they are.

        Images that are read again in every epoch need not be the same: a file or its drive may fail for a while.
        """
        stored = self.indices.to(indices.device)
        rows = torch.searchsorted(stored, indices).clamp(max=len(stored) - 1)
        known = stored[rows] == indices
        return rows[known], known

    def _losses(self, values: Tensor, base: Tensor, indices: Tensor, here: Tensor, scale: Tensor) -> dict[str, float]:
        values, base, full, true = (t / scale for t in (values, base, self.full[here], self.values[here]))
        coalitions = self.pairs(indices, self.images.seed)
        found = {
            "loss": explainer_loss(values, coalitions, true, base),
            "uniform_loss": explainer_loss(uniform_explanation(base, full, values.shape[1]), coalitions, true, base),
        }
        if self.plan is not None and self.planned is not None and self.planned_values is not None:
            drawn = self.planned(indices, self.images.seed)
            planned = self.planned_values[here] / scale
            halves = weighted_halves(self.plan, drawn, planned, base, full, weighting=self.weighting)
            centred = values - values.mean(1, keepdim=True)
            importance = class_importance(full, self.output, self.predicted_class_weight)
            errors = [
                (importance * weights * (centred - half.labels()).square().sum(1)).mean() for half, weights in halves
            ]
            found["selection_loss"] = torch.stack(errors).mean()
        return {name: float(loss) for name, loss in found.items()}

    def _read_or_evaluate(self, path: Path, evaluate: Evaluator) -> dict[str, Tensor]:
        """Read the values if they are of the same surrogate, images and coalitions; otherwise evaluate and write them."""
        inputs = self._hash(evaluate)
        stored = None
        with suppress(ValueError):  # missing, damaged, or of another surrogate
            stored = read_tensors(path, {"inputs": inputs}) if inputs else None
        if stored is not None and isinstance(self.images.source, CachedPixels):
            self.indices = self.images.source.kept
            return {name: tensor.to(evaluate.model.device) for name, tensor in stored.items()}
        found = self._evaluate(evaluate)
        write_tensors(path, found, {"inputs": inputs})
        return found

    def _hash(self, evaluate: Evaluator) -> str:
        """Return a hash of everything that the values depend on; "" if images are not cached, for they may have changed."""
        model, images = evaluate.model, self.images
        if not isinstance(images.source, CachedPixels):
            return ""
        drawn = [
            (d.count, d.paired, d.law.size_probabilities.tolist()) for d in (self.pairs, self.planned) if d is not None
        ]
        parts = [evaluate.fingerprint(), model.output, images.mean, images.std, images.seed, drawn]
        digest = hashlib.sha256(json.dumps([*parts, images.source.kept.tolist()]).encode())
        for some in images.source.pixels.split(256):  # type: ignore[no-untyped-call]
            digest.update(some.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _evaluate(self, evaluate: Evaluator) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {"full": [], "values": []}
        indices = []
        most = max(self.pairs.count, self.planned.count if self.planned else 0)
        for pixels, batch in self.images.in_order(samples_at_once(most)):
            full, values = evaluate(pixels, self.pairs(batch.indices, self.images.seed))
            indices.append(batch.indices)
            parts["full"].append(full)
            parts["values"].append(values)
            if self.planned is not None:
                drawn = self.planned(batch.indices, self.images.seed)
                parts.setdefault("planned_values", []).append(evaluate(pixels, drawn).values)
        self.indices = torch.cat(indices)
        return {name: torch.cat(tensors) for name, tensors in parts.items()}


class _FixedCoalitions:
    """Coalitions of samples that are the same in every epoch, and independent of those of training."""

    def __init__(self, law: CoalitionLaw, count: int, paired: bool, purpose: str) -> None:
        self.law, self.count, self.paired, self.purpose = law, count, paired, purpose

    def __call__(self, indices: Tensor, seed: int) -> Coalitions:
        return sample_coalitions(
            self.law, indices, seed=seed, epoch=0, n=self.count, paired=self.paired, purpose=self.purpose
        )
