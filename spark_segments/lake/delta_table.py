"""The Delta table: a version of it, what it says of itself, and the next version, which is put if it is not there.

Whoever reads Delta reads it, and other writers of Delta may tidy it. So nothing rests on the names of files or on what
one file holds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark_segments.errors import LogDirError, StorageError
from spark_segments.lake.columns import are_retyped
from spark_segments.lake.table_format import (
    DAY,
    DataFile,
    NewColumns,
    TableCommit,
    TablePositions,
    TableSettings,
    changed_by_others,
)
from spark_segments.quantities import wall_ms
from spark_segments.storage import Storage
from spark_segments.storage.delta import Action, commit_info, encoded, hint_after, paths_of, reason
from spark_segments.storage.numbered_files import NumberedFiles

WRITER_VERSION = 2
"""The newest version of Delta's protocol for writers that is followed here, without features."""

CHECKPOINT_INTERVAL = 10
"""Versions between two checkpoints: delta.checkpointInterval."""

_POSITION = "userMetadata"  # Delta's name for what a user says of a commit
_RESTORE = "RESTORE"


class TableBeside:
    """The `TableFormat` of Delta, and the `Tables`."""

    replaces_files = True

    def __init__(self, storage: Storage, table: DeltaTable) -> None:
        self.storage = storage
        self.version = int(table.version())
        self._table = table
        self._commits = NumberedFiles(storage, "_delta_log", first=0)
        protocol = table.protocol()
        metadata = table.metadata()
        features = sorted({*(protocol.reader_features or []), *(protocol.writer_features or [])})
        self.partitioned_by = list(metadata.partition_columns)
        columns = pa.schema(table.schema().to_arrow())
        self.schema = pa.schema([field for field in columns if field.name not in self.partitioned_by])
        self.settings = TableSettings.of_properties(metadata.configuration)
        if protocol.min_writer_version > WRITER_VERSION or protocol.min_reader_version > 1:
            raise LogDirError(
                "The table asks its writers for more than this package knows",
                path=storage.uri,
                expected=f"minWriterVersion {WRITER_VERSION} and no features",
                found=f"minWriterVersion {protocol.min_writer_version} {', '.join(features)}".strip(),
                hint="Another program has changed the table: make another one",
            )
        self._is_append_only = metadata.configuration.get("delta.appendOnly", "").lower() == "true"
        self._read: dict[int, list[Action] | None] = {}
        self.own_positions = _position(self._actions(self.version) or [])

    @classmethod
    def open(cls, storage: Storage) -> TableBeside | None:
        uri, options = storage.delta_uri()
        with _failures(storage, "opened"):
            try:
                return cls(storage, DeltaTable(uri, storage_options=options or None))
            except TableNotFoundError:
                return None

    @classmethod
    def create(cls, storage: Storage, schema: pa.Schema, by_day: bool, settings: TableSettings) -> None:
        uri, options = storage.delta_uri()
        days = [DAY] if by_day else []
        with _failures(storage, "made"):
            DeltaTable.create(
                uri,
                _all_columns(schema, days),
                mode="ignore",
                partition_by=days or None,
                configuration=settings.to_properties(),
                storage_options=options or None,
                raise_if_key_not_exists=False,
            )

    @classmethod
    def fitting(cls, schema: pa.Schema) -> pa.Schema:
        return schema

    def is_newest(self) -> bool:
        return not self.storage.exists(self._commits.path(self.version + 1))

    def renamed(self) -> Mapping[str, str]:
        return {}  # that takes column mapping, a feature that is refused

    def is_read_by_names(self) -> bool:
        return True

    def new_columns(self, schema: pa.Schema, settings: TableSettings) -> NewColumns:
        # Delta has other types in old files by its feature typeWidening, which many readers lack.
        return NewColumns(schema, settings, needs_new_files=are_retyped(self.schema, schema))

    def positions(self) -> Iterator[TablePositions | None]:
        # Delta's history does not say whether a commit changed rows, so that the commits' own files are read.
        version = self.version
        while version >= 0:
            actions = self._actions(version)
            if actions is None:
                yield None
                return
            position = _position(actions)
            if position is not None:
                yield position
            elif commit_info(actions).get("operation") == _RESTORE:
                version = self._restored_version(version)
                continue
            elif any(_changes_rows(action) for action in actions):
                raise self._changed_by_others(version)
            version -= 1

    def _restored_version(self, version: int) -> int:
        """The version whose files the RESTORE of a version brought back. Raises LogDirError where no version has them.

            version   3: ours   4: DELETE   5: RESTORE   6: ours
            files     a b       a           a b          a b c

        The files of 5 are those of 6 without what 6 added. 3 is the newest version before 5 that has the same files.
        """
        files = {file.path for file in self.files()}
        for newer in range(self.version, version, -1):
            _undo(self._actions(newer) or [], files)
        restored = files.copy()
        for later in range(version, 0, -1):
            actions = self._actions(later)
            if actions is None:
                break
            _undo(actions, files)
            if files == restored:
                return later - 1
        raise self._changed_by_others(version)

    def _changed_by_others(self, version: int) -> LogDirError:
        """The error for a version that changed the rows, with the newest version before it that segments table made."""
        keep_rows = "commits of segments table, and those of OPTIMIZE, VACUUM and RESTORE"
        operation = commit_info(self._actions(version) or []).get("operation", "a change")
        change = f"{operation} of version {version}"
        for earlier in range(version - 1, -1, -1):
            actions = self._actions(earlier)
            if actions is None:
                break
            if _position(actions) is not None:
                return changed_by_others(self.storage, keep_rows, change, f"RESTORE it to version {earlier}")
        return changed_by_others(self.storage, keep_rows, change, "")

    def _actions(self, version: int) -> list[Action] | None:
        """The actions of a commit; None where its file is gone. Each file is read once."""
        if version not in self._read:
            self._read[version] = self._read_actions(version)
        return self._read[version]

    def _read_actions(self, version: int) -> list[Action] | None:
        path = self._commits.path(version)
        try:
            return [json.loads(line) for line in self.storage.read(path).to_pybytes().splitlines() if line.strip()]
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise LogDirError("A commit of the table is damaged", path=self.storage.location(path)) from error

    def files(self) -> list[DataFile]:
        actions = pa.RecordBatchReader.from_stream(self._table.get_add_actions(flatten=True)).read_all()
        columns = {name: actions.column(name).to_pylist() for name in actions.column_names}
        names = ["path", "size_bytes", "num_records", f"partition.{DAY}"]
        names += ["min.partition", "max.partition", "min.offset", "max.offset"]
        rows = zip(*(columns.get(name, [None] * actions.num_rows) for name in names), strict=True)
        files = []
        for path, size, records, day, *ends in rows:
            bounds = None if None in ends else {"partition": (ends[0], ends[1]), "offset": (ends[2], ends[3])}
            files.append(DataFile(unquote(path), size, records, None if day is None else str(day), bounds))
        return files

    def commit(self, commit: TableCommit) -> bool:
        if commit.removed and self._is_append_only:
            for file in commit.added:
                self.storage.delete(file.path)
            raise LogDirError(
                "Rows are to leave the table, and it takes appends alone",
                path=self.storage.uri,
                expected="delta.appendOnly false, for a table that loses what leaves its topic",
                found=f"delta.appendOnly true, and {len(commit.removed):,} files that lose rows",
                hint="Set delta.appendOnly to false, or keep an archive: segments table … --archive",
            )
        info = {
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": json.dumps(self.partitioned_by)},
            _POSITION: commit.positions.to_json(),
        }
        columns: list[Action] = [] if commit.columns is None else [{"metaData": self._metadata(commit.columns)}]
        return self._put(info, columns, commit.removed, commit.added, is_change=True)

    def replace_files(self, removed: Sequence[DataFile], added: Sequence[DataFile]) -> bool:
        info: dict[str, Any] = {"operation": "OPTIMIZE", "operationParameters": {"predicate": "[]"}}
        positions = next(self.positions(), None)
        if positions is not None:  # others' clean-up may take all commits but the newest
            info[_POSITION] = positions.to_json()
        return self._put(info, [], removed, added, is_change=False)

    def _put(
        self,
        info: Mapping[str, Any],
        columns: Sequence[Action],
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        *,
        is_change: bool,
    ) -> bool:
        """Puts the next version; False where another commit has its number. `info`: what is special in its commitInfo.
        `is_change`: of rows.
        """
        now_ms = wall_ms()
        gone = {"deletionTimestamp": now_ms, "extendedFileMetadata": True, "dataChange": is_change}
        new = {"modificationTime": now_ms, "dataChange": is_change}
        actions: list[Action] = [{"commitInfo": {"timestamp": now_ms, "engineInfo": "spark-segments", **info}}]
        actions += columns
        actions += [{"remove": self._named(file) | gone} for file in removed]
        actions += [{"add": self._named(file) | new | {"stats": _statistics(file)}} for file in added]
        try:
            self._commits.create(self.version + 1, encoded(actions))
        except FileExistsError:
            return False
        return True

    def tidy(self) -> None:
        """Makes a checkpoint of this version, where it is time for one."""
        if self.version % CHECKPOINT_INTERVAL == 0:
            with _failures(self.storage, "given a checkpoint"):
                self._table.create_checkpoint()

    def _metadata(self, columns: NewColumns) -> dict[str, Any]:
        metadata = self._table.metadata()
        fields = {
            "id": metadata.id,
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": _all_columns(columns.schema, self.partitioned_by).to_json(),
            "partitionColumns": self.partitioned_by,
            "configuration": metadata.configuration | columns.settings.to_properties(),
            "createdTime": metadata.created_time,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _named(self, file: DataFile) -> dict[str, Any]:
        return {
            "path": quote(file.path, "/="),
            "partitionValues": dict.fromkeys(self.partitioned_by, file.day),
            "size": file.size,
        }


def _all_columns(schema: pa.Schema, partitioned_by: Sequence[str]) -> Schema:
    return Schema.from_arrow(schema.append(pa.field(DAY, pa.date32())) if partitioned_by else schema)


def _changes_rows(action: Action) -> bool:
    return any(action[kind].get("dataChange", True) for kind in ("add", "remove") if kind in action)


def _undo(actions: Sequence[Action], files: set[str]) -> None:
    """Makes the files of a version the files of the version before it."""
    files.difference_update(paths_of(actions, "add"))
    files.update(paths_of(actions, "remove"))


def _position(actions: Iterable[Action]) -> TablePositions | None:
    return TablePositions.from_json(commit_info(actions).get(_POSITION) or "")


def _statistics(file: DataFile) -> str:
    bounds = file.bounds or {}
    least = {name: first for name, (first, _) in bounds.items()}
    greatest = {name: last for name, (_, last) in bounds.items()}
    statistics = {"numRecords": file.rows, "minValues": least, "maxValues": greatest, "nullCount": {}}
    # Delta has timestamps as text with milliseconds, which is all that a record's has.
    return json.dumps(statistics, default=lambda time: time.isoformat(timespec="milliseconds").replace("+00:00", "Z"))


@contextlib.contextmanager
def _failures(storage: Storage, done: str) -> Iterator[None]:
    """Turns errors of delta-rs, and of a disk, into StorageErrors."""
    try:
        yield
    except (DeltaError, OSError) as error:
        text = storage.hidden(reason(error))
        hint = hint_after(error, "Check the location, its free space and its permissions, then run it again")
        raise StorageError(f"The table cannot be {done}: {text}", path=storage.uri, hint=hint) from error
