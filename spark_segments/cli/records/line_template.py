r"""The template of `consume -f`, in the letters of kcat: `%t %p %o %T %k %s %h\n`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_segments.errors import InvalidOptionError

_PIECE = re.compile(r"%(?P<letter>.)|\\(?P<escape>x[0-9a-fA-F]{2}|.)|(?P<text>[^%\\]+)|(?P<rest>.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _headers(row: dict[str, Any]) -> bytes:
    shown = [
        header["key"].encode() + b"=" + (b"NULL" if header["value"] is None else header["value"])
        for header in row["headers"]
    ]
    return b",".join(shown)


# What kcat has, and %v and %V, which people expect for the value.
_LETTERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "t": lambda row: row["topic"].encode(),
    "p": lambda row: b"%d" % row["partition"],
    "o": lambda row: b"%d" % row["offset"],
    "T": lambda row: b"%d" % row["timestamp"],
    "k": lambda row: row["key"] or b"",
    "K": lambda row: b"%d" % _length(row["key"]),
    "s": lambda row: row["value"] or b"",
    "S": lambda row: b"%d" % _length(row["value"]),
    "v": lambda row: row["value"] or b"",
    "V": lambda row: b"%d" % _length(row["value"]),
    "R": lambda row: _length(row["value"]).to_bytes(4, "big", signed=True),
    "h": _headers,
    "%": lambda row: b"%",
}


@dataclass(frozen=True, slots=True)
class LineTemplate:
    """The pieces of a template: literal bytes, and what is written of each record."""

    pieces: tuple[bytes | Callable[[dict[str, Any]], bytes], ...]

    @classmethod
    def of(cls, text: str) -> LineTemplate:
        """Raises InvalidOptionError for a letter or an escape that does not exist."""
        pieces: list[bytes | Callable[[dict[str, Any]], bytes]] = []
        for match in _PIECE.finditer(text):
            letter, escape = match["letter"], match["escape"]
            if letter in _LETTERS:
                pieces.append(_LETTERS[letter])
            elif escape is not None and escape[0] == "x" and len(escape) == 3:
                pieces.append(bytes.fromhex(escape[1:]))
            elif escape in _ESCAPES:
                pieces.append(_ESCAPES[escape])
            elif match["text"] is not None:
                pieces.append(match["text"].encode())
            else:
                raise InvalidOptionError(
                    f"The template has {match[0]!r}",
                    expected=f"% and a letter of {', '.join(_LETTERS)}, or an escape: \\n \\r \\t \\0 \\\\ \\xFF",
                    found=text,
                )
        return cls(tuple(pieces))

    def line(self, row: dict[str, Any], shown: Callable[[bytes], bytes] = bytes) -> bytes:
        """A record as the template says; what is of the record as `shown` has it. Nulls are empty, of length -1."""
        return b"".join(piece if isinstance(piece, bytes) else shown(piece(row)) for piece in self.pieces)
