"""A real browser, asked through its debugging pipe: no driver, no package, only Chromium itself."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next((path for name in NAMES if (path := shutil.which(name))), None)
DESKTOP, PHONE = (1280, 900), (390, 844)


class Page:
    """One tab: what it asked the network for, what it complained of, and how to question it."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer, self._number, self._session = b"", 0, None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer; events that come in between are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, path: Path, *, size: tuple[int, int] = DESKTOP, dark: bool = False) -> None:
        """Load a file in a window of this size, with the system's theme dark or light."""
        width, height = size
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 30
        while self.evaluate("document.readyState") != "complete" or self.evaluate("location.href") == "about:blank":
            assert time.monotonic() < deadline, "the page does not finish loading"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """What a line of JavaScript gives."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def key(self, name: str) -> None:
        """Press and release a key."""
        code = {"Tab": 9, "Enter": 13}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **text)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """The page as it looks."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._receive, 1 << 20)
            assert part, "Chromium has ended"
            self._buffer += part
        first, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" or event == "Log.entryAdded":
            self.complaints.append(str(params.get("args") or params.get("entry")))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Start Chromium without a window; end it whatever happens."""
    assert FOUND is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    command = [FOUND, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]

    def pipes() -> None:  # Chromium reads file descriptor 3 and writes 4
        high_read, high_write = os.dup2(to_read, 100), os.dup2(from_write, 101)
        os.dup2(high_read, 3)
        os.dup2(high_write, 4)

    process = subprocess.Popen(
        command, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(to_write, from_read)
    finally:
        process.terminate()
        process.wait(timeout=20)
        os.close(to_write)
        os.close(from_read)
