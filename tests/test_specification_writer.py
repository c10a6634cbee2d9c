"""A log directory written by hand, from docs/format alone, is one that this package reads, rolls and appends to.

Nothing of the package writes here: the batch, its sidecars, the Parquet files and the commit are made byte by byte.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_segments import LogDir
from spark_segments.maintenance import roll, verify
from tests.specification_reader import ManagedLog

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
START_MS = 1_700_000_000_000
VALUES = [b"tea", b"rice", None]

TYPES = {"string": pa.string(), "integer": pa.int32(), "long": pa.int64(), "binary": pa.binary()}
TOPIC = {"topic_id": "string", "properties": {"type": "map", "keyType": "string", "valueType": "string"}}
PARTITION = {
    "topic_id": "string",
    "partition": "integer",
    **dict.fromkeys(("log_start_offset", "log_end_offset", "first_dirty_offset", "last_stable_offset"), "long"),
    "leader_epoch": "integer",
    "leader_epochs": {"epoch": "integer", "start_offset": "long"},
    "producer_snapshot": "binary",
}
SEGMENT = {
    "topic_id": "string",
    "partition": "integer",
    "base_offset": "long",
    "next_offset": "long",
    "path": "string",
    **dict.fromkeys(("file_base_offset", "log_bytes", "index_bytes", "time_index_bytes", "txn_index_bytes"), "long"),
    **dict.fromkeys(("records", "batches", "first_batch_max_timestamp_ms", "max_timestamp_ms"), "long"),
    **dict.fromkeys(("offset_of_max_timestamp", "tombstones", "delete_horizon_ms", "created_ms"), "long"),
    "state": "string",
    "removed_ms": "long",
}


def _varint(number: int) -> bytes:
    zigzag, out = number << 1 ^ number >> 63, bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def _bytes(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _batch(values: list[bytes | None]) -> bytes:
    """A batch at offset 0 without compression: keys are numbers, a record a millisecond."""
    records = b""
    for number, value in enumerate(values):
        body = b"\0" + _varint(number) + _varint(number) + _bytes(b"%d" % number) + _bytes(value) + _varint(0)
        records += _varint(len(body)) + body
    last = len(values) - 1
    rest = struct.pack(">hiqqqhii", 0, last, START_MS, START_MS + last, -1, -1, -1, len(values)) + records
    return struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, crc32c.crc32c(rest)) + rest


def _delta_type(kind: str | dict) -> str | dict:
    if isinstance(kind, str):
        return kind
    if "keyType" in kind:
        return {**kind, "valueContainsNull": True}
    return {"type": "array", "elementType": {"type": "struct", "fields": _fields(kind)}, "containsNull": True}


def _fields(columns: dict) -> list[dict]:
    return [
        {"name": name, "type": _delta_type(kind), "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]


def _arrow(columns: dict) -> pa.Schema:
    types = []
    for name, kind in columns.items():
        if isinstance(kind, str):
            types.append((name, TYPES[kind]))
        elif "keyType" in kind:
            types.append((name, pa.map_(pa.string(), pa.string())))
        else:
            types.append((name, pa.list_(pa.struct([(key, TYPES[inner]) for key, inner in kind.items()]))))
    return pa.schema(types)


def _add(table: Path, kind: str, columns: dict, rows: list[dict]) -> dict:
    """Writes the rows of a kind, and gives the action that adds them."""
    path = f"kind={kind}/part-0.parquet"
    (table / path).parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, _arrow(columns)), table / path, compression="zstd")
    size = (table / path).stat().st_size
    return {
        "add": {
            "path": path,
            "partitionValues": {"kind": kind},
            "size": size,
            "modificationTime": START_MS,
            "dataChange": True,
            "stats": json.dumps({"numRecords": len(rows)}),
        }
    }


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log directory with topic orders: one partition, one chunk of three records that stands at offset 100."""
    manifest, partition = tmp_path / "log" / "_manifest", tmp_path / "log" / "orders-0"
    partition.mkdir(parents=True)
    stem = "00000000000000000000." + "0123456789abcdef" * 2
    batch, last = _batch(VALUES), len(VALUES) - 1
    (partition / f"{stem}.log").write_bytes(batch)
    (partition / f"{stem}.index").write_bytes(b"")
    (partition / f"{stem}.timeindex").write_bytes(struct.pack(">qi", START_MS + last, last))

    table = manifest / "orders"
    (table / "_delta_log").mkdir(parents=True)
    (manifest / "log-directory.json").write_text('{"format.version": 1}')
    segment = {
        "topic_id": TOPIC_ID,
        "partition": 0,
        "base_offset": 100,
        "next_offset": 103,
        "path": f"orders-0/{stem}.log",
        "file_base_offset": 0,
        "log_bytes": len(batch),
        "index_bytes": 0,
        "time_index_bytes": 12,
        "txn_index_bytes": 0,
        "records": 3,
        "batches": 1,
        "first_batch_max_timestamp_ms": START_MS + last,
        "max_timestamp_ms": START_MS + last,
        "offset_of_max_timestamp": 102,
        "tombstones": 1,
        "created_ms": START_MS,
        "state": "chunk",
    }
    offsets = {"log_start_offset": 100, "log_end_offset": 103, "first_dirty_offset": 100, "last_stable_offset": 103}
    epochs = {"leader_epoch": 0, "leader_epochs": [{"epoch": 0, "start_offset": 100}]}
    properties = [("format.version", "1"), ("retention.ms", "-1")]
    actions = [
        {"commitInfo": {"timestamp": START_MS, "operation": "WRITE", "commitId": "first", "attempt": 0}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "a8b5f1c2-0000-4000-8000-000000000000",
                "name": "orders",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(
                    {"type": "struct", "fields": _fields({"kind": "string", **TOPIC, **SEGMENT, **PARTITION})}
                ),
                "partitionColumns": ["kind"],
                "configuration": {"delta.enableExpiredLogCleanup": "false"},
                "createdTime": START_MS,
            }
        },
        _add(table, "topic", TOPIC, [{"topic_id": TOPIC_ID, "properties": properties}]),
        _add(table, "partition", PARTITION, [{"topic_id": TOPIC_ID, "partition": 0, **offsets, **epochs}]),
        _add(table, "segment", SEGMENT, [segment]),
        {"txn": {"appId": f"feed@{TOPIC_ID}", "version": 7}},
    ]
    commit = table / "_delta_log" / "00000000000000000000.json"
    commit.write_text("\n".join(json.dumps(action) for action in actions))
    return tmp_path / "log"


def _read(log: LogDir) -> list[tuple[int, bytes | None]]:
    batches = log.read("orders", columns=["offset", "value"])
    return [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]


def test_it_is_read_and_has_no_fault(directory: Path) -> None:
    log = LogDir.open(str(directory))

    assert log.topics() == ["orders"] and log.offsets("orders") == {0: (100, 103)}
    assert _read(log) == [(100, b"tea"), (101, b"rice"), (102, None)]
    assert log.offsets_for_times("orders", START_MS + 1) == {0: (101, START_MS + 1)}
    assert verify(log, deep=True).errors == 0


def test_it_is_appended_to_and_rolled(directory: Path) -> None:
    log, table = LogDir.open(str(directory)), pa.table({"key": [b"k"], "value": [b"figs"]})

    assert log.append("orders", table, txn=("feed", 7)) == {}
    assert log.append("orders", table, txn=("feed", 8)) == {0: (103, 103)}
    roll(log, now_ms=START_MS + 10**12)
    assert _read(log) == [(100, b"tea"), (101, b"rice"), (102, None), (103, b"figs")]
    assert verify(log, deep=True).errors == 0
    assert {segment["state"] for segment in ManagedLog(directory).snapshot("orders").segments[0]} == {"sealed"}
