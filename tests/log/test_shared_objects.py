"""Shared objects: one file for many partitions, read, checked and repaired as files of their own are."""

from __future__ import annotations

import dataclasses
import errno
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir, ProducerOptions
from spark_segments.dump import dump_entries
from spark_segments.dump.text import text_of
from spark_segments.errors import CorruptBatchError, InvalidOptionError, SegmentsError
from spark_segments.format.shared_object import RUN_DTYPE, TRAILER_BYTES, footer_bytes, footer_size, parse_footer
from spark_segments.log.appending.append import append_target
from spark_segments.log.segment.shared_object import read_footer
from spark_segments.maintenance import erase, mirror, vacuum, verify
from spark_segments.storage import Storage
from tests.examples import examples
from tests.maintenance.verification.topics import repaired
from verification.specification.specification_reader import ManagedLog
from verification.world.clock import store_clock
from verification.world.manifest_rows import Change, commit_append, live_rows
from verification.world.opened import opened
from verification.world.small_limits import small_limits
from verification.world.stores.played_files import PlayedFiles
from verification.world.topics import Appender, assert_sound, contents

PARTITIONS = 12
TIME_MS = 1_700_000_000_000


def table(records: list[tuple[int, int]], *, size: int = 20) -> pa.Table:
    """Records of (partition, timestamp in ms); the value says which it is."""
    return pa.table(
        {
            "value": [(b"%d " % number).ljust(size, b".") for number in range(len(records))],
            "partition": pa.array([partition for partition, _ in records], pa.int32()),
            "timestamp": pa.array([time_ms for _, time_ms in records], pa.timestamp("ms")),
        }
    )


def spread(count: int) -> list[tuple[int, int]]:
    return [(number % PARTITIONS, TIME_MS + number) for number in range(count)]


@pytest.fixture
def log(tmp_path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", PARTITIONS, {"index.interval.bytes": "100"})
    return log


def append_small_batches(log: LogDir, records: list[tuple[int, int]], **options: int) -> None:
    log.topic("orders").append(table(records, **options), options=ProducerOptions("none", 200))


def data_files(log: LogDir) -> list[str]:
    return [info.path for info in log.storage.list(recursive=True) if info.path.startswith("orders-")]


def overwrite(log: LogDir, path: str, position: int, data: bytes) -> None:
    with open(log.storage.location(path), "r+b") as file:
        file.seek(position)
        file.write(data)


# Writing


def test_little_in_many_partitions_is_one_object(log):
    append_small_batches(log, spread(120))
    (path,) = data_files(log)
    assert path.startswith("orders-shared/00000000000000000000.") and path.endswith(".log")
    rows = live_rows(log, "orders")
    assert [row.partition for row in rows] == list(range(PARTITIONS))
    assert {row.path for row in rows} == {path}
    assert all(row.is_shared and row.state == "chunk" and row.name_offset == 0 for row in rows)
    assert_sound(log)


def test_few_partitions_have_files_of_their_own(log):
    append_small_batches(log, [(0, TIME_MS), (1, TIME_MS)])
    assert not any(row.is_shared for row in live_rows(log, "orders"))
    assert len(data_files(log)) == 6


def test_a_partition_that_gets_much_has_a_file_of_its_own(log):
    log.topic("orders").alter({"segment.bytes": "100000"})
    append_small_batches(log, [*spread(120), *[(3, TIME_MS)] * 600], size=100)
    rows = {row.partition: row for row in live_rows(log, "orders")}
    assert [number for number, row in rows.items() if not row.is_shared] == [3]
    assert len({row.path for row in rows.values()}) == 2
    assert_sound(log)


def test_many_objects_of_one_task_keep_the_order_of_its_rows(log):
    with small_limits(WAITING_BYTES=3000):
        target = append_target(log, "orders")
        with Appender(log.storage, lambda _: target, topic="orders", buffer_bytes=1000) as appender:
            for batch in table(spread(600)).to_batches():
                appender.write(batch)
            (chunks,) = appender.close()
    assert len({row.path for row in chunks.segments}) > 2
    commit_append(log.topic("orders").manifest, chunks.segments)
    for number in range(PARTITIONS):
        values = [int(row["value"].split()[0]) for row in contents(log, "orders", partition=number)]
        assert values == list(range(number, 600, PARTITIONS))
    assert_sound(log)


def test_a_task_that_fails_in_mid_object_deletes_it(log):
    class Full:
        """A file that takes a thousand bytes."""

        def __init__(self, file) -> None:
            self._file, self.bytes_written = file, 0

        def __getattr__(self, name: str):
            return getattr(self._file, name)

        def write(self, data) -> None:
            if self.bytes_written > 1000:
                raise OSError(errno.ENOSPC, "no space left")
            self._file.write(data)
            self.bytes_written += memoryview(data).nbytes

    with pytest.raises(SegmentsError, match="no space left"):
        append_small_batches(opened(log, PlayedFiles(stream=lambda path, go: Full(go()))), spread(600))
    assert data_files(log) == []


def test_an_object_is_added_to_the_log_once(log):
    append_small_batches(log, spread(120))
    rows = [dataclasses.replace(row.at(0), removed_ms=None) for row in live_rows(log, "orders")]
    with pytest.raises(SegmentsError, match="once only"):
        commit_append(log.topic("orders").manifest, rows)


def test_topics_whose_names_look_like_directories_of_objects_stay_apart(log):
    for name in ("orders-shared", "orders-shared-0"):
        log.create_topic(name, PARTITIONS)
        log.topic(name).append(table(spread(24)))
    append_small_batches(log, spread(120))
    assert [sum(batch.num_rows for batch in log.topic(name).scan().batches()) for name in log.topics()] == [120, 24, 24]
    assert_sound(log)


@pytest.mark.parametrize("length", [248, 249])
def test_a_topic_of_the_longest_name_shares_objects_as_others_do(log, tmp_path, length):
    name = "t" * length
    log.create_topic(name, PARTITIONS, {"file.delete.delay.ms": "0"})
    log.topic(name).append(table(spread(120)))
    [path] = {row.path for row in live_rows(log, name)}
    assert path.startswith(f"{name}-shared/" if length == 248 else f"{name}-s/")
    assert_sound(log)
    stray = path.replace(".log", "00.log")
    log.storage.write(stray, b"of a writer that failed")
    copy = LogDir.create(str(tmp_path / "copy"))
    assert not mirror(copy, leader=log).failed
    erase(log, topics=[name], keys=[b"no key"])
    log.delete_topic(name)
    old_ms = log.storage.now_ms() + 30 * 86_400_000
    with store_clock(old_ms):
        assert not vacuum(log).failed
    assert not log.storage.list(path.partition("/")[0]), "the object and what no row names"
    assert sum(batch.num_rows for batch in copy.topic(name).scan().batches()) == 120


def test_another_directory_that_ends_so_is_nobodys(log):
    log.storage.write("orders-s/notes.txt", b"mine")
    with store_clock(log.storage.now_ms() + 30 * 86_400_000):
        vacuum(log)
    assert log.storage.list("orders-s")


def test_a_topic_has_no_more_partitions_than_directories_can_have_names(log):
    log.create_topic("t" * 249)
    with pytest.raises(InvalidOptionError, match="expected 1 to 100000, found 100001"):
        log.topic("t" * 249).alter(partitions=100_001)


# Reading


class CountingStorage(Storage):
    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.reads: list[tuple[str, int, int | None]] = []

    def read(self, path, offset=0, length=None, *, writable=False):
        self.reads.append((path, offset, length))
        return super().read(path, offset, length, writable=writable)


@pytest.mark.cases(4)
@pytest.mark.parametrize("start", [0, 5, 4000, None])
@pytest.mark.parametrize("size", [50, 400])
def test_a_partition_is_read_by_two_range_reads_an_object_at_most(tmp_path, start, size):
    """A small run is read whole; a run above a MiB by its index and from there on."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", PARTITIONS)
    count = 5000 * PARTITIONS
    log.topic("orders").append(table(spread(count), size=size), options=ProducerOptions("none"))
    assert {row.is_shared for row in live_rows(log, "orders")} == {True}
    storage = CountingStorage(log.uri)
    where = {} if start is None else {"offsets": (start, None)}
    counted = opened(storage)
    storage.reads.clear()
    rows = contents(counted, "orders", partition=3, **where)
    assert len(rows) == 5000 - (start or 0)
    assert len([read for read in storage.reads if "shared" in read[0]]) <= 2


records = st.lists(st.tuples(st.integers(0, 8), st.integers(TIME_MS - 20, TIME_MS + 20)), min_size=1, max_size=120)


@examples(40)
@given(
    appends=st.lists(records, min_size=1, max_size=4),
    start=st.integers(0, 60),
    count=st.integers(0, 60),
    target=st.integers(TIME_MS - 25, TIME_MS + 25),
    partition=st.integers(0, 8),
)
def test_any_offset_and_any_time_is_found_as_in_a_list(appends, start, count, target, partition):
    with tempfile.TemporaryDirectory() as directory:
        log = LogDir.create(directory + "/log")
        log.create_topic("orders", 9, {"index.interval.bytes": "100"})
        model: list[int] = []
        with small_limits(FEWEST_RUNS=1, SMALL_RUN_BYTES=0):
            for rows in appends:
                append_small_batches(log, rows)
                model += [time_ms for number, time_ms in rows if number == partition]
            assert all(row.is_shared for row in live_rows(log, "orders"))
            read = contents(log, "orders", partition=partition, offsets=(start, start + count))
            assert [row["offset"] for row in read] == list(range(len(model)))[start : start + count]
            found = next(((offset, time_ms) for offset, time_ms in enumerate(model) if time_ms >= target), None)
            assert log.topic("orders").offsets_for_times(target)[partition] == found
            by_specification = ManagedLog(Path(directory) / "log")
            snapshot = by_specification.snapshot("orders")
            seen = by_specification.records(snapshot, partition, start, start + count)
            assert [record.offset for record in seen] == [row["offset"] for row in read]
            assert by_specification.offset_for_time(snapshot, partition, target) == found


# Damage


def test_a_damaged_run_is_named_by_its_position_in_the_file_and_stops_no_other(log):
    append_small_batches(log, spread(120))
    row = live_rows(log, "orders")[5]
    overwrite(log, row.path, row.byte_position + 70, b"\xff\xff\xff")
    with pytest.raises(CorruptBatchError) as error:
        contents(log, "orders", partition=5)
    assert (error.value.byte_position, row.path in str(error.value)) == (row.byte_position, True)
    assert len(contents(log, "orders", partition=4)) == len(contents(log, "orders", partition=6)) == 10
    (finding,) = verify(log, deep=True).findings
    assert (finding.partition, finding.path, finding.byte_position) == (5, row.path, row.byte_position)


def test_index_entries_of_a_run_that_are_not_true_are_found_and_the_run_is_copied_out(log):
    append_small_batches(log, spread(600))
    before, row = contents(log, "orders"), live_rows(log, "orders")[5]
    assert row.index_bytes > 8
    overwrite(log, row.path, row.index_position + 8, b"\0\0\0\1\0\0\0\1")
    report = verify(log, deep=True)
    assert {finding.partition for finding in report.findings} == {5}
    assert {finding.path for finding in report.findings} == {row.path}
    assert all(row.index_position <= finding.byte_position < row.time_index_position for finding in report.findings)
    (fixed,) = repaired(verify(log, repair=True))
    assert fixed["partition"] == 5 and fixed["new_path"].startswith("orders-5/")
    assert contents(log, "orders") == before
    assert sum(one.is_shared for one in live_rows(log, "orders")) == PARTITIONS - 1
    assert_sound(log)


@pytest.mark.parametrize("size", [0, 10, 1000, -1])
def test_an_object_that_is_cut_or_gone_is_found(log, size):
    append_small_batches(log, spread(120))
    path = live_rows(log, "orders")[0].path
    whole = log.storage.read(path).to_pybytes()
    log.storage.delete(path)
    if size:
        log.storage.write(path, whole[:size])
    report = verify(log, deep=True)
    assert not report.ok and {finding.path for finding in report.findings} == {path}


def test_a_row_that_is_not_what_the_footer_says_is_found(log):
    append_small_batches(log, spread(120))
    row = live_rows(log, "orders")[3]
    wrong = dataclasses.replace(row, records=row.records + 1)
    log.topic("orders").manifest.commit(lambda _: Change("test", replace=[wrong]))
    messages = {finding.message for finding in verify(log, deep=True).findings}
    assert "A row and the footer of its shared object differ" in messages


def runs_of(sizes: list[tuple[int, int, int]]) -> np.ndarray:
    runs = np.zeros(len(sizes), RUN_DTYPE)
    position = 0
    for number, (size, _, _) in enumerate(sizes):
        runs[number]["partition"], runs[number]["position"], runs[number]["log_bytes"] = number, position, size
        position += size
    for number, (_, index, times) in enumerate(sizes):
        runs[number]["index_position"] = position
        runs[number]["index_bytes"], runs[number]["time_index_bytes"] = index, times
        position += index + times
    return runs


sizes = st.lists(st.tuples(st.integers(61, 1 << 20), st.integers(0, 800), st.integers(0, 800)), min_size=1, max_size=30)


@given(sizes=sizes, topic_id=st.text(max_size=30), created_ms=st.integers(0, 1 << 50))
def test_a_footer_reads_as_it_was_written(sizes, topic_id, created_ms):
    runs = runs_of(sizes)
    data = footer_bytes(topic_id, created_ms, runs)
    size = sum(map(sum, sizes)) + len(data)
    assert footer_size(data[-TRAILER_BYTES:], size, path="f") == len(data)
    footer = parse_footer(data, size, path="f")
    assert (footer.topic_id, footer.created_ms, footer.runs.tolist()) == (topic_id, created_ms, runs.tolist())


@given(sizes=sizes, data=st.data())
def test_no_changed_byte_of_a_footer_is_taken_for_a_good_one(sizes, data):
    content = bytearray(footer_bytes("id", 5, runs_of(sizes)))
    size = sum(map(sum, sizes)) + len(content)
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptBatchError):
        length = footer_size(bytes(content[-TRAILER_BYTES:]), size, path="f")
        parse_footer(bytes(content[-length:]).rjust(length, b"\0"), size, path="f")


def test_runs_that_overlap_are_refused():
    runs = runs_of([(100, 8, 12), (100, 8, 12)])
    runs[1]["position"] = 99
    data = footer_bytes("id", 5, runs)
    with pytest.raises(CorruptBatchError, match="overlap or leave a gap"):
        parse_footer(data, 240 + len(data), path="f")


# Looking


def test_a_dump_shows_what_an_object_holds(log):
    append_small_batches(log, spread(120))
    (path,) = data_files(log)
    entries = list(dump_entries(log.storage, [path]))
    runs = [entry for entry in entries if entry["kind"] == "run"]
    assert [(run["partition"], run["position"]) for run in runs] == [
        (row.partition, row.byte_position) for row in live_rows(log, "orders")
    ]
    assert sum(entry["kind"] == "record" for entry in entries) == 120
    assert not any(entry["kind"] in ("error", "invalid bytes") for entry in entries)
    lines = list(text_of(dump_entries(log.storage, [path])))
    assert lines[2] == f"Shared object of topic id {log.topic('orders').snapshot.topic_id}: {PARTITIONS} runs"
    assert sum(line.startswith("Partition ") for line in lines) == PARTITIONS


def test_a_description_counts_what_is_shared(log):
    assert log.topic("orders").describe()["shared"] == {"objects": 0, "size_bytes": 0}
    append_small_batches(log, spread(120))
    append_small_batches(log, spread(120))
    append_small_batches(log, [(0, TIME_MS)])
    size_bytes = sum(row.log_bytes for row in live_rows(log, "orders") if row.is_shared)
    assert log.topic("orders").describe()["shared"] == {"objects": 2, "size_bytes": size_bytes}


def test_the_footer_is_what_the_rows_say(log):
    append_small_batches(log, spread(120))
    (path,) = data_files(log)
    footer = read_footer(log.storage, path, log.storage.size(path))
    said = [tuple(run)[:6] for run in footer.runs.tolist()]
    fields = ("partition", "byte_position", "log_bytes", "index_position", "index_bytes", "time_index_bytes")
    assert said == [tuple(getattr(row, name) for name in fields) for row in live_rows(log, "orders")]
    assert footer.topic_id == log.topic("orders").snapshot.topic_id
