"""The Iceberg table: a version of it, and the next snapshot, which a catalog takes unless another commit came first.

The summary of a snapshot says which offsets the table has. pyiceberg would retry a commit on top of other commits, and
so append records twice: `_OneTry` hands it to the catalog once, with the snapshot that it was made for.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.util
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, LogDirError, MissingExtraError, SegmentsError, StorageError
from spark_segments.lake.columns import check_columns, columns_of_both
from spark_segments.lake.table_format import DAY, DataFile, NewColumns, TablePositions, TableSettings
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

CATALOG = "iceberg.sqlite"
"""The SQLite catalog of the tables of a directory that are in no other catalog. It lies beside them."""

_PLAIN = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}

_POSITION = "segments.position"
_CHANGES = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")
_SECRET = re.compile("secret|token|credential|password|key|uri", re.IGNORECASE)
_EPOCH = dt.date(1970, 1, 1)
_PROPERTIES = {"write.metadata.delete-after-commit.enabled": "true"}  # but for the last 100 files


@dataclass(frozen=True, slots=True)
class IcebergTables:
    """The `Tables` of a catalog, which pyiceberg's configuration names. None: the SQLite catalog beside a table. There
    a table has the last two names of its address.
    """

    catalog: str | None = None

    @staticmethod
    def have_own(storage: Storage) -> bool:
        """Whether a table of the SQLite catalog beside it is there."""
        return storage.is_local and _own_catalog(storage).exists() and IcebergTables().open(storage) is not None

    def open(self, storage: Storage) -> IcebergTable | None:
        if self.catalog is None and storage.is_local and not _own_catalog(storage).exists():
            return None
        catalog = self._loaded(storage)
        with _failures(storage, "opened", catalog.properties):
            from pyiceberg.exceptions import NoSuchTableError

            try:
                return IcebergTable(storage, catalog.load_table(_identifier(storage)))
            except NoSuchTableError:
                return None

    def create(
        self, storage: Storage, schema: pa.Schema, partition_by: str | None, settings: TableSettings
    ) -> IcebergTable:
        if self.catalog is None and storage.is_local:
            _own_catalog(storage).parent.mkdir(parents=True, exist_ok=True)
        catalog = self._loaded(storage)
        with _failures(storage, "made", catalog.properties):
            from pyiceberg.exceptions import TableAlreadyExistsError
            from pyiceberg.partitioning import PartitionField, PartitionSpec
            from pyiceberg.transforms import DayTransform

            columns = _with_ids(schema)
            source = columns.find_field("timestamp").field_id
            days = [PartitionField(source, 1000, DayTransform(), f"timestamp_{DAY}")] if partition_by else []
            catalog.create_namespace_if_not_exists(_identifier(storage)[0])
            with contextlib.suppress(TableAlreadyExistsError):
                catalog.create_table(
                    _identifier(storage), columns, storage.uri, PartitionSpec(*days),
                    properties={**_PROPERTIES, **settings.to_properties()},
                )  # fmt: skip
        made = self.open(storage)
        assert made is not None
        return made

    def fitting(self, schema: pa.Schema) -> pa.Schema:
        check_columns(schema, "An Iceberg table")
        _check_installed()
        return _to_arrow(_with_ids(schema))

    def _loaded(self, storage: Storage) -> Catalog:
        _check_installed()
        if self.catalog is None and not storage.is_local:
            raise InvalidOptionError(
                "An Iceberg table in an object store needs a catalog",
                path=storage.uri,
                expected="the name of a catalog that pyiceberg is configured for",
                hint="Configure one in ~/.pyiceberg.yaml, and name it: --catalog NAME",
            )
        own = {} if self.catalog else {"type": "sql", "uri": f"sqlite:///{_own_catalog(storage)}"}
        with _failures(storage, "found in its catalog", own):
            from pyiceberg.catalog import load_catalog

            return load_catalog(self.catalog or "segments", **own)


class IcebergTable:
    """The `TableFormat` of Iceberg."""

    def __init__(self, storage: Storage, table: Table) -> None:
        self.storage, self._table = storage, table
        table.catalog = _OneTry(table.catalog)  # type: ignore[assignment]
        self._snapshot = table.current_snapshot()
        self.version = 0 if self._snapshot is None else int(self._snapshot.sequence_number or 0)
        self.schema = _to_arrow(table.schema())
        self.settings = TableSettings.of_properties(table.properties)
        fields = [
            f"{field.transform} of {table.schema().find_column_name(field.source_id)}" for field in table.spec().fields
        ]
        self.partitioned_by = [DAY] if fields else []
        if fields not in ([], [f"{DAY} of timestamp"]):
            raise LogDirError(
                "The table is partitioned otherwise than a topic's",
                path=storage.uri,
                expected=f"{DAY} of timestamp, or none",
                found=", ".join(fields),
            )

    def new_columns(self, schema: pa.Schema, settings: TableSettings) -> NewColumns | None:
        from pyiceberg.exceptions import ValidationError

        both = columns_of_both(self.schema, schema, self.storage.uri)
        if both == self.schema:
            return None
        check_columns(both, "An Iceberg table", self.storage.uri)
        try:
            change = self._table.transaction()
            with change.update_schema() as update:
                update.union_by_name(_with_ids(both))
        except ValidationError as error:
            raise InvalidOptionError(
                f"The table's columns cannot become those of the topic: {error}",
                path=self.storage.uri,
                expected="int to long, float to double, a decimal of more digits, or new fields",
                hint="Set key.schema or value.schema to Spark's DDL with the types of the table, or make another table",
            ) from error
        # Readers widen what old files have.
        return NewColumns(_to_arrow(change.table_metadata.schema()), settings, needs_new_files=False)

    @property
    def has_position(self) -> bool:
        return self._snapshot is not None and _position(self._snapshot) is not None

    def positions(self) -> Iterator[TablePositions | None]:
        snapshot = self._snapshot
        while snapshot is not None:
            position = _position(snapshot)
            if position is not None:
                yield position
            elif _changes_rows(snapshot):
                raise LogDirError(
                    "Another program has changed the rows of the table, so that nobody knows which records it has",
                    path=self.storage.uri,
                    expected="snapshots of segments table, and those that replace files by files of the same rows",
                    found=f"a snapshot {snapshot.snapshot_id} of another program",
                    hint=self._way_back(snapshot),
                )
            parent = self._parent(snapshot)
            if parent is None and snapshot.sequence_number != 1:
                yield None
            snapshot = parent

    def _parent(self, snapshot: Snapshot) -> Snapshot | None:
        """The snapshot before another one, expired or not. None for the first snapshot, and where nobody knows."""
        parent = self._table.snapshot_by_id(snapshot.parent_snapshot_id or -1)
        if parent is None and snapshot.sequence_number != 1:
            made = self._of_earlier_metadata.get(snapshot.snapshot_id, snapshot)
            parent = self._of_earlier_metadata.get(made.parent_snapshot_id or -1)
        return parent

    @cached_property
    def _of_earlier_metadata(self) -> dict[int, Snapshot]:
        """The snapshots of the table's earlier metadata files, by id. pyiceberg clears a parent's id where that one
        expires: the oldest file has a snapshot as it was made.
        """
        from pyiceberg.serializers import FromInputFile

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
                return f"Roll the table back to snapshot {snapshot.snapshot_id}, or make another table"
            snapshot = self._table.snapshot_by_id(snapshot.parent_snapshot_id or -1)  # an expired one is no way back
        return "Make another table"

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
        from pyiceberg.conversions import from_bytes

        def bound(bounds: Mapping[int, bytes] | None, name: str) -> Any:
            field = self._table.schema().find_field(name)
            value = (bounds or {}).get(field.field_id)
            return None if value is None else from_bytes(field.field_type, value)  # type: ignore[arg-type]

        names = ("partition", "offset")
        bounds = {name: (bound(file.lower_bounds, name), bound(file.upper_bounds, name)) for name in names}
        days = file.partition[0] if self.partitioned_by else None
        return DataFile(
            self._path(file.file_path),
            file.file_size_in_bytes,
            file.record_count,
            None if days is None else str(_EPOCH + dt.timedelta(days=days)),
            None if any(None in pair for pair in bounds.values()) else bounds,
        )

    def commit(
        self,
        position: TablePositions,
        added: Iterable[DataFile],
        removed: Iterable[DataFile],
        columns: NewColumns | None = None,
    ) -> bool:
        with _failures(self.storage, "written", self._table.catalog.properties):
            change = self._table.transaction()
            if columns is not None:
                change.set_properties(columns.settings.to_properties())
                with change.update_schema() as update:
                    update.union_by_name(_with_ids(columns.schema))
            with change.update_snapshot({_POSITION: position.to_json()}).overwrite() as files:
                for file in removed:
                    files.delete_data_file(self._files[file.path])
                for file in added:
                    files.append_data_file(self._of_iceberg(file, change.table_metadata.schema()))
            try:
                change.commit_transaction()
            except _NotAcknowledged:
                return False
        return True

    def _of_iceberg(self, file: DataFile, schema: Schema) -> IcebergFile:
        from pyiceberg.conversions import to_bytes
        from pyiceberg.manifest import DataFile as IcebergFile
        from pyiceberg.manifest import DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        def ends(end: int) -> dict[int, bytes]:
            found = {schema.find_field(name): pair[end] for name, pair in (file.bounds or {}).items()}
            return {field.field_id: to_bytes(field.field_type, _number(value)) for field, value in found.items()}  # type: ignore[arg-type]

        day = None if file.day is None else (dt.date.fromisoformat(file.day) - _EPOCH).days
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.storage.location(file.path),
            file_format=FileFormat.PARQUET,
            partition=Record(day) if self.partitioned_by else Record(),
            record_count=file.rows,
            file_size_in_bytes=file.size,
            lower_bounds=ends(0),
            upper_bounds=ends(1),
            spec_id=self._table.spec().spec_id,
        )

    def tidy(self) -> None:
        """Nothing: the catalog deletes old metadata by the table's properties."""


class _NotAcknowledged(Exception):
    """Another commit came first, or the reply to this one was lost."""


class _OneTry:
    """A catalog whose commits pyiceberg neither tries again nor takes back, where their reply may have been lost."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *change: Any) -> Any:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        try:
            return self._catalog.commit_table(*change)
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise _NotAcknowledged from error


def _check_installed() -> None:
    if importlib.util.find_spec("pyiceberg") is None:
        raise MissingExtraError("iceberg", "Iceberg tables", "pyiceberg")


def _own_catalog(storage: Storage) -> Path:
    return Path(storage.uri).parent / CATALOG


def _identifier(storage: Storage) -> tuple[str, str]:
    *_, namespace, name = ("default", *re.sub(r"^\w+://", "", storage.uri).strip("/").split("/"))
    return namespace, name


def _position(snapshot: Snapshot) -> TablePositions | None:
    said = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return TablePositions.from_json(said.get(_POSITION, ""))


def _changes_rows(snapshot: Snapshot) -> bool:
    from pyiceberg.table.snapshots import Operation

    summary = snapshot.summary
    if summary is None or summary.operation == Operation.REPLACE:
        return summary is None
    return any(int(summary.additional_properties.get(name, "0")) for name in _CHANGES)


def _number(value: Any) -> int:
    """The value as Iceberg has it: of a timestamp the microseconds since 1970."""
    return value if isinstance(value, int) else int(pa.scalar(value, pa.timestamp("us", "UTC")).value)


def _with_ids(schema: pa.Schema) -> Schema:
    """The columns as a new table has them: field ids rise from 1."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.schema import assign_fresh_schema_ids

    ids = itertools.count(1)

    def numbered(field: pa.Field) -> pa.Field:
        return field.with_metadata({"PARQUET:field_id": str(next(ids))})

    return assign_fresh_schema_ids(pyarrow_to_schema(pa.schema([_changed(field, numbered) for field in schema])))


def _to_arrow(schema: Schema) -> pa.Schema:
    """The columns as files have them, with field ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    def plain(field: pa.Field) -> pa.Field:
        return field.with_type(_PLAIN.get(field.type, field.type))

    return pa.schema([_changed(field, plain) for field in schema_to_pyarrow(schema)])


def _changed(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """The field, after a change to each field within it and to itself."""
    kind, t = field.type, pa.types
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
