"""A follower: the files that it lacks of a version of its leader, and the change that makes it that version.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import CommitConflictError, TopicExistsError, UnknownTopicError
from spark_segments.log import (
    Change,
    Erasure,
    Manifest,
    Operation,
    Partition,
    Segment,
    Snapshot,
    TableState,
    TopicRow,
    Transaction,
    row_tables,
    states_of_copy,
)
from spark_segments.replicas.leader import LeaderVersion, are_alike
from spark_segments.replicas.role import Role, SourceVersion, role_of

_OWN_NAME = r"_[0-9a-f]{32}(\.log)$"


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
        keys_from_ms = manifest.keys_from_ms(state.snapshot.config)
        return cls(state.snapshot, state.last_transactions(), keys_from_ms, state)

    @property
    def states(self) -> Mapping[str, str]:
        return {} if self.snapshot is None else self.snapshot.states

    @property
    def is_follower(self) -> bool:
        return self.snapshot is not None and role_of(self.snapshot).is_follower

    def has_led(self, leader: Snapshot) -> bool:
        """Whether the topic was not always a follower: its files were here before they were the leader's, perhaps."""
        here = self.snapshot
        return here is not None and here.topic_id == leader.topic_id and not role_of(here).is_follower

    @property
    def is_there(self) -> bool:
        """Whether there is a topic, which was not deleted."""
        return self.snapshot is not None and self.snapshot.deleted_ms is None

    def missing(self, leader: LeaderVersion, partitions: set[int] | None = None) -> tuple[pa.Table, set[str]]:
        """(the leader's live rows whose files the follower lacks, the paths among them that a vacuum here may still
        delete).

        `partitions`: the only ones that are looked at; None for all. Such a path was in the follower's log before: its
        row is being deleted, or the file came back after the row was dropped. Where the topic led here, any may be such
        a path.
        """
        live = _live_rows(leader.snapshot, partitions)
        rows = _all_rows(self, partitions)
        usable = _as_at_leader(_usable(rows), live)
        missing = row_tables.without(live, usable)
        paths = missing.column("path")
        deleting = row_tables.in_states(rows, Segment.DELETING).column("path")
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
        before = self.snapshot
        version = leader.snapshot
        is_fresh = before is None or _is_made_anew(version, before)
        new_erasures, erasures = _erasures(version, None if is_fresh else before)
        added, replaced = self._changed_segments(version, paths, now_ms, among, new_erasures)
        partitions = version.partitions
        if before is not None and not is_fresh:
            partitions = _changed(partitions, before.partitions)
        transactions = self._new_transactions(leader, is_fresh=is_fresh)
        topic = TopicRow(
            version.topic_id,
            version.config,
            version.deleted_ms,
            states=_role(leader, self).given_to(states_of_copy(self.states, version.states, erasures)),
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

    def _changed_segments(
        self,
        version: Snapshot,
        paths: Mapping[str, str],
        now_ms: int,
        among: set[int] | None,
        new_erasures: Sequence[Erasure],
    ) -> tuple[pa.Table, pa.Table]:
        """(the rows to add, the rows to replace), so that the live rows here are the leader's at a version.

        leader   |==a==|==b==|==c'==|==d==|
        here     |==a==|==b==|==c===|        and x, which the leader has no more
        change    c replaced by c', with the path here; x removed; d added
        """
        live = _live_rows(version, among)
        here = _usable(_all_rows(self, among))
        usable = _as_at_leader(here, live)
        index = pc.index_in(row_tables.keys(live), row_tables.keys(usable).combine_chunks()).combine_chunks()
        missing = pc.is_null(index)
        shared = live.filter(pc.invert(missing))
        own = here.take(index.drop_null())
        moved = row_tables.with_column(shared, "path", own.column("path"))
        changed = pc.invert(are_alike(moved, own))
        gone = pc.invert(pc.is_in(row_tables.keys(usable), row_tables.keys(live).combine_chunks()))
        leaving = row_tables.live(here.filter(gone))
        added = live.filter(missing)
        copied = pa.array([paths[path] for path in added.column("path").to_pylist()], pa.string())
        added = row_tables.with_column(added, "path", copied)
        removed = row_tables.removed(leaving, now_ms)
        if new_erasures:
            out = pa.concat_tables([removed, row_tables.in_states(here, Segment.REMOVED)])
            by_history = any(erasure.history for erasure in new_erasures)
            removed = _gone_as_at_leader(out, version.source.read(among), leaving.num_rows, by_history=by_history)
        replaced = pa.concat_tables([moved.filter(changed), removed])
        # What the follower has after this change, put together again from the change: it must be what the leader has.
        after = [row_tables.without(row_tables.live(here), replaced), row_tables.live(replaced), added]
        Change.check_mirrored(version, live, pa.concat_tables(after))
        return added, replaced

    def _new_transactions(self, leader: LeaderVersion, *, is_fresh: bool) -> list[Transaction]:
        """The leader's transactions that are not here, but for idempotency keys that are so old that the follower has
        forgotten them: added again, each run would add them.
        """
        existing = set() if is_fresh else set(self.transactions)
        return [
            transaction
            for transaction in leader.transactions
            if transaction not in existing and (transaction.key is None or transaction.version >= self.keys_from_ms)
        ]

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


def deletes_files(change: Change) -> bool:
    """Whether the change of a plan deletes files that must not wait for a reader."""
    assert isinstance(change.replace, pa.Table), "as the plan makes it"
    return bool(row_tables.in_states(change.replace, Segment.DELETING).num_rows)


def _role(leader: LeaderVersion, follower: FollowerVersion) -> Role:
    source = SourceVersion(leader.uri, leader.snapshot.version, leader.commit_id, leader.committed_ms)
    token = None if follower.snapshot is None else role_of(follower.snapshot).promotion_token
    return Role(Role.FOLLOWER, role_of(leader.snapshot).epoch, source, promotion_token=token)


def _erasures(leader: Snapshot, follower: Snapshot | None) -> tuple[list[Erasure], list[Erasure]]:
    """(the leader's erasures that the follower does not know, all that it knows with the commit that brings these).

    Their versions are the follower's own. An erasure that went on after it was mirrored is a new one.
    """
    own = {} if follower is None else {erasure.erasure_id: erasure for erasure in Erasure.of(follower)}
    version = 0 if follower is None else follower.version + 1
    new = []
    for erasure in Erasure.of(leader):
        before = own.get(erasure.erasure_id)
        if before is None or (before.committed_ms, before.history) != (erasure.committed_ms, erasure.history):
            new.append(dataclasses.replace(erasure, version=version))
    return new, [*own.values(), *new]


def _gone_as_at_leader(out: pa.Table, leader_rows: pa.Table, leaving: int, *, by_history: bool) -> pa.Table:
    """Rows `out` of the follower's log, with the time at which the leader removed them where that is earlier.

    What the leader has deleted, or is deleting, is being deleted here: of the first `leaving` rows, which leave the log
    with this commit, what it has no row of; of the others that only for an erasure `by_history`, since the leader's
    vacuum may have been the quicker one in any case.
    """
    keys = row_tables.keys(_as_at_leader(out, leader_rows))
    index = pc.index_in(keys, row_tables.keys(leader_rows).combine_chunks()).combine_chunks()
    theirs = leader_rows.take(index)
    removed_ms = pc.min_element_wise(out.column("removed_ms"), theirs.column("removed_ms"))
    lost = pc.is_null(index)
    if not by_history:
        lost = pc.and_(lost, pa.array(np.arange(out.num_rows) < leaving))
    deleting = pc.or_(lost, pc.fill_null(pc.equal(theirs.column("state"), Segment.DELETING), False))
    states = pc.if_else(deleting, Segment.DELETING, out.column("state"))
    return row_tables.with_column(row_tables.with_column(out, "removed_ms", removed_ms), "state", states)


def _is_made_anew(leader: Snapshot, follower: Snapshot) -> bool:
    """Whether the follower's topic gives way to another, or was deleted and is there again."""
    return leader.topic_id != follower.topic_id or (follower.deleted_ms is not None and leader.deleted_ms is None)


def _live_rows(snapshot: Snapshot, partitions: set[int] | None) -> pa.Table:
    return snapshot.live if partitions is None else row_tables.live(snapshot.load_segments(partitions))


def _all_rows(follower: FollowerVersion, partitions: set[int] | None) -> pa.Table:
    if follower.snapshot is None:
        return Segment.table(())
    return follower.snapshot.source.read(partitions).combine_chunks()  # in few pieces: compared column by column


def _usable(rows: pa.Table) -> pa.Table:
    """The follower's rows that can be in its log: all but the rows whose files vacuum deletes. Live rows come first."""
    in_log = row_tables.live(rows)
    if in_log.num_rows == rows.num_rows:
        return rows
    return pa.concat_tables([in_log, row_tables.in_states(rows, Segment.REMOVED)]).combine_chunks()


def origins(paths: pa.ChunkedArray, leader_paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """string[]: the path that each file has at the leader."""
    is_theirs = pc.is_in(paths, leader_paths.combine_chunks())
    return pc.if_else(is_theirs, paths, pc.replace_substring_regex(paths, _OWN_NAME, r"\1"))


def _as_at_leader(rows: pa.Table, leader_rows: pa.Table) -> pa.Table:
    """The rows with the path that each file has at the leader."""
    return row_tables.with_column(rows, "path", origins(rows.column("path"), leader_rows.column("path")))


def _changed(partitions: pa.Table, before: pa.Table) -> pa.Table:
    """The rows of partitions that are not in `before`, both by number."""
    index = pc.index_in(partitions.column("partition"), before.column("partition").combine_chunks())
    previous = before.take(index)  # a row of nulls where there was no such partition
    alike = are_alike(partitions, previous).to_numpy(zero_copy_only=False)
    epochs = [rows.column("leader_epochs") for rows in (partitions, previous)]
    if not epochs[0].equals(epochs[1]):
        alike &= [mine == theirs for mine, theirs in zip(*(epoch.to_pylist() for epoch in epochs), strict=True)]
    return partitions.filter(pa.array(~alike))
