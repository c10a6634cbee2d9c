"""Batches of LZ4, snappy and zstd to Arrow by each library that can decompress them, over several kinds of records.

Every library is put in the place of the package's own way, so that the whole decode is measured: headers, CRC,
decompression, records. The package reads LZ4 and snappy with kernels, to memory that is there already, and zstd by
zstandard. Another library gets new memory for each batch. CPU time of the one thread counts, since neighbours of a
machine do not lengthen it; a ratio is of the best turns. MB/s count the batches' bytes before compression.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
from backports import zstd

from benchmarks.spark import record_batches
from spark_segments.format import compression
from spark_segments.format.batches import scan_batches
from spark_segments.format.decoding import section_opener
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.layout import CODECS
from spark_segments.format.window import Window
from verification.world.kafka_bytes.golden_files import log_files
from verification.world.kafka_bytes.segment_bytes import encode_records

BATCH_BYTES = (1 << 10, 16 << 10, 128 << 10)
"""The smallest is for zstd alone, whose contexts take longer to make than such a batch to read."""

TURNS = 15
MIB = 8
GOLDEN = ("plain-0", "mixed-0", "live-0", "zstd-0", "gzip-0")

Record = tuple[bytes | None, bytes | None]
Decompress = Callable[[pa.Buffer, int], pa.Buffer | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--mib", type=int, default=MIB)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for kind, records in CORPORA.items():
        rows = _rows(records(), arguments.mib << 20)
        for codec, batch_bytes in itertools.product(LIBRARIES, BATCH_BYTES):
            if codec == "zstd" or batch_bytes != BATCH_BYTES[0]:
                what = f"{kind}, {batch_bytes >> 10} KiB batches, {codec}"
                stored, size = _encoded(rows, codec, batch_bytes), len(_encoded(rows, "none", batch_bytes))
                seconds = {name: _seconds(codec, library, stored) for name, library in LIBRARIES[codec].items()}
                for _ in range(arguments.turns):
                    for name, library in LIBRARIES[codec].items():
                        seconds[name] = min(seconds[name], _seconds(codec, library, stored))
                for name, best in seconds.items():
                    figures[f"{name} MB/s, {what}"] = round(size / 1e6 / best, 1)
                    if name != "package":
                        ratios[f"package / {name}, {what}"] = round(best / seconds["package"], 3)
    return {"turns": arguments.turns, "figures": figures, "ratios": ratios}


def _json() -> Iterator[Record]:
    chance = random.Random(1)
    while True:
        customer = f"customer-{chance.randrange(100_000)}"
        items = [{"sku": f"SKU-{chance.randrange(10_000):06}", "quantity": 1} for _ in range(chance.randrange(1, 4))]
        order = {"order": chance.randrange(10**9), "customer": customer, "amount": chance.randrange(10**5) / 100}
        yield (
            customer.encode(),
            json.dumps({**order, "currency": chance.choice(["EUR", "USD"]), "items": items}).encode(),
        )


def _avro() -> Iterator[Record]:
    chance = random.Random(2)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randrange(3, 10))) for _ in range(2000)]
    while True:
        numbers = struct.pack("<qdid", chance.randrange(10**9), chance.gauss(100, 20), chance.randrange(1000), 0.5)
        strings = b"".join(bytes([2 * len(word)]) + word for word in chance.choices(words, k=4))
        yield struct.pack(">q", chance.randrange(10**6)), b"\0" + struct.pack(">i", 42) + numbers + strings


def _log_lines() -> Iterator[Record]:
    chance = random.Random(3)
    while True:
        client = ".".join(str(chance.randrange(256)) for _ in range(4))
        path = f"/api/v1/{chance.choice(['orders', 'carts', 'users'])}/{chance.randrange(10**6)}"
        status = f"{chance.choice([200, 200, 404, 500])} {chance.randrange(50_000)}"
        line = f'{client} - - [22/Nov/2026:01:02:03 +0000] "GET {path} HTTP/1.1" {status} "Mozilla/5.0 (X11; Linux)"'
        yield None, line.encode()


def _golden() -> Iterator[Record]:
    """The records of directories that Kafka wrote, again and again."""
    records = []
    for path in (path for name in GOLDEN for path in log_files(name)):
        stored = pa.py_buffer(path.read_bytes())
        batches = scan_batches(stored).batches
        for part in decode_batches(Window(stored, batches), topic="", partition=0, columns=("key", "value")):
            records += zip(part.column(0).to_pylist(), part.column(1).to_pylist(), strict=True)
    while True:
        yield from records


def _half_digits() -> Iterator[Record]:
    """The records of the benchmark `codec`."""
    while True:
        for part in record_batches(50_000, 100, seed=1):
            yield from zip(part["key"].to_pylist(), part["value"].to_pylist(), strict=True)


CORPORA = {"half digits": _half_digits, "JSON": _json, "Avro": _avro, "log lines": _log_lines, "golden": _golden}


def _rows(records: Iterator[Record], size: int) -> pa.RecordBatch:
    keys, values = [], []
    while size > 0:
        key, value = next(records)
        keys.append(key)
        values.append(value)
        size -= len(key or b"") + len(value or b"") + 10
    timestamps = pa.array(range(len(keys)), pa.int64())
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": values, "timestamp": timestamps})


def _encoded(rows: pa.RecordBatch, codec: str, batch_bytes: int) -> pa.Buffer:
    return encode_records(
        rows, None, codec=CODECS[codec], level=None, batch_bytes=batch_bytes, max_message_bytes=16 << 20
    ).buffer


def _stream(buffer: pa.Buffer, limit: int) -> None:
    """Leaves the section to Arrow's stream, which needs no size."""


def _snappy_blocks(section: memoryview) -> Iterator[tuple[memoryview, int]]:
    """(block, bytes that it states) of xerial's framing as the package writes it."""
    position = len(compression.XERIAL_HEADER)
    while position < len(section):
        start = position + 4
        position = start + int.from_bytes(section[position:start], "big")
        block = section[start:position]
        stated = block[0] & 0x7F
        for byte in range(1, 5):
            if block[byte - 1] < 0x80:
                break
            stated |= (block[byte] & 0x7F) << 7 * byte
        yield block, stated


def _snappy_by_cramjam(buffer: pa.Buffer, limit: int) -> pa.Buffer:
    blocks = list(_snappy_blocks(memoryview(buffer).cast("B")))
    out = pa.allocate_buffer(sum(stated for _, stated in blocks))
    room, at = np.frombuffer(out, np.uint8).data, 0
    for block, stated in blocks:
        cramjam.snappy.decompress_raw_into(block, room[at : at + stated])
        at += stated
    return out


def _snappy_by_arrow(buffer: pa.Buffer, limit: int) -> pa.Buffer:
    blocks = _snappy_blocks(memoryview(buffer).cast("B"))
    codec = pa.Codec("snappy")
    return pa.py_buffer(b"".join(codec.decompress(block, stated) for block, stated in blocks))


def _lz4_by_cramjam(buffer: pa.Buffer, limit: int) -> pa.Buffer:
    """A frame as the package writes it."""
    section = memoryview(buffer).cast("B")
    out = pa.allocate_buffer(_most_bytes_of_lz4(section), resizable=True)
    room, at, position = np.frombuffer(out, np.uint8).data, 0, len(compression.LZ4_FRAME_HEADER)
    while size := int.from_bytes(section[position : position + 4], "little"):
        position += 4
        end = position + (size & ~compression.LZ4_STORED_BIT)
        if size & compression.LZ4_STORED_BIT:
            room[at : at + end - position] = section[position:end]
            at += end - position
        else:
            block = room[at : at + compression.LZ4_BLOCK_BYTES]
            at += cramjam.lz4.decompress_block_into(section[position:end], block, output_len=len(block))
        position = end
    out.resize(at, shrink_to_fit=False)
    return out


def _most_bytes_of_lz4(section: memoryview) -> int:
    position, blocks = len(compression.LZ4_FRAME_HEADER), 0
    while size := int.from_bytes(section[position : position + 4], "little"):
        position += 4 + (size & ~compression.LZ4_STORED_BIT)
        blocks += 1
    return blocks * compression.LZ4_BLOCK_BYTES


def _zstd_by_backports(buffer: pa.Buffer, limit: int) -> pa.Buffer:
    """A frame: its decompressor is of no use after the end of one."""
    return pa.py_buffer(zstd.ZstdDecompressor().decompress(buffer, limit))


# None: the package's own way.
LIBRARIES: dict[str, dict[str, Decompress | None]] = {
    "lz4": {"package": None, "cramjam": _lz4_by_cramjam, "Arrow": _stream},
    "snappy": {
        "package": None,
        "cramjam": _snappy_by_cramjam,
        "Arrow": _snappy_by_arrow,
    },
    "zstd": {"package": None, "backports.zstd": _zstd_by_backports, "Arrow": _stream},
}


def _seconds(codec: str, library: Decompress | None, stored: pa.Buffer) -> float:
    """CPU seconds that a decode takes with a library in the package's place."""

    def decompressed(number: int, section: Any, **_: Any) -> pa.Buffer:
        buffer = pa.py_buffer(section)
        return library(buffer, compression.decompressed_limit(buffer.size)) if library is not None else buffer

    kept = section_opener.decompress, section_opener.KERNEL_CODECS, section_opener.LIBRARY_CODECS
    if library is not None:
        section_opener.decompress = decompressed
        section_opener.KERNEL_CODECS = section_opener.LIBRARY_CODECS = frozenset()
    try:
        started = time.thread_time()
        for _ in decode_batches(Window(stored, scan_batches(stored).batches), topic="", partition=0):
            pass
        return time.thread_time() - started
    finally:
        section_opener.decompress, section_opener.KERNEL_CODECS, section_opener.LIBRARY_CODECS = kept
