"""The error of a codec for a value that does not fit its format; batches.py adds the record's place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from spark_segments.errors import reason_of


class Undecodable(Exception):
    """A value does not fit its format. `row` is its place among the rows given, where the codec knows it."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row


@contextlib.contextmanager
def refused_by_arrow() -> Iterator[None]:
    """Makes Undecodable of what Arrow says of a value: text that is not UTF-8, a number or a time out of range."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise Undecodable(reason_of(error)) from None
