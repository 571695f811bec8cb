"""The one interface to a vision transformer of any library, and the list of families that have one.

An adapter answers four questions with the library's own modules: what are the tokens of these images (``embed``), what
do the blocks make of tokens (``encode``), what does the head read from them (``readout``), and what does the net say by
itself (``predict``). Everything else (masking, packing, chunks, removal) is built once, on top. A new family is one
short file with a subclass of ``Adapter`` and a line in ``FAMILIES``.
"""

from __future__ import annotations

import hashlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitshap.models.preprocess import Preprocess

FAMILIES = {
    "timm": "vitshap.models.timm",
    "transformers": "vitshap.models.huggingface",
    "torchvision": "vitshap.models.torchvision",
}
"""Top-level package of a net's class -> module with ``adapter_for(net, image_size)``."""


class CannotMask(ValueError):
    """This net cannot be asked about some patches only; the message says why and what to do."""

    def __init__(self, net: nn.Module, why: str) -> None:
        super().__init__(
            f"{type(net).__name__} cannot be masked: {why}. "
            'wrap(net, removal="pixels") works with any net: it blanks the pixels of withheld patches.'
        )


class Adapter(ABC):
    """What vitshap asks of a net. Tokens are ``[n, prefix + N, D]``: class and register tokens first, then patches."""

    net: nn.Module
    image_size: tuple[int, int]
    grid: tuple[int, int]
    prefix: int
    """Tokens before the patches; they are always kept."""
    channels: int
    num_classes: int
    reads_patches: bool
    """Whether the head reads patch tokens too, not only the prefix."""
    has_bias = False
    """Whether attention has an additive bias between positions, which rules variable-length attention out."""

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Tokens ``[B, prefix + N, D]`` as the first block gets them."""

    @abstractmethod
    def encode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Run all blocks; ``positions`` (int64 ``[n, L]``) says where each token stood among the prefix + N."""

    @abstractmethod
    def readout(self, tokens: Tensor, valid: Tensor) -> Tensor:
        """Logits ``[n, K]`` from encoded tokens ``[n, L, D]``; only those that ``valid`` (bool ``[n, L]``) marks count.

        Without ``reads_patches`` the tokens given are the prefix alone.
        """

    @property
    @abstractmethod
    def patch_embedding(self) -> nn.Module:
        """The module whose output is the patch embedding before positions are added."""

    @property
    @abstractmethod
    def final_norm(self) -> nn.Module:
        """The norm that is applied to every token after the last block."""

    @property
    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """The transformer blocks, in order."""

    def predict(self, images: Tensor) -> Tensor:
        """The net's own logits for whole images."""
        return logits_of(self.net(images))

    def preprocess(self) -> Preprocess | None:
        """How the net wants its images, if it says."""
        return None

    def class_names(self) -> list[str] | None:
        """The net's own names for its classes, if it has them."""
        return None

    def output(self) -> str | None:
        """The link that the net's configuration names ("softmax", "sigmoid", "identity"), if any."""
        return None

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Within, the net's attention goes through the calls that can be overridden; afterwards it is as it was."""
        yield


def find_adapter(net: nn.Module, image_size: tuple[int, int] | None) -> Adapter:
    """The adapter for this net, or ``CannotMask``."""
    for cls in type(net).__mro__:
        family = FAMILIES.get(cls.__module__.partition(".")[0])
        if family is not None:
            adapter: Adapter = importlib.import_module(family).adapter_for(net, image_size)
            return adapter
    raise CannotMask(net, f"it comes from none of {', '.join(FAMILIES)}, and nobody has written an adapter for it")


def unwrapped(net: nn.Module) -> nn.Module:
    """The net inside ``torch.compile``, ``DataParallel`` and PEFT wrappers."""
    while True:
        if hasattr(net, "_orig_mod"):
            net = cast(nn.Module, net._orig_mod)
        elif isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
            net = net.module
        elif type(net).__module__.startswith("peft.") and hasattr(net, "get_base_model"):
            net = cast(Any, net).get_base_model()
        else:
            return net


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of weights and buffers, their names and types."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def logits_of(output: object) -> Tensor:
    """Logits from whatever a library returns."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        what = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the net must return logits [B, K], got {what}")
    return logits


def masked_mean(tokens: Tensor, valid: Tensor) -> Tensor:
    """Mean over valid tokens, ``[n, L, D] -> [n, D]``; the mean over none is zero."""
    kept = tokens.masked_fill(~valid[..., None], 0)
    return kept.sum(1) / valid.sum(1, keepdim=True).clamp(min=1).to(tokens.dtype)


def masked_max(tokens: Tensor, valid: Tensor) -> Tensor:
    """Maximum over valid tokens, ``[n, L, D] -> [n, D]``; the maximum over none is zero."""
    if tokens.shape[1] == 0:
        return tokens.sum(1)
    highest = tokens.masked_fill(~valid[..., None], float("-inf")).amax(1)
    return highest.masked_fill(~valid.any(1, keepdim=True), 0)


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from one number or two."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def patch_grid(image_size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of patches; ``ValueError`` where the image does not divide into them."""
    if any(side % step for side, step in zip(image_size, patch, strict=True)):
        raise ValueError(f"images of {image_size} do not divide into patches of {patch}")
    return image_size[0] // patch[0], image_size[1] // patch[1]


def require_size(image_size: tuple[int, int], own: tuple[int, int], hint: str = "") -> None:
    """Refuse images of another size than the one that the model takes."""
    if image_size != own:
        raise ValueError(f"this model takes images of {own}, not {image_size}{hint}")


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode within; afterwards every module is in the mode it was in."""
    training = [module for module in net.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def attributes_set(changes: Sequence[tuple[object, str, object]]) -> Iterator[None]:
    """Set attributes (object, name, value) within; afterwards all have their former values."""
    former = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in former:
            setattr(owner, name, value)


def net_device_dtype(net: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where a net's parameters live and in what precision."""
    parameter = next((p for p in net.parameters() if p.is_floating_point()), None)
    if parameter is None:
        raise ValueError(f"{type(net).__name__} has no parameters: it is not a net that can be explained")
    return parameter.device, parameter.dtype
