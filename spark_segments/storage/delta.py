"""What every Delta table has: actions as JSON, and errors of delta-rs in a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

Action = dict[str, Any]
"""An action: one member, whose name says what it is."""

_STACK = re.compile(r"\n+\s*(?:Backtrace:\s*|stack backtrace:\s*)?0: .*", re.DOTALL)
_OPEN_FILES = re.compile(r"too many open files|os error 2[34]\b", re.IGNORECASE)
_DRAWING = re.compile(r"\x1b\[[0-9;]*m|↳")


def encoded(actions: Iterable[Action]) -> bytes:
    """The content of a commit's file."""
    return "\n".join(map(json.dumps, actions)).encode()


def commit_info(actions: Iterable[Action]) -> dict[str, Any]:
    """The commitInfo action of a commit: its timestamp, id and operation."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def paths_of(actions: Iterable[Action], action: str) -> list[str]:
    """The paths that a commit's `add` or `remove` actions name, relative to the table."""
    return [unquote(entry[action]["path"]) for entry in actions if action in entry]


def reason(error: BaseException | None) -> str:
    """The error in a single line: delta-rs draws trees in colour, and adds a stack where RUST_BACKTRACE is set."""
    text = _STACK.sub("", _DRAWING.sub("", str(error)))
    return " ".join(text.split()) or type(error).__name__


def hint_after(error: BaseException, hint: str) -> str:
    """`hint`, but for errors at the limit of open files, which only the text of delta-rs's error shows."""
    return "Raise the limit of open files (ulimit -n), then run it again" if _OPEN_FILES.search(str(error)) else hint
