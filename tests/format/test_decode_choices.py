"""Decoding gives the columns, offsets and sizes that are asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_segments.errors import InvalidOptionError
from spark_segments.format.batches import scan_batches
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.window import Window
from tests.format.decoded import NAMES, START, batch_of, decoded
from verification.world.kafka_bytes.golden_files import (
    CLEAN_DIRECTORIES,
    LARGE_DIRECTORIES,
    expected_records,
    log_files,
)
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes, record_bytes


def log_of(offsets: range) -> bytes:
    """Ten batches of eight offsets each, which have records at those of `offsets`."""
    return b"".join(
        batch_bytes(
            [
                Record(b"value %d" % offset, b"key %d" % (offset % 7), START + offset, [("h", b"%d" % offset)], offset)
                for offset in range(base, base + 8)
                if offset in offsets
            ],
            base_offset=base,
            last_offset=base + 7,
            codec=codec,
            log_append_time=appended,
        )
        for base, codec, appended in zip(
            range(0, 80, 8),
            ["none", "none", "gzip", "zstd", "none", "lz4", "snappy", "snappy", "none", "none"],
            [False, True, True, False, False, False, False, True, True, False],
            strict=True,
        )
    )


DENSE, LOG = log_of(range(80)), log_of(range(1, 80, 2))


@pytest.mark.parametrize(
    "columns",
    [["value"], ["offset"], ["headers", "key"], ["topic", "partition"], ["timestampType"], NAMES[::-1], ["key", "key"]],
)
def test_columns_come_as_asked_for(columns):
    everything = decoded(LOG)
    table = decoded(LOG, columns=columns)
    assert table.column_names == columns
    for index, name in enumerate(columns):
        assert table.column(index) == everything[name]


@pytest.mark.parametrize("name", [name for name in CLEAN_DIRECTORIES if name not in LARGE_DIRECTORIES])
def test_offsets_alone_are_those_of_kafkas_reader(name):
    found = pa.concat_tables(decoded(path.read_bytes(), columns=["offset"]) for path in log_files(name))
    assert found["offset"].to_pylist() == [record["offset"] for record in expected_records(name)]


def test_an_unknown_column_is_refused():
    with pytest.raises(InvalidOptionError, match="offsets"):
        decoded(LOG, columns=["offsets"])


@pytest.mark.parametrize("log", [LOG, DENSE], ids=["with gaps", "dense"])
@pytest.mark.parametrize("columns", [NAMES, ["offset"]])
def test_records_are_clipped_to_the_offsets_asked_for(columns, log):
    offsets = decoded(log)["offset"].to_pylist()
    for shift in (0, 1000):
        for start in (None, -5, 0, 1, 9, 10, 40, 79, 80, 2**70):
            for end in (None, 0, 1, 8, 11, 41, 79, 80, 81, 2**70):
                first = None if start is None else start + shift
                last = None if end is None else end + shift
                table = decoded(log, start_offset=first, end_offset=last, offset_shift=shift, columns=columns)
                expected = [
                    offset + shift
                    for offset in offsets
                    if (start is None or offset >= start) and (end is None or offset < end)
                ]
                assert table["offset"].to_pylist() == expected


@pytest.mark.parametrize("target_bytes", [0, 1, 300, 1000, 10_000])
def test_groups_of_any_size_hold_the_same_records(target_bytes):
    parts = list(
        decode_batches(Window(LOG, scan_batches(LOG).batches), topic="t", partition=0, target_bytes=target_bytes)
    )
    assert pa.Table.from_batches(parts) == decoded(LOG, topic="t", partition=0)
    assert len(parts) >= (10 if target_bytes <= 1 else 5)  # at the changes of the timestamp type at least
    largest_batch = 6 * 200
    assert max(part.nbytes for part in parts) < target_bytes * 2 + largest_batch


def test_many_small_batches_are_put_together():
    data = b"".join(batch_bytes([Record(b"x" * 100)], base_offset=offset) for offset in range(3000))
    parts = list(
        decode_batches(Window(data, scan_batches(data).batches), topic="t", partition=0, columns=["offset", "value"])
    )
    assert [part.num_rows for part in parts] == [3000]
    assert parts[0]["offset"].to_pylist() == list(range(3000))


@pytest.mark.proof
def test_many_tiny_records_of_one_batch_become_several_parts():
    section = b"".join(record_bytes(Record(b""), 0, index) for index in range(270_000))
    data = batch_of(section, count=270_000)
    parts = list(decode_batches(Window(data, scan_batches(data).batches), topic="t" * 249, partition=0))
    assert max(part.num_rows for part in parts) <= 1 << 18
    assert np.array_equal(np.concatenate([part["offset"].to_numpy() for part in parts]), np.arange(270_000))
    assert parts[-1]["topic"][-1].as_py() == "t" * 249


def test_parts_do_not_hold_more_memory_than_they_show():
    data = batch_bytes([Record(b"v" * 100, b"k" * 8, offset=offset) for offset in range(5000)])
    before = pa.total_allocated_bytes()
    parts = list(
        decode_batches(Window(data, scan_batches(data).batches), topic="t", partition=0, columns=["key", "offset"])
    )
    assert pa.total_allocated_bytes() - before < 2 * sum(part.nbytes for part in parts)


def test_positions_are_those_of_the_file():
    data = b"".join(batch_bytes([Record(b"%d" % index)], base_offset=index) for index in range(3))
    scan = scan_batches(data, file_position=5000)
    table = decoded(data, file_position=5000, batches=scan.batches.take(slice(1, 3)))
    assert table["value"].to_pylist() == [b"1", b"2"]
    with pytest.raises(ValueError, match="not of this buffer"):
        decoded(data, batches=scan.batches)
