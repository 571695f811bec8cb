"""The page of ``vitshap serve`` in a real browser, with a real server: what a person does, and what must be seen then."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Download, Route

from tests import chromium
from tests.chromium import DESKTOP, PHONE, Tab
from tests.explaining import made
from tests.serving import running
from tests.viewer.conftest import Server
from vitshap import Explainer

pytestmark = chromium.needs_browser
NBSP = "\N{NO-BREAK SPACE}"


@pytest.fixture
def live(browser: Browser, server: Server) -> Iterator[Tab]:
    """The page, empty; whatever a test does, it asks no other host and complains of nothing."""
    with chromium.tab(browser, server.address) as found:
        found.until("window.vitshap?.models.length === 2")
        yield found
        assert found.complaints == []
        assert all(url.startswith((server.address, "data:", "blob:")) for url in found.requests)


def explain(live: Tab, photo: Path) -> None:
    """Choose a photo, and wait for its map and its curve."""
    live.page.set_input_files("#file", photo)
    live.until("window.vitshap.panes[0]?.viewer?.curve")


def viewer(live: Tab, expression: str, pane: int = 0) -> Any:
    return live.page.evaluate(f"window.vitshap.panes[{pane}].viewer.{expression}")


def hidden(live: Tab, pane: int = 0) -> list[int]:
    return [player for player, gone in enumerate(viewer(live, "coalition.hidden", pane)) if gone]


def outputs(server: Server, photo: Path, without: list[int]) -> torch.Tensor:
    """What the model itself says of the photo without these patches."""
    model = server.source.model
    shown = torch.ones(1, 16, dtype=torch.bool)
    shown[0, without] = False
    return model.game(model.prepare(Image.open(photo)).pixels)(shown)[0, 0]


def percent(value: float) -> str:
    return f"{100 * value:.1f}{NBSP}%"


def patch_place(live: Tab, row: int, column: int) -> tuple[float, float]:
    """Where a patch is: photos have 60 x 40 pixels, the model sees the middle 32/36 of the height and as much across."""
    left, top, right, bottom = viewer(live, "explanation.box")
    box = live.page.locator("canvas.map").first.bounding_box()
    assert box is not None
    x = (left + (column + 0.5) * (right - left) / 4) / 60
    y = (top + (row + 0.5) * (bottom - top) / 4) / 40
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def click_patch(live: Tab, row: int, column: int) -> None:
    live.page.mouse.click(*patch_place(live, row, column))


def test_a_photo_is_explained(live: Tab, server: Server, photos: list[Path]) -> None:
    page = live.page
    assert page.locator("#empty").is_visible()
    assert page.locator(".samples img").count() == 3
    explain(live, photos[0])
    assert not page.locator("#empty").is_visible()
    full = outputs(server, photos[0], [])
    best = int(full.argmax())
    said = f"predicts {made.NAMES[best]}" if full[best] >= 0.5 else f"finds {made.NAMES[best]} most probable"
    assert f"The model {said} ({percent(float(full[best]))})." in page.locator(".say").inner_text()
    rows = page.locator(".bars button")
    assert rows.count() == 5
    order = full.argsort(descending=True).tolist()
    assert [row.split("\n")[0] for row in rows.all_inner_texts()] == [made.NAMES[index] for index in order]
    assert "The model sees" in page.locator(".stage").inner_text(), "less than three quarters of the photo"
    expected = server.source.method(Image.open(photos[0]), target=best).values[0, :, 0]
    values = viewer(live, f"explanation.classes.find((one) => one.index === {best}).values")
    assert values == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_class_at_a_click_and_in_the_address(live: Tab, server: Server, photos: list[Path]) -> None:
    page = live.page
    explain(live, photos[0])
    third = page.locator(".bars button").nth(2)
    name = third.inner_text().split("\n")[0]
    third.click()
    assert page.locator(".scale .high").inner_text() == f"raises '{name}'"
    assert page.locator('.bars button[aria-pressed="true"]').inner_text().startswith(name)
    live.until("window.vitshap.panes[0].viewer.curve !== null")
    assert f"of {name} while" in page.locator(".curve h3").inner_text()
    click_patch(live, 1, 2)
    live.until("window.vitshap.panes[0].viewer.now !== null")
    address = page.url
    assert f"class={made.NAMES.index(name)}+{name.replace(' ', '+')}" in address
    page.goto("about:blank")
    page.goto(address)
    live.until("window.vitshap?.models.length === 2")
    explain(live, photos[0])
    assert page.locator(".scale .high").inner_text() == f"raises '{name}'"
    assert hidden(live) == [6]


def test_a_class_that_was_not_explained_is_explained_when_it_is_chosen(
    live: Tab, server: Server, photos: list[Path]
) -> None:
    explain(live, photos[0])
    viewer(live, "explanation.classes.splice(1)")  # as of a model of many classes: the most probable ones alone
    last = int(outputs(server, photos[0], []).argmin())
    live.page.locator(f'.bars button[data-index="{last}"]').click()
    live.until(f"window.vitshap.panes[0].viewer.index === {last}")
    expected = server.source.method(Image.open(photos[0]), target=last).values[0, :, 0]
    assert viewer(live, "explanation.classes[1].values") == pytest.approx(expected.tolist(), abs=1e-5)


def test_brushing_changes_the_prediction(live: Tab, server: Server, photos: list[Path]) -> None:
    page = live.page
    explain(live, photos[0])
    best = viewer(live, "index")
    click_patch(live, 0, 1)
    click_patch(live, 2, 3)
    assert hidden(live) == [1, 11]
    expected = outputs(server, photos[0], [1, 11])
    live.until(f"Math.abs((window.vitshap.panes[0].viewer.now?.get({best}) ?? 9) - {float(expected[best])}) < 1e-5")
    said = page.locator(".game").inner_text()
    explanation = server.source.method(Image.open(photos[0]), target=best)
    kept = explanation.values[0, :, 0].clone()
    kept[[1, 11]] = 0
    additive = float(explanation.base_values[0, 0] + kept.sum())  # type: ignore[index]
    assert f"now, 2 patches hidden\n{percent(float(expected[best]))}" in said
    assert f"sum of values says\n{percent(additive)}" in said
    assert re.search(r"The rest, [+\N{MINUS SIGN}]?[\d.]+ points, is interaction", said)
    bars = page.locator(".bars button").all_inner_texts()
    assert all("\N{RIGHTWARDS ARROW}" in bar for bar in bars)
    click_patch(live, 2, 3)  # a click on a hidden patch shows it again
    assert hidden(live) == [1]
    page.get_by_role("button", name="Swap").click()
    assert hidden(live) == [player for player in range(16) if player != 1]
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Hide best 10").click()
    order = explanation.top(10)[0]
    assert hidden(live) == sorted(one.player for one in order)
    page.get_by_role("button", name="Reset").click()
    assert hidden(live) == []
    page.locator(".brushes label", has_text="3").click()
    click_patch(live, 1, 1)
    assert hidden(live) == [0, 1, 2, 4, 5, 6, 8, 9, 10]


def test_the_slider_and_the_brush_are_one_state(live: Tab, server: Server, photos: list[Path]) -> None:
    page = live.page
    explain(live, photos[1])
    best = viewer(live, "index")
    order = [one.player for one in server.source.method(Image.open(photos[1]), target=best).top(16)[0]]
    page.locator(".slide input").fill("5")
    assert hidden(live) == sorted(order[:5])
    expected = float(outputs(server, photos[1], order[:5])[best])
    text = f"5 of 16 patches removed: {percent(expected)}"
    live.until(f"document.querySelector('.slide-row output').textContent === '{text}'")
    page.locator("canvas.map").focus()
    page.keyboard.press("]")
    assert hidden(live) == sorted(order[:6])
    row, column = divmod(order[15], 4)
    click_patch(live, row, column)
    assert "7 of 16 patches hidden by hand" in page.locator(".slide-row output").inner_text()
    page.keyboard.press("z")
    page.locator(".curve .choice label", has_text="add").click()
    assert hidden(live) == sorted(order[6:])
    curve = viewer(live, "curve")
    for mode in ("remove", "add"):
        for count, found in zip(curve["counts"], curve[mode], strict=True):
            without = order[:count] if mode == "remove" else order[count:]
            assert found == pytest.approx(outputs(server, photos[1], without).tolist(), abs=1e-4)


def test_refining_shows_progress_and_can_be_stopped(live: Tab, photos: list[Path]) -> None:
    page = live.page
    explain(live, photos[0])
    page.get_by_role("button", name="+ refine", exact=True).click()
    live.until("window.vitshap.panes[0].viewer.explanations.has('refine')")
    assert page.locator(".methods figure").count() == 2
    before = viewer(live, "explanations.get('refine').evaluations")
    assert before > 1000
    viewer(live, "methodView.budgets.set('refine', 16384)")  # the next step is the largest that the server takes
    page.evaluate("window.vitshap.panes[0].viewer.draw()")
    page.get_by_role("button", name="More evaluations (65,536)").click()
    live.until("document.querySelector('progress').value > 0")
    assert re.search(r"[\d,]+ of 65,536 evaluations", page.locator(".running").inner_text())
    page.get_by_role("button", name="Cancel").click()
    live.until("document.querySelector('progress') === null")
    assert viewer(live, "explanations.get('refine').evaluations") == before, "the last result stays"
    assert not page.locator(".viewer .fault").is_visible()
    page.get_by_role("button", name="Show the map by refine large").click()
    assert viewer(live, "explanation.method") == "refine"
    assert "method=refine" in page.url
    live.until("window.vitshap.panes[0].viewer.curve !== null")
    viewer(live, "methodView.budgets.set('refine', 1024)")
    page.evaluate("window.vitshap.panes[0].viewer.draw()")
    page.get_by_role("button", name="More evaluations (4,096)").click()
    live.until(f"window.vitshap.panes[0].viewer.explanation.evaluations > {before}")
    live.until("window.vitshap.panes[0].viewer.curve !== null")
    index, order = viewer(live, "index"), viewer(live, "curve.order")
    values = viewer(live, f"explanation.classes.find((one) => one.index === {index}).values")
    assert [values[player] for player in order] == sorted(values, reverse=True), "the order of the new values"


def test_the_first_line_is_about_the_shown_method(live: Tab, photos: list[Path]) -> None:
    page = live.page
    explain(live, photos[0])
    first = page.locator(".card .say").inner_text()
    assert "would " in first
    page.locator(".chips select").select_option("leave-one-out")
    page.get_by_role("button", name="Show the map by leave-one-out large").click()
    live.until("window.vitshap.panes[0].viewer.curve !== null")
    assert page.locator(".card .say").inner_text() != first
    page.get_by_role("button", name="Show the map by explainer large").click()
    assert page.locator(".card .say").inner_text() == first, "its curve is known already"
    page.locator(".bars button").nth(2).click()
    live.until("window.vitshap.panes[0].viewer.curve !== null")
    assert page.locator(".card .say").inner_text() == first, "the first line is about the predicted class"


def test_by_keyboard_alone(live: Tab, photos: list[Path]) -> None:
    page = live.page
    explain(live, photos[0])
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('map')"):
            break
    else:
        pytest.fail("the map is not reached by Tab")
    page.keyboard.press("ArrowUp")  # the cursor appears in the middle: row 3, column 3
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert page.locator(".readout").inner_text().startswith("row 2, column 4: ")
    page.keyboard.press(" ")
    assert hidden(live) == [7]
    live.until("/hidden; .* now /.test(document.querySelector('.readout').textContent)")
    page.keyboard.press("z")
    assert hidden(live) == []
    second = page.locator(".bars button").nth(1).inner_text().split("\n")[0]
    page.keyboard.press("2")
    assert page.locator(".scale .high").inner_text() == f"raises '{second}'"
    page.keyboard.press("]")
    assert len(hidden(live)) == 1
    page.keyboard.press("Escape")
    assert page.locator(".readout").inner_text() == ""


def test_errors_are_shown_and_the_last_result_stays(
    browser: Browser, server: Server, photos: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "words.jpg").write_text("these are words")
    with chromium.tab(browser, server.address) as live:
        page = live.page
        live.until("window.vitshap?.models.length === 2")
        page.set_input_files("#file", tmp_path / "words.jpg")
        live.until("!document.getElementById('fault').hidden")
        assert page.locator("#fault").inner_text().startswith("words.jpg could not be explained: ")
        assert page.locator("#empty").is_visible()
        explain(live, photos[0])
        assert not page.locator("#fault").is_visible()
        page.set_input_files("#file", tmp_path / "words.jpg")
        live.until("!document.getElementById('fault').hidden")
        assert page.locator("canvas.map").is_visible()
        click_patch(live, 0, 0)
        live.until("window.vitshap.panes[0].viewer.now !== null")
        page.route("**/v1/predictions*", lambda route: route.abort())
        click_patch(live, 1, 1)
        live.until("!document.querySelector('.viewer .fault').hidden")
        assert "is vitshap serve still running?" in page.locator(".viewer .fault").inner_text()
        assert viewer(live, "now") is None, "the prediction was of other patches"
        page.unroute("**/v1/predictions*")
        click_patch(live, 2, 2)
        live.until("document.querySelector('.viewer .fault').hidden")
        busy = {"error": {"code": "busy", "message": "try again"}}
        page.route(
            "**/v1/predictions*",
            lambda route: route.fulfill(status=429, headers={"Retry-After": "1"}, json=busy),
            times=1,
        )
        click_patch(live, 3, 3)
        expected = float(outputs(server, photos[0], hidden(live))[viewer(live, "index")])
        live.until(f"Math.abs(window.vitshap.panes[0].viewer.now.get({viewer(live, 'index')}) - {expected}) < 1e-5")
        assert not page.locator(".viewer .fault").is_visible(), "the page waits as long as it is told"


def test_doubt_is_said_above_the_map(live: Tab, photos: list[Path]) -> None:
    live.page.select_option("#model", "doubtful")
    explain(live, photos[0])
    said = live.page.locator(".warning").inner_text()
    assert "low confidence: best of 5 classes" in said
    assert "(threshold 99 %)" in said
    assert "model=doubtful" in live.page.url


def test_two_models_and_two_photos_beside_each_other(live: Tab, photos: list[Path]) -> None:
    page = live.page
    explain(live, photos[0])
    page.get_by_role("button", name="Compare").click()
    page.locator("dialog").get_by_role("button", name="doubtful").click()
    live.until("window.vitshap.panes[1]?.viewer")
    assert viewer(live, "limit", 0) == viewer(live, "limit", 1), "one scale"
    click_patch(live, 1, 1)
    assert hidden(live, 0) == hidden(live, 1) == [5], "the same photo: the same patches"
    page.get_by_role("button", name="Close", exact=True).first.click()
    page.get_by_role("button", name="Compare").click()
    with page.expect_file_chooser() as chooser:
        page.locator("dialog").get_by_role("button", name="another photo").click()
    chooser.value.set_files(photos[1])
    live.until("window.vitshap.panes[1]?.viewer")
    assert hidden(live, 1) == []
    boxes = [page.locator("canvas.map").nth(i).bounding_box() for i in range(2)]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]


def test_drop_and_paste(live: Tab, photos: list[Path]) -> None:
    give = """([kind, bytes]) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(bytes)], kind + ".png", { type: "image/png" }));
      const event = kind === "drop" ? new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true })
        : new ClipboardEvent(kind, { clipboardData: data, bubbles: true });
      document.body.dispatchEvent(event);
    }"""
    for kind, photo in zip(("drop", "paste"), photos, strict=True):
        live.page.evaluate(give, [kind, list(photo.read_bytes())])
        live.until(f"window.vitshap.panes[0]?.viewer?.name === '{kind}.png'")


def held(live: Tab, address: str) -> list[Route]:
    """Hold the page's requests of an address; ``release`` lets them go."""
    routes: list[Route] = []
    live.page.route(f"**/v1/{address}*", lambda route: routes.append(route))
    return routes


def wait_for_routes(live: Tab, routes: list[Route], count: int) -> None:
    for _ in range(1500):
        if len(routes) >= count:
            return
        live.page.wait_for_timeout(20)
    raise AssertionError(f"{len(routes)} requests instead of {count}")


def release(live: Tab, address: str, routes: list[Route]) -> None:
    for route in routes:
        route.continue_()
    live.page.unroute(f"**/v1/{address}*")


def test_another_photo_before_the_first_is_explained(live: Tab, photos: list[Path]) -> None:
    routes = held(live, "explanations")
    for count, photo in enumerate(photos, 1):
        live.page.set_input_files("#file", photo)
        wait_for_routes(live, routes, count)
    release(live, "explanations", routes)
    live.until("window.vitshap.panes[0]?.viewer?.curve")
    assert viewer(live, "name") == photos[1].name
    assert live.page.locator("article.card").count() == 1
    assert live.page.get_by_role("button", name="Compare").is_visible()


def test_another_model_before_the_photo_is_explained(live: Tab, photos: list[Path]) -> None:
    select = live.page.locator("#model")
    for photo, other in zip(photos, ("doubtful", "insects"), strict=True):
        routes = held(live, "explanations")
        live.page.set_input_files("#file", photo)
        wait_for_routes(live, routes, 1)
        select.select_option(other)
        wait_for_routes(live, routes, 2)
        release(live, "explanations", routes)
        live.until(f"window.vitshap.panes[0]?.viewer?.model === '{other}'")
        live.until("window.vitshap.panes[0].viewer.curve")
        assert viewer(live, "name") == photo.name
        assert viewer(live, "model") == select.input_value() == other
        assert f"model={other}" in live.page.url


def test_a_model_that_fails_is_not_the_chosen_one(browser: Browser, server: Server, photos: list[Path]) -> None:
    with chromium.tab(browser, server.address) as live:
        live.until("window.vitshap?.models.length === 2")
        explain(live, photos[0])
        live.page.route("**/v1/explanations*", lambda route: route.abort(), times=1)
        live.page.locator("#model").select_option("doubtful")
        live.until("!document.getElementById('fault').hidden")
        assert live.page.locator("canvas.map").is_visible()
        assert live.page.locator("#model").input_value() == viewer(live, "model") == "insects"
        click_patch(live, 1, 1)
        live.until("window.vitshap.panes[0].viewer.now !== null")
        assert "model=insects" in live.page.url
        assert live.page.locator(".warning").count() == 0, "the threshold is that of the model that explained the photo"


def test_a_comparison_that_is_closed_before_it_is_there(live: Tab, photos: list[Path]) -> None:
    explain(live, photos[0])
    routes = held(live, "explanations")
    live.page.get_by_role("button", name="Compare").click()
    live.page.locator("dialog").get_by_role("button", name="doubtful").click()
    wait_for_routes(live, routes, 1)
    assert not live.page.get_by_role("button", name="Compare").is_visible()
    live.page.get_by_role("button", name="Close", exact=True).first.click()
    with live.page.expect_response("**/v1/explanations*"):
        release(live, "explanations", routes)
    live.page.wait_for_timeout(200)
    assert live.page.evaluate("window.vitshap.panes.length") == live.page.locator("article.card").count() == 1
    assert live.page.get_by_role("button", name="Compare").is_visible()
    assert viewer(live, "sharedLimit") is None


def test_a_photo_that_fails_while_another_is_explained(
    browser: Browser, server: Server, photos: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "words.jpg").write_text("these are words")
    with chromium.tab(browser, server.address) as live:
        live.until("window.vitshap?.models.length === 2")
        explain(live, photos[0])
        routes = held(live, "explanations")
        for count, photo in enumerate((photos[1], tmp_path / "words.jpg"), 1):
            live.page.set_input_files("#file", photo)
            wait_for_routes(live, routes, count)
        release(live, "explanations", routes)
        live.until("!document.getElementById('fault').hidden")
        assert live.page.locator("canvas.map").is_visible(), "the last result stays"
        assert live.page.locator(".busy").count() == 0


def test_a_class_belongs_to_the_method_that_was_asked_for_it(live: Tab, server: Server, photos: list[Path]) -> None:
    explain(live, photos[0])
    live.page.locator(".chips select").select_option("leave-one-out")
    live.until("window.vitshap.panes[0].viewer.explanations.has('leave-one-out')")
    for method in ("explainer", "leave-one-out"):  # as of a model of many classes: the most probable ones alone
        viewer(live, f"explanations.get('{method}').classes.splice(2)")
    last = int(outputs(server, photos[0], []).argmin())
    routes = held(live, "explanations")
    live.page.locator(f'.bars button[data-index="{last}"]').click()
    wait_for_routes(live, routes, 1)
    live.page.get_by_role("button", name="Show the map by leave-one-out large").click()
    release(live, "explanations", routes)
    live.until("window.vitshap.panes[0].viewer.explanations.get('explainer').classes.length === 3")
    assert viewer(live, "explanations.get('leave-one-out').classes.length") == 2
    assert viewer(live, "explanation.method") == "leave-one-out"


def test_the_curve_of_a_map_that_was_replaced_meanwhile(live: Tab, photos: list[Path]) -> None:
    routes = held(live, "predictions")
    live.page.set_input_files("#file", photos[0])
    wait_for_routes(live, routes, 1)
    live.page.evaluate("""() => {
      const { viewer } = window.vitshap.panes[0];
      const classes = viewer.explanation.classes.map((one) => ({ ...one, values: one.values.map((value) => -value) }));
      viewer.replaceMethod({ ...viewer.explanation, classes });
    }""")
    release(live, "predictions", routes)
    live.until("window.vitshap.panes[0].viewer.curve")
    index, order = viewer(live, "index"), viewer(live, "curve.order")
    values = viewer(live, f"explanation.classes.find((one) => one.index === {index}).values")
    assert [values[player] for player in order] == sorted(values, reverse=True), "the order of the shown values"


def test_another_photo_ends_the_sampling_of_the_last_one(live: Tab, photos: list[Path]) -> None:
    explain(live, photos[0])
    viewer(live, "methodView.budgets.set('refine', 16384)")
    viewer(live, "methodView.add('refine', 65536) && 0")
    live.until("document.querySelector('progress')?.value > 0")
    with live.page.expect_event("requestfailed", lambda request: "method=refine" in request.url):
        explain(live, photos[1])


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["mouse", "finger"])
def test_a_patch_shows_its_interval(
    browser: Browser, photos: list[Path], tmp_path: Path, size: tuple[int, int]
) -> None:
    folder = made.bundle(tmp_path / "calibrated", calibrated=True)
    expected = Explainer.from_pretrained(folder)(Image.open(photos[0]))
    best = int(expected.prediction.argmax())
    value, low, high = (100 * float(one[0, 6, best]) for one in (expected.values, *expected.interval()))
    with running.server(folder) as (client, _), chromium.tab(browser, f"{client.base_url}", size=size) as live:
        live.until("window.vitshap?.models.length === 1")
        explain(live, photos[0])
        x, y = patch_place(live, 1, 2)
        if size == PHONE:
            live.page.touchscreen.tap(x, y)
        else:
            live.page.mouse.move(x, y)
        said = live.page.locator(".readout").inner_text().replace("\N{MINUS SIGN}", "-")
        numbers = re.fullmatch(r"row 2, column 3: (\S+) points \(95\s% interval (\S+) to (\S+)\)", said)
        assert numbers is not None, said
        assert [float(number) for number in numbers.groups()] == pytest.approx([value, low, high], abs=0.051)
        accuracy = live.page.locator(".stage p.small").first.inner_text()
        assert re.match(r"Standard error up to \S+ points, calibrated on 120 held-out images; estimated", accuracy)
        saved = json.loads(_saved(live, "JSON", tmp_path).read_text())
        assert saved["interval_level"] == 0.95
        assert saved["classes"][0]["interval"][1][6] == pytest.approx(high / 100, abs=1e-5)
        assert live.complaints == []


def test_without_standard_errors_nothing_is_said_of_them(live: Tab, photos: list[Path]) -> None:
    explain(live, photos[0])
    live.page.mouse.move(*patch_place(live, 1, 2))
    assert re.fullmatch(r"row 2, column 3: \S+ points", live.page.locator(".readout").inner_text())
    shown = live.page.locator("#panes").inner_text()
    assert not re.search("interval|reliab|standard error|certain", shown)
    empty = [place for place in live.page.locator(".stage p.small").all() if not place.inner_text()]
    assert not any(place.is_visible() for place in empty)
    numbers = viewer(live, "explanation.classes[0]")
    assert numbers["stderr"] is numbers["interval"] is None


def _saved(live: Tab, name: str, folder: Path) -> Path:
    with live.page.expect_download() as waiting:
        live.page.locator(".downloads").get_by_role("button", name=name).click()
    download: Download = waiting.value
    path = folder / download.suggested_filename
    download.save_as(path)
    return path


def test_downloads(browser: Browser, live: Tab, photos: list[Path], tmp_path: Path) -> None:
    explain(live, photos[0])
    picture = _saved(live, "PNG", tmp_path)
    with Image.open(picture) as found:
        assert found.size == (1200, 890)
        red, _, blue = found.convert("RGB").getpixel((790, 829))  # type: ignore[misc]
        assert red > blue, "the right end of the legend"
    numbers = json.loads(_saved(live, "JSON", tmp_path).read_text())
    assert numbers["grid"] == [4, 4]
    assert len(numbers["classes"]) == 5
    report = _saved(live, "Report", tmp_path)
    with chromium.tab(browser, report) as opened:
        opened.until("document.querySelector('.view')?.viewer")
        assert opened.page.locator(".say").inner_text() == live.page.locator(".say").inner_text()
        opened.page.locator(".slide input").focus()
        opened.page.keyboard.press("ArrowRight")
        assert "patches removed" in opened.page.locator(".slide-row output").inner_text()
        assert [url for url in opened.requests if not url.startswith("data:")] == [report.resolve().as_uri()]
        assert opened.complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_fits_every_screen(
    browser: Browser, server: Server, photos: list[Path], size: tuple[int, int], dark: bool
) -> None:
    with chromium.tab(browser, server.address, size=size, dark=dark) as live:
        live.until("window.vitshap?.models.length === 2")
        for step in ("empty", "explained"):
            if step == "explained":
                explain(live, photos[0])
            assert live.page.evaluate("document.documentElement.scrollWidth") <= size[0]
            assert live.page.evaluate(chromium.CUT_OFF, size[0]) == []
            assert live.page.evaluate(chromium.FAINT) == []
            assert live.page.evaluate(chromium.UNNAMED) == []


def test_the_token_is_asked_for(browser: Browser, bundles: list[Path]) -> None:
    with (
        running.server(bundles[0], token="a-token-of-sixteen-or-more") as (client, _),
        chromium.tab(browser, str(client.base_url)) as live,
    ):
        page = live.page
        page.locator("dialog input").fill("wrong")
        page.keyboard.press("Enter")
        live.until("document.querySelector('dialog[open] h2')?.textContent === 'This token is not accepted'")
        page.locator("dialog[open] input").fill("a-token-of-sixteen-or-more")
        page.keyboard.press("Enter")
        live.until("window.vitshap.models.length === 1")
