"""How a commit fails, and errors of delta-rs in a line."""

from __future__ import annotations

import re

_STACK = re.compile(r"\n+\s*(?:Backtrace:\s*|stack backtrace:\s*)?0: .*", re.DOTALL)
_OPEN_FILES = re.compile(r"too many open files|os error 2[34]\b", re.IGNORECASE)
_DRAWING = re.compile(r"\x1b\[[0-9;]*m|↳")


class CommitFailedError(Exception):
    """A commit was sent and got no good answer. It may have happened, or may happen yet."""


class CommitNotSentError(CommitFailedError):
    """The file system refused the commit: it has not happened and cannot happen any more."""


class VersionTakenError(CommitFailedError):
    """The version is taken: by another commit, or by this same commit where an earlier reply was lost."""


def reason(error: BaseException | None) -> str:
    """The error in a single line: delta-rs draws trees in colour, and adds a stack where RUST_BACKTRACE is set."""
    text = _STACK.sub("", _DRAWING.sub("", str(error)))
    return " ".join(text.split()) or type(error).__name__


def hint_after(error: BaseException, hint: str) -> str:
    """`hint`, save where the limit of open files was reached, of which delta-rs tells in its text alone."""
    return "Raise the limit of open files (ulimit -n), then run it again" if _OPEN_FILES.search(str(error)) else hint
