"""Where chunks stand in a log, which have no offsets of it: compared with a log of plain batches."""

from __future__ import annotations

import dataclasses

import pytest

from spark_segments.errors import CorruptBatchError
from spark_segments.log.manifest.rows import SEALED
from spark_segments.log.rebuild.placing import OUTDATED, place
from tests.log.rebuild.plain_log import (
    Batch,
    PlainFiles,
    known_now,
    log_of,
    place_all,
    row_of,
)


def test_a_chunk_that_was_sealed_by_its_row_goes_where_it_was():
    """It has no offsets; the segments around it say how many are missing between them."""
    log = log_of(5)
    before = known_now(log)
    log.append([7])
    log.append([3])
    log.append([3, 1])
    log.roll([0, 1])  # 0 to 5, 5 to 12, and the rest
    log.append([9])
    placed = place_all(log, before)
    assert log.files.read(placed.rows) == log.log


def test_a_twin_of_a_chunk_that_was_rolled_is_left_out():
    """Spark ran the task twice: nothing but its batches tell that the records are in the log already."""
    log = log_of(10, 10)
    twin = log.files.write(0, log.files.batches[log.rows[0].path])
    log.files.chunks.add(twin)
    log.roll([])
    log.vacuum()
    placed = place_all(log, log)
    assert placed.added == {} and log.files.read(placed.rows) == log.log


def test_only_segments_of_a_chunks_time_are_read():
    """A log may have terabytes; a chunk that was left a week ago must not have all of it read."""
    day_ms = 24 * 60 * 60 * 1000
    files = PlainFiles()
    rows = []
    for day in range(8):
        path = files.write(5 * day, [Batch(day, 5 * day, 5)])
        more = {"created_ms": day * day_ms, "max_timestamp_ms": day * day_ms}
        rows.append(row_of(path, files.batches[path], 5 * day, state=SEALED, **more))
    twin = files.write(0, [Batch(3, 0, 5)])
    read: list[str] = []
    plain = files.known(rows, 0, 40)
    known = dataclasses.replace(plain, batches_of=lambda row: read.append(row.path) or plain.batches_of(row))
    chunk = files.later(twin)
    row = dataclasses.replace(chunk.row, max_timestamp_ms=3 * day_ms)
    chunk = dataclasses.replace(chunk, is_chunk=True, row=row, written_ms=3 * day_ms + 9)
    assert place(known, [chunk], lambda file: False).added == {}
    assert read == [row.path for row in rows[3:6]]
    read.clear()
    new = dataclasses.replace(chunk, row=dataclasses.replace(row, max_timestamp_ms=9 * day_ms), written_ms=9 * day_ms)
    assert list(place(known, [new], lambda file: False).added) == [(twin, 0)] and read == []


def test_a_merged_run_goes_before_the_chunks_that_are_left_of_it():
    """Of the chunks that were merged, one is still there: its object has runs of other partitions."""
    log = log_of(10)
    known = log.files.known(log.rows, 0, 10)
    left = log.files.write(0, [Batch(100, 0, 5)])
    merged = log.files.write(0, [Batch(99, 0, 5), Batch(100, 5, 5), Batch(101, 10, 5)])
    files = [
        dataclasses.replace(log.files.later(left), is_chunk=True),
        dataclasses.replace(log.files.later(merged), is_chunk=True, is_merged=True),
    ]
    placed = place(known, files, lambda file: False)
    assert [number for _, number in log.files.read(placed.rows)] == [0, 99, 100, 101]
    whole = [*files, *(dataclasses.replace(log.files.later(log.files.write(0, [Batch(number, 0, 5)])), is_chunk=True)
                       for number in (99, 101))]  # fmt: skip
    placed = place(known, whole, lambda file: False)
    assert list(placed.left_out) == [(merged, 0)] and len(placed.rows) == 4


@pytest.mark.parametrize("named", [False, True])
def test_where_the_log_is_damaged_a_chunk_is_added_only_by_its_name(named):
    log = log_of(10)

    def damaged(row):
        raise CorruptBatchError("The CRC is wrong", path=row.path, position=7)

    known = dataclasses.replace(log.files.known(log.rows, 0, 10), batches_of=damaged)
    path = log.files.write(0, [Batch(100, 0, 5)])
    log.files.chunks.add(path)
    placed = place(known, [log.files.later(path)], lambda file: named)
    if named:
        assert list(placed.added) == [(path, 0)]
    else:
        assert "is not known: The CRC is wrong" in placed.left_out[path, 0]


def test_a_chunk_stands_where_a_segment_that_was_made_of_it_says():
    """The segment that has its other half is gone."""
    log = log_of(5)
    before = known_now(log)
    log.append([7, 8])
    log.append([3])
    log.roll([0, 1])  # 0 to 5, 5 to 12, and the rest
    [lost] = [row.path for row in log.rows if row.base_offset == 12]
    log.files.there.discard(lost)
    placed = place_all(log, before)
    assert log.files.read(placed.rows) == log.log


@pytest.mark.parametrize("whole_seconds", [False, True])
def test_chunks_that_were_written_at_the_same_time_are_in_the_order_of_their_records(whole_seconds):
    """An object store tells whole seconds: several appends have the same time, and names say nothing."""
    log = log_of(5)
    files = log.files
    written = [files.later(files.write(0, [Batch(number, 0, 2)])) for number in (100, 101, 102)]
    later = [
        dataclasses.replace(
            file,
            is_chunk=True,
            written_ms=5000 if whole_seconds else 5001,
            made_ms=5000 + (9 - place if whole_seconds else 0),  # by its footer: within the same second
            row=dataclasses.replace(file.row, first_batch_max_timestamp_ms=70 - place, max_timestamp_ms=80),
        )
        for place, file in enumerate(written)
    ]
    placed = place(files.known(log.rows, 0, 5), later, lambda file: False)
    assert [number for _, number in files.read(placed.rows)] == [0, 102, 101, 100]


def test_of_chunks_of_the_same_append_the_full_comes_first():
    log = log_of(5)
    files = log.files
    small, full = (files.write(0, [Batch(number, 0, 2)]) for number in (100, 101))
    later = [
        dataclasses.replace(
            files.later(path), is_chunk=True, written_ms=7, made_ms=7,
            row=dataclasses.replace(files.later(path).row, log_bytes=size),
        )
        for path, size in ((small, 10), (full, 90))
    ]  # fmt: skip
    placed = place(files.known(log.rows, 0, 5), later, lambda file: False)
    assert [number for _, number in files.read(placed.rows)] == [0, 101, 100]


@pytest.mark.parametrize("is_compacted", [True, False])
def test_chunks_older_than_a_compacted_one_do_not_become_the_newest(is_compacted):
    """Of three chunks, compaction left a batch of the last. Where the first was 4 offsets longer, nobody knows."""
    log = log_of(5)
    files = log.files
    for number in (100, 101, 102):
        files.chunks.add(files.write(0, [Batch(number, 0, 10)]))
    cleaned = files.write(5, [Batch(200, 29, 10)])
    files.chunks.add(files.write(0, [Batch(103, 0, 3)]))
    known = dataclasses.replace(
        files.known(log.rows, 0, 5),
        same_records=lambda chunk, *_: files.keys(chunk.path) == [102],
        is_compacted=is_compacted,
    )
    later = [files.later(path) for path in sorted(files.there - {log.rows[0].path})]
    later = [
        dataclasses.replace(one, row=dataclasses.replace(one.row, records=1))
        if one.path == cleaned
        else dataclasses.replace(one, batches=dataclasses.replace(one.batches, last_ms=one.batches.last_ms + 100))
        for one in later
    ]
    placed = place(known, later, lambda file: False)
    numbers = [number for _, number in files.read(placed.rows)]
    assert numbers == ([0, 200, 103] if is_compacted else [0, 200, 100, 101, 103])
    assert list(placed.left_out.values()).count(OUTDATED) == (2 if is_compacted else 0)
