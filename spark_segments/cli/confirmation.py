"""What a command that takes something away says first, what it asks, and what brings back what it took."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable

import typer

from spark_segments.errors import escaped


def asks(yes: bool) -> bool:
    """Whether a question is put: on a terminal, unless `yes`. A script is not asked."""
    return sys.stdin.isatty() and not yes


def confirm(question: str, yes: bool, preview: Callable[[], object] | None = None) -> None:
    """Shows the preview and asks, where there is somebody to be asked. A no ends the command with exit code 1."""
    if asks(yes):
        if preview is not None:
            with contextlib.redirect_stdout(sys.stderr):
                preview()
        typer.confirm(escaped(question, one_line=True), abort=True, err=True)


def print_way_back(log_dir: str, topic: str, version: int, *options: str, delay: str | None = None) -> None:
    """Says on standard error which command returns a topic to `version`, and until when. `delay`: file.delete.delay.ms
    in words.
    """
    command = shlex.join(["segments", "topic", "restore", log_dir, topic, "--version", str(version), *options])
    when = "" if delay is None else f", {delay} from now at the earliest"
    print(f"Until vacuum deletes the files{when}, {command} brings it back.", file=sys.stderr)
