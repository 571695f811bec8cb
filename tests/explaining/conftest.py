"""What the tests of this room share."""

from pathlib import Path

import pytest

from tests.explaining import made


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.bundle(tmp_path_factory.mktemp("stored") / "insects")
