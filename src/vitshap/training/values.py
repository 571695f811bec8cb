"""Values of coalitions for many views of every training image, computed once and met again.

A view's pixels, its coalitions and so their values are a function of (seed, view, sample): memory holds values, it never
decides what they are. What does not fit is computed again, and a training that was killed computes the same ones anew.
All samples' values of one view are computed in the order of the samples, whatever the order of training, so that every
process and every resumed run computes in the same batches, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as distributed
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.data import CachedPixels, sample_coalitions
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.models.precision import converted
from vitshap.training import processes
from vitshap.training.batches import Images, chunks, evenly
from vitshap.training.noise import Plan

ROWS = 1 << 15
"""Coalitions that are drawn and evaluated at once."""
PILOT_IMAGES, PILOT_REPEATS = 64, 8


class Worth(NamedTuple):
    """Values of some samples of one view."""

    full: Tensor
    """v(1), float32 ``[n, K]``."""
    worth: Tensor
    """v(s), float32 ``[n, S, K]``."""


class Known(NamedTuple):
    """What an explainer learns from: some samples of one view."""

    pixels: Tensor
    coalitions: Coalitions
    full: Tensor
    worth: Tensor


class Met(NamedTuple):
    """What one view's values were computed of, for all samples."""

    view: int
    pixels: Tensor
    coalitions: Coalitions


class Evaluator:
    """The surrogate as a fast function of pixels and coalitions: half precision on a GPU, float32 on a CPU."""

    def __init__(self, surrogate: MaskedModel, *, compiled: bool = False) -> None:
        self.model, self._exact, self._compiled = surrogate, surrogate, compiled
        if surrogate.device.type == "cuda":
            # float16 is eight times as exact as bfloat16 and as fast; a net that overflows it is told by its values.
            self._take(torch.float16)

    @property
    def dtype(self) -> torch.dtype:
        """Of the net and of the pixels that it takes."""
        return next(self.model.net.parameters()).dtype

    def fingerprint(self) -> str:
        """Of the surrogate as it was given, whatever evaluates it: what a stored truth belongs to."""
        return self._exact.fingerprint()

    def _take(self, dtype: torch.dtype) -> None:
        """Evaluate by a copy of that precision, of the net as it was given: what overflowed in another stays infinite."""
        self.model = converted(self._exact, dtype)
        if self._compiled:
            self.model.compile()

    def __call__(self, pixels: Tensor, coalitions: Coalitions) -> Worth:
        """Values of coalitions bool ``[B, S, d]`` of normalised images."""
        return self.finite(lambda: self.unchecked(pixels, coalitions))

    def unchecked(self, pixels: Tensor, coalitions: Coalitions) -> Worth:
        """The same without waiting for the GPU to see whether they are finite, which ``finite`` does for many at once."""
        model = self.model
        everyone = coalitions.new_ones(len(coalitions), 1, coalitions.shape[2])
        with torch.no_grad(), evaluating(model.net):
            asked = torch.cat([everyone, coalitions], 1)
            values = model.link(model.logits(pixels.to(self.dtype), asked, finite=False))
        return Worth(values[:, 0], values[:, 1:])

    def finite(self, compute: Callable[[], Worth]) -> Worth:
        """What ``compute`` gives; where float16 is too small for it, bfloat16 takes its place and it is computed again."""
        while True:
            found = compute()
            if bool(torch.isfinite(found.worth).all() & torch.isfinite(found.full).all()):
                return found
            if self.dtype != torch.float16:
                raise ValueError("the surrogate gives values that are not finite (NaN or infinity)")
            self._take(torch.bfloat16)


class ValueStore:
    """Values of every view, computed when it is first met."""

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
        """``coalitions`` evaluations of each of ``views`` views, one more where they come in pairs and that is odd.

        ``memory``: bytes, by default half of what is free.
        """
        self.evaluate, self.images = evaluate, images
        self.plan = plan.on(evaluate.model.device)
        self.views, self.coalitions = views, coalitions + (coalitions % 2 if plan.paired else 0)
        limit = processes.memory_limit(evaluate.model.device) if memory is None else memory
        self.streamed = not isinstance(images.source, CachedPixels) or self.bytes_per_view > limit
        self.keeps_all = not self.streamed and views * self.bytes_per_view <= limit
        rest = limit - self.bytes_per_view * (views if self.keeps_all else 1)
        self._keeps_last = not self.streamed and self._last_bytes() <= rest and processes.count() == 1
        self._kept: dict[int, Worth] = {}
        self._last: Met | None = None  # the view whose values were computed last

    @property
    def bytes_per_view(self) -> int:
        """Memory of one view of all images."""
        return len(self.images) * (self.coalitions + 1) * self.evaluate.model.num_classes * 4

    def describe(self) -> str:
        """What is computed, and where it is kept."""
        evaluations = self.views * len(self.images) * (self.coalitions + 1)
        kept = self.bytes_per_view * (self.views if self.keeps_all else 1) + self._keeps_last * self._last_bytes()
        size = kept / 2**30
        where = "not kept" if self.streamed else f"{size:.2g} GiB on {self.evaluate.model.device.type}"
        shape = "pairs" if self.plan.paired else "single coalitions"
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in self.plan.relative_noise.items())
        return (
            f"{evaluations:,} evaluations: {self.views} views of {len(self.images):,} samples, {self.coalitions} "
            f"coalitions each ({shape}; noise at equal cost relative to pairs from the Shapley kernel: {ratios}), {where}"
        )

    def fill(self) -> None:
        """Compute all views now, where they can be kept; else training does when it meets them."""
        if self.keeps_all:
            for view in range(self.views):
                self._view(view)

    def draw(self, indices: Tensor, view: int) -> Coalitions:
        """Coalitions of a view of these samples, bool ``[B, S, d]``."""
        return sample_coalitions(
            self.plan.law,
            indices,
            seed=self.images.seed,
            epoch=view,
            n=self.coalitions,
            paired=self.plan.paired,
        )

    def batches(self, order: list[Tensor], epoch: int) -> Iterator[Known]:
        """For every tensor of positions: pixels of the epoch's view, its coalitions and their values."""
        view = epoch % self.views
        known = None if self.streamed else self._view(view)
        for pixels, coalitions, indices in self._met(order, view, again=epoch >= self.views):
            if known is None:
                yield Known(pixels, coalitions, *self.evaluate(pixels, coalitions))
            else:
                at = self.images.positions(indices)
                yield Known(pixels, coalitions, known.full[at], known.worth[at])

    def _met(self, order: list[Tensor], view: int, *, again: bool) -> Iterator[tuple[Tensor, Coalitions, Tensor]]:
        """Pixels and coalitions of that view and sample indices: made anew, or those that its values were just computed
        of. A view that is met ``again`` is made anew also where a resumed run has just computed it: batches of another
        size may round otherwise."""
        last = self._last
        if again or last is None or last.view != view:
            for pixels, batch in self.images.views(order, view):
                yield pixels, self.draw(batch.indices, view), batch.indices
            return
        for positions in order:
            at = positions.to(last.pixels.device, non_blocking=True)
            yield last.pixels[at], last.coalitions[at], self.images.indices(positions)

    def _view(self, view: int) -> Worth:
        if view not in self._kept:
            if not self.keeps_all:
                self._kept.clear()
            self._kept[view] = self.evaluate.finite(lambda: self._computed(view))
        return self._kept[view]

    def _computed(self, view: int) -> Worth:
        """All samples in order; processes take turns and then exchange what they have."""
        model = self.evaluate.model
        n, world = len(self.images), processes.count()
        rank = distributed.get_rank() if world > 1 else 0
        full = torch.zeros(n, model.num_classes, device=model.device)
        worth = torch.zeros(n, self.coalitions, model.num_classes, device=model.device)
        mine = chunks(n, max(1, ROWS // (self.coalitions + 1)))[rank::world]
        for positions, (pixels, batch) in zip(mine, self.images.views(mine, view), strict=True):
            part = slice(int(positions[0]), int(positions[-1]) + 1)
            coalitions = self.draw(batch.indices, view)
            full[part], worth[part] = self.evaluate.unchecked(pixels, coalitions)
            if self._keeps_last:
                self._keep_last(view, part, pixels, coalitions)
        if world > 1:
            for tensor in (full, worth):
                distributed.all_reduce(tensor)
        return Worth(full, worth)

    def _keep_last(self, view: int, part: slice, pixels: Tensor, coalitions: Coalitions) -> None:
        """Training meets a view right after its values were computed: varying images again would take as long as half a
        step. One view is kept, in the place of the last one."""
        n = len(self.images)
        room = self._last or Met(
            view, pixels.new_empty(n, *pixels.shape[1:]), coalitions.new_empty(n, *coalitions.shape[1:])
        )
        room.pixels[part], room.coalitions[part] = pixels, coalitions
        self._last = room._replace(view=view)

    def _last_bytes(self) -> int:
        """Pixels and coalitions of one view of all images."""
        model = self.evaluate.model
        pixels = model.adapter.channels * model.image_size[0] * model.image_size[1] * 4
        return len(self.images) * (pixels + self.coalitions * model.num_players)


def pilot_values(evaluate: Evaluator, images: Images, coalitions: Coalitions, *, count: int) -> Worth:
    """Values of the same coalitions ``[S, d]`` for ``count`` training images."""
    found: list[Worth] = []
    for pixels, _ in images.views(evenly(len(images), count).split(max(1, ROWS // len(coalitions))), 0):  # type: ignore[no-untyped-call]
        found.append(evaluate(pixels, coalitions.to(pixels.device).expand(len(pixels), -1, -1)))
    return Worth(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def null_values(evaluate: Evaluator) -> Tensor:
    """v(0), ``[1, K]``, where it is the same for all images: that of a blank one."""
    model = evaluate.model
    blank = torch.zeros(1, model.adapter.channels, *model.image_size, device=model.device)
    nobody = torch.zeros(1, 1, model.num_players, dtype=torch.bool, device=model.device)
    return evaluate(blank, nobody).worth[:, 0]
