"""What many tasks, many jobs and crashes do to a log: every row once, in order and without gaps, or nothing at all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from kafka.partitioner.default import murmur2
from pyspark.errors import PySparkException

from verification.world.clock import PATIENCE_SECONDS

TASKS = 8
ROWS = 250_000
PARTITIONS = 6
KEYS = 5_000


def write(spark, log, job):
    """Row n of a job: key k<n mod KEYS>, value the eight bytes of job · 2³² + n; a task has an eighth of the rows."""
    frame = spark.range(0, ROWS, 1, TASKS).selectExpr(
        f"concat('k', id % {KEYS}) as key", f"unhex(lpad(hex(id + {job << 32}), 16, '0')) as value"
    )
    frame.write.format("segments").mode("append").option("topic", "orders").save(log.uri)


def check(spark, log, jobs):
    """Every row of every job once, dense offsets, order of rows within tasks and of tasks, the partitioner's choice."""
    frame = spark.read.format("segments").schema("partition int, offset long, key binary, value binary")
    table = frame.option("subscribe", "orders").load(log.uri).toArrow()
    partition, offset = table.column("partition").to_numpy(), table.column("offset").to_numpy()
    order = np.lexsort((offset, partition))
    partition, offset = partition[order], offset[order]
    keys = table.column("key").combine_chunks().dictionary_encode()
    names, key = [name.decode() for name in keys.dictionary.to_pylist()], keys.indices.to_numpy()[order]
    value = np.array(b"".join(table.column("value").to_pylist())).reshape(1).view(">i8").astype(np.int64)[order]
    job, number = value >> 32, value & 0xFFFFFFFF

    assert np.array_equal(np.sort(value), ((np.arange(1, jobs + 1)[:, None] << 32) + np.arange(ROWS)).ravel())
    assert np.array_equal(np.array([int(name[1:]) for name in names])[key], number % KEYS)
    picked = np.array([(murmur2(name.encode()) & 0x7FFFFFFF) % PARTITIONS for name in names])
    assert np.array_equal(picked[key], partition)
    for one in range(PARTITIONS):
        here = partition == one
        assert np.array_equal(offset[here], np.arange(here.sum()))
        # The rows of a job are one run, by task and row: their numbers rise until the next job's run begins.
        begins = np.flatnonzero(np.diff(job[here]))
        falls = np.flatnonzero(np.diff(number[here]) <= 0)
        assert len(begins) == jobs - 1 and set(falls) <= set(begins)


@pytest.mark.proof
def test_a_million_rows_of_four_jobs_two_of_them_at_once(spark, log):
    log.create_topic("orders", partitions=PARTITIONS)
    write(spark, log, 1)
    write(spark, log, 2)
    failures = []

    def job(number):
        try:
            spark.createDataFrame([], "n int")  # makes it this thread's session, where Spark looks for data sources
            write(spark, log, number)
        except Exception as error:  # the main thread's to raise
            failures.append(error)

    threads = [threading.Thread(target=job, args=(number,)) for number in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    check(spark, log, jobs=4)


def test_a_commit_that_is_refused_leaves_the_log_as_it_was(spark, log):
    """The topic is made anew while the tasks write: their chunks belong to one that is gone."""
    log.create_topic("orders", partitions=2)
    uri = log.uri

    def make_the_topic_anew(numbers):
        from spark_segments import LogDir

        yield from ((str(number),) for number in numbers)
        there = LogDir.open(uri)
        there.delete_topic("orders")
        there.create_topic("orders", partitions=2)

    rows = spark.sparkContext.parallelize(range(1000), 1).mapPartitions(make_the_topic_anew)
    frame = spark.createDataFrame(rows, "value string")
    with pytest.raises(PySparkException, match=r"CommitConflictError.*deleted and made again"):
        frame.write.format("segments").mode("append").option("topic", "orders").save(uri)
    assert log.topic("orders").offsets() == {0: (0, 0), 1: (0, 0)}
    assert log.storage.list("orders-0") or log.storage.list("orders-1")  # the files are vacuum's


KILLED_JOB = """
import socket, sys
from spark_segments.spark.session import spark_session
uri, port = sys.argv[1], int(sys.argv[2])
def hang_in_the_last_task(batches):
    for batch in batches:
        yield batch
        if batch.column(0)[0].as_py() == "1000":
            socket.create_connection(("127.0.0.1", port)).recv(1)
spark = spark_session("killed", master="local[1]", config={"spark.ui.enabled": "false"})
frame = spark.range(0, 2000, 1, 2).selectExpr("cast(id as string) as value")
frame = frame.mapInArrow(hang_in_the_last_task, "value string")
frame.write.format("segments").mode("append").option("topic", "orders").save(uri)
"""


@pytest.mark.spark
def test_a_job_killed_between_its_files_and_its_commit_leaves_the_log_as_it_was(log, python_environment):
    log.create_topic("orders")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_SECONDS)
        command = [sys.executable, "-c", KILLED_JOB, log.uri, str(server.getsockname()[1])]
        job = subprocess.Popen(command, env=python_environment, start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            hanging, _ = server.accept()  # the first task is done, the second has all of its rows
        finally:
            os.killpg(job.pid, signal.SIGKILL)
        hanging.close()
        assert job.wait() == -signal.SIGKILL
    assert [info.path for info in log.storage.list("orders-0") if info.path.endswith(".log")]
    assert log.topic("orders").offsets() == {0: (0, 0)}
    assert not list(log.topic("orders").scan().batches())
