"""Messages of magic 0 and 1, as Kafka wrote them before 0.11: what they hold, and their records as batches of magic 2.

    offset         i64   position 0
    messageSize    i32   8     bytes after this field
    crc            u32   12    CRC-32 (zlib's) of everything from `magic` on
    magic          i8    16
    attributes     i8    17    bits 0-2 codec, bit 3 timestamp type (magic 1)
    timestamp      i64   18    magic 1 only
    key size       i32         negative: null; then the key
    value size     i32         negative: null; then the value

A compressed message is a *wrapper*: its value holds messages, and its offset is that of the last message. Inside a
wrapper of magic 1, offsets count from the first message, and a wrapper with LogAppendTime gives its timestamp to all
messages. Inside a wrapper of magic 0, offsets are absolute. Source of the rules: Kafka's LegacyRecord and
AbstractLegacyRecordBatch.

Segments are converted where they are opened (log/segment/file.py), as Kafka's LogValidator does when an old producer
writes to a newer topic, except that offsets may have gaps. It is plain code: such logs grow no more.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import scan_batches
from spark_segments.format.buffers import byte_view
from spark_segments.format.compression import compress, decompress, with_right_lz4_checksum
from spark_segments.format.layout import (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    LZ4,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    NO_TIMESTAMP_TYPE,
    TIMESTAMP_TYPE_MASK,
    ZSTD,
)
from spark_segments.format.single_batch import LARGEST_BATCH_OFFSETS, made_batch
from spark_segments.format.window import Window

RUN_BYTES = 128 << 10
"""Uncompressed messages are gathered into batches of up to this size."""

STEP_BYTES = 4 << 20
"""Beyond this size a wrapper becomes several batches, and a window several windows: memory stays bounded."""

_OFFSET_AND_SIZE = Struct(">qi")
_HEADER = Struct(">IbB")  # crc, magic, attributes
_INT32 = Struct(">i")
_INT64 = Struct(">q")

_Fail = Callable[[str], CorruptBatchError]


class OldMessage(NamedTuple):
    """A message that is no wrapper, at its own offset. `crc`: as stored; `is_valid`: it is that of the bytes."""

    offset: int
    magic: int
    codec: int
    timestamp: int
    timestamp_type: int
    key: memoryview | None
    value: memoryview | None
    crc: int
    is_valid: bool


def first_bad_crc(window: Window) -> CorruptBatchError | None:
    """The error of the first entry of magic 0 or 1 whose CRC-32 is not that of its bytes. Wrappers are not opened."""
    data = byte_view(window.data).data
    starts = window.starts
    batches = window.batches
    for row in np.flatnonzero(batches.magic < 2).tolist():
        start = int(starts[row])
        if zlib.crc32(data[start + MAGIC_POSITION : start + int(batches.size[row])]) != batches.crc[row]:
            return _corrupt(window.path, int(batches.byte_position[row]))("the CRC-32 of a message does not match")
    return None


def messages(window: Window, row: int, *, check_crc: bool = True) -> Iterator[OldMessage]:
    """The messages of an entry of magic 0 or 1, the batch `row` of a window, in order: of a wrapper, those inside.

    Raises CorruptBatchError for damaged messages and for a wrong CRC. Without `check_crc` a wrong CRC is no error.
    """
    byte_position = int(window.batches.byte_position[row])
    start = int(window.starts[row])
    fail = _corrupt(window.path, byte_position)

    def checked(message: OldMessage) -> OldMessage:
        if check_crc and not message.is_valid:
            raise fail("the CRC-32 of a message does not match")
        return message

    entry = byte_view(window.data).data[start : start + int(window.batches.size[row])]
    outer = checked(next(_parsed(entry, fail, is_inside=False)))
    if not outer.codec:
        yield outer
        return
    if outer.codec == ZSTD or outer.value is None:
        raise fail("a message is compressed with zstd" if outer.codec == ZSTD else "a wrapper is empty")
    content = with_right_lz4_checksum(outer.value) if outer.codec == LZ4 else outer.value
    data = byte_view(decompress(outer.codec, content, path=window.path, byte_position=byte_position)).data
    first = last = -1
    for message in _parsed(data, fail, is_inside=True):
        first = message.offset if first < 0 else first
        last = message.offset
    if first < 0:
        raise fail("a wrapper is empty")
    # Some versions of librdkafka left the wrapper's offset at 0.
    shift = outer.offset - last if outer.magic == 1 and outer.offset else 0
    if shift + first < 0:
        raise fail("the offset of a wrapper is less than that of its last message")
    for message in map(checked, _parsed(data, fail, is_inside=True)):
        timestamp = message.timestamp
        timestamp_type = message.timestamp_type
        if outer.magic == message.magic == 1:
            timestamp_type = outer.timestamp_type
            timestamp = outer.timestamp if timestamp_type == LOG_APPEND_TIME else timestamp
        yield message._replace(offset=message.offset + shift, timestamp=timestamp, timestamp_type=timestamp_type)


def _parsed(data: memoryview, fail: _Fail, *, is_inside: bool) -> Iterator[OldMessage]:
    """The messages in `data`, with wrappers unopened. A message that the end of the data cuts does not count."""
    at = 0
    previous = -1
    while at + LOG_OVERHEAD <= len(data):
        offset, size = _OFFSET_AND_SIZE.unpack_from(data, at)
        stop = at + LOG_OVERHEAD + size
        if size < 14:
            raise fail("the size of a message is impossible")
        if stop > len(data):
            return
        crc, magic, attributes = _HEADER.unpack_from(data, at + LOG_OVERHEAD)
        if magic not in (0, 1):
            raise fail("a message inside has a magic byte that is neither 0 nor 1")
        if size < 14 + 8 * magic:
            raise fail("the size of a message is impossible")
        codec = attributes & CODEC_MASK
        if is_inside and codec:
            raise fail("a compressed message lies inside a compressed one")
        key, end = _sized(data, at + 18 + 8 * magic, stop - 4)
        value, end = _sized(data, end, stop) if end <= stop - 4 else (None, stop + 1)
        if end > stop:
            raise fail("a key or a value reaches over the end of its message")
        if offset <= previous:
            raise fail("the offsets of messages do not rise")
        timestamp = NO_TIMESTAMP
        timestamp_type = NO_TIMESTAMP_TYPE
        if magic:
            (timestamp,) = _INT64.unpack_from(data, at + 18)
            timestamp_type = LOG_APPEND_TIME if attributes & TIMESTAMP_TYPE_MASK else CREATE_TIME
        is_valid = zlib.crc32(data[at + MAGIC_POSITION : stop]) == crc
        yield OldMessage(offset, magic, codec, timestamp, timestamp_type, key, value, crc, is_valid)
        at = stop
        previous = offset


def _sized(data: memoryview, at: int, end: int) -> tuple[memoryview | None, int]:
    """(the bytes behind their size, None where it is negative; the position behind them, which may be above `end`)."""
    (size,) = _INT32.unpack_from(data, at)
    stop = at + 4 + max(size, 0)
    return (None if size < 0 or stop > end else data[at + 4 : stop]), stop


def opened(window: Window) -> Iterator[Window]:
    """The window as windows of batches of magic 2 alone, in order: itself, where it has no messages of magic 0 and 1.

    A wrapper becomes a batch with the wrapper's codec, and messages side by side are gathered into batches. Raises
    CorruptBatchError, after the windows before it, for damaged messages and for a wrong CRC-32.
    """
    is_legacy = window.batches.magic < 2
    if not is_legacy.any():
        yield window
        return
    edges = [0, *(np.flatnonzero(np.diff(is_legacy)) + 1).tolist(), len(is_legacy)]
    for first, last in pairwise(edges):
        part = window.take(slice(first, last))
        yield from _converted(part) if is_legacy[first] else (part,)


def _converted(window: Window) -> Iterator[Window]:
    """Windows of about STEP_BYTES, each of records that all have a timestamp type or that all have none."""
    data = bytearray()
    part_type = None
    behind = 0

    def part() -> Window:
        batches = scan_batches(data, check_crc=False).batches
        return Window(
            bytes(data), batches, path=window.path, offset_shift=window.offset_shift,
            timestamp_type=part_type, behind=behind,
        )  # fmt: skip

    for run in _runs(window):
        timestamp_type = NO_TIMESTAMP_TYPE if run.first.timestamp_type == NO_TIMESTAMP_TYPE else None
        if data and (timestamp_type != part_type or len(data) >= STEP_BYTES):
            yield part()
            data = bytearray()
        part_type = timestamp_type
        behind = run.behind
        data += run.batch()
    if data:
        yield part()


def _runs(window: Window) -> Iterator[_Run]:
    """The messages of a window's entries in runs, each of which fits one batch."""
    run: _Run | None = None
    batches = window.batches
    for row, codec in enumerate(batches.codec.tolist()):
        if run is not None and (codec or run.codec):
            yield run
            run = None
        behind = int(batches.byte_position[row] + batches.size[row])
        for message in messages(window, row):
            if run is not None and message.offset <= run.last_offset:
                raise _corrupt(window.path, int(batches.byte_position[row]))("the offsets of messages do not rise")
            if run is not None and not run.takes(message):
                yield run
                run = None
            run = run or _Run(codec, message)
            run.add(message)
            run.behind = behind
    if run is not None:
        yield run


@dataclass(slots=True)
class _Run:
    """Messages that become a batch: a size, an int32 of offset deltas, one timestamp if it is LogAppendTime.

    A record without timestamp stays without one (−1), and counts as CreateTime. `behind`: the position in the file
    behind the entry of the last message.
    """

    codec: int
    first: OldMessage
    records: bytearray = field(default_factory=bytearray)
    count: int = 0
    last_offset: int = 0
    max_timestamp: int = -(1 << 63)
    behind: int = 0

    def takes(self, message: OldMessage) -> bool:
        first = self.first
        apart_ms = message.timestamp - self.first.timestamp
        size = len(self.records) + len(message.key or b"") + len(message.value or b"")
        return (
            size < (STEP_BYTES if self.codec else RUN_BYTES)
            and message.timestamp_type == first.timestamp_type
            and message.offset - first.offset < LARGEST_BATCH_OFFSETS
            and (apart_ms == 0 if first.timestamp_type == LOG_APPEND_TIME else -(1 << 63) <= apart_ms < 1 << 63)
        )

    def add(self, message: OldMessage) -> None:
        deltas = _varint(message.timestamp - self.first.timestamp) + _varint(message.offset - self.first.offset)
        parts = [b"\0", deltas]  # attributes; the last byte is the number of headers
        for content in (message.key, message.value):
            parts += [_varint(-1)] if content is None else [_varint(len(content)), bytes(content)]
        record = b"".join([*parts, b"\0"])
        self.records += _varint(len(record)) + record
        self.count += 1
        self.last_offset = message.offset
        self.max_timestamp = max(self.max_timestamp, message.timestamp)

    def batch(self) -> bytes:
        return made_batch(
            compress(self.codec, self.records),
            self.count,
            base_offset=self.first.offset,
            last_offset=self.last_offset,
            leader_epoch=-1,
            attributes=self.codec | (TIMESTAMP_TYPE_MASK if self.first.timestamp_type == LOG_APPEND_TIME else 0),
            base_timestamp=self.first.timestamp,
            max_timestamp=self.max_timestamp,
        )


def _varint(value: int) -> bytes:
    """A number of up to 64 bits in Kafka's zigzag code."""
    value = value * 2 if value >= 0 else -2 * value - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _corrupt(path: str, byte_position: int) -> _Fail:
    def error(message: str) -> CorruptBatchError:
        return CorruptBatchError(
            f"A message set of magic 0 or 1 is damaged: {message}",
            path=path or None,
            byte_position=byte_position,
            hint="Restore the file, or skip the batch's offsets",
        )

    return error
