"""Every Python block in the README and the docs runs, every link leads somewhere, every public name is documented."""

import multiprocessing
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import vitshap

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{i}")
    for path in PAGES[1:]  # tests/test_release.py runs the README's, in an environment with core dependencies only
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]
PICTURE_BYTES = 300_000


@pytest.fixture(scope="module")
def forkserver() -> Any:
    """Processes that have imported what every block imports, and nothing that the tests set up."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vitshap", "transformers", "timm", "vitshap.models.timm"])
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("PYTEST", "TRITON")):
                patch.delenv(name)
        context.Process(target=int).start()  # starts the server
    return context


@pytest.mark.parametrize("block", BLOCKS)
def test_the_block_runs(block: str, tmp_path: Path, forkserver: Any) -> None:
    """As a script in a process of its own."""
    (tmp_path / "block.py").write_text(block)
    process = forkserver.Process(target=run_script, args=(tmp_path,))  # blocks may write files
    process.start()
    process.join(300)
    process.kill()
    assert process.exitcode == 0, (tmp_path / "output.txt").read_text()


def run_script(folder: Path) -> None:
    """Run ``block.py`` of a folder there; ``output.txt`` has what it prints."""
    os.chdir(folder)
    output = os.open("output.txt", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["block.py"]
    runpy.run_path("block.py", run_name="__main__")


def test_there_are_blocks() -> None:
    assert BLOCKS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        place = page if not path else page.parent / path
        assert place.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in _anchors(place), f"{target}: there is no such heading"


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    missing = [name for name in vitshap.__all__ if not re.search(rf"^::: vitshap\.{name}\b", text, re.MULTILINE)]
    assert missing == ["__version__"]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


def test_pictures_are_small() -> None:
    pictures = list((ROOT / "docs" / "images").glob("*.png"))
    assert pictures
    assert all(path.stat().st_size <= PICTURE_BYTES for path in pictures)


def _anchors(page: Path) -> set[str]:
    text = re.sub(r'^--8<-- "(.+)"$', lambda file: (ROOT / file[1]).read_text(), page.read_text(), flags=re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
