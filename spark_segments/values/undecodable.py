"""What a format's reader raises for bytes that are not what the format says; decode.py adds where they stand."""

from __future__ import annotations


class Undecodable(Exception):
    """A value is not what its format says. `row` is its place among the rows given, where the reader knows it."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row
