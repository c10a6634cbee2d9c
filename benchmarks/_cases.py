"""The cases of `compare`: a process that does them with the package on its path, by the public interface alone.

`python -m benchmarks._cases prepare DIRECTORY`, or `… serve DIRECTORY`: reads the name of a case from each line
of its input, does it, and answers with its CPU seconds and wall seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.values import AVRO, DDL, PROTO, rows
from spark_segments import LogDir
from spark_segments.maintenance import compact, roll
from spark_segments.values.registries.directory import DirectoryRegistry
from spark_segments.values.registries.registry import Schema

KEYS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "uniform keys": lambda generator, count: generator.integers(0, max(1, count // 10), count),
    "hot head": lambda generator, count: generator.zipf(1.2, count) % max(1, count // 10),
    "all unique": lambda generator, count: np.arange(count),
    "one key": lambda generator, count: np.zeros(count, np.int64),
}
RECORD_BYTES = (100, 1024)
LOG_BYTES = 256 << 20
CODEC_BYTES = {"gzip": 16 << 20, "snappy": 64 << 20, "lz4": 64 << 20, "zstd": 64 << 20}
"""Of the log of each codec. Its values are words of a small book, one after another."""
VALUES = 100_000
"""Of the log of each format."""
SCHEMAS = {"avro": Schema("AVRO", json.dumps(AVRO)), "protobuf": Schema("PROTOBUF", PROTO), "json": None}
"""Of each format: None where the columns are named in the options."""
_OVERHEAD = 26
_BATCH = 200_000
_LATER_MS = 10 * 24 * 3_600_000


def cases(directory: Path) -> dict[str, Callable[[], Any]]:
    """What is timed, by name. A case that changes a log works on links to its files, which are never changed."""
    found: dict[str, Callable[[], Any]] = {}
    for size in RECORD_BYTES:
        for keys in KEYS:
            found[f"compact, {keys}, {size} B"] = partial(_on_links, _sealed(directory, size, keys), compact)
        log, chunks = (of(directory, size, "uniform keys") for of in (_sealed, _chunks))
        rows = _rows(np.arange(LOG_BYTES // 4 // size), size)
        found[f"read, {size} B"] = partial(_read, log)
        found[f"seek 50 times, {size} B"] = partial(_seek, log)
        found[f"roll, {size} B"] = partial(_on_links, chunks, _rolled)
        found[f"append, {size} B"] = partial(_on_links, log, partial(_append, rows=rows))
        for codec, log_bytes in CODEC_BYTES.items():
            log = directory / f"{codec} {size}"
            rows_of_codec = _words(log_bytes // 4 // size, size)
            found[f"read, {codec}, {size} B"] = partial(_read, log)
            found[f"append, {codec}, {size} B"] = partial(_on_links, log, partial(_append, rows=rows_of_codec))
    for name in SCHEMAS:
        log, formats = directory / name, _formats(directory, name)
        found[f"read typed, {name}"] = partial(_read, log, formats=formats)
        typed = partial(_append, rows=_values(VALUES // 4), formats=formats)
        found[f"append typed, {name}"] = partial(_on_links, log, typed)
    small = _rows(np.arange(1), 100)
    found["append a record 50 times"] = partial(_on_links, log, partial(_append, rows=small, times=50))
    return found


def prepare(directory: Path) -> None:
    """Writes the logs that the cases work on."""
    for size in RECORD_BYTES:
        for keys, numbers in KEYS.items():
            chunks, sealed = _chunks(directory, size, keys), _sealed(directory, size, keys)
            log = LogDir.create(str(chunks), defaults={"log.cleaner.threads": "1"})
            log.create_topic("t", 1, {"cleanup.policy": "compact", "compression.type": "uncompressed"})
            all_keys = numbers(np.random.default_rng(1), LOG_BYTES // size)
            for first in range(0, len(all_keys), _BATCH):
                _append(log, rows=_rows(all_keys[first : first + _BATCH], size))
            shutil.copytree(chunks, sealed, copy_function=os.link)
            log = LogDir.open(str(sealed))
            _rolled(log)
            _append(log, rows=_rows(np.zeros(1, np.int64), 100))
        for codec, log_bytes in CODEC_BYTES.items():
            log = LogDir.create(str(directory / f"{codec} {size}"))
            log.create_topic("t", 1, {"compression.type": codec})
            _append(log, rows=_words(log_bytes // size, size))
    for name, schema in SCHEMAS.items():
        if schema:
            DirectoryRegistry(_registry(directory, name)).register("t-value", schema)
        log = LogDir.create(str(directory / name))
        log.create_topic("t")
        _append(log, rows=_values(VALUES), formats=_formats(directory, name))


def _chunks(directory: Path, size: int, keys: str) -> Path:
    return directory / f"{keys} {size} chunks"


def _sealed(directory: Path, size: int, keys: str) -> Path:
    return directory / f"{keys} {size} sealed"


def _rows(numbers: np.ndarray, record_bytes: int) -> pa.Table:
    """A record a number, with a key of 16 bytes and a value of random bytes."""
    count, value_bytes = len(numbers), record_bytes - _OVERHEAD
    digits = np.char.zfill(numbers.astype("S16"), 16).tobytes()
    key = [None, pa.py_buffer((np.arange(count + 1) * 16).astype(np.int32)), pa.py_buffer(digits)]
    ends = pa.py_buffer((np.arange(count + 1) * value_bytes).astype(np.int32))
    value = [None, ends, pa.py_buffer(np.random.default_rng(count).bytes(count * value_bytes))]
    columns = {"key": key, "value": value}
    return pa.table({name: pa.BinaryArray.from_buffers(pa.binary(), count, one) for name, one in columns.items()})


def _words(count: int, record_bytes: int) -> pa.Table:
    """Records of bytes that a codec makes about a third of."""
    generator = np.random.default_rng(7)
    book = [bytes(generator.integers(97, 123, generator.integers(3, 9)).astype(np.uint8)) for _ in range(2000)]
    text = b" ".join(book[at] for at in generator.zipf(1.3, 1 << 20) % len(book))
    starts = generator.integers(0, len(text) - record_bytes, count)
    return pa.table({"value": pa.array([text[at : at + record_bytes - _OVERHEAD] for at in starts], pa.binary())})


def _values(count: int) -> pa.Table:
    return pa.table({"value": rows(count)})


def _formats(directory: Path, name: str) -> dict[str, str]:
    if not SCHEMAS[name]:
        return {"value.format": name, "value.schema": DDL}
    return {"value.format": name, "schema.registry": DirectoryRegistry(_registry(directory, name)).address}


def _registry(directory: Path, name: str) -> str:
    return str(directory / f"registry of {name}")


def _on_links(prepared: Path, work: Callable[[LogDir], Any]) -> None:
    links = prepared.parent / f"work {os.getpid()}"
    shutil.copytree(prepared, links, copy_function=os.link)
    try:
        work(LogDir.open(str(links), defaults={"log.cleaner.threads": "1"}))
    finally:
        shutil.rmtree(links)


def _rolled(log: LogDir) -> None:
    roll(log, now_ms=log.storage.now_ms() + _LATER_MS)


# A commit before topics were objects has their methods at the log, with the topic's name.


def _append(log: Any, *, rows: pa.Table, times: int = 1, **options: Any) -> None:
    for _ in range(times):
        log.topic("t").append(rows, **options) if hasattr(log, "topic") else log.append("t", rows, **options)


def _read(directory: Path, **options: Any) -> int:
    log: Any = LogDir.open(str(directory))
    batches = log.topic("t").scan(**options).batches() if hasattr(log, "topic") else log.read("t", **options)
    return sum(batch.num_rows for batch in batches)


def _seek(directory: Path) -> int:
    log: Any = LogDir.open(str(directory))
    _, end = (log.topic("t").offsets() if hasattr(log, "topic") else log.offsets("t"))[0]
    found = 0
    for at in range(0, end, max(1, end // 50)):
        if hasattr(log, "topic"):
            batches = log.topic("t").scan(partition=0, offsets=(at, at + 10)).batches()
        else:
            batches = log.read("t", 0, at, at + 10)
        found += sum(batch.num_rows for batch in batches)
    return found


def serve(directory: Path) -> None:
    known = cases(directory)
    print("\n".join(known), end="\n\n", flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        known[line.strip()]()
        print(time.process_time() - cpu, time.perf_counter() - wall, flush=True)


if __name__ == "__main__":
    {"prepare": prepare, "serve": serve}[sys.argv[1]](Path(sys.argv[2]))
