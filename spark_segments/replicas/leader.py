"""The leader of a follower: its versions as a mirror reads them, whether it is the one that was mirrored, the lag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, LogDirError
from spark_segments.log.manifest.change import RESTORE
from spark_segments.log.manifest.delta.actions import commit_info, paths_of
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.role import MIRROR, VACUUM
from spark_segments.log.manifest.row_files import RowFile, concat
from spark_segments.log.manifest.schemas import KIND, SEGMENT_KIND, TOPIC_KIND
from spark_segments.log.manifest.snapshot import Snapshot, live_rows
from spark_segments.log.manifest.topic_log import TableState
from spark_segments.log.manifest.upkeep import MERGE
from spark_segments.log.partitions import offset_bounds
from spark_segments.replicas.plan import LeaderVersion, partitions_that_differ

_NOT_REPLAYED = (MERGE, VACUUM)
"""The leader's commits that change nothing of its log."""

_BRING_BACK = (RESTORE, MIRROR)
"""The leader's commits that may bring files back that had left the log. A mirror's may be a restore at its leader."""

BEGAN_ANEW = -1
"""In place of a version: the leader's table began anew, and has no version that the follower was."""


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What Delta's log says of a commit."""

    commit_id: str
    committed_ms: int
    operation: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a follower stands in its leader's table.

    `version`: the leader's version that it is; BEGAN_ANEW where the topic was deleted and made again in another table.
    `is_certain`: False where the leader's log no longer has the commit of that version, by which it would be known.
    """

    version: int
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Leader:
    """The manifest of a leader's topic, and the address of its log directory."""

    manifest: Manifest
    uri: str

    @property
    def topic(self) -> str:
        return self.manifest.topic

    def latest(self) -> LeaderVersion:
        """The newest version. Raises UnknownTopicError where there is no table."""
        return self._of(self.manifest.state(deleted=True))

    def newest(self) -> int:
        """The number of the newest version. Raises UnknownTopicError where there is no table."""
        return self.manifest.state(deleted=True).version

    def at(self, version: int) -> LeaderVersion | None:
        """A version, None where its commit changed nothing of the log.

        Raises InvalidOptionError where the version is not there any more.
        """
        facts = self.facts(version)
        if facts is not None and facts.operation in _NOT_REPLAYED:
            return None
        return self._of(self.manifest.state(version, deleted=True))

    def changed_partitions(self, version: int) -> set[int] | None:
        """The partitions whose segments the commit of a version has changed; None where that takes a look at all."""
        try:
            actions = self.manifest.log.delta.actions(version)
            paths = [paths_of(actions, name) for name in ("remove", "add")]
            if any(path.startswith(f"{KIND}={TOPIC_KIND}/") for path in paths[1]):
                return None  # another topic, perhaps
            return partitions_that_differ(*(self._rows(some) for some in paths))
        except FileNotFoundError:
            return None

    def _rows(self, paths: Sequence[str]) -> pa.Table:
        """The segment rows of those files of the manifest that have any."""
        wanted = [path for path in paths if path.startswith(f"{KIND}={SEGMENT_KIND}/")]
        files = [RowFile(path, SEGMENT_KIND, 0, 0, 0, {}) for path in wanted]
        return concat(self.manifest.log.store.read_all(files), SEGMENT_KIND)

    def facts(self, version: int) -> CommitFacts | None:
        """The commit that made a version, None where Delta's log does not have it (any more)."""
        try:
            info = commit_info(self.manifest.log.delta.actions(version))
        except FileNotFoundError:
            return None
        return CommitFacts(info.get("commitId", ""), int(info.get("timestamp", 0)), info.get("change", ""))

    def _of(self, state: TableState) -> LeaderVersion:
        facts = self.facts(state.version)
        brings_back = facts is None or facts.operation in _BRING_BACK
        facts = facts or CommitFacts("", state.snapshot.committed_ms, "")
        among = self.changed_partitions(state.version) if facts.operation == MIRROR else None
        return LeaderVersion(
            self.uri,
            state.snapshot,
            state.last_transactions(),
            facts.commit_id,
            facts.committed_ms,
            self.returned_since(state.version - 1, state.snapshot, among) if brings_back else frozenset(),
        )

    def returned_since(self, before: int, after: Snapshot, among: set[int] | None = None) -> frozenset[str]:
        """The paths in the log at `after` that were in the manifest at version `before`, in the log or out of it.

        Only such a file can be brought back: a restore takes rows that vacuum has not dropped. All paths where nobody
        knows what was in the manifest. `among`: the only partitions that are looked at, None for all.
        """
        live = after.live if among is None else live_rows(after.load_segments(among))
        paths = set(live.column("path").to_pylist())
        if before < 0:
            return frozenset(paths)
        try:
            known = self.manifest.snapshot(before, deleted=True).source.read(among)
        except InvalidOptionError:
            return frozenset(paths)
        return frozenset(paths & set(known.column("path").to_pylist()))

    def check_lineage(self, follower: Snapshot, latest: Snapshot) -> Lineage:
        """The place of a follower. Raises LogDirError where it is no past state of the topic.

        Where the log lacks the commit that the follower has, topic id and offsets must do.
        """
        role = follower.role
        assert role.source is not None
        if role.is_demoted:  # vacuum may be deleting files of its log that a mirror would bring back under their paths
            raise LogDirError(
                f"Topic {self.topic} was made a follower by an older version, and was not mirrored since",
                expected="a follower that a mirror made",
                found="the state demoted",
                hint=f"Mirror {self.uri} into an empty log directory",
            )
        version = role.source.version
        facts = self.facts(version) if version <= latest.version else None
        if facts is not None and facts.commit_id == role.source.commit_id:
            return Lineage(version, is_certain=True)
        same_place = role.source.uri == self.uri
        if latest.topic_id != follower.topic_id:
            if same_place and facts is None and version <= latest.version:
                return Lineage(version, is_certain=False)
            if same_place:
                return Lineage(BEGAN_ANEW, is_certain=True)
            raise self._other(f"topic id {follower.topic_id}", latest.topic_id)
        if facts is not None or version > latest.version:
            found = "no such version" if facts is None else f"commit id {facts.commit_id}"
            raise self._other(f"commit id {role.source.commit_id} at version {version}", found)
        if not same_place:
            raise self._other(f"the leader in {role.source.uri}", "a log without that version")
        return Lineage(version, is_certain=False)

    def _other(self, expected: str, found: str) -> LogDirError:
        return LogDirError(
            f"Topic {self.topic} is not the log that the follower has mirrored",
            path=self.uri,
            expected=expected,
            found=found,
            hint="The follower stays as it is. Mirror from the log directory that it followed, or into a new one",
        )


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a follower is behind. What the leader has more would be lost with the leader now.

    `leader_version`, `source_version`: the leader's newest version, and the version that the follower is. `commits`:
    the versions between. `records`: offsets that the follower lacks, over all partitions. `lag_ms`: how long ago the
    first of these commits was made, 0 without any.
    """

    leader_version: int
    source_version: int
    commits: int
    records: int
    lag_ms: int


def lag_of(leader: Leader, follower: Snapshot, now_ms: int) -> Lag:
    """The lag of a follower at `now_ms`, by the clock of the leader's writers.

    Raises UnknownTopicError, and LogDirError where the leader is not the log that the follower has mirrored.
    """
    newest = leader.manifest.snapshot(deleted=True)
    source = follower.role.source
    assert source is not None
    reached = leader.check_lineage(follower, newest).version
    if newest.version == reached:
        return Lag(source.version, source.version, 0, 0, 0)
    first = leader.facts(reached + 1)
    since_ms = source.committed_ms if first is None else first.committed_ms
    bounds = offset_bounds(follower) if newest.topic_id == follower.topic_id else {}
    ends = ((end, bounds.get(number, (0, 0))[1]) for number, (_, end) in offset_bounds(newest).items())
    records = sum(max(0, theirs - ours) for theirs, ours in ends)
    return Lag(newest.version, source.version, newest.version - reached, records, max(0, now_ms - since_ms))
