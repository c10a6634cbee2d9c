"""What the bytes of a segment's files say, for tests that look below records."""

from __future__ import annotations

from spark_segments.format.batches import BatchTable, rebase, scan_batches
from spark_segments.format.encoding.encode import encode_records
from spark_segments.format.layout import HEADER_STRUCT, HEADERS_TYPE, RECORD_SCHEMA
from spark_segments.format.sidecars.index import parse_offset_index, rebuild
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
