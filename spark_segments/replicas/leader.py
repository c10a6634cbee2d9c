"""The leader of a follower: its versions as a mirror reads them, and whether it is the one that was mirrored."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError, LogDirError
from spark_segments.log import Manifest, Operation, Snapshot, TableState, Transaction, row_tables
from spark_segments.replicas.role import role_of

BEGAN_ANEW = -1
"""In place of a version: the leader's table was made again, and no version of it equals the follower."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a follower stands in its leader's table.

    `version`: the leader's version that it is; BEGAN_ANEW where the topic was deleted and made again in another table.
    `is_certain`: False where the leader's log no longer has the commit of that version, by which it would be known.
    """

    version: int
    is_certain: bool


@dataclass(frozen=True, slots=True)
class LeaderVersion:
    """A version of the leader's topic: its snapshot (deleted or not), its transactions, and the commit that made it.

    `returned`: the paths of files that came back into the log since the version before it that a follower may be.
    """

    uri: str
    snapshot: Snapshot
    transactions: Sequence[Transaction]
    commit_id: str
    committed_ms: int
    returned: frozenset[str]


@dataclass(frozen=True, slots=True)
class Leader:
    """The versions of a leader's topic as a follower replays them. `uri`: the address of the log directory."""

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
        facts = self.manifest.facts(version)
        if facts is not None and facts.operation in Operation.OF_FILES:
            return None
        return self._of(self.manifest.state(version, deleted=True))

    def changed_partitions(self, version: int) -> set[int] | None:
        """The partitions whose segments the commit of a version has changed; None where that takes a look at all."""
        changed = self.manifest.changed_rows(version)
        return None if changed is None else partitions_that_differ(*changed)

    def _of(self, state: TableState) -> LeaderVersion:
        snapshot = state.snapshot
        commit = self.manifest.facts(state.version)
        operation = None if commit is None else commit.operation
        returned: frozenset[str] = frozenset()
        if commit is None or operation in Operation.BRINGING_BACK:
            among = self.changed_partitions(state.version) if operation == Operation.MIRROR else None
            returned = self.returned_since(state.version - 1, snapshot, among)
        return LeaderVersion(
            self.uri,
            snapshot,
            state.last_transactions(),
            "" if commit is None else commit.commit_id,
            snapshot.committed_ms if commit is None else commit.committed_ms,
            returned,
        )

    def returned_since(self, before: int, after: Snapshot, among: set[int] | None = None) -> frozenset[str]:
        """The paths in the log at `after` that were in the manifest at version `before`, in the log or out of it.

        Only such a file can be brought back: a restore takes rows that vacuum has not dropped. All paths where nobody
        knows what was in the manifest. `among`: the only partitions that are looked at, None for all.
        """
        live = after.live if among is None else row_tables.live(after.load_segments(among))
        paths = set(live.column("path").to_pylist())
        if before < 0:
            return frozenset(paths)
        try:
            earlier_rows = self.manifest.snapshot(before, deleted=True).source.read(among)
        except InvalidOptionError:
            return frozenset(paths)
        return frozenset(paths & set(earlier_rows.column("path").to_pylist()))

    def check_lineage(self, follower: Snapshot, latest: Snapshot) -> Lineage:
        """The place of a follower. Raises LogDirError where it is no past state of the topic.

        Where the log lacks the commit that the follower has, topic id and offsets must do.
        """
        role = role_of(follower)
        assert role.source is not None
        if role.is_demoted:  # vacuum may be deleting files of its log that a mirror would bring back under their paths
            raise LogDirError(
                f"Topic {self.topic} was made a follower by an older version, and was not mirrored since",
                expected="a follower that a mirror made",
                found="the state demoted",
                hint=f"Mirror {self.uri} into an empty log directory",
            )
        # A number alone names no version: a log directory that a backup brought back counts on from an older one, and
        # the follower would pass for a past state of other records. The commit's id names it.
        version = role.source.version
        has_version = version <= latest.version
        facts = self.manifest.facts(version) if has_version else None
        if facts is not None and facts.commit_id == role.source.commit_id:
            return Lineage(version, is_certain=True)
        # The leader's log keeps the commits of its last versions only, so an old one is believed by its place.
        is_forgotten = has_version and facts is None
        same_place = role.source.uri == self.uri
        if is_forgotten and same_place:
            return Lineage(version, is_certain=False)
        if latest.topic_id != follower.topic_id:
            if same_place:
                return Lineage(BEGAN_ANEW, is_certain=True)
            raise self._other(f"topic id {follower.topic_id}", latest.topic_id)
        if is_forgotten:
            raise self._other(f"the leader in {role.source.uri}", "a log without that version")
        found = "no such version" if facts is None else f"commit id {facts.commit_id}"
        raise self._other(f"commit id {role.source.commit_id} at version {version}", found)

    def _other(self, expected: str, found: str) -> LogDirError:
        return LogDirError(
            f"Topic {self.topic} is not the log that the follower has mirrored",
            path=self.uri,
            expected=expected,
            found=found,
            hint="The follower stays as it is. Mirror from the log directory that it followed, or into a new one",
        )


def partitions_that_differ(before: pa.Table, after: pa.Table) -> set[int]:
    """The numbers of the partitions that have other segment rows in `after` than in `before`."""
    index = pc.index_in(row_tables.keys(after), row_tables.keys(before).combine_chunks()).combine_chunks()
    in_both = after.filter(pc.is_valid(index))
    changed = in_both.filter(pc.invert(are_alike(in_both, before.take(index.drop_null()))))
    parts = (changed, row_tables.without(before, after), after.filter(pc.is_null(index)))
    return {number for rows in parts for number in pc.unique(rows.column("partition")).to_pylist()}


def are_alike(table: pa.Table, other: pa.Table) -> pa.ChunkedArray:
    """bool[rows]: which rows are equal in all columns, lists aside."""

    def same(name: str) -> pa.ChunkedArray:
        mine = table.column(name)
        theirs = other.column(name)
        equal = pc.fill_null(pc.equal(mine, theirs), False)
        return pc.or_(equal, pc.and_(pc.is_null(mine), pc.is_null(theirs)))

    return functools.reduce(pc.and_, [same(field.name) for field in table.schema if not pa.types.is_nested(field.type)])
