"""The removal methods: how patches are withheld.

Each is a ``Session``: it is opened on a batch of images, computes once per image what does not depend on the coalition,
and turns rows (which patches of which image to keep) into logits.

==============  =========================================================================================
``attention``   withheld tokens are masked out of attention in every layer: equal to dropping them
``softmax``     attention weights of withheld tokens are zeroed after the softmax
``pixels``      withheld pixels are set to zero in the (normalised) input; works with any model
``embeddings``  withheld patch embeddings are set to zero before positions are added
``random``      withheld patches are replaced by those at the same position in images of a reference batch
==============  =========================================================================================
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.counter_rng import mixed
from vitshap.models.attention import (
    AttentionOverride,
    KeysOnly,
    KeysOnlyExplicit,
    ZeroAfterSoftmax,
    has_variable_length,
)
from vitshap.models.base import Adapter
from vitshap.models.packed import EncodePacked, Rows, encode_packed, run_bucket, run_packed

Removal: TypeAlias = Literal["attention", "softmax", "pixels", "embeddings", "random"]
REMOVALS: tuple[str, ...] = get_args(Removal)
NEEDS_NO_MASK = ("pixels", "random")
"""Removal methods that only change the input, and so work with any model."""


class Session(Protocol):
    """A batch of images, ready to be evaluated on subsets of their patches."""

    @property
    def sort_by_length(self) -> bool:
        """Whether rows of similar length should be run together."""

    @property
    def bytes_per_token(self) -> int:
        """A rough upper bound of the memory that inference needs for each token."""

    def lengths(self, keep: Tensor) -> Tensor:
        """Return the number of tokens that each row costs, int64 ``[n]``."""

    def run(self, rows: Rows) -> Tensor:
        """Return logits ``[n, K]``."""


class AttentionSession:
    """Only kept tokens are computed: packed where the device supports it, else in buckets of similar size."""

    def __init__(self, adapter: Adapter, images: Tensor, encode: EncodePacked = encode_packed) -> None:
        self.adapter, self.encode = adapter, encode
        self.table = adapter.embed(images)  # [B, P + N, D]

    @property
    def packs(self) -> bool:
        """Whether tokens are packed; determined at every run, for autocast may have been switched in between."""
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else self.table.dtype
        return has_variable_length(self.table.device, dtype) and not self.adapter.has_bias

    @property
    def sort_by_length(self) -> bool:
        return not self.packs

    @property
    def bytes_per_token(self) -> int:
        return _block_bytes(self.table)

    def lengths(self, keep: Tensor) -> Tensor:
        return keep.sum(1) + self.adapter.prefix

    def run(self, rows: Rows) -> Tensor:
        if self.packs:
            return run_packed(self.adapter, self.table, rows, self.encode)
        return run_bucket(self.adapter, self.table, rows)


class FullLengthSession:
    """Every token is computed and withheld ones are masked: the slower reference for ``AttentionSession``."""

    sort_by_length = False
    attend: type[KeysOnly] = KeysOnly

    def __init__(self, adapter: Adapter, images: Tensor) -> None:
        self.adapter = adapter
        self.table = adapter.embed(images)  # [B, P + N, D]
        self.positions = torch.arange(self.table.shape[1], device=images.device)[None]

    @property
    def bytes_per_token(self) -> int:
        # Several copies of the scores of every head to every token; heads are rarely narrower than 64.
        heads = -(-self.table.shape[2] // 64)
        return _block_bytes(self.table) + 4 * heads * self.table.shape[1] * self.table.element_size()

    def lengths(self, keep: Tensor) -> Tensor:
        return torch.full((len(keep),), self.table.shape[1])

    def run(self, rows: Rows) -> Tensor:
        return self.run_tokens(self.table[rows.image], rows.keep)

    def run_each(self, keep: Tensor) -> Tensor:
        """Return logits ``[B, S, K]`` of the patches ``keep``, bool ``[B, S, N]``, all at once."""
        # Not self.table[image]: its gradient would be summed in an order that varies from run to run.
        tokens = self.table[:, None].expand(-1, keep.shape[1], -1, -1).flatten(0, 1)
        return self.run_tokens(tokens, keep.flatten(0, 1)).view(*keep.shape[:2], -1)

    def run_tokens(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """Return logits ``[n, K]`` of all tokens ``[n, P + N, D]``, of whose patches those in ``keep`` count."""
        present = F.pad(keep, (self.adapter.prefix, 0), value=True)
        attend = self.attend(present, may_be_empty=self.adapter.prefix == 0)
        return self.finish(AttentionOverride(attend), tokens, present)

    def finish(self, override: AttentionOverride, tokens: Tensor, present: Tensor) -> Tensor:
        """Encode under this override and compute logits from the tokens that are present."""
        adapter = self.adapter
        with override:
            tokens = adapter.encode(tokens, self.positions)
        if not adapter.reads_patches:
            tokens, present = tokens[:, : adapter.prefix], present[:, : adapter.prefix]
        return adapter.readout(tokens, present)


class ExplicitSession(FullLengthSession):
    """The same with the mask added to the scores, as in the paper and its authors' code."""

    attend = KeysOnlyExplicit


class SoftmaxSession(FullLengthSession):
    """Withheld tokens are computed, and their attention weights are set to zero after the softmax."""

    def run_tokens(self, tokens: Tensor, keep: Tensor) -> Tensor:
        present = F.pad(keep, (self.adapter.prefix, 0), value=True)
        return self.finish(AttentionOverride(ZeroAfterSoftmax(present)), tokens, present)


class EmbeddingsSession(FullLengthSession):
    """Withheld patches have a zero embedding plus their position."""

    def __init__(self, adapter: Adapter, images: Tensor) -> None:
        super().__init__(adapter, images)
        handle = adapter.patch_embedding.register_forward_hook(lambda module, args, output: torch.zeros_like(output))
        try:
            # After the patch embedding every step is token by token, so one blank image is enough.
            self.blank = adapter.embed(images[:1])
        finally:
            handle.remove()

    def run_tokens(self, tokens: Tensor, keep: Tensor) -> Tensor:
        present = F.pad(keep, (self.adapter.prefix, 0), value=True)
        tokens = torch.where(present[..., None], tokens, self.blank)
        everything = torch.ones_like(present)
        return self.finish(AttentionOverride(KeysOnly(None)), tokens, everything)


class PixelsSession:
    """Withheld pixels are zero in the model's input."""

    sort_by_length = False

    def __init__(self, adapter: Adapter, images: Tensor) -> None:
        self.adapter, self.images = adapter, images

    @property
    def bytes_per_token(self) -> int:
        # The architecture is unknown here: as many bytes as a wide ViT needs, and the pixels three times.
        tokens = self.adapter.grid[0] * self.adapter.grid[1]
        return self.images.element_size() * (16 * 1024 + 3 * self.images[0].numel() // tokens)

    def lengths(self, keep: Tensor) -> Tensor:
        return torch.full((len(keep),), keep.shape[1] + self.adapter.prefix)

    def run(self, rows: Rows) -> Tensor:
        return self.adapter.predict(
            self.replaced(rows, torch.zeros((), dtype=self.images.dtype, device=rows.keep.device))
        )

    def run_each(self, keep: Tensor) -> Tensor:
        """Return logits ``[B, S, K]`` of the patches ``keep``, bool ``[B, S, N]``, all at once."""
        image = torch.arange(len(keep), device=keep.device)[:, None].expand(keep.shape[:2])
        return self.run(Rows(keep.flatten(0, 1), image.flatten())).view(*keep.shape[:2], -1)

    def replaced(self, rows: Rows, instead: Tensor) -> Tensor:
        """Return the rows' images with withheld pixels taken from ``instead``."""
        height, width = self.images.shape[-2:]
        down, across = self.adapter.grid
        kept = rows.keep.view(-1, 1, down, across)
        kept = kept.repeat_interleave(height // down, 2).repeat_interleave(width // across, 3)
        return torch.where(kept, self.images[rows.image], instead)


class RandomSession(PixelsSession):
    """Withheld patches come from images of a reference batch.

    Which reference image fills which patch is a hash of the image's pixels, the coalition and the patch: the value of a
    coalition does not depend on the rest of the batch.
    """

    def __init__(self, adapter: Adapter, images: Tensor, reference: Tensor) -> None:
        super().__init__(adapter, images)
        self.reference = reference
        pixels = images.detach().to(torch.float32).contiguous().view(torch.int32).flatten(1).to(torch.int64)
        self.image_hash = (pixels * _odd_numbers(pixels.shape[1], images.device)).sum(1)

    def run(self, rows: Rows) -> Tensor:
        patches = rows.keep.shape[1]
        coalition_hash = (rows.keep * _odd_numbers(patches, rows.keep.device)).sum(1)
        seed = mixed(self.image_hash[rows.image] + mixed(coalition_hash))  # [n]
        choice = mixed(seed[:, None] + torch.arange(patches, device=seed.device)) % len(self.reference)  # [n, N]
        height, width = self.images.shape[-2:]
        down, across = self.adapter.grid
        choice = choice.view(-1, 1, down, across)
        choice = choice.repeat_interleave(height // down, 2).repeat_interleave(width // across, 3)
        # [n, C, H, W]: at each pixel, that pixel of the chosen reference image
        channel = torch.arange(self.images.shape[1], device=seed.device)[None, :, None, None]
        y = torch.arange(height, device=seed.device)[None, None, :, None]
        x = torch.arange(width, device=seed.device)[None, None, None, :]
        return self.adapter.predict(self.replaced(rows, self.reference[choice, channel, y, x]))


def every_token(
    removal: str, adapter: Adapter, images: Tensor, *, reference: Tensor | None, explicit: bool = False
) -> FullLengthSession | PixelsSession:
    """Open a session in which every coalition costs all tokens; ``explicit``: see ``ExplicitSession``."""
    if removal == "random":
        assert reference is not None  # wrap has checked it
        return RandomSession(adapter, images, reference)
    found: dict[str, type[FullLengthSession] | type[PixelsSession]] = {
        "attention": ExplicitSession if explicit else FullLengthSession,
        "softmax": SoftmaxSession,
        "embeddings": EmbeddingsSession,
        "pixels": PixelsSession,
    }
    return found[removal](adapter, images)


def _block_bytes(table: Tensor) -> int:
    """Return the bytes per token in a block: about 16 arrays of its width (input, residual, qkv, hidden layer twice)."""
    return 16 * table.shape[-1] * table.element_size()


def _odd_numbers(n: int, device: torch.device) -> Tensor:
    """Return fixed pseudo-random odd multipliers for hashing."""
    return mixed(torch.arange(1, n + 1, device=device)) | 1
