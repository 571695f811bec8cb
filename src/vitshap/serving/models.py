"""A model behind the interface: what explains, the photos that it has seen lately, and the threads that compute.

Each model has two threads. The first takes explanations by an explainer's one pass and predictions of coalitions, batched
over requests: they take a fraction of a second. The second takes methods that evaluate the model many times, one request
after another, so that brushing over a photo stays fast while a long computation goes on.

An uploaded photo is known by the hash of its bytes. Its input to the model, the embedded patches and the output for the
whole photo are kept for the photos used last, so that each further request about it costs its own evaluations alone.
"""

from __future__ import annotations

import hashlib
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.errors import did_you_mean, first_line
from vitshap.estimators.estimate import Estimate
from vitshap.explaining.budget import LADDER
from vitshap.explaining.entries import class_label
from vitshap.explaining.photos import InMemory
from vitshap.explaining.source import (
    DEFAULT_METHOD,
    EXPLAINER,
    NEEDS_REFERENCES,
    RANDOM,
    Source,
    open_bundle,
    open_model,
)
from vitshap.explaining.stream import NO_PICTURE, Prepared, explain_prepared, model_input
from vitshap.methods import SamplingMethod, Target, list_methods, most_classes, resolve_target, target_from_words
from vitshap.models.base import net_device_dtype
from vitshap.models.masked import ImageGame
from vitshap.serving.schemas import ApiError
from vitshap.serving.uploads import Limits, decode_photo, shown_by_browsers
from vitshap.serving.worker import Cancelled, Job, Worker
from vitshap.viewer.page import photo_uri

PICTURE = 1024
"""Longer side in pixels of a photo that is sent back, because browsers cannot show its format."""
PHOTOS = 32
"""Photos that are kept per model: about a megabyte each."""
BATCHES = {"cpu": 16, "cuda": 64}
"""Explanations in one forward pass."""
COALITIONS_AT_ONCE = 32
"""Coalitions of a request that are evaluated before other requests have their turn."""
EXACT_PLAYERS = 12
"""Most players of a model for which the method exact is offered."""
MOST_CLASSES = 20
"""Most classes that methods other than an explainer and sampling explain at once: their time grows with the number."""

Kind = Literal["bundle", "model"]


@dataclass(frozen=True)
class ModelChoice:
    """A bundle or a model that is to be served, and its name in requests."""

    kind: Kind
    given: str | None
    """As given to ``open_bundle`` or ``open_model``."""
    name: str
    weights: str | None = None


@dataclass(eq=False)
class SeenPhoto:
    """What is kept of a photo."""

    prepared: Prepared
    game: ImageGame | None = None
    full: Tensor | None = None
    """Output for the whole photo, ``[K]``."""
    picture: str | None = None
    """A ``data:`` address of the photo, if browsers cannot show its format."""


@dataclass(eq=False, kw_only=True)
class ExplainJob(Job):
    """Explain a photo with the explainer's one pass; the result is an ``Explained``."""

    photo: SeenPhoto
    target: Target


@dataclass(eq=False, kw_only=True)
class PredictJob(Job):
    """Evaluate coalitions of a photo; the result is their outputs, and those of nobody and of all patches."""

    photo: SeenPhoto
    coalitions: Coalitions
    done: list[Tensor] = field(default_factory=list)

    @property
    def waiting(self) -> Coalitions:
        """The next coalitions to evaluate."""
        start = sum(len(part) for part in self.done)
        return self.coalitions[start : start + COALITIONS_AT_ONCE]


@dataclass(eq=False, kw_only=True)
class LongJob(Job):
    """Explain a photo with any other method; the result is an ``Explained``."""

    photo: SeenPhoto
    target: Target
    source: Source
    progress: Callable[[Estimate], object] | None = None
    """Called with every partial estimate, in the thread that computes."""


class ServedModel:
    """A loaded model with its threads."""

    def __init__(self, choice: ModelChoice, limits: Limits, device: str = "cpu", expected: Any = None) -> None:
        """Load the model and compute once, so that the first request is not slower than others.

        ``expected``: see ``Worker``.
        """
        self.choice, self.name, self.limits = choice, choice.name, limits
        if choice.kind == "bundle":
            self.source = open_bundle(choice.given, device=device)
        else:
            assert choice.given is not None
            self.source = open_model(choice.given, weights=choice.weights, device=device)
        self.model = self.source.model
        self._constant = ExitStack()
        self.model.eval()  # two threads use the network: its modes and settings must not change
        self._constant.enter_context(self.model.adapter.ready())
        self.sources = {name: source for name in self._candidates() if (source := self._source(name)) is not None}
        self.methods = list(self.sources)
        self._photos: OrderedDict[str, SeenPhoto] = OrderedDict()
        self._photos_lock = threading.Lock()
        self.batch_sizes: Callable[[int], object] = lambda size: None
        """Called with the number of requests in every forward pass."""
        batch = BATCHES[self.model.device.type]
        self._warm_up()
        self.quick: Worker[ExplainJob | PredictJob] = Worker(
            f"{self.name}-quick", self._run_quick, batch=batch, expected=expected or (lambda: 0)
        )
        self.long: Worker[LongJob] = Worker(f"{self.name}-long", self._run_long)

    def close(self) -> None:
        """Finish what waits, and end the threads."""
        self.quick.stop()
        self.long.stop()

    # What a request may ask for

    @property
    def class_names(self) -> list[str]:
        """Names of all classes."""
        names = self.model.class_names
        return [class_label(None if names is None else list(names), index) for index in range(self.model.num_classes)]

    def method_source(self, name: str | None, budget: int | None) -> Source:
        """Return the source of a method by its name (default: the model's), with a budget if it samples."""
        name = self.methods[0] if name is None else name
        if name not in self.sources:
            raise ApiError(422, "unknown_method", f"{self.name} has no such method{did_you_mean(name, self.methods)}")
        source = self.sources[name]
        if not isinstance(source.method, SamplingMethod):
            return source  # it takes no budget
        budget = LADDER[0] if budget is None else budget
        if budget > self.limits.budget:
            raise ApiError(422, "invalid_budget", f"at most {self.limits.budget:,} evaluations are allowed")
        return source.with_budget(budget)

    def target(self, words: str, source: Source) -> Target:
        """Return the target of a request: classes separated by commas, "predicted", "top-K" or "all"."""
        names, count = self.model.class_names, self.model.num_classes
        whole = words if names is not None and words in names else None  # a name may have a comma
        try:
            target = target_from_words([whole] if whole else [word.strip() for word in words.split(",")], names, count)
        except ValueError as error:
            raise ApiError(422, "unknown_class", f"target: {first_line(error)}") from None
        asked = most_classes(target, count)
        if asked > MOST_CLASSES and not (source.method.samples or source.method.name == EXPLAINER):
            most = f"{source.method.name} explains at most {MOST_CLASSES} classes in one request"
            raise ApiError(422, "too_many_classes", f"{most}; got {asked}")
        return target

    def photo(self, content: bytes) -> tuple[SeenPhoto, bool]:
        """Return a photo, and whether it was known; else it is decoded here."""
        key = hashlib.sha256(content).hexdigest()
        with self._photos_lock:
            if (seen := self._photos.get(key)) is not None:
                self._photos.move_to_end(key)
                return seen, True
        opened = decode_photo(content, self.limits)
        try:
            pixels, box = model_input(opened, self.model)
        except Exception as error:
            why = f"the photo cannot be prepared for the model: {first_line(error)}"
            raise ApiError(422, "unreadable_image", why) from None
        seen = SeenPhoto(Prepared(InMemory(b""), pixels, box, NO_PICTURE, opened.size, opened.notes))
        if not shown_by_browsers(content):
            seen.picture = photo_uri(opened.picture, most=PICTURE)
        with self._photos_lock:
            self._photos[key] = seen
            while len(self._photos) > PHOTOS:
                self._photos.popitem(last=False)
        return seen, False

    def is_quick(self, source: Source) -> bool:
        """Return whether a method is one pass of an explainer, which is batched with other requests."""
        return source is self.source and source.method.name == EXPLAINER

    def start_explanation(self, photo: SeenPhoto, target: Target, source: Source) -> Job:
        """Give an explanation to the thread that computes it."""
        if self.is_quick(source):
            job = ExplainJob(photo=photo, target=target)
            self.quick.submit(job)
            return job
        long = LongJob(photo=photo, target=target, source=source)
        self.long.submit(long)
        return long

    # Computing

    def _candidates(self) -> list[str]:
        first = EXPLAINER if self.choice.kind == "bundle" else DEFAULT_METHOD
        others = [name for name in offered_methods() if name not in (EXPLAINER, first)]
        small = self.model.num_players <= EXACT_PLAYERS
        return [first, *(name for name in others if name != "exact" or small)]

    def _source(self, name: str) -> Source | None:
        if name == self.source.method.name:
            return self.source
        try:
            return self.source.with_method(name)
        except (TypeError, ValueError):  # it needs an option that requests do not have
            return None

    def _warm_up(self) -> None:
        device, dtype = net_device_dtype(self.model.net)
        blank = torch.zeros(1, self.model.adapter.channels, *self.model.image_size, device=device, dtype=dtype)
        game = self.model.game(blank)
        _ = game.null, game.grand
        if self.choice.kind == "bundle":
            self.source.method(blank, target="predicted")

    def _run_quick(self, jobs: list[ExplainJob | PredictJob]) -> list[ExplainJob | PredictJob]:
        explain = [job for job in jobs if isinstance(job, ExplainJob)]
        predict = [job for job in jobs if isinstance(job, PredictJob)]
        if explain:
            self._guarded(explain, self._explain)
        by_count: dict[int, list[PredictJob]] = {}
        for job in predict:
            by_count.setdefault(len(job.waiting), []).append(job)
        for together in by_count.values():
            self._guarded(together, self._predict)
        return [job for job in predict if not job.result.done()]

    def _guarded(self, jobs: Sequence[Any], run: Callable[[Any], None]) -> None:
        """Run jobs together; if that fails, each alone, so that one request's error is not another's."""
        self.batch_sizes(len(jobs))
        try:
            run(jobs)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # otherwise it would keep the batch's tensors alive
            if len(jobs) == 1:
                jobs[0].fail(error)
                return
            for job in jobs:
                self._guarded([job], run)

    def _explain(self, jobs: list[ExplainJob]) -> None:
        """Explain in one pass, each image for its own classes: shorter lists are filled up with their first class."""
        names = self.model.class_names

        def target(prediction: Tensor) -> Tensor:
            own = [resolve_target(job.target, prediction[i : i + 1], names)[0] for i, job in enumerate(jobs)]
            longest = max(len(classes) for classes in own)
            return torch.stack([torch.cat([one, one[:1].expand(longest - len(one))]) for one in own])

        entries = explain_prepared([job.photo.prepared for job in jobs], self.source, target)
        for job, entry in zip(jobs, entries, strict=True):
            job.photo.full = entry.explanation.prediction[0]
            job.finish(entry)

    def _predict(self, jobs: list[PredictJob]) -> None:
        """Evaluate the next coalitions of each request, the same number of each, in one pass."""
        for job in jobs:
            if job.photo.game is None:
                job.photo.game = self.model.game(self._pixels([job.photo]))
        if len(jobs) == 1:
            assert jobs[0].photo.game is not None
            game: ImageGame = jobs[0].photo.game
        else:
            game = self.model.game(self._pixels([job.photo for job in jobs]))
        coalitions = torch.stack([job.waiting for job in jobs]).to(self.model.device)
        for job, outputs in zip(jobs, game(coalitions).cpu(), strict=True):
            job.done.append(outputs)
            if sum(len(part) for part in job.done) < len(job.coalitions):
                continue
            own = job.photo.game
            assert own is not None
            if job.photo.full is None:
                job.photo.full = own.grand[0].cpu()
            job.finish((torch.cat(job.done), own.null[0].cpu(), job.photo.full))

    def _pixels(self, photos: Sequence[SeenPhoto]) -> Tensor:
        device, dtype = net_device_dtype(self.model.net)
        return torch.stack([photo.prepared.pixels for photo in photos]).to(device, dtype)

    def _run_long(self, jobs: list[LongJob]) -> list[LongJob]:
        (job,) = jobs

        def progress(estimate: Estimate) -> None:
            if job.cancelled:
                raise Cancelled
            if job.progress is not None:
                job.progress(estimate)

        try:
            job.finish(explain_prepared([job.photo.prepared], job.source.with_progress(progress), job.target)[0])
        except Exception as error:
            job.fail(error)
        return []


def offered_methods() -> list[str]:
    """Return the names of all methods that some model may offer."""
    return [name for name in list_methods() if name not in (RANDOM, NEEDS_REFERENCES)]
