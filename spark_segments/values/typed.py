"""Keys and values of a topic as typed columns.

The formats are in values/. This module adds the parts that need a log: the topic `_schemas` of an archived cluster as a
registry, and the first records where only a record shows the type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from spark_segments.errors import LogDirError
from spark_segments.log import LogDirectory, Scan, Selection, Snapshot
from spark_segments.storage import Storage
from spark_segments.values.batches import FormatDecoders, FormatEncoders, decoders, encoders
from spark_segments.values.options import REGISTRY, ColumnFormat, column_formats
from spark_segments.values.registries import open_registry
from spark_segments.values.registries.directory import SUBJECTS
from spark_segments.values.registries.registry import RecordsRegistry, Registry

SCHEMAS_TOPIC = "_schemas"
"""The topic of a Confluent registry's schemas. As schema.registry: that topic of the same log directory."""

MOST_SAMPLES = 10_000
"""How many values are looked at for a type: a topic of something else must not be read to its end."""


class TypedColumns:
    """Keys and values of the topics of a log directory, as options say."""

    def __init__(self, log: LogDirectory) -> None:
        self._log = log
        self._options = log.storage.storage_options

    def decoders(self, snapshot: Snapshot, formats: Mapping[str, str]) -> FormatDecoders:
        """The decoders of a topic's columns. Raises InvalidOptionError, RegistryError."""

        def sample(column: str) -> Iterator[pa.RecordBatch]:
            left = MOST_SAMPLES
            for batch in Scan.of(self._log.storage, snapshot, selection=Selection((column, "headers"))).batches():
                values = batch.filter(batch.column(column).is_valid())[:left]
                yield from (values[row : row + 1] for row in range(len(values)))
                left -= len(values)
                if not left:
                    return

        return decoders(column_formats(formats, self._options), snapshot.topic, sample, self._registry)

    def encoders(
        self, topic: str | None, formats: Mapping[str, str], types: Mapping[str, pa.DataType | None]
    ) -> FormatEncoders:
        """The encoders of columns of these types; None: the schema's type. Registers a new schema."""
        return encoders(column_formats(formats, self._options), topic, types, self._registry)

    def registry(self, formats: Mapping[str, str]) -> Registry:
        """The registry that the options name; without schema.registry, the topic `_schemas`."""
        named = {name: text for name, text in formats.items() if name.lower().startswith(REGISTRY)}
        settings = {"value.format": "avro", REGISTRY: SCHEMAS_TOPIC, **named}
        registry = self._registry(column_formats(settings, self._options)[-1])
        assert registry is not None  # schema.registry is set
        return registry

    def _registry(self, chosen: ColumnFormat) -> Registry | None:
        address = chosen.registry
        if address is None:
            return None
        if not address.startswith(("http://", "https://")):
            is_directory = address != SCHEMAS_TOPIC and Storage(address, dict(self._options)).exists(SUBJECTS)
            records = None if is_directory else self._schemas(address)
            if records is not None:
                return RecordsRegistry(_pairs(records), address)
        return open_registry(address, dict(chosen.registry_options), self._options)

    def _schemas(self, address: str) -> Iterator[pa.RecordBatch] | None:
        """The records of `_schemas` in the log directory at an address, or None."""
        with contextlib.suppress(LogDirError):  # then the address is a directory of schemas, or will become one
            log = self._log
            if address != SCHEMAS_TOPIC:
                log = LogDirectory.open(address, self._options)
            if SCHEMAS_TOPIC in log.topics():
                both = Selection(("key", "value"))
                return Scan.of(log.storage, log.snapshot(SCHEMAS_TOPIC), selection=both).batches()
        return None


def _pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes | None, bytes | None]]:
    for batch in batches:
        yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
