"""What hostile inputs have found, a test for each: it was a foreign error, wrong records, or no end."""

from __future__ import annotations

import dataclasses
import itertools
import struct

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.errors import (
    CorruptBatchError,
    InvalidOptionError,
    InvalidTopicError,
    LogDirError,
    SegmentsError,
    UnknownTopicError,
)
from spark_segments.format.buffers import byte_view
from spark_segments.format.shared_object import RUN_DTYPE, footer_bytes
from spark_segments.format.sidecars.index import offset_index_bytes, parse_offset_index
from spark_segments.format.single_batch import batch_from, made_batch
from spark_segments.format.window import Window
from spark_segments.log.manifest.files import row_files
from spark_segments.log.reading import read
from spark_segments.log.reading.scan import Scan
from spark_segments.log.reading.scan_plan import Selection
from spark_segments.log.segment.shared_object import read_footer
from spark_segments.storage import Storage
from verification.hostile.memory_files import storage_of
from verification.hostile.targets.sidecars import segment_files
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.kafka_bytes.segment_bytes import scan_batches
from verification.world.manifest_rows import Partition, Segment, SegmentRows, Snapshot


def test_a_footer_whose_topic_id_is_no_text():
    content = bytearray(footer_bytes("A" * 22, 5, np.zeros(0, RUN_DTYPE))[:-16])
    content[-1] = 0xFF
    data = bytes(content) + struct.pack(">Ii8s", crc32c.crc32c(bytes(content)), len(content), b"SEGRUNS\n")
    with pytest.raises(CorruptBatchError, match="is no text"):
        read_footer(storage_of({"x.log": data}), "x.log", len(data))


def snapshot_of(row: Segment, end: int = 200) -> Snapshot:
    partitions = Partition.table([Partition("id", 0, 0, end, 0, end)])
    return Snapshot("orders", 3, "id", {}, 0, partitions, SegmentRows(Segment.table([row])))


def offsets_read(index: bytes, start: int, size: int = 5) -> list[int]:
    files, row, _ = segment_files()
    row = dataclasses.replace(row, index_bytes=len(index))
    storage = storage_of({**files, row.index_path: index})
    parts = Scan(storage, snapshot_of(row), {0: ((start, start + size),)}, Selection(("offset",))).batches(1)
    return [offset for part in parts for offset in part.column(0).to_pylist()]


def test_an_index_that_leads_behind_the_offset_passes_over_no_record():
    files, row, _ = segment_files()
    offsets, positions = parse_offset_index(files[row.index_path])
    assert offsets_read(files[row.index_path], 100) == [100, 101, 102, 103, 104]
    true_batch = int(positions[-1])
    for position in (true_batch, len(files[row.path]), 2**31 - 1):
        lie = offset_index_bytes(offsets[:1], np.array([position]))
        with pytest.raises(CorruptBatchError, match="entry of the index is not true"):
            offsets_read(lie, 100)


@pytest.mark.cases(3)
@pytest.mark.parametrize("entry", [0, 2, 9, 20])
@pytest.mark.parametrize(("offsets_off", "bytes_off"), [(-3, 0), (15, 0), (0, -40), (0, 40)])
def test_an_index_that_lies_takes_no_record_from_a_read_in_pieces(limits, entry, offsets_off, bytes_off):
    limits(PIECE_BYTES=1500)
    files, row, _ = segment_files()
    offsets, positions = (column.copy() for column in parse_offset_index(files[row.index_path]))
    offsets[entry:] += offsets_off
    positions[entry:] += bytes_off
    storage = storage_of({**files, row.index_path: offset_index_bytes(offsets, positions)})
    noticed = 0
    for start, size in itertools.product(range(max(0, 5 * entry - 10), 5 * entry + 15), (1, 7, 60)):
        end = min(200, start + size)
        try:
            parts = list(Scan(storage, snapshot_of(row), {0: ((start, end),)}, Selection(("offset",))).batches(2))
        except CorruptBatchError:
            noticed += 1
            continue
        assert [offset for part in parts for offset in part.column(0).to_pylist()] == list(range(start, end))
    assert noticed


@pytest.mark.parametrize("name", ["log_bytes", "base_offset", "file_base_offset", "next_offset"])
def test_rows_of_absurd_numbers_end_in_an_error(name):
    files, row, _ = segment_files(40)
    for value in (2**62, 2**63 - 1, -(2**63)):
        snapshot = snapshot_of(dataclasses.replace(row, **{name: value}), 40)
        try:
            for part in Scan(storage_of(files), snapshot, {0: ((0, 2**62),)}).parts(4000):
                list(read.read_part(storage_of(files), dataclasses.replace(part, start_offset=0, end_offset=40)))
        except SegmentsError:
            continue


def test_a_row_that_names_no_segment():
    _, row, _ = segment_files(4)
    for path in ("..", "", "orders-0/x.log", "orders-0/٣" + "0" * 19 + ".x.log"):
        with pytest.raises(LogDirError, match="no segment's"):
            _ = dataclasses.replace(row, path=path).name_offset


COMMITS = [b"\xff", b"{", b"[]", b"5", b'{"add":7}', b'{"remove":{"path":null}}']
COMMITS += [b'{"commitInfo":{"timestamp":"x"}}', b'{"txn":{"appId":"a","version":"1"}}']


@pytest.mark.parametrize("content", COMMITS)
def test_a_commit_that_is_none(tmp_path, content):
    log = LogDir.create(str(tmp_path))
    log.create_topic("orders")
    (tmp_path / "_manifest" / "orders" / "_delta_log" / f"{0:020d}.json").write_bytes(content)
    with pytest.raises(LogDirError, match=r"A commit of the manifest is damaged.*verify --repair"):
        log.topic("orders").manifest.history()


def test_rows_in_parquet_that_are_no_text_or_lack_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "_cache", row_files._RowCache(1))
    ends, letters = pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xff\xfe")
    no_text = pa.Array.from_buffers(pa.string(), 1, [None, ends, letters])
    for number, table in enumerate([pa.table({"topic_id": no_text}), pa.table({"other": [1]})]):
        (tmp_path / "rows").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "rows" / f"{number}.parquet")
        file = row_files.RowFile(f"{number}.parquet", "segment", 1, 0, 0, {})
        with pytest.raises(LogDirError, match="A file of the manifest is damaged"):
            row_files.RowFiles(Storage(str(tmp_path)), "rows").read_all([file])


def test_a_location_with_a_nul():
    with pytest.raises(InvalidOptionError, match="NUL"):
        LogDir.open("/data\0/log")


def test_a_number_that_no_column_can_hold_is_one_line_on_the_command_line(tmp_path, capsys):
    log = LogDir.create(str(tmp_path))
    log.create_topic("orders")
    log.topic("orders").append([{"value": b"x"}])
    with pytest.raises(SystemExit) as ended:
        main(["retain", str(tmp_path), "--now-ms", "9" * 40, "--dry-run"])
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --now-ms is no time")


def test_an_error_is_a_single_line_without_orders_to_a_terminal():
    text = str(InvalidOptionError("Unknown key", found="a\nb\x1b[2J\u202e\ud800 größe"))
    assert text == "Unknown key: found a\\nb\\x1b[2J\\u202e\\ud800 größe"
    assert text.isprintable()


def test_a_topic_that_was_never_there_leaves_no_trace_of_its_deletion(tmp_path):
    log = LogDir.create(str(tmp_path))
    for name, error in (("none", UnknownTopicError), ("%2e%2e", InvalidTopicError)):
        with pytest.raises(error):
            log.delete_topic(name, force=True)
    assert {path.name for path in (tmp_path / "_manifest").iterdir()} == {"log-directory.json"}


@pytest.mark.parametrize("count", [0, -1, 1_000_001, 10**21])
def test_a_number_of_partitions_that_no_topic_has(tmp_path, count):
    log = LogDir.create(str(tmp_path))
    with pytest.raises(InvalidOptionError, match="so many partitions"):
        log.create_topic("orders", partitions=count)
    log.create_topic("orders")
    if count > 0:
        with pytest.raises(InvalidOptionError, match="so many partitions"):
            log.topic("orders").alter(partitions=count)


def test_an_import_makes_no_billion_partitions(tmp_path):
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "plain-2000000000").symlink_to(golden_dir("plain-0"))
    log = LogDir.create(str(tmp_path / "log"))
    with pytest.raises(LogDirError, match="number that is too large"):
        log.import_kafka(str(tmp_path / "kafka"))
    assert log.topics() == []


def test_a_batch_whose_times_sum_up_to_more_than_64_bits_is_not_trimmed():
    records = b"".join(bytes([12, 0, 10, 2 * delta, 1, 0, 0]) for delta in range(2))  # 5 ms after the base
    last = {"base_offset": 0, "last_offset": 1, "leader_epoch": 0}
    data = byte_view(made_batch(records, 2, base_timestamp=2**63 - 1, max_timestamp=2**63 - 1, **last))
    window = Window(data, scan_batches(data, path="x.log").batches, path="x.log")
    with pytest.raises(CorruptBatchError, match=r"timestamp is beyond 64 bits in x\.log at position 0"):
        batch_from(window, 1)
