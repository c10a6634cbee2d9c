"""The offset map of a replay: which offset a record has in the cluster that it was sent to.

A transaction's records are a Parquet file, `_replay/<name>/<topic there>/<20 digits>.parquet`, with the columns
partition, old_offset and new_offset, and new_partition where records went to other partitions by their keys. It is made
before the transaction is committed: so the last file alone can be of a transaction that was not, and `settle` deletes
it then.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_segments.errors import CommitConflictError
from spark_segments.storage import Storage
from spark_segments.storage.numbered_files import NumberedFiles, directory_name

DIRECTORY = "_replay"
SCHEMA = pa.schema([("partition", pa.int32()), ("old_offset", pa.int64()), ("new_offset", pa.int64())])

_NEW_PARTITION = pa.field("new_partition", pa.int32())

Moved = Mapping[tuple[int, int], tuple[Sequence[int], Sequence[int]]]
"""{(partition, partition there): (old offsets, new offsets)}"""


class ReplayedOffsets:
    """The files of a topic there. Not for many threads."""

    def __init__(self, storage: Storage, name: str, topic: str) -> None:
        self._files = NumberedFiles(storage, f"{DIRECTORY}/{directory_name(name)}/{topic}", ".parquet")
        self._next: int | None = None

    def settle(self, positions: Mapping[int, int]) -> None:
        """Deletes the files of transactions that were not committed. `positions`: {partition: next old offset}."""
        numbers = sorted(self._files.listing().numbers)
        while numbers and not _is_below(self._read(numbers[-1]), positions):
            self._files.storage.delete(self._files.path(numbers.pop()))
        self._next = numbers[-1] + 1 if numbers else 1

    def add(self, moved: Moved) -> None:
        """Makes the file of a transaction. Raises CommitConflictError where another replay has made it."""
        assert self._next is not None, "the map is settled first"
        schema = SCHEMA
        columns = [
            np.concatenate([np.full(len(old), number, np.int32) for (number, _), (old, _) in moved.items()]),
            np.concatenate([np.asarray(old, np.int64) for old, _ in moved.values()]),
            np.concatenate([np.asarray(new, np.int64) for _, new in moved.values()]),
        ]
        if any(number != partition for number, partition in moved):
            schema = SCHEMA.append(_NEW_PARTITION)
            columns.append(
                np.concatenate([np.full(len(old), partition, np.int32) for (_, partition), (old, _) in moved.items()])
            )
        buffer = io.BytesIO()
        pq.write_table(
            pa.table(columns, schema=schema),
            buffer,
            compression="zstd",
            use_dictionary=False,
            column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names},
        )
        try:
            self._files.create(self._next, buffer.getvalue())
        except FileExistsError:
            raise CommitConflictError(
                "Another replay of this name has begun meanwhile",
                path=self._files.storage.location(self._files.path(self._next)),
                hint="One replay of a name at a time: run it again, or give this one another name",
            ) from None
        self._next += 1

    def new_offsets(self, positions: Mapping[int, int]) -> dict[int, int]:
        """{partition: offset there} of the first record at or above a position; behind the last one where there is
        none; no entry for a partition without records.
        """
        offsets: dict[int, int] = {}
        behind: dict[int, int] = {}
        for file in sorted(self._files.listing().numbers):
            table = self._read(file)
            partitions, old, new = (table.column(name).to_numpy() for name in SCHEMA.names)
            for number in positions.keys() & set(partitions.tolist()):
                here = partitions == number
                at = int(np.searchsorted(old[here], positions[number]))
                if number not in offsets and at < here.sum():
                    offsets[number] = int(new[here][at])
                behind[number] = int(new[here][-1]) + 1
        return behind | offsets

    def unread_offsets(self, positions: Mapping[int, int]) -> dict[int, int]:
        """{partition there: offset} of the first record there that lay at or above its partition's position, or in a
        partition without one; behind the last one where there is none. Nothing that was not read is below.
        """
        unread: dict[int, int] = {}
        behind: dict[int, int] = {}
        for file in sorted(self._files.listing().numbers):
            table = self._read(file)
            partitions, old, new = (table.column(name).to_numpy() for name in SCHEMA.names)
            is_moved = _NEW_PARTITION.name in table.column_names
            new_partitions = table.column(_NEW_PARTITION.name).to_numpy() if is_moved else partitions
            is_unread = old >= np.array([positions.get(number, 0) for number in partitions.tolist()], np.int64)
            for number in set(new_partitions.tolist()):
                here = new_partitions == number
                behind[number] = max(behind.get(number, 0), int(new[here].max()) + 1)
                if (here & is_unread).any() and number not in unread:
                    unread[number] = int(new[here & is_unread].min())
        return behind | unread

    def _read(self, number: int) -> pa.Table:
        return pq.read_table(pa.BufferReader(self._files.storage.read(self._files.path(number))))


def _is_below(table: pa.Table, positions: Mapping[int, int]) -> bool:
    partitions, old = (table.column(name).to_numpy() for name in SCHEMA.names[:2])
    return all(old[partitions == number].max() < positions.get(number, 0) for number in set(partitions.tolist()))
