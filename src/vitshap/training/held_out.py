"""What an explainer is selected by: fixed, seeded (image, coalition) tuples of unseen images, evaluated once.

They are stored with the run, so that a resumed one compares with the same numbers. Pairs from the Shapley kernel give the
paper's loss, which is comparable between runs. Where a plan chose other coalitions for training, as many of those are
evaluated too: their loss has less noise, and it is what selects.
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
from vitshap.training.fit import VALIDATION
from vitshap.training.noise import NO_WEIGHTS, Plan, Weighing, weighted_halves
from vitshap.training.objectives import class_importance, explainer_loss, uniform_explanation
from vitshap.training.values import ROWS, Evaluator

FILE = "validation.safetensors"


class HeldOut:
    """Values of coalitions of unseen images, and the losses that explanations have on them."""

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
        weighing: Weighing = NO_WEIGHTS,
        emphasis: float = 0.0,
    ) -> None:
        """Evaluate them, or read them from the run's folder; None: they are not stored.

        ``pairs`` coalitions of ``law`` (by default the Shapley kernel) and ``planned`` ones of the plan per image;
        ``weighing``: of images and classes by their noise; ``emphasis``: on the predicted class.
        """
        self.images, self.plan, self.weighing, self.emphasis = images, plan, weighing, emphasis
        self.output = evaluate.model.output
        law = law or shapley_kernel(evaluate.model.num_players)
        self.pairs = _Drawn(law, pairs, True, VALIDATION)
        self.planned = None if plan is None else _Drawn(plan.law, planned, plan.paired, f"{VALIDATION} by plan")
        stored = self._evaluated(evaluate) if folder is None else self._stored(folder / FILE, evaluate)
        self.full, self.worth = stored["full"], stored["worth"]  # [n, K], [n, S, K]
        self.planned_worth = stored.get("planned_worth")

    @property
    def select(self) -> str:
        """The loss that chooses the best weights."""
        return "loss" if self.plan is None else "selection_loss"

    @torch.no_grad()
    def losses(self, explainer: Explainer, batch_size: int) -> dict[str, float]:
        """The paper's loss, that of the uniform explanation, and with a plan the one that training minimises; all in the
        explainer's unit of each output, as in training."""
        totals: dict[str, float] = {}
        start = 0
        for pixels, batch in self.images.in_order(batch_size):
            here = slice(start, start := start + len(pixels))
            base = explainer.base_values(pixels)
            values = explainer.values(pixels, self.full[here], base).float()
            with torch.autocast(pixels.device.type, enabled=False):
                for name, loss in self._losses(values, base, batch.indices, here, explainer.scale).items():
                    totals[name] = totals.get(name, 0.0) + loss * len(pixels)
        return {name: total / len(self.full) for name, total in totals.items()}

    def _losses(self, values: Tensor, base: Tensor, indices: Tensor, here: slice, scale: Tensor) -> dict[str, float]:
        values, base, full, worth = (t / scale for t in (values, base, self.full[here], self.worth[here]))
        coalitions = self.pairs(indices, self.images.seed)
        found = {
            "loss": explainer_loss(values, coalitions, worth, base),
            "uniform_loss": explainer_loss(uniform_explanation(base, full, values.shape[1]), coalitions, worth, base),
        }
        if self.plan is not None and self.planned is not None and self.planned_worth is not None:
            drawn = self.planned(indices, self.images.seed)
            planned = self.planned_worth[here] / scale
            halves = weighted_halves(self.plan, drawn, planned, base, full, weighing=self.weighing)
            centred = values - values.mean(1, keepdim=True)
            importance = class_importance(full, self.output, self.emphasis)
            errors = [
                (importance * weights * (centred - half.labels()).square().sum(1)).mean() for half, weights in halves
            ]
            found["selection_loss"] = torch.stack(errors).mean()
        return {name: float(loss) for name, loss in found.items()}

    def _stored(self, path: Path, evaluate: Evaluator) -> dict[str, Tensor]:
        """From the file if it is of the same surrogate, images and coalitions; else computed and written."""
        made_of = self._made_of(evaluate)
        stored = None
        with suppress(ValueError):  # missing, damaged, or of another surrogate
            stored = read_tensors(path, {"made_of": made_of}) if made_of else None
        if stored is not None:
            return {name: tensor.to(evaluate.model.device) for name, tensor in stored.items()}
        found = self._evaluated(evaluate)
        write_tensors(path, found, {"made_of": made_of})
        return found

    def _made_of(self, evaluate: Evaluator) -> str:
        """A hash of all that the values depend on; none where images are not kept: they may be others by now."""
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

    def _evaluated(self, evaluate: Evaluator) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {"full": [], "worth": []}
        most = max(self.pairs.count, self.planned.count if self.planned else 0)
        for pixels, batch in self.images.in_order(max(1, ROWS // (most + 1))):
            full, worth = evaluate(pixels, self.pairs(batch.indices, self.images.seed))
            parts["full"].append(full)
            parts["worth"].append(worth)
            if self.planned is not None:
                drawn = self.planned(batch.indices, self.images.seed)
                parts.setdefault("planned_worth", []).append(evaluate(pixels, drawn).worth)
        return {name: torch.cat(tensors) for name, tensors in parts.items()}


class _Drawn:
    """Coalitions of samples that are the same in every epoch, and that training never meets."""

    def __init__(self, law: CoalitionLaw, count: int, paired: bool, purpose: str) -> None:
        self.law, self.count, self.paired, self.purpose = law, count, paired, purpose

    def __call__(self, indices: Tensor, seed: int) -> Coalitions:
        return sample_coalitions(
            self.law, indices, seed=seed, epoch=0, n=self.count, paired=self.paired, purpose=self.purpose
        )
