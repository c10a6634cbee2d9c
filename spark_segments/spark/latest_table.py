"""A Delta table of a topic's latest values: a row per key, without the keys that a tombstone has deleted.

Each update merges the records appended since the last update. The commit of the merge carries the table's position in
the log, so an update that is killed, repeated or run beside another leaves the table as a single update would. Where
the log cannot tell every change, as after a restore or when tombstones may be gone, an update compares the table with
the whole view.

Where the Spark session has Delta, delta-spark's MERGE does the work; else delta-rs does it without Spark. The two can
take turns on the same table.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from pyspark.errors import PySparkException

from spark_segments.errors import CommitConflictError
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.change import DEMOTE, MIRROR, RESTORE
from spark_segments.log.manifest.rows import partitions_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import offset_bounds
from spark_segments.log.positions import PartitionState, Position, loss_at
from spark_segments.log.reading.isolation import READ_COMMITTED
from spark_segments.log.reading.plan import LATEST, Selection, readable_bounds
from spark_segments.log.reading.scan import Scan
from spark_segments.log.segment.leader_epochs import LeaderEpochs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE_SCHEMA = pa.schema([RECORD_SCHEMA.field(name) for name in ("key", "value", "partition", "offset", "timestamp")])
"""Columns of the table. A key belongs to its partition, as in the log."""

POSITION_KEY = "userMetadata"
"""The field of a commit, of either engine, that keeps the position: Delta's name for a user's metadata of a commit."""

TRIES = 5
"""How often an update is tried when another commit comes first."""

# Why an update compares the table with the whole view.
NO_POSITION = "the table has no position"
OTHER_TOPIC = "the topic was made anew"
LOG_START = "the log start moved"
OTHER_LOG = "another leader replaced records"
REWRITTEN = "a restore or an erasure may have taken records out of the log"
LATE = "tombstones may be gone"

_REWRITES = frozenset((RESTORE, DEMOTE, MIRROR, "erase"))
"""Commits after which records that a table has may not be in the log, although the log start did not move. A mirror's
may be any of the others at its leader."""

_RECENT_COMMITS = 10
_THREADS = 16  # a commit is a small file to read
_SAME_KEY = "t.partition = s.partition AND t.key = s.key"
_NEWER = "s.offset > t.offset"
_ALIVE = "s.value IS NOT NULL"
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class TablePositions:
    """What of its topic a table has: by partition the position up to which it was merged and the log start then, at a
    time by the storage's clock.

    Records behind the last stable offset wait for the end of their transaction. `version`: of the topic's manifest;
    None where there is none, or where an older version of this package wrote the positions.
    """

    topic_id: str
    positions: dict[int, Position]
    log_starts: dict[int, int]
    at_ms: int
    version: int | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, at_ms: int, version: int | None) -> TablePositions:
        """The positions of a table that has all that may be read of a snapshot."""
        bounds = readable_bounds(snapshot, READ_COMMITTED)
        epochs = {row.partition: LeaderEpochs.of(row) for row in partitions_of(snapshot.partitions)}
        positions = {
            partition: Position(end, snapshot.topic_id, epochs[partition].before(end))
            for partition, (_, end) in bounds.items()
        }
        return cls(snapshot.topic_id, positions, {one: start for one, (start, _) in bounds.items()}, at_ms, version)

    def to_json(self) -> str:
        """The text that a commit keeps."""
        offsets = {str(one): [self.log_starts[one], self.positions[one].offset] for one in sorted(self.positions)}
        epochs = {str(one): position.leader_epoch for one, position in self.positions.items() if position.leader_epoch}
        said = {"topic_id": self.topic_id, "offsets": offsets, "at_ms": self.at_ms, "version": self.version}
        return json.dumps({"segments": said | ({"leader_epochs": epochs} if epochs else {})})

    @staticmethod
    def from_json(text: str) -> TablePositions | None:
        """The positions in a commit's text; None for a text that another program wrote."""
        try:
            said = json.loads(text)["segments"]
        except (ValueError, KeyError, TypeError):
            return None
        topic_id, epochs = said["topic_id"], said.get("leader_epochs", {})
        offsets = said["offsets"].items()
        positions = {int(one): Position(bounds[1], topic_id, epochs.get(one, 0)) for one, bounds in offsets}
        starts = {int(one): bounds[0] for one, bounds in offsets}
        return TablePositions(topic_id, positions, starts, said["at_ms"], said.get("version"))


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """The result of an update. `version`: the table's version after it, None where there was nothing to do.

    `whole`: why the table was compared with the whole view, None where only changes were merged.
    """

    version: int | None
    position: TablePositions
    whole: str | None
    engine: str


def update_table(
    log: LogDir,
    topic: str,
    table_uri: str,
    *,
    spark: SparkSession | None = None,
    table_options: Mapping[str, str] | None = None,
) -> TableUpdate:
    """Brings the table at `table_uri` to the topic's latest view as of now. Makes the table if there is none.

    `spark`: a session, whose MERGE is used if it has Delta. `table_options`: delta-rs's storage options for the table.
    Raises CommitConflictError when other commits to the table come first every time: run the update again.
    """
    for _ in range(TRIES):
        table = _open(table_uri, table_options)
        at_ms = log.storage.now_ms()
        snapshot = log.topic(topic).snapshot
        version = None if log.is_kafka else snapshot.version
        position = TablePositions.of(snapshot, at_ms, version)
        before = last_position(table)
        whole = _why_whole(log, snapshot, before, at_ms)
        changed = {
            partition: (start if whole or before is None else max(start, _merged_to(before, partition)), end)
            for partition, (start, end) in readable_bounds(snapshot, READ_COMMITTED).items()
        }
        engine = "delta-spark" if spark is not None and has_delta(spark) else "delta-rs"
        if whole is None and all(start >= end for start, end in changed.values()):
            return TableUpdate(None, position, None, engine)
        if spark is not None and engine == "delta-spark":
            _merge_by_spark(spark, log, snapshot, changed, table_uri, position, whole is not None)
            return TableUpdate(_open(table_uri, table_options).version(), position, whole, engine)
        try:
            _merge_by_delta_rs(table, log, snapshot, changed, position, whole is not None)
        except CommitFailedError:
            continue  # another commit came first, or the reply was lost: the table's position tells which
        return TableUpdate(table.version(), position, whole, engine)
    raise CommitConflictError(
        "Other commits to the table keep coming first", path=table_uri, hint="Run the update again"
    )


def last_position(table: DeltaTable) -> TablePositions | None:
    """The table's position: that of its last commit with a position."""
    for limit in (_RECENT_COMMITS, None):  # a table has thousands of commits, and mostly the last has the position
        for commit in table.history(limit):
            found = TablePositions.from_json(commit.get(POSITION_KEY) or "")
            if found is not None:
                return found
    return None


def delta_settings() -> dict[str, str]:
    """The configuration of a Spark session with Delta: the jar of the installed delta-spark's version, from Maven."""
    spark = ".".join(version("pyspark").split(".")[:2])
    return {
        "spark.jars.packages": f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}",
        "spark.sql.extensions": _DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def has_delta(spark: SparkSession) -> bool:
    """Whether a session can run Delta's MERGE: it was started with Delta's extension and has Delta's jar."""
    if _DELTA_EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
        return False
    try:
        importlib.import_module("delta.tables")
        from py4j.protocol import Py4JError
    except ImportError:  # no delta-spark, or pyspark-client, which has no JVM and no py4j
        return False
    try:
        jvm: Any = spark._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName("io.delta.tables.DeltaTable", False, loader)
    except (Py4JError, PySparkException):  # no jar, or a session of Spark Connect
        return False
    return True


def _open(uri: str, options: Mapping[str, str] | None) -> DeltaTable:
    given = dict(options or {}) or None
    try:
        return DeltaTable(uri, storage_options=given)
    except TableNotFoundError:
        # Of several processes that make the table at once, only the first does.
        return DeltaTable.create(uri, Schema.from_arrow(TABLE_SCHEMA), mode="ignore", storage_options=given)


def _merged_to(before: TablePositions, partition: int) -> int:
    position = before.positions.get(partition)
    return 0 if position is None else position.offset


def _why_whole(log: LogDir, snapshot: Snapshot, before: TablePositions | None, now_ms: int) -> str | None:
    if before is None:
        return NO_POSITION
    if before.topic_id != snapshot.topic_id:
        return OTHER_TOPIC
    bounds = offset_bounds(snapshot)
    if any(bounds.get(partition, (-1, -1))[0] != start for partition, start in before.log_starts.items()):
        return LOG_START
    states = {
        row.partition: PartitionState.of_row(snapshot.topic_id, row) for row in partitions_of(snapshot.partitions)
    }
    if any(loss_at(one, states[at], (snapshot.topic, at), "the table") for at, one in before.positions.items()):
        return OTHER_LOG
    if before.version is not None and _may_be_rewritten(log, snapshot, before.version):
        return REWRITTEN
    first_dirty = dict(zip(bounds, snapshot.partitions.column("first_dirty_offset").to_pylist(), strict=True))
    cleaned = any(first_dirty[partition] > following.offset for partition, following in before.positions.items())
    # A tombstone that was appended after the last update stays at least delete.retention.ms after its first cleaning.
    if cleaned and now_ms - before.at_ms > log.topic(snapshot.topic).config.delete_retention_ms:
        return LATE
    return None


def _may_be_rewritten(log: LogDir, snapshot: Snapshot, since: int) -> bool:
    """Whether any commit after the version `since` is one of _REWRITES, or is not known any more."""
    if since > snapshot.version:
        return True
    with ThreadPoolExecutor(_THREADS) as pool:
        operations = pool.map(log.topic(snapshot.topic).manifest.log.operation, range(since + 1, snapshot.version + 1))
        try:
            return any(operation in _REWRITES for operation in operations)
        except FileNotFoundError:  # vacuum takes commits file.delete.delay.ms after the next one
            return True


def _merge_by_delta_rs(
    table: DeltaTable,
    log: LogDir,
    snapshot: Snapshot,
    offsets: Mapping[int, tuple[int, int]],
    position: TablePositions,
    whole: bool,
) -> None:
    selection = Selection(tuple(TABLE_SCHEMA.names), READ_COMMITTED, LATEST, include_tombstones=not whole)
    batches = Scan(log.storage, snapshot, offsets, selection).batches(threads=1)
    # Without retries a commit is a compare-and-swap on the version that the position was read from.
    merge = table.merge(
        pa.RecordBatchReader.from_batches(TABLE_SCHEMA, (batch.cast(TABLE_SCHEMA) for batch in batches)),
        _SAME_KEY,
        source_alias="s",
        target_alias="t",
        commit_properties=CommitProperties(custom_metadata={POSITION_KEY: position.to_json()}, max_commit_retries=0),
    )
    if whole:
        merge = merge.when_matched_update_all().when_not_matched_insert_all().when_not_matched_by_source_delete()
    else:
        merge = merge.when_matched_delete(f"s.value IS NULL AND {_NEWER}")
        merge = merge.when_matched_update_all(_NEWER).when_not_matched_insert_all(_ALIVE)
    merge.execute()


def _merge_by_spark(
    spark: SparkSession,
    log: LogDir,
    snapshot: Snapshot,
    offsets: Mapping[int, tuple[int, int]],
    table_uri: str,
    position: TablePositions,
    whole: bool,
) -> None:
    from delta.tables import DeltaTable as SparkDeltaTable

    source = _frame(spark, log, snapshot, offsets, include_tombstones=not whole)
    merge = SparkDeltaTable.forPath(spark, table_uri).alias("t").merge(source.alias("s"), _SAME_KEY)
    if whole:
        merge = merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().whenNotMatchedBySourceDelete()
    else:
        merge = merge.whenMatchedDelete(f"s.value IS NULL AND {_NEWER}")
        merge = merge.whenMatchedUpdateAll(_NEWER).whenNotMatchedInsertAll(_ALIVE)
    before = spark.conf.get(_USER_METADATA, None)
    spark.conf.set(_USER_METADATA, position.to_json())
    try:
        merge.execute()
    finally:
        if before is None:
            spark.conf.unset(_USER_METADATA)
        else:
            spark.conf.set(_USER_METADATA, before)


def _frame(
    spark: SparkSession,
    log: LogDir,
    snapshot: Snapshot,
    offsets: Mapping[int, tuple[int, int]],
    *,
    include_tombstones: bool,
) -> DataFrame:
    """The changes as Spark reads them, at the snapshot's version."""
    bounds = [{str(partition): both[side] for partition, both in offsets.items()} for side in (0, 1)]
    reader = spark.read.format("segments").options(
        subscribe=snapshot.topic,
        startingOffsets=json.dumps({snapshot.topic: bounds[0]}),
        endingOffsets=json.dumps({snapshot.topic: bounds[1]}),
        view="latest",
        includeTombstones=str(include_tombstones).lower(),
    )
    if not log.is_kafka:
        reader = reader.option("versionAsOf", snapshot.version)
    # Only imported logs have transactions. Records of an open or aborted transaction do not belong in the table.
    reader = reader.option("isolation.level", READ_COMMITTED)
    for name, value in log.storage.storage_options.items():
        reader = reader.option(f"storage.{name}", value)
    return reader.load(log.uri).select(TABLE_SCHEMA.names)
