"""The table of a group: all positions are rows of a single small file, which every commit replaces.

A commit is a compare-and-swap on the version after the one that was read. The table keeps the versions of an hour, so
the number of its files is bounded by how often its reader commits. group_log.py is the table's log.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from spark_segments.errors import CommitConflictError, SegmentsError, StorageError, UnknownOutcomeError
from spark_segments.log.groups.group_log import (
    DeltaRsGroupLog,
    GroupVersion,
    OpenGroupLog,
    PositionsFile,
    group_directory,
)
from spark_segments.log.groups.positions import POSITION_SCHEMA, Position, TopicPartition
from spark_segments.log.manifest.delta.delta_log import (
    CommitFailedError,
    VersionTakenError,
    commit_info,
    paths_of,
    reason,
)
from spark_segments.storage import FileInfo, Storage

CHECKPOINT_VERSIONS = 20
KEPT_MS = 60 * 60 * 1000
"""How long a version stays readable, by the store's clock: far longer than a commit takes, which looks for its id."""

ORPHANS_KEPT_MS = 7 * 24 * 60 * 60 * 1000
"""How long a file stays that no version names, by the store's clock: its commit may be under way."""

_TRIES = 30
_LONGEST_PAUSE_SECONDS = 0.5

Rows = dict[TopicPartition, Position]
Plan = Callable[[Rows], Rows | None]


@dataclass(frozen=True, slots=True)
class _State:
    """The latest version, None where there is no table yet, and its positions."""

    latest: GroupVersion | None
    rows: Rows

    @property
    def version(self) -> int:
        return -1 if self.latest is None else self.latest.version


class GroupTable:
    """The table of a group, whether or not it exists. Holds no state: every call reads the table afresh."""

    def __init__(self, storage: Storage, group: str, open_log: OpenGroupLog = DeltaRsGroupLog) -> None:
        self._storage = storage
        self._group = group
        self._directory = group_directory(group)
        self._log = open_log(storage, group)

    def positions(self) -> Rows:
        """The positions as they are now; none where the group never committed."""
        return self._read().rows

    def commit(self, plan: Plan) -> Rows:
        """Replaces the positions by what `plan` makes of them, and returns the new ones.

        `plan` is called again where another commit came first; whatever it raises ends the commit. It returns None
        where nothing is to do. Raises StorageError; CommitConflictError where other commits came first in every try;
        UnknownOutcomeError where the commit may have happened.
        """
        commit_id = uuid.uuid4().hex
        sent: int | None = None  # the version of the first try
        newest = -1  # the version of the last try
        failure: Exception | None = None
        for attempt in range(_TRIES + 1):
            if attempt:
                time.sleep(random.uniform(0, min(_LONGEST_PAUSE_SECONDS, 0.02 * 2**attempt)))
            try:
                state = self._read()
                if sent is not None:
                    made = self._made_by(commit_id, range(sent, state.version + 1))
                    if made is not None:
                        return made
            except SegmentsError as error:
                if sent is None:
                    raise
                failure = error
                continue
            if attempt == _TRIES:  # the last try was looked for, and did not happen
                break
            rows = plan(state.rows)
            if rows is None:
                if state.version >= newest:
                    return state.rows
                continue  # a try may still happen, and what it would change is there as long as it may
            try:
                file = self._write(rows)
                newest = state.version + 1
                sent = newest if sent is None else sent
                self._log.commit_on(state.latest, file, commit_id)
            except SegmentsError as error:
                if sent is None:
                    raise
                failure = error
                continue
            except CommitFailedError as error:  # no error of a commit proves that it did not happen
                failure = error
                continue
            self._keep_small(newest)
            return rows
        if isinstance(failure, VersionTakenError):
            raise CommitConflictError(
                f"Other commits to group {self._group} came first, {_TRIES} times",
                path=self._location,
                hint="Commit the positions again",
            ) from failure
        raise UnknownOutcomeError(
            f"The positions of group {self._group} may have been committed, or not: {reason(failure)}",
            path=self._location,
            hint="Read the group's positions before going on",
        ) from failure

    @property
    def _location(self) -> str:
        return self._storage.location(self._directory)

    def _read(self) -> _State:
        for _ in range(_TRIES):
            latest = self._log.open()
            if latest is None:
                return _State(None, {})
            try:
                content = self._storage.read(f"{self._directory}/{latest.file.path}")
            except FileNotFoundError:  # a reader this slow finds that newer versions have taken its place
                continue
            return _State(latest, rows_of(content, self._location))
        raise StorageError(f"The positions of group {self._group} are gone as soon as found", path=self._location)

    def _write(self, rows: Rows) -> PositionsFile:
        path, content = f"part-{uuid.uuid4().hex}.parquet", _content(rows)
        self._storage.write(f"{self._directory}/{path}", content, unique=True)
        return PositionsFile(path, content.size, len(rows))

    def _made_by(self, commit_id: str, versions: range) -> Rows | None:
        """The positions that a commit made; None where it made no version. Others may have moved them since."""
        try:
            for version in versions:
                actions = self._log.actions(version)
                if commit_info(actions).get("commitId") == commit_id:
                    [path] = paths_of(actions, "add")
                    return rows_of(self._storage.read(f"{self._directory}/{path}"), self._location)
        except FileNotFoundError as error:
            raise StorageError("A version of the positions is missing", path=str(error.filename)) from error
        return None

    def _keep_small(self, version: int) -> None:
        """Now and then writes a checkpoint and deletes what only versions older than KEPT_MS need."""
        if version % CHECKPOINT_VERSIONS:
            return
        try:
            self._log.checkpoint()
            for rows, log in self._expired(self._storage.now_ms()):
                self._storage.delete(info.path for info in rows)
                self._log.delete(log)
        except (SegmentsError, FileNotFoundError):  # the positions stand without it, and a later commit tries again
            return

    def _expired(self, now_ms: int) -> Iterator[tuple[list[FileInfo], list[FileInfo]]]:
        """(files of rows, files of the log) to be deleted, in a safe order.

        A file of rows goes with the version that names it, and before the log forgets that it did. A file that no
        version names may belong to a commit that is under way.
        """
        files = {info.path.rpartition("/")[2]: info for info in self._storage.list(self._directory)}
        log = self._log.log_files()
        young = min(
            (version for version, info in log.commits.items() if info.mtime_ms >= now_ms - KEPT_MS),
            default=max(log.commits, default=0),
        )
        first = max((version for version in log.checkpoints if version <= young), default=0)
        for version in sorted(version for version in log.commits.keys() | log.checkpoints.keys() if version < first):
            commit = log.commits.get(version)
            named = [] if commit is None else paths_of(self._log.actions(version), "add")
            rows = [files.pop(path) for path in named if path in files]
            yield rows, [*([] if commit is None else [commit]), *log.checkpoints.get(version, [])]
        old = {path: info for path, info in files.items() if info.mtime_ms < now_ms - ORPHANS_KEPT_MS}
        if old:
            for version in log.commits:
                for path in paths_of(self._log.actions(version), "add") if version >= first else ():
                    old.pop(path, None)
            yield [*old.values()], []


def _content(rows: Mapping[TopicPartition, Position]) -> pa.Buffer:
    table = pa.Table.from_pylist(
        [
            {
                "topic": topic,
                "partition": partition,
                "offset": position.offset,
                "topic_id": position.topic_id,
                "leader_epoch": position.leader_epoch,
                "committed_ms": position.committed_ms,
            }
            for (topic, partition), position in sorted(rows.items())
        ],
        POSITION_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    return sink.getvalue()


def rows_of(content: pa.Buffer, location: str) -> Rows:
    """The positions of a file. Raises StorageError for a file that is damaged; `location` is the table's."""
    try:
        found = pq.ParquetFile(pa.BufferReader(content)).read(columns=POSITION_SCHEMA.names)
        table = found.select(POSITION_SCHEMA.names).cast(POSITION_SCHEMA)
        table.validate(full=True)
        if any(column.null_count for column in table.columns):
            raise ValueError("a position lacks a value")
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise StorageError(f"A file of positions is damaged ({reason(error)})", path=location) from error
    return {
        (row["topic"], row["partition"]): Position(
            row["offset"], row["topic_id"], row["leader_epoch"], row["committed_ms"]
        )
        for row in table.to_pylist()
    }
