"""Keys and values of a topic as typed columns.

The formats are in values/. This module adds the parts that need a log: the topic `_schemas` of an archived cluster as a
registry, and a first record where only a record shows the type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from spark_segments.errors import LogDirError
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.storage import Storage
from spark_segments.values.batches import (
    Decoder,
    Encoder,
    decode_batch,
    decoded_schema,
    decoders,
    encode_batch,
    encoders,
)
from spark_segments.values.column_types import recast
from spark_segments.values.options import COLUMNS, REGISTRY, ColumnFormat, column_formats
from spark_segments.values.registries.directory import SUBJECTS
from spark_segments.values.registries.opening import open_registry
from spark_segments.values.registries.registry import RecordsRegistry, Registry

SCHEMAS_TOPIC = "_schemas"
"""The topic of a Confluent registry's schemas. As schema.registry: that topic of the same log directory."""

_CONTEXT = ("topic", "partition", "offset")


class Log(Protocol):
    """The part of a log directory that this module uses."""

    @property
    def storage(self) -> Storage: ...

    def topics(self) -> list[str]: ...

    def read(
        self, topic: str, *, columns: Sequence[str] | None = None, version: int | None = None
    ) -> Iterator[pa.RecordBatch]: ...

    @classmethod
    def open(cls, uri: str, storage_options: Mapping[str, str] | None = None) -> Log: ...


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a read; some of them are typed."""

    names: Sequence[str]
    readers: Sequence[Decoder]

    def types(self, column: str) -> bool:
        """Whether a reader decodes this column."""
        return any(one.chosen.column == column for one in self.readers) and column in self.names

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches that `conformed` gives."""
        used = [one for one in self.readers if one.chosen.column in self.names]
        whole = decoded_schema(RECORD_SCHEMA, used)
        raw = [one.chosen.raw_column for one in used if one.chosen.raw_column]
        return pa.schema([whole.field(name) for name in [*self.names, *raw]])

    def conformed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches that `decoded` gave, each in exactly the schema."""
        schema = self.schema
        for batch in batches:
            arrays = [recast(batch.column(field.name), field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    @property
    def wanted(self) -> list[str]:
        """The columns of records to read, with the columns of a record's place, which an error names."""
        if not any(one.chosen.column in self.names for one in self.readers):
            return list(self.names)
        return [*self.names, *(name for name in _CONTEXT if name not in self.names)]

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of the `wanted` columns as the columns `names`, followed by columns of undecodable bytes."""
        used = [one.chosen for one in self.readers if one.chosen.column in self.names]
        raw = [one.raw_column for one in used if one.raw_column]
        for batch in batches:
            yield decode_batch(batch, self.readers).select([*self.names, *raw])


class TypedColumns:
    """Keys and values of the topics of a log directory, as options say."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._options = log.storage.storage_options

    def columns(self, topic: str, names: Sequence[str], formats: Mapping[str, str], version: int | None) -> Columns:
        """The columns `names` of a topic, typed as `formats` say."""
        return Columns(names, self.readers(topic, formats, version))

    def readers(self, topic: str, formats: Mapping[str, str], version: int | None = None) -> list[Decoder]:
        """The decoders of a topic's columns."""

        def sample(column: str) -> bytes | None:
            for batch in self._log.read(topic, columns=[column], version=version):
                there = batch.column(column).drop_null()
                if len(there):
                    return bytes(there[0].as_py())
            return None

        return decoders(column_formats(formats, self._options), topic, sample, self._registry)

    def writers(
        self, topic: str | None, formats: Mapping[str, str], types: Mapping[str, pa.DataType | None]
    ) -> list[Encoder]:
        """The encoders of columns of these types."""
        return encoders(column_formats(formats, self._options), topic, types, self._registry)

    def encoded(
        self, topic: str, rows: Iterable[pa.RecordBatch], formats: Mapping[str, str]
    ) -> Iterator[pa.RecordBatch]:
        """Rows to be appended, encoded."""
        writers: list[Encoder] | None = None
        for batch in rows:
            if writers is None:
                types = {name: batch.schema.field(name).type for name in COLUMNS if name in batch.schema.names}
                writers = self.writers(topic, formats, types)
            yield encode_batch(batch, writers)

    def registry(self, formats: Mapping[str, str]) -> Registry:
        """The registry that the options name; without schema.registry, the topic `_schemas`."""
        named = {name: text for name, text in formats.items() if name.lower().startswith(REGISTRY)}
        wanted = {"value.format": "avro", REGISTRY: SCHEMAS_TOPIC, **named}
        found = self._registry(column_formats(wanted, self._options)[-1])
        assert found is not None  # schema.registry is set
        return found

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
            log = self._log if address == SCHEMAS_TOPIC else type(self._log).open(address, self._options)
            return log.read(SCHEMAS_TOPIC, columns=["key", "value"]) if SCHEMAS_TOPIC in log.topics() else None
        return None


def _pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes | None, bytes | None]]:
    for batch in batches:
        yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
