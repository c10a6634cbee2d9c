"""The read-ahead: the caller sees what one thread would give, and pays for no more than the bound."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir, ProducerOptions
from spark_segments.ahead import read_ahead
from spark_segments.errors import CorruptBatchError, InvalidOptionError
from spark_segments.log.reading import scan
from tests.examples import examples
from verification.world.clock import PATIENCE_SECONDS
from verification.world.kafka_bytes.segment_bytes import RECORD_SCHEMA


def batch(number: int, rows: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"number": pa.array([number] * rows, pa.int64())})


def piece(numbers: list[int]) -> Iterator[pa.RecordBatch]:
    return (batch(number) for number in numbers)


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [one.column(0)[0].as_py() for one in batches]


def ahead_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


@examples(50)
@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 5), st.integers(1, 100))
def test_batches_come_in_the_order_of_their_pieces(sizes, threads, most_bytes):
    parts = [[100 * number + at for at in range(size)] for number, size in enumerate(sizes)]
    found = numbers(read_ahead([partial(piece, part) for part in parts], threads, most_bytes=most_bytes))
    assert found == [number for part in parts for number in part]
    assert not ahead_threads()


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_is_raised_in_its_place(threads):
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise CorruptBatchError("bad", path="x.log")

    batches = read_ahead([partial(piece, [0]), failing, partial(piece, [2])], threads)
    assert numbers(next(batches) for _ in range(2)) == [0, 1]
    with pytest.raises(CorruptBatchError, match="bad"):
        next(batches)
    assert not ahead_threads()


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_of_the_plan_comes_after_the_pieces_before_it(threads):
    def plan() -> Iterator[partial]:
        yield partial(piece, [0, 1])
        raise FileNotFoundError("an index")

    batches = read_ahead(plan(), threads)
    assert numbers(next(batches) for _ in range(2)) == [0, 1]
    with pytest.raises(FileNotFoundError):
        next(batches)


def test_nothing_is_read_before_the_first_batch_is_asked_for():
    asked = []
    batches = read_ahead((asked.append(number) or partial(piece, [number]) for number in range(3)), 2)
    assert not asked and not ahead_threads()
    assert numbers(batches) == [0, 1, 2]


@pytest.mark.parametrize("end", ["close", "lose"])
def test_a_reader_that_stops_early_leaves_no_thread_and_no_open_piece(end):
    closed = []

    def counted(number: int) -> Iterator[pa.RecordBatch]:
        try:
            for at in range(1000):
                yield batch(number * 1000 + at)
        finally:
            closed.append(number)

    batches = read_ahead((partial(counted, number) for number in range(1000)), 3, most_bytes=100)
    next(batches)
    batches.close() if end == "close" else None
    del batches
    assert not ahead_threads()
    assert 1 <= len(closed) <= 3


def test_what_waits_is_bounded_however_slow_the_caller_is():
    made = 0
    lock = threading.Lock()

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal made
        for _ in range(50):
            with lock:
                made += 1
            yield batch(0, rows=1000)  # 8,000 bytes

    used = 0
    for _ in read_ahead([counted] * 40, 3, most_bytes=80_000):
        used += 1
        # 10 batches wait, and each of 3 threads holds one more; the first piece may have one waiting beside them.
        assert made <= used + 10 + 3 + 1
    assert used == made == 2000


def test_pieces_without_records_do_not_let_it_run_ahead_without_end():
    taken = 0

    def plan() -> Iterator[partial]:
        nonlocal taken
        for number in range(10_000):
            taken += 1
            yield partial(piece, [number] if number % 5000 == 0 else [])

    batches = read_ahead(plan(), 2)
    next(batches)
    for _ in range(1000):
        time.sleep(0)  # the threads could run
    assert taken <= 1 + 2 * 4 + 2
    batches.close()


@pytest.mark.proof
def test_a_process_ends_while_a_reader_is_half_read(tmp_path):
    """Threads stop before the interpreter does; a reader that is lost only then does not wait for them."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 4)
    log.topic("t").append(
        pa.table({"value": [bytes(100)] * 1000, "partition": pa.array([0, 1, 2, 3] * 250, pa.int32())})
    )
    program = (
        "import sys; from spark_segments import LogDir; log = LogDir.open(sys.argv[1])\n"
        "stream = log.topic('t').scan().to_reader(threads=3); stream.read_next_batch()\n"
        "batches = log.topic('t').scan().batches(threads=3); print(next(batches).num_rows)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.stdout, done.stderr, done.returncode) == ("250\n", "", 0)


@pytest.fixture(scope="module")
def cut_log(tmp_path_factory) -> LogDir:
    """A partition of many chunks of many batches, and a topic of three partitions."""
    log = LogDir.create(str(tmp_path_factory.mktemp("ahead") / "log"))
    for topic, partitions in (("one", 1), ("three", 3)):
        log.create_topic(topic, partitions, {"index.interval.bytes": "100", "segment.bytes": "20000"})
        for first in range(0, 900, 300):
            values = [b"%d" % number * (number % 40) for number in range(first, first + 300)]
            keys = [b"%d" % (number % 50) for number in range(first, first + 300)]
            rows = pa.table({"key": keys, "value": values})
            log.topic(topic).append(rows, options=ProducerOptions("zstd" if first else "none", 500))
    return log


def test_little_of_a_local_disk_is_read_without_threads(log, monkeypatch):
    log.create_topic("t", partitions=2)
    log.topic("t").append([{"value": b"v", "partition": number % 2} for number in range(10)])
    little = log.topic("t").scan()
    log.topic("t").append([{"value": os.urandom(1_000_000)} for _ in range(6)])
    much = log.topic("t").scan()
    asked = []
    monkeypatch.setattr("spark_segments.ahead.available_cores", lambda: 3)
    monkeypatch.setattr(
        "spark_segments.log.reading.scan.read_ahead", lambda _, threads, **__: asked.append(threads) or []
    )
    little.to_reader(), much.to_reader()
    assert asked == [1, 3]


@pytest.mark.cases(4)
@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("view", [None, "latest"])
@pytest.mark.parametrize("topic", ["one", "three"])
def test_threads_read_what_one_thread_reads(cut_log, topic, view, threads, limits):
    limits(PIECE_BYTES=700)  # of a file: pieces begin and end within batches
    for bounds in ((None, None), (0, 10), (123, 456), (299, 301), (800, 10_000), (10_000, None)):
        plain = list(cut_log.topic(topic).scan(offsets=bounds, view=view).batches())
        ahead = list(cut_log.topic(topic).scan(offsets=bounds, view=view).batches(threads))
        assert pa.Table.from_batches(ahead, RECORD_SCHEMA) == pa.Table.from_batches(plain, RECORD_SCHEMA)


def test_a_read_of_few_offsets_with_threads_reads_few_bytes(cut_log, monkeypatch, limits):
    limits(PIECE_BYTES=700)
    pieces = []
    monkeypatch.setattr(scan, "read_part", lambda storage, part: pieces.append(part) or iter([]))
    list(cut_log.topic("one").scan(partition=0, offsets=(400, 410)).batches(threads=2))
    assert sum(one.size_bytes for one in pieces) < 3000


def test_a_read_has_at_least_one_thread(cut_log):
    with pytest.raises(InvalidOptionError, match="threads"):
        cut_log.topic("one").scan().batches(threads=0)
