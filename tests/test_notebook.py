"""The notebook in the docs runs from its first cell to its last, and its stored outputs are like those of a run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"


def _kinds(notebook: nbformat.NotebookNode) -> list[list[tuple[str, ...]]]:
    return [
        [(one.output_type, *sorted(one.get("data", {}))) for one in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.long
def test_the_notebook_runs() -> None:
    run = runpy.run_path(str(FOLDER / "run.py"))
    stored, done = nbformat.read(FOLDER / "first-steps.ipynb", as_version=4), run["executed"]()
    nbformat.validate(stored)
    assert _kinds(done) == _kinds(stored)
    assert any("text/html" in kinds for cell in _kinds(stored) for kinds in cell), "an explanation shows itself"
    said = "".join(one.get("text", "") for cell in done.cells if cell.cell_type == "code" for one in cell.outputs)
    numbers = [float(number) for number in re.findall(r"([+\d.]+) (?:%|points)", said)]
    assert len(numbers) == 6
    assert abs(numbers[3] + numbers[4] - numbers[5]) <= 0.11, "the values add up, but for rounding"
    assert re.search(r"explainer\s+0\.\d{3}\nattention-rollout\s+0\.\d{3}\nattnlrp\s+0\.\d{3}", said)


def test_nothing_of_this_machine_is_stored() -> None:
    text = (FOLDER / "first-steps.ipynb").read_text()
    assert not re.search(r"/(home|root|work|usr|tmp)/|site-packages", text)
