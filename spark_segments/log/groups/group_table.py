"""The Delta table of a group: all positions are rows of a single small file, which every commit replaces.

A commit is a compare-and-swap on the version after the one that was read. The table keeps the versions of an hour, so
the number of its files is bounded by how often its reader commits.
"""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake import exceptions as delta_errors
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from spark_segments.errors import CommitConflictError, SegmentsError, StorageError, UnknownOutcomeError
from spark_segments.log.groups.positions import POSITION_SCHEMA, Position, TopicPartition
from spark_segments.log.manifest.delta.delta_log import commit_info, reason
from spark_segments.storage import FileInfo, Storage

GROUPS_DIRECTORY = "_groups"

CHECKPOINT_VERSIONS = 20
KEPT_MS = 60 * 60 * 1000
"""How long a version stays readable, by the store's clock: far longer than a commit takes, which looks for its id."""

_TRIES = 30
_LONGEST_PAUSE_SECONDS = 0.5
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_PROPERTIES = {"delta.enableExpiredLogCleanup": "false"}
_FAILURES = (delta_errors.DeltaError, OSError, ValueError)
_NO_VERSION = 10**20
_VERSION = re.compile(r"^(\d{20})\.(json|checkpoint.*)$")

Rows = dict[TopicPartition, Position]
Plan = Callable[[Rows], Rows | None]


@dataclass(frozen=True, slots=True)
class _State:
    """A version of the table; `table` is None, and the version -1, where there is none yet."""

    table: DeltaTable | None
    version: int
    path: str | None
    size: int
    rows: Rows


class GroupTable:
    """The table of a group, whether or not it exists. Holds no state: every call reads the table afresh."""

    def __init__(self, storage: Storage, group: str) -> None:
        self._storage = storage
        self._group = group
        self._directory = f"{GROUPS_DIRECTORY}/{group}"

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
        failure: Exception | None = None
        for attempt in range(_TRIES + 1):
            if attempt:
                time.sleep(random.uniform(0, min(_LONGEST_PAUSE_SECONDS, 0.02 * 2**attempt)))
            try:
                state = self._read()
                if sent is not None and self._happened(commit_id, range(sent, state.version + 1)):
                    return self._read().rows
            except SegmentsError as error:
                if sent is None:
                    raise
                failure = error
                continue
            if attempt == _TRIES:  # the last try was looked for, and did not happen
                break
            rows = plan(state.rows)
            if rows is None:
                return state.rows
            first, sent = sent is None, state.version + 1 if sent is None else sent
            try:
                self._send(state, rows, commit_id)
            except (SegmentsError, *_FAILURES) as error:  # no error of a commit proves that it did not happen
                if first and isinstance(error, SegmentsError):  # the file of the rows was not written
                    raise
                failure = error
                continue
            self._keep_small(state.version + 1)
            return rows
        if isinstance(failure, delta_errors.CommitFailedError):
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
        uri, options = self._storage.delta_uri(self._directory)
        for _ in range(_TRIES):
            try:
                table = DeltaTable(uri, storage_options=options or None)
            except delta_errors.TableNotFoundError:
                return _State(None, -1, None, 0, {})
            except _FAILURES as error:
                raise StorageError(
                    f"The positions of group {self._group} cannot be read: {reason(error)}", path=self._location
                ) from error
            actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
            if len(actions) != 1:
                raise StorageError(
                    "Not a table of positions", path=self._location, expected="one file", found=len(actions)
                )
            path, size = actions[0]["path"], actions[0]["size_bytes"]
            try:
                content = self._storage.read(f"{self._directory}/{path}")
            except FileNotFoundError:  # a reader this slow finds that newer versions have taken its place
                continue
            return _State(table, table.version(), path, size, _rows_of(content, self._location))
        raise StorageError(f"The positions of group {self._group} are gone as soon as found", path=self._location)

    def _send(self, state: _State, rows: Rows, commit_id: str) -> None:
        path, content = f"part-{uuid.uuid4().hex}.parquet", _content(rows)
        self._storage.write(f"{self._directory}/{path}", content, unique=True)
        now_ms = time.time_ns() // 1_000_000
        statistics = json.dumps({"numRecords": len(rows)})
        added = AddAction(path, content.size, {}, now_ms, True, statistics)
        properties = CommitProperties(custom_metadata={"commitId": commit_id}, max_commit_retries=0)
        schema = Schema.from_arrow(POSITION_SCHEMA)
        if state.table is None or state.path is None:
            uri, options = self._storage.delta_uri(self._directory)
            create_table_with_add_actions(
                uri,
                schema,
                [added],
                mode="error",
                name=self._group,
                configuration=_PROPERTIES,
                storage_options=options or None,
                commit_properties=properties,
                post_commithook_properties=_NO_HOOKS,
            )
            return
        removed = RemoveAction(state.path, True, now_ms, state.size, {})
        state.table.create_write_transaction(
            [added, removed],
            mode="append",
            schema=schema,
            commit_properties=properties,
            post_commithook_properties=_NO_HOOKS,
        )

    def _happened(self, commit_id: str, versions: range) -> bool:
        for version in versions:
            try:
                content = self._storage.read(f"{self._directory}/_delta_log/{version:020d}.json").to_pybytes()
            except FileNotFoundError as error:
                raise StorageError("A version of the positions is missing", path=str(error.filename)) from error
            if commit_info(json.loads(line) for line in content.splitlines()).get("commitId") == commit_id:
                return True
        return False

    def _keep_small(self, version: int) -> None:
        """Now and then writes a checkpoint and deletes what only versions older than KEPT_MS need."""
        if version % CHECKPOINT_VERSIONS:
            return
        uri, options = self._storage.delta_uri(self._directory)
        try:
            DeltaTable(uri, storage_options=options or None).create_checkpoint()
            self._storage.delete(info.path for info in self._expired(self._storage.now_ms() - KEPT_MS))
        except (*_FAILURES, SegmentsError):  # the positions stand without it, and a later commit tries again
            return

    def _expired(self, before_ms: int) -> list[FileInfo]:
        """Files that versions older than a time alone need, in a safe order of deletion."""
        rows = [info for info in self._storage.list(self._directory) if info.mtime_ms < before_ms]
        log = self._storage.list(f"{self._directory}/_delta_log")
        versions = {info: int(match[1]) for info in log if (match := _VERSION.match(info.path.rpartition("/")[2]))}
        checkpoints = {version for info, version in versions.items() if ".checkpoint" in info.path}
        young = min((version for info, version in versions.items() if info.mtime_ms >= before_ms), default=_NO_VERSION)
        first = max((version for version in checkpoints if version <= young), default=0)
        expired = sorted((info for info in versions if versions[info] < first), key=lambda info: versions[info])
        named = self._read().path
        return [*(info for info in rows if not info.path.endswith(f"/{named}")), *expired]


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


def _rows_of(content: pa.Buffer, location: str) -> Rows:
    try:
        rows = pq.ParquetFile(pa.BufferReader(content)).read(columns=POSITION_SCHEMA.names).to_pylist()
        return {
            (row["topic"], row["partition"]): Position(
                row["offset"], row["topic_id"], row["leader_epoch"], row["committed_ms"]
            )
            for row in rows
        }
    except (pa.ArrowException, OSError, KeyError) as error:
        raise StorageError(f"A file of positions is damaged ({reason(error)})", path=location) from error
