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
from spark_segments.format.layout import HEADERS_TYPE, RECORD_SCHEMA

# Rows of a RecordBatch: more are only in a huge batch of tiny records, and become several RecordBatches.
MOST_ROWS = 1 << 18
_FEWEST_CONSTANT_ROWS = 1 << 12

_NO_BINARY = records.Binary(False, 0, 0, 0)
_NO_PLACES = records.HeaderPlaces(False, 0, 0, 0)


class RecordColumns:
    """The columns of one portion of records: `fill` once, then `record_batches`."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int, timestamp_type: int) -> None:
        self._schema = schema
        self._same = {"topic": topic, "partition": partition, "timestampType": timestamp_type}
        self._rows = 0
        self._arrays: dict[str, pa.Array] = {}

    def fill(self, sections: np.ndarray, start_offset: int, end_offset: int) -> records.Outcome:
        """Reads the records of `sections` (see records.py) with offsets in [start_offset, end_offset)."""
        names = self._schema.names
        most_rows = int(sections[:, records.COUNT].sum())
        most_bytes = int((sections[:, records.END] - sections[:, records.ADDRESS]).sum())
        offsets, timestamps = _memory(most_rows * 8), _memory(most_rows * 8)
        if not {"key", "value", "headers"}.isdisjoint(names):
            key = _BinaryMemory(most_rows, most_bytes) if "key" in names else None
            value = _BinaryMemory(most_rows, most_bytes) if "value" in names else None
            places = _PlacesMemory(most_rows) if "headers" in names else None
            outcome = records.Outcome(
                *records.decode_records(
                    sections,
                    start_offset,
                    end_offset,
                    offsets.address,
                    timestamps.address,
                    key.addresses if key else _NO_BINARY,
                    value.addresses if value else _NO_BINARY,
                    places.addresses if places else _NO_PLACES,
                )
            )
            if outcome.problem:
                return outcome
            if key:
                self._arrays["key"] = key.array(pa.binary(), outcome.rows, outcome.key_bytes, outcome.null_keys)
            if value:
                self._arrays["value"] = value.array(pa.binary(), outcome.rows, outcome.value_bytes, outcome.null_values)
            if places and outcome.headers:
                self._arrays["headers"] = places.array(outcome)
        else:
            outcome = records.Outcome(
                *records.decode_offsets(sections, start_offset, end_offset, offsets.address, timestamps.address)
            )
            if outcome.problem:
                return outcome
        self._rows = outcome.rows
        for name, memory in (("offset", offsets), ("timestamp", timestamps)):
            content = _shrunk(memory, self._rows * 8)
            self._arrays[name] = pa.Array.from_buffers(RECORD_SCHEMA.field(name).type, self._rows, [None, content])
        return outcome

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        """What was filled in, in order; nothing where no record was."""
        for first in range(0, self._rows, MOST_ROWS):
            rows = min(self._rows - first, MOST_ROWS)
            yield pa.RecordBatch.from_arrays(
                [self._column(name, first, rows) for name in self._schema.names], schema=self._schema
            )

    def _column(self, name: str, first: int, rows: int) -> pa.Array:
        if name in self._arrays:
            array = self._arrays[name]
            return array if rows == len(array) else array.slice(first, rows)
        # The pool is asked for such a column once, not for every RecordBatch.
        most = max(_FEWEST_CONSTANT_ROWS, 1 << (rows - 1).bit_length())
        return (_no_headers(most) if name == "headers" else _repeated(self._same[name], most)).slice(0, rows)


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
        np.frombuffer(self._offsets, np.int32, 1)[0] = 0
        np.frombuffer(self._validity, np.uint8).fill(0xFF)
        self.addresses = records.Binary(True, self._offsets.address, self._validity.address, self._data.address)

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
        np.frombuffer(self._offsets, np.int32, 1)[0] = 0
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
