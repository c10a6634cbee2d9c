"""Keys and values of a topic as typed columns.

The formats are in values/. This module adds the parts that need a log: the topic `_schemas` of an archived cluster as a
registry, and the first records where only a record shows the type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, LogDirError
from spark_segments.log import LogDirectory, Scan, Selection, Snapshot
from spark_segments.storage import Storage
from spark_segments.values.batches import FormatDecoders, FormatEncoders, decoders, encoders
from spark_segments.values.fields import HEADER, DecodedField, HeaderField, decoded_field, names_of
from spark_segments.values.format_options import (
    FAIL_INVALID,
    JSON_SCHEMA,
    ONE_ENCODING,
    REGISTRY,
    SCHEMAS_TOPIC,
    ColumnFormat,
    column_formats,
)
from spark_segments.values.registries import open_registry
from spark_segments.values.registries.directory import SUBJECTS
from spark_segments.values.registries.registry import RecordsRegistry, Registry

_KEY_TYPES = {"short": pa.int16(), "int": pa.int32(), "long": pa.int64()}

_OTHER = {"key": "value.", "value": "key."}

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

    def key_bytes(self, topic: str, keys: Sequence[object], formats: Mapping[str, str]) -> list[bytes]:
        """The bytes of keys to look for: of bytes these, of text and numbers those by the option key.format; without
        it they are text.

        Raises InvalidOptionError for keys that are none, and for a format in which a value has many encodings.
        """
        stored = [key for key in keys if isinstance(key, bytes)]
        typed = [key for key in keys if not isinstance(key, bytes)]
        return [*stored, *self._encoded_keys(topic, typed, formats)] if typed else stored

    def _encoded_keys(self, topic: str, keys: Sequence[object], formats: Mapping[str, str]) -> list[bytes]:
        """The bytes of keys that are text or numbers, at least one."""
        formats = {name: text for name, text in formats.items() if name.lower().startswith("key.")}
        chosen = column_formats(formats, self._options)
        name = chosen[0].format if chosen else "string"
        if name not in ONE_ENCODING:
            raise InvalidOptionError(
                f"Keys of the format {name} are looked for by their bytes: a value has many encodings",
                expected=f"bytes, or a key.format of {', '.join(ONE_ENCODING)}",
                found=repr(keys[0]),
            )
        key_type = _KEY_TYPES.get(name, pa.string())
        try:
            typed = pa.array([None if key is None else str(key) for key in keys], pa.string()).cast(key_type)
        except UnicodeEncodeError:
            found = ", ".join(map(ascii, keys[:3]))
            expected = "a key that UTF-8 can write"
            raise InvalidOptionError("A text is not UTF-8", expected=expected, found=found) from None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            found = ", ".join(map(str, keys[:3]))
            raise InvalidOptionError("The text is no key", expected=key_type, found=found) from None
        if typed.null_count:
            raise InvalidOptionError("keys", expected="keys: records without a key are not looked for", found="None")
        batch = pa.RecordBatch.from_arrays([typed], names=["key"])
        encoders = self.encoders(topic, {**formats, "key.format": name}, {"key": key_type})
        encoded: list[bytes] = encoders.encode(batch).column("key").cast(pa.binary()).to_pylist()
        return encoded

    def check_field(self, on: str) -> None:
        """Raises InvalidOptionError for a text that names no field of any records."""
        try:
            on.encode()
        except UnicodeEncodeError:
            raise InvalidOptionError("The text is no name of a field", expected="UTF-8", found=repr(on)) from None
        if not on.startswith(HEADER):
            names_of(on)

    def field(self, snapshot: Snapshot, on: str, formats: Mapping[str, str]) -> HeaderField | DecodedField:
        """The field of a topic's records that has a name: header.NAME, value.PATH or key.PATH, where the formats decode
        these. Raises InvalidOptionError, RegistryError.
        """
        self.check_field(on)
        if on.startswith(HEADER):
            return HeaderField(on.removeprefix(HEADER))
        column, _ = names_of(on)
        own = {name.lower(): text for name, text in formats.items() if not name.lower().startswith(_OTHER[column])}
        if own.get(f"{column}.format", "").lower() != JSON_SCHEMA:
            own.pop(FAIL_INVALID, None)  # it is the other column's
        for decoder in self.decoders(snapshot, own):
            return decoded_field(on, decoder, own)
        raise InvalidOptionError(f"{on} needs a format to decode {column}s", hint=f"Set {column}.format")

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
