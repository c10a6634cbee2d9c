"""Statements of strangers: a process with a bound of time and of memory, whatever DuckDB does within one vector."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.duckdb import TopicDatabase
from spark_segments.errors import QueryError, UnknownTopicError
from verification.world.clock import PATIENCE_SECONDS

RUN = "from spark_segments.cli import main; main()"
WITHIN_A_VECTOR = "SELECT levenshtein(repeat('a', 300000), repeat('b', 300000))"


@pytest.fixture
def log(tmp_path):
    made = LogDir.create(str(tmp_path))
    made.create_topic("orders")
    made.topic("orders").append([{"key": str(number), "value": str(number)} for number in range(50_000)])
    return made


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()}


def test_rows_and_errors_come_from_the_other_process(log):
    before = children()  # of other tests
    with TopicDatabase(log, safe=True, seconds=60) as database:
        rows = database.sql('SELECT decode(value) AS v, "offset" FROM orders').to_table()
        assert rows.column("v").to_pylist() == [str(number) for number in range(50_000)]
        database.sql("CREATE TABLE kept AS SELECT 5 AS five")
        assert database.sql("SELECT five FROM kept").to_table().to_pylist() == [{"five": 5}]
        with pytest.raises(QueryError, match="nothing"):
            database.sql("SELECT * FROM nothing")
        with pytest.raises(QueryError):
            database.sql("COPY orders TO '/tmp/file.csv'")
        assert database.sql("SELECT count(*) AS n FROM orders").to_table().to_pylist() == [{"n": 50_000}]
    assert children() <= before


def test_a_statement_within_one_vector_ends_in_time(log):
    with TopicDatabase(log, safe=True, seconds=1) as database:
        database.sql("SELECT 1").to_table()
        with pytest.raises(QueryError, match="takes too long: expected 1 seconds at most"):
            database.sql(WITHIN_A_VECTOR).to_table()
        assert database.sql("SELECT count(*) AS n FROM orders").to_table().to_pylist() == [{"n": 50_000}]


def test_a_statement_that_takes_all_memory_ends(log):
    with TopicDatabase(log, safe=True, seconds=120, memory_bytes=512 << 20) as database:
        with pytest.raises(QueryError, match=r"(?i)memory"):
            database.sql("SELECT len(list_sort(range(200000000)))").to_table()
        assert database.sql("SELECT 1 AS one").to_table().to_pylist() == [{"one": 1}]


@pytest.fixture
def interrupts():
    """SIGINT is Python's, here and in processes that begin meanwhile: a shell's background process ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_statement_within_one_vector_and_its_process(log, interrupts):
    before = children()
    with TopicDatabase(log, safe=True, seconds=600) as database:
        database.sql("SELECT 1").to_table()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            database.sql(WITHIN_A_VECTOR).to_table()
        assert children() <= before


def test_the_error_of_a_topic_is_its_own(log):
    log.topic("orders").manifest.snapshot()
    [path] = Path(log.uri, "orders-0").glob("*.log")
    path.write_bytes(b"")
    with TopicDatabase(log, seconds=60) as database, pytest.raises(Exception) as found:
        database.sql("SELECT * FROM orders").to_table()
    assert not isinstance(found.value, QueryError | UnknownTopicError)


def cpu_seconds(pid: int) -> float:
    """The seconds of a core that a process has used."""
    _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_ctrl_c_ends_the_command_within_one_vector(log, interrupts, tmp_path):
    """It runs statements in its own process, which then ends as a whole."""
    begun = tmp_path / "begun.csv"  # written by the statement before
    command = subprocess.Popen(
        [sys.executable, "-c", RUN, "sql", log.uri, f"COPY (SELECT 1) TO '{begun}'; {WITHIN_A_VECTOR}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        used_before = None
        # The vector takes minutes of a core, and what comes before it a few milliseconds.
        while used_before is None or cpu_seconds(command.pid) < used_before + 1:
            assert command.poll() is None and time.monotonic() < deadline
            if used_before is None and begun.exists():
                used_before = cpu_seconds(command.pid)
            time.sleep(0.01)
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE_SECONDS) == 130
    finally:
        command.kill()
        command.communicate()
