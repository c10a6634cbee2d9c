"""Reading the files that a snapshot names, some of which may be gone by the time they are read."""

from __future__ import annotations

import pyarrow as pa

from spark_segments.errors import MissingFileError
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index
from spark_segments.storage import Storage


def read_file(
    storage: Storage, path: str, offset: int = 0, length: int | None = None, *, writable: bool = False
) -> pa.Buffer:
    """As `Storage.read`. Raises MissingFileError where the file is gone."""
    try:
        return storage.read(path, offset, length, writable=writable)
    except FileNotFoundError as error:
        raise missing_file(storage.location(path)) from error


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
