"""The columns that rows to be appended may have, and what a misspelt name may mean."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import pyarrow as pa

from spark_segments.errors import nearest
from spark_segments.format.layout import HEADERS_TYPE, RECORD_SCHEMA

WRITER_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("headers", HEADERS_TYPE),
    ]
)

WRITER_HINT = (
    "A writer takes value (string or binary, required), key (string or binary), topic (string), partition (integer), "
    "timestamp and headers (array of struct key string, value binary)"
)


COLUMNS = frozenset(RECORD_SCHEMA.names)
"""The columns that rows may have: records read from a topic can be appended to another. An append assigns offset and
timestampType itself."""


def no_column(name: str) -> tuple[str, str]:
    """(message, hint) for a column that no record has: with a misspelt name, a key would be lost without a word."""
    close = nearest(name.casefold(), WRITER_SCHEMA.names)
    return f"A record has no column {name!r}", WRITER_HINT if close is None else f"Did you mean {close}?"


def slips(names: Collection[str]) -> dict[str, str]:
    """{a name: the writer's column that it is one slip away from}, where the data lacks that column.

    A slip is a letter too many, too few, another letter, letters in another order, or an upper-case letter.
    """
    lacking = [name for name in WRITER_SCHEMA.names if name not in names]
    pairs = ((name, meant) for name in names if name not in COLUMNS for meant in lacking)
    return {name: meant for name, meant in pairs if _is_slip(name.casefold(), meant)}


def _is_slip(name: str, meant: str) -> bool:
    head = _common(name, meant)
    tail = _common(name[head:][::-1], meant[head:][::-1])
    return sorted(name) == sorted(meant) or max(len(name), len(meant)) - head - tail <= 1


def _common(text: str, other: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda letters: letters[0] == letters[1], zip(text, other, strict=False)))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether this is text or bytes, in any of Arrow's layouts."""
    return any(
        check(kind)
        for check in (
            pa.types.is_binary,
            pa.types.is_string,
            pa.types.is_large_binary,
            pa.types.is_large_string,
            pa.types.is_binary_view,
            pa.types.is_string_view,
            pa.types.is_fixed_size_binary,
        )
    )
