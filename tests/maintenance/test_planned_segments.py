"""Where active segments are cut, against a plain model of Kafka's rule that appends one batch after the other."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.format.rolling import segment_jitter_ms
from spark_segments.maintenance.rolling.planned_segments import plan_segments
from spark_segments.maintenance.rolling.roll_plan import RollRules, plan_roll
from spark_segments.storage import Storage
from tests.examples import examples
from tests.maintenance.rows import TOPIC, TOPIC_ID, table
from verification.world.kafka_bytes.segment_bytes import BatchTable, batches_of, encode_records
from verification.world.manifest_rows import Segment
from verification.world.topics import (
    DAY_MS,
    SegmentLimits,
    SegmentWriter,
    append_in_batches,
    append_one_by_one,
    later,
    live,
    records,
    topic_with,
)

NEVER_MS = 10**15


@dataclass(frozen=True)
class Batch:
    """A record batch to be appended: `records` of 0 bytes, values of `size` bytes, all at one time."""

    records: int
    size: int
    timestamp_ms: int


batches = st.builds(
    Batch, records=st.integers(1, 3), size=st.integers(0, 200), timestamp_ms=st.integers(0, 50) | st.just(-1)
)
# Small chunks: one that all but fills a segment is sealed as it is, which is another test's.
active_segments = st.lists(st.lists(batches, min_size=1, max_size=2), min_size=1, max_size=25)
rolling_rules = st.builds(
    RollRules,
    topic_id=st.just(TOPIC_ID),
    segment_ms=st.integers(10, 100),
    segment_jitter_ms=st.sampled_from([0, 0, 20]),
    limits=st.builds(
        SegmentLimits,
        segment_bytes=st.integers(3000, 8000),
        index_interval_bytes=st.sampled_from([0, 100, 500, 4096]),
        segment_index_bytes=st.sampled_from([60, 100, 10_000]),
        forced=st.just(False),
    ),
)


def encoded(batch: Batch) -> bytes:
    count = batch.records
    columns = pa.record_batch(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array([b"v" * batch.size] * count, pa.binary()),
            "timestamp": pa.array([batch.timestamp_ms] * count, pa.timestamp("ms")).cast(pa.timestamp("us", "UTC")),
        }
    )
    done = encode_records(columns, None, codec=0, level=None, batch_bytes=1 << 20, max_message_bytes=1 << 20)
    return bytes(memoryview(done.buffer))


def write_chunks(storage: Storage, rules: RollRules, chunks: list[list[Batch]], start: int) -> list[Segment]:
    """Chunks with these batches, from offset `start` on."""
    rows = []
    for chunk in chunks:
        writer = SegmentWriter(
            storage,
            TOPIC,
            0,
            0,
            limits=rules.limits,
        )
        for batch in chunk:
            data = np.frombuffer(encoded(batch), np.uint8).copy()
            data[:8] = np.frombuffer(writer.next_offset.to_bytes(8), np.uint8)
            writer.append(data, batches_of(data))
        written = writer.close(topic_id=TOPIC_ID, created_ms=0)
        rows.append(written.at(start))
        start = rows[-1].next_offset
    return rows


def model(rules: RollRules, chunks: list[list[Batch]], start: int) -> list[int]:
    """The base offsets of the segments: UnifiedLog.append for one batch after the other, index entries and all."""
    bases: list[int] = []
    offset = start
    log_bytes = since_entry = offset_entries = time_entries = 0
    first_timestamp = largest = last_time_entry = -1
    full = True
    for batch in [batch for chunk in chunks for batch in chunk]:
        size, last = len(encoded(batch)), offset + batch.records - 1
        if bases:
            jitter = segment_jitter_ms(TOPIC_ID, 0, bases[-1], rules.segment_ms, rules.segment_jitter_ms)
            waited = batch.timestamp_ms - first_timestamp if first_timestamp >= 0 else 0
            full = (
                log_bytes > rules.limits.segment_bytes - size
                or waited > rules.segment_ms - jitter
                or offset_entries >= rules.limits.segment_index_bytes // 8
                or time_entries >= rules.limits.segment_index_bytes // 12 - 1
            )
        if full:
            bases.append(offset)
            log_bytes = since_entry = offset_entries = time_entries = 0
            first_timestamp = batch.timestamp_ms
            largest = last_time_entry = -1
        largest = max(largest, batch.timestamp_ms)
        if since_entry > rules.limits.index_interval_bytes:
            offset_entries += 1
            if largest > last_time_entry:
                last_time_entry = largest
                time_entries += 1
            since_entry = 0
        since_entry += size
        log_bytes += size
        offset = last + 1
    return bases


@examples(150)
@given(chunks=active_segments, rules=rolling_rules, start=st.sampled_from([0, 1000, 2**40]))
def test_active_segments_are_cut_where_kafka_would_have_rolled(chunks, rules, start):
    with tempfile.TemporaryDirectory() as directory:
        storage = Storage(directory)
        rows = write_chunks(storage, rules, chunks, start)
        expected = model(rules, chunks, start)
        pieces = plan_segments(storage, rows, rules, now_ms=0)
        sealed = [piece for piece in pieces if piece.sealed]
        assert [piece.base_offset for piece in sealed] == expected[:-1]
        assert [piece.next_offset for piece in sealed] == expected[1:]
        due = plan_roll(table(rows), rules, now_ms=0).partitions
        if len(expected) > 1:
            assert due and due[0].needs_headers
        # A clock that has gone on seals what is left, too.
        pieces = plan_segments(storage, rows, rules, now_ms=NEVER_MS)
        assert [piece.base_offset for piece in pieces if piece.sealed] == expected


@examples(50)
@given(chunks=active_segments, rules=rolling_rules)
def test_pieces_follow_each_other_and_hold_whole_batches(chunks, rules):
    with tempfile.TemporaryDirectory() as directory:
        storage = Storage(directory)
        rows = write_chunks(storage, rules, chunks, 0)
        pieces = plan_segments(storage, rows, rules, now_ms=0)
        starts = {int(one) + row.offset_shift for row in rows for one in headers(storage, row).base_offset} | {
            rows[-1].next_offset
        }
        at = 0
        for piece in pieces:
            assert piece.base_offset >= at and piece.next_offset > piece.base_offset
            assert {piece.base_offset, piece.next_offset} <= starts
            assert piece.sealed or not piece.is_one_chunk
            at = piece.next_offset
        # What was cut has no row that still names its rest.
        cut = [row for row in rows if any(row.base_offset < piece.base_offset < row.next_offset for piece in pieces)]
        covered = [(piece.base_offset, piece.next_offset) for piece in pieces]
        for row in cut:
            assert any(start <= row.next_offset - 1 < end for start, end in covered)


def headers(storage: Storage, row: Segment) -> BatchTable:
    return batches_of(storage.read(row.path))


def rules_of(log: LogDir) -> RollRules:
    return RollRules.of(log.topic("orders").snapshot.topic_id, log.topic("orders").config)


def test_chunks_of_full_size_are_sealed_by_their_rows_alone(log):
    topic_with(log, "orders", {"segment.bytes": 16384})
    append_in_batches(log, "orders", records(500), 1024)
    chunks = live(log, "orders")
    assert len(chunks) > 3
    pieces = plan_segments(NoReads(), chunks, rules_of(log), now_ms=0)
    assert all(piece.is_one_chunk and piece.sealed for piece in pieces)
    assert [piece.chunks[0] for piece in pieces] == chunks[:-1]


def test_a_full_chunk_between_small_ones_ends_their_segment(log):
    topic_with(log, "orders", {"segment.bytes": 16384})
    append_one_by_one(log, "orders", records(3))
    append_in_batches(log, "orders", records(130), 1024)
    append_one_by_one(log, "orders", records(3))
    chunks = live(log, "orders")
    assert [chunk.records for chunk in chunks[:3]] == [1, 1, 1] and chunks[3].records > 100
    first_part = plan_segments(log.storage, chunks, rules_of(log), now_ms=0)
    assert (first_part[0].base_offset, first_part[0].next_offset, len(first_part[0].chunks)) == (0, 3, 3)
    assert first_part[1].is_one_chunk and first_part[1].chunks == (chunks[3],)


def test_headers_are_read_only_where_a_segment_may_end(log):
    topic_with(log, "orders", {"segment.bytes": 100_000})
    append_one_by_one(log, "orders", records(20))
    chunks = live(log, "orders")
    rules = rules_of(log)
    pieces = plan_segments(NoReads(), chunks, rules, now_ms=0)
    assert [(piece.sealed, len(piece.chunks)) for piece in pieces] == [(False, 20)]
    pieces = plan_segments(NoReads(), chunks, rules, now_ms=later(log))
    assert [(piece.sealed, len(piece.chunks)) for piece in pieces] == [(True, 20)]


class NoReads(Storage):
    """A storage in which nobody may look."""

    def __init__(self) -> None:
        pass

    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        raise AssertionError(f"{path} was read")


def test_what_is_left_after_a_cut_is_idle_by_its_own_time(log):
    """The first chunk is two weeks old, but what follows the cut is not."""
    topic_with(log, "orders", {"segment.ms": DAY_MS})
    now_ms = log.storage.now_ms()
    append_one_by_one(log, "orders", records(2, time_ms=now_ms - 14 * DAY_MS))
    append_one_by_one(log, "orders", records(2, first=2, time_ms=now_ms))
    old = [dataclasses.replace(row, created_ms=now_ms - 14 * DAY_MS) for row in live(log, "orders")[:2]]
    chunks = [*old, *live(log, "orders")[2:]]
    rules = rules_of(log)
    (due,) = plan_roll(table(chunks), rules, now_ms).partitions
    assert due.reasons == ("segment.ms", "idle")
    pieces = plan_segments(log.storage, chunks, rules, now_ms)
    assert [(piece.base_offset, piece.next_offset, piece.sealed) for piece in pieces] == [(0, 2, True)]
    pieces = plan_segments(log.storage, chunks, rules, max(row.created_ms for row in chunks) + DAY_MS + 1)
    assert [(piece.base_offset, piece.next_offset, piece.sealed) for piece in pieces] == [(0, 2, True), (2, 4, True)]


@pytest.mark.parametrize("waited_ms, cut", [(1000, False), (1001, True)])
def test_a_segment_without_timestamps_waits_by_its_files(log, waited_ms, cut):
    topic_with(log, "orders", {"segment.ms": 1000})
    append_one_by_one(log, "orders", records(2, time_ms=-1, step_ms=0))
    first, second = live(log, "orders")
    chunks = [first, dataclasses.replace(second, created_ms=first.created_ms + waited_ms)]
    assert (first.first_batch_max_timestamp_ms, first.max_timestamp_ms) == (-1, -1)
    pieces = plan_segments(log.storage, chunks, rules_of(log), now_ms=first.created_ms)
    assert [(piece.base_offset, piece.next_offset) for piece in pieces] == ([(0, 1)] if cut else [])
