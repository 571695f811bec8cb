"""Run the notebook of this folder and store its outputs in it: ``python docs/notebooks/run.py``."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent / "first-steps.ipynb"


def executed(path: Path = NOTEBOOK) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of a run here."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    for cell in notebook.cells:
        cell.get("metadata", {}).pop("execution", None)  # times of this run
        if cell.cell_type == "code":
            cell.outputs = _plain(cell.outputs)
    return notebook


def _plain(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return the outputs without what was said on the standard error, printed text in one piece."""
    kept: list[nbformat.NotebookNode] = []
    for one in outputs:
        printed = one.output_type == "stream"
        if printed and one.name == "stderr":
            continue
        if printed and kept and kept[-1].output_type == "stream":
            kept[-1].text += one.text
        else:
            kept.append(one)
    return kept


if __name__ == "__main__":
    nbformat.write(executed(), NOTEBOOK)
