"""Reference values: converged Shapley values of given inputs, stored to compare other values with.

They are computed batch by batch, each batch in a file that is written atomically. An interrupted run continues after its
last finished batch; seeds belong to batches, so the result does not depend on interruptions. Every batch is estimated in
two independent halves, whose agreement is stored as the reliability. Reference values belong to one surrogate, identified
by the hash of its weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from vitshap.estimators.estimate import Estimate, Estimator, split_half
from vitshap.estimators.kernel import kernelshap
from vitshap.files import read_json, read_tensors, write_tensors, write_text
from vitshap.game import Game
from vitshap.models import MaskedModel
from vitshap.models.masked import Images
from vitshap.models.precision import Precision

FORMAT = 1
RECORD, TENSORS = "truth.json", "truth.safetensors"
SAME_LOG, SAME_SHARE, SAME_PROBABILITY = 0.5, 0.1, 1e-3
"""Largest differences at which two outputs can be of the same image: of a probability's logarithm, as a share of the
largest v(1) - v(0), and of a probability if that is less. Another precision differs by less, another image by more in some
class."""


@dataclass(frozen=True)
class Specification:
    """What reference values are of and how they are made; the same specification gives the same values."""

    num_inputs: int
    surrogate: str
    """Hash of the surrogate's own weights, not of a half-precision copy."""
    method: str
    budget: int
    """Evaluations per input, both halves and the endpoints together."""
    batch: int
    seed: int
    format: int = FORMAT


@dataclass(frozen=True, eq=False)
class Truth:
    """Reference values of ``N`` inputs."""

    specification: Specification
    values: Tensor
    """float64 ``[N, d, K]``."""
    stderr: Tensor
    """float64 ``[N, d, K]``."""
    base_values: Tensor
    """float64 ``[N, K]``."""
    full_values: Tensor
    """float64 ``[N, K]``."""
    reliability: Tensor
    """Split-half reliability (Spearman-Brown) of every input and class, float64 ``[N, K]``."""

    def __getitem__(self, inputs: slice) -> Truth:
        """Return the reference values of some of the inputs."""
        tensors = {f.name: getattr(self, f.name)[inputs] for f in fields(self) if f.name != "specification"}
        return Truth(specification=self.specification, **tensors)

    @property
    def reliability_per_class(self) -> Tensor:
        """Mean over inputs, float64 ``[K]``."""
        return self.reliability.mean(0)


def compute(
    folder: str | Path,
    game_of: Callable[[slice], Game],
    /,
    *,
    num_inputs: int,
    surrogate: str,
    budget: int,
    estimator: Estimator = kernelshap,
    method: str = "kernelshap",
    batch: int = 8,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Truth:
    """Compute the reference values of ``num_inputs`` inputs into ``folder``, or continue an interrupted computation.

    ``game_of(slice)`` makes the game of some of the inputs. ``method`` names ``estimator`` in the record, with its
    options if they are not the defaults. ``progress(done, num_inputs)`` is called after every batch.
    """
    if num_inputs < 1 or batch < 1:
        raise ValueError(f"num_inputs and batch are at least 1, got {num_inputs} and {batch}")
    folder = Path(folder)
    specification = Specification(num_inputs, surrogate, method, budget, batch, seed)
    folder.mkdir(parents=True, exist_ok=True)
    _start(folder, specification)
    if (folder / TENSORS).exists():
        return load(folder)
    starts = range(0, num_inputs, batch)
    for start in starts:
        stop = min(start + batch, num_inputs)
        if not (part := _part(folder, start)).exists():
            game = game_of(slice(start, stop))
            if game.batch_size != stop - start:
                raise ValueError(f"game_of returned {game.batch_size} inputs instead of {stop - start}")
            write_tensors(part, _tensors(*split_half(estimator, game, budget=budget, seed=seed + start)))
        if progress is not None:
            progress(stop, num_inputs)
    parts = [read_tensors(_part(folder, start)) for start in starts]
    tensors = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    _write_record(folder, specification, tensors["reliability"])
    write_tensors(folder / TENSORS, tensors)
    for start in starts:
        _part(folder, start).unlink()
    return load(folder)


def of_images(
    folder: str | Path,
    model: MaskedModel,
    images: Images,
    /,
    *,
    budget: int,
    batch: int = 8,
    seed: int = 0,
    precision: Precision = "auto",
    progress: Callable[[int, int], object] | None = None,
) -> Truth:
    """Compute reference values of images for this (surrogate) model by ``kernelshap``; arguments as for ``compute``.

    They belong to the model's own weights, whatever the ``precision`` and the device, and to these images: stored values
    of others are refused.
    """
    pixels = model.prepare(images).pixels

    def game_of(part: slice) -> Game:
        return model.game(pixels[part], precision=precision)

    surrogate = model.fingerprint()
    require_same(folder, game_of, num_inputs=len(pixels), surrogate=surrogate, probability=model.unit == "probability")
    return compute(
        folder,
        game_of,
        num_inputs=len(pixels),
        surrogate=surrogate,
        budget=budget,
        batch=batch,
        seed=seed,
        progress=progress,
    )


def require_same(
    folder: str | Path, game_of: Callable[[slice], Game], /, *, num_inputs: int, surrogate: str, probability: bool
) -> None:
    """Raise ``ValueError`` if values stored in ``folder``, finished or not, are of other inputs, players or removal.

    The empty and the full coalition of every stored input are evaluated. ``probability``: whether values are. Another
    number of inputs or another surrogate is left to ``compute``, which names it.
    """
    folder = Path(folder)
    recorded = specification_of(folder)
    if recorded is None or (recorded.num_inputs, recorded.surrogate) != (num_inputs, surrogate):
        return
    parts = {int(path.stem.removeprefix("part-")): path for path in folder.glob("part-*.safetensors")}
    for first, path in ({0: folder / TENSORS} if (folder / TENSORS).exists() else parts).items():
        stored = read_tensors(path)
        players, count = stored["values"].shape[1], len(stored["values"])
        reach = float((stored["full_values"] - stored["base_values"]).abs().max())
        for start in range(0, count, recorded.batch):
            here = slice(start, min(start + recorded.batch, count))
            game = game_of(slice(first + here.start, first + here.stop))
            one = stored["base_values"][here], stored["full_values"][here]
            new = game.null.double().cpu(), game.grand.double().cpu()
            if game.num_players != players or not _alike(one, new, reach, probability):
                raise ValueError(
                    f"{folder} holds reference values of other images, or of other players or another removal: "
                    "choose another folder"
                )


def specification_of(folder: str | Path, /) -> Specification | None:
    """Return the specification of the values in ``folder``, finished or not; None if there are none."""
    return _read_record(Path(folder)) if (Path(folder) / RECORD).exists() else None


def load(folder: str | Path, /, *, surrogate: str | None = None) -> Truth:
    """Load finished reference values; with ``surrogate``, only those of the surrogate with that hash."""
    folder = Path(folder)
    if not (folder / TENSORS).exists():
        raise FileNotFoundError(
            f"there are no finished reference values in {folder}: compute them (again) to finish them"
        )
    specification = _read_record(folder)
    if surrogate is not None and surrogate != specification.surrogate:
        raise ValueError(
            f"these reference values belong to the surrogate {specification.surrogate}, not to {surrogate}: "
            f"a new surrogate needs new ones"
        )
    return Truth(specification=specification, **read_tensors(folder / TENSORS))


def _alike(stored: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], reach: float, probability: bool) -> bool:
    """Return whether v(0) and v(1) are the same up to the precision of evaluations; ``reach``: largest v(1) - v(0)."""
    both = torch.stack([torch.cat(stored), torch.cat(new)]) if stored[0].shape == new[0].shape else None
    most = max(SAME_SHARE * reach, SAME_PROBABILITY if probability else 0.0)
    if both is None or bool((both.diff(dim=0).abs() > most).any()):
        return False
    return not probability or not bool(((both + 1e-6).log().diff(dim=0).abs() > SAME_LOG).any())


def _start(folder: Path, specification: Specification) -> None:
    if not (folder / RECORD).exists():
        _write_record(folder, specification, None)
        return
    stored = _read_record(folder)
    differing = [name for name, value in asdict(stored).items() if value != asdict(specification)[name]]
    if differing:
        listed = ", ".join(
            f"{name} {getattr(stored, name)!r} there, {getattr(specification, name)!r} requested" for name in differing
        )
        raise ValueError(f"{folder} holds other reference values ({listed}): choose another folder")


def _tensors(estimate: Estimate, reliability: Tensor) -> dict[str, Tensor]:
    if estimate.stderr is None:
        raise ValueError(f"{estimate.method} gave no standard errors: give it a larger budget")
    named = {
        "values": estimate.values,
        "stderr": estimate.stderr,
        "base_values": estimate.base_values,
        "full_values": estimate.full_values,
        "reliability": reliability,
    }
    return {name: tensor.to("cpu", torch.float64) for name, tensor in named.items()}


def _part(folder: Path, start: int) -> Path:
    return folder / f"part-{start:08d}.safetensors"


def _write_record(folder: Path, specification: Specification, reliability: Tensor | None) -> None:
    record: dict[str, object] = {"specification": asdict(specification), "finished": reliability is not None}
    if reliability is not None:
        record["reliability_per_class"] = reliability.mean(0).tolist()
    write_text(folder / RECORD, json.dumps(record, indent=2) + "\n")


def _read_record(folder: Path) -> Specification:
    fields = read_json(folder / RECORD)["specification"]
    if fields.get("format") != FORMAT:
        raise ValueError(f"{folder} has format {fields.get('format')}, this version reads {FORMAT}")
    return Specification(**fields)
