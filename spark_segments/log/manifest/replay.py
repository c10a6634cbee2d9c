"""Versions of a manifest, replayed at another place: the files that a follower lacks, and the change of its manifest.

The live rows of the leader become the live rows of the follower, with the leader's paths. A segment that the leader
removed is removed here by the follower's clock, and the follower's vacuum deletes its files: rows that have left the
leader's log matter to the leader alone. A version with an erasure is the exception: files that have left the log then
go here at the same time as at the leader.

A file that comes back (by a restore, or where the topic led here and was deleted) may be one that a slow vacuum is
about to delete here, also where its row is gone already. So a path is never used twice: such a file is copied to a new
path, `<the leader's path without .log>_<unique>.log`, and `origins` gives the leader's path for it.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import CommitConflictError, InvalidOptionError, TopicExistsError, UnknownTopicError
from spark_segments.format.file_names import LOG_SUFFIX
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.files.row_files import RowFile, concat
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.role import Role, SourceVersion
from spark_segments.log.manifest.rows import SEGMENT_SCHEMA, Partition, Segment, in_states, removed_rows, with_column
from spark_segments.log.manifest.schemas import KIND, SEGMENT_KIND, TOPIC_KIND
from spark_segments.log.manifest.state.snapshot import Snapshot, live_rows
from spark_segments.log.manifest.state.states import ERASURES, Erasure, log_states, other_states
from spark_segments.log.manifest.state.topic_log import TableState
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.manifest.transaction import Transaction
from spark_segments.storage.delta import commit_info, paths_of

_OWN_NAME = r"_[0-9a-f]{32}(\.log)$"


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
class FollowerVersion:
    """The version of the follower's topic that a plan is made for. `snapshot` is None where there is no topic yet.

    `keys_from_ms`: the follower remembers no idempotency key from before.
    """

    snapshot: Snapshot | None
    transactions: Sequence[Transaction] = ()
    keys_from_ms: int = 0
    state: TableState | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> FollowerVersion:
        """What a follower's topic is now."""
        try:
            state = manifest.state(deleted=True)
        except UnknownTopicError:
            return cls(None)
        keys_from_ms = manifest.log.keys_from_ms(state.snapshot.config)
        return cls(state.snapshot, state.last_transactions(), keys_from_ms, state)

    @property
    def states(self) -> Mapping[str, str]:
        return {} if self.snapshot is None else self.snapshot.states

    @property
    def is_follower(self) -> bool:
        return self.snapshot is not None and self.snapshot.role.is_follower

    def has_led(self, leader: Snapshot) -> bool:
        """Whether the topic was not always a follower: its files were here before they were the leader's, perhaps."""
        here = self.snapshot
        return here is not None and here.topic_id == leader.topic_id and not here.role.is_follower

    @property
    def is_there(self) -> bool:
        """Whether there is a topic, which was not deleted."""
        return self.snapshot is not None and self.snapshot.deleted_ms is None

    @staticmethod
    def own_path(path: str) -> str:
        """A path for a copy of a leader's file that cannot have the leader's path."""
        return f"{path.removesuffix(LOG_SUFFIX)}_{uuid.uuid4().hex}{LOG_SUFFIX}"

    def missing(self, leader: LeaderVersion, partitions: set[int] | None = None) -> tuple[pa.Table, set[str]]:
        """(the leader's live rows whose files the follower lacks, the paths among them that a vacuum here may still
        delete).

        `partitions`: the only ones that are looked at; None for all. Such a path was in the follower's log before: its
        row is being deleted, or the file came back after the row was dropped. Where the topic led here, any may be such
        a path.
        """
        live, rows = _live_rows(leader.snapshot, partitions), _all_rows(self, partitions)
        usable = _as_at_leader(_usable(rows), live)
        missing = Segment.without(live, usable)
        paths = missing.column("path")
        deleting = in_states(rows, Segment.DELETING).column("path")
        used = pc.is_in(paths, origins(deleting, live.column("path")).combine_chunks())
        if self.has_led(leader.snapshot):
            return missing, set(paths.to_pylist())
        return missing, set(paths.filter(used).to_pylist()) | (set(paths.to_pylist()) & leader.returned)

    def plan(
        self,
        leader: LeaderVersion,
        paths: Mapping[str, str],
        now_ms: int,
        among: set[int] | None = None,
    ) -> tuple[Change, bool]:
        """(the change that makes the follower what the leader was at this version, whether more than its states
        change).

        `paths`: {the leader's path: the path here} of all files of `missing`. `now_ms`: the follower's clock. `among`:
        the partitions whose segments can differ; None for all.
        """
        before, version = self.snapshot, leader.snapshot
        live, rows = _live_rows(version, among), _all_rows(self, among)
        here = _usable(rows)
        usable = _as_at_leader(here, live)
        index = pc.index_in(Segment.keys(live), Segment.keys(usable).combine_chunks()).combine_chunks()
        missing = pc.is_null(index)
        known = live.filter(pc.invert(missing))
        there = here.take(index.drop_null())
        moved = with_column(known, "path", there.column("path"))
        changed = pc.invert(_alike(moved, there))
        gone = pc.invert(pc.is_in(Segment.keys(usable), Segment.keys(live).combine_chunks()))
        leaving = live_rows(here.filter(gone))
        added = live.filter(missing)
        copied = pa.array([paths[path] for path in added.column("path").to_pylist()], pa.string())
        added = with_column(added, "path", copied)
        fresh = before is None or _is_made_anew(version, before)
        new_erasures, erasures = _erasures(version, None if fresh else before)
        removed = removed_rows(leaving, now_ms)
        if new_erasures:
            out = pa.concat_tables([removed, in_states(here, Segment.REMOVED)])
            by_history = any(erasure.history for erasure in new_erasures)
            removed = _gone_as_at_leader(out, version.source.read(among), leaving.num_rows, by_history=by_history)
        replaced = pa.concat_tables([moved.filter(changed), removed])
        partitions = version.partitions
        if before is not None and not fresh:
            partitions = _changed(partitions, before.partitions)
        known_transactions = set() if fresh else set(self.transactions)
        transactions = [
            transaction
            for transaction in leader.transactions
            if transaction not in known_transactions
            and (transaction.key is None or transaction.version >= self.keys_from_ms)
        ]
        topic = TopicRow(
            version.topic_id,
            version.config,
            version.deleted_ms,
            states=_role(leader, self).given_to(
                {name: value for name, value in other_states(self.states).items() if name != ERASURES}
                | log_states(version.states)
                | {name: value for name, value in version.states.items() if name == TopicRow.REBUILT_FROM}
                | Erasure.noted(erasures)
            ),
        )
        change = Change(
            Operation.MIRROR,
            add=added,
            replace=replaced,
            partitions=Partition.of_table(partitions),
            topic=topic,
            transactions=transactions,
        )
        same_topic = before is not None and (topic.topic_id, topic.config, topic.deleted_ms) == (
            before.topic_id,
            before.config,
            before.deleted_ms,
        )
        is_more = not same_topic or any(map(len, (added, replaced, partitions, transactions)))
        return change, is_more

    def commit(self, manifest: Manifest, change: Change) -> int | None:
        """The version that the commit of a plan's change made. None where the follower is not what the change was made
        for any more.
        """
        if self.state is None:
            try:
                manifest.create_by(change)
            except TopicExistsError:
                return None
            return 0
        version = self.state.version

        def plan(current: Snapshot) -> Change | None:
            return change if current.version == version else None

        try:
            done = manifest.commit(plan, deleted=True, state=self.state)
        except CommitConflictError:
            return None
        return None if done.change is None else done.version


def _role(leader: LeaderVersion, follower: FollowerVersion) -> Role:
    source = SourceVersion(leader.uri, leader.snapshot.version, leader.commit_id, leader.committed_ms)
    token = None if follower.snapshot is None else follower.snapshot.role.promotion_token
    return Role(Role.FOLLOWER, leader.snapshot.role.epoch, source, promotion_token=token)


def _erasures(leader: Snapshot, follower: Snapshot | None) -> tuple[list[Erasure], list[Erasure]]:
    """(the leader's erasures that the follower does not know, all that it knows with the commit that brings these).

    Their versions are the follower's own. An erasure that went on after it was mirrored is a new one.
    """
    known = {} if follower is None else {erasure.erasure_id: erasure for erasure in Erasure.of(follower)}
    version = 0 if follower is None else follower.version + 1
    new = []
    for erasure in Erasure.of(leader):
        before = known.get(erasure.erasure_id)
        if before is None or (before.committed_ms, before.history) != (erasure.committed_ms, erasure.history):
            new.append(dataclasses.replace(erasure, version=version))
    return new, [*known.values(), *new]


def _gone_as_at_leader(out: pa.Table, leader_rows: pa.Table, leaving: int, *, by_history: bool) -> pa.Table:
    """Rows `out` of the follower's log, with the time at which the leader removed them where that is earlier.

    What the leader has deleted, or is deleting, is being deleted here: of the first `leaving` rows, which leave the log
    with this commit, what it has no row of; of the others that only for an erasure `by_history`, since the leader's
    vacuum may have been the quicker one in any case.
    """
    keys = Segment.keys(_as_at_leader(out, leader_rows))
    index = pc.index_in(keys, Segment.keys(leader_rows).combine_chunks()).combine_chunks()
    there = leader_rows.take(index)
    removed_ms = pc.min_element_wise(out.column("removed_ms"), there.column("removed_ms"))
    lost = pc.is_null(index)
    if not by_history:
        lost = pc.and_(lost, pa.array(np.arange(out.num_rows) < leaving))
    deleting = pc.or_(lost, pc.fill_null(pc.equal(there.column("state"), Segment.DELETING), False))
    states = pc.if_else(deleting, Segment.DELETING, out.column("state"))
    return with_column(with_column(out, "removed_ms", removed_ms), "state", states)


def _is_made_anew(leader: Snapshot, follower: Snapshot) -> bool:
    """Whether the follower's topic gives way to another, or was deleted and is there again."""
    return leader.topic_id != follower.topic_id or (follower.deleted_ms is not None and leader.deleted_ms is None)


def _live_rows(snapshot: Snapshot, partitions: set[int] | None) -> pa.Table:
    return snapshot.live if partitions is None else live_rows(snapshot.load_segments(partitions))


def _all_rows(follower: FollowerVersion, partitions: set[int] | None) -> pa.Table:
    if follower.snapshot is None:
        return SEGMENT_SCHEMA.empty_table()
    return follower.snapshot.source.read(partitions).combine_chunks()  # in few pieces: compared column by column


def _usable(rows: pa.Table) -> pa.Table:
    """The follower's rows that can be in its log: all but the rows whose files vacuum deletes. Live rows come first."""
    in_log = live_rows(rows)
    if in_log.num_rows == rows.num_rows:
        return rows
    return pa.concat_tables([in_log, in_states(rows, Segment.REMOVED)]).combine_chunks()


def origins(paths: pa.ChunkedArray, leader_paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """string[]: the path that each file has at the leader."""
    known = pc.is_in(paths, leader_paths.combine_chunks())
    return pc.if_else(known, paths, pc.replace_substring_regex(paths, _OWN_NAME, r"\1"))


def _as_at_leader(rows: pa.Table, leader_rows: pa.Table) -> pa.Table:
    """The rows with the path that each file has at the leader."""
    return with_column(rows, "path", origins(rows.column("path"), leader_rows.column("path")))


def partitions_that_differ(before: pa.Table, after: pa.Table) -> set[int]:
    """The numbers of the partitions that have other segment rows in `after` than in `before`."""
    index = pc.index_in(Segment.keys(after), Segment.keys(before).combine_chunks()).combine_chunks()
    known = after.filter(pc.is_valid(index))
    changed = known.filter(pc.invert(_alike(known, before.take(index.drop_null()))))
    parts = (changed, Segment.without(before, after), after.filter(pc.is_null(index)))
    return {number for rows in parts for number in pc.unique(rows.column("partition")).to_pylist()}


def _alike(table: pa.Table, other: pa.Table) -> pa.ChunkedArray:
    """bool[rows]: which rows are equal in all columns, lists aside."""

    def same(name: str) -> pa.ChunkedArray:
        mine, theirs = table.column(name), other.column(name)
        equal = pc.fill_null(pc.equal(mine, theirs), False)
        return pc.or_(equal, pc.and_(pc.is_null(mine), pc.is_null(theirs)))

    return functools.reduce(pc.and_, [same(field.name) for field in table.schema if not pa.types.is_nested(field.type)])


def _changed(partitions: pa.Table, before: pa.Table) -> pa.Table:
    """The rows of partitions that are not in `before`, both by number."""
    index = pc.index_in(partitions.column("partition"), before.column("partition").combine_chunks())
    there = before.take(index)  # a row of nulls where there was no such partition
    alike = _alike(partitions, there).to_numpy(zero_copy_only=False)
    epochs = [rows.column("leader_epochs") for rows in (partitions, there)]
    if not epochs[0].equals(epochs[1]):
        alike &= [mine == theirs for mine, theirs in zip(*(epoch.to_pylist() for epoch in epochs), strict=True)]
    return partitions.filter(pa.array(~alike))


_NOT_REPLAYED = (Operation.MERGE_FILES, Operation.VACUUM)
"""The leader's commits that change nothing of its log."""

_BRING_BACK = (Operation.RESTORE, Operation.MIRROR)
"""The leader's commits that may bring files back that had left the log. A mirror's may be a restore at its leader."""


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What Delta's log says of a commit."""

    commit_id: str
    committed_ms: int
    operation: str


@dataclass(frozen=True, slots=True)
class TopicVersions:
    """The versions of a topic's manifest as a follower replays them. `uri`: the address of the log directory."""

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
        among = self.changed_partitions(state.version) if facts.operation == Operation.MIRROR else None
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
