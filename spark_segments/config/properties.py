"""Java's .properties format, as Kafka's configuration files have it: lines of `key=value` and comments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from spark_segments.errors import InvalidOptionError

_PAIR = re.compile(r"((?:\\.|[^\\=:\s])+)(?:\s*[=:]\s*|\s+|$)(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: str | os.PathLike[str]) -> dict[str, tuple[str, int]]:
    """{key: (value, line number)} of a file.

    Raises InvalidOptionError for a file that is missing or no text, and for a key with two different values: nobody
    knows which of the two was meant.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"Cannot read the configuration file ({error})", path=name) from error
    pairs: dict[str, tuple[str, int]] = {}
    for line, number in _logical_lines(text):
        match = _PAIR.match(line)
        if match is None:
            raise InvalidOptionError(f"Line {number} has no key", path=name, expected="key=value", found=repr(line))
        key, value = (_ESCAPE.sub(_unescaped, part).strip() for part in match.groups())
        if key in pairs and pairs[key][0] != value:
            lines = f"Lines {pairs[key][1]} and {number} set {key}"
            raise InvalidOptionError(lines, path=name, expected="one value", found=f"{pairs[key][0]!r} and {value!r}")
        pairs[key] = value, number
    return pairs


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Lines that are neither empty nor comments. A line that ends in an odd number of backslashes takes in the next."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2 == 1:
            line = line[:-1] + next(lines, (0, ""))[1].lstrip()
        yield line, number


def _unescaped(match: re.Match[str]) -> str:
    escaped = match.group(1)
    return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _CONTROL.get(escaped, escaped)
