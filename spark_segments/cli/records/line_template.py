r"""The template of `consume -f`, in the letters of kcat: `%t %p %o %T %k %s %h\n`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.cli.records.lines import Shown, header_texts, timestamps_ms
from spark_segments.errors import InvalidOptionError

_PIECE = re.compile(r"%(?P<letter>.)|\\(?P<escape>x[0-9a-fA-F]{2}|.)|(?P<text>[^%\\]+)|(?P<rest>.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def _lengths(column: pa.Array) -> pa.Array:
    return pc.binary_length(column).fill_null(-1)


def _size_bytes(records: pa.RecordBatch) -> pa.Array:
    """The values' lengths as four bytes each, the highest first."""
    sizes = _lengths(records["value"]).to_numpy().astype(">i4")
    return pa.Array.from_buffers(pa.binary(4), len(sizes), [None, pa.py_buffer(sizes)])


# What kcat has, and %v and %V, which people expect for the value. Nulls are empty, of length -1.
_LETTERS: dict[str, Callable[[pa.RecordBatch], pa.Array | bytes]] = {
    "t": lambda records: records["topic"],
    "p": lambda records: records["partition"],
    "o": lambda records: records["offset"],
    "T": timestamps_ms,
    "k": lambda records: records["key"],
    "K": lambda records: _lengths(records["key"]),
    "s": lambda records: records["value"],
    "S": lambda records: _lengths(records["value"]),
    "v": lambda records: records["value"],
    "V": lambda records: _lengths(records["value"]),
    "R": _size_bytes,
    "h": lambda records: header_texts(records["headers"], b"=", b"NULL"),
    "%": lambda records: b"%",
}


@dataclass(frozen=True, slots=True)
class LineTemplate:
    """The pieces of a template: literal bytes, and what is written of each record."""

    pieces: tuple[bytes | Callable[[pa.RecordBatch], pa.Array | bytes], ...]

    @classmethod
    def of(cls, text: str) -> LineTemplate:
        """Raises InvalidOptionError for a letter or an escape that does not exist."""
        pieces: list[bytes | Callable[[pa.RecordBatch], pa.Array | bytes]] = []
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

    def parts(self, records: pa.RecordBatch, shown: Shown) -> list[pa.Array | bytes]:
        """What a line consists of, as the template says; what is of the record as `shown` has it."""
        return [
            piece if isinstance(piece, bytes) else part if isinstance(part := piece(records), bytes) else shown(part)
            for piece in self.pieces
        ]
