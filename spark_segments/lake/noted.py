"""The tables that a topic knows: what `segments table` notes of them in the topic's row, and what is read of it.

A note is an address. Which records a table has, its own commits say.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_segments.config import READ_COMMITTED
from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.lake.table_format import TableFormat, TableSettings
from spark_segments.log import Change, LogDirectory, Operation, Snapshot
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from spark_segments.lake.request import TablePlace

TABLES = "tables"
"""The state of a topic that has notes: JSON, a list of objects with the fields of `NotedTable`, by address."""


@dataclass(frozen=True, slots=True)
class NotedTable:
    """A table beside a topic. `uri`: its address, without credentials. `catalog`: of an Iceberg table that is not in
    the catalog beside it. `columns`: {name: Arrow's name of its type}, in their order.
    """

    uri: str
    table_format: str
    view: str | None
    archive: bool
    catalog: str | None
    columns: Mapping[str, str]

    @classmethod
    def of(cls, snapshot: Snapshot) -> list[NotedTable]:
        """The tables that a topic knows. Raises LogDirError for notes that this package does not write."""
        text = snapshot.states.get(TABLES, "[]")
        try:
            return [cls(**fields) for fields in json.loads(text)]
        except (ValueError, TypeError) as error:
            raise LogDirError(
                "A state of a topic cannot be read",
                path=f"topic {snapshot.topic}",
                expected=f"{TABLES} as docs/format/states.md has it",
                found=f"{error}",
                hint="A newer spark-segments may have written it",
            ) from error

    @classmethod
    def at(cls, place: TablePlace, table: TableFormat, settings: TableSettings) -> NotedTable:
        """The note of a table at a place."""
        from spark_segments.lake.request import format_of  # and Delta, which no note needs

        table_format = format_of(table)
        columns = {field.name: str(field.type) for field in table.schema}
        return cls(table.storage.uri, table_format, settings.view, settings.archive, place.catalog, columns)

    def open(self, storage_options: Mapping[str, str]) -> TableFormat | None:
        """The table's newest version; None where there is none. Raises what `Tables.open` raises."""
        from spark_segments.lake.request import TablePlace  # as in `at`

        place = TablePlace(self.uri, dict(storage_options), self.table_format, self.catalog)
        storage = Storage(self.uri, place.options)
        return place.tables(storage).open(storage)

    def to_dict(self) -> dict[str, Any]:
        """The note as plain values, as for JSON."""
        return dataclasses.asdict(self)


def note_table(log: LogDirectory, topic: str, table: NotedTable) -> None:
    """Makes the note of a table that has its address say what `table` says. No commit where it does.

    A directory of Kafka's, and a topic that is no leader, take no notes.
    """
    _note(log, topic, lambda noted: {**noted, table.uri: table})


def is_noted(log: LogDirectory, topic: str, uri: str) -> bool:
    """Whether a topic has a note of the table at an address, and can forget it."""
    return _takes_notes(log, topic) and any(table.uri == uri for table in NotedTable.of(log.snapshot(topic)))


def forget_note(log: LogDirectory, topic: str, uri: str) -> None:
    """Takes the note of the table at an address out, if there is one. The table itself stays."""
    _note(log, topic, lambda noted: {address: table for address, table in noted.items() if address != uri})


def _takes_notes(log: LogDirectory, topic: str) -> bool:
    return not log.is_kafka and log.snapshot(topic).role == "leader"


def _note(log: LogDirectory, topic: str, change: Callable[[dict[str, NotedTable]], dict[str, NotedTable]]) -> None:
    if not _takes_notes(log, topic):
        return

    def plan(snapshot: Snapshot) -> Change | None:
        noted = {table.uri: table for table in NotedTable.of(snapshot)}
        changed = change(noted)
        if changed == noted:
            return None
        states = {name: text for name, text in snapshot.states.items() if name != TABLES}
        if changed:
            fields = [table.to_dict() for _, table in sorted(changed.items())]
            states[TABLES] = json.dumps(fields, separators=(",", ":"))
        return Change(Operation.ALTER, topic=dataclasses.replace(snapshot.topic_row, states=states))

    log.manifest(topic).commit(plan)


def described_tables(log: LogDirectory, snapshot: Snapshot) -> list[dict[str, Any]]:
    """The tables that a topic knows, as plain values. `version`: the table's; `offsets_behind`: how many offsets of the
    topic it has not reached; both None where `error` says why it cannot be read.
    """
    tables = []
    for note in NotedTable.of(snapshot):
        line: dict[str, Any] = note.to_dict() | {"version": None, "offsets_behind": None, "error": None}
        try:
            table = note.open(log.storage.storage_options)
            before = None if table is None else next(table.positions(), None)
            if table is None or before is None or before.topic_id != snapshot.topic_id:
                raise LogDirError("There is no table of this topic", hint="segments table … --forget-table")
            line["version"] = table.version
            # Offsets below the log start are left out: no run of the table can read them any more.
            bounds = snapshot.offset_bounds(READ_COMMITTED)
            line["offsets_behind"] = sum(
                max(0, end - max(start, before.end(number))) for number, (start, end) in bounds.items()
            )
        except (SegmentsError, OSError) as error:
            line["error"] = str(error)
        tables.append(line)
    return tables
