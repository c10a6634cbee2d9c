"""Typed keys and values, as the core sees them.

A log directory is given the formats of its keys and values when it is opened. What they are is an add-on's: the core
asks it for columns in place of stored bytes, for stored bytes in place of columns, and for fields that records are
looked for by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from spark_segments import extensions

if TYPE_CHECKING:
    import numpy as np

    from spark_segments.log.directory import LogDirectory
    from spark_segments.log.manifest.state.snapshot import Snapshot


class Columns(Protocol):
    """The columns of one read. Some of them are typed."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches that `conformed` gives."""

    @property
    def wanted(self) -> Sequence[str]:
        """The columns of records to read: what is decoded, and what an error names."""

    def types(self, column: str) -> bool:
        """Whether this column is decoded."""

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of the `wanted` columns as typed columns. Raises ValueFormatError."""

    def conformed(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Batches that `decoded` gave, each in exactly `schema`. A column that they lack is null."""


class Decoders(Protocol):
    """What decodes the keys and values of a topic. It can be pickled: tasks decode. None that decode: it is false."""

    def __len__(self) -> int: ...

    def columns(self, names: Sequence[str]) -> Columns:
        """How a read of these columns decodes them."""

    def stored(self, names: Iterable[str]) -> tuple[str, ...]:
        """The columns of records to which the columns `names` belong, at least one. A column of undecodable bytes
        belongs to the column that they are from.
        """


class Encoders(Protocol):
    """What encodes the keys and values of rows to be appended. It can be pickled. None that encode: it is false."""

    def __len__(self) -> int: ...

    @property
    def names(self) -> frozenset[str]:
        """The columns that are encoded: key, value, both or none."""

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with bytes in place of typed columns. Raises ValueFormatError."""


class RecordField(Protocol):
    """What records are looked for by: a header, or a field of the decoded key or value. It can be pickled.

    `on`: its name, such as header.trace-id. `columns`: the columns of records that it is read from. `formats`: the
    options that decide what it decodes, without credentials. `fingerprint`: of all that decides it, schemas included;
    two fields with the same name and fingerprint give the same entries. `may_decode_later`: whether a record that
    cannot be decoded now may be one that can be, once a registry has its schema.
    """

    @property
    def on(self) -> str: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def formats(self) -> Mapping[str, str]: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def may_decode_later(self) -> bool: ...

    def entries(self, batch: pa.RecordBatch) -> tuple[np.ndarray, pa.Array, np.ndarray]:
        """(rows int64[n], their values binary[n] in their one encoding; rows int64[m] that cannot be decoded). Rows
        rise. A row has an entry for each of its values, and none for null.
        """

    def encoded(self, values: Sequence[object]) -> list[bytes]:
        """The encoding of values to look for, which are of the field's type, or text. Raises InvalidOptionError."""


class ValueFormats(Protocol):
    """The formats of keys and values in a log directory. `formats` are options such as value.format."""

    def decoders(self, snapshot: Snapshot, formats: Mapping[str, str]) -> Decoders:
        """What decodes a topic's columns. Raises InvalidOptionError, RegistryError."""

    def encoders(
        self, topic: str | None, formats: Mapping[str, str], types: Mapping[str, pa.DataType | None]
    ) -> Encoders:
        """What encodes columns of these types; None: the schema's type. Registers a new schema."""

    def key_bytes(self, topic: str, keys: Sequence[object], formats: Mapping[str, str]) -> list[bytes]:
        """The bytes of keys to look for: of bytes these, of text and numbers those by the formats. Raises
        InvalidOptionError.
        """

    def check_field(self, on: str) -> None:
        """Raises InvalidOptionError for a text that names no field of any records."""

    def field(self, snapshot: Snapshot, on: str, formats: Mapping[str, str]) -> RecordField:
        """The field of a topic's records that has a name: header.NAME, value.PATH or key.PATH, where the formats decode
        these. Raises InvalidOptionError, RegistryError.
        """


class ValueProvider(Protocol):
    """What opens the formats of a log directory. It can be pickled, and is cheap to import."""

    options: tuple[str, ...]
    """The names of all options of keys and values."""

    def open(self, log: LogDirectory) -> ValueFormats:
        """The formats of the keys and values in a log directory."""


def value_provider() -> ValueProvider:
    """The package's formats of keys and values: a log directory that is given no others has these."""
    provider: ValueProvider = extensions.providers("values")[-1]
    return provider
