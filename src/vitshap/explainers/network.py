"""The explainer network: a copy of the explained model's trunk and the paper's head, one value per patch and class.

The trunk can be any transformer that ``wrap`` accepts: the adapter's ``embed`` and ``encode`` run on whole images, so the
explainer has the architecture of the model it explains and starts from its weights. The head is one more attention block
and three fully connected layers of four times the width; class and register tokens are part of its input, and their
outputs are dropped. The alternative is a U-Net on pixels, which depends only on the image size and the grid.

Profiles model at which coalition sizes the values of an image arise: Shapley values are the mean over sizes of the linear
effects at each size, and a profile is a mixture of basis functions over the sizes.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitshap.explainers import weights
from vitshap.explainers.unet import UNet
from vitshap.models import MaskedModel
from vitshap.models.base import Adapter, CannotMask, evaluating, find_adapter, net_device_dtype, unwrapped
from vitshap.models.linear import fast_linear
from vitshap.players import Players

Trunk = Literal["own", "unet"]
LARGEST = 8.0
"""Largest absolute log-magnitude, which prevents overflow."""


@dataclass(frozen=True)
class ExplainerConfig:
    """Architecture, initial weights and trained parts of an explainer network."""

    extra_block: bool = True
    """One more attention block between trunk and fully connected layers; a U-Net has neither."""
    block_norm: bool = True
    """A layer norm before the extra block's attention, and before the fully connected layers also if there is no extra
    block. The authors' network has neither: false for their weights."""
    class_token: bool = True
    """Whether class and register tokens are among the head's input; their outputs are dropped in any case."""
    train_trunk: bool = True
    """Whether the trunk is trained, or only the head."""
    frozen_blocks: int = 0
    """Number of first blocks of the trunk that are not trained; the embedding is then not trained either."""
    frozen: tuple[str, ...] = ()
    """Names of modules or parameters of the trunk that are not trained, with * for any text ("blocks.3", "*.norm1.*")."""
    init: str = "surrogate"
    """Where the trunk's weights come from: "surrogate", "classifier", "scratch", the path of a safetensors file with the
    state dict of such a network, or another pre-trained model: a timm name, a folder or a hub id of transformers. A U-Net
    starts from scratch or from a file."""
    tanh: bool = True
    """Bound the values by tanh before normalisation, as in the paper."""
    output_scale: float = 1.0
    """Factor applied to the head's output; small values are learned faster with a small factor."""
    magnitudes: bool = False
    """Predict the magnitude of an image's values for each class separately from their pattern: classes may differ
    by orders of magnitude. Not available for a U-Net."""
    profiles: bool = False
    """Predict at which coalition sizes the values of an image and class arise. Explanations do not change: training uses it
    to reduce noise. Not available for a U-Net."""
    trunk: Trunk = "own"
    """The architecture of the explained model ("own"), or a U-Net on pixels, for any model ("unet")."""

    def __post_init__(self) -> None:
        """Convert paths to text, so that a configuration can be written as JSON, and check the fields."""
        object.__setattr__(self, "init", os.fspath(self.init))
        if problem := next(self._problems(), None):
            raise ValueError(problem)
        object.__setattr__(self, "frozen", tuple(self.frozen))

    def _problems(self) -> Iterator[str]:
        if not isinstance(self.output_scale, int | float) or not 0 < self.output_scale < math.inf:
            yield f"output_scale is a positive number, got {self.output_scale!r}"
        if isinstance(self.frozen_blocks, bool) or not isinstance(self.frozen_blocks, int) or self.frozen_blocks < 0:
            yield f"frozen_blocks is a number of blocks, got {self.frozen_blocks!r}"
        if isinstance(self.frozen, str) or not all(isinstance(name, str) for name in self.frozen):
            yield f"frozen is a list of names, got {self.frozen!r}"
        if self.trunk not in ("own", "unet"):
            yield f'trunk is "own" or "unet"; got {self.trunk!r}'
        if self.trunk != "unet":
            return
        if self.frozen_blocks:
            yield "a U-Net has no blocks to freeze: set frozen_blocks to 0, or name modules in frozen"
        for name in ("magnitudes", "profiles"):
            if getattr(self, name):
                yield f"a U-Net has no output for {name}: set {name} to false"
        if self.init == "classifier":
            yield 'a U-Net cannot start as the classifier: give init="scratch" or the file of a U-Net'


class ExplainerNetwork(nn.Module):
    """Maps images ``[B, C, H, W]`` to raw values ``[B, d, K]``, before the additive efficient normalisation."""

    def __init__(
        self, model: MaskedModel, config: ExplainerConfig | None = None, *, classifier: MaskedModel | None = None
    ) -> None:
        """Create a trunk like ``model``'s or a U-Net, and a new head for its players and classes.

        ``classifier``: the source of the weights for ``init="classifier"``.
        """
        super().__init__()
        self.config = config or ExplainerConfig()
        self.adapter: Adapter | None = None
        if self.config.trunk == "unet":
            self._build_unet(model)
        else:
            self._build_own(model, classifier)
        self.head.to(model.device)

    def forward(self, images: Tensor, players: Players) -> Tensor:
        """Return the values of the players: a player of several tokens has the sum of their values."""
        return players.sum_tokens(self.token_values(images))

    def token_values(self, images: Tensor) -> Tensor:
        """Return the values of the patches, ``[B, N, K]``."""
        return self.outputs(images)[0]

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the values of the patches, and with ``profiles`` the weights ``[B, J, K]`` of the functions of
        ``size_basis`` in each class's profile; these pass no gradient to the trunk."""
        with fast_linear(images.device):
            values, shares = self._raw(images)
        if self.config.tanh:
            values = values.tanh()
        return values * self.config.output_scale, shares

    def _raw(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what the head gives, values in float32."""
        shares: Tensor | None = None
        if self.adapter is None:
            values: Tensor = self.head(self.trunk(images)).float()
        else:
            tokens, prefix = encoded(self.adapter, images), self.adapter.prefix
            kept = self.config.class_token
            values, shares = self.head(tokens if kept else tokens[:, prefix:])
            values = (values[:, prefix:] if kept else values).float()  # [B, N, K]
        return values, shares

    def _build_own(self, model: MaskedModel, classifier: MaskedModel | None) -> None:
        config = self.config
        self.trunk: nn.Module = copy.deepcopy(unwrapped(model.net))
        try:
            self.adapter = find_adapter(self.trunk, model.image_size)
        except CannotMask as error:
            raise ValueError(
                f'{type(self.trunk).__name__} cannot be the trunk of an explainer: use ExplainerConfig(trunk="unet")'
            ) from error
        width, read = probe(self.trunk, self.adapter)
        if config.init != "surrogate":
            weights.start(self.trunk, self.adapter, config.init, read, classifier)
        # The trunk's own classification head gets no gradient: it is left out of training.
        trained = read - self._frozen() if config.train_trunk else set()
        for name, parameter in self.trunk.named_parameters():
            parameter.requires_grad_(name in trained)
        self.head: nn.Module = Head(
            width,
            _heads(width),
            model.num_classes,
            extra_block=config.extra_block,
            block_norm=config.block_norm,
            magnitudes=config.magnitudes,
            basis=uniform_shares(model.num_players) if config.profiles else None,
        ).to(net_device_dtype(self.trunk)[1])

    def _build_unet(self, model: MaskedModel) -> None:
        unet = UNet(model.adapter.channels, model.image_size, model.grid)
        if self.config.init not in ("scratch", "surrogate"):
            weights.start(unet, None, self.config.init, set(unet.state_dict()))
        self.trunk = unet.to(model.device)
        frozen = self._frozen()
        for name, parameter in unet.named_parameters():
            parameter.requires_grad_(self.config.train_trunk and name not in frozen)
        self.head = nn.Linear(unet.width, model.num_classes)

    def _frozen(self) -> set[str]:
        """Return the names of the trunk's parameters that ``frozen_blocks`` and ``frozen`` exclude from training."""
        names, frozen = [name for name, _ in self.trunk.named_parameters()], set[str]()
        if (count := self.config.frozen_blocks) and self.adapter is not None:
            blocks = self.adapter.blocks
            if count > len(blocks):
                raise ValueError(f"frozen_blocks is {count}, but the trunk has {len(blocks)} blocks")
            # Everything that is neither in a later block nor in the final norm.
            later = {id(p) for module in (*blocks[count:], self.adapter.final_norm) for p in module.parameters()}
            frozen |= {name for name, parameter in self.trunk.named_parameters() if id(parameter) not in later}
        for pattern in self.config.frozen:
            found = {name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
            if not found:
                raise ValueError(
                    f"frozen: the trunk has no module or parameter {pattern!r}; it has {', '.join(names[:3])}, ..."
                )
            frozen |= found
        return frozen


class Head(nn.Module):
    """One attention block, a norm, and three fully connected layers D - 4D - 4D - K."""

    def __init__(
        self,
        width: int,
        heads: int,
        num_classes: int,
        *,
        extra_block: bool = True,
        block_norm: bool = True,
        magnitudes: bool = False,
        basis: Tensor | None = None,
    ) -> None:
        """``heads`` of the attention block; ``block_norm``, ``magnitudes``: see ``ExplainerConfig``; ``basis``: the
        initial weights ``[J]`` of profiles, None for no profiles."""
        super().__init__()
        self.magnitudes = _of_image(width, torch.zeros(num_classes)) if magnitudes else None
        self.profiles = None
        if basis is not None:
            self.profiles = _of_image(width, basis.float().log()[:, None].expand(-1, num_classes))
        self.block = AttentionBlock(width, heads, norm=block_norm) if extra_block else nn.Identity()
        self.layers = nn.Sequential(
            nn.LayerNorm(width) if extra_block or block_norm else nn.Identity(),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, num_classes),
        )

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Map ``[B, L, D]`` to values ``[B, L, K]`` and, if there are profiles, weights ``[B, J, K]``."""
        tokens = self.block(tokens)
        values: Tensor = self.layers(tokens)
        if self.magnitudes is not None:
            log_size: Tensor = self.magnitudes(tokens.mean(1, keepdim=True)).float()
            values = values.float() * log_size.clamp(-LARGEST, LARGEST).exp()
        if self.profiles is None or not self.training:
            return values, None
        scores: Tensor = self.profiles(tokens.detach().mean(1)).float()
        return values, scores.view(len(scores), -1, values.shape[2]).softmax(1)


class AttentionBlock(nn.Module):
    """A plain pre-norm transformer block, or one without the norm before its attention."""

    def __init__(self, width: int, heads: int, *, norm: bool = True) -> None:
        """``width`` must be a multiple of ``heads``."""
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width) if norm else nn.Identity()
        self.norm2 = nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, L, D] -> [B, L, D]``."""
        batch, length, width = tokens.shape
        qkv = self.qkv(self.norm1(tokens)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B, heads, L, c]
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        tokens = tokens + self.project(attended)
        mixed: Tensor = tokens + self.mlp(self.norm2(tokens))
        return mixed


def _of_image(width: int, initial: Tensor) -> nn.Sequential:
    """Return a layer on an image's mean token whose initial output is ``initial`` (flattened) for every image."""
    last = nn.Linear(width, initial.numel())
    nn.init.zeros_(last.weight)
    with torch.no_grad():
        last.bias.copy_(initial.flatten())
    return nn.Sequential(nn.LayerNorm(width), last)


def normalised(values: Tensor, base: Tensor, full: Tensor, player_mask: Tensor | None = None) -> Tensor:
    """Apply additive efficient normalisation: shift the values ``[B, d, K]`` equally until they add up to ``full - base``.

    ``base``, ``full``: ``[B, K]``. Players that an image lacks (``player_mask`` bool ``[B, d]``) stay at zero.
    """
    # Centred first: no loss limits what the network adds to all players of an image, and a large sum would be rounded.
    if player_mask is None:
        values = values - values.mean(1, keepdim=True)
        missing = full - base - values.sum(1)
        return values + missing[:, None] / values.shape[1]
    present = player_mask[..., None].to(values.dtype)
    count = present.sum(1, keepdim=True)
    values = present * (values - (present * values).sum(1, keepdim=True) / count)
    missing = full - base - values.sum(1)
    return values + present * missing[:, None] / count


def encoded(adapter: Adapter, images: Tensor) -> Tensor:
    """Return the tokens of whole images after the final norm, ``[B, prefix + N, D]``."""
    tokens = adapter.embed(images)
    positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
    normed: Tensor = adapter.final_norm(adapter.encode(tokens, positions))
    return normed


def probe(trunk: nn.Module, adapter: Adapter) -> tuple[int, set[str]]:
    """Return the trunk's width, and the names of the parameters and buffers that its encoded tokens depend on."""
    names, parameters = zip(*trunk.named_parameters(), strict=True)
    with torch.enable_grad(), evaluating(trunk):
        trunk.requires_grad_(True)
        tokens = encoded(adapter, parameters[0].new_ones(1, adapter.channels, *adapter.image_size))
        gradients = torch.autograd.grad(tokens[:, adapter.prefix :].float().sum(), parameters, allow_unused=True)
    read = {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
    # Buffers have no gradients: all are assumed to be used.
    return tokens.shape[-1], read | (trunk.state_dict().keys() - set(names))


def _heads(width: int) -> int:
    """Return the number of heads: of width 64 as in vision transformers, or 8 in narrow networks, if these divide it."""
    return next((width // size for size in ((64, 32, 16, 8) if width >= 64 else (8, 4)) if width % size == 0), 1)


def size_basis(d: int) -> Tensor:
    """Return piecewise linear (hat) functions over coalition sizes, float64 ``[J, d + 1]``, each of mean 1 over the sizes 1
    to d - 1; their knots double towards d/2 from both ends."""
    sizes, knots = torch.arange(d + 1, dtype=torch.float64), _knots(d)
    hats = torch.zeros(len(knots), d + 1, dtype=torch.float64)
    place = torch.searchsorted(knots, sizes).clamp(1, max(len(knots) - 1, 1))
    if len(knots) == 1:
        hats[0] = 1
    else:
        part = ((sizes - knots[place - 1]) / (knots[place] - knots[place - 1])).clamp(0, 1)
        hats.scatter_(0, place[None] - 1, (1 - part)[None])
        hats.scatter_(0, place[None], part[None])
    hats[:, 0] = hats[:, d] = 0  # the empty and the full coalition have no effects
    return hats * (d - 1) / hats.sum(1, keepdim=True)


def uniform_shares(d: int) -> Tensor:
    """Return the weights with which the functions of ``size_basis`` add up to 1 at every size, float64 ``[J]``."""
    return 1 / size_basis(d).amax(1)


def _knots(d: int) -> Tensor:
    doubling = [2**i for i in range(d.bit_length()) if 2**i <= d / 2]
    return torch.tensor(sorted({*doubling, d // 2, *(d - size for size in doubling)} - {0}), dtype=torch.float64)
