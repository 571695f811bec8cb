"""The interface over HTTP: its answers equal those of the library, and errors are clear."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from tests.explaining import made
from tests.serving.running import bits, photo, server, wait_for
from vitshap import Explainer
from vitshap.explaining import explain_photos, open_bundle
from vitshap.explaining.sinks import record
from vitshap.methods import method
from vitshap.serving.models import ModelChoice, ServedModel
from vitshap.serving.schemas import ExplanationResponse, ModelList, PredictionsResponse
from vitshap.serving.uploads import Limits
from vitshap.serving.worker import Job

FORM = {"image": ("any.png", photo(), "image/png")}


@pytest.fixture(scope="module")
def explainer(bundle: Path) -> Explainer:
    return Explainer.from_pretrained(bundle)


def _error(response: httpx.Response) -> tuple[int, str]:
    assert set(response.json()) == {"error"}
    assert len(response.json()["error"]["message"]) > 10
    return response.status_code, response.json()["error"]["code"]


def test_the_server_is_alive_and_ready(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}


def test_models_are_listed(client: httpx.Client) -> None:
    (model,) = ModelList.model_validate(client.get("/v1/models").json()).models
    assert (model.name, model.kind, model.default) == ("small", "bundle", True)
    assert (model.grid, model.num_players, model.class_names) == ([4, 4], 16, made.NAMES)
    assert model.methods[0] == "explainer"
    assert {"kernelshap", "attnlrp"} < set(model.methods)
    assert "random" not in model.methods
    assert "expected-gradients" not in model.methods, "requests have no reference images"


@pytest.mark.parametrize("raw", [False, True], ids=["form", "body"])
def test_an_explanation_is_that_of_the_explainer(client: httpx.Client, explainer: Explainer, raw: bool) -> None:
    content = photo(3, size=(90, 50))
    given: dict[str, Any] = {"content": content, "headers": {"Content-Type": "image/png"}}
    response = client.post(
        "/v1/explanations", params={"target": "all"}, **(given if raw else {"files": {"image": content}})
    )
    found = ExplanationResponse.model_validate(response.json())
    image = Image.open(io.BytesIO(content))
    expected = explainer(image)
    order = [one.index for one in found.classes]
    assert sorted(order) == list(range(5))
    torch.testing.assert_close(torch.tensor([one.values for one in found.classes]), expected.values[0].T[order])
    torch.testing.assert_close(torch.tensor(found.prediction), expected.prediction[0])
    assert found.image_size == [90, 50]
    assert found.box == pytest.approx(expected.image_box[0].tolist(), abs=0.01)
    first = found.classes[0]
    assert first.base + sum(first.values) == pytest.approx(first.probability, abs=1e-4)
    assert found.players == list(range(16))


def test_an_explainers_standard_errors_come_with_intervals(tmp_path: Path) -> None:
    folder, content = made.bundle(tmp_path / "calibrated", calibrated=True), photo(3, size=(90, 50))
    with server(folder) as (client, _):
        answer = client.post("/v1/explanations", params={"target": "all"}, files={"image": content}).json()
    found = ExplanationResponse.model_validate(answer)
    assert (found.interval_level, found.stderr_from) == (0.95, "calibrated on 120 held-out images")
    expected = Explainer.from_pretrained(folder)(Image.open(io.BytesIO(content)))
    assert expected.stderr is not None
    order = [one.index for one in found.classes]
    torch.testing.assert_close(torch.tensor([one.stderr for one in found.classes]), expected.stderr[0].T[order])
    for side, ends in enumerate(expected.interval(0.95)):
        given = torch.tensor([one.interval[side] for one in found.classes if one.interval])
        torch.testing.assert_close(given, ends[0].T[order])
    (path,) = made.photos(tmp_path / "photos", 1)
    path.write_bytes(content)
    (entry,) = explain_photos([path], open_bundle(str(folder)), target="all")
    names = ("values", "stderr", "interval", "reliability")
    lines = {line["class"]: line for line in record(entry)["explained"]}
    for one, line in ((one, lines[one["index"]]) for one in answer["classes"]):
        assert {name: one[name] for name in names} == {
            name: pytest.approx(np.array(line[name]), rel=1e-4, abs=1e-6) for name in names
        }


def test_without_standard_errors_there_is_no_interval(client: httpx.Client) -> None:
    for name in ("explainer", "attnlrp"):
        found = client.post("/v1/explanations", params={"method": name}, files=FORM).json()
        assert found["interval_level"] is found["stderr_from"] is found["reliability"] is None
        assert found["classes"][0]["stderr"] is found["classes"][0]["interval"] is None
        assert found["classes"][0]["reliability"] is None


@pytest.mark.parametrize(
    ("target", "count"), [("predicted", 1), ("top-3", 3), ("dog", 1), ("2", 1), ("English springer, 0", 2)]
)
def test_targets(client: httpx.Client, target: str, count: int) -> None:
    found = client.post("/v1/explanations", params={"target": target}, files=FORM).json()
    assert len(found["classes"]) == count
    if target == "dog":
        assert found["classes"][0]["name"] == "dog"


def test_photos_that_browsers_cannot_show_are_sent_back_as_pictures(client: httpx.Client) -> None:
    pydicom_data = pytest.importorskip("pydicom.data")
    radiograph = Path(pydicom_data.get_testdata_file("CT_small.dcm")).read_bytes()
    tiff, large = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(tiff, "TIFF")
    Image.new("RGB", (40, 30), "red").save(large, "TIFF", big_tiff=True)
    for content, size in ((radiograph, (128, 128)), (tiff.getvalue(), (40, 30)), (large.getvalue(), (40, 30))):
        answer = client.post("/v1/explanations", content=content).json()
        kind, _, data = answer["picture"].partition(",")
        assert kind == "data:image/webp;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == size
    png = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(png, "PNG")
    assert client.post("/v1/explanations", content=png.getvalue()).json()["picture"] is None


def test_predictions_are_those_of_the_model(client: httpx.Client, explainer: Explainer) -> None:
    generator = torch.Generator().manual_seed(0)
    coalitions = torch.rand(70, 16, generator=generator) < 0.5  # more than are evaluated at once
    content = photo(4)
    text = bits(*coalitions.int().tolist())
    response = client.post("/v1/predictions", files={"image": content}, data={"coalitions": text})
    found = PredictionsResponse.model_validate(response.json())
    image = Image.open(io.BytesIO(content))
    game = explainer.surrogate.game(image)
    torch.testing.assert_close(torch.tensor(found.predictions), game(coalitions)[0], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(torch.tensor(found.base), game.null[0], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(torch.tensor(found.full), game.grand[0], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["attnlrp", "leave-one-out", "gradcam-ln", "rise"])
def test_other_methods_are_those_of_the_library(client: httpx.Client, explainer: Explainer, name: str) -> None:
    content = photo(5)
    found = client.post("/v1/explanations", params={"method": name, "target": "bee"}, files={"image": content}).json()
    expected = method(name, explainer.surrogate)(Image.open(io.BytesIO(content)), target="bee")
    values = torch.tensor(found["classes"][0]["values"])
    torch.testing.assert_close(values, expected.values[0, :, 0], atol=1e-5, rtol=1e-3)
    assert found["unit"] == expected.unit


def _lines(client: httpx.Client, **params: Any) -> list[dict[str, Any]]:
    headers = {"Accept": "application/x-ndjson"}
    with client.stream("POST", "/v1/explanations", params=params, files=FORM, headers=headers) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in response.iter_lines()]


def test_sampling_reports_its_progress(client: httpx.Client) -> None:
    *progress, last = _lines(client, method="kernelshap", budget=2000)
    assert [line["type"] for line in progress] == ["progress"] * len(progress)
    assert len(progress) > 3
    counts = [line["evaluations"] for line in progress]
    assert counts == sorted(set(counts))
    assert counts[-1] <= 2000
    assert last.pop("type") == "result"
    found = ExplanationResponse.model_validate(last)
    assert found.evaluations == counts[-1]
    (first,) = found.classes
    assert first.stderr is not None
    assert first.interval is not None
    assert (found.interval_level, found.stderr_from) == (0.95, "from sampling")
    for side, ends in zip((-1, 1), first.interval, strict=True):
        expected = [value + side * 1.96 * error for value, error in zip(first.values, first.stderr, strict=True)]
        assert ends == pytest.approx(expected, abs=1e-4)
    assert found.reliability == pytest.approx(progress[-1]["reliability"], abs=1e-3)
    assert [line["type"] for line in _lines(client)] == ["result"]


def test_an_unexpected_error_is_an_answer_with_and_without_lines(
    bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    with server(bundle) as (client, serving):
        handles = [part.register_forward_hook(fail) for part in serving.models["small"].model.net.modules()]
        plain = client.post("/v1/explanations", params={"method": "kernelshap"}, files=FORM)
        assert _error(plain) == (500, "internal")
        assert plain.headers["connection"] == "close"
        last = _lines(client, method="kernelshap")[-1]
        assert (last["type"], last["error"]["code"]) == ("error", "internal")
        assert "out of memory" in caplog.text
        for handle in handles:
            handle.remove()
        assert [line["type"] for line in _lines(client, method="kernelshap")][-1] == "result"


def test_a_wrong_parameter_is_named_once(client: httpx.Client) -> None:
    for value, why in (("many", "valid integer"), ("1", "greater than or equal to 2")):
        answer = client.post("/v1/explanations", params={"method": "kernelshap", "budget": value}, files=FORM)
        said = answer.json()["error"]["message"]
        assert said.startswith("budget: ")
        assert why in said
        assert "None" not in said


WRONG = {
    "unknown model": ({"model": "large"}, {}, (404, "unknown_model")),
    "unknown method": ({"method": "magic"}, {}, (422, "unknown_method")),
    "method of nothing": ({"method": "random"}, {}, (422, "unknown_method")),
    "unknown class": ({"target": "unicorn"}, {}, (422, "unknown_class")),
    "class number": ({"target": "5"}, {}, (422, "unknown_class")),
    "no class": ({"target": ""}, {}, (422, "invalid_parameter")),
    "budget": ({"method": "kernelshap", "budget": "many"}, {}, (422, "invalid_parameter")),
    "large budget": ({"method": "kernelshap", "budget": "10000000"}, {}, (422, "invalid_parameter")),
    "small budget": ({"method": "kernelshap", "budget": "3"}, {}, (422, "not_explained")),
    "no body": ({}, {"content": b""}, (400, "no_image")),
    "another field": ({}, {"files": {"photo": photo()}}, (422, "no_image")),
    "json": ({}, {"json": {"image": "/etc/passwd"}}, (415, "unsupported_content_type")),
    "address": ({}, {"data": {"image": "http://127.0.0.1/x.png"}}, (415, "unsupported_content_type")),
    "path": ({}, {"files": {"image": b"/etc/passwd"}}, (415, "unsupported_image")),
    "no boundary": (
        {},
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}},
        (400, "malformed_form"),
    ),
    "cut form": (
        {},
        {
            "content": b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\nx',
            "headers": {"Content-Type": "multipart/form-data; boundary=b"},
        },
        (400, "malformed_form"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests(client: httpx.Client, case: str) -> None:
    params, given, expected = WRONG[case]
    assert _error(client.post("/v1/explanations", params=params, **(given or {"files": FORM}))) == expected


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "0101", '["01"]', f'["{"2" * 16}"]', '["' + "0" * 17 + '"]', "[[" * 5000, bits(*["0" * 16] * 513)],
)
def test_wrong_coalitions(client: httpx.Client, text: str) -> None:
    response = client.post("/v1/predictions", files={"image": photo()}, data={"coalitions": text})
    assert _error(response) == (422, "invalid_coalitions")
    assert "strings, each of 16 characters" in response.json()["error"]["message"]


def test_unknown_addresses_and_methods(client: httpx.Client) -> None:
    assert _error(client.get("/v1/nothing")) == (404, "not_found")
    assert _error(client.get("/v1/explanations")) == (405, "method_not_allowed")
    assert _error(client.get("/docs")) == (404, "not_found")


def test_metrics_count_requests(client: httpx.Client) -> None:
    client.get("/nowhere")
    text = client.get("/metrics").text
    assert 'vitshap_responses_total{path="other",status="404"}' in text
    assert "vitshap_ready 1.0" in text


# Limits, concurrency


def test_concurrent_requests_share_forward_passes_and_get_their_own_answers(bundle: Path, explainer: Explainer) -> None:
    photos = [photo(seed) for seed in range(12)]
    with server(bundle) as (client, serving):
        sizes: list[int] = []
        serving.models["small"].batch_sizes = sizes.append
        targets = ["predicted", "all", "bee"]

        def ask(i: int) -> dict[str, Any]:
            return client.post(
                "/v1/explanations", params={"target": targets[i % 3]}, files={"image": photos[i % 12]}
            ).json()

        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(ask, range(72)))
    assert sum(sizes) == 72
    assert max(sizes) > 1
    for i, answer in enumerate(answers):
        expected = explainer(Image.open(io.BytesIO(photos[i % 12])))
        assert len(answer["classes"]) == (1, 5, 1)[i % 3]
        for one in answer["classes"]:
            torch.testing.assert_close(
                torch.tensor(one["values"]), expected.values[0, :, one["index"]], atol=1e-5, rtol=1e-4
            )


def test_of_a_batch_that_does_not_fit_nothing_is_kept_while_its_photos_are_explained_alone(bundle: Path) -> None:
    served = ServedModel(ModelChoice("bundle", str(bundle), "small"), Limits())
    refused: list[weakref.ref[torch.Tensor]] = []

    def run(jobs: list[Job]) -> None:
        assert all(one() is None for one in refused), "tensors of a batch that failed take the room of the next"
        tokens = torch.zeros(len(jobs), 1)
        if len(jobs) > 1:
            refused.append(weakref.ref(tokens))
            raise torch.OutOfMemoryError("no memory left")
        jobs[0].finish(len(tokens))

    jobs = [Job() for _ in range(3)]
    try:
        served._guarded(jobs, run)
    finally:
        served.close()
    assert [job.result.result(0) for job in jobs] == [1, 1, 1]
    assert len(refused) == 1


def test_concurrent_predictions_get_their_own_answers(client: httpx.Client, explainer: Explainer) -> None:
    generator = torch.Generator().manual_seed(1)
    coalitions = [torch.rand(1 + i % 3, 16, generator=generator) < 0.6 for i in range(24)]

    def ask(i: int) -> list[list[float]]:
        text = bits(*coalitions[i].int().tolist())
        files = {"image": photo(i % 4)}
        return client.post("/v1/predictions", files=files, data={"coalitions": text}).json()["predictions"]

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(24)))
    for i, answer in enumerate(answers):
        expected = explainer.surrogate.game(made.picture(i % 4))(coalitions[i])[0]
        torch.testing.assert_close(torch.tensor(answer), expected, atol=1e-6, rtol=1e-4)


def test_known_photos_are_kept_and_forgotten(bundle: Path) -> None:
    with server(bundle) as (client, serving):
        for seed in [*range(40), 39]:
            client.post("/v1/explanations", files={"image": photo(seed)})
        assert serving.measured.known._value.get() == 1
        assert len(serving.models["small"]._photos) == 32


@pytest.fixture(scope="module")
def busy(bundle: Path) -> Iterator[tuple[httpx.Client, Any]]:
    limits = Limits(
        upload_bytes=20_000, pixels=10_000, waiting=1, sampling=1, seconds=1.5, upload_seconds=0.5, budget=1_000_000
    )
    with server(bundle, limits=limits) as found:
        yield found


def test_too_many_bytes(busy: tuple[httpx.Client, Any]) -> None:
    client, _ = busy
    noise = photo(0, "bmp", (100, 90))
    assert _error(client.post("/v1/explanations", content=noise)) == (413, "too_many_bytes")

    def chunks() -> Iterator[bytes]:  # without a stated length
        yield from [bytes(1000)] * 200

    response = client.post("/v1/explanations", content=chunks())
    assert _error(response) == (413, "too_many_bytes")


def test_too_many_photos_at_once(bundle: Path) -> None:
    with server(bundle, limits=Limits(bytes_at_once=5000)) as (client, serving):
        assert _error(client.post("/v1/explanations", content=bytes(6000))) == (429, "busy")
        assert serving.received.total == 0
        assert client.post("/v1/explanations", files={"image": photo(0, "jpeg")}).status_code == 200
        assert serving.received.total == 0


def test_too_many_pixels(busy: tuple[httpx.Client, Any]) -> None:
    client, _ = busy
    wide = photo(0, "png", (101, 100))
    assert _error(client.post("/v1/explanations", files={"image": wide})) == (413, "too_many_pixels")


def test_a_slow_upload_is_given_up(busy: tuple[httpx.Client, Any]) -> None:
    client, _ = busy

    def chunks() -> Iterator[bytes]:
        yield b"x"
        time.sleep(1)
        yield b"y"

    assert _error(client.post("/v1/explanations", content=chunks())) == (408, "slow_upload")


def test_a_full_server_answers_429_and_a_slow_request_503(busy: tuple[httpx.Client, Any]) -> None:
    client, serving = busy
    params = {"method": "kernelshap", "budget": 60_000}
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.post, "/v1/explanations", params=params, files=FORM)
        wait_for(lambda: serving.admitted["long"] == 1)
        refused = client.post("/v1/explanations", params=params, files=FORM)
        assert (
            client.post("/v1/explanations", files=FORM).status_code == 200
        )  # short requests do not wait for long ones
        assert _error(slow.result()) == (503, "time_limit")
    assert _error(refused) == (429, "busy")
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert serving.idle


def test_a_stream_over_its_time_ends_with_an_error(busy: tuple[httpx.Client, Any]) -> None:
    client, serving = busy
    last = _lines(client, method="permutation", budget=1_000_000)[-1]
    assert (last["type"], last["error"]["code"]) == ("error", "time_limit")
    wait_for(lambda: serving.idle)


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_goes_away_cancels_the_work(bundle: Path, streams: bool) -> None:
    with server(bundle) as (client, serving):
        model = serving.models["small"]
        seen: list[Any] = []
        submit = model.long.submit
        model.long.submit = lambda job: (seen.append(job), submit(job))  # type: ignore[method-assign,assignment]
        params, headers = (
            {"method": "kernelshap", "budget": 65_536},
            {"Accept": "application/x-ndjson" if streams else "*/*"},
        )
        own = httpx.Client(base_url=client.base_url, trust_env=False, timeout=60)

        def ask() -> None:
            with suppress(httpx.HTTPError):
                own.post("/v1/explanations", params=params, files=FORM, headers=headers)

        asking = threading.Thread(target=ask)
        if streams:
            with own.stream("POST", "/v1/explanations", params=params, files=FORM, headers=headers) as response:
                assert json.loads(next(response.iter_lines()))["type"] == "progress"
        else:
            asking.start()
            wait_for(lambda: seen)
            _drop(own)
        wait_for(lambda: seen and seen[0].cancelled, 10)
        wait_for(lambda: serving.idle, 10)
        # the thread is free again long before the whole budget would have been used
        answer = client.post("/v1/explanations", params={"method": "leave-one-out"}, files=FORM)
        assert answer.status_code == 200
        if not streams:
            asking.join(10)


def _drop(client: httpx.Client) -> None:
    """Close the sockets of a client that waits in another thread."""
    import socket

    for connection in client._transport._pool.connections:  # type: ignore[attr-defined]
        connection._connection._network_stream._sock.shutdown(socket.SHUT_RDWR)
