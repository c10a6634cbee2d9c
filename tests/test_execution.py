"""Tasks in this process and on Spark: the same results in the same order, and the same errors."""

from __future__ import annotations

import importlib
import os
import pickle
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import SparkConf, cloudpickle

import spark_segments
from spark_segments import execution
from spark_segments.errors import CorruptBatchError, StorageError, VersionMismatchError
from spark_segments.execution import (
    TaskEndedError,
    Versioned,
    check_wanted,
    run_tasks,
    slots_of_a_process,
    task_slots,
    try_tasks,
)
from verification.world.clock import PATIENCE_SECONDS


@dataclass(frozen=True)
class Square:
    fails_at: int = -1

    def __call__(self, number: int) -> int:
        if number == self.fails_at:
            raise CorruptBatchError("bad", path="a.log", byte_position=number, hint="mend it")
        return number * number


@pytest.fixture(params=["process", "spark"])
def session(request):
    return request.getfixturevalue("spark") if request.param == "spark" else None


def test_results_come_in_the_order_of_the_tasks(session):
    steps: list[tuple[int, int]] = []
    tasks = [*range(20, 0, -1)]
    found = run_tasks(Square(), tasks, session, progress=lambda done, total: steps.append((done, total)))
    assert found == [number * number for number in tasks]
    assert steps == [(done, 20) for done in range(1, 21)]


def test_an_error_of_a_task_is_the_same_error_here(session):
    with pytest.raises(CorruptBatchError) as caught:
        run_tasks(Square(fails_at=7), range(10), session)
    assert (caught.value.path, caught.value.byte_position, caught.value.hint) == ("a.log", 7, "mend it")


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def test_a_file_that_is_missing_is_the_same_error_here(session, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        run_tasks(read, [str(tmp_path / "missing")], session)
    assert caught.value.filename == str(tmp_path / "missing")


def test_tasks_that_fail_have_their_errors_for_results(session, tmp_path):
    first, bad, last = try_tasks(Square(fails_at=7), [6, 7, 8], session)
    assert (first, last) == (36, 64)
    assert isinstance(bad, CorruptBatchError) and (bad.path, bad.byte_position) == ("a.log", 7)
    (missing,) = try_tasks(read, [str(tmp_path / "missing")], session)
    assert isinstance(missing, StorageError) and missing.path == str(tmp_path / "missing")


def test_errors_of_programming_are_raised_whatever_is_tried():
    with pytest.raises(TypeError):
        try_tasks(len, [[], 5])


def test_no_tasks_are_no_work():
    assert run_tasks(Square(), []) == []


def test_on_spark_each_task_is_a_partition(spark):
    found = run_tasks(_Partition(), range(9), spark)
    assert sorted(found) == [*range(9)]


@dataclass(frozen=True)
class _Partition:
    def __call__(self, number: int) -> int:
        from pyspark import TaskContext

        return TaskContext.get().partitionId()


def test_no_more_tasks_run_at_a_time_than_asked_for():
    running, most = set(), []
    lock, both = threading.Lock(), threading.Barrier(3)

    def work(number: int) -> None:
        with lock:
            running.add(number)
            most.append(len(running))
        both.wait(timeout=PATIENCE_SECONDS)  # passes only where three run at once
        with lock:
            running.discard(number)

    run_tasks(work, range(9), at_a_time=3)
    assert max(most) == 3


def test_slots_are_cores_here_and_parallelism_there(spark):
    assert task_slots(None) == os.cpu_count()
    assert task_slots(spark) == spark.sparkContext.defaultParallelism
    assert slots_of_a_process(spark) == min(spark.sparkContext.defaultParallelism, os.cpu_count())


@pytest.mark.parametrize(
    ("master", "settings", "slots"),
    [
        ("yarn", {"spark.executor.cores": "4"}, 4),
        ("yarn", {"spark.executor.cores": "4", "spark.task.cpus": "2"}, 2),
        ("yarn", {"spark.executor.cores": "4", "spark.executor.pyspark.memory": "2g"}, 1),
        ("k8s://https://host", {}, 1),
        ("local-cluster[2,3,1024]", {"spark.executor.cores": "3"}, 3),
    ],
)
def test_an_executor_has_as_many_slots_as_its_settings_say(master, settings, slots):
    """No cluster is started: a session's settings alone say it."""
    conf = SparkConf(loadDefaults=False, _jvm=None).setAll(list(settings.items()))
    session = SimpleNamespace(sparkContext=SimpleNamespace(master=master, getConf=lambda: conf))
    assert slots_of_a_process(session) == slots


def test_a_session_that_does_not_say_its_cluster_has_executors_of_one_slot():
    assert slots_of_a_process(SimpleNamespace()) == 1


class _Message(Versioned):
    def __init__(self, value: object) -> None:
        self.value = value


def _refused() -> None:
    raise AssertionError("unpickled before the version was checked")


class _Unpickled:
    def __reduce__(self) -> tuple[object, ...]:
        return _refused, ()


def test_a_message_of_another_version_is_refused_before_what_it_carries_is_read(monkeypatch):
    assert pickle.loads(pickle.dumps(_Message(7))).value == 7
    message = pickle.dumps(_Message(_Unpickled()))
    monkeypatch.setattr(execution, "__version__", "9.9.9")
    with pytest.raises(VersionMismatchError) as refused:
        pickle.loads(message)
    for text in ("expected 9.9.9", f"found {spark_segments.__version__}", "Install the same version"):
        assert text in str(refused.value)


class _Cluster:
    """Stands for a Spark session whose executors have `version`. What is sent is pickled, as Spark does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str, *, upgraded_meanwhile: bool = False) -> None:
        self._patch, self._version, self._upgraded = monkeypatch, version, upgraded_meanwhile
        self.ran: list[int] = []

    def createDataFrame(self, rows, schema):
        self._rows = rows
        return self

    def repartitionByRange(self, *_):
        return self

    def mapInArrow(self, work, schema):
        self._work = cloudpickle.dumps(work)
        return self

    def collect(self):
        numbers, tasks = zip(*self._rows, strict=True)
        batch = pa.record_batch({"number": pa.array(numbers, pa.int32()), "task": pa.array(tasks, pa.binary())})
        with self._patch.context() as executor:
            executor.setattr(execution, "__version__", self._version)
            results = [row for found in pickle.loads(self._work)([batch]) for row in found.to_pylist()]
        self.ran = [row["number"] for row in results]
        if self._upgraded:
            self._patch.setattr(execution, "__version__", "9.9.9")
        return results


def test_tasks_are_refused_by_an_executor_of_another_version(monkeypatch):
    cluster = _Cluster(monkeypatch, "9.9.9")
    with pytest.raises(VersionMismatchError, match=r"expected 9\.9\.9.*found " + spark_segments.__version__):
        run_tasks(Square(), [1, 2], cluster)
    assert cluster.ran == []
    assert run_tasks(Square(), [1, 2], _Cluster(monkeypatch, spark_segments.__version__)) == [1, 4]


def test_results_of_another_version_are_refused_by_the_driver(monkeypatch):
    cluster = _Cluster(monkeypatch, spark_segments.__version__, upgraded_meanwhile=True)
    with pytest.raises(VersionMismatchError, match="Install the same version"):
        run_tasks(Square(), [1, 2], cluster)
    assert cluster.ran == [0, 1]


SENT = {
    "reader": ["Reader", "RangesPartition"],
    "row_writer": ["RowWriter", "ChunksMessage"],
    "streams.stream_reader": ["StreamPartition"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in SENT.items() for name in names])
def test_what_spark_sends_carries_the_version(monkeypatch, module, name):
    kind = getattr(importlib.import_module(f"spark_segments.spark.{module}"), name)
    sent = kind.__new__(kind)
    sent.__dict__.update(_snapshots={})
    message = pickle.dumps(sent)
    assert type(pickle.loads(message)) is kind
    monkeypatch.setattr(execution, "__version__", "9.9.9")
    with pytest.raises(VersionMismatchError):
        pickle.loads(message)


def test_a_long_task_ends_with_the_interrupt_of_its_caller():
    begun, ended, never = threading.Event(), threading.Event(), threading.Event()

    def work(is_long: bool) -> None:
        if not is_long:
            assert begun.wait(PATIENCE_SECONDS)
            return
        begun.set()
        try:
            for _ in range(int(PATIENCE_SECONDS * 1000)):
                check_wanted()
                never.wait(0.001)
        except TaskEndedError:
            ended.set()
            raise

    def progress(done: int, tasks: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(work, [True, False], progress=progress, at_a_time=2)
    assert ended.is_set()
