"""Rows of a topic's manifest: those of a log, those that a test writes by itself, and commits of them by hand.

What the face says of them is in `Topic.describe` and `Topic.history`; which files hold which records is here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_segments import LogDir
from spark_segments.log.appending.append import append_plan, appended_offsets
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.files import row_files
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.row_tables import in_log_order
from spark_segments.log.manifest.rows import SEGMENT_SCHEMA, Partition, Segment
from spark_segments.log.manifest.state.snapshot import SegmentRows, Snapshot
from spark_segments.log.manifest.topic_row import TopicRow, topic_of, topic_table
from spark_segments.log.manifest.transaction import Transaction
from verification.world.small_limits import small_limits

__all__ = [
    "SEGMENT_SCHEMA",
    "Change",
    "Manifest",
    "Partition",
    "Segment",
    "SegmentRows",
    "Snapshot",
    "TopicRow",
    "Transaction",
    "commit_append",
    "every_row",
    "forget_rows",
    "in_log_order",
    "live_rows",
    "of_format",
    "of_version_1",
    "removed_by_retention",
    "respell",
    "topic_of",
    "topic_table",
    "without_partition",
    "write_rows",
]


def commit_append(
    manifest: Manifest, chunks: Sequence[Segment], txn: tuple[str, int] | None = None
) -> dict[int, tuple[int, int]]:
    """Appends chunks to their partitions, as a writer's driver does. Returns {partition: (first, last offset)}."""
    segments = [chunk for chunk in chunks if chunk.records]
    if not segments and txn is None:
        return {}
    return appended_offsets(manifest.commit(append_plan(manifest, segments, (), {}), txn=txn))


def live_rows(log: LogDir, topic: str) -> list[Segment]:
    """The segments and chunks that are in the log of a topic now, partition by partition, by offset."""
    return Segment.of_table(log.topic(topic).snapshot.live)


def every_row(log: LogDir, topic: str) -> list[Segment]:
    """All rows of segments of a topic, deleted or not: those too that wait for vacuum."""
    return Segment.of_table(log.topic(topic).manifest.snapshot(deleted=True).source.read(None))


def write_rows(store: row_files.RowFiles, kind: str, rows: pa.Table) -> row_files.RowFile:
    """The file of rows that was written for a commit, which has not come."""
    [encoded] = store.encode_all(kind, rows)
    store.storage.write_all(store.named([encoded]), unique=True)
    return encoded[0]


def forget_rows() -> None:
    """Empties what this process keeps of rows: they are read from files again. Rows in memory would prove nothing."""
    cache = row_files._cache
    with cache._lock:
        cache._rows.clear()
        cache._bytes = 0


@contextlib.contextmanager
def of_format(version: int) -> Iterator[None]:
    """Within it this package is one of another format version, which its topic rows say."""
    with small_limits(FORMAT_VERSION=version):
        yield
    forget_rows()


def removed_by_retention(current: Snapshot, rows: Sequence[Segment], removed_ms: int) -> Change:
    """The change by which rows leave the log: it begins behind them."""
    starts = {row.partition: 0 for row in rows}
    for row in rows:
        starts[row.partition] = max(starts[row.partition], row.next_offset)
    partitions = [replace(current.partition(number), log_start_offset=start) for number, start in starts.items()]
    return Change("retain", replace=[row.removed(removed_ms) for row in rows], partitions=partitions)


def of_version_1(manifest: Manifest, *kinds: str) -> None:
    """Makes a topic, or its rows of these kinds, of version 1: they lack the columns that came with version 2."""
    if not kinds:
        with of_format(1):
            manifest.commit(lambda at: Change("alter", topic=at.topic_row))
    later = ["deleted_topics", "states", "position", "index_position"]
    for file in [file for file in manifest.log.open().files if not kinds or file.kind in kinds]:
        path = f"{manifest.storage.location(manifest.log.directory)}/{file.path}"
        rows = pq.ParquetFile(path).read()
        pq.write_table(rows.drop_columns([name for name in later if name in rows.column_names]), path)
    forget_rows()


def without_partition(log: LogDir, topic: str, partition: int) -> None:
    """Takes the row of a partition out of the files themselves: no commit leaves segments without it."""
    for file in Path(log.uri, "_manifest", topic, "kind=partition").glob("*.parquet"):
        rows = pq.read_table(file, partitioning=None)
        pq.write_table(rows.filter(pc.not_equal(rows.column("partition"), partition)), file)
    forget_rows()


def respell(log: LogDir, topic: str, spelt: Callable[[str], str]) -> None:
    """Changes the paths of a topic's rows in the files themselves: no commit of this package takes such paths."""
    for file in Path(log.uri, "_manifest", topic, "kind=segment").glob("*.parquet"):
        rows = pq.read_table(file, partitioning=None)
        at = rows.schema.get_field_index("path")
        paths = pa.array([spelt(path) for path in rows.column("path").to_pylist()])
        pq.write_table(rows.set_column(at, rows.schema.field(at), paths), file)
    forget_rows()
