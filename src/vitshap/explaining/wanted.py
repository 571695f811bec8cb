"""Which classes of an image are explained: asked for once, answered image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitshap.explanation import Explanation, class_index
from vitshap.models import MaskedModel


@dataclass(frozen=True)
class Wanted:
    """Which classes of each image are explained: those named, all, or by default the ``top`` most probable ones."""

    top: int = 5
    classes: tuple[int | str, ...] = ()
    """Numbers of classes, and "predicted"."""
    everything: bool = False

    @classmethod
    def parse(cls, targets: Sequence[str], model: MaskedModel, *, top: int = 5) -> Wanted:
        """From what a user wrote: names, numbers, "predicted", "all"; unknown names are errors with the nearest ones."""
        names = model.class_names
        classes: list[int | str] = []
        for target in targets:
            number = target.isdecimal() and target not in (names or ())
            if target == "predicted":
                classes.append(target)
            elif target != "all":
                classes.append(class_index(int(target) if number else target, names, model.num_classes))
        return cls(top, tuple(dict.fromkeys(classes)), "all" in targets)

    @property
    def depends_on_image(self) -> bool:
        """Whether the prediction decides which classes these are."""
        return not self.everything and (not self.classes or "predicted" in self.classes)

    @property
    def named(self) -> bool:
        """Whether the classes were named one by one."""
        return bool(self.classes) and not self.everything

    @property
    def fixed(self) -> list[int] | None:
        """The classes, where they are the same for every image; None for all there are."""
        return None if self.everything else [int(one) for one in self.classes]

    def count(self, num_classes: int) -> int:
        """How many classes of an image are explained, at most."""
        if self.everything:
            return num_classes
        return len(self.classes) or min(self.top, num_classes)

    def choose(self, prediction: Tensor) -> Tensor:
        """Classes for each image, int64 ``[B, T]``, perhaps one twice; ``prediction`` is ``[B, K]``.

        Those that are not named come in the order of their probability: the first one is the predicted class.
        """
        order = prediction.argsort(dim=1, descending=True, stable=True)
        if self.everything or not self.classes:
            return order if self.everything else order[:, : self.top]
        columns = [
            order[:, 0] if one == "predicted" else torch.full_like(order[:, 0], int(one)) for one in self.classes
        ]
        return torch.stack(columns, 1)


def only(explanation: Explanation, classes: Sequence[int]) -> Explanation:
    """The same explanation of one image for some of its explained classes, in this order."""
    at = [int((explanation.classes[0] == one).nonzero()[0]) for one in classes]
    if at == list(range(explanation.classes.shape[1])):
        return explanation
    base, full, stderr = explanation.base_values, explanation.full_values, explanation.stderr
    return replace(
        explanation,
        values=explanation.values[..., at],
        classes=explanation.classes[:, at],
        base_values=None if base is None else base[:, at],
        full_values=None if full is None else full[:, at],
        stderr=None if stderr is None else stderr[..., at],
    )
