"""What makes tasks quick in a worker that Spark uses again and again: no Spark here."""

from __future__ import annotations

import gc
import subprocess
import sys

import pyarrow as pa
import pytest

from spark_segments.spark.batches import MIN_BATCH_BYTES, merged, watched
from spark_segments.spark.source import Source
from spark_segments.spark.worker import freeze_imports

SCHEMA = pa.schema([pa.field("value", pa.binary()), pa.field("offset", pa.int64(), nullable=False)])


def batch(rows, start, value=b"x" * 92):
    return pa.record_batch({"value": pa.array([value] * rows, pa.binary()), "offset": range(start, start + rows)})


@pytest.fixture
def thawed():
    freeze_imports.cache_clear()
    yield
    gc.unfreeze()
    freeze_imports.cache_clear()


def test_what_was_imported_is_out_of_later_garbage_collections(thawed):
    freeze_imports()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000 and len(gc.get_objects()) < frozen


@pytest.mark.proof
def test_only_the_first_task_of_a_worker_freezes(thawed):
    freeze_imports()
    frozen = gc.get_freeze_count()
    later = [[] for _ in range(1000)]
    freeze_imports()
    assert gc.get_freeze_count() <= frozen and len(later) == 1000


@pytest.mark.proof
def test_processes_that_plan_reads_freeze_too(thawed, log):
    log.create_topic("orders")
    Source({"path": log.uri, "subscribe": "orders"})
    assert gc.get_freeze_count() > 10_000


def test_small_batches_are_put_together_and_keep_their_order():
    found = list(merged((batch(10, start) for start in range(0, 30_000, 10)), SCHEMA))
    assert len(found) == 3 and all(one.schema == SCHEMA for one in found)
    assert all(one.nbytes >= MIN_BATCH_BYTES for one in found[:-1])
    assert [n for one in found for n in one.column("offset").to_pylist()] == list(range(30_000))


def test_large_batches_pass_without_a_copy():
    large = batch(20_000, 0)
    (found,) = merged([batch(0, 0), large], SCHEMA)
    assert found.column("value").buffers()[2].address == large.column("value").buffers()[2].address
    assert list(merged([], SCHEMA)) == []


def test_batches_of_one_schema_need_no_other():
    found = list(merged(batch(10, start) for start in range(0, 200, 10)))
    assert [one.schema for one in found] == [batch(1, 0).schema] and found[0].num_rows == 200


def test_a_large_batch_is_warned_of_once(limits, caplog):
    limits(LARGE_BATCH_BYTES=10_000)
    batches = [batch(10, 0), batch(1000, 10), batch(1000, 1010)]
    assert list(watched(batches)) == batches
    (message,) = caplog.messages
    assert "1000 rows of 0 MiB" in message and "spark.sql.execution.arrow.maxBytesPerBatch" in message


# Spark starts a process for each of these, and each waits for its imports at its first call.
WRITE = """
from pyspark.sql.types import StringType, StructType
writer = DefaultSource({"path": uri, "topic": "t"}).writer(StructType().add("value", StringType()), False)
"""
LOAD = 'loaded = DefaultSource({"path": uri, "subscribe": "t"})\n'
READ = """
source = DefaultSource({"path": uri, "subscribe": "t"})
reader = source.reader(source.schema())
pickled = pickle.dumps((reader, reader.partitions()[0]))
"""
TASK = """
reader, work = pickle.loads(bytes.fromhex(pickled))
assert sum(batch.num_rows for batch in reader.read(work)) == 1
"""
STREAMS = ("spark_segments.spark.streams.stream_reader", "spark_segments.spark.streams.stream_writer")
READING = ("spark_segments.spark.reader", "spark_segments.log.reading.scan_plan")
WRITING = ("spark_segments.spark.row_writer", "spark_segments.spark.row_writer")
VALUES = ("spark_segments.values.batches", "spark_segments.values.avro.read", "pandas")


def imported(program: str, *arguments: str) -> tuple[set[str], str]:
    """The modules of a new process after a program, and what it has pickled."""
    head = "import pickle, sys\nfrom pyspark_segments import DefaultSource\nuri, pickled = sys.argv[1], sys.argv[2]\n"
    tail = "print(*sys.modules)\nprint(pickled.hex() if isinstance(pickled, bytes) else '')\n"
    command = [sys.executable, "-c", head + program + tail, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules, pickled = done.stdout.splitlines()
    return set(modules.split()), pickled


@pytest.mark.proof
def test_a_process_of_a_write_imports_nothing_of_reads_and_streams(log):
    log.create_topic("t")
    modules, _ = imported(WRITE, log.uri, "")
    assert not modules & {*STREAMS, *READING, *VALUES}


@pytest.mark.proof
def test_a_process_of_a_load_imports_neither_reader_nor_writer(log):
    log.create_topic("t")
    modules, _ = imported(LOAD, log.uri, "")
    assert not modules & {*STREAMS, *READING, *WRITING, *VALUES}


@pytest.mark.proof
def test_a_task_of_a_read_imports_no_formats_of_values_unless_it_decodes_them(log):
    log.create_topic("t")
    log.topic("t").append([{"value": b"v"}])
    _, pickled = imported(READ, log.uri, "")
    modules, _ = imported(TASK, log.uri, pickled)
    assert not modules & {*STREAMS, *WRITING, *VALUES}
