"""What a call of `table` asks for: where a table lies, and what it is to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_segments.errors import (
    InvalidOptionError,
    LogDirError,
    MissingExtraError,
)
from spark_segments.lake.delta_table import TableBeside
from spark_segments.lake.table_format import (
    DAY,
    TableFormat,
    Tables,
    TableSettings,
    own_catalog,
)
from spark_segments.log import Selection
from spark_segments.storage import Storage
from spark_segments.values.format_options import REGISTRY

DELTA = "delta"
ICEBERG = "iceberg"
FORMATS = (DELTA, ICEBERG)

TOPIC = "{topic}"
"""In a table's address: the name of the topic."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where tables lie: `uri`, which may have {topic} in it, with the `options` of its storage. `table_format`, and the
    `catalog` of Iceberg tables: None, where the caller names none.
    """

    uri: str
    options: dict[str, str]
    table_format: str | None = None
    catalog: str | None = None

    def check(self, topics: Sequence[str]) -> None:
        """Raises InvalidOptionError where no such place can have tables of these topics."""
        if TOPIC not in self.uri and len(topics) != 1:
            raise InvalidOptionError(
                "A table is of one topic", expected=f"one topic, or {TOPIC} in the address", found=topics
            )
        if self.table_format not in (None, *FORMATS) or (self.catalog and self.table_format == DELTA):
            expected = f"{' or '.join(FORMATS)}, and a catalog with {ICEBERG} alone"
            raise InvalidOptionError("table_format", expected=expected, found=self.table_format)

    def address(self, topic: str) -> str:
        """The address of a topic's table."""
        return self.uri.replace(TOPIC, topic)

    def storage(self, topic: str) -> Storage:
        """The storage whose root is a topic's table."""
        return Storage(self.address(topic), self.options)

    def tables(self, storage: Storage) -> Tables:
        """The tables among which the one at the storage is, or is to be made."""
        by_default = self.catalog is None and self.table_format != ICEBERG
        if by_default and not (storage.is_local and own_catalog(storage).exists()):
            return TableBeside
        try:
            from spark_segments.lake.iceberg_table import IcebergTables
        except ImportError as error:
            raise MissingExtraError("iceberg", "Iceberg tables", "pyiceberg") from error
        iceberg = IcebergTables(self.catalog)
        if iceberg.open(storage) is not None:
            check_same(storage, ICEBERG, self.table_format or ICEBERG)
        elif by_default:
            return TableBeside
        elif TableBeside.open(storage) is not None:
            check_same(storage, DELTA, ICEBERG)
        return iceberg


@dataclass(frozen=True, slots=True)
class TableRequest:
    """What the caller wants a table to be. None, or no format: as the table is."""

    view: str | None = None
    archive: bool | None = None
    formats: Mapping[str, str] = field(default_factory=dict)
    partition_by: str | None = None

    def check(self) -> None:
        """Raises InvalidOptionError for what no table can be."""
        if self.view not in (None, Selection.LATEST_VIEW) or (self.view and self.archive):
            expected = f"the view {Selection.LATEST_VIEW}, or archive, or neither"
            raise InvalidOptionError("No such table", expected=expected, found=self.view)
        if self.partition_by not in (None, DAY):
            raise InvalidOptionError("partition_by", expected=DAY, found=self.partition_by)

    def remembered(self, formats: Mapping[str, str] | None) -> dict[str, str]:
        """What a table remembers that has these formats until now: the caller's, without those of a registry."""
        return {**(formats or {}), **own_formats(self.formats)}

    def settings(self, topic: str, table: TableFormat | None, storage: Storage) -> TableSettings:
        """What the table is, or is to be made as. Raises InvalidOptionError where it is something else."""
        if table is None:
            return TableSettings(topic, self.view, bool(self.archive), self.remembered(None))
        settings = table.settings
        if settings is None:
            raise LogDirError("The table is none that is beside a topic", path=storage.uri, hint="Name another place")
        view = self.view or settings.view
        archive = settings.archive if self.archive is None else self.archive
        check_same(storage, settings, dataclasses.replace(settings, topic=topic, view=view, archive=archive))
        days = table.partitioned_by
        partitions = f"partitioned by {', '.join(days) or 'nothing'}"
        if days not in ([], [DAY]):
            raise LogDirError(f"The table is {partitions}", path=storage.uri, expected=f"{DAY}, or nothing")
        if self.partition_by not in (None, *days):
            check_same(storage, partitions, self.partition_by)
        return settings


def format_of(table: TableFormat) -> str:
    """The format of a table: one of FORMATS."""
    return DELTA if isinstance(table, TableBeside) else ICEBERG


def own_formats(formats: Mapping[str, str]) -> dict[str, str]:
    """Formats without the credentials of a registry."""
    return {name: text for name, text in formats.items() if not name.startswith(f"{REGISTRY}.")}


def check_same(storage: Storage, existing: object, request: object) -> None:
    """Raises InvalidOptionError where what the caller asked for is not what the existing table was made as."""
    if existing != request:
        raise InvalidOptionError(
            "The table was made as another one",
            path=storage.uri,
            expected=str(existing),
            found=str(request),
            hint="Leave these options out, or name another place",
        )
