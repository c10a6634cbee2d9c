"""Spark on two cores: reads and writes of a topic against Parquet of the same rows and codec, reads also against a
source that yields prebuilt batches and takes rows for nothing, which is what Spark itself takes for them; the memory of
tasks; growth.

Reads go to `noop`, writes come from a cached frame. The session has the settings of conf/spark-defaults.conf.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from benchmarks._prebuilt import PrebuiltSource
from benchmarks.measure import TURNS, in_turns
from spark_segments import LogDir
from spark_segments.maintenance import Report, compact, roll, verify
from spark_segments.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

RECORDS = {100: 2_000_000, 1024: 400_000}
PARTITIONS = 4
# The JVM compiles for a while.
WARM_TURNS = 3
# {name here: (configuration of the topic, options of Spark's Parquet)}
CODECS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "default": ({}, {}),  # none, and snappy
    "none": ({"compression.type": "uncompressed"}, {"compression": "uncompressed"}),
    "zstd-1": (
        {"compression.type": "zstd", "compression.zstd.level": "1"},
        {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"},
    ),
}
PARTS = ("growth", "jobs", "comparison")
GROWTH = (1, 4, 16)
GROWTH_MIB = 64
_BATCH_ROWS = 16384
_PROJECTED = "offset bigint, timestamp timestamp"
_TEXT = b"the quick brown fox jumps over the lazy dog "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--sizes", nargs="+", type=int, choices=RECORDS, default=RECORDS, help="of values, in bytes")
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=CODECS)
    parser.add_argument("--only", default="", help="cases of the comparison whose names contain this text")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        if "jobs" in arguments.parts:
            for times in (GROWTH[0], GROWTH[-1]):
                measure_jobs(Path(directory), times * GROWTH_MIB * arguments.scale, figures)
        with session(directory) as spark:
            spark.dataSource.register(PrebuiltSource)
            memory = TaskMemory(spark)
            if "growth" in arguments.parts:
                measure_growth(spark, Path(directory, "growth"), arguments, memory, figures, ratios)
            for size in arguments.sizes if "comparison" in arguments.parts else ():
                records = round(RECORDS[size] * arguments.scale)
                one = Comparison(spark, Path(directory, str(size)), size, records, arguments.codecs)
                one.measure(arguments, memory, figures, ratios)
                shutil.rmtree(one.directory)
    return {"turns": arguments.turns, "scale": arguments.scale, "figures": figures, "ratios": ratios}


@contextlib.contextmanager
def session(directory: str) -> Iterator[SparkSession]:
    """A session that starts Python workers of its own, and ends them."""
    spark = spark_session("benchmark", master="local[2]", config=settings(directory))
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def settings(directory: str) -> dict[str, str]:
    """Those that come with the project, and those of a small machine."""
    lines = (Path(__file__).parents[1] / "conf" / "spark-defaults.conf").read_text().splitlines()
    given = dict(line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return given | {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.local.dir": directory,
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


class Comparison:
    """The same records in topics and in Parquet files."""

    def __init__(
        self, spark: SparkSession, directory: Path, value_bytes: int, records: int, codecs: Collection[str]
    ) -> None:
        self.spark, self.directory, self.value_bytes, self.records = spark, directory, value_bytes, records
        self.codecs = codecs
        self.log = LogDir.create(str(directory / "log"))
        source = directory / "source"
        source.mkdir()
        for part in range(PARTITIONS):
            rows = pa.Table.from_batches(record_batches(records // PARTITIONS, value_bytes, seed=part))
            pa.parquet.write_table(rows, source / f"{part}.parquet", compression="none", use_dictionary=False)
        self.frame = spark.read.parquet(str(source)).cache()
        self.frame.count()
        for codec in codecs:
            config, parquet_options = CODECS[codec]
            for topic in (codec, codec + "-written"):
                self.log.create_topic(topic, PARTITIONS, config)
            self.write(codec)
            self.read(codec).load(self.log.uri).write.options(**parquet_options).parquet(str(directory / codec))
        first = itertools.islice(self.log.topic(next(iter(codecs))).scan(partition=0).batches(), 5)
        batch = max(first, key=lambda one: one.num_rows).drop_columns("headers")  # those before are of a small window
        schema = PrebuiltSource.arrow_schema()
        with pa.OSFile(str(directory / "batch.arrow"), "w") as file, pa.ipc.new_stream(file, schema) as stream:
            arrays = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))

    def read(self, codec: str) -> DataFrameReader:
        return self.spark.read.format("segments").option("subscribe", codec)

    def write(self, topic: str) -> None:
        self.frame.write.format("segments").mode("append").option("topic", topic).save(self.log.uri)

    def write_and_delete(self, topic: str) -> None:
        """As an overwrite of Parquet does, so that disks are not busy with what nobody reads."""
        self.write(topic)
        for partition in range(PARTITIONS):
            shutil.rmtree(Path(self.log.uri) / f"{topic}-{partition}")

    def cases(self, codec: str) -> dict[str, Callable[[], None]]:
        uri, parquet = self.log.uri, str(self.directory / codec)
        rows = self.records // PARTITIONS
        prebuilt = {"path": str(self.directory / "batch.arrow"), "tasks": str(PARTITIONS), "rows": str(rows)}
        return {
            "read": lambda: noop(self.read(codec).load(uri)),
            "read Parquet": lambda: noop(self.spark.read.parquet(parquet)),
            "read prebuilt": lambda: noop(self.spark.read.format("prebuilt").options(**prebuilt).load()),
            "projected read": lambda: noop(self.read(codec).schema(_PROJECTED).load(uri)),
            "write": lambda: self.write_and_delete(codec + "-written"),
            "write nothing": lambda: self.frame.write.format("prebuilt").mode("append").save(),
            "write Parquet": lambda: (
                self.frame.write.mode("overwrite").options(**CODECS[codec][1]).parquet(parquet + "-written")
            ),
        }

    def measure(
        self, arguments: argparse.Namespace, memory: TaskMemory, figures: dict[str, float], ratios: dict[str, float]
    ) -> None:
        amount = self.records / 1e6
        for codec in self.codecs:
            what = f"{self.value_bytes} B, {codec}"
            cases = {name: case for name, case in self.cases(codec).items() if arguments.only in name}
            timings = in_turns(cases, turns=arguments.turns, warm_turns=WARM_TURNS)
            figures |= {f"{name} Mrecords/s, {what}": round(timings.rate(name, amount), 3) for name in cases}
            if "write" in cases:
                memory.forget_peak()
                cases["write"]()
                figures[f"write task over idle worker MiB, {what}"] = memory.peak_over_idle_mib()
            for name, other in (
                ("read", "read prebuilt"),
                ("read", "read Parquet"),
                ("read prebuilt", "read Parquet"),
                ("projected read", "read"),
                ("write", "write Parquet"),
                ("write nothing", "write Parquet"),
            ):
                if name in cases and other in cases:
                    ratios[f"{name} / {other}, {what}"] = round(timings.speed_up(name, other), 3)
        self.frame.unpersist()


def measure_growth(
    spark: SparkSession,
    directory: Path,
    arguments: argparse.Namespace,
    memory: TaskMemory,
    figures: dict[str, float],
    ratios: dict[str, float],
) -> None:
    """Reads of ever more bytes in one file, and of the same bytes in ever more files and partitions."""
    log = LogDir.create(str(directory))
    records = round(GROWTH_MIB * 1024 * arguments.scale)
    names = {"bytes": "s, {mib} MiB in one file", "files": "s, {n} files", "partitions": "s, {n} partitions"}
    cases: dict[str, Callable[[], None]] = {}
    for times in GROWTH:
        of_bytes, of_files, of_partitions = (f"{kind}-{times}" for kind in names)
        for topic in (of_bytes, of_files):
            log.create_topic(topic, 1, {"compression.type": "uncompressed"})
        log.create_topic(of_partitions, 4 * times, {"compression.type": "uncompressed"})
        log.topic(of_bytes).append(record_batches(records * times, 1024, seed=1))
        for part in range(4 * times):
            log.topic(of_files).append(record_batches(records // (4 * times), 1024, seed=part))
        log.topic(of_partitions).append(record_batches(records, 1024, seed=2))
        for topic in (of_bytes, of_files, of_partitions):
            cases[topic] = functools.partial(read_whole, spark, log.uri, topic)
    timings = in_turns(cases, turns=arguments.turns, warm_turns=1)
    for kind, name in names.items():
        for times in GROWTH:
            mib = round(GROWTH_MIB * arguments.scale * times)
            figures[f"read {name.format(n=4 * times, mib=mib)}"] = round(timings.median(f"{kind}-{times}"), 3)
        last = GROWTH[-1]
        ratios[f"read of {last} x {kind} / of 1 x"] = round(1 / timings.speed_up(f"{kind}-{last}", f"{kind}-1"), 2)
    for times in GROWTH:
        memory.forget_peak()
        cases[f"bytes-{times}"]()
        mib = round(GROWTH_MIB * arguments.scale * times)
        figures[f"read task over idle worker MiB, file of {mib} MiB"] = memory.peak_over_idle_mib()
    shutil.rmtree(directory)


def measure_jobs(directory: Path, mib: float, figures: dict[str, float]) -> None:
    """The memory of the tasks of jobs over two partitions of `mib` MiB together, in records of 100 B with unique keys.

    Each job has a session, and so workers, of its own: a worker keeps what Arrow has once had. Spark starts a worker
    for each task that runs at a time, and no other is there.
    """
    log, copy = (LogDir.create(str(directory / "jobs" / name)) for name in ("log", "copy"))
    log.create_topic("t", 2, {"cleanup.policy": "compact", "compression.type": "uncompressed"})
    for seed in range(GROWTH[-1]):  # a roll has chunks to put together
        log.topic("t").append(record_batches(round(mib * 1024 * 1024 / 145 / GROWTH[-1]), 100, seed))
    kafka = str(directory / "jobs" / "kafka")
    now_ms = log.storage.now_ms() + 10 * 86_400_000
    jobs: dict[str, Callable[[SparkSession], Report]] = {
        "roll": lambda spark: roll(log, spark=spark, now_ms=now_ms),
        "export": lambda spark: log.export_kafka(kafka, spark=spark),
        "import": lambda spark: copy.import_kafka(kafka, spark=spark),
        "verify": lambda spark: verify(log, deep=True, spark=spark),
        "compact": lambda spark: compact(log, spark=spark, now_ms=now_ms, force=True),
    }
    for name, job in jobs.items():
        with session(str(directory)) as spark:
            memory = TaskMemory(spark)
            memory.forget_peak()
            assert job(spark).partitions, name
            figures[f"{name} task over idle worker MiB, {mib:g} MiB"] = memory.peak_over_idle_mib()
    shutil.rmtree(directory / "jobs")


class TaskMemory:
    """How much more memory (resident) the Python workers of tasks have had than one that only echoes rows."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm.java.lang.ProcessHandle.current().pid()
        spark.range(0, 1000, 1, 2).mapInArrow(_echo, "id bigint").write.format("noop").mode("overwrite").save()
        self._idle_kib = max(_status_kib(worker, "VmRSS") for worker in self._workers())

    def forget_peak(self) -> None:
        for worker in self._workers():
            Path(f"/proc/{worker}/clear_refs").write_text("5")

    def peak_over_idle_mib(self) -> int:
        peak_kib = max(_status_kib(worker, "VmHWM") for worker in self._workers())
        return round((peak_kib - self._idle_kib) / 1024)

    def _workers(self) -> list[int]:
        return [
            worker
            for daemon in _children(self._jvm)
            if b"\0pyspark.worker\0" in Path(f"/proc/{daemon}/cmdline").read_bytes()
            for worker in _children(daemon)
        ]


def _children(process: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True)
    return [int(child) for child in found.stdout.split()]


def _status_kib(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def _echo(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def read_whole(spark: SparkSession, uri: str, topic: str) -> None:
    noop(spark.read.format("segments").option("subscribe", topic).load(uri))


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def record_batches(records: int, value_bytes: int, seed: int) -> Iterator[pa.RecordBatch]:
    """Records with keys of 16 bytes, rising timestamps, and values of JSON: half digits, half the same text."""
    random = np.random.default_rng(seed)
    head = b'{"order":"0000000000","status":"shipped","digits":"'
    text = head + _TEXT * (value_bytes // len(_TEXT) + 1)
    begin, end = len(head), len(head) + (value_bytes - len(head)) // 2
    for first in range(0, records, _BATCH_ROWS):
        count = min(_BATCH_ROWS, records - first)
        values = np.tile(np.frombuffer(text[: value_bytes - 2] + b'"}', np.uint8), (count, 1))
        values[:, 10:20] = random.integers(ord("0"), ord("9") + 1, (count, 10), np.uint8)
        values[:, begin:end] = random.integers(ord("0"), ord("9") + 1, (count, end - begin), np.uint8)
        keys = random.integers(ord("a"), ord("z") + 1, (count, 16), np.uint8)
        times = pa.array((1_700_000_000_000 + np.arange(first, first + count)) * 1000)
        yield pa.record_batch(
            {
                "key": _binary(keys),
                "value": _binary(values),
                "timestamp": times.cast(pa.timestamp("us", tz="UTC")),
            }
        )


def _binary(rows: np.ndarray) -> pa.Array:
    count, width = rows.shape
    offsets = pa.py_buffer((np.arange(count + 1) * width).astype(np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(rows.tobytes())])
