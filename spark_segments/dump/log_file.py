"""Batches and records of a .log (or a KRaft .checkpoint, which is batches too), window by window."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from spark_segments.dump.entry import (
    WINDOW_BYTES,
    Complaints,
    DumpOptions,
    DumpSource,
    Entry,
    base_offset_of,
    error_entry,
    plain_path,
)
from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.buffers import byte_view
from spark_segments.format.control import CONTROL_TYPES
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.format.layout import ABORT, ATTRIBUTES_POSITION, CODEC_NAMES, COMMIT, MAGIC_POSITION, NO_SEQUENCE
from spark_segments.format.legacy import messages
from spark_segments.format.shared_object import MAGIC, TRAILER_BYTES, Footer, footer_size, parse_footer
from spark_segments.format.sidecars.producer_state import MAX_SEQUENCE, sequence_after
from spark_segments.format.walk import walk
from spark_segments.format.window import Window

# Batches whose records are decoded together take this much of the file, or are a single one.
GROUP_BYTES = 256 << 10
RECORD_ROWS = 4096

_RECORD_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


def dump_log(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    """Batches, each followed by its records; then the bytes behind the last batch, and gaps between offsets.

    Of a shared object, what its footer says of each run, followed by the batches of the run.
    """
    name = plain_path(path).rsplit("/", 1)[-1]
    if name.endswith(".log"):
        yield {"kind": "log", "startingOffset": base_offset_of(path)}
    elif name == "bootstrap.checkpoint":
        yield {"kind": "KRaft bootstrap snapshot"}
    else:
        snapshot = re.fullmatch(r"(\d+)-(\d+)\.checkpoint", name)
        if snapshot is not None:
            yield {"kind": "KRaft snapshot", "endOffset": int(snapshot[1]), "epoch": int(snapshot[2])}
    size = source.size(path)
    footer = None
    try:
        footer = shared_footer(source, path, size) if name.endswith(".log") else None
    except CorruptBatchError as damaged:  # the batches are shown all the same
        yield error_entry(damaged)
    if footer is None:
        yield from _dump_batches(source, path, options, 0, size)
        return
    yield {"kind": "shared object", "topicId": footer.topic_id, "runs": len(footer.runs)}
    for run in footer.runs:
        values = {field: run[field].item() for field in footer.runs.dtype.names or ()}
        yield {"kind": "run", **values}
        yield from _dump_batches(source, path, options, values["position"], values["position"] + values["log_bytes"])


def _dump_batches(source: DumpSource, path: str, options: DumpOptions, start: int, end: int) -> Iterator[Entry]:
    """The batches in [start, end) of a file, as `dump_log` gives them."""
    if options.max_bytes is not None:
        end = min(end, start + options.max_bytes)
    gaps = _Gaps(path)
    byte_position = start
    error: CorruptBatchError | None = None

    def read(first: int, length: int) -> np.ndarray:
        return byte_view(source.read(path, first, length))

    steps = walk(read, path, end, start_position=start, most_window_bytes=WINDOW_BYTES, check_crc=False)
    for step in steps:
        error = step.error
        for group in _groups(step.window.batches):
            for batch, records in with_records(step.window.with_batches(group), options.deep_iteration):
                yield batch
                byte_position = batch["position"] + batch["size"]
                yield from gaps.watched(records)
    if byte_position < end:
        if error is not None:
            yield error_entry(error)
        if options.max_bytes is None:
            yield {"kind": "invalid bytes", "file": path, "bytes": end - byte_position}
    yield from gaps.complaints.entries()


class _Gaps:
    """Offsets that do not follow each other, over all batches of a file. They are no damage: compaction leaves them."""

    def __init__(self, path: str) -> None:
        self.complaints = Complaints("non-consecutive offsets", path, ("offset", "next"))
        self._last_offset = -1

    def watched(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries as they go by."""
        for entry in entries:
            if entry["kind"] == "record":
                offset = entry["offset"]
                if self._last_offset not in (-1, offset - 1):
                    self.complaints.add(self._last_offset, offset)
                self._last_offset = offset
            yield entry


def shared_footer(source: DumpSource, path: str, size: int) -> Footer | None:
    """The footer of a shared object, None for any other .log. Raises CorruptBatchError where it is damaged."""
    trailer = bytes(source.read(path, max(0, size - TRAILER_BYTES), TRAILER_BYTES))
    if not trailer.endswith(MAGIC):
        return None
    footer_bytes = footer_size(trailer, size, path=path)
    return parse_footer(source.read(path, size - footer_bytes, footer_bytes), size, path=path)


def _groups(batches: BatchTable) -> Iterator[BatchTable]:
    """Batches of one kind (magic 2 or older) whose records are decoded together."""
    if not len(batches):
        return
    group = (batches.byte_position - batches.byte_position[:1]) // GROUP_BYTES * 2 + (batches.magic < 2)
    edges = (np.flatnonzero(np.diff(group)) + 1).tolist()
    for first, last in itertools.pairwise([0, *edges, len(batches)]):
        yield batches.take(slice(first, last))


def with_records(window: Window, deep: bool) -> Iterator[tuple[Entry, Iterable[Entry]]]:
    """(a batch, its records or the error that they give) for each batch of a window (all of magic 2 or none)."""
    batches = window.batches
    if not deep:
        records: Iterator[Iterable[Entry]] = itertools.repeat(())
    elif batches.magic[0] < 2:
        records = (_legacy_records(window, row) for row in range(len(batches)))
    else:
        records = _records(window)
    for batch in _batches(batches):
        content = window.data[batch["position"] - window.byte_position :][: batch["size"]]
        if batch["magic"] == 2:
            crc = crc32c(content[ATTRIBUTES_POSITION:])
        else:
            crc = zlib.crc32(content[MAGIC_POSITION:].data)
        yield {**batch, "isValid": crc == batch["crc"]}, next(records)


def _batches(batches: BatchTable) -> Iterator[Entry]:
    current = batches.magic == 2
    names = {
        "baseOffset": _or_none(current, batches.base_offset),
        "lastOffset": batches.last_offset,
        "count": _or_none(current, batches.count),
        "baseSequence": batches.base_sequence,
        "lastSequence": np.where(
            batches.base_sequence == NO_SEQUENCE,
            NO_SEQUENCE,
            (batches.base_sequence + batches.last_offset - batches.base_offset) % (MAX_SEQUENCE + 1),
        ),
        "producerId": batches.producer_id,
        "producerEpoch": batches.producer_epoch,
        "leaderEpoch": batches.leader_epoch,
        "isTransactional": batches.is_transactional,
        "isControl": batches.is_control,
        "deleteHorizonMs": _or_none(batches.has_delete_horizon, batches.base_timestamp),
        "position": batches.byte_position,
        "timestampType": _timestamp_types(batches),
        "baseTimestamp": _or_none(current, batches.base_timestamp),
        "maxTimestamp": batches.max_timestamp,
        "size": batches.size,
        "magic": batches.magic,
        "compression": np.array([CODEC_NAMES.get(codec, str(codec)) for codec in range(8)], object)[batches.codec],
        "crc": batches.crc,
    }
    for values in zip(*(column.tolist() for column in names.values()), strict=True):
        yield {"kind": "batch", **dict(zip(names, values, strict=True))}


def _or_none(flags: np.ndarray, values: np.ndarray) -> np.ndarray:
    result = values.astype(object)
    result[~flags] = None
    return result


def _timestamp_types(batches: BatchTable) -> np.ndarray:
    values: np.ndarray = np.array(["CreateTime", "LogAppendTime", "NoTimestampType"], object)[batches.timestamp_type]
    return values


def _records(window: Window) -> Iterator[Iterable[Entry]]:
    """The records of each batch of magic 2, one batch after another."""
    batches = window.batches
    try:
        rows = list(decode_batches(window, topic="", partition=0, columns=_RECORD_COLUMNS, include_control=True))
    except CorruptBatchError as error:
        if len(batches) == 1:
            yield [error_entry(error)]
            return
        for row in range(len(batches)):
            yield from _records(window.take(slice(row, row + 1)))
        return
    rest: Iterator[tuple[Any, ...]] = itertools.chain.from_iterable(_rows(part) for part in rows)
    for batch in _batches(batches):
        yield (_record(fields, batch) for fields in itertools.islice(rest, batch["count"]))


def _rows(part: Any) -> Iterator[tuple[Any, ...]]:
    for first in range(0, part.num_rows, RECORD_ROWS):
        rows = part.slice(first, RECORD_ROWS)
        offset, timestamp, key, value, headers = rows.columns
        milliseconds = timestamp.cast("int64").to_numpy() // 1000
        yield from zip(
            offset.to_pylist(),
            milliseconds.tolist(),
            key.to_pylist(),
            value.to_pylist(),
            headers.to_pylist(),
            strict=True,
        )


def _record(fields: tuple[Any, ...], batch: Entry) -> Entry:
    offset, timestamp, key, value, headers = fields
    entry = {
        "kind": "record",
        "offset": offset,
        "timestampType": batch["timestampType"],
        "timestamp": timestamp,
        "keySize": -1 if key is None else len(key),
        "valueSize": -1 if value is None else len(value),
        "sequence": sequence_after(batch["baseSequence"], offset - batch["baseOffset"]),
        "headers": [(header["key"], header["value"]) for header in headers],
        "key": key,
        "value": value,
    }
    if batch["isControl"]:
        kind = int.from_bytes(key[2:4], "big", signed=True) if key is not None and len(key) >= 4 else -1
        entry["controlType"] = CONTROL_TYPES.get(kind, "UNKNOWN")
        entry["controlTypeId"] = kind
        if kind in (ABORT, COMMIT) and value is not None and len(value) >= 6:
            entry["coordinatorEpoch"] = int.from_bytes(value[2:6], "big", signed=True)
    return entry


def _legacy_records(window: Window, row: int) -> Iterator[Entry]:
    """The messages of one entry of magic 0 or 1."""
    kind = _timestamp_types(window.batches)[row]
    try:
        for message in messages(window, row, check_crc=False):
            key, value = (None if content is None else bytes(content) for content in (message.key, message.value))
            yield {
                "kind": "record",
                "offset": message.offset,
                "timestampType": kind,
                "timestamp": message.timestamp,
                "keySize": -1 if key is None else len(key),
                "valueSize": -1 if value is None else len(value),
                "headers": [],
                "key": key,
                "value": value,
                "crc": message.crc,
                "isValid": message.is_valid,
            }
    except CorruptBatchError as error:
        yield error_entry(error)
