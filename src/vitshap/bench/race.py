"""Our estimators against those of shapiq 1.8 on games of 196 patches, at equal errors rather than equal evaluations.

Theirs get more evaluations than ours, n / 0.7 for n. Evaluations are made here, in batches on a GPU if there is one;
shapiq fits in processes beside it (``shapiq_worker``), since its regressions take longer than the evaluations. An
estimator that cannot do a game says so in the notes. With a folder, an interrupted race continues after its last run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.bench.estimators import train_on_digits
from vitshap.bench.shapiq_worker import ESTIMATORS
from vitshap.data import load_digits
from vitshap.estimators.estimate import correlation, split_half
from vitshap.estimators.kernel import kernelshap
from vitshap.estimators.priors import read_tokens, token_prior
from vitshap.estimators.refine import refine
from vitshap.experiments.tables import Column, Table
from vitshap.files import read_tensors, write_tensors, write_text
from vitshap.game import Game
from vitshap.models import MaskedModel
from vitshap.models.base import fingerprint

REFERENCE, RUNS = "reference.safetensors", "runs.jsonl"
"""Files of an interrupted race."""
SHARE = 0.7
"""Our evaluations divided by theirs."""
OURS = ("kernelshap", "refine, tokens")
COLUMNS = (
    Column("estimator"),
    Column("budget", ",d", "n"),
    Column("evaluations", ",d"),
    Column("error", ".4f", title="squared error / variance"),
    Column("correlation", ".4f"),
    Column("runs", "d"),
    Column("seconds", ".2f", "CPU s/run", title="fit"),
)


class Known(NamedTuple):
    """Reference values of the predicted class of every image."""

    values: Tensor
    """float64 ``[N, d]``."""
    stderr: Tensor
    """float64 ``[N, d]``."""
    reliability: Tensor
    """float64 ``[N]``."""


class Racing:
    """Games of the predicted classes of images."""

    def __init__(self, model: MaskedModel, pixels: Tensor, *, batch: int = 20) -> None:
        self.model, self.pixels, self._batch = model, pixels, batch
        self._single: dict[int, Game] = {}

    @property
    def parts(self) -> list[slice]:
        """Batches of images."""
        return [slice(i, min(i + self._batch, len(self.pixels))) for i in range(0, len(self.pixels), self._batch)]

    def game(self, part: slice) -> Game:
        """Return the game of the predicted class of some of the images."""
        game = self.model.game(self.pixels[part], precision="auto")
        return game.only(game.grand.argmax(1, keepdim=True))

    def values(self, image: int, coalitions: Tensor) -> Tensor:
        """Return the values of coalitions ``[S, d]`` of one image, float64 ``[S]`` on the CPU."""
        if image not in self._single:
            self._single[image] = self.game(slice(image, image + 1))
        game = self._single[image]
        return torch.cat([part[0, :, 0] for part in game.stream(coalitions.to(game.device))]).double().cpu()

    def known(self, budget: int, folder: Path | None = None) -> Known:
        """Compute reference values with this many evaluations per image, or read those of ``folder``."""
        about = {
            "model": self.model.fingerprint(),
            "set of images": fingerprint({"pixels": self.pixels}),
            "number of evaluations": str(budget),
        }
        if folder is not None and (folder / REFERENCE).exists():
            return Known(**read_tensors(folder / REFERENCE, about))
        found = [
            split_half(kernelshap, self.game(part), budget=budget, seed=500_000 + part.start) for part in self.parts
        ]
        errors = [one.stderr for one, _ in found if one.stderr is not None]
        values, stderr = torch.cat([one.values for one, _ in found]), torch.cat(errors)
        known = Known(values[..., 0].cpu(), stderr[..., 0].cpu(), torch.cat([one for _, one in found])[:, 0].cpu())
        if folder is not None:
            write_tensors(folder / REFERENCE, known._asdict(), about)
        return known

    def ours(self, name: str, budget: int, seed: int) -> Tensor:
        """Return the values of one of our estimators, float64 ``[N, d]``."""
        values = []
        for number, part in enumerate(self.parts):
            game, own = self.game(part), seed * len(self.parts) + number
            if name == "kernelshap":
                values.append(kernelshap(game, budget=budget, seed=own).values)
                continue
            tokens = read_tokens(self.model.adapter, self.pixels[part], self.model.players)
            values.append(refine(game, token_prior(game, tokens), budget=budget, seed=own).values)
        return torch.cat(values)[..., 0].cpu()


def race(
    racing: Racing,
    known: Known,
    /,
    *,
    budgets: Sequence[int],
    seeds: Sequence[int],
    estimators: Sequence[str] = tuple(ESTIMATORS),
    python: str = sys.executable,
    workers: int = 1,
    folder: Path | None = None,
    title: str = "race",
    note: Callable[[str], object] = lambda text: None,
) -> Table:
    """Compare squared errors relative to the variance of the values, mean over images and seeds.

    ``python`` runs shapiq, in ``workers`` processes. ``estimators`` are shapiq's. The errors of the reference values are
    subtracted. In ``folder``, where ``known`` is stored too, finished runs are kept and not made again.
    """
    table, finished = Table(title, COLUMNS), _Finished(folder)
    for name in OURS:
        for budget in budgets:
            note(f"{title}: {name}, {budget:,} evaluations")
            runs = []
            for seed in seeds:
                job = {"estimator": name, "seed": seed, "budget": budget}
                if job not in finished:
                    finished.add({"job": job, "values": racing.ours(name, budget, seed).tolist()})
                runs.append(torch.tensor(finished[job]["values"], dtype=torch.float64))
            _add(table, known, name, budget, budget, [(i, one[i]) for one in runs for i in range(len(one))], 0.0)
    given = {budget: round(budget / SHARE) for budget in budgets}
    d = racing.model.num_players
    jobs = [
        {"estimator": name, "image": image, "seed": seed, "budget": given[budget], "players": d, "n": budget}
        for budget in sorted(budgets, reverse=True)  # the longest first
        for name in estimators
        for seed in seeds
        for image in range(len(racing.pixels))
    ]
    missing = [job for job in jobs if job not in finished]
    note(f"{title}: {len(missing):,} runs of shapiq's estimators")
    _serve(missing, racing, python, workers, finished.add)
    answers = [finished[job] for job in jobs]
    for name in estimators:
        for budget in budgets:
            own = [one for one in answers if (one["job"]["estimator"], one["job"]["n"]) == (name, budget)]
            if failed := [one["error"] for one in own if "error" in one]:
                table.notes.append(f"{name}, {given[budget]:,} evaluations: {failed[0].splitlines()[0][:200]}")
                continue
            pairs = [(one["job"]["image"], torch.tensor(one["values"], dtype=torch.float64)) for one in own]
            seconds = sum(one["seconds"] for one in own) / max(len(own), 1)
            _add(table, known, f"shapiq {name}", budget, given[budget], pairs, seconds)
    return table


def verdict(table: Table) -> Table:
    """For every number of evaluations n, compare ours with the best of theirs, which have n / 0.7."""
    shown = (
        Column("budget", ",d", "n"),
        Column("kernelshap", ".4f"),
        Column("tokens", ".4f", title="refine, tokens"),
        Column("theirs", ".4f", title="best of shapiq with n / 0.7"),
        Column("best"),
        Column("kernelshap_ratio", ".2f", title="kernelshap / best"),
        Column("tokens_ratio", ".2f", title="tokens / best"),
    )
    found = Table(f"{table.title}: squared error / variance", shown)
    columns = zip(*(table.values(key) for key in ("estimator", "budget", "error")), strict=True)
    rows: dict[tuple[str, int], float] = {(name, budget): error for name, budget, error in columns}
    for budget in dict.fromkeys(table.values("budget")):
        others = {name: error for (name, n), error in rows.items() if n == budget and name not in OURS}
        if not others:
            continue
        best = min(others, key=lambda name: others[name])
        own, theirs = [rows[name, budget] for name in OURS], others[best]
        found.add(
            budget=budget,
            kernelshap=own[0],
            tokens=own[1],
            theirs=theirs,
            best=best,
            kernelshap_ratio=own[0] / theirs,
            tokens_ratio=own[1] / theirs,
        )
    return found


def enlarged_digits(images: range, *, seed: int = 0, device: torch.device | str = "cpu") -> Racing:
    """Train a ViT of two layers on digits of 28 x 28 pixels with patches of 2 x 2; return games of test digits.

    It is trained on the CPU, so that it is the same for every device.
    """
    torch.manual_seed(seed)
    digits = load_digits()
    train = replace(digits.train, images=_enlarged(digits.train.images))
    model = train_on_digits(digits._replace(train=train), image_size=28, layers=2)
    return Racing(model.to(device), _enlarged(digits.test.images)[list(images)].to(device))


def _enlarged(images: Any) -> Tensor:
    return F.interpolate(torch.as_tensor(images), size=28, mode="bilinear", align_corners=False)


def _add(
    table: Table,
    known: Known,
    name: str,
    budget: int,
    evaluations: int,
    runs: Sequence[tuple[int, Tensor]],
    seconds: float,
) -> None:
    images = torch.tensor([image for image, _ in runs])
    values, truth = torch.stack([one for _, one in runs]), known.values[images]
    noise = known.stderr[images].square().sum(1)
    spread = (truth - truth.mean(1, keepdim=True)).square().sum(1) - noise
    error = ((values - truth).square().sum(1) - noise) / spread
    found = correlation(values[..., None], truth[..., None])[:, 0] / known.reliability[images].clamp(min=1e-6).sqrt()
    table.add(
        estimator=name,
        budget=budget,
        evaluations=evaluations,
        error=float(error.mean()),
        correlation=float(found.mean()),
        runs=len(runs),
        seconds=seconds,
    )


class _Finished:
    """Answers of finished runs by their job, in a file of JSON lines if there is a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / RUNS
        self._found: dict[str, dict[str, Any]] = {}
        if self._path is not None and self._path.exists():
            # A run that was killed while it wrote leaves an incomplete last line.
            lines = [line for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            write_text(self._path, "".join(lines))
            for answer in map(json.loads, lines):
                self._found[json.dumps(answer["job"], sort_keys=True)] = answer

    def __contains__(self, job: Mapping[str, Any]) -> bool:
        return json.dumps(job, sort_keys=True) in self._found

    def __getitem__(self, job: Mapping[str, Any]) -> dict[str, Any]:
        return self._found[json.dumps(job, sort_keys=True)]

    def add(self, answer: dict[str, Any]) -> None:
        """Keep an answer; a failure, which may be for want of a package, is not stored."""
        self._found[json.dumps(answer["job"], sort_keys=True)] = answer
        if self._path is not None and "error" not in answer:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(answer) + "\n")


def _serve(
    jobs: Sequence[Mapping[str, Any]],
    racing: Racing,
    python: str,
    workers: int,
    answered: Callable[[dict[str, Any]], object],
) -> None:
    """Run the jobs in worker processes, whose coalitions are evaluated here; ``answered`` gets every answer."""
    waiting = iter(jobs)
    with _workers(python, min(workers, len(jobs))) as connections:
        busy = list(connections)
        while busy:
            for connection in wait(busy):
                assert isinstance(connection, Connection)
                message = json.loads(connection.recv_bytes())
                if "coalitions" in message:
                    connection.send_bytes(_evaluated(racing, message, connection.recv_bytes()))
                    continue
                if "job" in message:
                    answered(message)
                job = next(waiting, None)
                connection.send_bytes(json.dumps(job or {}).encode())
                if job is None:
                    busy.remove(connection)


def _evaluated(racing: Racing, message: Mapping[str, Any], packed: bytes) -> bytes:
    d = racing.model.num_players
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(message["coalitions"], -1)
    members = np.unpackbits(rows, axis=1, count=d).astype(bool)
    return racing.values(message["image"], torch.from_numpy(members)).numpy().tobytes()


@contextmanager
def _workers(python: str, number: int) -> Iterator[list[Connection]]:
    script = Path(__file__).with_name("shapiq_worker.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, Listener(str(Path(folder) / "race"), "AF_UNIX") as listener:
        processes = [
            subprocess.Popen([python, str(script), str(listener.address)], env=environment, stdout=subprocess.DEVNULL)
            for _ in range(number)
        ]
        try:
            yield [listener.accept() for _ in processes]
        finally:
            for process in processes:
                process.terminate()
                process.wait()
