"""The Arrow columns of records: memory for the kernels of records.py to fill, and RecordBatches of what they filled in.

Memory is taken by upper bounds, from Arrow's pool, which gives the same pages again and again; what was not needed goes
back before a column is given away.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa

from spark_segments.format import records
from spark_segments.format.jit import COPY_SLACK
from spark_segments.format.layout import CREATE_TIME, HEADERS_TYPE, LOG_APPEND_TIME, RECORD_SCHEMA
from spark_segments.format.portions import Portion, Wanted

# Rows of a RecordBatch: more are only in a huge batch of tiny records, and become several RecordBatches.
MOST_ROWS = 1 << 18
_FEWEST_CONSTANT_ROWS = 1 << 12

_NO_BINARY = records.Binary(False, 0, 0, 0, 0)
_NO_PLACES = records.HeaderPlaces(False, 0, 0, 0)


def read_records(portion: Portion, wanted: Wanted, partition: int) -> tuple[records.Outcome, Iterator[pa.RecordBatch]]:
    """Reads the wanted records of a portion: what the kernel says, and (if it has no problem) the RecordBatches."""
    names = wanted.columns
    offsets, timestamps = _memory(portion.rows * 8), _memory(portion.rows * 8)
    arguments = (portion.sections, wanted.first_offset, wanted.end_offset, offsets.address, timestamps.address)
    arrays: dict[str, pa.Array] = {}
    if "key" in names or "value" in names or "headers" in names:
        key = _BinaryMemory(portion.rows, portion.payload_bytes) if "key" in names else None
        value = _BinaryMemory(portion.rows, portion.payload_bytes) if "value" in names else None
        places = _PlacesMemory(portion.rows) if "headers" in names else None
        outcome = records.Outcome(
            *records.decode_records(
                *arguments,
                key.addresses if key else _NO_BINARY,
                value.addresses if value else _NO_BINARY,
                places.addresses if places else _NO_PLACES,
            )
        )
        if outcome.problem:
            return outcome, iter(())
        if key:
            arrays["key"] = key.array(pa.binary(), outcome.rows, outcome.key_bytes, outcome.null_keys)
        if value:
            arrays["value"] = value.array(pa.binary(), outcome.rows, outcome.value_bytes, outcome.null_values)
        if places and outcome.headers:
            arrays["headers"] = places.array(outcome)
    else:
        outcome = records.Outcome(*records.decode_offsets(*arguments))
        if outcome.problem:
            return outcome, iter(())
    for name, memory in (("offset", offsets), ("timestamp", timestamps)):
        content = [None, _shrunk(memory, outcome.rows * 8)]
        arrays[name] = pa.Array.from_buffers(RECORD_SCHEMA.field(name).type, outcome.rows, content, null_count=0)
    step = int(portion.sections[0, records.TIMESTAMP_STEP])
    same: dict[str, str | int] = {
        "topic": wanted.topic,
        "partition": partition,
        "timestampType": CREATE_TIME if step else LOG_APPEND_TIME,
    }
    return outcome, _record_batches(wanted.schema, outcome.rows, arrays, same)


def _record_batches(
    schema: pa.Schema, rows: int, arrays: dict[str, pa.Array], same: dict[str, str | int]
) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, MOST_ROWS):
        count = min(rows - first, MOST_ROWS)
        # Columns that are the same in every row are slices of ones that are made once.
        most = max(_FEWEST_CONSTANT_ROWS, 1 << (count - 1).bit_length())
        columns = []
        for name in schema.names:
            if name in arrays:
                columns.append(arrays[name] if count == rows else arrays[name].slice(first, count))
            else:
                columns.append(
                    (_no_headers(most) if name == "headers" else _repeated(same[name], most)).slice(0, count)
                )
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _memory(size: int) -> pa.ResizableBuffer:
    return pa.allocate_buffer(size, resizable=True)


def _shrunk(memory: pa.ResizableBuffer, size: int) -> pa.ResizableBuffer:
    if size < memory.size:
        memory.resize(size, shrink_to_fit=True)
    return memory


class _BinaryMemory:
    """Room for a binary column of at most so many rows and bytes."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._offsets = _memory((most_rows + 1) * 4)
        self._validity = _memory((most_rows + 7) // 8)
        self._data = _memory(most_bytes + COPY_SLACK)
        self.addresses = records.Binary(
            True, most_rows, self._offsets.address, self._validity.address, self._data.address
        )

    def array(self, array_type: pa.DataType, rows: int, size: int, nulls: int) -> pa.Array:
        """The column, of the rows and bytes that were filled in."""
        validity = _shrunk(self._validity, (rows + 7) // 8) if nulls else None
        offsets, data = _shrunk(self._offsets, (rows + 1) * 4), _shrunk(self._data, size)
        return pa.Array.from_buffers(array_type, rows, [validity, offsets, data], null_count=nulls)


class _PlacesMemory:
    """Room for where the headers of at most so many rows lie."""

    def __init__(self, most_rows: int) -> None:
        self._offsets = _memory((most_rows + 1) * 4)
        self._addresses, self._ends = _memory(most_rows * 8), _memory(most_rows * 8)
        self.addresses = records.HeaderPlaces(True, self._offsets.address, self._addresses.address, self._ends.address)

    def array(self, outcome: records.Outcome) -> pa.Array:
        """The column of the headers that lie there."""
        key = _BinaryMemory(outcome.headers, outcome.header_bytes)
        value = _BinaryMemory(outcome.headers, outcome.header_bytes)
        found = records.Outcome(*records.decode_headers(outcome.rows, self.addresses, key.addresses, value.addresses))
        assert (found.problem, found.headers) == (0, outcome.headers), "the bytes changed while they were read"
        names = _text(key.array(pa.binary(), found.headers, found.key_bytes, 0))
        values = value.array(pa.binary(), found.headers, found.value_bytes, found.null_values)
        items = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
        offsets = _shrunk(self._offsets, (outcome.rows + 1) * 4)
        return pa.Array.from_buffers(HEADERS_TYPE, outcome.rows, [None, offsets], null_count=0, children=[items])


def _text(names: pa.BinaryArray) -> pa.StringArray:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())


@lru_cache(maxsize=16)
def _repeated(value: str | int, rows: int) -> pa.Array:
    if isinstance(value, int):
        return pa.array(np.full(rows, value, np.int32))
    text = value.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text * rows))


@lru_cache(maxsize=4)
def _no_headers(rows: int) -> pa.Array:
    offsets = pa.py_buffer(np.zeros(rows + 1, np.int32))
    return pa.Array.from_buffers(HEADERS_TYPE, rows, [None, offsets], children=[pa.array([], HEADERS_TYPE.value_type)])
