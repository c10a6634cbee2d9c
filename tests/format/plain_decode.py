"""Record batches of magic 2 read a field at a time, as the layout reads: what the cleaner's output is looked at with.

Codecs and CRC come from other packages than ours.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import crc32c
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

DECOMPRESS = {0: bytes, 1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}


@dataclass(frozen=True)
class PlainRecord:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True)
class PlainBatch:
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: tuple[PlainRecord, ...]

    @property
    def codec(self) -> int:
        return self.attributes & 7

    @property
    def log_append_time(self) -> bool:
        return self.attributes & 8 != 0

    @property
    def transactional(self) -> bool:
        return self.attributes & 16 != 0

    @property
    def control(self) -> bool:
        return self.attributes & 32 != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & 64 else None

    def without_codec(self) -> PlainBatch:
        return replace(self, attributes=self.attributes & ~7)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        assert len(piece) == size
        self.at += size
        return piece

    def varint(self) -> int:
        raw = shift = 0
        while True:
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return raw >> 1 ^ -(raw & 1)

    def field(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def plain_batches(data: bytes) -> Iterator[PlainBatch]:
    """All batches of a log; an AssertionError where one is not as the layout says."""
    at = 0
    while at < len(data):
        base_offset, length, leader_epoch, magic, crc = struct.unpack_from(">qiibI", data, at)
        end = at + 12 + length
        assert magic == 2 and end <= len(data)
        assert crc == crc32c.crc32c(data[at + 21 : end])
        attributes, delta, base_timestamp, max_timestamp, producer_id, epoch, sequence, count = struct.unpack_from(
            ">hiqqqhii", data, at + 21
        )
        appended_ms = max_timestamp if attributes & 8 else None
        section = _Reader(DECOMPRESS[attributes & 7](data[at + 61 : end]) if count else b"")
        records = tuple(_record(section, base_offset, base_timestamp, appended_ms) for _ in range(count))
        assert section.at == len(section.data)
        yield PlainBatch(
            base_offset,
            base_offset + delta,
            leader_epoch,
            attributes,
            base_timestamp,
            max_timestamp,
            producer_id,
            epoch,
            sequence,
            records,
        )
        at = end


def _record(section: _Reader, base_offset: int, base_timestamp: int, appended_ms: int | None) -> PlainRecord:
    length = section.varint()
    end = section.at + length
    section.take(1)
    timestamp = base_timestamp + section.varint()
    offset = base_offset + section.varint()
    key, value = section.field(), section.field()
    headers = tuple((section.field() or b"", section.field()) for _ in range(section.varint()))
    assert section.at == end
    return PlainRecord(offset, timestamp if appended_ms is None else appended_ms, key, value, headers)
