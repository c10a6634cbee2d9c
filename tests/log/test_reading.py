"""Reading ranges and times: whatever way a log is cut into files and ranges, it reads as one, and touches little."""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir, ProducerOptions
from spark_segments.log import Scan
from spark_segments.log.reading.scan_plan import PARALLEL_TASKS, pack
from spark_segments.maintenance import roll
from spark_segments.storage import Storage
from tests.examples import examples
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.opened import opened

appends = st.lists(st.lists(st.integers(-1, 50), min_size=1, max_size=40), min_size=1, max_size=6)


class CountingStorage(Storage):
    """Counts what is read of .log files, and how often anything is read."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.log_bytes = 0
        self.reads = 0

    def read(self, path, offset=0, length=None, *, writable=False):
        data = super().read(path, offset, length, writable=writable)
        self.reads += 1
        if path.endswith(".log"):
            self.log_bytes += data.size
        return data


def roll_closed(log: LogDir) -> None:
    """Rolls all that is there, as a day later."""
    roll(log, now_ms=log.storage.now_ms() + 86_400_000 * 30)


def written(uri: str, batches: list[list[int]], batch_bytes: int) -> tuple[LogDir, list[int]]:
    """A log of these timestamps (ms; -1: none), an append each, in small batches and files."""
    log = LogDir.create(uri)
    log.create_topic("t", config={"segment.bytes": "600", "index.interval.bytes": "100"})
    for timestamps in batches:
        table = pa.table(
            {
                "value": [b"v"] * len(timestamps),
                "timestamp": pa.array([time * 1000 for time in timestamps], pa.timestamp("us", tz="UTC")),
            }
        )
        log.topic("t").append(table, options=ProducerOptions("none", batch_bytes))
    return log, [time for timestamps in batches for time in timestamps]


@examples(40)
@given(batches=appends, batch_bytes=st.integers(70, 400), target=st.integers(-2, 52), start=st.integers(0, 250))
def test_a_time_is_found_as_a_full_scan_finds_it(batches, batch_bytes, target, start):
    with tempfile.TemporaryDirectory() as directory:
        log, timestamps = written(directory + "/log", batches, batch_bytes)
        start = min(start, len(timestamps))
        log.topic("t").delete_records({0: start})
        found = next(((n, time) for n, time in enumerate(timestamps) if n >= start and time >= target), None)
        assert log.topic("t").offsets_for_times(target) == {0: found}


@examples(40)
@given(
    batches=appends,
    batch_bytes=st.integers(70, 400),
    start=st.integers(0, 100),
    count=st.integers(0, 100),
    max_bytes=st.integers(40, 3000),
)
def test_ranges_put_together_read_each_record_once(batches, batch_bytes, start, count, max_bytes):
    with tempfile.TemporaryDirectory() as directory:
        log, timestamps = written(directory + "/log", batches, batch_bytes)
        parts = list(log.topic("t").scan(offsets=(start, start + count), columns=["offset"]).parts(max_bytes))
        tasks = pack(parts, 1 << 22)
        assert [one for task in tasks for one in task] == parts
        batches_read = (batch for part in parts for batch in Scan.read(log.storage, [part]))
        offsets = [offset for batch in batches_read for offset in batch.column(0).to_pylist()]
        assert offsets == list(range(start, min(start + count, len(timestamps))))


@examples(40)
@given(batches=appends, batch_bytes=st.integers(70, 400), first=st.integers(-2, 52), end=st.integers(-2, 52))
def test_a_condition_on_times_reads_all_records_for_which_it_holds(batches, batch_bytes, first, end):
    with tempfile.TemporaryDirectory() as directory:
        log, timestamps = written(directory + "/log", batches, batch_bytes)
        time = pa.compute.field("timestamp")
        start, stop = (pa.scalar(ms * 1000 + 500, pa.timestamp("us", "UTC")) for ms in (first, end))
        for _ in range(2):
            found = log.topic("t").scan().where((time >= start) & (time < stop)).to_table()
            wanted = [number for number, ms in enumerate(timestamps) if first < ms <= end]
            assert set(wanted) <= set(found.column("offset").to_pylist())
            roll_closed(log)


@pytest.mark.rule("R11")
def test_a_condition_on_times_ends_where_all_later_files_are_younger(tmp_path):
    log, _ = written(str(tmp_path / "log"), [[5, 3, 4], [9, 1], [20, 12], [14, 30]], 70)
    ends = {}
    for end in (1, 5, 12, 13, 31):
        before = pa.compute.field("timestamp") < pa.scalar(end * 1000, pa.timestamp("us", "UTC"))
        ((_, ends[end]),) = log.topic("t").scan().where(before).offsets[0]
    assert ends == {1: 0, 5: 5, 12: 5, 13: 7, 31: 9}


@pytest.mark.rule("M33", "R11")
@pytest.mark.parametrize("batches", [[[1], [9]], [[9], [1]], [[9, 1], [2, 8]]])
def test_a_rolled_segment_has_the_least_timestamp_of_its_chunks(tmp_path, batches):
    log, timestamps = written(str(tmp_path / "log"), batches, 70)
    roll_closed(log)
    [least] = log.topic("t").snapshot.live.column("min_timestamp_ms").to_pylist()
    assert least == 1
    before = pa.compute.field("timestamp") < pa.scalar(2_000, pa.timestamp("us", "UTC"))
    found = log.topic("t").scan().where(before).to_table().column("offset").to_pylist()
    assert {number for number, ms in enumerate(timestamps) if ms < 2} <= set(found)


@pytest.mark.rule("M33", "R11")
def test_partitions_and_offsets_of_appended_records_come_from_the_manifest(tmp_path):
    log, _ = written(str(tmp_path / "log"), [[1] * 30, [2] * 40, [3] * 5], 300)
    log.topic("t").delete_records({0: 7})
    whole = log.topic("t").scan().to_table()
    roll_closed(log)
    storage = CountingStorage(log.uri)
    scan = opened(storage).topic("t").scan(columns=["offset", "topic", "partition"])
    storage.log_bytes = 0
    for threads in (1, 2):
        assert scan.to_reader(threads).read_all() == whole.select(["offset", "topic", "partition"])
    assert sum(batch.num_rows for part in scan.parts(100) for batch in Scan.read(storage, [part])) == 68
    assert storage.log_bytes == 0
    assert scan.select(["offset", "timestamp"]).to_table().num_rows == 68
    assert storage.log_bytes > 0


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_view_of_several_files_has_the_same_records_whatever_columns_are_read(tmp_path, partitions):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    for number, key in enumerate("abcab"):
        log.topic("t").append([{"key": key, "value": str(number), "partition": 0}])
    if partitions > 1:
        log.topic("t").alter(partitions=partitions)
        log.topic("t").append([{"key": "c", "value": "5", "partition": 1}])
    newest = [(0, 2), (0, 3), (0, 4)] if partitions == 1 else [(0, 3), (0, 4), (1, 0)]
    for columns in (["partition", "offset"], ["partition", "offset", "value"]):
        table = log.topic("t").scan(view="latest", columns=columns).to_table()
        assert list(zip(*table.select([0, 1]).to_pydict().values(), strict=True)) == newest
    assert log.topic("t").scan(view="latest", columns=["topic"]).to_table().num_rows == len(newest)


@pytest.mark.rule("M33")
def test_rows_of_kafkas_files_say_no_least_timestamp(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    (tmp_path / "kafka").mkdir()
    shutil.copytree(GOLDEN / "txn-0", tmp_path / "kafka" / "txn-0")
    log.import_kafka(str(tmp_path / "kafka"))
    roll_closed(log)
    snapshot = log.topic("txn").snapshot
    assert set(snapshot.live.column("min_timestamp_ms").to_pylist()) == {None}
    scan = log.topic("txn").scan()
    assert scan.select(["offset"]).to_table() == scan.to_table().select(["offset"])


def test_the_end_of_a_large_partition_is_read_without_its_beginning(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", config={"segment.bytes": str(64 << 20), "compression.type": "uncompressed"})
    value = pa.array([np.random.default_rng(1).bytes(1024)] * 60_000, pa.binary())
    log.topic("t").append(pa.table({"value": value}))
    storage = CountingStorage(log.uri)
    topic = opened(storage).topic("t")
    ((_, end),) = topic.offsets().values()
    _ = topic.snapshot.segments
    storage.log_bytes = storage.reads = 0
    batches = topic.scan(offsets=(end - 10, end)).batches()
    assert [row for batch in batches for row in batch.column("offset").to_pylist()] == list(range(end - 10, end))
    assert storage.log_bytes < 1 << 20
    assert storage.reads <= 3


def test_one_large_segment_is_read_by_many_tasks_each_its_share(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", config={"segment.bytes": str(64 << 20), "compression.type": "uncompressed"})
    value = pa.array([np.random.default_rng(1).bytes(1024)] * 60_000, pa.binary())
    log.topic("t").append(pa.table({"value": value}))
    ((_, end),) = log.topic("t").offsets().values()
    parts = list(log.topic("t").scan(columns=["offset", "timestamp"]).parts(8 << 20))
    assert len({part.segment.path for part in parts}) == 1
    assert [len(task) for task in pack(parts, 8 << 20)] == [1] * 8
    offsets: list[int] = []
    for part in parts:
        storage = CountingStorage(log.uri)
        offsets += [row for batch in Scan.read(storage, [part]) for row in batch[0].to_pylist()]
        assert storage.log_bytes < part.size_bytes + (1 << 20)
    assert offsets == list(range(end))


@pytest.fixture(scope="module")
def many_partitions(tmp_path_factory):
    log = LogDir.create(str(tmp_path_factory.mktemp("many") / "log"))
    log.create_topic("t", partitions=1000)
    numbers = pa.array(np.repeat(np.arange(1000, dtype=np.int32), 3))
    log.topic("t").append(pa.table({"value": pa.array([b"v"] * 3000), "partition": numbers}))
    return list(log.topic("t").scan().parts())


def test_a_thousand_small_partitions_are_few_tasks(many_partitions):
    tasks = pack(many_partitions, 128 << 20)
    assert PARALLEL_TASKS <= len(tasks) <= 2 * PARALLEL_TASKS
    assert [one for task in tasks for one in task] == many_partitions


def test_few_partitions_keep_a_task_each(many_partitions):
    assert [len(task) for task in pack(many_partitions[:PARALLEL_TASKS], 128 << 20)] == [1] * PARALLEL_TASKS


@pytest.mark.parametrize("least", [1, 100, 999, 1000, 5000])
def test_partitions_share_tasks_only_as_far_as_the_tasks_asked_for_are_left(many_partitions, least):
    tasks = pack(many_partitions, 128 << 20, min_tasks=least)
    assert len(tasks) >= min(least, 1000)
    assert [one for task in tasks for one in task] == many_partitions


def test_a_task_of_many_partitions_has_no_more_records_than_asked_for(many_partitions):
    tasks = pack(many_partitions, 128 << 20, max_offsets=10)
    assert max(sum(one.offsets for one in task) for task in tasks) == 9
    assert [one for task in tasks for one in task] == many_partitions
