"""Several threads that clean a group leave the bytes that one thread leaves, in bounded memory, and nothing after a
failure.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir, ProducerOptions
from spark_segments.config import topic_config
from spark_segments.errors import CorruptBatchError
from spark_segments.format.decoding import record_sections
from spark_segments.log.segment.file import SegmentFile
from spark_segments.maintenance import compact, roll, vacuum, verify
from spark_segments.maintenance.compaction import group_rewrite
from spark_segments.maintenance.compaction.noted_batches import NotedBatches
from spark_segments.storage import Storage
from tests.examples import examples
from tests.format.test_clean_model import RETENTION_MS, START_MS, batches_of_a_round, extend
from tests.format.written_log import Log
from tests.log.overlapping import TOPIC as KAFKA_TOPIC
from tests.log.overlapping import SegmentOf, write_partition
from tests.log.test_overlaps import each
from tests.maintenance.rows import TOPIC_ID, run
from tests.maintenance.test_compact_directories import keyed
from verification.world.clock import ORPHAN_AGE_MS
from verification.world.kafka_bytes.segment_bytes import Window
from verification.world.manifest_rows import Partition, Segment
from verification.world.opened import LocalFiles, opened
from verification.world.rounds import ONE_TASK, CleanerSettings, RoundPlan, RoundResult, RoundTasks
from verification.world.small_limits import small_limits
from verification.world.stores.played_files import PlayedFiles
from verification.world.topics import SegmentLimits, SegmentWriter, contents, live

TOPIC = "prices"
MIB = 1 << 20
LATER_MS = 10 * 86_400_000


def small_windows(size: int) -> AbstractContextManager[None]:
    """Windows of about `size` bytes, no gap is too small to be passed over, and every group is large."""
    windows = {"WINDOW_BYTES": size, "FIRST_WINDOW_BYTES": size, "WINDOWS_WAITING_BYTES": 2 * size}
    return small_limits(**windows, LEAST_GAP_BYTES=1, MIN_SLICE_BYTES=1, LARGE_PARTITION_BYTES=0, LARGE_SHARE=0)


def written(storage: Storage, log: Log, rows: list[Segment]) -> list[Segment]:
    """The rows of all segments of a log but its last, which is active; those behind `rows` are written."""
    found = list(rows)
    for segment, after in zip(log.segments, log.segments[1:], strict=False):
        if found and segment.base_offset < found[-1].next_offset:
            continue
        with SegmentWriter(storage, TOPIC, 0, segment.base_offset, limits=SegmentLimits.of(topic_config({}))) as writer:
            writer.append(np.frombuffer(segment.data, np.uint8), segment.batches)
            writer.add_aborted(segment.aborted)
            row = writer.close(topic_id=TOPIC_ID, created_ms=START_MS, state=Segment.SEALED)
        found.append(replace(row, next_offset=after.base_offset))
    return found


def described(storage: Storage, done: RoundResult) -> list[Any]:
    """All that a round made, names of files apart."""

    def files(row: Segment) -> list[bytes]:
        sizes = {
            row.path: row.log_bytes,
            row.index_path: row.index_bytes,
            row.time_index_path: row.time_index_bytes,
            row.txn_index_path: row.txn_index_bytes,
        }
        return [storage.read(path).to_pybytes() for path, size in sizes.items() if size]

    groups = [(group.inputs, [(replace(row, path=""), files(row)) for row in group.outputs]) for group in done.groups]
    return [groups, done.stats, done.indexed, done.end_offset]


@pytest.mark.proof
@examples(100)
@given(
    rounds=st.lists(
        st.tuples(batches_of_a_round(), st.sampled_from([0, 1, RETENTION_MS, 5 * RETENTION_MS])), min_size=1, max_size=3
    ),
    threads=st.sampled_from([2, 3, 7]),
    window_bytes=st.sampled_from([1, 150, 400, 8 * MIB]),
    part_bytes=st.sampled_from([1, 100, record_sections.TARGET_BYTES]),
    map_bytes=st.sampled_from([72, MIB]),
    codec=st.sampled_from(["producer", "uncompressed", "zstd"]),
    largest_bytes=st.sampled_from([300, group_rewrite.LARGEST_FILE_BYTES]),
)
def test_threads_leave_the_bytes_of_one_thread(
    rounds, threads, window_bytes, part_bytes, map_bytes, codec, largest_bytes
):
    """Of logs of all that a partition may hold, and of what earlier rounds left."""
    config = topic_config({"cleanup.policy": "compact", "compression.type": codec, "delete.retention.ms": RETENTION_MS})
    log, rows, now_ms, dirty = Log(), list[Segment](), START_MS, 0
    with (
        tempfile.TemporaryDirectory() as directory,
        small_windows(window_bytes),
        small_limits(SECTION_BYTES=part_bytes, LARGEST_FILE_BYTES=largest_bytes),
    ):
        storage = Storage(directory)
        for steps, later_ms in rounds:
            now_ms += later_ms
            extend(log, steps, now_ms)
            rows, bound = written(storage, log, rows), log.segments[-1].base_offset
            row = Partition(TOPIC_ID, 0, log_end_offset=bound, first_dirty_offset=dirty, last_stable_offset=bound)
            cleaning = CleanerSettings(TOPIC, TOPIC_ID, {}, now_ms, map_bytes, 0.9)
            work = RoundPlan(cleaning, config, row, rows, dirty, bound)
            found = RoundTasks(threads, map_bytes, map_bytes)(storage, work)
            with small_limits(LARGE_PARTITION_BYTES=1 << 40, LEAST_GAP_BYTES=1 << 40):
                expected = RoundTasks(threads, map_bytes, map_bytes)(storage, work)
            assert described(storage, found) == described(storage, expected)
            if map_bytes == MIB:  # maps of slices are full at other records than a single map
                assert described(storage, found) == described(storage, ONE_TASK(storage, work))
            rows = [one for group in found.groups for one in group.outputs or group.inputs]
            rows += [one for one in work.live if one.base_offset >= rows[-1].next_offset] if rows else work.live
            dirty = found.end_offset
    assert not [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


@pytest.mark.cases(2)
@pytest.mark.parametrize("window_bytes", [150, 400, 1000])
@pytest.mark.parametrize("codec", [0, 1], ids=["plain", "nested"])
def test_threads_put_messages_of_the_old_magics_into_the_batches_of_one_thread(log, tmp_path, codec, window_bytes):
    """Which messages become a batch depends on the window that they are read with."""
    parts = [(base, "abcdefgh"[base % 5 :] + "aab", base // 10 % 3) for base in range(0, 600, 11)]
    batches = [keyed(base, keys, magic, codec if magic < 2 else 0) for base, keys, magic in parts]
    segments = [SegmentOf(some[0].first, tuple(some)) for some in (batches[:30], batches[30:])]
    write_partition(tmp_path / "kafka", [*segments, each(700, [700])])
    log.import_kafka(str(tmp_path / "kafka"), config={"cleanup.policy": "compact"})
    snapshot = log.topic(KAFKA_TOPIC).snapshot
    cleaning = CleanerSettings(KAFKA_TOPIC, snapshot.topic_id, {}, START_MS, MIB, 0.9)
    rows = live(log, KAFKA_TOPIC)[:-1]
    work = RoundPlan(cleaning, log.topic(KAFKA_TOPIC).config, snapshot.partition(0), rows, 0, 700)
    with small_windows(window_bytes):
        found, expected = RoundTasks(3, MIB, MIB)(log.storage, work), ONE_TASK(log.storage, work)
    assert described(log.storage, found) == described(log.storage, expected)
    assert found.stats.superseded > 0 and len(found.groups[0].outputs) == 1


@pytest.fixture
def prices(tmp_path) -> LogDir:
    """A partition whose sealed segment has some 40 batches of a few records, most of them with superseded records."""
    log = LogDir.create(str(tmp_path / "log"), defaults={"log.cleaner.threads": "3"})
    log.create_topic(TOPIC, 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    for turn in range(5):
        keys = [f"k{number % 30 + 7 * turn}" for number in range(40)]
        values = [None if number % 9 == turn else f"{turn}-{number}" * 9 for number in range(40)]
        log.topic(TOPIC).append(pa.table({"key": keys, "value": values}), options=ProducerOptions("none", 300))
    roll(log, now_ms=log.storage.now_ms() + LATER_MS)
    log.topic(TOPIC).append(pa.table({"key": ["active"], "value": ["v"]}))
    return log


@pytest.mark.cases(1)
@pytest.mark.parametrize("buffer_bytes", [MIB, 8000], ids=["windows of the notes", "windows one after the other"])
def test_a_byte_that_the_second_reading_gets_wrong_leaves_no_file_and_no_thread(prices, buffer_bytes):
    """A buffer of 8,000 bytes has room for a map of all keys, and not for notes of all batches."""
    (segment, _), before = live(prices, TOPIC), files(prices)
    reads, wrong, noticed = count(1), 0, 0

    def flipped(path: str, go: Callable[[], pa.Buffer]) -> pa.Buffer:
        found = go()
        if not path.endswith(segment.path) or next(reads) != wrong:
            return found
        data = bytearray(found)
        data[len(data) // 2] ^= 1
        return pa.py_buffer(data)

    defaults = {**prices.defaults, "log.cleaner.dedupe.buffer.size": str(buffer_bytes)}
    misread = opened(prices, PlayedFiles(read=flipped), defaults=defaults)
    with small_windows(2000), small_limits(MIN_SLICE_BYTES=MIB, NOTES_BYTES=1):  # one thread does the first pass
        while True:
            wrong, reads = wrong + 1, count(1)
            failed = compact(misread).failed
            if next(reads) <= wrong:
                break
            noticed += 1
            assert "CRC-32C" in str(failed) and segment.path in str(failed)
            assert files(prices) == before
            assert not [thread for thread in threading.enumerate() if thread.name == "read-ahead"]
    assert noticed >= 8, "some of each pass"
    assert live(prices, TOPIC)[0] != segment


def files(log: LogDir) -> set[str]:
    return {info.path for info in log.storage.list(f"{TOPIC}-0")}


class Dying(LocalFiles):
    """Local files of a process that dies at one of its changes of files: at a new file, at a write, or at a deletion.

    `room` is how many changes it has left. A file that was being written keeps what was written.
    """

    def __init__(self, room: int) -> None:
        self.room = room

    def _change(self) -> None:
        self.room -= 1
        if self.room < 0:
            raise KeyboardInterrupt

    def stream(self, path: str, *, unique: bool = False) -> Any:
        self._change()
        file = super().stream(path)
        file.raw.write = self._counted(file.raw.write)
        return file

    def _counted(self, write: Any) -> Any:
        def counted(data: Any) -> Any:
            self._change()
            return write(data)

        return counted

    def delete(self, paths: Sequence[str]) -> None:
        self._change()
        super().delete(paths)


@pytest.mark.proof
def test_a_process_that_dies_at_any_change_of_a_file_leaves_the_old_log_or_the_new_and_vacuum_takes_the_rest(
    prices, tmp_path
):
    week_ago = (prices.storage.now_ms() - ORPHAN_AGE_MS) / 1000 - 1
    before, changes, is_dead, left = contents(prices, TOPIC), 0, True, 0
    with small_windows(2000):
        whole = LogDir.open(str(shutil.copytree(tmp_path / "log", tmp_path / "whole")), defaults=prices.defaults)
        compact(whole)
        while is_dead:
            copy = shutil.copytree(tmp_path / "log", tmp_path / f"copy-{changes}")
            dying = opened(copy, Dying(changes), defaults=prices.defaults)
            is_dead = False
            try:
                compact(dying)
            except KeyboardInterrupt:
                is_dead = True
            log = LogDir.open(str(copy), defaults=prices.defaults)
            assert contents(log, TOPIC) in (before, contents(whole, TOPIC))
            for path in files(log):
                os.utime(Path(log.uri) / path, (week_ago, week_ago))
            compact(log)
            assert contents(log, TOPIC) == contents(whole, TOPIC)
            found = len(files(log))
            vacuum(log, now_ms=log.storage.now_ms() + LATER_MS)
            left = max(left, found - len(files(log)))
            assert files(log) == {path for row in live(log, TOPIC) for path in _paths(row)}
            assert verify(log, deep=True).ok
            changes += 1
    assert changes >= 6 and left >= 3


def _paths(row: Segment) -> list[str]:
    return [row.path, row.index_path, row.time_index_path]


def work_on(log: LogDir, segment: Segment, first_dirty_offset: int = 0) -> RoundPlan:
    """A round that cleans one segment."""
    cleaning = CleanerSettings(TOPIC, segment.topic_id, {}, START_MS, MIB, 0.9)
    row = log.topic(TOPIC).snapshot.partition(0)
    return RoundPlan(cleaning, log.topic(TOPIC).config, row, [segment], first_dirty_offset, segment.next_offset)


def test_windows_wait_in_bounded_memory_however_slow_the_writer_is(prices, monkeypatch):
    window_bytes, threads = 400, 3
    sizes, used, most_bytes = list[int](), 0, 0
    windows_in, add = SegmentFile.windows_in, group_rewrite.GroupRewrite.add

    def counted(file: SegmentFile, *arguments: Any, **options: Any) -> Iterator[Window]:
        for window in windows_in(file, *arguments, **options):
            sizes.append(window.data.size)
            yield window

    def slow(self: Any, segment: Segment, cleaned: Any) -> None:
        nonlocal used, most_bytes
        used += 1
        for _ in range(200):
            os.sched_yield()  # the threads can run on
        most_bytes = max(most_bytes, sum(sizes[used:]))
        add(self, segment, cleaned)

    monkeypatch.setattr(SegmentFile, "windows_in", counted)
    monkeypatch.setattr(group_rewrite.GroupRewrite, "add", slow)
    with small_windows(window_bytes):
        RoundTasks(threads, MIB, MIB)(prices.storage, work_on(prices, live(prices, TOPIC)[0]))
    assert len(sizes) == used and sum(sizes) > 20 * window_bytes
    # What waits, a window that each thread cleans, and one more of the piece that comes next.
    assert window_bytes < most_bytes <= 2 * window_bytes * threads + (threads + 1) * max(sizes)
    assert most_bytes < sum(sizes) / 2


@pytest.mark.parametrize(
    ("mib", "slots", "threads"),
    [
        ([1000], 2, [2]),
        ([1000], 1, [1]),
        ([200], 2, [1]),
        ([1000, 900], 2, [1, 1]),
        ([10, 1000, 10, 20], 2, [1, 2, 1, 1]),
        ([1000, 1000], 4, [4, 4]),
    ],
)
def test_a_group_that_the_other_threads_would_wait_for_is_cleaned_by_all(mib, slots, threads):
    groups = [[one] for one in run([size * MIB for size in mib])]
    tasks = RoundTasks(slots, MIB, MIB).second_pass(groups, 0, NotedBatches(0), None)
    assert [task.groups for task in tasks] == [[group] for group in groups]
    assert [task.threads for task in tasks] == threads
    assert [task.first for task in tasks] == list(range(len(groups)))


def test_an_error_names_the_damaged_batch_as_one_thread_does(prices):
    (segment, _), errors = live(prices, TOPIC), []
    path = Path(prices.uri) / segment.path
    data = bytearray(path.read_bytes())
    data[segment.log_bytes // 2] ^= 1
    path.write_bytes(data)
    work = work_on(prices, segment, segment.next_offset)  # the first pass reads nothing
    for clean in (ONE_TASK, RoundTasks(3, MIB, MIB)):
        with small_windows(2000), pytest.raises(CorruptBatchError) as found:
            clean(prices.storage, work)
        errors.append(str(found.value))
    assert errors[0] == errors[1]
    assert "CRC-32C" in errors[0]
