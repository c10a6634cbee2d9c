"""The Delta table: a version of it, what it says of itself, and the next version, which is put if it is not there.

Whoever reads Delta reads it, and other writers of Delta may tidy it. So nothing rests on the names of files or on what
one file holds.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark_segments.errors import InvalidOptionError, LogDirError, StorageError
from spark_segments.log.manifest.delta.actions import encoded
from spark_segments.log.manifest.delta.delta_rs import reason
from spark_segments.maintenance.tables.position import TablePositions
from spark_segments.storage import Storage

DAY = "day"
"""The column of days, by UTC, that a table may be partitioned by."""

PARTITION_COLUMNS = (DAY,)

WRITER_VERSION = 2
"""The newest version of Delta's protocol for writers that is followed here, without features."""

CHECKPOINT_INTERVAL = 10
"""Versions between two checkpoints: delta.checkpointInterval."""

_POSITION = "userMetadata"  # Delta's name for what a user says of a commit
_SETTINGS = "segments.table"
_RECENT_COMMITS = 10


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What a table was made as. `formats`: options such as value.format, without a registry's credentials."""

    topic: str
    view: str | None = None
    archive: bool = False
    formats: Mapping[str, str] | None = None

    def to_properties(self) -> dict[str, str]:
        """The properties of the table that keep them."""
        said = {"topic": self.topic, "view": self.view, "archive": self.archive, "formats": dict(self.formats or {})}
        return {_SETTINGS: json.dumps(said)}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the table, as Delta's `add` has it. `least` and `greatest`: bounds of partition and offset.

    A file without statistics may hold anything: its bounds are None.
    """

    path: str
    size: int
    rows: int | None
    day: str | None = None
    least: tuple[int, int] | None = None
    greatest: tuple[int, int] | None = None
    statistics: str = ""


class TableBeside:
    """A version of the table at a storage's root. `open` gives the latest, or None; `create` makes one."""

    def __init__(self, storage: Storage, table: DeltaTable) -> None:
        self.storage, self._table = storage, table
        protocol = table.protocol()
        features = [*(protocol.reader_features or []), *(protocol.writer_features or [])]
        if protocol.min_writer_version > WRITER_VERSION or protocol.min_reader_version > 1:
            raise LogDirError(
                "The table asks its writers for more than this package knows",
                path=storage.uri,
                expected=f"minWriterVersion {WRITER_VERSION} and no features",
                found=f"minWriterVersion {protocol.min_writer_version} {', '.join(sorted(set(features)))}".strip(),
                hint="Another program has changed the table: make another one",
            )

    @classmethod
    def open(cls, storage: Storage) -> TableBeside | None:
        """The latest version; None where there is no table."""
        uri, options = storage.delta_uri()
        with _failures(storage, "opened"):
            try:
                return cls(storage, DeltaTable(uri, storage_options=options or None))
            except TableNotFoundError:
                return None

    @classmethod
    def create(
        cls, storage: Storage, schema: pa.Schema, partition_by: str | None, settings: TableSettings
    ) -> TableBeside:
        """Makes a table without rows. Of several processes that make it at once, only the first does."""
        uri, options = storage.delta_uri()
        try:
            fields = Schema.from_arrow(schema.append(pa.field(DAY, pa.date32())) if partition_by else schema)
        except (DeltaError, ValueError, TypeError) as error:
            raise InvalidOptionError(
                f"Delta has no such columns ({reason(error)})", found=str(schema), hint="Choose another value.format"
            ) from error
        with _failures(storage, "made"):
            DeltaTable.create(
                uri,
                fields,
                mode="ignore",
                partition_by=[partition_by] if partition_by else None,
                configuration=settings.to_properties(),
                storage_options=options or None,
                raise_if_key_not_exists=False,
            )
        found = cls.open(storage)
        assert found is not None
        return found

    @property
    def version(self) -> int:
        return int(self._table.version())

    @property
    def columns(self) -> list[str]:
        """The columns that lie in files."""
        return [field.name for field in self._table.schema().fields if field.name not in self.partitioned_by]

    @cached_property
    def partitioned_by(self) -> list[str]:
        """The columns that the table is partitioned by."""
        columns = list(self._table.metadata().partition_columns)
        if any(name not in PARTITION_COLUMNS for name in columns):
            raise LogDirError(
                "The table is partitioned by columns that no topic has",
                path=self.storage.uri,
                expected=" or ".join((*PARTITION_COLUMNS, "none")),
                found=", ".join(columns),
            )
        return columns

    @cached_property
    def settings(self) -> TableSettings | None:
        """What the table was made as; None for a table that other programs made."""
        said = self._table.metadata().configuration.get(_SETTINGS)
        return None if said is None else TableSettings(**json.loads(said))

    def check_columns(self, schema: pa.Schema) -> None:
        """Raises InvalidOptionError where the columns that would be written are others than the table's."""
        wanted = {field.name: str(field.type) for field in Schema.from_arrow(schema).fields}
        types = {field.name: str(field.type) for field in self._table.schema().fields if field.name in self.columns}
        if wanted != types:
            differ = sorted({name for name, _ in wanted.items() ^ types.items()})
            raise InvalidOptionError(
                "The table has other columns than its topic has by these options",
                path=self.storage.uri,
                expected=", ".join(f"{name}: {types[name]}" for name in differ if name in types),
                found=", ".join(f"{name}: {wanted[name]}" for name in differ if name in wanted),
                hint="Give the options that the table was made with, or make another table",
            )

    def position(self) -> TablePositions | None:
        """The table's position: that of its last commit with a position."""
        for limit in (_RECENT_COMMITS, None):  # a table has thousands of commits, and mostly the last has the position
            with _failures(self.storage, "read"):
                commits = self._table.history(limit)
            for commit in commits:
                found = TablePositions.from_json(commit.get(_POSITION) or "")
                if found is not None:
                    return found
        return None

    def files(self) -> list[DataFile]:
        """The files of this version."""
        actions = pa.RecordBatchReader.from_stream(self._table.get_add_actions(flatten=True)).read_all()
        columns = {name: actions.column(name).to_pylist() for name in actions.column_names}
        nothing = [None] * actions.num_rows
        names = ["path", "size_bytes", "num_records", f"partition.{DAY}"]
        names += ["min.partition", "min.offset", "max.partition", "max.offset"]
        return [
            DataFile(
                unquote(path),
                size,
                rows,
                None if day is None else str(day),
                None if None in (*least, *greatest) else (least[0], least[1]),
                None if None in (*least, *greatest) else (greatest[0], greatest[1]),
            )
            for path, size, rows, day, *bounds in zip(*(columns.get(name, nothing) for name in names), strict=True)
            for least, greatest in [(bounds[:2], bounds[2:])]
        ]

    def commit(self, position: TablePositions, added: Iterable[DataFile], removed: Iterable[DataFile]) -> bool:
        """Puts the next version; False where another commit has its number, or this one whose reply was lost."""
        now_ms = time.time_ns() // 1_000_000
        info = {
            "timestamp": now_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": json.dumps(self.partitioned_by)},
            "engineInfo": "spark-segments",
            _POSITION: position.to_json(),
        }
        actions: list[dict[str, Any]] = [{"commitInfo": info}]
        gone = {"deletionTimestamp": now_ms, "extendedFileMetadata": True}
        actions += [{"remove": {**self._named(one), **gone}} for one in removed]
        actions += [{"add": {**self._named(one), "modificationTime": now_ms, "stats": one.statistics}} for one in added]
        try:
            self.storage.create(f"_delta_log/{self.version + 1:020d}.json", encoded(actions))
        except FileExistsError:
            return False
        return True

    def made_checkpoint(self) -> None:
        """Makes a checkpoint of this version, where it is time for one."""
        if self.version % CHECKPOINT_INTERVAL == 0:
            with _failures(self.storage, "given a checkpoint"):
                self._table.create_checkpoint()

    def _named(self, one: DataFile) -> dict[str, Any]:
        return {
            "path": quote(one.path, "/="),
            "partitionValues": {name: one.day for name in self.partitioned_by},
            "size": one.size,
            "dataChange": True,
        }


@contextlib.contextmanager
def _failures(storage: Storage, done: str) -> Iterator[None]:
    """Turns errors of delta-rs into StorageErrors."""
    try:
        yield
    except DeltaError as error:
        text = storage.hidden(reason(error))
        raise StorageError(f"The table cannot be {done}: {text}", path=storage.uri) from error
