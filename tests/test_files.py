"""One run at a time writes into an output folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from vitshap.files import LOCK, FolderInUse, locked_folder

HOLD = """
import sys, time
from pathlib import Path
from vitshap.files import locked_folder
with locked_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_run_is_refused_and_nothing_stays_behind(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    with locked_folder(folder):
        with pytest.raises(FolderInUse, match="another run of vitshap writes into"), locked_folder(folder):
            pass
        with locked_folder(tmp_path / "other"):
            (tmp_path / "other" / "result").touch()
        assert (folder / LOCK).exists(), "the refused run has not taken the lock of the first away"
    assert not folder.exists()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["result"]
    with locked_folder(tmp_path / "other"):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse), locked_folder(tmp_path):
            pass
        process.kill()
    with locked_folder(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()
