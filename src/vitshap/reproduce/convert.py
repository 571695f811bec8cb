"""``vitshap convert``: the authors' published weights as a bundle.

The authors published surrogate and explainer of ViT-Base for each of three data sets, each as a ``_state_dict`` file: a
dictionary of tensors, pickled by torch. This is the only module that reads a pickled file, and it reads tensors and nothing
else (``weights_only``). Names, order of classes, preprocessing and the missing norm of the extra block are those of the
authors' code. Their files were not available when this was written: it is tested on files of the same form.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitshap.data.published import authors_output_names
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.explainers.weights import convert_authors_state
from vitshap.files import state_difference
from vitshap.models import MaskedModel, wrap
from vitshap.models.architecture import import_library
from vitshap.models.convert import convert_authors_net
from vitshap.models.preprocess import Preprocess

Source = Literal["imagenette", "mura", "pets"]
HEAD_WIDTH = 64
"""Width of an attention head in every ViT of the authors."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, which the authors used for all data sets."""
BLOCK = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
EXTRA_BLOCK = tuple(layer for layer in BLOCK if layer != "norm1")
HEAD = ("mlps.0", "mlps.1", "mlps.3", "mlps.5")


def convert(
    surrogate: str | os.PathLike[str],
    explainer: str | os.PathLike[str],
    /,
    *,
    data: Source,
    out: str | os.PathLike[str],
    half: bool = False,
) -> Path:
    """Write the authors' surrogate and explainer, two ``_state_dict`` files, as a bundle into the folder ``out``.

    ``data``: what they were trained on, which gives the order of classes. An explainer fits only the surrogate it was
    trained for; nothing in the files says which that is.
    """
    paths = Path(os.path.expanduser(surrogate)), Path(os.path.expanduser(explainer))
    states = [read_state(path) for path in paths]
    for path, state, wanted in zip(paths, states, (_surrogate_keys, _explainer_keys), strict=True):
        _check_keys(path, state, set(wanted(_depth(path, state))))
    converted = convert_authors_explainer(states[0], states[1], data, files=(str(paths[0]), str(paths[1])))
    return converted.save_pretrained(out, half=half)


def convert_authors_explainer(
    surrogate: Mapping[str, Tensor],
    explainer: Mapping[str, Tensor],
    data: Source,
    *,
    files: tuple[str, str] = ("the surrogate", "the explainer"),
) -> Explainer:
    """Build an explainer from the authors' tensors; ``files`` names them in errors."""
    model = _surrogate(surrogate, data, files[0])
    made = Explainer(model, ExplainerConfig(block_norm=False))
    own = made.network.state_dict()
    given = convert_authors_state(explainer)
    unused = {name: own[name] for name in ("trunk.head.weight", "trunk.head.bias")}  # which no explainer reads
    if difference := state_difference(own, {**unused, **given}):
        raise ValueError(f"{files[1]} is not an explainer for {files[0]}: {difference}")
    made.network.load_state_dict({**unused, **{name: tensor.float() for name, tensor in given.items()}})
    return made.eval()


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a dictionary of tensors pickled by torch, and refuse everything else."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path} is not a state dict of torch: of the authors' files take those whose names end with "
            "_state_dict.ckpt, which hold tensors only"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(one, Tensor) for one in state.values()):
        raise ValueError(f"{path} holds more than a dictionary of tensors: take the authors' _state_dict file")
    return {str(name): tensor for name, tensor in state.items()}


def _surrogate(state: Mapping[str, Tensor], data: Source, file: str) -> MaskedModel:
    """Build timm's ViT of the sizes that the tensors have."""
    names = authors_output_names(data)
    outputs, width = state["head.weight"].shape
    if outputs != len(names):
        raise ValueError(f"{file} has {outputs} outputs, the authors' surrogate for {data} {len(names)}")
    patch = int(state["backbone.patch_embed.proj.weight"].shape[-1])
    side = patch * math.isqrt(state["backbone.pos_embed"].shape[1] - 1)
    if width % HEAD_WIDTH:
        raise ValueError(f"{file} has the width {width}, which is no multiple of {HEAD_WIDTH} as in the authors' ViTs")
    timm = import_library("timm")
    net = timm.models.VisionTransformer(
        img_size=side,
        patch_size=patch,
        num_classes=outputs,
        embed_dim=width,
        depth=_depth(Path(file), state),
        num_heads=width // HEAD_WIDTH,
    )
    given = {name: tensor.float() for name, tensor in convert_authors_net(state).items()}
    if difference := state_difference(net.state_dict(), given):
        raise ValueError(f"{file} is not a ViT of the authors: {difference}")
    net.load_state_dict(given)
    resized = side * 256 // 224  # an image is squashed to this square, of which the centre is taken
    preprocess = Preprocess((side, side), (resized, resized), MEAN, STD, "bilinear", squash=True)
    output: Literal["softmax", "sigmoid"] = "sigmoid" if outputs == 1 else "softmax"
    return wrap(net.eval(), preprocess=preprocess, class_names=names, output=output)


def _depth(path: Path, state: Mapping[str, Tensor]) -> int:
    blocks = {name.split(".")[2] for name in state if name.startswith("backbone.blocks.")}
    if not blocks:
        raise ValueError(f"{path} is none of the authors' networks: it has no backbone.blocks")
    return len(blocks)


def _layers(names: Iterator[str]) -> Iterator[str]:
    for name in names:
        yield f"{name}.weight"
        yield f"{name}.bias"


def _backbone_keys(depth: int) -> Iterator[str]:
    yield from ("backbone.cls_token", "backbone.pos_embed")
    yield from _layers(f"backbone.{name}" for name in ("patch_embed.proj", "norm"))
    yield from _layers(f"backbone.blocks.{number}.{layer}" for number in range(depth) for layer in BLOCK)


def _surrogate_keys(depth: int) -> Iterator[str]:
    yield from _backbone_keys(depth)
    yield from _layers(iter(("head",)))


def _explainer_keys(depth: int) -> Iterator[str]:
    yield from _backbone_keys(depth)
    yield from _layers(f"attention_blocks.0.{layer}" for layer in EXTRA_BLOCK)
    yield from _layers(iter(HEAD))


def _check_keys(path: Path, state: Mapping[str, Tensor], wanted: set[str]) -> None:
    """List all names that are unknown or missing: a tensor is never left out silently."""
    unknown, missing = sorted(state.keys() - wanted), sorted(wanted - state.keys())
    problems = [
        f"{len(names)} {kind}: {', '.join(names)}"
        for kind, names in (("unknown", unknown), ("missing", missing))
        if names
    ]
    if problems:
        raise ValueError(f"{path} does not have the tensors of the authors' network; {'; '.join(problems)}")
