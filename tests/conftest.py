"""What all tests share."""

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import settings

import vitshap  # noqa: F401 (before timm and transformers, as everywhere)
from tests import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU; read when triton is imported
# `make test` tries the same cases every time, so that a red run means a change; `make test-long` looks for new ones.
settings.register_profile("repeatable", derandomize=True)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A browser for the tests of a module; those that use it are skipped where there is none.

    Not for the whole session: while it runs, Playwright's event loop keeps others from starting in this thread.
    """
    if chromium.EXECUTABLE is None:
        pytest.skip("there is no Chromium here")
    with chromium.launched() as found:
        yield found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Where there is a browser, a skipped browser test is a failure."""
    report = yield
    if report.skipped and chromium.EXECUTABLE is not None and item.get_closest_marker("browser") is not None:
        report.outcome = "failed"
        report.longrepr = f"a browser test was skipped although {chromium.EXECUTABLE} is there: {report.longrepr}"
    return report
