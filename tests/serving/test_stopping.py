"""The command in a process of its own: 503 while loading and stopping, what is under way is finished, no secret printed."""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.serving.running import address, command, photo, wait_for

PARAMS = {"method": "kernelshap", "budget": 1500}
TOKEN = "a-token-of-some-length"
CLIENT = httpx.Client(trust_env=False)
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def _get(url: str, path: str) -> httpx.Response | None:
    """Return the answer; None if there is no server."""
    try:
        return CLIENT.get(url + path, headers={**HEADERS, "Connection": "close"}, timeout=5)
    except httpx.TransportError:
        return None


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _ready(url: str, seen: list[int]) -> bool:
    answer = _get(url, "/readyz")
    if answer is not None:
        seen.append(answer.status_code)
    return bool(seen) and seen[-1] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_server_loads_answers_and_finishes_what_is_under_way(bundle: Path, number: int) -> None:
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    process = command("--bundle", bundle, port=port, VITSHAP_TOKEN=TOKEN)
    statuses: list[int] = []
    answers: list[httpx.Response] = []

    def ask() -> None:
        address = f"{url}/v1/explanations"
        found = httpx.post(
            address, params=PARAMS, files={"image": photo()}, headers=HEADERS, timeout=90, trust_env=False
        )
        answers.append(found)

    try:
        wait_for(lambda: _ready(url, statuses), 90, every=0.1)
        assert set(statuses) == {200, 503}
        own = socket.gethostbyname(socket.gethostname())
        if not own.startswith("127."):
            with pytest.raises(OSError):
                socket.create_connection((own, port), 2)
        httpx.get(f"{url}/v1/models?token={TOKEN}", headers={"Authorization": f"Bearer x{TOKEN}"}, trust_env=False)
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: 'kind="long"} 2.0' in _get(url, "/metrics").text)  # type: ignore[union-attr]
        process.send_signal(number)
        stopping: list[httpx.Response | None] = []
        wait_for(
            lambda: stopping.append(_get(url, "/readyz")) or stopping[-1] is None or stopping[-1].status_code == 503
        )
        assert stopping[-1] is not None
        assert stopping[-1].json()["error"]["code"] == "stopping"
        for thread in threads:
            thread.join(90)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert all(len(answer.json()["classes"][0]["values"]) == 16 for answer in answers)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert _get(url, "/healthz") is None
    assert TOKEN not in out + err
    assert err.splitlines() == ["loading small", f"ready: {url} (small)"]


@pytest.mark.long
def test_an_idle_server_stops_at_once_although_a_connection_is_open(bundle: Path) -> None:
    process = command("--bundle", bundle)
    url = address(process)
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"{url}/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.long
def test_a_second_signal_ends_it_before_the_work_is_done(bundle: Path) -> None:
    process = command("--bundle", bundle, "--time-limit", 600)
    url = address(process)
    answers: list[int] = []

    def ask() -> None:
        params = PARAMS | {"budget": 65_536}
        with suppress(httpx.TransportError):
            answers.append(
                CLIENT.post(f"{url}/v1/explanations", params=params, files={"image": photo()}, timeout=90).status_code
            )

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: 'kind="long"} 1.0' in _get(url, "/metrics").text)  # type: ignore[union-attr]
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    thread.join(60)
    assert 200 not in answers


@pytest.mark.long
def test_a_taken_port_is_an_error(bundle: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = command("--bundle", bundle, port=taken.getsockname()[1])
        _, err = process.communicate(timeout=90)
    assert process.returncode == 2
    assert "address already in use" in err
