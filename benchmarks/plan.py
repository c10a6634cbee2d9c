"""How long the jobs plan over a manifest of very many rows: dry runs, each from a process that has read nothing yet."""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments import LogDir
from spark_segments.log.manifest.files import row_files
from spark_segments.log.manifest.rows import SEGMENT_SCHEMA, Partition, Segment
from spark_segments.maintenance import compact, retain, roll, vacuum

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"

# What the rows of each partition are, oldest first: removed ones, sealed ones, chunks; and what makes them due.
SHAPES: dict[str, tuple[float, float, dict[str, str]]] = {
    "nothing due": (0.0, 0.05, {"segment.ms": "31536000000", "retention.ms": "-1"}),
    "all chunks, all due": (0.0, 1.0, {"segment.bytes": "67108864"}),
    "some of each, all due": (
        0.3,
        0.05,
        {"cleanup.policy": "compact,delete", "retention.ms": str(40 * HOUR_MS), "segment.ms": str(HOUR_MS)},
    ),
    "all removed, all due": (0.99, 0.01, {}),
}
JOBS = {
    "roll": roll,
    "retain": retain,
    "retain --max-bytes": functools.partial(retain, max_bytes=300 << 30),  # about a third of what is there
    "compact": compact,
    "vacuum": vacuum,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--segments", type=int, default=100, help="rows a partition")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    for shape, (removed, chunks, config) in SHAPES.items():
        with tempfile.TemporaryDirectory() as directory:
            rows = segment_rows(arguments.partitions, arguments.segments, removed=removed, chunks=chunks)
            started = time.monotonic()
            make_topic(LogDir.create(directory), rows, arguments.partitions, config)
            figures[f"create, {shape}, s"] = round(time.monotonic() - started, 2)
            for name, job in JOBS.items():
                row_files._cache = row_files._RowCache(row_files.CACHE_BYTES)
                started = time.monotonic()
                report = job(LogDir.open(directory), now_ms=NOW_MS, dry_run=True)
                figures[f"{name}, {shape}, s"] = round(time.monotonic() - started, 2)
                figures[f"{name}, {shape}, partitions due"] = len(report.partitions)
    slowest = max(one for name, one in figures.items() if name.endswith(" s") and not name.startswith("create"))
    figures["slowest plan, s"] = slowest
    return {"rows": arguments.partitions * arguments.segments, "figures": figures, "ratios": {}}


def make_topic(log: LogDir, rows: pa.Table, partitions: int, config: dict[str, str]) -> None:
    """A topic with these rows, whose files do not exist."""
    live = rows.filter(pa.array(np.asarray(rows.column("state")) != Segment.REMOVED))
    owner, base = live.column("partition").to_numpy(), live.column("base_offset").to_numpy()
    first = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    start = dict(zip(owner[first].tolist(), base[first].tolist(), strict=True))
    end = int(rows.column("next_offset").to_numpy().max())
    rows_of_partitions = [
        Partition(
            TOPIC_ID,
            number,
            log_start_offset=start[number],
            log_end_offset=end,
            first_dirty_offset=start[number],
            last_stable_offset=end,
        )
        for number in range(partitions)
    ]
    log.topic("orders").manifest.create(TOPIC_ID, config, rows_of_partitions, rows)


def segment_rows(partitions: int, segments: int, *, removed: float, chunks: float) -> pa.Table:
    """Rows of `segments` hours, one an hour: the first `removed` part removed, the last `chunks` part chunks."""
    random = np.random.default_rng(7)
    count = partitions * segments
    partition = np.repeat(np.arange(partitions), segments)
    number = np.tile(np.arange(segments), partitions)
    records = 1000
    begun_ms = NOW_MS - (segments - number) * HOUR_MS + random.integers(0, HOUR_MS // 2, count)
    is_removed = number < min(round(removed * segments), segments - 1)
    state = np.where(
        is_removed,
        Segment.REMOVED,
        np.where(number >= segments - max(1, round(chunks * segments)), Segment.CHUNK, Segment.SEALED),
    )
    columns: dict[str, Any] = {
        "topic_id": np.full(count, TOPIC_ID),
        "partition": partition,
        "base_offset": number * records,
        "next_offset": (number + 1) * records,
        "path": [
            f"orders-{owner}/{base:020d}.{random.integers(1 << 62):032x}.log"
            for owner, base in zip(partition.tolist(), (number * records).tolist(), strict=True)
        ],
        "file_base_offset": number * records,
        "log_bytes": random.integers(1 << 18, 1 << 21, count),
        "index_bytes": random.integers(0, 4096, count),
        "time_index_bytes": random.integers(12, 6144, count),
        "txn_index_bytes": np.zeros(count),
        "records": np.full(count, records),
        "batches": random.integers(1, records, count),
        "first_batch_max_timestamp_ms": begun_ms,
        "max_timestamp_ms": begun_ms + random.integers(0, HOUR_MS // 2, count),
        "offset_of_max_timestamp": number * records + random.integers(0, records, count),
        "tombstones": random.integers(0, records, count),
        "delete_horizon_ms": pa.nulls(count),
        "created_ms": begun_ms,
        "state": state,
        "removed_ms": pa.array(np.full(count, NOW_MS - 48 * HOUR_MS), mask=~is_removed),
        "position": np.zeros(count),
        "index_position": pa.nulls(count),
    }
    return pa.table([pa.array(columns[field.name]).cast(field.type) for field in SEGMENT_SCHEMA], schema=SEGMENT_SCHEMA)
