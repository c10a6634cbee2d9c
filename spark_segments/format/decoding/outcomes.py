"""What kernels take and return: the addresses of columns, how far they are filled, and what was wrong with a record."""

from __future__ import annotations

from typing import NamedTuple

from spark_segments.errors import CorruptBatchError
from spark_segments.format.decoding.fields import (
    BAD_HEADER_COUNT,
    BAD_HEADER_KEY,
    BAD_HEADER_VALUE,
    BAD_KEY,
    BAD_LENGTH,
    BAD_OFFSET,
    BAD_SIZE,
    BAD_VALUE,
    CUT,
    TRAILING,
)


class Binary(NamedTuple):
    """The addresses of an Arrow binary column's buffers, which a kernel fills."""

    wanted: bool
    rows: int  # capacity
    offsets: int  # int32[rows + 1]
    validity: int  # uint8[(rows + 7) // 8]
    data: int  # uint8, with COPY_SLACK bytes of room behind the content
    # Of a column of views, which has neither offsets nor data. 0: the column is none.
    views: int = 0  # Arrow's views, 16 bytes a row
    first_buffer: int = 0  # the number of the group's first buffer among the column's


class HeaderPlaces(NamedTuple):
    """Addresses of arrays that say where each row's headers lie, for `decode_headers`.

    Nothing is filled in before the first row that has headers.
    """

    wanted: bool
    offsets: int  # int32[rows + 1]: headers before each row
    addresses: int  # int64[rows]: of the first header; set only where a row has headers
    ends: int  # int64[rows]: behind the last header; set only where a row has headers


class Filled(NamedTuple):
    """How far the columns are filled: where the next kernel call goes on."""

    rows: int
    key_bytes: int
    value_bytes: int
    null_keys: int
    null_values: int
    headers: int
    header_bytes: int  # upper bound of the bytes of the headers' names and values


class Outcome(NamedTuple):
    """How far the columns are filled after a call; or a problem, its section and record, and expected and found."""

    rows: int
    key_bytes: int
    value_bytes: int
    null_keys: int
    null_values: int
    headers: int
    header_bytes: int
    problem: int
    section: int
    record: int
    expected: int
    found: int


# Problem of a record -> (what the error says, what was expected); "{}" is the kernel's `expected`.
_PROBLEMS = {
    CUT: ("is cut within a number", "varints of at most 5 and 10 bytes"),
    BAD_LENGTH: ("has an impossible length", "6 to {} bytes"),
    BAD_OFFSET: ("has an offset delta that does not rise or is above the batch's last", "at least {}"),
    BAD_KEY: ("has an impossible key length", "-1 to {}"),
    BAD_VALUE: ("has an impossible value length", "-1 to {}"),
    BAD_HEADER_COUNT: ("has an impossible count of headers", "0 to {}"),
    BAD_HEADER_KEY: ("has a header with an impossible name length", "0 to {}"),
    BAD_HEADER_VALUE: ("has a header with an impossible value length", "-1 to {}"),
    BAD_SIZE: ("ends elsewhere than its length says", "{} bytes of headers"),
    TRAILING: ("is followed by bytes that its batch does not count", "{}"),
}


def corrupt(outcome: Outcome, path: str, byte_position: int) -> CorruptBatchError:
    """The error for a kernel's problem; `byte_position` is the batch's byte position in its file."""
    problem, expected = _PROBLEMS[outcome.problem]
    return CorruptBatchError(
        f"Record {outcome.record} of a batch {problem}",
        path=path,
        byte_position=byte_position,
        expected=expected.format(outcome.expected),
        found="more or cut" if outcome.problem == CUT else outcome.found,
    )
