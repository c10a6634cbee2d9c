"""The Iceberg table: a version of it, and the next snapshot, which a catalog takes unless another commit came first.

The summary of a snapshot says which offsets the table has. pyiceberg would retry a commit on top of other commits, and
so append records twice: `_OneTry` hands it to the catalog once, with the snapshot that it was made for.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.utils.datetime import date_str_to_days, to_human_day

from spark_segments.errors import InvalidOptionError, LogDirError, SegmentsError, StorageError
from spark_segments.lake.table_format import (
    DAY,
    DataFile,
    NewColumns,
    TableCommit,
    TablePositions,
    TableSettings,
    changed_by_others,
    own_catalog,
)
from spark_segments.storage import Storage

_PLAIN = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}

_POSITION = "segments.position"
_CHANGES = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")
_SECRET = re.compile("secret|token|credential|password|key|uri", re.IGNORECASE)
_PROPERTIES = {"write.metadata.delete-after-commit.enabled": "true"}  # but for the last 100 files


@dataclass(frozen=True, slots=True)
class IcebergTables:
    """The `Tables` of a catalog, which pyiceberg's configuration names. None: the SQLite catalog beside a table. There
    a table has the last two names of its address.
    """

    catalog: str | None = None

    def open(self, storage: Storage) -> IcebergTable | None:
        if self.catalog is None and storage.is_local and not own_catalog(storage).exists():
            return None
        catalog = self._loaded(storage)
        with _failures(storage, "opened", catalog.properties):
            try:
                return IcebergTable(storage, catalog.load_table(_identifier(storage)))
            except NoSuchTableError:
                return None

    def create(self, storage: Storage, schema: pa.Schema, by_day: bool, settings: TableSettings) -> None:
        if self.catalog is None and storage.is_local:
            own_catalog(storage).parent.mkdir(parents=True, exist_ok=True)
        catalog = self._loaded(storage)
        with _failures(storage, "made", catalog.properties):
            columns = _with_ids(schema)
            properties = _PROPERTIES | settings.to_properties()
            source = columns.find_field("timestamp").field_id
            days = [PartitionField(source, 1000, DayTransform(), f"timestamp_{DAY}")] if by_day else []
            name = _identifier(storage)
            catalog.create_namespace_if_not_exists(name[0])
            # Another process may create it at the same time: which one's columns it has, its opener looks at.
            with contextlib.suppress(TableAlreadyExistsError):
                catalog.create_table(name, columns, storage.uri, PartitionSpec(*days), properties=properties)

    def fitting(self, schema: pa.Schema) -> pa.Schema:
        return _to_arrow(_with_ids(schema))

    def _loaded(self, storage: Storage) -> Catalog:
        if self.catalog is None and not storage.is_local:
            raise InvalidOptionError(
                "An Iceberg table in an object store needs a catalog",
                path=storage.uri,
                expected="the name of a catalog that pyiceberg is configured for",
                hint="Configure one in ~/.pyiceberg.yaml, and name it: --catalog NAME",
            )
        own = {} if self.catalog else {"type": "sql", "uri": f"sqlite:///{own_catalog(storage)}"}
        with _failures(storage, "found in its catalog", own):
            return load_catalog(self.catalog or "segments", **own)


class IcebergTable:
    """The `TableFormat` of Iceberg."""

    replaces_files = False

    def __init__(self, storage: Storage, table: Table) -> None:
        self.storage = storage
        self._table = table
        table.catalog = _OneTry(table.catalog)  # type: ignore[assignment]
        self._snapshot = table.current_snapshot()
        self.version = 0 if self._snapshot is None else int(self._snapshot.sequence_number or 0)
        self.schema = _to_arrow(table.schema())
        self.settings = TableSettings.of_properties(table.properties)
        self.own_positions = None if self._snapshot is None else _position(self._snapshot)
        columns = table.schema()
        parts = [f"{field.transform} of {columns.find_column_name(field.source_id)}" for field in table.spec().fields]
        self.partitioned_by = [DAY] if parts == [f"{DAY} of timestamp"] else parts

    def is_newest(self) -> bool:
        return False  # the catalog says it, with the table

    def renamed(self) -> Mapping[str, str]:
        now = _names(self._table.schema())
        renamed: dict[str, str] = {}
        for schema in self._table.schemas().values():
            renamed |= {name: now[number] for number, name in _names(schema).items() if now.get(number, name) != name}
        return {name: new for name, new in renamed.items() if name not in now.values()}

    def is_read_by_names(self) -> bool:
        ids = {name: number for number, name in _names(self._table.schema()).items()}
        earlier = (_names(schema) for schema in self._table.schemas().values())
        return all(ids.get(name, number) == number for names in earlier for number, name in names.items()) and not (
            self.renamed()
        )

    def new_columns(self, schema: pa.Schema, settings: TableSettings) -> NewColumns:
        try:
            change = self._table.transaction()
            with change.update_schema() as update:
                update.union_by_name(_with_ids(schema))
        except ValidationError as error:
            raise InvalidOptionError(
                f"The table's columns cannot become those of the topic: {error}",
                path=self.storage.uri,
                expected="int to long, float to double, a decimal of more digits, or new fields",
                hint="Set key.schema or value.schema to Spark's DDL with the types of the table, or make another table",
            ) from error
        # Readers widen what old files have.
        return NewColumns(_to_arrow(change.table_metadata.schema()), settings, needs_new_files=False)

    def positions(self) -> Iterator[TablePositions | None]:
        snapshot = self._snapshot
        while snapshot is not None:
            position = _position(snapshot)
            if position is not None:
                yield position
            elif _changes_rows(snapshot):
                keep_rows = "snapshots of segments table, and those that replace files by files of the same rows"
                found = f"a snapshot {snapshot.snapshot_id} of another program"
                raise changed_by_others(self.storage, keep_rows, found, self._way_back(snapshot))
            parent = self._parent(snapshot)
            if parent is None and snapshot.sequence_number != 1:
                yield None
            snapshot = parent

    def _parent(self, snapshot: Snapshot) -> Snapshot | None:
        """The snapshot before another one, expired or not. None for the first snapshot, and where nobody knows."""
        parent = self._table.snapshot_by_id(snapshot.parent_snapshot_id or -1)
        if parent is None and snapshot.sequence_number != 1:
            original = self._of_earlier_metadata.get(snapshot.snapshot_id, snapshot)
            parent = self._of_earlier_metadata.get(original.parent_snapshot_id or -1)
        return parent

    @cached_property
    def _of_earlier_metadata(self) -> dict[int, Snapshot]:
        """The snapshots of the table's earlier metadata files, by id. pyiceberg clears a parent's id where that one
        expires: the oldest file has a snapshot as it was made.
        """
        snapshots: dict[int, Snapshot] = {}
        with _failures(self.storage, "read", self._table.catalog.properties):
            for entry in self._table.metadata.metadata_log:
                with contextlib.suppress(FileNotFoundError):
                    metadata = FromInputFile.table_metadata(self._table.io.new_input(entry.metadata_file))
                    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots} | snapshots
        return snapshots

    def _way_back(self, snapshot: Snapshot | None) -> str:
        while snapshot is not None:
            if _position(snapshot) is not None:
                return f"Roll the table back to snapshot {snapshot.snapshot_id}"
            snapshot = self._table.snapshot_by_id(snapshot.parent_snapshot_id or -1)  # an expired one is no way back
        return ""

    def files(self) -> list[DataFile]:
        return [self._of_table(file) for file in self._files.values()]

    @cached_property
    def _files(self) -> dict[str, IcebergFile]:
        with _failures(self.storage, "read", self._table.catalog.properties):
            manifests = [] if self._snapshot is None else self._snapshot.manifests(self._table.io)
            entries = (entry for file in manifests for entry in file.fetch_manifest_entry(self._table.io))
            return {self._path(entry.data_file.file_path): entry.data_file for entry in entries}

    def _path(self, address: str) -> str:
        place = f"{self.storage.uri.rstrip('/')}/"
        path = address.removeprefix("file://")
        if not path.startswith(place):
            hint = "Rewrite the table's files to its own location, or make another table"
            raise LogDirError("A file of the table lies outside it", path=address, expected=place, hint=hint)
        return path.removeprefix(place)

    def _of_table(self, file: IcebergFile) -> DataFile:
        def bound(bounds: Mapping[int, bytes] | None, name: str) -> Any:
            field = self._table.schema().find_field(name)
            value = (bounds or {}).get(field.field_id)
            return None if value is None else from_bytes(field.field_type, value)  # type: ignore[arg-type]

        if file.spec_id != self._table.spec().spec_id:
            raise LogDirError(
                "Another program has changed the table's partitions",
                path=file.file_path,
                expected=f"a file of the partition spec {self._table.spec().spec_id}",
                found=f"one of the spec {file.spec_id}",
                hint="Rewrite the table's files in its present spec, or make another table",
            )
        names = ("partition", "offset")
        bounds = {name: (bound(file.lower_bounds, name), bound(file.upper_bounds, name)) for name in names}
        days = file.partition[0] if self.partitioned_by else None
        day = None if days is None else to_human_day(days)
        # A writer may leave statistics out. A file without bounds may hold any row, and is looked into.
        has_bounds = not any(None in pair for pair in bounds.values())
        path = self._path(file.file_path)
        return DataFile(path, file.file_size_in_bytes, file.record_count, day, bounds if has_bounds else None)

    def commit(self, commit: TableCommit) -> bool:
        with _failures(self.storage, "written", self._table.catalog.properties):
            change = self._table.transaction()
            if commit.columns is not None:
                change.set_properties(commit.columns.settings.to_properties())
                with change.update_schema() as update:
                    update.union_by_name(_with_ids(commit.columns.schema))
            with change.update_snapshot({_POSITION: commit.positions.to_json()}).overwrite() as files:
                for file in commit.removed:
                    files.delete_data_file(self._files[file.path])
                for file in commit.added:
                    files.append_data_file(self._of_iceberg(file, change.table_metadata.schema()))
            try:
                change.commit_transaction()
            except CommitStateUnknownException:
                return False  # refused, or committed with a lost reply: the caller looks at the table's positions
        return True

    def _of_iceberg(self, file: DataFile, schema: Schema) -> IcebergFile:
        def ends(end: int) -> dict[int, bytes]:
            values = {schema.find_field(name): pair[end] for name, pair in (file.bounds or {}).items()}
            return {field.field_id: to_bytes(field.field_type, value) for field, value in values.items()}  # type: ignore[arg-type]

        days = None if file.day is None else date_str_to_days(file.day)
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.storage.location(file.path),
            file_format=FileFormat.PARQUET,
            partition=Record(days) if self.partitioned_by else Record(),
            record_count=file.rows,
            file_size_in_bytes=file.size,
            lower_bounds=ends(0),
            upper_bounds=ends(1),
            spec_id=self._table.spec().spec_id,
        )

    def replace_files(self, removed: Sequence[DataFile], added: Sequence[DataFile]) -> bool:
        raise NotImplementedError("pyiceberg cannot replace files by files of the same rows")

    def tidy(self) -> None:
        """Nothing: the catalog deletes old metadata by the table's properties."""


class _OneTry:
    """A catalog whose commits pyiceberg neither tries again nor takes back: a refusal may answer the second of
    two requests, of which the first made the commit. So each failure is one of unknown outcome.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *change: Any) -> Any:
        try:
            return self._catalog.commit_table(*change)
        except CommitFailedException as error:
            raise CommitStateUnknownException from error


def _identifier(storage: Storage) -> tuple[str, str]:
    *_, namespace, name = ("default", *re.sub(r"^\w+://", "", storage.uri).strip("/").split("/"))
    return namespace, name


def _position(snapshot: Snapshot) -> TablePositions | None:
    properties = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return TablePositions.from_json(properties.get(_POSITION, ""))


def _changes_rows(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    if summary is None or summary.operation == Operation.REPLACE:
        return summary is None
    return any(int(summary.additional_properties.get(name, "0")) for name in _CHANGES)


def _names(schema: Schema) -> dict[int, str]:
    """{field id: name}, however deep"""
    return {number: str(schema.find_column_name(number)) for number in schema.field_ids}


def _with_ids(schema: pa.Schema) -> Schema:
    """The columns as a new table has them: field ids rise from 1."""
    ids = itertools.count(1)

    def numbered(field: pa.Field) -> pa.Field:
        return field.with_metadata({"PARQUET:field_id": str(next(ids))})

    return assign_fresh_schema_ids(pyarrow_to_schema(pa.schema([_changed(field, numbered) for field in schema])))


def _to_arrow(schema: Schema) -> pa.Schema:
    """The columns as files have them, with field ids."""

    def plain(field: pa.Field) -> pa.Field:
        return field.with_type(_PLAIN.get(field.type, field.type))

    return pa.schema([_changed(field, plain) for field in schema_to_pyarrow(schema)])


def _changed(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """The field, after a change to each field within it and to itself."""
    kind = field.type
    t = pa.types
    if t.is_struct(kind):
        kind = pa.struct([_changed(child, change) for child in kind])
    elif t.is_list(kind) or t.is_large_list(kind):
        kind = pa.list_(_changed(kind.value_field, change))
    elif t.is_map(kind):
        kind = pa.map_(_changed(kind.key_field, change), _changed(kind.item_field, change))
    return change(field.with_type(kind))


@contextlib.contextmanager
def _failures(storage: Storage, done: str, properties: Mapping[str, Any]) -> Iterator[None]:
    """Turns errors of pyiceberg, of its catalogs and of their clients, which share no class, into StorageErrors without
    what the catalog is configured with.
    """
    try:
        yield
    except SegmentsError:
        raise
    except Exception as error:
        text = " ".join(storage.hidden(str(error)).split())
        for name, value in properties.items():
            if value and _SECRET.search(name):
                text = text.replace(str(value), "***")
        hint = "Check the catalog, the location and its permissions, then run it again"
        message = f"The table cannot be {done}: {type(error).__name__}: {text}"
        raise StorageError(message, path=storage.uri, hint=hint) from None
