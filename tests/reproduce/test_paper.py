"""The paper's numbers: their counts, spot checks against the printed text, and the rule behind bold and grey."""

from __future__ import annotations

import pytest

from vitshap.evaluation import Measured, mark
from vitshap.methods import list_methods
from vitshap.reproduce.paper import METHODS, Block, Number, printed, tables

NUMBERS = {1: 70, 2: 29, 3: 12, 4: 100, 5: 35, 6: 94, 7: 94, 8: 94, 9: 94, 10: 50, 11: 33, 12: 8}
"""Printed numbers of each table, counted in the text; dashes are not numbers."""
TARGET, OTHERS = "target", "non-target"
SPOT_CHECKS = [
    (1, "imagenette", TARGET, "vit-shapley", "insertion", (0.985, 0.002, True, False)),
    (1, "imagenette", TARGET, "vit-shapley", "deletion", (0.691, 0.014, True, False)),
    (1, "imagenette", TARGET, "vit-shapley", "faithfulness", (0.711, 0.015, True, False)),
    (1, "imagenette", TARGET, "gradcam-ln", "insertion", (0.914, 0.006, False, True)),
    (1, "imagenette", TARGET, "leave-one-out", "faithfulness", (0.140, 0.040, False, False)),
    (1, "mura", TARGET, "vit-shapley", "deletion", (0.307, 0.013, True, False)),
    (1, "mura", TARGET, "rise", "insertion", (0.957, 0.004, False, False)),
    (1, "mura", TARGET, "random", "deletion", (0.847, 0.010, False, True)),
    (2, "imagenette", OTHERS, "vit-shapley", "insertion", (0.093, 0.004, True, False)),
    (2, "imagenette", OTHERS, "lrp", "deletion", (0.022, 0.001, False, True)),
    (2, "imagenette", OTHERS, "vanilla-embedding", "faithfulness", (-0.682, 0.015, False, False)),
    (3, "imagenette", "all", "extra block, trained", "test loss", (4.318, None, True, False)),
    (3, "imagenette", "all", "no extra block, frozen", "validation loss", (4.332, None, False, False)),
    (3, "imagenette", "all", "unet", "test loss", (4.338, None, False, False)),
    (3, "imagenette", "all", "scratch", "validation loss", (4.331, None, False, False)),
    (4, "imagenette", TARGET, "smoothgrad-pixel", "deletion", (0.779, 0.013, False, False)),
    (4, "imagenette", TARGET, "vargrad-pixel", "faithfulness", (0.682, 0.015, True, False)),
    (4, "mura", TARGET, "gradcam-attention", "insertion", (0.843, 0.012, False, True)),
    (5, "mura", OTHERS, "vit-shapley", "insertion", (0.580, 0.016, True, False)),
    (5, "mura", OTHERS, "attention-rollout", "insertion", (0.199, 0.011, False, False)),
    (6, "pets", TARGET, "leave-one-out", "insertion", (0.936, 0.006, True, False)),
    (6, "pets", TARGET, "vit-shapley", "deletion", (0.388, 0.017, True, False)),
    (6, "pets", OTHERS, "vit-shapley", "faithfulness", (0.529, 0.012, True, False)),
    (7, "imagenette", TARGET, "vit-shapley", "insertion", (0.981, 0.002, True, False)),
    (7, "imagenette", TARGET, "vit-shapley", "deletion", (0.457, 0.015, True, False)),
    (7, "imagenette", TARGET, "lrp", "faithfulness", (0.673, 0.014, True, False)),
    (7, "imagenette", OTHERS, "vit-shapley", "insertion", (0.198, 0.006, True, False)),
    (7, "imagenette", OTHERS, "vit-shapley", "faithfulness", (0.641, 0.011, True, False)),
    (8, "imagenette", TARGET, "vit-shapley", "deletion", (0.591, 0.015, True, False)),
    (8, "imagenette", OTHERS, "vanilla-pixel", "insertion", (0.011, 0.001, False, False)),
    (9, "imagenette", TARGET, "random", "insertion", (0.957, 0.004, False, True)),
    (9, "imagenette", OTHERS, "vit-shapley", "insertion", (0.077, 0.003, True, False)),
    (10, "imagenette", TARGET, "vit-shapley", "insertion", (0.988, 0.001, True, False)),
    (10, "imagenette", TARGET, "attention-last", "faithfulness", (0.593, 0.017, True, False)),
    (11, "imagenette", "all", "rise", "milliseconds", (8213.4, None, False, False)),
    (11, "pets", "all", "integrated-gradients-pixel", "milliseconds", (5004.9, None, False, False)),
    (11, "mura", "all", "vit-shapley", "milliseconds", (10.2, None, False, False)),
    (12, "imagenette", TARGET, "kernelshap-original", "deletion", (0.589, 0.053, False, False)),
    (12, "imagenette", OTHERS, "kernelshap-original", "insertion", (0.158, 0.021, False, False)),
]


def test_every_printed_number_is_there() -> None:
    found = {
        int(name.removeprefix("table-")): sum(
            one is not None for b in blocks for row in b.cells.values() for one in row
        )
        for name, blocks in tables().items()
    }
    assert found == NUMBERS


@pytest.mark.parametrize(("table", "data", "classes", "row", "metric", "expected"), SPOT_CHECKS)
def test_numbers_as_printed(table: int, data: str, classes: str, row: str, metric: str, expected: tuple) -> None:
    assert printed(f"table-{table}", row, metric, data=data, classes=classes) == Number(*expected)


def test_dashes_and_unknown_rows_are_none() -> None:
    assert printed("table-2", "attention-last", "insertion", data="imagenette", classes="non-target") is None
    assert printed("table-1", "random", "faithfulness", data="imagenette", classes="target") is None
    assert printed("table-1", "lrp", "insertion", data="pets", classes="target") is None


def test_rows_have_the_names_of_our_methods() -> None:
    assert set(METHODS) - {"vit-shapley"} <= set(list_methods())
    rows = {row for name, blocks in tables().items() if name != "table-3" for block in blocks for row in block.cells}
    assert rows == set(METHODS) | {"kernelshap-original"}


def _decisions(block: Block) -> list[bool]:
    """Return for every bold-or-not and grey-or-not of the block whether the rule gives what is printed."""
    agree = []
    for metric in block.metrics:
        numbers = {row: block.number(row, metric) for row in block.cells}
        random = numbers.pop("random")
        rows = {row: one for row, one in numbers.items() if one is not None}
        against = None if random is None else Measured.around(random.mean, random.interval or 0)
        measured = [Measured.around(one.mean, one.interval or 0) for one in rows.values()]
        marks = mark(measured, against, higher_is_better=metric != "deletion")
        for one, found in zip(rows.values(), marks, strict=True):
            agree.append(found.bold == one.bold)
            if metric != "faithfulness":
                agree.append(found.grey == one.grey)
    return agree


def test_bold_and_grey_follow_from_the_numbers() -> None:
    """Rounding to three decimals decides the others."""
    marked = [b for name, blocks in tables().items() if name not in ("table-3", "table-11", "table-12") for b in blocks]
    decisions = [one for block in marked for one in _decisions(block)]
    assert len(decisions) == 1050
    assert sum(decisions) >= 1025
