"""Reading the files that a snapshot names, some of which may be gone by the time they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_segments.errors import CorruptBatchError, MissingFileError
from spark_segments.format.sidecars.index import parse_offset_index, parse_time_index
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index
from spark_segments.log.manifest.rows import Segment
from spark_segments.storage import Storage


def read_file(
    storage: Storage,
    path: str,
    offset: int = 0,
    length: int | None = None,
    *,
    writable: bool = False,
    ranges: Sequence[tuple[int, int]] = (),
) -> pa.Buffer:
    """As `Storage.read`. Raises MissingFileError where the file is gone."""
    try:
        if ranges:
            return storage.read(path, writable=writable, ranges=ranges)
        return storage.read(path, offset, length, writable=writable)
    except FileNotFoundError as error:
        raise missing_file(storage.location(path)) from error


def read_index(storage: Storage, segment: Segment) -> tuple[np.ndarray, np.ndarray]:
    """The .index of a segment as `parse_offset_index` gives it. Raises CorruptBatchError, or MissingFileError."""
    byte_position = segment.index_position or 0
    data = read_file(storage, segment.index_path, byte_position, segment.index_bytes)
    with errors_from(byte_position):
        return parse_offset_index(data, path=segment.index_path)


def read_time_index(storage: Storage, segment: Segment) -> tuple[np.ndarray, np.ndarray]:
    """The .timeindex of a segment as `parse_time_index` gives it. Raises CorruptBatchError, or MissingFileError."""
    byte_position = segment.time_index_position
    data = read_file(storage, segment.time_index_path, byte_position, segment.time_index_bytes)
    with errors_from(byte_position):
        return parse_time_index(data, path=segment.time_index_path)


@contextlib.contextmanager
def errors_from(byte_position: int) -> Iterator[None]:
    """Errors within, whose positions count from byte `byte_position` of a file, get positions of the file."""
    try:
        yield
    except CorruptBatchError as error:
        error.byte_position = byte_position + (error.byte_position or 0)
        raise


def read_txn_index(storage: Storage, path: str, size_bytes: int, offset_shift: int) -> AbortedTransactions:
    """The aborted transactions of a .txnindex, at offsets of the log; none where its row gives it no bytes.

    `offset_shift` is added to the offsets of the file. Raises CorruptBatchError for a damaged file, MissingFileError
    where it is gone.
    """
    if not size_bytes:
        return AbortedTransactions.of()
    return parse_txn_index(read_file(storage, path, 0, size_bytes), path=path).shifted(offset_shift)


def missing_file(path: str | None) -> MissingFileError:
    """The error for a file that a snapshot names and that is not there."""
    return MissingFileError(
        "A file that the log named when it was loaded is gone",
        path=path,
        hint="Vacuum deletes files file.delete.delay.ms after they left the log. Load the topic again, and raise that "
        "setting where reads take longer. A file that is still missing was lost: run segments verify",
    )
