"""Evaluation and storage of coalition values for many augmented views of every training image.

A view's pixels, its coalitions and so their values are functions of (seed, view, sample): memory stores values, it never
changes them. What does not fit is computed again, and so is everything after a training was killed. The values of a view
are computed in the order of the samples, not in the order of training, so that all processes and all resumed runs compute
them in the same batches, with identical results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as distributed
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.data import CachedPixels, sample_coalitions
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.models.masked import ImageGame
from vitshap.models.precision import converted
from vitshap.training import processes
from vitshap.training.batches import Images, chunks
from vitshap.training.configs import ExplainerTraining, number
from vitshap.training.values.labels import Plan

ROWS, SAMPLES = 1 << 15, 512
"""Coalitions that are drawn and evaluated at once, and samples whose pixels are augmented for them, at most."""
LOW_CONFIDENCE = 0.98
"""An image is of low confidence if the surrogate's largest probability is below this."""
_CONFIDENCE_BATCH = 256


def samples_at_once(coalitions: int) -> int:
    """Return how many samples with so many coalitions each are evaluated together."""
    return min(SAMPLES, max(1, ROWS // (coalitions + 1)))


class CoalitionValues(NamedTuple):
    """Values of some samples of one view."""

    full: Tensor
    """v(1), float32 ``[n, K]``."""
    values: Tensor
    """v(s), float32 ``[n, S, K]``."""


class ValueBatch(NamedTuple):
    """A training batch of an explainer: some samples of one view."""

    pixels: Tensor
    coalitions: Coalitions
    full: Tensor
    values: Tensor


class ViewInputs(NamedTuple):
    """Pixels and coalitions of all samples of one view."""

    view: int
    pixels: Tensor
    coalitions: Coalitions


class Evaluator:
    """The surrogate as a fast function of pixels and coalitions: half precision on a GPU, float32 on a CPU."""

    def __init__(self, surrogate: MaskedModel, *, compiled: bool = False) -> None:
        self.model, self._exact, self._compiled = surrogate, surrogate, compiled
        if surrogate.device.type == "cuda":
            # float16 is eight times as precise as bfloat16 and as fast; overflow shows in the values, see ``finite``.
            self._convert(torch.float16)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the network and of its input."""
        return next(self.model.net.parameters()).dtype

    def fingerprint(self) -> str:
        """Return the fingerprint of the surrogate in its original precision, to which stored reference values belong."""
        return self._exact.fingerprint()

    def _convert(self, dtype: torch.dtype) -> None:
        """Evaluate with a copy of that precision, made from the original network."""
        self.model = converted(self._exact, dtype)
        if self._compiled:
            self.model.compile()

    def __call__(self, pixels: Tensor, coalitions: Coalitions) -> CoalitionValues:
        """Return the values of coalitions bool ``[B, S, d]`` of normalised images."""
        return self.finite(lambda: self.unchecked(pixels, coalitions))

    def unchecked(self, pixels: Tensor, coalitions: Coalitions) -> CoalitionValues:
        """Do the same without checking that values are finite, which waits for the GPU; ``finite`` checks many at once."""
        model = self.model
        everyone = coalitions.new_ones(len(coalitions), 1, coalitions.shape[2])
        with torch.no_grad(), evaluating(model.net):
            asked = torch.cat([everyone, coalitions], 1)
            values = model.link(model.logits(pixels.to(self.dtype), asked, finite=False))
        return CoalitionValues(values[:, 0], values[:, 1:])

    def game(self, pixels: Tensor) -> ImageGame:
        """Return the game of normalised images in this precision, see ``choose_precision``."""
        self.choose_precision(pixels)
        return self.model.game(pixels.to(self.dtype))

    def choose_precision(self, pixels: Tensor) -> None:
        """Switch to bfloat16 if float16 overflows for the empty or the full coalition of these images."""
        if self.dtype == torch.float16:
            players = self.model.num_players
            self(pixels, torch.zeros(len(pixels), 1, players, dtype=torch.bool, device=pixels.device))

    def finite(self, compute: Callable[[], CoalitionValues]) -> CoalitionValues:
        """Return what ``compute`` returns; if float16 overflows, switch to bfloat16 and compute again."""
        while True:
            found = compute()
            if bool(torch.isfinite(found.values).all() & torch.isfinite(found.full).all()):
                return found
            if self.dtype != torch.float16:
                raise ValueError("the surrogate gives values that are not finite (NaN or infinity)")
            self._convert(torch.bfloat16)


class ValueStore:
    """Values of all views, each computed when it is first needed."""

    def __init__(
        self,
        evaluate: Evaluator,
        images: Images,
        plan: Plan,
        *,
        views: int,
        coalitions: int,
        memory: int | None = None,
    ) -> None:
        """``coalitions``: per view, made even for pairs; ``memory``: in bytes, default half of the free memory."""
        self.evaluate, self.images = evaluate, images
        self.plan = plan.on(evaluate.model.device)
        self.views, self.coalitions = views, coalitions + (coalitions % 2 if plan.paired else 0)
        limit = processes.memory_limit(evaluate.model.device) if memory is None else memory
        self.streamed = not isinstance(images.source, CachedPixels) or self.bytes_per_view > limit
        self.keeps_all = not self.streamed and views * self.bytes_per_view <= limit
        rest = limit - self.bytes_per_view * (views if self.keeps_all else 1)
        self._keeps_inputs = not self.streamed and self._input_bytes() <= rest and processes.count() == 1
        self._kept: dict[int, CoalitionValues] = {}
        self._inputs: ViewInputs | None = None  # of the view whose values were computed last

    @property
    def bytes_per_view(self) -> int:
        """Memory of the values of one view of all images."""
        return len(self.images) * (self.coalitions + 1) * self.evaluate.model.num_classes * 4

    def describe(self) -> str:
        """Return in one line how many values are computed and where they are kept."""
        evaluations = self.views * len(self.images) * (self.coalitions + 1)
        kept = self.bytes_per_view * (self.views if self.keeps_all else 1) + self._keeps_inputs * self._input_bytes()
        size = kept / 2**30
        where = "not stored" if self.streamed else f"{size:.2g} GiB on {self.evaluate.model.device.type}"
        shape = "pairs" if self.plan.paired else "single coalitions"
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in self.plan.relative_noise.items())
        return (
            f"{evaluations:,} evaluations: {self.views} views of {len(self.images):,} samples, {self.coalitions} "
            f"coalitions each ({shape}; noise at equal cost relative to pairs from the Shapley kernel: {ratios}), {where}"
        )

    def fill(self) -> None:
        """Compute all views now if they can be kept; otherwise training computes each when it needs it."""
        if self.keeps_all:
            for view in range(self.views):
                self._view(view)

    def draw(self, indices: Tensor, view: int) -> Coalitions:
        """Return the coalitions of a view of these samples, bool ``[B, S, d]``."""
        return sample_coalitions(
            self.plan.law,
            indices,
            seed=self.images.seed,
            epoch=view,
            n=self.coalitions,
            paired=self.plan.paired,
        )

    def batches(self, order: list[Tensor], epoch: int) -> Iterator[ValueBatch]:
        """For every tensor of positions, yield pixels of the epoch's view, its coalitions and their values."""
        view = epoch % self.views
        stored = None if self.streamed else self._view(view)
        for pixels, coalitions, indices in self._view_inputs(order, view, again=epoch >= self.views):
            if stored is None:
                yield ValueBatch(pixels, coalitions, *self.evaluate(pixels, coalitions))
            else:
                at = self.images.positions(indices)
                yield ValueBatch(pixels, coalitions, stored.full[at], stored.values[at])

    def _view_inputs(
        self, order: list[Tensor], view: int, *, again: bool
    ) -> Iterator[tuple[Tensor, Coalitions, Tensor]]:
        """Yield pixels, coalitions and sample indices of that view, reusing those from which its values were just computed.

        A view that is used ``again`` is always built anew, even if a resumed run has just computed its values: batches of
        another size may round differently.
        """
        last = self._inputs
        if again or last is None or last.view != view:
            for pixels, batch in self.images.views(order, view):
                yield pixels, self.draw(batch.indices, view), batch.indices
            return
        for positions in order:
            at = positions.to(last.pixels.device, non_blocking=True)
            yield last.pixels[at], last.coalitions[at], self.images.indices(positions)

    def _view(self, view: int) -> CoalitionValues:
        if view not in self._kept:
            if not self.keeps_all:
                self._kept.clear()
            self._kept[view] = self.evaluate.finite(lambda: self._compute(view))
        return self._kept[view]

    def _compute(self, view: int) -> CoalitionValues:
        """Compute the values of all samples in order; each process computes a part, then they exchange them."""
        model = self.evaluate.model
        n, world = len(self.images), processes.count()
        rank = distributed.get_rank() if world > 1 else 0
        full = torch.zeros(n, model.num_classes, device=model.device)
        values = torch.zeros(n, self.coalitions, model.num_classes, device=model.device)
        mine = chunks(n, samples_at_once(self.coalitions))[rank::world]
        for positions, (pixels, batch) in zip(mine, self.images.views(mine, view), strict=True):
            part = slice(int(positions[0]), int(positions[-1]) + 1)
            coalitions = self.draw(batch.indices, view)
            full[part], values[part] = self.evaluate.unchecked(pixels, coalitions)
            if self._keeps_inputs:
                self._keep_inputs(view, part, pixels, coalitions)
        if world > 1:
            for tensor in (full, values):
                distributed.all_reduce(tensor)
        return CoalitionValues(full, values)

    def _keep_inputs(self, view: int, part: slice, pixels: Tensor, coalitions: Coalitions) -> None:
        """Keep pixels and coalitions of this view, in place of the last one: training uses it right after its values were
        computed, and augmenting the images again would take as long as half a step."""
        n = len(self.images)
        kept = self._inputs or ViewInputs(
            view, pixels.new_empty(n, *pixels.shape[1:]), coalitions.new_empty(n, *coalitions.shape[1:])
        )
        kept.pixels[part], kept.coalitions[part] = pixels, coalitions
        self._inputs = kept._replace(view=view)

    def _input_bytes(self) -> int:
        """Memory of the pixels and coalitions of one view of all images."""
        model = self.evaluate.model
        pixels = model.adapter.channels * model.image_size[0] * model.image_size[1] * 4
        return len(self.images) * (pixels + self.coalitions * model.num_players)


def training_images(surrogate: MaskedModel, data: Any, config: ExplainerTraining) -> Images:
    """Open the training images of an explainer, with the augmentation and oversampling of its procedure."""
    seed, compiled = config.loop.seed, config.compiled is True
    if config.procedure == "paper":
        return Images(surrogate, data, config.augmentation, seed=seed, compiled=compiled)
    values = config.values
    weak_from = round(number(values.views) * (1 - values.weak_augmentation_fraction))
    images = Images(surrogate, data, config.augmentation, seed=seed, weak_from=weak_from, compiled=compiled)
    if values.low_confidence_oversampling > 1:
        oversample_low_confidence(images, surrogate, values.low_confidence_oversampling)
    return images


def oversample_low_confidence(images: Images, model: MaskedModel, times: int) -> None:
    """Repeat the images of low confidence so that each appears ``times`` times.

    Few training images are of low confidence, because the model was trained on their labels, and they are the hardest to
    explain: their values are large, arise in coalitions of all sizes and are the noisiest. A repeated image is a sample of
    its own, with its own augmentation and coalitions.
    """
    require_confidences(model, times)
    images.source = images.source.repeated(low_confidence(images, model).repeat(times - 1))


def require_confidences(model: MaskedModel, times: int) -> None:
    """Raise a ``ValueError`` if images of low confidence are to be repeated, but ``model`` has no confidence."""
    if times > 1 and model.output != "softmax":
        raise ValueError(
            f'values.low_confidence_oversampling needs output "softmax", not "{model.output}": set it to 1'
        )


def low_confidence(images: Images, model: MaskedModel) -> Tensor:
    """Return the positions of images whose largest probability is below ``LOW_CONFIDENCE``, int64 ``[n]`` on the CPU."""
    found = []
    with torch.no_grad():
        for pixels, batch in images.in_order(_CONFIDENCE_BATCH):
            largest = model(pixels).amax(1)
            found.append(images.positions(batch.indices)[largest < LOW_CONFIDENCE])
    return torch.cat(found).cpu()
