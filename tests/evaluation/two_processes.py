"""A comparison by one or several processes, which write the table that each of them has."""

import sys
from pathlib import Path

import torch
import torch.distributed.distributed_c10d as distributed_c10d

import vitshap  # noqa: F401 (before transformers)
from tests.evaluation.small import digits_explainer, digits_net, some_digits
from vitshap.estimators import truth
from vitshap.evaluation import evaluate
from vitshap.evaluation.formats import to_json
from vitshap.files import write_text
from vitshap.training import processes


def _refuse_pickle(*_: object) -> None:
    raise AssertionError("an object is pickled between processes")


def compare(folder: Path) -> None:
    """Write the table of a comparison; every process has a disk of its own."""
    surrogate, data = digits_net(), some_digits(11)
    processes.join(surrogate.device)
    own = folder / str(processes.rank())
    # one image has reference values, and is in a batch of the second process
    known = truth.of_images(own / "truth", surrogate, data.images[5:6], budget=200)
    methods = {"ours": digits_explainer(surrogate), "rollout": "attention-rollout", "random": "random"}
    found = evaluate(surrogate, data, methods=methods, classes="all", truth=(known, [5]), folder=own / "parts", batch=4)
    write_text(folder / f"{processes.rank()}.json", to_json(found, found.table(), "two processes"))


if __name__ == "__main__":
    distributed_c10d._object_to_tensor = distributed_c10d._tensor_to_object = _refuse_pickle
    torch.set_num_threads(1)
    compare(Path(sys.argv[1]))
