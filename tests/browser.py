"""A real browser for the tests: Debian's chromium without a window, told what to do through its DevTools pipe."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-pipe"
)
_INSTALL = "apt-get update && apt-get install -y --no-install-recommends chromium"
_TIMEOUT_S = 300


@functools.cache
def chromium() -> str:
    """The browser's path. Where there is none, it is installed if this is a Debian and we are root."""
    if found := _found():
        return found
    if os.geteuid() == 0 and Path("/etc/debian_version").exists():
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["sh", "-c", _INSTALL], env=environment, check=True, stdout=subprocess.DEVNULL)
    found = _found()
    assert found, f"The page's tests need a browser: install chromium (on Debian, as root: {_INSTALL})"
    return found


def _found() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Tab:
    """A page that has been loaded, at its width and height."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol."""
        return self._browser.call(method, params, self._session)

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression, whatever the page's policy says."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self) -> Image.Image:
        """What is in the window, RGB, once two frames are alike: a page may be drawn in several."""
        last = None
        for _ in range(50):
            picture = self.call("Page.captureScreenshot", format="png")["data"]
            if picture == last:
                return Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
            last = picture
        raise AssertionError("The page never comes to rest")


class Browser:
    """A running chromium; `close` ends it. `directory` is for its profile."""

    def __init__(self, directory: Path) -> None:
        # The pipe is the browser's file 3, for what it reads, and 4, for what it writes: messages end with a zero.
        script = 'exec "$@" 3<&0 4>&1 >/dev/null 2>&1'
        flags = [*_FLAGS.split(), f"--user-data-dir={directory / 'profile'}"]
        command = ["sh", "-c", script, "sh", chromium(), *flags]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._received = b""
        self._numbers = itertools.count(1)

    def close(self) -> None:
        self.call("Browser.close", {})
        self._process.communicate(timeout=_TIMEOUT_S)

    @contextlib.contextmanager
    def open(
        self, page: Path | str, width: int = 1280, height: int = 1000, *, dark: bool = False, script: bool = True
    ) -> Iterator[Tab]:
        """A file or an address in a tab of its own, in the light or dark scheme, with or without scripts."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(self, session)
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.call("Emulation.setScriptExecutionDisabled", value=not script)
        tab.call("Page.enable")
        tab.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self._wait(lambda message: message.get("method") == "Page.loadEventFired" and message["sessionId"] == session)
        yield tab
        self.call("Target.closeTarget", {"targetId": target})

    def call(self, method: str, params: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        """The result of one command of the DevTools protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda message: message.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next message that is wanted; others are of no interest."""
        deadline = time.monotonic() + _TIMEOUT_S
        output = self._process.stdout
        assert output is not None
        while True:
            while b"\0" in self._received:
                text, _, self._received = self._received.partition(b"\0")
                if wanted(message := json.loads(text)):
                    return message
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"The browser has not answered for {_TIMEOUT_S} s"
            received = os.read(output.fileno(), 1 << 20)
            assert received, "The browser has ended"
            self._received += received
