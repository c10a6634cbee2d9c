"""A Spark standalone cluster of a master and two workers on this machine, and the jobs on it: append, roll, retain,
compact, vacuum, maintain, or those that are named. A job capture=BOOTSTRAP captures the topics of a running Kafka
cluster.

python examples/cluster/run.py [--packed] LOG_DIR [JOB…]

Workers use this process's Python, in which the package is installed. With --packed an environment goes with each
application, with the package's wheel and all that it needs: workers then need Java, Spark and a Python of the same
version.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pyspark

from spark_segments.spark.java import java_home

ROOT = Path(__file__).resolve().parents[2]
SPARK = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
ORDERS = 20_000
TOPIC = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": "200000",
    "retention.bytes": "1000000",
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "uncompressed",
}


def main(arguments: list[str]) -> None:
    """Starts the cluster, runs one job after the other, and stops the cluster, come what may."""
    packed = "--packed" in arguments
    log_dir, *jobs = [one for one in arguments if one != "--packed"] or sys.exit(__doc__)
    log_dir = os.path.abspath(log_dir)
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as work:
        settings = ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
        settings += ["--conf", f"spark.pyspark.python={'./environment/bin/python' if packed else sys.executable}"]
        if packed:
            settings += ["--archives", pack_environment(Path(work)) + "#environment"]
        landing = Path(work) / "orders.json"
        landing.write_text("".join(json.dumps(order(number)) + "\n" for number in range(ORDERS)))
        append = ["orders", "--input", str(landing), "--key-column", "customer", "--partitions", "2"]
        append += [text for name, value in TOPIC.items() for text in ("--config", f"{name}={value}")]
        with cluster(Path(work)) as master:
            for job in jobs or ["append", "roll", "retain", "compact", "vacuum", "maintain"]:
                job, _, servers = job.partition("=")
                more = {"append": append, "capture": ["--once"]}.get(job, [])
                submit(master, settings, job, *filter(None, [servers, log_dir]), *more)


def order(number: int) -> dict[str, object]:
    return {"order": number, "customer": f"customer-{number % 100}", "note": "." * 100}


def pack_environment(work: Path) -> str:
    """What --archives takes: the package and all that it needs but Spark, which the workers have."""
    environment, path = work / "environment", str(work / "environment.tar.gz")
    started = time.monotonic()
    venv.create(environment, with_pip=True)
    quiet = ["-q", "--disable-pip-version-check"]
    subprocess.run([environment / "bin" / "pip", "install", *quiet, f"{ROOT}[kafka]", "venv-pack==0.2.0"], check=True)
    installed = time.monotonic()
    subprocess.run(
        [environment / "bin" / "venv-pack", "-q", "-p", environment, "-o", path, "--exclude", "*/tests/*"], check=True
    )
    megabytes, now = os.path.getsize(path) / 1e6, time.monotonic()
    note(f"environment: {installed - started:.0f} s to install, {now - installed:.0f} s to pack, {megabytes:.0f} MB")
    return path


@contextlib.contextmanager
def cluster(work: Path) -> Iterator[str]:
    """The URL of a master with two workers of one core and 1 GiB, which are there while the context lasts."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    master = f"spark://{HOST}:{port}"
    started: list[subprocess.Popen] = []
    try:
        started.append(spark_class(work, "master.Master", "--port", str(port)))
        wait_for(port, started[0])
        for number in (1, 2):
            directory = ["--work-dir", str(work / f"worker-{number}")]
            started.append(spark_class(work, "worker.Worker", "--cores", "1", "--memory", "1g", *directory, master))
        yield master
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait()


def spark_class(work: Path, name: str, *arguments: str) -> subprocess.Popen:
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", HOST]
    return subprocess.Popen([*command, "--webui-port", "0", *arguments], env=variables(), cwd=work)


def wait_for(port: int, master: subprocess.Popen) -> None:
    """Until the master listens: a worker that comes before it asks again after many seconds only."""
    while master.poll() is None:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection((HOST, port)):
            return
        time.sleep(0.1)
    sys.exit("the master has not started")


def submit(master: str, settings: list[str], job: str, *arguments: str) -> None:
    """Runs a job, which prints its report on standard output."""
    started = time.monotonic()
    command = [str(SPARK / "bin" / "spark-submit"), "--master", master, *settings]
    script = [str(ROOT / "jobs" / "segments.py"), job]
    subprocess.run([*command, *script, *arguments, "--output", "json"], env=variables(), check=True)
    note(f"{job}: {time.monotonic() - started:.1f} s")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def variables() -> dict[str, str]:
    """This process's, with the settings in conf/, a Java, and nothing that listens beyond this machine."""
    java = java_home()
    found = {"SPARK_HOME": str(SPARK), "SPARK_CONF_DIR": str(ROOT / "conf"), "SPARK_LOCAL_IP": HOST}
    return os.environ | found | ({"JAVA_HOME": java} if java else {})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cluster stops then, too
    main(sys.argv[1:])
