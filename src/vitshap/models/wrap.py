"""``wrap``: make a ``MaskedModel`` of a network, after checking that withheld patches do not leak into its output.

The check changes the pixels of withheld patches at random: no output for kept patches may change. Each stage is checked
separately (patch embedding, blocks, head), so that the error message can name what leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from PIL import Image
from torch import Tensor, nn

from vitshap.errors import did_you_mean
from vitshap.models.attention import AttentionOverride, KeysOnly
from vitshap.models.base import Adapter, CannotMask, evaluating, find_adapter, net_device_dtype, pair, unwrapped
from vitshap.models.generic import GenericNetwork
from vitshap.models.masked import MaskedModel, Output
from vitshap.models.packed import Rows
from vitshap.models.preprocess import Preprocess
from vitshap.models.removal import NEEDS_NO_MASK, REMOVALS, AttentionSession, FullLengthSession, Removal
from vitshap.players import Players, PlayersLike, resolve

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 2e-2}
"""Largest change, relative to the largest output, that counts as rounding and not as a leak."""
OUTPUTS = ("auto", "softmax", "sigmoid", "identity")


def wrap(
    net: nn.Module,
    /,
    *,
    preprocess: Callable[[Image.Image], Tensor] | object | None = None,
    class_names: Sequence[str] | None = None,
    output: Literal["auto", "softmax", "sigmoid", "identity"] = "auto",
    image_size: int | tuple[int, int] | None = None,
    players: PlayersLike = "patch",
    removal: Removal = "attention",
    reference: Tensor | None = None,
    check: bool = True,
) -> MaskedModel:
    """Return a model that can be evaluated on any subset of patches; the network itself is not changed.

    Args:
        net: a vision transformer of timm, transformers or torchvision, also compiled or wrapped by PEFT or DataParallel.
            With ``removal="pixels"`` or ``"random"`` any network from images to logits.
        preprocess: how photos become the model's input: a function from a PIL image to a tensor, a transformers image
            processor, or ``vitshap.models.Preprocess``. Default: timm's data configuration.
        class_names: one name per output. Default: the names in the model's configuration,
            and ImageNet's for timm's models of 1,000 classes.
        output: the link function from logits to values: "softmax", "sigmoid" (multi-label, or one logit), "identity"
            (regression). "auto": as the model's configuration says, else "sigmoid" for one logit and "softmax" for more.
        image_size: for models that take images of several sizes.
        players: "patch", the side of a block in patches, a label map over the grid (-1: no player), or ``Players``.
        removal: how patches are withheld: "attention", "softmax", "pixels", "embeddings" or "random".
        reference: for ``removal="random"``, the batch of images that patches are taken from.
        check: verify on random images that withheld patches have no influence, and raise ``CannotMask`` otherwise.
    """
    if not isinstance(net, nn.Module) or isinstance(net, MaskedModel):
        hint = ": it is wrapped already; wrap its .net to wrap it differently" if isinstance(net, MaskedModel) else ""
        raise TypeError(f"wrap takes a torch module, got {type(net).__name__}{hint}")
    _choose("removal", removal, REMOVALS)
    _choose("output", output, OUTPUTS)
    adapter = _adapter(net, removal, None if image_size is None else pair(image_size), players)
    model = MaskedModel(
        net,
        adapter,
        players=resolve(players, adapter.grid),
        removal=removal,
        output=_link(output, adapter),
        preprocess=_preprocess(preprocess, adapter),
        class_names=_names(class_names, adapter),
        reference=_reference(reference, removal),
    )
    if model.reference is not None:
        model.prepare(model.reference)  # checked like any images
    if check and removal not in NEEDS_NO_MASK:
        check_mask(adapter)
    return model


def _adapter(net: nn.Module, removal: str, size: tuple[int, int] | None, players: PlayersLike) -> Adapter:
    inner = unwrapped(net)
    if removal not in NEEDS_NO_MASK:
        return find_adapter(inner, size)
    try:
        return find_adapter(inner, size)
    except CannotMask:
        grid = None
        if isinstance(players, Tensor):
            grid = pair(players.shape[-2:])
        elif isinstance(players, Players):
            grid = pair(players.grid)
        return GenericNetwork(inner, size, grid)


def _choose(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ValueError(f"unknown {name} {given!r}{did_you_mean(str(given), known)}")


def _link(output: str, adapter: Adapter) -> Output:
    if output == "auto":
        output = adapter.output() or ("sigmoid" if adapter.num_classes == 1 else "softmax")
    return cast(Output, output)


def _preprocess(given: Any, adapter: Adapter) -> Any:
    if given is None:
        found = adapter.preprocess()
        grey = adapter.channels == 1  # timm's configuration is for three channels, also of a network with one
        return found.adjusted(1) if grey and isinstance(found, Preprocess) else found
    if hasattr(given, "image_mean") and hasattr(given, "size"):
        return Preprocess.from_image_processor(given, adapter.image_size)
    return given


def _names(given: Sequence[str] | None, adapter: Adapter) -> list[str] | None:
    if given is None:
        return adapter.class_names()
    if isinstance(given, str) or len(given) != adapter.num_classes:
        raise ValueError(f"class_names must be {adapter.num_classes} names, one per output; got {len(given)}")
    return [str(name) for name in given]


def _reference(reference: Tensor | None, removal: str) -> Tensor | None:
    if (removal == "random") != (reference is not None):
        raise ValueError(
            'removal="random" needs reference=, a batch of images to take patches from, and no other removal takes one; '
            f'got removal="{removal}" with reference={"None" if reference is None else "given"}'
        )
    return reference


def relative_change(
    evaluate: Callable[[Tensor, Tensor], Tensor], images: Tensor, keep: Tensor, grid: tuple[int, int]
) -> float:
    """Return how much ``evaluate(images, keep)`` changes when the pixels of withheld patches are changed at random.

    Relative to the largest absolute output. ``keep``: bool ``[B, N]``.
    """
    down, across = grid
    height, width = images.shape[-2:]
    kept = keep.view(-1, 1, down, across).repeat_interleave(height // down, 2).repeat_interleave(width // across, 3)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1)).to(images)
    before, after = evaluate(images, keep), evaluate(torch.where(kept, images, noise - images), keep)
    return distance(before, after)


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference relative to the largest absolute value; infinity if a value is not finite."""
    gap = float((one - other).abs().max() / one.abs().max().clamp(min=1e-30)) if one.numel() else 0.0
    return gap if gap == gap else float("inf")


def check_mask(adapter: Adapter) -> None:
    """Raise ``CannotMask``, naming the stage, if withheld patches influence what the network computes from kept ones."""
    if leak := _find_leak(adapter):
        raise CannotMask(adapter.net, leak)


def _find_leak(adapter: Adapter) -> str | None:
    device, dtype = net_device_dtype(adapter.net)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, adapter.channels, *adapter.image_size, generator=generator).to(device, dtype)
    keep = torch.rand(2, adapter.grid[0] * adapter.grid[1], generator=generator).to(device) < 0.5
    keep[:, 0], keep[:, -1] = True, False
    # Without autocast, whose rounding would look like a leak.
    with torch.no_grad(), torch.autocast(device.type, enabled=False), evaluating(adapter.net), adapter.ready():
        for stage, what_leaks in (
            (_embedded, "its patch embedding mixes neighbouring patches"),
            (_encoded, "its blocks mix kept and withheld tokens outside of attention"),
            (_logits, "its head reads withheld patches"),
        ):
            moved = relative_change(lambda x, k, stage=stage: stage(adapter, x, k), images, keep, adapter.grid)  # type: ignore[misc]
            if moved > TOLERANCE[dtype]:
                return f"{what_leaks} (relative change of kept outputs: {moved:.1e})"
        return _unmasked_layers(adapter, images) or _disagreement(adapter, images, keep, TOLERANCE[dtype])


def _embedded(adapter: Adapter, images: Tensor, keep: Tensor) -> Tensor:
    tokens = adapter.embed(images)
    return torch.cat([tokens[:, : adapter.prefix].flatten(0, 1), tokens[:, adapter.prefix :][keep]])


def _encoded(adapter: Adapter, images: Tensor, keep: Tensor) -> Tensor:
    session = FullLengthSession(adapter, images)
    present = torch.nn.functional.pad(keep, (adapter.prefix, 0), value=True)
    with AttentionOverride(KeysOnly(present)):
        return adapter.encode(session.table, session.positions)[present]


def _logits(adapter: Adapter, images: Tensor, keep: Tensor) -> Tensor:
    rows = Rows(keep, torch.arange(len(images), device=images.device))
    return FullLengthSession(adapter, images).run(rows)


def _unmasked_layers(adapter: Adapter, images: Tensor) -> str | None:
    calls = 0

    class Counted(KeysOnly):
        def _mask(self, bias: Tensor | None) -> Tensor | None:
            nonlocal calls
            calls += 1
            return super()._mask(bias)

    session = FullLengthSession(adapter, images)
    with AttentionOverride(Counted(None)):
        adapter.encode(session.table, session.positions)
    if calls < len(adapter.blocks):
        return f"only {calls} of its {len(adapter.blocks)} attention layers use calls that can be masked"
    return None


def _disagreement(adapter: Adapter, images: Tensor, keep: Tensor, tolerance: float) -> str | None:
    rows = Rows(keep, torch.arange(len(images), device=images.device))
    full, packed = (session(adapter, images).run(rows) for session in (FullLengthSession, AttentionSession))
    if distance(full, packed) > tolerance:
        return "its output changes when withheld tokens are dropped instead of masked"
    whole = FullLengthSession(adapter, images).run(Rows(torch.ones_like(keep), rows.image))
    if distance(adapter.predict(images), whole) > tolerance:
        return "its own forward pass does more than its embedding, blocks and head"
    return None
