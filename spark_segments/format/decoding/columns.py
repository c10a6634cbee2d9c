"""The Arrow columns of records: memory that kernels fill (decode_kernels.py), and the RecordBatches made from it.

Memory is allocated by upper bounds from Arrow's pool, which hands out the same pages again. Unused memory goes back to
the pool before a column is handed out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa

from spark_segments.format.buffers import COPY_SLACK
from spark_segments.format.decoding import decode_kernels
from spark_segments.format.decoding.batch_groups import BatchGroup, WantedRecords
from spark_segments.format.decoding.outcomes import Binary, Filled, HeaderPlaces, Outcome
from spark_segments.format.layout import CREATE_TIME, HEADERS_TYPE, LOG_APPEND_TIME, RECORD_SCHEMA

# Rows of a RecordBatch, at most. Only a huge batch of tiny records has more, and becomes several RecordBatches.
MOST_ROWS = 1 << 18
_FEWEST_CONSTANT_ROWS = 1 << 12

_NO_BINARY = Binary(False, 0, 0, 0, 0)
_NO_PLACES = HeaderPlaces(False, 0, 0, 0)
_NOTHING = tuple(Filled(0, 0, 0, 0, 0, 0, 0))

# Room relative to the target of a RecordBatch: its last group may exceed the target.
_MORE = 1.25


class DecodedColumns:
    """The columns of one RecordBatch. Groups are appended to them; the first group decides how much room they have."""

    def __init__(self, first: BatchGroup, selection: WantedRecords, partition: int) -> None:
        rows, payload_bytes = first.rows, first.payload_bytes
        if not first.is_last:  # further groups of the same kind follow, up to the target and a little beyond it
            times = _MORE * selection.target_bytes / max(first.size, 1) + 1
            rows, payload_bytes = int(rows * times), int(payload_bytes * times)
        self._selection = selection
        self._partition = partition
        self._timestamp_step = first.timestamp_step
        self._most_rows = rows
        self._most_bytes = payload_bytes
        self._counted_rows = self._counted_bytes = 0
        self._filled = _NOTHING
        names = selection.columns
        self._offsets = _memory(rows * 8)
        self._timestamps = _memory(rows * 8)
        self._key = _BinaryMemory(rows, payload_bytes) if "key" in names else None
        self._value: _BinaryMemory | _ViewMemory | None = None
        if "value" in names:
            self._value = _ViewMemory(rows) if selection.view_values else _BinaryMemory(rows, payload_bytes)
        self._headers = _HeaderMemory(rows) if "headers" in names else None

    def has_room(self, group: BatchGroup) -> bool:
        """Whether the group fits: the same timestamp type, and no more rows and bytes than there is room for."""
        return (
            group.timestamp_step == self._timestamp_step
            and self._counted_rows + group.rows <= self._most_rows
            and self._counted_bytes + group.payload_bytes <= self._most_bytes
        )

    def read(self, group: BatchGroup) -> Outcome:
        """Appends the wanted records of a group, and returns the kernel's outcome."""
        self._counted_rows += group.rows
        self._counted_bytes += group.payload_bytes
        if isinstance(self._value, _ViewMemory):
            self._value.hold(group.buffers)
        selection = self._selection
        before = self._filled
        offset_range = (group.sections, selection.first_offset, selection.end_offset)
        times = (self._offsets.address, self._timestamps.address)
        if self._key or self._value or self._headers:
            key = self._key
            value = self._value
            headers = self._headers
            outcome = Outcome(
                *decode_kernels.decode_records(
                    *offset_range,
                    before,
                    *times,
                    key.addresses if key else _NO_BINARY,
                    value.addresses if value else _NO_BINARY,
                    headers.addresses if headers else _NO_PLACES,
                )
            )
        else:
            outcome = Outcome(*decode_kernels.decode_offsets(*offset_range, before[0], *times))
        if not outcome.problem:
            self._filled = outcome[: len(_NOTHING)]
            if self._headers and outcome.headers:
                self._headers.read(Filled(*before), outcome)
        return outcome

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        """The records read, as RecordBatches of at most MOST_ROWS rows, none of them empty."""
        filled = Filled(*self._filled)
        arrays: dict[str, pa.Array] = {}
        if self._key:
            arrays["key"] = self._key.array(pa.binary(), filled.rows, filled.key_bytes, filled.null_keys)
        if self._value:
            arrays["value"] = self._value.array(
                self._selection.schema.field("value").type, filled.rows, filled.value_bytes, filled.null_values
            )
        if self._headers and filled.headers:
            arrays["headers"] = self._headers.array(filled.rows)
        for name, memory in (("offset", self._offsets), ("timestamp", self._timestamps)):
            content = [None, _shrunk(memory, filled.rows * 8)]
            arrays[name] = pa.Array.from_buffers(RECORD_SCHEMA.field(name).type, filled.rows, content, null_count=0)
        timestamp_type = self._selection.timestamp_type
        if timestamp_type is None:
            timestamp_type = CREATE_TIME if self._timestamp_step else LOG_APPEND_TIME
        return record_batches(
            self._selection, filled.rows, arrays, {"partition": self._partition, "timestampType": timestamp_type}
        )


def record_batches(
    selection: WantedRecords, rows: int, arrays: dict[str, pa.Array], same: dict[str, int]
) -> Iterator[pa.RecordBatch]:
    """The wanted columns of these `rows`, as RecordBatches of at most MOST_ROWS rows: arrays by name, and columns that
    have the same value in every row.
    """
    schema = selection.schema
    constants = {"topic": selection.topic, **same}
    for first in range(0, rows, MOST_ROWS):
        count = min(rows - first, MOST_ROWS)
        # A column with the same value in every row is a slice of a cached array.
        most = max(_FEWEST_CONSTANT_ROWS, 1 << (count - 1).bit_length())
        columns = []
        for name in schema.names:
            if name in arrays:
                columns.append(arrays[name] if count == rows else arrays[name].slice(first, count))
            else:
                columns.append(
                    (_no_headers(most) if name == "headers" else _repeated(constants[name], most)).slice(0, count)
                )
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _memory(size: int) -> pa.ResizableBuffer:
    return pa.allocate_buffer(size, resizable=True)


def _shrunk(memory: pa.ResizableBuffer, size: int) -> pa.ResizableBuffer:
    if size < memory.size:
        memory.resize(size, shrink_to_fit=True)
    return memory


class _BinaryMemory:
    """Memory of a binary column of at most `most_rows` rows and `most_bytes` bytes."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._offsets = _memory((most_rows + 1) * 4)
        self._validity = _memory((most_rows + 7) // 8)
        self._data = _memory(most_bytes + COPY_SLACK)
        self.addresses = Binary(True, most_rows, self._offsets.address, self._validity.address, self._data.address)

    def array(self, array_type: pa.DataType, rows: int, size: int, nulls: int) -> pa.Array:
        """The column of the `rows` and `size` bytes that were filled in."""
        validity = _shrunk(self._validity, (rows + 7) // 8) if nulls else None
        offsets = _shrunk(self._offsets, (rows + 1) * 4)
        data = _shrunk(self._data, size)
        return pa.Array.from_buffers(array_type, rows, [validity, offsets, data], null_count=nulls)


class _ViewMemory:
    """Memory of a column of views of at most `most_rows` rows, and the buffers that the views point into."""

    def __init__(self, most_rows: int) -> None:
        self._views = _memory(most_rows * 16)
        self._validity = _memory((most_rows + 7) // 8)
        self._buffers: list[pa.Buffer] = []
        self._held: list[pa.Buffer] = []
        self.addresses = Binary(True, most_rows, 0, self._validity.address, 0, self._views.address)

    def hold(self, buffers: list[pa.Buffer]) -> None:
        """Keeps the buffers of the next group. Groups that were decompressed together have the same buffers."""
        if buffers is self._held:
            return
        self._held = buffers
        self.addresses = self.addresses._replace(first_buffer=len(self._buffers))
        self._buffers += buffers

    def array(self, array_type: pa.DataType, rows: int, size: int, nulls: int) -> pa.Array:
        """The column of the `rows` that were filled in; `size` is of no use to it."""
        validity = _shrunk(self._validity, (rows + 7) // 8) if nulls else None
        content = [validity, _shrunk(self._views, rows * 16), *self._buffers]
        return pa.Array.from_buffers(array_type, rows, content, null_count=nulls)


class _HeaderMemory:
    """Memory for the places of the headers of at most `most_rows` rows, and the headers read so far."""

    def __init__(self, most_rows: int) -> None:
        self._offsets = _memory((most_rows + 1) * 4)
        self._addresses = _memory(most_rows * 8)
        self._ends = _memory(most_rows * 8)
        self._parts: list[pa.StructArray] = []
        self.addresses = HeaderPlaces(True, self._offsets.address, self._addresses.address, self._ends.address)

    def read(self, before: Filled, after: Outcome) -> None:
        """Reads the headers of the rows just added, while the bytes of their group are still in memory."""
        count = after.headers - before.headers
        size = after.header_bytes - before.header_bytes
        key, value = _BinaryMemory(count, size), _BinaryMemory(count, size)
        outcome = Outcome(
            *decode_kernels.decode_headers(
                before.rows, after.rows, before.headers, self.addresses, key.addresses, value.addresses
            )
        )
        assert (outcome.problem, outcome.headers) == (0, count), "the bytes changed while they were read"
        names = _text(key.array(pa.binary(), count, outcome.key_bytes, 0))
        values = value.array(pa.binary(), count, outcome.value_bytes, outcome.null_values)
        self._parts.append(pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type)))

    def array(self, rows: int) -> pa.Array:
        """The column of headers."""
        items = self._parts[0] if len(self._parts) == 1 else pa.concat_arrays(self._parts)
        content = [None, _shrunk(self._offsets, (rows + 1) * 4)]
        return pa.Array.from_buffers(HEADERS_TYPE, rows, content, null_count=0, children=[items])


def _text(names: pa.BinaryArray) -> pa.StringArray:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())


@lru_cache(maxsize=16)
def _repeated(value: str | int, rows: int) -> pa.Array:
    if isinstance(value, int):
        return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(np.full(rows, value, np.int32))])
    text = value.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text * rows))


@lru_cache(maxsize=4)
def _no_headers(rows: int) -> pa.Array:
    offsets = pa.py_buffer(np.zeros(rows + 1, np.int32))
    return pa.Array.from_buffers(HEADERS_TYPE, rows, [None, offsets], children=[pa.array([], HEADERS_TYPE.value_type)])
