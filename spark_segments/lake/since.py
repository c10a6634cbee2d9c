"""What became of a topic since a table was in step: the commits of its manifest that say so are read here."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_segments.config import READ_COMMITTED, topic_config
from spark_segments.lake.table_format import TablePositions
from spark_segments.lake.table_plan import TopicSince, rival_offsets
from spark_segments.log import Eras, LogDirectory, Scan, ScanPart, Selection, Snapshot
from spark_segments.storage import Storage

PART_BYTES = 128 << 20
"""About how large a part of a scan is, as by spark.sql.files.maxPartitionBytes: what a task reads of the log."""


def topic_since(log: LogDirectory, snapshot: Snapshot, before: TablePositions | None) -> TopicSince:
    """The topic, with the operations of its commits since a table had these positions."""
    config = topic_config(snapshot.config, log.defaults)
    return TopicSince(log.storage, snapshot, config, _operations(log, snapshot, before))


def _operations(log: LogDirectory, snapshot: Snapshot, before: TablePositions | None) -> set[str] | None:
    """The operations of the topic's commits since the table was updated; None where one is not known."""
    if before is None or before.version is None or before.topic_id != snapshot.topic_id:
        return None
    # The follower that was promoted may have at 3 what its former leader has at 7:
    #
    #   leader     0 … 4 5 6:compact 7        the table names 5
    #   follower   0 1 2 3:promote 4 5 6      and has the compaction at 2, so that no commit after 5 says so
    if not before.is_of_manifest(snapshot, commit_id_of(log, snapshot.topic, before.version)):
        return None
    versions = range(before.version + 1, snapshot.version + 1)
    commits = log.storage.at_once(log.manifest(snapshot.topic).facts, versions)
    operations = {commit.operation for commit in commits if commit is not None}
    # Vacuum takes commits file.delete.delay.ms after the next one: then nobody knows what they were.
    return None if None in commits else operations


def commit_id_of(log: LogDirectory, topic: str, version: int) -> str | None:
    facts = log.manifest(topic).facts(version)
    return None if facts is None else facts.commit_id


def rival_parts(storage: Storage, snapshot: Snapshot, before: TablePositions, records: pa.Table) -> Iterator[ScanPart]:
    """The parts of the log that a table has reached and that may have newer records than `records`, which follow them,
    of the same keys in other partitions. Nothing where each partition has keys of its own.
    """
    eras = Eras.of(snapshot)
    if eras is None:
        return iter(())
    offsets = rival_offsets(snapshot, before, eras.ranks(records))
    ranked = Selection(Eras.RANKED, READ_COMMITTED, Selection.LATEST_VIEW)
    # Partitions are compared by those who read these parts.
    return Scan.of(storage, snapshot, offsets=offsets, selection=ranked).parts(PART_BYTES, within_partitions=True)
