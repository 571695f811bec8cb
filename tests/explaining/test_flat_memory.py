"""Thousands of photos pass through the real command while its memory stays where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.explaining import made

MEGABYTE = 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")


def _memory(process: subprocess.Popen[str]) -> int:
    """Bytes that the process holds in memory now."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory of another process is read from /proc")
@pytest.mark.parametrize(
    ("count", "settled"), [(300, 150), pytest.param(3000, 1000, marks=pytest.mark.long)], ids=["300", "3,000"]
)
def test_memory_is_flat(count: int, settled: int, bundle: Path, tmp_path: Path) -> None:
    """After ``settled`` images, which fill caches and pools, nothing grows with their number."""
    files = [path.read_bytes() for path in made.photos(tmp_path / "some", 10)]
    (tmp_path / "many").mkdir()
    for i in range(count):
        (tmp_path / "many" / f"{i:05}.png").write_bytes(files[i % 10])
    command = [sys.executable, "-m", "vitshap", "explain", str(tmp_path / "many"), "--bundle", str(bundle)]
    command += ["--json", "-", "--no-heatmaps", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    early, late, values = [], [], {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            if settled // 2 <= number < settled:
                early.append(_memory(process))
            elif number >= count - settled // 2 and number < count - 40:  # the end is not measured: it may be gone
                late.append(_memory(process))
            explained = json.loads(line)["explained"][0]["values"]
            assert values.setdefault(number % 10, explained) == pytest.approx(explained, abs=1e-6)
    assert process.returncode == 0
    assert number == count - 1
    growth = max(late) - max(early)
    # All photos together, decoded, would be 3,000 x 7 KB; all their cards 3,000 x 20 KB.
    print(f"\n{count} images: {max(early) / MEGABYTE:.0f} MiB, then {max(late) / MEGABYTE:.0f} MiB")
    assert growth < 12 * MEGABYTE, f"memory grew by {growth / MEGABYTE:.1f} MiB"
    pages = sorted((tmp_path / "out").glob("report*.html"))
    assert len(pages) == -(-count // 200)
    assert all(page.stat().st_size < 20 * MEGABYTE for page in pages)
