"""Scans of several ranges a partition: each gives what a full scan has at these offsets, however the log is cut."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import InvalidOptionError
from spark_segments.log import Scan, Selection
from spark_segments.log.reading.clip import borders
from spark_segments.maintenance import compact, roll
from tests.examples import examples
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.topics import DAY_MS, live

HOUR_MS = 3_600_000
FOREVER_MS = str(10**12)
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "600"}
SHARED_PARTITIONS = 9


def append(log: LogDir, numbers: range, partitions: int = 1) -> None:
    """Appends a record for each number and partition, with one of seven keys."""
    rows = [(number, partition) for number in numbers for partition in range(partitions)]
    table = pa.table(
        {
            "key": [b"k%d" % (number % 7) for number, _ in rows],
            "value": [None if number % 11 == 0 else b"v%d" % number for number, _ in rows],
            "partition": pa.array([partition for _, partition in rows], pa.int32()),
        }
    )
    log.topic("t").append(table, options=ProducerOptions("none", 200))


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> dict[str, tuple[LogDir, str]]:
    """{what is special: a log directory and its topic}"""
    made: dict[str, tuple[LogDir, str]] = {}

    def create(name: str, partitions: int = 1, config: dict[str, str] | None = None) -> LogDir:
        log = LogDir.create(str(tmp_path_factory.mktemp(name)))
        log.create_topic("t", partitions, config or {"segment.bytes": "600", "index.interval.bytes": "100"})
        made[name] = log, "t"
        return log

    log = create("chunks")
    for first in range(0, 90, 30):
        append(log, range(first, first + 30))
    log.topic("t").delete_records({0: 7})
    log = create("sealed and chunks")
    append(log, range(60))
    roll(log, now_ms=log.storage.now_ms() + 30 * DAY_MS)
    append(log, range(60, 80))
    log = create("gaps of compaction", config=COMPACTED | {"delete.retention.ms": FOREVER_MS})
    append(log, range(80))
    later_ms = log.storage.now_ms() + 30 * DAY_MS
    roll(log, now_ms=later_ms)
    compact(log, now_ms=later_ms)
    append(log, range(80, 110))
    log = create("shared objects", SHARED_PARTITIONS, {"index.interval.bytes": "100"})
    for first in range(0, 60, 20):
        append(log, range(first, first + 20), SHARED_PARTITIONS)
    assert any(row.is_shared for row in live(log, "t"))
    log = create("late records", config={"segment.bytes": "600", "segment.ms": "1"})
    for hour in range(6):  # one in six is half an hour late
        times = [hour * HOUR_MS + minute * 100_000 - (minute % 6 == 0) * HOUR_MS // 2 for minute in range(36)]
        keys = [b"k%d" % (number % 7) for number in range(len(times))]
        moments = pa.array([(10**12 + time_ms) * 1000 for time_ms in times], pa.timestamp("us", "UTC"))
        log.topic("t").append(
            pa.table({"key": keys, "value": [b"v"] * len(times), "timestamp": moments}),
            options=ProducerOptions("none", 200),
        )
    for name, topic in (("txn-0", "txn"), ("broker-data/payments-0", "payments")):
        made[name] = LogDir.open(str(golden_dir(name))), topic
    return made


NAMES = ["chunks", "sealed and chunks", "gaps of compaction", "shared objects", "txn-0", "broker-data/payments-0"]


def drawn(data: st.DataObject, log: LogDir, topic: str) -> dict[int, tuple[tuple[int, int], ...]]:
    """Ranges of some partitions: some meet, some are empty, some reach out of the log."""
    offsets = {}
    for number, (_, end) in log.topic(topic).offsets().items():
        cuts = sorted(data.draw(st.lists(st.integers(-3, end + 5), max_size=9)))
        pairs = itertools.pairwise(cuts)
        kept = [pair for pair in pairs if data.draw(st.booleans())]
        if kept or data.draw(st.booleans()):
            offsets[number] = tuple(kept)
    return offsets


def scan_of(log: LogDir, topic: str, offsets: dict, **selection: object) -> Scan:
    return Scan(log.storage, log.topic(topic).snapshot, offsets, Selection(**selection))


def rows(batches) -> list[dict]:
    return [row for batch in batches for row in batch.to_pylist()]


def chosen(every: list[dict], offsets: dict) -> list[dict]:
    return [
        row for row in every if any(start <= row["offset"] < end for start, end in offsets.get(row["partition"], ()))
    ]


def newest(records: list[dict]) -> list[dict]:
    """The newest record of each key, by partition."""
    last = {(row["partition"], row["key"]): row["offset"] for row in records if row["key"] is not None}
    return [row for row in records if last.get((row["partition"], row["key"])) == row["offset"]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@examples(20)
@given(data=st.data())
def test_ranges_give_what_a_full_scan_has_there(logs, name, isolation, data):
    log, topic = logs[name]
    offsets = drawn(data, log, topic)
    whole = rows(log.topic(topic).scan(isolation=isolation).batches())
    expected = chosen(whole, offsets)
    scan = scan_of(log, topic, offsets, isolation=isolation)
    assert rows(scan.batches(threads=data.draw(st.sampled_from([1, 3])))) == expected
    parts = list(scan.parts(data.draw(st.integers(60, 3000))))
    assert rows(batch for part in parts for batch in Scan.read(log.storage, [part])) == expected
    for part in parts:  # each lies in one range, so that no part crosses from one to the next
        assert any(start <= part.start_offset and part.end_offset <= end for start, end in offsets[part.partition])
    only_offsets = scan.select(["partition", "offset"])
    assert rows(only_offsets.batches()) == [{key: row[key] for key in ("partition", "offset")} for row in expected]


@pytest.mark.parametrize("name", NAMES)
@examples(20)
@given(data=st.data())
def test_the_latest_view_of_ranges_has_the_newest_of_their_records(logs, name, data):
    log, topic = logs[name]
    offsets = drawn(data, log, topic)
    whole = rows(log.topic(topic).scan(isolation="read_committed").batches())
    scan = scan_of(log, topic, offsets, isolation="read_committed", view="latest")
    expected = newest(chosen(whole, offsets))
    assert rows(scan.batches()) == expected
    parts = list(scan.parts(data.draw(st.none() | st.integers(60, 3000))))
    assert rows(batch for part in parts for batch in Scan.read(log.storage, [part])) == expected
    for part in parts:
        met = borders(scan.offsets[part.partition])
        assert not any(part.parts[0].start_offset < border < part.parts[-1].end_offset for border in met)


@pytest.mark.parametrize("name", NAMES)
@examples(20)
@given(data=st.data())
def test_a_condition_on_ranges_loses_no_record_for_which_it_holds(logs, name, data):
    log, topic = logs[name]
    offsets = drawn(data, log, topic)
    scan = scan_of(log, topic, offsets)
    low, high = (data.draw(st.integers(-3, 120)) for _ in range(2))
    condition = (pa.compute.field("offset") >= low) & (pa.compute.field("offset") < high)
    every = rows(scan.batches())
    times = sorted(row["timestamp"] for row in every)
    if times and data.draw(st.booleans()):
        moment = pa.scalar(data.draw(st.sampled_from(times)), pa.timestamp("us", "UTC"))
        condition &= pa.compute.field("timestamp") >= moment
    met = pa.Table.from_pylist(every, scan.schema).filter(condition).to_pylist()
    found = rows(scan.where(condition).batches())
    places = [(row["partition"], row["offset"]) for row in found]
    assert {(row["partition"], row["offset"]) for row in met} <= set(places)
    assert [row for row in every if (row["partition"], row["offset"]) in set(places)] == found


@pytest.mark.parametrize("name", [*NAMES, "late records"])
@pytest.mark.parametrize("view", [None, "latest"])
@examples(20)
@given(data=st.data())
def test_a_scan_of_times_has_exactly_the_records_of_a_full_scan_with_these_times(logs, name, view, data):
    log, topic = logs[name]
    handle = log.topic(topic)
    every = handle.scan(view=view).to_table()
    times_ms = sorted(set(pa.compute.floor_temporal(every["timestamp"], unit="millisecond").cast("int64").to_pylist()))
    times_ms = [time_us // 1000 for time_us in times_ms]
    around = st.sampled_from([*times_ms, *(time_ms + 1 for time_ms in times_ms)]) if times_ms else st.just(0)
    start, end = sorted((data.draw(around), data.draw(around)))
    bounds = (data.draw(st.sampled_from([None, start])), data.draw(st.sampled_from([None, end])))
    mask = pa.array([True] * every.num_rows, pa.bool_())
    moments = [None if bound is None else pa.scalar(bound * 1000, pa.timestamp("us", "UTC")) for bound in bounds]
    if moments[0] is not None:
        mask = pa.compute.and_(mask, pa.compute.greater_equal(every["timestamp"], moments[0]))
    if moments[1] is not None:
        mask = pa.compute.and_(mask, pa.compute.less(every["timestamp"], moments[1]))
    expected = every.filter(mask)

    scan = handle.scan(view=view, times=bounds)

    assert scan.to_table().equals(expected)
    assert scan.select(["offset"]).to_table()["offset"].equals(expected["offset"])
    parts = scan.parts(data.draw(st.none() | st.integers(60, 3000)))
    assert rows(Scan.read(log.storage, parts)) == expected.to_pylist()


def test_only_segments_that_can_have_a_record_of_the_times_are_read(logs):
    log, topic = logs["late records"]
    segments = live(log, topic)
    least, most = min(row.min_timestamp_ms for row in segments), max(row.max_timestamp_ms for row in segments)
    scan = log.topic(topic).scan(times=(least + HOUR_MS, least + 2 * HOUR_MS))
    read = {part.segment.base_offset for part in scan.parts()}
    can = {
        row.base_offset
        for row in segments
        if row.max_timestamp_ms >= least + HOUR_MS and row.min_timestamp_ms < least + 2 * HOUR_MS
    }
    assert read == can and 0 < len(read) < len(segments)
    assert not list(log.topic(topic).scan(times=(most + 1, None)).parts())


@pytest.mark.parametrize("times", [(1,), "2026-01-01", (5, 4), "a..b", 7])
def test_what_is_no_range_of_times_is_an_error(logs, times):
    log, topic = logs["chunks"]
    with pytest.raises(InvalidOptionError):
        log.topic(topic).scan(times=times)


@pytest.mark.parametrize(("first", "second"), [((10, 60), (40, None)), ((None, 40), (20, 70)), ((10, 20), (50, 60))])
def test_a_scan_of_times_of_a_scan_of_times_has_the_records_in_both_ranges(logs, first, second):
    log, topic = logs["late records"]
    least = min(row.min_timestamp_ms for row in live(log, topic))
    first, second = (tuple(None if at is None else least + at * HOUR_MS for at in times) for times in (first, second))
    own = [set(log.topic(topic).scan(times=times).to_table().column("offset").to_pylist()) for times in (first, second)]
    both = log.topic(topic).scan(times=first).of_times(second)
    assert both.to_table().column("offset").to_pylist() == sorted(own[0] & own[1])


def test_a_scan_is_clipped_where_it_meets_the_snapshot(logs):
    log, _ = logs["chunks"]
    assert log.topic("t").offsets() == {0: (7, 90)}
    assert scan_of(log, "t", {0: ((0, 5), (5, 10), (80, 2**62))}).offsets == {0: ((7, 7), (7, 10), (80, 90))}
    golden, topic = logs["txn-0"]
    stable = golden.topic(topic).snapshot.offset_bounds("read_committed")
    committed = scan_of(golden, topic, {0: ((0, 2**62),)}, isolation="read_committed")
    assert committed.offsets == {0: (stable[0],)}
    assert replace(committed, offsets={0: ((3, 4),)}).offsets == {0: ((3, 4),)}


def test_ranges_that_share_an_offset_are_a_fault_of_the_program(logs):
    log, topic = logs["chunks"]
    for ranges in (((10, 20), (19, 30)), ((30, 40), (10, 20))):
        with pytest.raises(AssertionError, match="ranges rise and share no offset"):
            scan_of(log, topic, {0: ranges})
