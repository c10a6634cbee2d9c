"""Running a job's tasks: on Spark's executors where there is a session, else in the calling process.

A task is a picklable value and the work a picklable function of it; results come back in the order of the tasks. What
travels between driver and executors carries the package's version: values with slots unpickle by the order of their
fields, and would take on another meaning in another version.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from spark_segments import __version__
from spark_segments.errors import RESTORE, SegmentsError, StorageError, VersionMismatchError
from spark_segments.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

_RESULT_SCHEMA = "number int, result binary"

SLOTS_OF_A_CLUSTER = 64  # assumed for a Spark Connect session, which does not say how large its cluster is


class _VersionStamp:
    """Unpickling this checks the version of the package, before anything that was pickled after it."""

    def __reduce__(self) -> tuple[object, ...]:
        return _check_version, (__version__,)


_STAMP = _VersionStamp()


class Versioned:
    """Base of values that travel between the driver and its executors, which must have the same version.

    Unpickling such a value in a process that has another version raises VersionMismatchError.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (_STAMP, type(self), self.__getstate__())


def _check_version(sender: str) -> _VersionStamp:
    if sender != __version__:
        raise VersionMismatchError(
            "Driver and executors have different versions of spark-segments",
            expected=f"{__version__}, which this process has",
            found=f"{sender}, which sent the message",
            hint="Install the same version on the driver and on all executors, and start the session again",
        )
    return _STAMP


def _rebuilt(_: _VersionStamp, kind: type[Versioned], state: dict[str, Any] | None) -> Versioned:
    value = kind.__new__(kind)
    value.__dict__.update(state or {})
    return value


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    spark: SparkSession | None = None,
    *,
    progress: Progress | None = None,
    at_a_time: int | None = None,
    size: Callable[[Task], int] | None = None,
) -> list[Result]:
    """`[function(task) for task in tasks]`, in parallel. `progress` is called with (tasks done, all tasks), or with the
    sums of their sizes where `size` gives one, such as bytes.

    In this process at most `at_a_time` tasks run at once, by default a thread for each core. On Spark the cluster
    bounds that, and each task is a partition of a DataFrame, so a Spark Connect session works too; results and progress
    come when all tasks are done. An error of a task is raised here as the task raised it.
    """
    if not tasks:
        return []
    results: dict[int, Result] = {}
    runner = _in_process(function, tasks, at_a_time) if spark is None else _on_spark(function, tasks, spark)
    sizes = [1] * len(tasks) if size is None else [size(task) for task in tasks]
    done, total = 0, sum(sizes)
    with contextlib.closing(runner):  # an interrupt may come in `progress`
        for number, result in runner:
            results[number] = result
            done += sizes[number]
            if progress is not None:
                progress(done, total)
    return [results[number] for number in range(len(tasks))]


def try_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    spark: SparkSession | None = None,
    *,
    progress: Progress | None = None,
    at_a_time: int | None = None,
    size: Callable[[Task], int] | None = None,
) -> list[Result | SegmentsError]:
    """As `run_tasks`, but a task that fails gives its error in place of its result, so the other results are kept.

    This holds for errors of this package, and for a missing file (as a StorageError). Any other error is raised.
    """
    return run_tasks(_Tried(function), tasks, spark, progress=progress, at_a_time=at_a_time, size=size)


@dataclass(frozen=True, slots=True)
class _Tried:
    """Task function: the result of another task function, or its error as a value."""

    function: Callable[[Any], Any]

    def __call__(self, task: Any) -> Any:
        try:
            return self.function(task)
        except (SegmentsError, FileNotFoundError) as error:
            return failure_of(error)


def failure_of(error: SegmentsError | FileNotFoundError) -> SegmentsError:
    """The error that a report shows. A FileNotFoundError becomes the error for a file that the log names."""
    if isinstance(error, SegmentsError):
        return error
    return StorageError("A file that the log names is missing", path=str(error.filename), hint=RESTORE)


def task_slots(spark: SparkSession | None) -> int:
    """About how many tasks run at a time."""
    if spark is None:
        return os.cpu_count() or 1
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except AttributeError:
        return SLOTS_OF_A_CLUSTER


def slots_of_a_process(spark: SparkSession) -> int:
    """How many tasks run at a time in an executor: the cores that a task may use where no other task runs. 1 where
    that is not known, and where each task's memory is limited by itself.
    """
    try:
        context = spark.sparkContext
    except AttributeError:  # Spark Connect
        return 1
    settings = context.getConf()
    if settings.get("spark.executor.pyspark.memory"):
        return 1
    if (context.master or "").partition("[")[0] == "local":
        return min(task_slots(spark), task_slots(None))
    cores = int(settings.get("spark.executor.cores") or 1)
    return max(1, cores // int(settings.get("spark.task.cpus") or 1))


class TaskEndedError(Exception):
    """Ends a task of this process whose result nobody waits for any more."""


_task = threading.local()


def check_wanted() -> None:
    """Raises TaskEndedError in a task of this process after Ctrl-C, or after another task failed. A long task asks
    between two batches, since the process waits for its threads before it ends.
    """
    ended = getattr(_task, "ended", None)
    if ended is not None and ended.is_set():
        raise TaskEndedError


def _run_in_thread(ended: threading.Event, function: Callable[[Any], Any], task: Any) -> Any:
    _task.ended = ended
    try:
        return function(task)
    finally:
        _task.ended = None


def _in_process(
    function: Callable[[Any], Any], tasks: Sequence[Any], at_a_time: int | None
) -> Generator[tuple[int, Any], None, None]:
    # Threads suffice: kernels and file reads release the GIL.
    ended = threading.Event()
    with ThreadPoolExecutor(max_workers=max(1, min(len(tasks), at_a_time or task_slots(None)))) as pool:
        futures = {pool.submit(_run_in_thread, ended, function, task): number for number, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            ended.set()
            for future in futures:
                future.cancel()


def _on_spark(
    function: Callable[[Any], Any], tasks: Sequence[Any], spark: SparkSession
) -> Generator[tuple[int, Any], None, None]:
    payload = [(number, pickle.dumps((_STAMP, task))) for number, task in enumerate(tasks)]
    versioned = (_STAMP, function)
    # By range, a partition has one task; round robin would put several into some and none into others.
    frame = spark.createDataFrame(payload, "number int, task binary").repartitionByRange(len(tasks), "number")

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number, task in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                result: tuple[Any, Exception | None]
                try:
                    result = versioned[1](pickle.loads(task)[1]), None
                except (SegmentsError, FileNotFoundError) as error:
                    # Spark would retry the task, and pass on only the error's text, inside a JVM trace.
                    result = None, error
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int32()), pa.array([pickle.dumps((_STAMP, result))], pa.binary())],
                    names=["number", "result"],
                )

    for row in frame.mapInArrow(work, _RESULT_SCHEMA).collect():
        _, (result, error) = pickle.loads(bytes(row["result"]))
        if error is not None:
            raise error
        yield row["number"], result


def in_bins(
    items: Iterable[Task], size: Callable[[Task], Any], begins: Callable[[list[Task], Any, Task], bool]
) -> Iterator[list[Task]]:
    """The items in bins, in their order. No bin is empty.

    `begins(bin, total, item)` says whether an item begins a new bin instead of joining `bin`. `total` is the sum of the
    sizes in `bin`. A size is a number, or an array of several numbers.
    """
    current: list[Task] = []
    total: Any = 0
    for item in items:
        if current and begins(current, total, item):
            yield current
            current, total = [], 0
        current.append(item)
        total = total + size(item)
    if current:
        yield current
