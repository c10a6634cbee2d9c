"""The account of a key: every file that has records of it, and until when, also if jobs do not run."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from spark_segments.config import TopicConfig, topic_config
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import ORPHAN_AGE_MS
from spark_segments.log.manifest.rows import OUT_OF_LOG, Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.maintenance.erasure.search import (
    KeyRecords,
    places_without,
    search,
    search_figures,
    unnamed_runs,
)
from spark_segments.maintenance.explanation.explain import explain_record
from spark_segments.maintenance.explanation.record_explanation import TimeBounds
from spark_segments.maintenance.explanation.roll_forecast import last_of, object_deleted
from spark_segments.maintenance.explanation.topic_forecast import vacuum_moments
from spark_segments.maintenance.removal.vacuum import all_rows, deleted_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIVE, ACTIVE, REMOVED_FILE = "sealed segment", "active segment", "removed file"


@dataclass(frozen=True, slots=True)
class KeyCopy:
    """A file that has records of the key.

    `state` is LIVE, ACTIVE (a chunk that is not rolled yet) or REMOVED_FILE (only readers of earlier versions see it).
    `values` of the `records` are no tombstones. `outside`: records in bytes that no reader sees. `files_deleted`: when
    the file goes by the topic's rules, without an erasure; None if they do not say. A shared object has a copy for each
    run with the key, and goes when all its runs are out of the log, in all partitions.
    """

    partition: int
    path: str
    state: str
    records: int
    values: int
    outside: int
    first_offset: int
    last_offset: int
    files_deleted: TimeBounds | None


@dataclass(frozen=True, slots=True)
class KeyAccount:
    """All files of a topic that have records of a key. Times in ms since 1970.

    `uncommitted_until_ms`: files that no commit names, of writers and jobs that failed, may have the key as well; no
    reader sees them, and vacuum deletes the existing ones after that time. `followers`: log directories that have
    mirrored the topic, as far as their notes say; an account there names their files. `segments_read`: how many were
    read for the account; `segments_by_index`: how many the index of the topic's keys spared.
    """

    topic: str
    key: bytes
    now_ms: int
    version: int
    copies: tuple[KeyCopy, ...]
    uncommitted_until_ms: int
    followers: tuple[str, ...] = ()
    segments_read: int = 0
    segments_by_index: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The account as plain values, ready for JSON; the key as text, with replacement characters."""
        return {
            "topic": self.topic,
            "key": self.key.decode(errors="replace"),
            "now_ms": self.now_ms,
            "version": self.version,
            "values": sum(copy.values for copy in self.copies if copy.state != REMOVED_FILE),
            "copies": [dataclasses.asdict(copy) for copy in self.copies],
            "uncommitted_until_ms": self.uncommitted_until_ms,
            "followers": list(self.followers),
            "segments_read": self.segments_read,
            "segments_by_index": self.segments_by_index,
            "not_known": ["exports", "copies and backups of files", "what readers have taken"],
        }


def key_account(
    log: LogDirectory,
    topic: str,
    key: bytes,
    spark: SparkSession | None = None,
    now_ms: int | None = None,
    *,
    every_ms: int = 3_600_000,
) -> KeyAccount:
    """Searches all files of a topic for a key, also files of earlier versions and of deleted topics of its name. Reads
    every segment, but for those in which the index of the topic's keys does not have it. The topic itself may be a
    deleted one.

    `every_ms`: how often each job runs. Raises UnknownTopicError, and CorruptBatchError for damaged bytes.
    """
    snapshot = log.manifest(topic).snapshot(deleted=True)
    config = topic_config(snapshot.config, log.defaults)
    store_ms = log.storage.now_ms() if not log.is_kafka else snapshot.committed_ms
    now_ms = store_ms if now_ms is None else now_ms
    rows = row_tables.in_log_order(all_rows(snapshot))
    removed = row_tables.in_states(rows, *OUT_OF_LOG)
    deleted_ms = np.maximum(vacuum_moments(removed, config, deleted_topics(log, snapshot)), now_ms).tolist()
    moments: dict[str, int] = defaultdict(int)  # by path: the last row of a shared object lets its file go
    for path, moment in zip(removed.column("path").to_pylist(), deleted_ms, strict=True):
        moments[path] = max(moments[path], moment)
    shared = snapshot.segments.filter(pc.is_valid(snapshot.segments.column("index_position")))
    objects = frozenset(shared.column("path").to_pylist())
    deletions = _Deletions(snapshot, config, now_ms, every_ms, moments, objects)
    named = Segment.of_table(rows)
    segments = [*named, *unnamed_runs(log.storage, named, spark)]
    copies = []
    without = places_without(log.key_offsets, snapshot, named, [key])
    searched = search(log.storage, topic, [key], segments, spark, without=without)
    for segment, result in zip(segments, searched, strict=True):
        if result.records:
            [match] = result.records
            copies.append(_copy_of(segment, match, deletions.of(segment, match)))
    uncommitted_until_ms = store_ms + ORPHAN_AGE_MS + every_ms
    followers = tuple(log.known_followers(topic))
    return KeyAccount(
        topic,
        key,
        now_ms,
        snapshot.version,
        tuple(copies),
        uncommitted_until_ms,
        followers,
        **search_figures(searched),
    )


def _copy_of(segment: Segment, match: KeyRecords, files_deleted: TimeBounds) -> KeyCopy:
    state = ACTIVE if segment.state == Segment.CHUNK else LIVE
    return KeyCopy(
        partition=segment.partition,
        path=segment.path,
        state=state if segment.is_live else REMOVED_FILE,
        records=match.records,
        values=match.records - match.tombstones,
        outside=match.outside,
        first_offset=match.first_offset,
        last_offset=match.last_offset,
        files_deleted=files_deleted,
    )


@dataclass(frozen=True, slots=True)
class _Deletions:
    """When vacuum deletes the files of a topic by its rules. `moments`: by path of a file with removed rows, when the
    last of them lets it go. `objects`: the paths of the topic's shared objects.
    """

    snapshot: Snapshot
    config: TopicConfig
    now_ms: int
    every_ms: int
    moments: Mapping[str, int]
    objects: Collection[str]

    def of(self, segment: Segment, match: KeyRecords) -> TimeBounds:
        """When the file of a segment that has records of the key is deleted."""
        if segment.is_live:
            if segment.partition not in self.snapshot.offset_bounds():
                return TimeBounds(None, None)  # no job has a rule for a partition that the topic does not have
            # Of records that all lie in bytes of the file that the row does not name, there is no offset (-1): the file
            # goes with the row.
            offset = max(segment.base_offset, match.last_offset)
            explained = explain_record(
                self.snapshot, self.config, segment.partition, offset, self.now_ms, every_ms=self.every_ms
            )
            return explained.files_deleted or TimeBounds(None, None)
        moment = self.moments[segment.path]
        deleted = TimeBounds.of(moment, moment + self.every_ms)
        if segment.path not in self.objects:
            return deleted
        # Other runs of the object may still be in the log: the file stays until the last of them has left it.
        return last_of([deleted, object_deleted(self.snapshot, self.config, segment.path, self.now_ms, self.every_ms)])
