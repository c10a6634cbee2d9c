"""The error of a codec for a value that does not fit its format; batches.py adds the record's place."""

from __future__ import annotations


class Undecodable(Exception):
    """A value does not fit its format. `row` is its place among the rows given, where the codec knows it."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row
