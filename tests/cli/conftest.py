from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from spark_segments.cli import main
from tests.browser import Browser


@dataclass(frozen=True)
class Ran:
    """What a command did: its exit code and what it wrote."""

    code: int
    output: bytes
    error: str

    @property
    def text(self) -> str:
        return self.output.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.output)


Segments = Callable[..., Ran]


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Segments:
    """Runs `segments` with arguments, as the console script does, in this process."""
    monkeypatch.setenv("COLUMNS", "80")

    def run_command(*arguments: object, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        output, error = capsysbinary.readouterr()
        return Ran(exit_info.value.code or 0, output, error.decode())

    return run_command


@pytest.fixture
def segments(run: Segments) -> Segments:
    """As `run`, for commands that are to succeed."""

    def succeed(*arguments: object, stdin: bytes = b"") -> Ran:
        ran = run(*arguments, stdin=stdin)
        assert ran.code == 0, ran.error
        return ran

    return succeed


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One chromium for all tests, installed first where it is missing and can be."""
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()
