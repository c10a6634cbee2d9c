"""The slow, plain twin of format/batches.py and format/decoding/decode.py: record batches read field by field.

It is the reference that the kernels are compared with: for any bytes, both give the same records or both refuse. Codecs
and CRC come from other packages than ours.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import crc32c
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

DECOMPRESS = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
HEADER = struct.Struct(">qiibIhiqqqhii")
CREATE_TIME, LOG_APPEND_TIME = 0, 1


class DamageError(Exception):
    """These bytes are no record batches."""


class Row(NamedTuple):
    """One record as it is read; key, value and headers are None where only the head of the record was."""

    offset: int
    timestamp: int  # milliseconds
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    is_control: bool


class Bytes:
    """Reads fields from the front of some bytes, and never more than there is."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data):
            raise DamageError(f"{size} bytes of {len(self.data)}")
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def unsigned(self, most_bytes: int) -> int:
        raw = 0
        for index in range(most_bytes):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return raw
        raise DamageError("a number does not end")

    def varint(self) -> int:
        raw = self.unsigned(5) % 2**32
        return raw >> 1 if raw % 2 == 0 else -(raw >> 1) - 1

    def varlong(self) -> int:
        raw = self.unsigned(10) % 2**64
        return raw >> 1 if raw % 2 == 0 else -(raw >> 1) - 1

    def nullable(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)


def decode(data: bytes, *, heads_only: bool = False) -> list[Row]:
    """All records of whole batches of magic 2; a batch that the end cuts is left. Raises DamageError.

    With `heads_only` nothing behind a record's offset is looked at.
    """
    rows: list[Row] = []
    while len(data) >= 17:
        length, magic = struct.unpack(">i", data[8:12])[0], data[16]
        if magic != 2 or length < 49:
            raise DamageError(f"magic {magic}, length {length}")
        if length + 12 > len(data):
            break
        rows.extend(_batch(data[: length + 12], heads_only))
        data = data[length + 12 :]
    return rows


def _batch(data: bytes, heads_only: bool) -> Iterator[Row]:
    (base_offset, _, _, _, crc, attributes, last_offset_delta, base_timestamp, max_timestamp, _, _, _, count) = (
        HEADER.unpack(data[:61])
    )
    if crc != crc32c.crc32c(data[21:]):
        raise DamageError("CRC")
    if base_offset < 0 or last_offset_delta < 0 or base_offset + last_offset_delta >= 2**63:
        raise DamageError("offsets")
    if count < 0 or count > last_offset_delta + 1:
        raise DamageError("count")
    if count == 0:
        return
    codec = attributes & 7
    if codec > 4:
        raise DamageError("codec")
    try:
        section = Bytes(DECOMPRESS[codec](data[61:]) if codec else data[61:])
    except Exception as error:  # whatever the codecs' packages raise
        raise DamageError("codec") from error
    previous = -1
    for _ in range(count):
        timestamp_delta, offset_delta, key, value, headers = _record(section, heads_only)
        if not previous < offset_delta <= last_offset_delta:
            raise DamageError("offset delta")
        previous = offset_delta
        appended = bool(attributes & 8)
        timestamp = max_timestamp if appended else (base_timestamp + timestamp_delta + 2**63) % 2**64 - 2**63
        timestamp_type = LOG_APPEND_TIME if appended else CREATE_TIME
        yield Row(base_offset + offset_delta, timestamp, timestamp_type, key, value, headers, bool(attributes & 0x20))
    if len(section):
        raise DamageError("bytes behind the last record")


def _record(section: Bytes, heads_only: bool) -> tuple:
    record = Bytes(section.take(section.varint()))
    if len(record) < 6:
        raise DamageError("a record of less than its fields")
    record.take(1)
    timestamp_delta, offset_delta = record.varlong(), record.varint()
    if heads_only:
        return timestamp_delta, offset_delta, None, None, None
    key, value = record.nullable(), record.nullable()
    headers = []
    count = record.varint()
    if count < 0:
        raise DamageError("header count")
    for _ in range(count):
        name = record.take(record.varint())
        headers.append((name.decode("utf-8", "replace"), record.nullable()))
    if len(record):
        raise DamageError("a record is longer than its fields")
    return timestamp_delta, offset_delta, key, value, headers
