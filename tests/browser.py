"""A real browser for the tests: Debian's chromium, without a window."""

from __future__ import annotations

import base64
import functools
import html
import io
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=5000"
)
_INSTALL = "apt-get update && apt-get install -y --no-install-recommends chromium"
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_FRAME = """<!doctype html><body style="margin:0;overflow:hidden">
<iframe {sandbox} src="{page}" style="border:0;display:block;width:{width}px;height:{height}px"></iframe><pre></pre>
<script>addEventListener("message", (event) => document.querySelector("pre").textContent = event.data)</script>"""


@functools.cache
def chromium() -> str:
    """The browser's path. Where there is none, it is installed if this is a Debian and we are root."""
    if found := _found():
        return found
    if os.geteuid() == 0 and Path("/etc/debian_version").exists():
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["sh", "-c", _INSTALL], env=environment, check=True, timeout=480, stdout=subprocess.DEVNULL)
    found = _found()
    assert found, f"The page's tests need a browser: install chromium (on Debian, as root: {_INSTALL})"
    return found


def _found() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class Browser:
    """Opens a page in a frame of any width: a window of its own cannot be as narrow as a phone.

    `directory` is for profiles and copies of pages, each run's its own.
    """

    directory: Path

    def picture(self, page: Path, width: int, height: int, *, dark: bool = False, script: bool = True) -> Image.Image:
        """What the page looks like, RGB."""
        run = self._directory()
        frame = run / "frame.html"
        sandbox = "" if script else "sandbox"
        frame.write_text(_FRAME.format(page=page.resolve().as_uri(), width=width, height=height, sandbox=sandbox))
        target = run / "picture.png"
        self._run(frame, run, width, height, dark, f"--screenshot={target}")
        return Image.open(io.BytesIO(target.read_bytes())).convert("RGB").crop((0, 0, width, height))

    def ask(self, page: Path, script: str, width: int = 1280, height: int = 1000) -> Any:
        """What the JavaScript expression `script` is, once the page's own scripts have run."""
        run = self._directory()
        copy, frame = run / "page.html", run / "frame.html"
        probe = f"<script>parent.postMessage(JSON.stringify({script}), '*')</script></body>"
        text, count = _POLICY.subn("", page.read_text(encoding="utf-8"))
        assert count == 1
        copy.write_text(text.replace("</body>", probe), encoding="utf-8")
        frame.write_text(_FRAME.format(page=copy.as_uri(), width=width, height=height, sandbox=""))
        document = self._run(frame, run, width, height, False, "--dump-dom")
        found = re.search("<pre>(.+)</pre>", document, re.DOTALL)
        assert found, f"The page gave no answer to {script}"
        return json.loads(html.unescape(found[1]))

    def document(self, page: Path) -> str:
        """The page's own DOM as HTML, with its scripts and its policy as they are."""
        run = self._directory()
        return self._run(page.resolve(), run, 1280, 1000, False, "--dump-dom")

    def _directory(self) -> Path:
        run = self.directory / base64.b32encode(os.urandom(10)).decode()
        run.mkdir()
        return run

    @staticmethod
    def _run(page: Path, run: Path, width: int, height: int, dark: bool, *arguments: str) -> str:
        done = subprocess.run(
            [
                chromium(), *_FLAGS.split(), f"--user-data-dir={run / 'profile'}",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                f"--window-size={max(width, 500)},{height}", *arguments, page.as_uri(),
            ],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout
