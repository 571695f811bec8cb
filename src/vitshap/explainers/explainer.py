"""``Explainer``: a surrogate and the network that predicts its Shapley values; it is called like any method."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from vitshap.explainers.network import ExplainerConfig, ExplainerNetwork, normalised
from vitshap.explanation import Explanation, InputShaped
from vitshap.methods import Target, resolve_target, take_classes
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.models.masked import check_finite

if TYPE_CHECKING:
    from vitshap.explainers.calibration import Calibration


class Explainer(InputShaped, nn.Module):
    """Shapley values in one forward pass, efficient by construction."""

    name: ClassVar[str] = "explainer"
    samples: ClassVar[bool] = False

    null_values: Tensor
    """v(0) of a blank image, float32 ``[1, K]``; if ``surrogate.same_null``, that of every image."""
    scale: Tensor
    """Unit of the network's outputs, float32 ``[K]``; see ``set_scale``."""
    classifier_fingerprint: str | None
    """SHA-256 of the explained model's weights (``MaskedModel.fingerprint``), if known; stored with the explainer."""
    classifier_as_stored: str | None = None
    """SHA-256 of the copy in a bundle, whose weights may be rounded."""
    trained_on: dict[str, Any] | None = None
    """Which images its training held out, as ``vitshap.data.SplitRecord.to_json`` writes it; stored with the explainer."""
    quality: dict[str, Any] | None = None
    """Measured quality, as stored in the bundle."""
    calibration: Calibration | None = None
    """Where the standard errors of the values come from; see ``vitshap.explainers.calibration.calibrate``."""

    def __init__(
        self, surrogate: MaskedModel, config: ExplainerConfig | None = None, *, classifier: MaskedModel | None = None
    ) -> None:
        """Create a network with a new head on a copy of the surrogate's trunk; the surrogate itself is not trained.

        ``to``, ``half``, ``eval`` and the like act on surrogate and classifier too; ``parameters``, ``state_dict`` and
        ``train`` are the network's alone.

        ``classifier``, the explained model, is needed for ``ExplainerConfig(init="classifier")``, and to store it too;
        without it the surrogate's record of its fingerprint is used.
        """
        super().__init__()
        _check_surrogate(surrogate)
        self._surrogate = [surrogate]  # in a list: its weights are neither this module's parameters nor saved with it
        self._classifier = [classifier]
        self.network = ExplainerNetwork(surrogate, config, classifier=classifier)
        self.classifier_fingerprint = (
            surrogate.classifier_fingerprint if classifier is None else classifier.fingerprint()
        )
        blank = torch.zeros(1, surrogate.adapter.channels, *surrogate.image_size)
        parameter = next(surrogate.net.parameters())
        self.register_buffer("null_values", surrogate.game(blank.to(parameter)).null)
        self.register_buffer("scale", torch.ones(surrogate.num_classes, device=self.null_values.device))

    @property
    def surrogate(self) -> MaskedModel:
        """The model whose Shapley values are predicted."""
        return self._surrogate[0]

    @property
    def classifier(self) -> MaskedModel | None:
        """The explained model, if it was given."""
        return self._classifier[0]

    def set_scale(self, std: Tensor, /) -> None:
        """Set the unit of the network's outputs to the outputs' standard deviation ``[K]``, for regression."""
        std = std.detach().to(self.scale)
        if std.shape != self.scale.shape or not bool((torch.isfinite(std) & (std > 0)).all()):
            raise ValueError(
                f"the scale is one positive, finite standard deviation per output, {list(self.scale.shape)}; got "
                f"{std.tolist()}: an output that never varies has nothing to explain"
            )
        self.scale.copy_(std)

    @property
    def forward_func(self) -> MaskedModel:
        """The surrogate, under the name that captum expects."""
        return self.surrogate

    def base_values(self, pixels: Tensor) -> Tensor:
        """Return v(0) of these images, ``[B, K]``: stored if it is the same for all images, else computed."""
        surrogate = self.surrogate
        if surrogate.same_null:
            return self.null_values.expand(len(pixels), -1)
        nobody = torch.zeros(len(pixels), 1, surrogate.num_players, dtype=torch.bool, device=pixels.device)
        with torch.no_grad(), evaluating(surrogate.net):
            return surrogate.link(surrogate.logits(pixels, nobody, finite=False))[:, 0]

    def values(self, pixels: Tensor, full: Tensor, base: Tensor | None = None) -> Tensor:
        """Return the values of all players and classes ``[B, d, K]``, given v(1) ``[B, K]``, with gradients.

        ``base``: v(0) of these images, where the caller has it already.
        """
        raw = self.network(pixels, self.surrogate.players)
        return self.efficient(raw, full, self.base_values(pixels) if base is None else base)

    def efficient(self, raw: Tensor, full: Tensor, base: Tensor) -> Tensor:
        """Normalise the network's outputs ``[B, d, K]`` to add up to v(1) - v(0), both ``[B, K]``."""
        return normalised(raw * self.scale, base, full)

    def train(self, mode: bool = True) -> Self:
        """Set the network's mode; ``eval`` also applies to surrogate and classifier, which are never trained here."""
        super().train(mode)
        if not mode:
            for model in self._others():
                model.eval()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply ``to``, ``cuda``, ``half`` and the like; v(0) and the scale stay float32."""
        before = {"null_values": self.null_values, "scale": self.scale}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in before.items():
            moved = getattr(self, name)
            if moved.dtype != tensor.dtype:
                setattr(self, name, tensor.to(moved.device))
        for model in self._others():
            model._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _others(self) -> list[MaskedModel]:
        """Return surrogate and classifier, once if they are the same."""
        models = {id(model): model for model in (self.surrogate, self.classifier) if model is not None}
        return list(models.values())

    def forward(self, images: Any, /, target: Target = None) -> Explanation:
        """Explain images (a tensor as the model takes it, PIL images or paths) for ``target``, or for all classes.

        The explanation has standard errors if the explainer is calibrated.
        """
        surrogate = self.surrogate
        prepared = surrogate.prepare(images, finite=False)
        started = time.perf_counter()
        with torch.no_grad(), evaluating(self), evaluating(surrogate.net):
            full = surrogate.link(surrogate.logits(prepared.pixels, finite=False))
            targets = resolve_target(target, full, surrogate.class_names)
            base = self.base_values(prepared.pixels)
            values = take_classes(self.values(prepared.pixels, full, base), targets).float().cpu()
        full, base, targets = full.cpu(), base.cpu(), targets.cpu()
        if not bool(torch.isfinite(full).all()):  # checked here, when the GPU has finished
            check_finite(prepared.pixels)
        stderr = None
        if self.calibration is not None:
            stderr = self.calibration.stderr(values, targets, full, surrogate.unit == "probability")
        return Explanation(
            values=values,
            stderr=stderr,
            posterior=stderr is not None,
            classes=targets,
            additive=True,
            unit=surrogate.unit,
            prediction=full,
            prediction_by="surrogate",
            players=surrogate.players.labels.cpu(),
            method=self.name,
            base_values=base.gather(1, targets),
            full_values=full.gather(1, targets),
            image_box=prepared.boxes,
            seconds=(time.perf_counter() - started) / len(full),
            evaluations=1 if surrogate.same_null else 2,
            class_names=None if surrogate.class_names is None else tuple(surrogate.class_names),
        )

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        /,
        *,
        half: bool = False,
        include_classifier: MaskedModel | bool = False,
        quality: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Store explainer and surrogate as a folder; see ``vitshap.explainers.bundle.save``."""
        from vitshap.explainers import bundle

        return bundle.save(
            self, folder, half=half, include_classifier=include_classifier, quality=quality, overwrite=overwrite
        )

    def push_to_hub(self, name: str, /, **options: Any) -> str:
        """Upload explainer and surrogate to the Hugging Face hub; see ``vitshap.explainers.bundle.push``."""
        from vitshap.explainers import bundle

        return bundle.push(self, name, **options)

    @staticmethod
    def from_pretrained(
        name: str | os.PathLike[str],
        /,
        *,
        classifier: MaskedModel | nn.Module | None = None,
        device: str | torch.device | None = None,
    ) -> Explainer:
        """Load a folder, a shipped explainer or one of the hub; see ``vitshap.explainers.bundle.load``."""
        from vitshap.explainers import bundle

        return bundle.load(name, classifier=classifier, device=device)


def explainer_method(
    explainer: Explainer | str | os.PathLike[str], /, *, device: str | torch.device | None = None
) -> Explainer:
    """Return what ``vitshap.method("explainer", ...)`` gives: this explainer, or the one of a bundle (name or folder)."""
    if isinstance(explainer, Explainer):
        return explainer.to(device)
    if not isinstance(explainer, str | os.PathLike):
        given = type(explainer).__name__
        raise TypeError(f"the method explainer needs an Explainer, or the name or folder of a bundle; got {given}")
    return Explainer.from_pretrained(explainer, device=device)


def _check_surrogate(surrogate: MaskedModel) -> None:
    """Raise ``ValueError`` for players or removal that differ between images: a network has one list of players."""
    why = None
    if surrogate.removal == "random":
        why = 'with removal="random" v(0) differs between images: an explainer needs another removal'
    if surrogate.players.per_image or not bool(surrogate.players.player_mask.all()):
        why = (
            "players that differ between images do not fit an explainer, whose network has the same players for every "
            "image: wrap the model with one label map, or give these players to a method such as kernelshap"
        )
    if why is not None:
        raise ValueError(why)
