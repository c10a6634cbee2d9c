"""A topic at a version of its manifest: the start of every read and every plan.

A snapshot never changes and can be pickled. Its segment rows are read at their first use. topic_log.py makes snapshots
of topics; kafka/directory.py makes snapshots of a directory that Kafka wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import READ_COMMITTED, READ_UNCOMMITTED
from spark_segments.errors import InvalidOptionError, UnknownTopicError
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.files.row_files import RowFile, RowFiles, concat
from spark_segments.log.manifest.role import check_role, role_name
from spark_segments.log.manifest.rows import SEGMENT_SCHEMA, Partition, Segment
from spark_segments.log.manifest.schemas import SEGMENT_KIND
from spark_segments.log.manifest.topic_row import TopicRow

if TYPE_CHECKING:
    from spark_segments.format.sidecars.txn_index import AbortedTransactions


FILES_AT_A_TIME = 16
"""How many files are in memory together where only some of their rows are wanted."""


class SegmentSource(Protocol):
    """The source of a snapshot's segment rows."""

    def read(self, partitions: Collection[int] | None) -> pa.Table:
        """Rows of these partitions (None: of all) in SEGMENT_SCHEMA, in any order, of any topic id."""


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Segment rows in files of the manifest."""

    store: RowFiles
    files: Sequence[RowFile]

    def read(self, partitions: Collection[int] | None) -> pa.Table:
        numbers = None if partitions is None else sorted(partitions)
        files = [file for file in self.files if numbers is None or file.may_hold(numbers)]
        # Merged files have their rows in order: reading the files in that order saves the sort.
        files.sort(key=lambda file: (file.bounds["partition"], file.bounds["base_offset"]))
        try:
            tables = self.store.read_all(files) if numbers is None else list(self._of_partitions(files, numbers))
        except FileNotFoundError as error:
            raise rows_are_gone(self.store) from error
        return concat(tables, SEGMENT_KIND)

    def _of_partitions(self, files: Sequence[RowFile], partitions: Sequence[int]) -> Iterator[pa.Table]:
        """The rows of some partitions, file by file: files that are not sorted yet hold rows of all others, too."""
        numbers = pa.array(partitions, pa.int32())
        for start in range(0, len(files), FILES_AT_A_TIME):
            for rows in self.store.read_all(files[start : start + FILES_AT_A_TIME]):
                yield rows.filter(pc.is_in(rows.column("partition"), numbers))


def rows_are_gone(store: RowFiles) -> InvalidOptionError:
    """The error for a version whose files of rows vacuum has taken since it was opened."""
    return InvalidOptionError(
        "The rows of this version of the topic are not there any more",
        path=store.storage.location(store.directory),
        hint="Vacuum has taken them: load the topic again, or ask for a newer version",
    )


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Segment rows in memory."""

    rows: pa.Table

    def read(self, partitions: Collection[int] | None) -> pa.Table:
        if partitions is None:
            return self.rows
        return self.rows.filter(pc.is_in(self.rows.column("partition"), pa.array(sorted(partitions), pa.int32())))


NO_ROWS = SegmentRows(pa.Table.from_batches([], SEGMENT_SCHEMA))  # the schema's own empty table imports pandas


@dataclass(frozen=True)
class Snapshot:
    """A topic at a version of its manifest.

    `config`: the topic's own settings, without defaults. `committed_ms`: when the last commit wrote its rows, by the
    clock of the machine that did. `partitions`: rows of PARTITION_SCHEMA by partition. `deleted_ms`: when the topic was
    deleted, None while it is there. `deleted_topics`, `states`: as in `TopicRow`.

    Sidecar files that Kafka wrote may be missing or wrong. What a scan of the .log found is in memory in their place,
    by the path of the .log: `offset_indexes`, (relative offset int32[], position int32[]); `aborted`, the transactions
    whose marker is in the file.
    """

    topic: str
    version: int
    topic_id: str
    config: dict[str, str]
    committed_ms: int
    partitions: pa.Table
    source: SegmentSource = NO_ROWS
    deleted_ms: int | None = None
    offset_indexes: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    aborted: Mapping[str, AbortedTransactions] = field(default_factory=dict)
    deleted_topics: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        # Cached rows can be read again, and would make the pickle as large as the topic.
        return {name: value for name, value in self.__dict__.items() if name in self.__dataclass_fields__}

    def holding(self, segments: pa.Table, partitions: pa.Table | None = None) -> Self:
        """The same version with these rows of segments, and of partitions where they are given."""
        partitions = self.partitions if partitions is None else partitions
        return dataclasses.replace(self, partitions=partitions, source=SegmentRows(segments))

    @property
    def topic_row(self) -> TopicRow:
        """The topic's own row. A change of the topic begins from it, so that what the change does not name stays."""
        return TopicRow(self.topic_id, self.config, self.deleted_ms, self.deleted_topics, self.states)

    @property
    def role(self) -> str:
        """What the topic is among its copies: "leader", "follower" or "fenced". Raises LogDirError as `role_name`."""
        return role_name(self.states)

    def check_role(self, operation: str) -> None:
        """Raises NotLeaderError where the topic does not take a commit of this operation.

        Every try of a commit asks this. Whatever writes much before its commit asks it before that, too.
        """
        check_role(self.topic, self.states, operation)

    @cached_property
    def segments(self) -> pa.Table:
        """All rows of this topic id (removed rows too), in SEGMENT_SCHEMA, in log order."""
        return self.load_segments()

    @cached_property
    def live(self) -> pa.Table:
        """The rows that are the log: all rows that are neither removed nor being deleted."""
        return row_tables.live(self.segments)

    @property
    def removed_bytes(self) -> int:
        """Bytes of .log files that have left the log and wait for vacuum: on the disk beside the files of `live`."""
        total, live = (pc.sum(rows.column("log_bytes")).as_py() or 0 for rows in (self.segments, self.live))
        return int(total - live)

    def load_segments(self, partitions: Collection[int] | None = None) -> pa.Table:
        """As `segments`, of these partitions only, read afresh from the files that can hold such rows."""
        rows = self.source.read(partitions)
        others = pc.not_equal(rows.column("topic_id"), self.topic_id)
        if pc.any(others).as_py():
            rows = rows.filter(pc.invert(others))
        return row_tables.in_log_order(rows)

    def narrowed(self, partitions: Collection[int]) -> Self:
        """The same version of the topic with the segment rows of these partitions alone, which are read here.

        A read of few partitions then costs what those have, not what the topic has. It is this snapshot itself where
        its rows are in memory already, or where these are all of its partitions.

        Statistics that another writer got wrong hide rows: the rows of a partition have a gap then, and all rows of the
        topic are read.
        """
        if "segments" in self.__dict__ or len(partitions) >= self.partitions.num_rows:
            return self
        narrowed = self.holding(self.source.read(partitions))
        if all(narrowed._has_all_rows(number) for number in partitions):
            return narrowed
        return self

    def _has_all_rows(self, partition: int) -> bool:
        """Whether the live rows of a partition cover its log from start to end without a gap."""
        row = self.partition(partition)
        if row.log_start_offset == row.log_end_offset:
            return True
        live = self.live_table(partition)
        base, following = (live.column(name).to_numpy() for name in ("base_offset", "next_offset"))
        if not len(base) or base[0] > row.log_start_offset or following[-1] < row.log_end_offset:
            return False
        return bool((base[1:] == following[:-1]).all())

    def live_table(self, partition: int) -> pa.Table:
        """The rows of `live` of a partition. The first call loads the rows of all partitions."""
        numbers = self.live.column("partition").to_numpy()
        start, end = np.searchsorted(numbers, np.array([partition, partition + 1], np.int32))
        return self.live.slice(start, end - start)

    def live_of(self, partition: int) -> list[Segment]:
        """As `live_table`, as values."""
        return Segment.of_table(self.live_table(partition))

    @property
    def partition_rows(self) -> list[Partition]:
        """The rows of all partitions, as values."""
        return Partition.of_table(self.partitions)

    def partition(self, number: int) -> Partition:
        """A partition's row. Raises UnknownTopicError where the topic has no such partition."""
        row = self.partitions.filter(pc.equal(self.partitions.column("partition"), number))
        if not row.num_rows:
            count = self.partitions.num_rows
            raise UnknownTopicError(f"Topic {self.topic} has no partition {number}", hint=f"It has {count} of them")
        return Partition.of_table(row)[0]

    def check_partition(self, partition: int) -> None:
        """Raises UnknownTopicError unless the topic has that partition."""
        numbers = self.partitions.column("partition").to_pylist()  # to_numpy() would import pandas
        if partition in numbers:
            return
        dense = numbers == list(range(len(numbers)))  # Kafka's directory may lack some partitions
        expected = f"0 to {len(numbers) - 1}" if dense else f"one of {', '.join(map(str, numbers[:20]))}"
        raise UnknownTopicError(f"Topic {self.topic} has no such partition", expected=expected, found=partition)

    def offset_bounds(self, isolation_level: str = READ_UNCOMMITTED) -> dict[int, tuple[int, int]]:
        """{partition: (log start offset, end)}: the log end, or with read_committed the last stable offset.

        As in Kafka, the end is never below the log start, even where a row of an older version of this package says so.
        """
        names = ("partition", "log_start_offset", "log_end_offset", "last_stable_offset")
        rows = zip(*(self.partitions.column(name).to_pylist() for name in names), strict=True)
        if isolation_level != READ_COMMITTED:
            return {partition: (start, end) for partition, start, end, _ in rows}
        return {partition: (start, max(start, min(end, stable))) for partition, start, end, stable in rows}
