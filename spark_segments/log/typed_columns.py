"""Keys and values of a topic as typed columns: which registry decodes them, and reading with their meaning.

What a format is lives in values/. Here is what needs a log: the topic `_schemas` of a cluster's archive as a registry,
and a first record where only that tells the type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from spark_segments.storage import Storage
from spark_segments.values.batches import Decoder, decode_batch
from spark_segments.values.options import REGISTERED, ColumnFormat
from spark_segments.values.registries.directory import SUBJECTS
from spark_segments.values.registries.opening import open_registry
from spark_segments.values.registries.registry import RecordsRegistry, Registry

SCHEMAS_TOPIC = "_schemas"
"""The topic in which Confluent's registry keeps its schemas; as schema.registry, that of the same log directory."""

_CONTEXT = ("topic", "partition", "offset")

Batches = Iterable[pa.RecordBatch]


def registry_of(
    chosen: ColumnFormat,
    storage_options: Mapping[str, str],
    schemas_topic: Callable[[str], Batches | None],
) -> Registry | None:
    """The registry that options name; `schemas_topic` gives the records of `_schemas` in the log directory at an
    address, or None where there are none.
    """
    address = chosen.registry
    if address is None or chosen.format not in REGISTERED:
        return None
    if not address.startswith(("http://", "https://")):
        is_directory = address != SCHEMAS_TOPIC and Storage(address, dict(storage_options)).exists(SUBJECTS)
        records = None if is_directory else schemas_topic(address)
        if records is not None:
            return RecordsRegistry(_pairs(records), address)
    return open_registry(address, dict(chosen.registry_options), storage_options)


def first_value(batches: Batches, column: str) -> bytes | None:
    """The first key or value that is not null."""
    for batch in batches:
        there = batch.column(column).drop_null()
        if len(there):
            return bytes(there[0].as_py())
    return None


def columns_to_read(columns: Sequence[str], readers: Sequence[Decoder]) -> list[str]:
    """What to read of records to decode these columns: an error names the record's place."""
    if not any(one.chosen.column in columns for one in readers):
        return list(columns)
    return [*columns, *(name for name in _CONTEXT if name not in columns)]


def decoded(batches: Batches, columns: Sequence[str], readers: Sequence[Decoder]) -> Iterator[pa.RecordBatch]:
    """Batches of `columns_to_read` as batches of `columns`, decoded, and the columns of undecodable bytes."""
    raw = [one.chosen.raw_column for one in readers if one.chosen.raw_column and one.chosen.column in columns]
    for batch in batches:
        yield decode_batch(batch, readers).select([*columns, *raw])


def _pairs(batches: Batches) -> Iterator[tuple[bytes | None, bytes | None]]:
    for batch in batches:
        yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
