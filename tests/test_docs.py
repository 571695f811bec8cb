"""Every Python block in the README and the docs runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{i}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_block_runs(block: str) -> None:
    exec(compile(block, "block", "exec"), {})


def test_there_are_blocks() -> None:
    assert BLOCKS
