"""The layout of a run: its shape, its pages and its footer, as docs/format/key-index.md has them. Opens no file."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.keys.hashes import HASH_BITS

FOOTER_VERSION = 1
MAGIC = b"SEGKEYS\n"
PAGE_BYTES = 4096
CRC_BYTES = 4
MOST_FAN_BITS = 12
ENTRIES_A_BUCKET = 1024
"""About how many entries have the same highest bits, as long as the table of the footer stays small."""

MOST_INLINE = 64
"""A hash of more records has a list. Up to here the entries of a hash are a few hundred bytes side by side."""

MOST_LISTED = 1 << 18
"""A hash of more records can be anywhere in its run: so many look-ups would read about all of it anyway."""

MOST_ENTRIES = (1 << 32) - 1
FILTER_BITS_A_HASH = 10
MOST_FILTER_BYTES = 32 << 10
_PROBES = 7
_MIX = np.uint64(0x9E3779B97F4A7C15)

HEADER_STRUCT = struct.Struct(
    ">h"  # version
    "BBBB"  # hash_bits, fan_bits, hash_bytes, place_bytes
    "HH"  # entries_a_page, items_a_page
    "i"  # partition
    "qq"  # base_offset, end_offset
    "q"  # manifest_version
    "qqq"  # records, entries, items
    "Q"  # seed
    "i"  # filter_bytes
    "h"  # topic_id_bytes, of the topic id that follows as UTF-8
)
TRAILER_STRUCT = struct.Struct(
    ">I"  # CRC-32C of the footer's content: header, topic id, fan-out table and filter
    "i"  # bytes of that content
    "8s"  # magic
)


class DamagedRunError(Exception):
    """The bytes of a run are not what a run has. It never leaves this room: what the run covers is scanned."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How wide the numbers of a run are, which everything else in it follows from."""

    hash_bits: int
    fan_bits: int
    place_bytes: int

    @classmethod
    def of(cls, records: int, offsets: int, hash_bits: int = HASH_BITS) -> Shape:
        """The shape for at most so many records in a range of so many offsets."""
        buckets = max(1, records // ENTRIES_A_BUCKET)
        fan_bits = min(buckets.bit_length() - 1, MOST_FAN_BITS, hash_bits)
        # A place is an offset of the range or an item of the lists, which have a further item a list, and a bit that
        # says which of the two.
        largest = max(offsets, 2 * records, 1)
        return cls(hash_bits, fan_bits, (largest.bit_length() + 1 + 7) // 8)

    @property
    def hash_bytes(self) -> int:
        return (self.hash_bits - self.fan_bits + 7) // 8

    @property
    def entry_bytes(self) -> int:
        return self.hash_bytes + self.place_bytes

    @property
    def entries_a_page(self) -> int:
        return entries_a_page(self.entry_bytes)

    @property
    def items_a_page(self) -> int:
        return (PAGE_BYTES - CRC_BYTES) // self.place_bytes

    @property
    def list_flag(self) -> int:
        """The bit of a place that says that it is a list's."""
        return 1 << (8 * self.place_bytes - 1)

    def buckets(self, hashes: np.ndarray) -> np.ndarray:
        """int64[n]: the highest bits of hashes (uint64[n])."""
        if not self.fan_bits:
            return np.zeros(len(hashes), np.int64)
        return (hashes >> np.uint64(self.hash_bits - self.fan_bits)).astype(np.int64)

    def rests(self, hashes: np.ndarray) -> np.ndarray:
        """uint64[n]: hashes without their highest bits."""
        rest_bits = self.hash_bits - self.fan_bits
        return hashes if rest_bits == 64 else hashes & np.uint64((1 << rest_bits) - 1)


@dataclass(frozen=True, slots=True)
class RunFooter:
    """What a run says of itself. `table`: int64[2^fan_bits + 1], entries before each bucket. `filter`: uint8[]."""

    shape: Shape
    topic_id: str
    partition: int
    base_offset: int
    end_offset: int
    version: int
    records: int
    entries: int
    items: int
    seed: int
    table: np.ndarray
    filter: np.ndarray

    def to_bytes(self) -> bytes:
        """The last bytes of the run."""
        shape, name = self.shape, self.topic_id.encode()
        header = HEADER_STRUCT.pack(
            FOOTER_VERSION,
            shape.hash_bits,
            shape.fan_bits,
            shape.hash_bytes,
            shape.place_bytes,
            shape.entries_a_page,
            shape.items_a_page,
            self.partition,
            self.base_offset,
            self.end_offset,
            self.version,
            self.records,
            self.entries,
            self.items,
            self.seed,
            len(self.filter),
            len(name),
        )
        content = header + name + self.table.astype(">u4").tobytes() + self.filter.tobytes()
        return content + TRAILER_STRUCT.pack(crc32c(content), len(content), MAGIC)

    @classmethod
    def of_bytes(cls, data: Any) -> RunFooter:
        """The footer in the last bytes of a run, which may begin before it. Raises DamagedRunError."""
        content = _content(bytes(data))
        (
            _, hash_bits, fan_bits, hash_bytes, place_bytes, entries_a_page, items_a_page, partition, base_offset,
            end_offset, version, records, entries, items, seed, filter_bytes, name_bytes,
        ) = HEADER_STRUCT.unpack_from(content)  # fmt: skip
        if not (1 <= hash_bits <= 64 and fan_bits <= min(MOST_FAN_BITS, hash_bits) and 1 <= place_bytes <= 8):
            raise DamagedRunError("widths that no run has")
        shape = Shape(hash_bits, fan_bits, place_bytes)
        if (hash_bytes, entries_a_page, items_a_page) != (shape.hash_bytes, shape.entries_a_page, shape.items_a_page):
            raise DamagedRunError("pages of another size")
        table_bytes = 4 * ((1 << fan_bits) + 1)
        if min(name_bytes, filter_bytes) < 0:
            raise DamagedRunError("a negative size")
        table_at = HEADER_STRUCT.size + name_bytes
        if len(content) != table_at + table_bytes + filter_bytes:
            raise DamagedRunError("a footer of another size")
        table = np.frombuffer(content, ">u4", (1 << fan_bits) + 1, table_at).astype(np.int64)
        if table[0] != 0 or table[-1] != entries or (np.diff(table) < 0).any():
            raise DamagedRunError("a table that does not rise to the number of entries")
        bits = np.frombuffer(content, np.uint8, filter_bytes, table_at + table_bytes)
        topic_id = content[HEADER_STRUCT.size : table_at].decode(errors="replace")
        return cls(
            shape, topic_id, partition, base_offset, end_offset, version, records, entries, items, seed, table, bits
        )

    @property
    def entry_bytes(self) -> int:
        """The bytes of all entry pages."""
        return area_bytes(self.entries, self.shape.entry_bytes, self.shape.entries_a_page)

    @property
    def item_bytes(self) -> int:
        """The bytes of all list pages."""
        return area_bytes(self.items, self.shape.place_bytes, self.shape.items_a_page)


def _content(data: bytes) -> bytes:
    """The content of a footer by the last bytes of a run. Raises DamagedRunError."""
    if len(data) < TRAILER_STRUCT.size:
        raise DamagedRunError("too short")
    crc, size, magic = TRAILER_STRUCT.unpack(data[-TRAILER_STRUCT.size :])
    begin = len(data) - TRAILER_STRUCT.size - size
    if magic != MAGIC or size < HEADER_STRUCT.size or begin < 0:
        raise DamagedRunError("no footer at its end")
    content = data[begin : len(data) - TRAILER_STRUCT.size]
    if crc32c(content) != crc:
        raise DamagedRunError("a footer with another CRC")
    if HEADER_STRUCT.unpack_from(content)[0] != FOOTER_VERSION:
        raise DamagedRunError("a footer of another version")
    return content


def entries_a_page(entry_bytes: int) -> int:
    """How many entries of so many bytes a page has."""
    return (PAGE_BYTES - CRC_BYTES) // entry_bytes


def area_bytes(count: int, item_bytes: int, items_a_page: int) -> int:
    """The bytes of the pages of so many items."""
    return count * item_bytes + -(-count // items_a_page) * CRC_BYTES


def page_range(first: int, last: int, count: int, item_bytes: int, items_a_page: int) -> tuple[int, int, int]:
    """(start, end, number of the first item) of the pages that hold the items [first, last) of `count`, in the bytes of
    all pages.
    """
    page_bytes = items_a_page * item_bytes + CRC_BYTES
    first_page, end_page = first // items_a_page, -(-last // items_a_page)
    end = min(end_page * page_bytes, area_bytes(count, item_bytes, items_a_page))
    return first_page * page_bytes, end, first_page * items_a_page


def to_numbers(columns: np.ndarray) -> np.ndarray:
    """uint64[n] of big-endian numbers uint8[n, width], of at most 8 bytes each."""
    count, width = columns.shape
    wide = np.zeros((count, 8), np.uint8)
    wide[:, 8 - width :] = columns
    numbers: np.ndarray = wide.reshape(-1).view(">u8").astype(np.uint64)
    return numbers


def to_columns(numbers: np.ndarray, width: int) -> np.ndarray:
    """uint8[n, width], big-endian, of uint64[n]."""
    wide = numbers.astype(">u8").view(np.uint8).reshape(len(numbers), 8)
    return wide[:, 8 - width :]


def unpaged(data: Any, item_bytes: int, items_a_page: int) -> np.ndarray:
    """uint8[n, item_bytes]: the items in whole pages. Raises DamagedRunError for a page with another CRC."""
    view = memoryview(data)
    page_bytes = items_a_page * item_bytes + CRC_BYTES
    parts = []
    for begin in range(0, len(view), page_bytes):
        page = view[begin : begin + page_bytes]
        body, crc = page[:-CRC_BYTES], bytes(page[-CRC_BYTES:])
        if len(body) % item_bytes or len(crc) < CRC_BYTES or crc32c(body) != int.from_bytes(crc, "big"):
            raise DamagedRunError("a page with another CRC")
        parts.append(np.frombuffer(body, np.uint8))
    items = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    return items.reshape(-1, item_bytes)


def paged(items: np.ndarray, items_a_page: int) -> bytes:
    """The pages of items (uint8[n, item_bytes]), the last of which may not be full."""
    pages: list[bytes] = []
    for begin in range(0, len(items), items_a_page):
        body = items[begin : begin + items_a_page].tobytes()
        pages += (body, crc32c(body).to_bytes(CRC_BYTES, "big"))
    return b"".join(pages)


def filter_of(hashes: np.ndarray) -> np.ndarray:
    """uint8[]: the Bloom filter of different hashes (uint64[n]); empty where it would be too large."""
    size = -(-FILTER_BITS_A_HASH * len(hashes) // 8)
    if not 0 < size <= MOST_FILTER_BYTES:
        return np.zeros(0, np.uint8)
    bits = np.zeros(8 * size, np.bool_)
    bits[_probes(hashes, 8 * size)] = True
    return np.packbits(bits, bitorder="little")


def may_have(bits: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """bool[n]: whether a filter may have hashes (uint64[n]); an empty filter may have any."""
    if not len(bits):
        return np.ones(len(hashes), np.bool_)
    places = _probes(hashes, 8 * len(bits))
    answers: np.ndarray = ((bits[places >> 3] >> (places & 7).astype(np.uint8)) & 1).all(axis=1)
    return answers


def _probes(hashes: np.ndarray, bits: int) -> np.ndarray:
    """int64[n, 7]: the bits of each hash."""
    mixed = hashes * _MIX
    first, step = mixed >> np.uint64(32), (mixed & np.uint64(0xFFFFFFFF)) | np.uint64(1)
    probes = first[:, None] + np.arange(_PROBES, dtype=np.uint64) * step[:, None]
    return (probes % np.uint64(bits)).astype(np.int64)
