"""python -m verification.spark.submit_kills [--kills 60] [--seed S]: spark-submit appends and jobs/segments.py maintain
on a cluster of two executors with speculation on, killed at random moments and submitted again, as a scheduler does.

A kill hits the driver, whose executors find that out for themselves and may write on for a while, or an executor, which
Spark replaces. In the end each record is in the topic once, and a deep verification finds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_segments import LogDir
from spark_segments.maintenance import verify
from verification.spark.process_tree import descendants, send
from verification.world.checkout import ROOT

PARTITIONS = 4
FILES = 8  # of an append: Spark makes a few tasks of them
ROWS = 150  # of a file
MOST_KILLS = 4  # of a job in a row: then it may end
RUN_SECONDS = 600.0
SETTINGS = {
    "segment.bytes": "40000",
    "cleanup.policy": "compact",  # keys are unique: compaction runs and may lose nothing
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "60000",
}
SPARK = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "1ms",
}


class Submission:
    """A run of spark-submit, with what it starts below it."""

    def __init__(self, arguments: Sequence[str], said: Path, environment: Mapping[str, str]) -> None:
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local-cluster[2,1,1024]"]
        for name, value in SPARK.items():
            command += ["--conf", f"{name}={value}"]
        with said.open("ab") as out:
            self._process = subprocess.Popen(
                [*command, *arguments], env=dict(environment), stdout=out, stderr=out, start_new_session=True
            )

    def wait_for_tasks(self) -> bool:
        """Waits until executors have begun to run Python; False where the run has ended before."""
        while self._process.poll() is None:
            if any("pyspark.daemon" in command for command in descendants(self._process.pid).values()):
                return True
            time.sleep(0.05)
        return False

    def wait(self, seconds: float = RUN_SECONDS) -> int | None:
        """The exit code; None where it still runs then."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self, choose: random.Random) -> str | None:
        """Kills the driver, Python and JVM, or an executor; says which, None where it has ended."""
        below = descendants(self._process.pid)
        executors = [pid for pid, command in below.items() if "CoarseGrainedExecutorBackend" in command]
        if self._process.poll() is not None:
            return None
        if executors and choose.random() < 0.5:
            send([choose.choice(executors)], signal.SIGKILL)
            return "executor"
        workers = {pid for executor in executors for pid in descendants(executor)}
        send([pid for pid in (*below, self._process.pid) if pid not in workers | set(executors)], signal.SIGKILL)
        self._process.wait()
        return "driver"


def killed_and_ended(directory: Path, kills: int, seed: int, environment: Mapping[str, str]) -> Counter[str]:
    """What was killed, by job and kind, and how many runs ended. Raises AssertionError where the log is not as it has
    to be then.
    """
    choose = random.Random(seed)
    log = LogDir.create(str(directory / "log"))
    log.create_topic("orders", PARTITIONS, SETTINGS)
    counts: Counter[str] = Counter()
    batches = 0
    took = {"append": 1.0, "maintain": 1.0}  # seconds from the first task to the end
    while sum(count for name, count in counts.items() if name.startswith("killed")) < kills:
        job = choose.choice(["append", "maintain"])
        arguments = [str(ROOT / "jobs" / "segments.py"), "maintain", log.uri]
        if job == "append":
            rows = _write_batch(directory / "landing", batches)
            arguments = [str(ROOT / "verification" / "spark" / "append_json.py"), log.uri, str(rows), str(batches)]
            batches += 1
        tries = 0
        while True:
            tries += 1
            run = Submission(arguments, directory / "said.txt", environment)
            begun = run.wait_for_tasks()
            started = time.monotonic()
            to_be_killed = begun and tries <= MOST_KILLS and counts[f"{job}, ended"]
            if to_be_killed and run.wait(choose.uniform(0, took[job])) is None:
                kind = run.kill(choose)
                counts[f"killed {job}, {kind}"] += kind is not None
                print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())), flush=True)
            code = run.wait()
            if code == 0:
                took[job] = time.monotonic() - started
                counts[f"{job}, ended"] += 1
                break
            said = (directory / "said.txt").read_text(errors="replace")[-4000:]
            assert code is not None and tries < 3 * MOST_KILLS, f"{job} does not come to its end: {said}"
    _check(log, batches)
    return counts


def _write_batch(landing: Path, number: int) -> Path:
    """Files of JSON lines; each row's value says which it is."""
    directory = landing / str(number)
    directory.mkdir(parents=True)
    for file in range(FILES):
        rows = [{"key": f"{number}-{file}-{row}", "value": f"{number} {file} {row}"} for row in range(ROWS)]
        (directory / f"{file}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def _check(log: LogDir, batches: int) -> None:
    found = Counter(
        row
        for batch in log.topic("orders").scan(columns=["value"]).batches()
        for row in batch.column("value").to_pylist()
    )
    expected = {
        f"{number} {file} {row}".encode() for number in range(batches) for file in range(FILES) for row in range(ROWS)
    }
    assert set(found) == expected, f"{len(expected - set(found))} records are lost"
    assert found.total() == len(expected), f"{found.total() - len(expected)} records are there twice"
    report = verify(log, deep=True)
    assert report.ok, report.findings


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills spark-submit in mid-job, drivers and executors.")
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        counts = killed_and_ended(Path(directory), arguments.kills, arguments.seed, environment)
        version = LogDir.open(f"{directory}/log").topic("orders").snapshot.version
    said = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print(
        f"{said} in {time.monotonic() - started:.0f} s (seed {arguments.seed}): each record is in the log once, at "
        f"version {version}, and deep verification is clean"
    )


if __name__ == "__main__":
    main()
