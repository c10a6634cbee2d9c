"""What the bytes of a segment's files say, for tests that look below records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments.format.batches import BatchTable, rebase, scan_batches
from spark_segments.format.encoding.arrow_buffers import RecordColumns
from spark_segments.format.encoding.encode import Encoded, Runs, encode_runs
from spark_segments.format.layout import HEADER_STRUCT, HEADERS_TYPE, RECORD_SCHEMA
from spark_segments.format.sidecars.index import IndexBuilder, parse_offset_index
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index, txn_index_bytes
from spark_segments.format.window import Window

__all__ = [
    "HEADERS_TYPE",
    "HEADER_STRUCT",
    "RECORD_SCHEMA",
    "AbortedTransactions",
    "BatchTable",
    "Window",
    "batches_of",
    "encode_records",
    "parse_offset_index",
    "parse_txn_index",
    "rebase",
    "rebuild",
    "scan_batches",
    "txn_index_bytes",
]


def batches_of(content: bytes) -> BatchTable:
    """The headers of the batches in the bytes of a log file, each checked."""
    return scan_batches(content).batches


def encode_records(
    records: pa.RecordBatch | Mapping[str, Any], rows: np.ndarray | None, *, base_offset: int = 0, **options: Any
) -> Encoded:
    """Rows of `records`, None for all, as one run of record batches."""
    columns = RecordColumns.of(records)
    total = columns.count if rows is None else len(rows)
    runs = Runs(np.array([0, total], np.int64), np.array([base_offset], np.int64))
    [encoded] = encode_runs(columns, rows, runs, **options)
    return encoded


def rebuild(batches: BatchTable, base_offset: int, **limits: int) -> tuple[bytes, bytes]:
    """(.index, .timeindex) of a segment from all its batches."""
    builder = IndexBuilder(base_offset, **limits)
    builder.add(batches)
    return builder.finish()
