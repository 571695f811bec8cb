"""The interface to vision transformers of any library (``Adapter``), and the libraries that have one (``FAMILIES``).

An adapter calls the library's own modules in four steps: tokens of images (``embed``), the transformer blocks
(``encode``), logits from the encoded tokens (``readout``), and the model's own forward pass (``predict``). Everything
else (masking, packing, chunks, removal) is built on top of these. A new family is one short file with a subclass of
``Adapter`` and one line in a registry.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""Top-level package of a model's class -> module with ``adapter_for(net, image_size)``."""


class CannotMask(ValueError):
    """The model cannot be evaluated on a subset of patches; the message says why and what to do."""

    def __init__(self, net: nn.Module, why: str) -> None:
        super().__init__(
            f"{type(net).__name__} cannot be masked: {why}. "
            'wrap(net, removal="pixels") works with any model: it blanks the pixels of withheld patches.'
        )


class Adapter(ABC):
    """What vitshap needs of a model. Tokens are ``[n, prefix + N, D]``: class and register tokens first, then patches."""

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
    """Whether attention has an additive bias between positions, which excludes variable-length attention."""

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens ``[B, prefix + N, D]`` that the first block takes."""

    @abstractmethod
    def encode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Run all blocks; ``positions`` (int64 ``[n, L]``) is the index of each token among the prefix + N."""

    @abstractmethod
    def readout(self, tokens: Tensor, valid: Tensor) -> Tensor:
        """Return logits ``[n, K]`` from those encoded tokens ``[n, L, D]`` that are ``valid``, bool ``[n, L]``.

        Without ``reads_patches`` only the prefix tokens are given.
        """

    def readout_weights(self) -> Tensor | None:
        """Return how much the head reads of each token after the last block, ``[prefix + N]``; None for attention pooling.

        By default that is the class token, the first one.
        """
        return self._mean_of(0, 1)

    def _mean_of(self, start: int, end: int | None = None) -> Tensor:
        """Return equal weights of some tokens, 0 for the others."""
        weights = torch.zeros(self.prefix + self.grid[0] * self.grid[1])
        weights[start:end] = 1
        return weights / weights.sum()

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
        """Return the model's own logits for whole images."""
        return logits_of(self.net(images))

    def preprocess(self) -> Preprocess | None:
        """Return the preprocessing that the model specifies, if any."""
        return None

    def class_names(self) -> list[str] | None:
        """Return the model's own class names, if it has them."""
        return None

    def output(self) -> str | None:
        """Return the link function that the configuration names ("softmax", "sigmoid", "identity"), if any."""
        return None

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Make the model's attention use calls that can be overridden, for the duration of the context."""
        yield


def find_adapter(net: nn.Module, image_size: tuple[int, int] | None) -> Adapter:
    """Return the adapter for this model, or raise ``CannotMask``."""
    for cls in type(net).__mro__:
        family = FAMILIES.get(cls.__module__.partition(".")[0])
        if family is not None:
            adapter: Adapter = importlib.import_module(family).adapter_for(net, image_size)
            return adapter
    raise CannotMask(net, f"it is not a model of {', '.join(FAMILIES)}, and there is no adapter for it")


def unwrapped(net: nn.Module) -> nn.Module:
    """Return the network inside ``torch.compile``, ``DataParallel`` and PEFT wrappers."""
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
    """Return the SHA-256 of weights and buffers with their names and types."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def logits_of(output: object) -> Tensor:
    """Return the logits in whatever a library's forward pass returns."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        what = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model must return logits [B, K], got {what}")
    return logits


def apply_link(logits: Tensor, output: str) -> Tensor:
    """From logits to probabilities ("softmax", "sigmoid"), or unchanged ("identity")."""
    if output == "softmax":
        return logits.softmax(-1)
    return logits.sigmoid() if output == "sigmoid" else logits


def masked_mean(tokens: Tensor, valid: Tensor) -> Tensor:
    """Return the mean over valid tokens, ``[n, L, D] -> [n, D]``; zero where none is valid."""
    kept = tokens.masked_fill(~valid[..., None], 0)
    return kept.sum(1) / valid.sum(1, keepdim=True).clamp(min=1).to(tokens.dtype)


def masked_max(tokens: Tensor, valid: Tensor) -> Tensor:
    """Return the maximum over valid tokens, ``[n, L, D] -> [n, D]``; zero where none is valid."""
    if tokens.shape[1] == 0:
        return tokens.sum(1)
    highest = tokens.masked_fill(~valid[..., None], float("-inf")).amax(1)
    return highest.masked_fill(~valid.any(1, keepdim=True), 0)


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) from one number or two."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def patch_grid(image_size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of patches; ``ValueError`` if the image size is not a multiple of the patch size."""
    if any(side % step for side, step in zip(image_size, patch, strict=True)):
        raise ValueError(f"images of {image_size} do not divide into patches of {patch} pixels")
    return image_size[0] // patch[0], image_size[1] // patch[1]


def require_size(image_size: tuple[int, int], own: tuple[int, int], hint: str = "") -> None:
    """Raise ``ValueError`` unless images have the size that the model takes."""
    if image_size != own:
        raise ValueError(f"this model takes images of {own}, not {image_size}{hint}")


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Set evaluation mode for the duration of the context; then restore the mode of every module."""
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
    """Set attributes (object, name, value) for the duration of the context; then restore their former values."""
    former = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in former:
            setattr(owner, name, value)


def net_device_dtype(net: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return the device and data type of a network's parameters."""
    parameter = next((p for p in net.parameters() if p.is_floating_point()), None)
    if parameter is None:
        raise ValueError(f"{type(net).__name__} has no parameters: it cannot be explained")
    return parameter.device, parameter.dtype


def gpu_memory_left(device: torch.device) -> int:
    """Return the bytes that this process can still allocate on a GPU, within its share if it was given one."""
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):  # not in older versions of torch
        share = torch.cuda.get_per_process_memory_fraction(device.index)
        free = min(free, int(share * total) - reserved)
    return free + reserved - torch.cuda.memory_allocated(device)


def within_memory(
    compute: Callable[[Tensor], tuple[Tensor, ...]], inputs: Tensor, at_once: int
) -> tuple[tuple[Tensor, ...], int]:
    """Compute all inputs, ``at_once`` together or fewer after an out-of-memory error; return how many fitted too."""
    found: list[tuple[Tensor, ...]] = []
    start = 0
    while start < len(inputs):
        part = inputs[start : start + at_once]
        try:
            found.append(compute(part))
        except torch.OutOfMemoryError:
            if len(part) == 1:
                raise
        else:
            start += len(part)
            continue
        # Outside the handler, whose traceback would keep tensors alive; as would reference cycles.
        gc.collect()
        torch.cuda.empty_cache()
        at_once = max(1, len(part) // 2)
    return tuple(torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*found, strict=True)), at_once


def resolve_device(name: str | torch.device) -> torch.device:
    """Turn "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1" into a device; ``ValueError`` if it is not there."""
    if str(name) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"--device is auto, cpu or cuda; got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device is auto, cpu or cuda; got {name!r}")
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise ValueError(f"--device {name}: there is no such CUDA device")
    return device
