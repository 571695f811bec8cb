"""An explainer and its surrogate as ONNX graphs, in float32 or with smaller weights.

Patches are withheld by an explicit mask, which has the same form for every coalition: a graph cannot drop tokens. Stack
traces and names of modules that the exporter adds are removed: they hold paths of the machine.

==============  ============================================================================================
``float32``     the bundle's weights
``float16``     weights in 16 bits, cast to float32 in the graph: half the size, the same speed
``int8``        weights of matrix products in 8 bits with one scale per output, inputs rounded as they come: a
                quarter of the size, and faster
==============  ============================================================================================
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from vitshap.errors import CommandError, first_line
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel
from vitshap.models.attention import AttentionOverride, KeysOnlyExplicit
from vitshap.models.base import evaluating
from vitshap.models.packed import Rows
from vitshap.models.removal import NEEDS_NO_MASK

if TYPE_CHECKING:
    import onnx
    import onnxruntime

Precision: TypeAlias = Literal["float32", "float16", "int8"]
LARGE_TENSOR = 4096
"""Elements from which a tensor is stored in fewer bits: smaller ones are norms and biases."""
LARGEST_FILE = 1_500_000_000
"""Bytes of weights beyond which they are stored beside the graph: a file of ONNX ends at 2 GiB."""


class CannotExport(ValueError):
    """The network has an operation that ONNX lacks."""


class GameGraph(nn.Module):
    """Pixels ``[B, C, H, W]`` and coalitions ``[B, S, d]`` to the model's outputs ``[B, S, K]``."""

    labels: Tensor

    def __init__(self, surrogate: MaskedModel) -> None:
        super().__init__()
        self.net = surrogate.net
        self.surrogate = [surrogate]
        players = surrogate.players
        labels = players.labels[0].flatten()
        self.by_token = not players.one_token_each
        # Tokens of no player are always kept: they read one more column, which is always true.
        self.register_buffer("labels", labels.where(labels >= 0, players.num_players))

    def forward(self, pixels: Tensor, coalitions: Tensor) -> Tensor:
        """Evaluate coalitions of each image."""
        (surrogate,) = self.surrogate
        batch, count = coalitions.shape[:2]
        image = torch.arange(batch)[:, None].expand(batch, count).reshape(-1)
        keep = coalitions.flatten(0, 1)
        if self.by_token:
            keep = torch.cat([keep, torch.ones_like(keep[:, :1])], dim=1)[:, self.labels]
        logits = surrogate.open_session(pixels).run(Rows(keep, image))
        return surrogate.link(logits).view(batch, count, -1)


class ValuesGraph(nn.Module):
    """Pixels ``[B, C, H, W]`` and v(1), v(0) ``[B, K]`` to values ``[B, d, K]`` that add up to their difference."""

    members: Tensor

    def __init__(self, explainer: Explainer) -> None:
        super().__init__()
        self.network = explainer.network
        self.explainer = [explainer]
        players = explainer.surrogate.players
        self.by_token = not players.one_token_each
        tokens = players.labels[0].flatten()
        self.register_buffer("members", (torch.arange(players.num_players)[:, None] == tokens).float())  # [d, N]

    def forward(self, pixels: Tensor, full: Tensor, base: Tensor) -> Tensor:
        """Estimate the values of all players and classes."""
        with AttentionOverride(KeysOnlyExplicit(None)):
            raw = self.network.token_values(pixels)
        return self.explainer[0].efficient(self.members @ raw if self.by_token else raw, full, base)


class ExplainerGraph(nn.Module):
    """Pixels ``[B, C, H, W]`` to values ``[B, d, K]``, predictions v(1) and base v(0), both ``[B, K]``."""

    def __init__(self, explainer: Explainer) -> None:
        super().__init__()
        self.values, self.game = ValuesGraph(explainer), GameGraph(explainer.surrogate)
        self.explainer = [explainer]
        self.same_null = explainer.surrogate.same_null

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Explain images."""
        (explainer,) = self.explainer
        surrogate = explainer.surrogate
        full = surrogate.link(_whole_image(surrogate, pixels))
        if self.same_null:
            base = explainer.null_values.expand(len(pixels), -1)
        else:
            nobody = torch.zeros(len(pixels), 1, surrogate.num_players, dtype=torch.bool)
            base = self.game(pixels, nobody)[:, 0]
        return self.values(pixels, full, base), full, base


def _whole_image(surrogate: MaskedModel, pixels: Tensor) -> Tensor:
    """Return logits of whole images, by the steps of the game where the network has them: its own forward pass may have
    operations that cannot be exported."""
    adapter = surrogate.adapter
    if surrogate.removal in NEEDS_NO_MASK:
        return adapter.predict(pixels)
    with AttentionOverride(KeysOnlyExplicit(None)):
        tokens = adapter.embed(pixels)
        tokens = adapter.encode(tokens, torch.arange(tokens.shape[1])[None])
    if not adapter.reads_patches:
        tokens = tokens[:, : adapter.prefix]
    return adapter.readout(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))


def require_packages() -> None:
    """Raise ``ValueError`` unless everything that an export needs is installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(f'export needs {error.name}, which is not installed: pip install "vitshap[export]"') from error


def make_graphs(explainer: Explainer, *, one_graph: bool) -> dict[str, onnx.ModelProto]:
    """Return the graphs by name: "game", and "explainer" (``one_graph``: v(1) inside) or "values" (v(1) an input)."""
    surrogate = explainer.surrogate
    if any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in surrogate.net.parameters()):
        raise ValueError("export takes an explainer in float32 on the CPU: call explainer.float().cpu() first")
    images = torch.zeros(2, surrogate.adapter.channels, *surrogate.image_size)
    outputs = torch.zeros(2, surrogate.num_classes)
    coalitions = torch.ones(2, 3, surrogate.num_players, dtype=torch.bool)
    both = {0: "batch"}
    game = {"pixels": (images, both), "coalitions": (coalitions, {0: "batch", 1: "coalitions"})}
    inputs = {"pixels": (images, both), "full": (outputs, both), "base": (outputs.clone(), both)}
    evaluation, surrogate.evaluation = surrogate.evaluation, "explicit"
    try:
        made = {"game": _exported(GameGraph(surrogate), game, ["predictions"], surrogate)}
        if one_graph:
            graph, names = ExplainerGraph(explainer), ["values", "predictions", "base"]
            made["explainer"] = _exported(graph, {"pixels": inputs["pixels"]}, names, surrogate)
        else:
            made["values"] = _exported(ValuesGraph(explainer), inputs, ["values"], surrogate)
    finally:
        surrogate.evaluation = evaluation
    return made


def _exported(
    module: nn.Module,
    inputs: Mapping[str, tuple[Tensor, dict[int, str]]],
    outputs: Sequence[str],
    surrogate: MaskedModel,
) -> onnx.ModelProto:
    arguments = tuple(tensor for tensor, _ in inputs.values())
    shapes = tuple(shape for _, shape in inputs.values())
    with torch.no_grad(), evaluating(module), surrogate.adapter.ready(), _quiet():
        try:
            program = torch.onnx.export(
                module,
                arguments,
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
            )
        except Exception as error:  # the exporter raises errors of many types
            what = f"ONNX has no form of its operation {found}" if (found := _operation(error)) else first_line(error)
            raise CannotExport(
                f"{type(surrogate.net).__name__} cannot be exported: {what}; "
                "vitshap explain and vitshap serve run the bundle with torch, whatever its operations"
            ) from error
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    del model.graph.value_info[:], model.metadata_props[:]
    model.doc_string = model.graph.doc_string = ""
    inside = [node for function in model.functions for node in function.node]
    for part in (*model.graph.node, *inside, *model.graph.initializer, *model.graph.input, *model.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]
    return model


def _operation(error: BaseException) -> str | None:
    """Return the operation that an error of the exporter is about, such as aten.special_bessel_j0."""
    cause: BaseException | None = error
    found = None
    while cause is not None:
        text = str(cause)
        match = re.search(r"No ONNX function found for <OpOverload\(op='([\w.:]+)'", text)
        match = match or re.search(r"\b((?:aten|prims|torchvision)\.\w+)", text)
        found = match.group(1) if match else found
        cause = cause.__cause__
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what torch's exporter and onnxruntime's quantiser say about themselves."""
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch.__trace", "onnxscript", "onnx_ir")
    ]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def converted(model: onnx.ModelProto, precision: Precision) -> onnx.ModelProto:
    """Return the graph with weights of this precision."""
    if precision == "float32":
        return model
    return _half(model) if precision == "float16" else _eight_bit(model)


def _half(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnx import ModelProto, TensorProto, helper, numpy_helper

    made = ModelProto()
    made.CopyFrom(model)
    tensors, casts = [], []
    for tensor in made.graph.initializer:
        values = numpy_helper.to_array(tensor) if tensor.data_type == TensorProto.FLOAT else None
        if values is None or values.size < LARGE_TENSOR:
            tensors.append(tensor)
            continue
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not np.isfinite(half).all():
            raise CannotExport(f"{tensor.name} has values that 16 bits cannot hold: export with --precision float32")
        tensors.append(numpy_helper.from_array(half, f"{tensor.name}_float16"))
        casts.append(helper.make_node("Cast", [f"{tensor.name}_float16"], [tensor.name], to=TensorProto.FLOAT))
    nodes = [*casts, *made.graph.node]
    del made.graph.initializer[:], made.graph.node[:]
    made.graph.initializer.extend(tensors)
    made.graph.node.extend(nodes)
    return made


def _eight_bit(model: onnx.ModelProto) -> onnx.ModelProto:
    import tempfile

    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    given = onnx.ModelProto()
    given.CopyFrom(model)
    given.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")  # the exporter has optimised it
    with tempfile.TemporaryDirectory() as folder, _quiet():
        path = Path(folder) / "int8.onnx"
        try:
            quantize_dynamic(
                given, path, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"],
                use_external_data_format=_weight_bytes(model) > LARGEST_FILE,
            )  # fmt: skip
        except OSError as error:
            raise OSError(f"the int8 graph could not be written to {folder} ({first_line(error)})") from error
        made = onnx.load(path)
    del made.metadata_props[:], made.graph.value_info[:]
    return made


def write_graph(model: onnx.ModelProto, path: Path) -> None:
    """Write a graph to one file, or with its weights in a second file if there are very many."""
    import onnx

    if _weight_bytes(model) <= LARGEST_FILE:
        path.write_bytes(model.SerializeToString())
    else:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)  # saving takes the weights out of what it saves
        onnx.save(copy, path, save_as_external_data=True, location=f"{path.name}.data")


def _weight_bytes(model: onnx.ModelProto) -> int:
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


def open_graph(path: Path, *, threads: int | None = None) -> Session:
    """Open a graph with onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads() if threads is None else threads
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common type
        raise CommandError(f"onnxruntime cannot open {path.name}: {first_line(error)}") from error
    return Session(session)


class Session:
    """A graph of onnxruntime, called with arrays by name."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session

    def __call__(self, **inputs: np.ndarray) -> list[np.ndarray]:
        """Return the outputs in order."""
        return list(self._session.run(None, inputs))
