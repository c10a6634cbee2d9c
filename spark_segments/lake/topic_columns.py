"""The columns that the table of a topic has, and the change of an existing table's columns to those."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, LogDirError
from spark_segments.lake.columns import check_columns, columns_of_both, lost_field
from spark_segments.lake.request import TableRequest, check_same
from spark_segments.lake.rules import PLACE
from spark_segments.lake.table_format import KEY_BYTES, NewColumns, TableFormat, TableSettings
from spark_segments.values.batches import Decoder, FormatDecoders

COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp")
"""Columns of a table, as a read of the topic has them. Columns of undecodable bytes and `day` come behind them."""

OWN_COLUMNS = (*COLUMNS, KEY_BYTES)


@dataclass(frozen=True, slots=True)
class TopicColumns:
    """The columns of a topic for a table of these `settings`. `read`: as a read of the topic has them, by the
    `decoders`.
    """

    read: pa.Schema
    decoders: FormatDecoders
    settings: TableSettings

    @property
    def key_decoder(self) -> Decoder | None:
        """What decodes keys; None: they are bytes."""
        return next((decoder for decoder in self.decoders if decoder.chosen.column == "key"), None)

    @property
    def has_key_bytes(self) -> bool:
        """Whether the table is one that has the bytes of typed keys."""
        by_keys = self.settings.archive or self.settings.is_latest
        return by_keys and self.key_decoder is not None

    def schema(self) -> pa.Schema:
        """The columns that a new table has."""
        if not self.has_key_bytes:
            return self.read
        if KEY_BYTES in self.read.names:
            raise InvalidOptionError(f"A table has {KEY_BYTES} of its own", hint="Give key.raw.column another name")
        return self.read.append(pa.field(KEY_BYTES, pa.binary()))

    def change(self, table: TableFormat, request: TableRequest) -> NewColumns | None:
        """The change of an existing table's columns; None: they stay. Raises InvalidOptionError for columns that it
        cannot have, and for options under which it would lose a field.
        """
        self._check_unchanged(table)
        storage = table.storage
        schema = self.schema()
        formats = request.remembered(self.settings.formats)
        lost = None if formats == self.settings.formats else lost_field(table.schema, schema)
        if lost is not None:
            check_same(storage, f"a table with the field {lost}", f"{request.formats}, where it is not read")
        both = columns_of_both(table.schema, schema, storage.uri)
        settings = dataclasses.replace(self.settings, formats=formats)
        if both != table.schema:
            check_columns(both, storage.uri)
            return table.new_columns(both, settings)
        if formats == (self.settings.formats or {}):
            return None
        return NewColumns(table.schema, settings, needs_new_files=False)

    def _check_unchanged(self, table: TableFormat) -> None:
        """Raises LogDirError where another program has taken a column away that this one reads or writes, or has added
        one that wants a value.
        """
        changes = [
            f"{name} became {new}" for name, new in table.renamed().items() if name.partition(".")[0] in OWN_COLUMNS
        ]
        changes += [f"{name} is gone" for name in ("key", *PLACE, "timestamp") if name not in table.schema.names]
        for field in table.schema:
            is_ours = field.name in self.read.names and not self.read.field(field.name).nullable
            if not (field.nullable or is_ours):
                changes.append(f"{field.name} wants a value in each row")
        if changes:
            raise LogDirError(
                "Another program has changed the columns of the table",
                path=table.storage.uri,
                expected="the columns that segments table made, and others that may be null",
                found="; ".join(changes),
                hint="Take the change back, or make another table",
            )
