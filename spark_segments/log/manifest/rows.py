"""Rows of segments and of partitions, as Arrow columns and as values.

manifest.py reads and commits them. Large topics stay in Arrow tables; `Segment` and `Partition` are for the few rows
that a plan looks at or makes. topic_row.py and transaction.py have the other kinds, schemas.py what the files
hold.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import LONGEST_NAME
from spark_segments.errors import LogDirError
from spark_segments.format.file_names import (
    BASE_OFFSET_DIGITS,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)

_FILE_NAME = rf"/[0-9]{{{BASE_OFFSET_DIGITS}}}(\.[A-Za-z0-9_-]+)?\.log$"

_LEADER_EPOCHS = pa.list_(pa.struct([pa.field("epoch", pa.int32()), pa.field("start_offset", pa.int64())]))

SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("base_offset", pa.int64()),
        pa.field("next_offset", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("file_base_offset", pa.int64()),
        pa.field("log_bytes", pa.int64()),
        pa.field("index_bytes", pa.int64()),
        pa.field("time_index_bytes", pa.int64()),
        pa.field("txn_index_bytes", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("batches", pa.int64()),
        pa.field("first_batch_max_timestamp_ms", pa.int64()),
        pa.field("max_timestamp_ms", pa.int64()),
        pa.field("offset_of_max_timestamp", pa.int64()),
        pa.field("tombstones", pa.int64()),
        pa.field("delete_horizon_ms", pa.int64()),
        pa.field("created_ms", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("removed_ms", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("index_position", pa.int64()),
        pa.field("min_timestamp_ms", pa.int64()),
    ]
)

PARTITION_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("log_start_offset", pa.int64()),
        pa.field("log_end_offset", pa.int64()),
        pa.field("first_dirty_offset", pa.int64()),
        pa.field("last_stable_offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("leader_epochs", _LEADER_EPOCHS),
        pa.field("producer_snapshot", pa.binary()),
    ]
)


class Sidecar(NamedTuple):
    """A file beside a segment's .log, and how many bytes of it are the segment's."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of record batches in a file, or the part of it that [base_offset, next_offset) names, and its sidecars.

    `path` is relative to the log directory. `base_offset`, `next_offset` (exclusive) and `offset_of_max_timestamp` are
    offsets of the log; `file_base_offset` is the offset in the file's bytes that stands for `base_offset`. -1 as a
    timestamp, or as the offset of a timestamp, means that no record has a timestamp. `delete_horizon_ms` is the
    earliest delete horizon of the file's batches, None where no batch has a horizon.

    Most rows have a `.log` file to themselves: `byte_position`, the column `position` of the manifest, is 0 then, and
    `index_position` None. A shared object holds the runs of many rows: the row's batches lie at [byte_position,
    +log_bytes), its .index entries at [index_position, +index_bytes), and its .timeindex entries right after these.
    Such a row has no .txnindex.

    `min_timestamp_ms`: no record of the file has a timestamp below it, none is a control record, and all are in the
    row; None where that is not known.
    """

    topic_id: str
    partition: int
    base_offset: int
    next_offset: int
    path: str
    file_base_offset: int
    log_bytes: int
    index_bytes: int
    time_index_bytes: int
    txn_index_bytes: int
    records: int
    batches: int
    first_batch_max_timestamp_ms: int
    max_timestamp_ms: int
    offset_of_max_timestamp: int
    tombstones: int
    delete_horizon_ms: int | None
    created_ms: int
    state: str
    removed_ms: int | None = None
    byte_position: int = 0
    index_position: int | None = None
    min_timestamp_ms: int | None = None

    CHUNK: ClassVar = "chunk"
    """The state of a segment's file that a writer has appended since the last roll: part of the active segment."""

    SEALED: ClassVar = "sealed"
    """Rolled, compacted or imported: never the active segment."""

    REMOVED: ClassVar = "removed"
    """Out of the log; the file stays for readers of earlier snapshots until vacuum takes it."""

    DELETING: ClassVar = "deleting"
    """Out of the log, and vacuum has begun to delete the file: nothing takes the row back."""

    @classmethod
    def of_table(cls, table: pa.Table) -> list[Segment]:
        """The rows of a table as values."""
        return [cls(*row) for row in _rows(table, SEGMENT_SCHEMA)]

    @staticmethod
    def table(segments: Iterable[Segment]) -> pa.Table:
        """Rows of SEGMENT_SCHEMA in the order given."""
        return _table(list(segments), Segment, SEGMENT_SCHEMA)

    @staticmethod
    def new_stem(topic: str, partition: int, base_offset: int) -> str:
        """A path that no other file ever has, without suffix: `<topic>-<partition>/<base offset>.<unique>`."""
        return f"{topic}-{partition}/{base_offset:0{BASE_OFFSET_DIGITS}d}.{uuid.uuid4().hex}"

    @property
    def is_shared(self) -> bool:
        """Whether the file at `path` holds the runs of other rows, too."""
        return self.index_position is not None

    @property
    def identity(self) -> tuple[str, int, int]:
        """(path, partition, byte_position), which no two rows of the manifest share."""
        return self.path, self.partition, self.byte_position

    @property
    def is_full(self) -> bool:
        """Whether each of its offsets is known to have a record that is no control record."""
        return self.min_timestamp_ms is not None and self.records == self.next_offset - self.base_offset

    @property
    def offset_shift(self) -> int:
        """Offset in the log minus offset in the file's bytes."""
        return self.base_offset - self.file_base_offset

    @property
    def name_offset(self) -> int:
        """The number in the file's name. The relative offsets of the index entries count from it."""
        digits = self.path.rpartition("/")[2][:BASE_OFFSET_DIGITS]
        if not (len(digits) == BASE_OFFSET_DIGITS and digits.isascii() and digits.isdecimal()):
            raise LogDirError(
                "A row of the manifest names a file that is no segment's",
                path=self.path,
                expected=f"a name that begins with {BASE_OFFSET_DIGITS} digits",
                hint="Run segments verify",
            )
        return int(digits)

    @property
    def place(self) -> str:
        """The path, and for a run of a shared object its position: `<path>:<position>`. No other live row has it."""
        return f"{self.path}:{self.byte_position}" if self.is_shared else self.path

    @property
    def stem(self) -> str:
        """The path without `.log`."""
        return self.path.removesuffix(LOG_SUFFIX)

    @property
    def end_position(self) -> int:
        """The position in the file behind the row's last batch."""
        return self.byte_position + self.log_bytes

    def sidecars(self) -> dict[str, Sidecar]:
        """The .index, .timeindex and .txnindex, by suffix. A shared object has the first two of each of its runs."""
        return {
            INDEX_SUFFIX: Sidecar(self.index_path, self.index_bytes),
            TIME_INDEX_SUFFIX: Sidecar(self.time_index_path, self.time_index_bytes),
            TXN_INDEX_SUFFIX: Sidecar(self.txn_index_path, self.txn_index_bytes),
        }

    def files(self) -> list[tuple[str, int]]:
        """(path, bytes) of the .log and of its sidecars, without a .txnindex that has no entry."""
        sidecars = self.sidecars()
        if not self.txn_index_bytes:
            del sidecars[TXN_INDEX_SUFFIX]
        return [(self.path, self.log_bytes), *sidecars.values()]

    @property
    def index_path(self) -> str:
        return self.path if self.is_shared else self._sidecar(INDEX_SUFFIX)

    @property
    def time_index_path(self) -> str:
        return self.path if self.is_shared else self._sidecar(TIME_INDEX_SUFFIX)

    @property
    def time_index_position(self) -> int:
        """Where the .timeindex entries begin in the file at `time_index_path`."""
        return 0 if self.index_position is None else self.index_position + self.index_bytes

    @property
    def txn_index_path(self) -> str:
        return self._sidecar(TXN_INDEX_SUFFIX)

    def _sidecar(self, suffix: str) -> str:
        stem, _, rest = self.path.rpartition(LOG_SUFFIX)
        return stem + suffix + rest  # `rest` is `.swap` where Kafka's cleaner crashed, else nothing

    @property
    def is_live(self) -> bool:
        return self.state not in OUT_OF_LOG

    def at(self, base_offset: int) -> Segment:
        """The same file at another place of the log: how a chunk gets its offsets at commit."""
        move = base_offset - self.base_offset
        return dataclasses.replace(
            self,
            base_offset=base_offset,
            next_offset=self.next_offset + move,
            offset_of_max_timestamp=self.offset_of_max_timestamp + move if self.offset_of_max_timestamp >= 0 else -1,
        )

    def removed(self, removed_ms: int) -> Segment:
        """The row once the file has left the log. `removed_ms`: see `row_tables.removed`."""
        return dataclasses.replace(self, state=Segment.REMOVED, removed_ms=removed_ms)


@dataclass(frozen=True, slots=True)
class Partition:
    """The offsets of a partition.

    `leader_epochs` are (epoch, start offset) pairs in order; `producer_snapshot` is the content of Kafka's `.snapshot`
    file at the log end, None where no producer state came with an import.
    """

    topic_id: str
    partition: int
    log_start_offset: int = 0
    log_end_offset: int = 0
    first_dirty_offset: int = 0
    last_stable_offset: int = 0
    leader_epoch: int = 0
    leader_epochs: tuple[tuple[int, int], ...] = ((0, 0),)
    producer_snapshot: bytes | None = None

    @classmethod
    def of_table(cls, table: pa.Table) -> list[Partition]:
        """The rows of a table as values."""
        names = PARTITION_SCHEMA.names
        rows = (dict(zip(names, row, strict=True)) for row in _rows(table, PARTITION_SCHEMA))
        return [cls(**row | {"leader_epochs": _epoch_pairs(row["leader_epochs"])}) for row in rows]

    @staticmethod
    def table(partitions: Iterable[Partition]) -> pa.Table:
        """Rows of PARTITION_SCHEMA in the order given."""
        return _table(list(partitions), Partition, PARTITION_SCHEMA)


OUT_OF_LOG = (Segment.REMOVED, Segment.DELETING)
STATES = (Segment.CHUNK, Segment.SEALED, *OUT_OF_LOG)


def _epoch_pairs(entries: list[dict[str, int]] | None) -> tuple[tuple[int, int], ...]:
    return tuple((entry["epoch"], entry["start_offset"]) for entry in entries or ())


def _table(rows: Sequence[Any], kind: type[Segment | Partition], schema: pa.Schema) -> pa.Table:
    named = zip(kind.__slots__, schema, strict=True)
    columns = [pa.array([getattr(row, name) for row in rows], field.type) for name, field in named]
    return pa.Table.from_arrays(columns, schema=schema)


def _rows(table: pa.Table, schema: pa.Schema) -> Iterator[tuple[Any, ...]]:
    return zip(*(table.column(field.name).to_pylist() for field in schema), strict=True)


def shared_directory(topic: str) -> str:
    """The directory of a topic's shared objects. No partition has this name: those end in a number."""
    name = f"{topic}-shared"
    return name if len(name) <= LONGEST_NAME else f"{topic}-s"


def path_rule(topic: str) -> str:
    """What the paths of a topic's rows are, in words."""
    return f"{topic}-<partition>/<base offset>.<unique>.log, or {shared_directory(topic)}/… for a shared object"


def has_own_path(topic: str, rows: pa.Table) -> pa.ChunkedArray:
    """bool[rows]: whether the path of a row is what the topic's name and the row's partition make of it."""
    own = pc.binary_join_element_wise(topic, rows.column("partition").cast(pa.string()), "-")
    own = pc.if_else(pc.is_valid(rows.column("index_position")), shared_directory(topic), own)
    return pc.equal(pc.replace_substring_regex(rows.column("path"), pattern=_FILE_NAME, replacement=""), own)


def normal_paths(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """string[paths]: the same for all spellings of a file: without `./` and `//`, in small letters."""
    for pattern, replacement in ((r"/(\.?/)+", "/"), (r"^(\.?/)+", "")):
        paths = pc.replace_substring_regex(paths, pattern=pattern, replacement=replacement)
    return pc.ascii_lower(paths)
