"""How far a table is in its topic, and what happened to the log behind that place since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from spark_segments.config import topic_config
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.change import DEMOTE, ERASE, IMPORT, MIRROR, RESTORE
from spark_segments.log.manifest.rows import partitions_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import offset_bounds
from spark_segments.log.positions import DELETED, PartitionState, Position, loss_at
from spark_segments.log.reading.isolation import READ_COMMITTED
from spark_segments.log.reading.plan import readable_bounds
from spark_segments.log.segment.leader_epochs import LeaderEpochs

# What happened to records that a table has.
NO_POSITION = "the table has no position"
OTHER_TOPIC = "the topic was made anew"
OTHER_LOG = "another leader replaced records"
REWRITTEN = "a restore may have taken records out of the log, or put some back"
ERASED = "keys were erased"
CLEANED = "compaction may have taken records out of the log"
LOG_START = "the log start moved"
LATE = "tombstones may be gone"

COMPACT = "compact"

_REWRITES = frozenset((RESTORE, DEMOTE, MIRROR))
"""Commits after which the log may lack records below a position, or have others there, although the log start did not
move. A mirror's may be any other commit at its leader."""

_THREADS = 16  # a commit is a small file to read


@dataclass(frozen=True, slots=True)
class TablePositions:
    """What of its topic a table has: by partition the position up to which it has the records, and the log start then,
    at a time by the storage's clock.

    Records behind the last stable offset wait for the end of their transaction. `version`: that of the topic's manifest
    by which records have left the table; None where there is none, as in a directory of Kafka's.
    """

    topic_id: str
    positions: Mapping[int, Position]
    log_starts: Mapping[int, int]
    at_ms: int
    version: int | None = None

    @classmethod
    def of(
        cls, snapshot: Snapshot, at_ms: int, version: int | None, ends: Mapping[int, int] | None = None
    ) -> TablePositions:
        """The positions of a table that has all that may be read of a snapshot, up to `ends` where they are given."""
        bounds = readable_bounds(snapshot, READ_COMMITTED)
        ends = {number: end for number, (_, end) in bounds.items()} if ends is None else ends
        epochs = {row.partition: LeaderEpochs.of(row) for row in partitions_of(snapshot.partitions)}
        positions = {
            number: Position(end, snapshot.topic_id, epochs[number].before(end)) for number, end in ends.items()
        }
        return cls(snapshot.topic_id, positions, {one: start for one, (start, _) in bounds.items()}, at_ms, version)

    def end(self, partition: int) -> int:
        """The first offset of a partition that the table has not reached."""
        position = self.positions.get(partition)
        return 0 if position is None else position.offset

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
        return TablePositions(topic_id, positions, starts, said["at_ms"], said["version"])


def what_happened(
    log: LogDirectory, snapshot: Snapshot, before: TablePositions | None, now_ms: int, *, latest: bool
) -> str | None:
    """The gravest of the reasons above why a table may lack more than what follows its positions, or have too much;
    None where it does not. `latest`: the table has the newest record of each key, which compaction keeps.
    """
    if before is None:
        return NO_POSITION
    if before.topic_id != snapshot.topic_id:
        return OTHER_TOPIC
    bounds = offset_bounds(snapshot)
    states = {
        row.partition: PartitionState.of_row(snapshot.topic_id, row) for row in partitions_of(snapshot.partitions)
    }
    losses = [loss_at(one, states[at], (snapshot.topic, at), "the table") for at, one in before.positions.items()]
    if any(loss is not None and loss.kind != DELETED for loss in losses):
        return OTHER_LOG
    moved = {at for at, start in before.log_starts.items() if bounds.get(at, (-1, -1))[0] != start}
    if any(bounds[at][0] < before.log_starts[at] for at in moved):
        return REWRITTEN
    if found := _rewritten(log, snapshot, before.version, latest=latest):
        return found
    if moved:
        return LOG_START
    if not latest:
        return None
    first_dirty = dict(zip(bounds, snapshot.partitions.column("first_dirty_offset").to_pylist(), strict=True))
    cleaned = any(first_dirty[partition] > following.offset for partition, following in before.positions.items())
    # A tombstone that was appended after the last update stays at least delete.retention.ms after its first cleaning.
    if cleaned and now_ms - before.at_ms > topic_config(snapshot.config, log.defaults).delete_retention_ms:
        return LATE
    return None


def _rewritten(log: LogDirectory, snapshot: Snapshot, since: int | None, *, latest: bool) -> str | None:
    """REWRITTEN, ERASED or CLEANED, by the commits after the version `since`; REWRITTEN where one is not known.

    A broker's directory has no versions, and an import takes what a broker's cleaner left.
    """
    if since is None:
        return CLEANED if not latest and _has_been_cleaned(log, snapshot) else None
    if since > snapshot.version:
        return REWRITTEN
    with ThreadPoolExecutor(_THREADS) as pool:
        read = log.manifest(snapshot.topic).log.operation
        try:
            operations = {*pool.map(read, range(since + 1, snapshot.version + 1))}
        except FileNotFoundError:  # vacuum takes commits file.delete.delay.ms after the next one
            return REWRITTEN
    if operations & _REWRITES:
        return REWRITTEN
    if ERASE in operations:
        return ERASED
    cleaned = COMPACT in operations or (IMPORT in operations and _has_been_cleaned(log, snapshot))
    return CLEANED if cleaned and not latest else None


def _has_been_cleaned(log: LogDirectory, snapshot: Snapshot) -> bool:
    """Whether a broker's cleaner may ever have been at the topic."""
    first_dirty = snapshot.partitions.column("first_dirty_offset").to_pylist()
    return any(first_dirty) or topic_config(snapshot.config, log.defaults).compact
