"""schemathesis against the OpenAPI document: whatever is sent, no error of the server, and every answer as documented."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests import hostile
from tests.serving.running import photo, server
from vitshap.serving.uploads import Limits

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
PHOTOS = st.sampled_from([photo(0), photo(1, "jpeg"), photo(2, "gif"), *hostile.READABLE.values()])
ROWS = st.lists(st.text("01", min_size=16, max_size=16), min_size=1, max_size=40)

schemathesis.openapi.format("binary", PHOTOS | st.binary(max_size=2000))
schemathesis.openapi.format("coalitions", ROWS.map(json.dumps))
for kind in ("image/png", "image/jpeg"):
    schemathesis.openapi.media_type(kind, PHOTOS | st.binary(max_size=2000))


@pytest.fixture(scope="module")
def limited(bundle: Path) -> Iterator[httpx.Client]:
    with server(bundle, limits=Limits(budget=200)) as (client, _):
        yield client


def _cases(operation: Any) -> list[Any]:
    """Return strategies of valid and, where the operation takes anything, of invalid requests."""
    modes = schemathesis.GenerationMode
    takes = bool(list(operation.iter_parameters()) or operation.body)
    return [
        operation.as_strategy(generation_mode=mode)
        for mode in (modes.POSITIVE, modes.NEGATIVE)
        if takes or mode is modes.POSITIVE
    ]


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.long)])
def test_every_answer_is_as_documented(limited: httpx.Client, count: int) -> None:
    schema = schemathesis.openapi.from_url(f"{limited.base_url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    strategies = [cases for operation in operations for cases in _cases(operation)]
    answers: Counter[tuple[str, int]] = Counter()

    for cases in strategies:

        @settings(
            max_examples=count // 4 + 5,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def check(case: Any) -> None:
            response = case.call(base_url=str(limited.base_url))
            answers[case.operation.label, response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        check()
    assert sum(answers.values()) >= count
    assert {label for label, status in answers if status == 200} == {operation.label for operation in operations}
    assert max(status for _, status in answers) < 500
    print(sorted(answers.items()))
