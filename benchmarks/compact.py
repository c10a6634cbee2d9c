"""Compaction and rolling of one partition, against `cp --reflink=never` of the same files and memcpy of as many bytes,
that by CPU time, too; and compaction by two threads against one, of two partitions, of one, and of one that is a single
group. All warm, in turns.

One record in ten has a key of its own that no later one has; no codec. Ratios are medians of the turns' own ratios:
what else the machine does hits both of a turn. What a second thread is worth on the machine at all is said by two that
take CRCs of memory that stays in a cache.

Then logs of batches of 16 KiB, as Kafka's producers write them, with each codec, three quarters of the records
superseded: CPU time of cleaning over what it cannot do without. That is the library's time for two decompressions of
all batches and one compression of those that are left, and the map's for the keys of the same records without a codec.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._codecs_alone import compression, decompression
from benchmarks.measure import TURNS, Timings, children_seconds
from benchmarks.spark import record_batches
from spark_segments import LogDir
from spark_segments.format.batches import scan_batches
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.format.layout import CODECS
from spark_segments.format.walk import WINDOW_BYTES
from spark_segments.format.window import Window
from spark_segments.log.appending.appender import ProducerOptions
from spark_segments.log.manifest.rows import Segment
from spark_segments.maintenance import compact, roll

NOW_MS = 1_700_000_000_000
RECORD_BYTES = (100, 1024)
UNIQUE = 0.1
PRODUCER_BATCH_BYTES = 16 << 10
PRODUCER_UNIQUE = 0.25
LEVEL = {"gzip": 6, "zstd": 3}  # the topic's
SEGMENTS = 16  # of a partition that two threads clean
_BATCH_RECORDS = 100_000
_OVERHEAD = 26  # bytes of a record beside its value: key, lengths, deltas
_MEMCPY_BYTES = 128 << 20
_LATER_MS = 10 * 24 * 3_600_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=1024, help="size of the partition, or of both")
    parser.add_argument("--record-bytes", type=int, nargs="+", default=RECORD_BYTES)
    parser.add_argument("--codecs", nargs="*", choices=tuple(CODECS), default=tuple(CODECS))
    parser.add_argument("--codec-mib", type=int, default=128, help="size of a log of 16 KiB batches before compression")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for size in arguments.record_bytes:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            found = measure(Path(directory), arguments.mib << 20, size, arguments.turns)
        figures |= {f"{name}, {size} B": one for name, one in found[0].items()}
        ratios |= {f"{name}, {size} B": one for name, one in found[1].items()}
        for codec in arguments.codecs:
            what = f"{codec}, {PRODUCER_BATCH_BYTES >> 10} KiB batches, {size} B"
            with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
                cleaning = measure_codec(Path(directory), codec, arguments.codec_mib << 20, size, arguments.turns)
            figures |= {f"{name}, {what}": one for name, one in cleaning[0].items()}
            ratios |= {f"{name}, {what}": one for name, one in cleaning[1].items()}
    return {"mib": arguments.mib, "turns": arguments.turns, "figures": figures, "ratios": ratios}


def measure(
    directory: Path, log_bytes: int, record_bytes: int, turns: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Figures and ratios of one size of records."""
    segment_bytes = log_bytes // SEGMENTS
    chunks, pair = directory / "chunks", directory / "pair of chunks"
    make_chunks(chunks, log_bytes, record_bytes)
    make_chunks(pair, log_bytes, record_bytes, partitions=2)
    one = sealed(chunks, directory / "one segment")
    many = sealed(chunks, directory / "many segments", segment_bytes)
    two = sealed(pair, directory / "two partitions", segment_bytes)
    memory = np.ones((2, _MEMCPY_BYTES), np.uint8)
    cases: dict[str, tuple[Path, Callable[[Path], Any]]] = {
        "memcpy": (one, lambda work: copied_in_memory(memory, log_bytes)),
        "cp": (one, lambda work: copied(work, "prices-0")),
        "compact": (one, lambda work: compacted(work, threads=1)),
        "one group by two threads": (one, lambda work: compacted(work, threads=2)),
        "cp of chunks": (chunks, lambda work: copied(work, "prices-0")),
        "roll": (chunks, rolled),
        "one partition by one thread": (many, lambda work: compacted(work, threads=1)),
        "one partition by two threads": (many, lambda work: compacted(work, threads=2)),
        "two partitions by one thread": (two, lambda work: compacted(work, threads=1)),
        "two partitions by two threads": (two, lambda work: compacted(work, threads=2)),
        "CRCs by one thread": (one, lambda work: checksums(threads=1)),
        "CRCs by two threads": (one, lambda work: checksums(threads=2)),
    }
    wall, cpu, results = in_copies(directory / "work", cases, turns)
    report = results["compact"]
    figures = {name: report[name] for name in ("bytes_in", "bytes_out", "records_in", "records_out")}
    for name in cases:
        figures[f"{name} MB/s"] = round(wall.rate(name, report["bytes_in"] / 1e6))
        figures[f"{name} MB/CPU s"] = round(cpu.rate(name, report["bytes_in"] / 1e6))
    pairs = {
        "compact / memcpy": ("compact", "memcpy"),
        "compact / cp": ("compact", "cp"),
        "roll / cp": ("roll", "cp of chunks"),
        "two threads / one, one group": ("one group by two threads", "compact"),
        "two threads / one, one partition": ("one partition by two threads", "one partition by one thread"),
        "two threads / one, two partitions": ("two partitions by two threads", "two partitions by one thread"),
        "two threads / one, CRCs": ("CRCs by two threads", "CRCs by one thread"),
    }
    ratios = {name: round(wall.speed_up(*both), 3) for name, both in pairs.items()}
    return figures, ratios | {"compact / memcpy, of CPU time": round(cpu.speed_up("compact", "memcpy"), 3)}


def measure_codec(
    directory: Path, codec: str, log_bytes: int, record_bytes: int, turns: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Figures and ratios of a log of a producer's batches with a codec. Seconds are those of the CPU."""
    make_producer_log(directory / "log", codec, log_bytes, record_bytes)
    make_producer_log(directory / "plain", "none", log_bytes, record_bytes)
    plain, stored = sealed_segments(directory / "plain"), sealed_segments(directory / "log")
    shutil.copytree(directory / "log", directory / "cleaned")
    compacted(directory / "cleaned", threads=1)
    left = sealed_segments(directory / "cleaned")
    cases: dict[str, tuple[Path, Callable[[Path], Any]]] = {
        "compact": (directory / "log", lambda work: compacted(work, threads=1)),
        "map": (directory / "log", lambda work: mapped(plain)),
    }
    if codec == "none":
        memory = np.ones((2, _MEMCPY_BYTES), np.uint8)
        cases["memcpy"] = directory / "log", lambda work: copied_in_memory(memory, log_bytes)
    else:
        apart = [decompression(codec, data) for data in stored]
        together = [compression(codec, data, LEVEL.get(codec, 0), PRODUCER_BATCH_BYTES) for data in left]
        cases["decompression alone"] = directory / "log", lambda work: [run() for run in apart]
        cases["compression alone"] = directory / "log", lambda work: [run() for run in together]
    _, cpu, results = in_copies(directory / "work", cases, turns)
    figures = {name: results["compact"][name] for name in ("bytes_in", "bytes_out", "records_in", "records_out")}
    for name in cases:
        figures[f"{name} CPU s"] = round(cpu.median(name), 4)
    if codec == "none":
        return figures, {"compact / memcpy, of CPU time": round(cpu.speed_up("compact", "memcpy"), 3)}
    turns_of = zip(*(cpu.seconds[name] for name in cases), strict=True)
    times = [whole / (2 * opened + packed + keys) for whole, keys, opened, packed in turns_of]
    return figures, {"compact / (2 decompressions, compression, map)": round(statistics.median(times), 3)}


def make_producer_log(directory: Path, codec: str, log_bytes: int, record_bytes: int) -> None:
    """A topic whose sealed segment has records in batches of 16 KiB, before compression, with the codec."""
    log = LogDir.create(str(directory))
    log.create_topic("prices", 1, {"cleanup.policy": "compact", "compression.type": "producer"})
    count = log_bytes // record_bytes
    generator = np.random.default_rng(1)
    unique = max(1, int(count * PRODUCER_UNIQUE))
    options = ProducerOptions("uncompressed" if codec == "none" else codec, PRODUCER_BATCH_BYTES)
    for batch in record_batches(count, record_bytes - _OVERHEAD, seed=1):
        rows = pa.Table.from_batches([batch])
        keys = table(generator.integers(0, unique, batch.num_rows), 0)["key"]
        log.topic("prices").append(rows.set_column(0, "key", keys), options=options)
    rolled(directory)
    append(log, 0, np.zeros(1, np.int64), 100)


def sealed_segments(directory: Path) -> list[pa.Buffer]:
    """The bytes of the sealed segments of a log's partition."""
    snapshot = LogDir.open(str(directory)).topic("prices").snapshot
    paths = [directory / row.path for row in snapshot.live_of(0) if row.state == Segment.SEALED]
    return [pa.py_buffer(path.read_bytes()) for path in paths]


def mapped(plain: list[pa.Buffer]) -> int:
    """Puts the keys of batches without a codec into a map of Kafka's default size. How many there are."""
    offset_map = OffsetMap(128 << 20)
    for data in plain:
        position = 0
        while position < data.size:
            window = data.slice(position, min(WINDOW_BYTES, data.size - position))
            scan = scan_batches(window, file_position=position, check_crc=False)
            offset_map.put_batches(Window(window, scan.batches, byte_position=position))
            position += scan.consumed
    return len(offset_map)


def in_copies(
    work: Path, cases: dict[str, tuple[Path, Callable[[Path], Any]]], turns: int
) -> tuple[Timings, Timings, dict[str, Any]]:
    """Wall and CPU seconds of each case, and its last result. A case gets a copy of its log: links to the same files,
    none of which is ever changed.

    Each turn has an order of its own: memory that one case gives back is what the next one's new pages come from.
    """
    wall: dict[str, list[float]] = {name: [] for name in cases}
    cpu: dict[str, list[float]] = {name: [] for name in cases}
    results: dict[str, Any] = {}
    for turn in range(turns + 1):
        for name, (prepared, run_case) in random.Random(turn).sample(list(cases.items()), len(cases)):
            shutil.copytree(prepared, work, copy_function=os.link)
            started, cpu_started = time.monotonic(), time.process_time() + children_seconds()
            results[name] = run_case(work)
            if turn:  # the first one compiles, and warms what the others find warm
                wall[name].append(time.monotonic() - started)
                cpu[name].append(time.process_time() + children_seconds() - cpu_started)
            shutil.rmtree(work)
    return Timings(wall), Timings(cpu), results


def compacted(work: Path, *, threads: int) -> dict[str, Any]:
    log = LogDir.open(str(work), defaults={"log.cleaner.threads": str(threads)})
    return compact(log, now_ms=NOW_MS).to_dict()


def rolled(work: Path) -> dict[str, Any]:
    """All but the last record goes into one segment, so that it is one task's work."""
    log = LogDir.open(str(work))
    return roll(log, now_ms=log.storage.now_ms() + _LATER_MS).to_dict()


def copied(work: Path, directory: str) -> None:
    """Copies a directory."""
    command = ["cp", "-r", "--reflink=never", str(work / directory), str(work / f"copy of {directory}")]
    subprocess.run(command, check=True)


def copied_in_memory(memory: np.ndarray, size: int) -> None:
    """Copies `size` bytes from memory to memory, beyond what caches hold."""
    for _ in range(size // _MEMCPY_BYTES):
        np.copyto(memory[0], memory[1])


def checksums(*, threads: int) -> None:
    """CRCs of 4 GiB, all of the same 256 KiB."""
    data = bytes(256 << 10)

    def half(_: int) -> None:
        for _ in range(1 << 13):
            crc32c(data)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(half, range(2)))


def make_chunks(directory: Path, log_bytes: int, record_bytes: int, *, partitions: int = 1) -> None:
    """A topic of that size whose records are all in the active segment."""
    log = LogDir.create(str(directory))
    log.create_topic("prices", partitions, {"cleanup.policy": "compact", "compression.type": "uncompressed"})
    count = log_bytes // record_bytes // partitions
    generator = np.random.default_rng(1)
    unique = max(1, int(count * UNIQUE))
    for first in range(0, count, _BATCH_RECORDS):
        size = min(_BATCH_RECORDS, count - first)
        for partition in range(partitions):
            append(log, partition, generator.integers(0, unique, size), record_bytes)


def sealed(chunks: Path, directory: Path, segment_bytes: int | None = None) -> Path:
    """A copy of a topic, rolled, and one record in each active segment."""
    shutil.copytree(chunks, directory, copy_function=os.link)
    log = LogDir.open(str(directory))
    if segment_bytes is not None:
        log.topic("prices").alter({"segment.bytes": str(segment_bytes)})
    rolled(directory)
    for partition in log.topic("prices").offsets():
        append(log, partition, np.zeros(1, np.int64), 100)
    return directory


def append(log: LogDir, partition: int, numbers: np.ndarray, record_bytes: int) -> None:
    records = table(numbers, record_bytes - _OVERHEAD)
    log.topic("prices").append(records.append_column("partition", pa.array(np.full(len(numbers), partition, np.int32))))


def table(numbers: np.ndarray, value_bytes: int) -> pa.Table:
    """A record a number, with a key of 16 bytes."""
    count = len(numbers)
    digits = np.char.zfill(numbers.astype("S16"), 16)
    key_offsets = pa.py_buffer((np.arange(count + 1) * 16).astype(np.int32))
    value_offsets = pa.py_buffer((np.arange(count + 1) * value_bytes).astype(np.int32))
    values = np.random.default_rng(count).bytes(count * value_bytes)
    times = pa.array(np.full(count, NOW_MS * 1000), pa.int64()).cast(pa.timestamp("us"))
    return pa.table(
        {
            "key": pa.BinaryArray.from_buffers(pa.binary(), count, [None, key_offsets, pa.py_buffer(digits.tobytes())]),
            "value": pa.BinaryArray.from_buffers(pa.binary(), count, [None, value_offsets, pa.py_buffer(values)]),
            "timestamp": times,
        }
    )
