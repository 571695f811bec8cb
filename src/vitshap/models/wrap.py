"""``wrap``: make a ``MaskedModel`` of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from PIL import Image
from torch import Tensor, nn

from vitshap.errors import did_you_mean
from vitshap.models.base import Adapter, CannotMask, find_adapter, pair, unwrapped
from vitshap.models.generic import GenericNetwork
from vitshap.models.leaks import check_mask
from vitshap.models.masked import MaskedModel, Output
from vitshap.models.preprocess import Preprocess
from vitshap.models.removal import NEEDS_NO_MASK, REMOVALS, Removal
from vitshap.players import Players, PlayersLike, resolve

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
        return adapter.preprocess()
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
