"""python -m verification.spark.platforms: what managed platforms ask of the package, imitated on this machine.

A Spark Connect server of its own, whose JVM, workers and client are processes of different environments and without a
home that can be written to; the client has no JVM. Over it a topic is made, written, read, streamed, queried, kept by
each job and has a table beside it. Then a worker's environment that lacks the package, and mounts without links and
renames (`python -m verification.stores.mounts`). docs/platforms says which platform asks for what.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

from spark_segments.spark.java import java_home

ROOT = Path(__file__).parents[2]
NO_HOME = "/dev/null"
"""A home in which nobody can write a file, root included."""

_START_SECONDS = 180
_CLIENT = "--client"


def environment(folder: Path, name: str, *, package: bool) -> Path:
    """The Python of an environment that borrows the libraries of this one, and has the package or not."""
    venv.create(folder / name, with_pip=False)
    [packages] = (folder / name).glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in [*borrowed, *([str(ROOT)] * package)]))
    return folder / name / "bin" / "python"


@contextlib.contextmanager
def connect_server(folder: Path, workers: Path) -> Iterator[str]:
    """The address of a Spark Connect server whose Python is `workers`, and which knows no other path to the package."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    home = Path(spec.origin).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        "bash", str(home / "bin" / "spark-submit"), "--master", "local[2]",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false",
        "--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1",
        "--conf", f"spark.sql.warehouse.dir={folder}/warehouse", "--conf", "spark.sql.artifact.isolation.enabled=true",
        "spark-internal",
    ]  # fmt: skip
    variables = plain_variables() | {"PYSPARK_PYTHON": str(workers), "SPARK_HOME": str(home)}
    if java := java_home():
        variables["JAVA_HOME"] = java
    with (folder / "server.txt").open("w") as said:
        server = subprocess.Popen(command, env=variables, stdout=said, stderr=said, cwd=folder, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert server.poll() is None and time.monotonic() < deadline, (folder / "server.txt").read_text()[-2000:]
            time.sleep(0.5)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def plain_variables() -> dict[str, str]:
    """The variables of this process, without those that lead to the checkout, and without a home."""
    there = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK", "PYTHON"))}
    return there | {"HOME": NO_HOME, "XDG_CACHE_HOME": NO_HOME}


def ran(client: Path, step: str, address: str, directory: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """(exit code, what it said) of a step in a client's process."""
    command = [str(client), str(Path(__file__)), _CLIENT, step, address, str(directory)]
    done = subprocess.run(command, env=dict(variables), capture_output=True, text=True, cwd=directory, timeout=900)
    return done.returncode, done.stdout + done.stderr


# What a client does


def everything(address: str, directory: Path) -> None:
    """Each thing that a user does, over a session that has no JVM."""
    from pyspark.sql import SparkSession

    from pyspark_segments import DefaultSource
    from spark_segments import LogDir
    from spark_segments.maintenance import compact, retain, roll, table, vacuum

    spark = SparkSession.builder.remote(address).create()
    assert not hasattr(spark, "_jvm") or _refuses(lambda: spark._jvm), "a session of Connect has no JVM"
    spark.dataSource.register(DefaultSource)
    uri = str(directory / "log")
    log = LogDir.create(uri)
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"}
    for topic in ("orders", "copy"):
        log.create_topic(topic, partitions=2, config=config)
    frame = spark.range(1000).selectExpr("string(id % 100) as key", "string(id) as value")
    for _ in range(2):  # the second adds nothing
        writer = frame.write.format("segments").mode("append").option("topic", "orders")
        writer.options(txnAppId="load", txnVersion=1).save(uri)
    orders = spark.read.format("segments").option("subscribe", "orders").load(uri)
    assert orders.count() == 1000
    orders.createOrReplaceTempView("orders")
    [newest] = spark.sql("SELECT max(int(string(value))) AS n FROM orders WHERE partition IN (0, 1)").collect()
    assert newest["n"] == 999
    _say("written and read, each record once; SQL")

    begin = {"subscribe": "orders", "startingOffsets": "earliest"}
    changes = spark.readStream.format("segments").options(**begin).load(uri)
    query = (
        changes.writeStream.format("segments")
        .option("topic", "copy")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(uri)
    )
    query.awaitTermination()
    copy = spark.read.format("segments").option("subscribe", "copy").load(uri)
    assert copy.count() == 1000
    _say("a stream from topic to topic")

    later_ms = log.storage.now_ms() + 10**10
    jobs = [roll(log, spark=spark, now_ms=later_ms), retain(log, spark=spark), compact(log, spark=spark)]
    jobs.append(vacuum(log, spark=spark))
    assert not any(report.failed for report in jobs)
    kept = orders.sparkSession.read.format("segments").options(subscribe="orders", view="latest").load(uri)
    assert kept.count() == 100
    _say("roll, retain, compact and vacuum on the server's workers; view=latest")

    place = str(directory / "table")
    report = table(log, topics=["orders"], table_uri=place, spark=spark)
    assert not report.failed
    from deltalake import DeltaTable

    files = spark.read.parquet(*DeltaTable(place).file_uris())
    assert files.count() == sum(batch.num_rows for batch in log.topic("orders").scan().batches())
    _say("a table beside a topic, read by Spark's Parquet reader")


def without_package(address: str, directory: Path) -> None:
    """What is said where the workers lack the package. Prints the error."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from pyspark_segments import DefaultSource
    from spark_segments import LogDir

    log = LogDir.create(str(directory / "log"))
    log.create_topic("orders")
    spark = SparkSession.builder.remote(address).create()
    try:
        spark.dataSource.register(DefaultSource)
        spark.read.format("segments").option("subscribe", "orders").load(log.uri).collect()
    except PySparkException as error:
        lines = [line for line in str(error).splitlines() if "ModuleNotFoundError" in line or "DATA_SOURCE" in line]
        _say(f"the error says: {(lines or str(error).splitlines())[0].strip()}")
        return
    raise AssertionError("a worker without the package read a topic")


def _refuses(look: object) -> bool:
    try:
        look()  # type: ignore[operator]
    except Exception:  # PySpark's own, which says that there is none
        return True
    return False


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


STEPS = {"everything": everything, "without_package": without_package}


def main() -> int:
    parser = argparse.ArgumentParser(description="Imitates what managed platforms ask of the package.")
    parser.add_argument("--only", choices=("connect", "bare", "mounts"), help="one of the imitations")
    only = parser.parse_args().only
    codes = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        client, bare = (environment(folder, name, package=name == "client") for name in ("client", "bare"))
        workers = environment(folder, "workers", package=True)
        for name, python, step in (("connect", workers, "everything"), ("bare", bare, "without_package")):
            if only not in (None, name):
                continue
            place = folder / f"{name}-place"
            place.mkdir()
            began = time.monotonic()
            with connect_server(place, python) as address:
                code, said = ran(client, step, address, place, plain_variables())
            codes.append(code)
            print(f"{name}: {'passed' if code == 0 else 'failed'} in {time.monotonic() - began:.0f} s\n{said}", end="")
    if only in (None, "mounts"):
        began = time.monotonic()
        codes.append(subprocess.run([sys.executable, "-m", "verification.stores.mounts"], cwd=ROOT).returncode)
        print(f"mounts: {'passed' if codes[-1] == 0 else 'failed'} in {time.monotonic() - began:.0f} s")
    return max(codes)


if __name__ == "__main__":
    if sys.argv[1:2] == [_CLIENT]:
        STEPS[sys.argv[2]](sys.argv[3], Path(sys.argv[4]))
    else:
        sys.exit(main())
