"""Record batches to Arrow and back, CRC included, on one thread: against memcpy of as many bytes, against aiokafka (its
C code) and kafka-python, and against what each codec's library takes alone for the same records sections.

MB/s count the batches' bytes before compression. Reading goes in windows, as reading a segment does. The library is the
one that the package calls (zlib-ng; zstandard, its contexts kept), Arrow's for LZ4 and snappy. It is told the size that
comes out, and what it gave is thrown away before it is asked again, so that this stays in the cache. All cases of one
codec, size of values and size of batches run in turns.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiokafka.record.default_records
import aiokafka.record.memory_records
import kafka.record.default_records
import kafka.record.memory_records
import numpy as np
import pyarrow as pa

from benchmarks._codecs_alone import compression, decompression, each
from benchmarks.measure import TURNS, Timings, in_turns
from benchmarks.spark import record_batches
from spark_segments.format.batches import scan_batches
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.layout import CODECS
from spark_segments.format.walk import WINDOW_BYTES
from spark_segments.format.window import Window
from verification.world.kafka_bytes.segment_bytes import encode_records

VALUE_BYTES = (100, 1024)
BATCH_BYTES = (16 << 10, 128 << 10, 1 << 20)
LEVELS = {"gzip": 6, "zstd": 1}  # what a writer takes
# Of a case within a turn: the others have left other things in caches and memory pools, which takes a while to be over.
LEAST_SECONDS = 0.06
# Of records to read and to write, by codec: such that a call takes some 50 ms at most.
READ_MIB = {"none": 64, "gzip": 8}
WRITE_MIB = {"none": 64, "gzip": 2}
MIB = 16
AIOKAFKA_MIB, KAFKA_PYTHON_MIB = 8, 1
# Beyond what caches hold.
MEMCPY_MIB = 128
MOST_MESSAGE_BYTES = 16 << 20
_ARROW_BYTES = 4 << 20
_OVERHEAD = 30  # bytes of a record beside its value, about


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--codecs", nargs="+", choices=tuple(CODECS), default=tuple(CODECS))
    parser.add_argument("--value-bytes", nargs="+", type=int, default=VALUE_BYTES)
    parser.add_argument("--batch-bytes", nargs="+", type=int, default=BATCH_BYTES)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    gc.freeze()  # as a worker does: else collections look at all that is imported here
    memory = np.ones(MEMCPY_MIB << 20, np.uint8), np.ones(MEMCPY_MIB << 20, np.uint8)
    for codec in arguments.codecs:
        for value_bytes in arguments.value_bytes:
            for batch_bytes in arguments.batch_bytes:
                what = f"{value_bytes} B, {batch_bytes >> 10} KiB batches, {codec}"
                one = Comparison(codec, value_bytes, batch_bytes)
                one.cases["memcpy"] = Case(MEMCPY_MIB << 20, lambda: np.copyto(*memory))
                one.measure(what, arguments.turns, figures, ratios)
    return {"turns": arguments.turns, "figures": figures, "ratios": ratios}


@dataclass(frozen=True, slots=True)
class Case:
    size: int  # bytes of batches before compression
    run: Callable[[], object]


class Comparison:
    """All ways to read and to write the same records as batches of one codec and size."""

    def __init__(self, codec: str, value_bytes: int, batch_bytes: int) -> None:
        self.codec, self.value_bytes, self.batch_bytes = codec, value_bytes, batch_bytes
        stored, size = self.batches(READ_MIB.get(codec, MIB))
        written, written_size = self.batches(WRITE_MIB.get(codec, MIB))
        rows = self.rows(WRITE_MIB.get(codec, MIB))
        self.cases = {
            "decode": Case(size, lambda: decode(stored)),
            "encode": Case(written_size, lambda: each(self.encode, ((one,) for one in rows))),
        }
        if codec != "none":
            self.cases["decompression alone"] = Case(size, decompression(codec, stored))
            self.cases["compression alone"] = Case(
                written_size, compression(codec, written, LEVELS.get(codec, 0), batch_bytes)
            )
        self.add_client("aiokafka", aiokafka, AIOKAFKA_MIB)
        self.add_client("kafka-python", kafka, KAFKA_PYTHON_MIB)

    def measure(self, what: str, turns: int, figures: dict[str, float], ratios: dict[str, float]) -> None:
        cases = self.cases
        runs = {name: case.run for name, case in cases.items()}
        timings = in_turns(runs, turns=turns, least_seconds=LEAST_SECONDS)
        for name, case in cases.items():
            figures[f"{name} MB/s, {what}"] = round(timings.rate(name, case.size / 1e6), 1)
        for name, library in (("decode", "decompression alone"), ("encode", "compression alone")):
            others = [library] if self.codec != "none" else ["memcpy"] if name == "decode" else []
            for other in (*others, f"aiokafka {name}", f"kafka-python {name}"):
                short = other.removesuffix(f" {name}")
                ratios[f"{name} / {short}, {what}"] = round(self.ratio(timings, name, other), 3)

    def ratio(self, timings: Timings, name: str, other: str) -> float:
        return timings.speed_up(name, other) * self.cases[name].size / self.cases[other].size

    def rows(self, mib: int) -> list[pa.RecordBatch]:
        record_bytes = self.value_bytes + _OVERHEAD
        table = pa.Table.from_batches(record_batches((mib << 20) // record_bytes, self.value_bytes, seed=1))
        return table.combine_chunks().to_batches(max_chunksize=_ARROW_BYTES // record_bytes)

    def encode(self, rows: pa.RecordBatch, codec: str | None = None) -> pa.Buffer:
        encoded = encode_records(
            rows,
            None,
            codec=CODECS[codec or self.codec],
            level=LEVELS.get(self.codec),
            batch_bytes=self.batch_bytes,
            max_message_bytes=MOST_MESSAGE_BYTES,
        )
        return encoded.buffer

    def batches(self, mib: int) -> tuple[pa.Buffer, int]:
        """(batches of that many MiB of records, their size before compression)"""
        rows = self.rows(mib)
        return pa.py_buffer(b"".join(map(self.encode, rows))), sum(self.encode(one, "none").size for one in rows)

    def add_client(self, name: str, client: Any, mib: int) -> None:
        """Another client: each record read with its key, value, offset and timestamp; each written."""
        rows = pa.Table.from_batches(self.rows(mib))
        stored, size = self.batches(mib)
        data = stored.to_pybytes()
        times = rows["timestamp"].cast(pa.int64()).to_numpy() // 1000
        records = list(zip(times.tolist(), rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
        self.cases[f"{name} decode"] = Case(size, lambda: _read(client, data))
        self.cases[f"{name} encode"] = Case(size, lambda: self.write(client, records))

    def write(self, client: Any, records: list[tuple[int, bytes, bytes]]) -> None:
        first = 0
        while first < len(records):
            builder = client.record.default_records.DefaultRecordBatchBuilder(
                2,
                CODECS[self.codec],
                is_transactional=0,
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                batch_size=self.batch_bytes,
            )
            count = 0
            for offset, (timestamp, key, value) in enumerate(records[first:]):
                if builder.append(offset, timestamp, key, value, []) is None:
                    break
                count += 1
            builder.build()
            first += count


def decode(stored: pa.Buffer) -> None:
    position = 0
    while position < stored.size:
        window = stored.slice(position, min(WINDOW_BYTES, stored.size - position))
        scan = scan_batches(window, file_position=position)
        for _ in decode_batches(Window(window, scan.batches, byte_position=position), topic="orders", partition=1):
            pass
        position += scan.consumed


def _read(client: Any, data: bytes) -> None:
    batches = client.record.memory_records.MemoryRecords(data)
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            _ = record.key, record.value, record.offset, record.timestamp
