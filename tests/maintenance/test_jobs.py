"""jobs/*.py as processes of their own: plain Python, and spark-submit on a cluster of two executors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.maintenance import roll
from spark_segments.spark.session import java_home
from tests.conftest import ROOT
from tests.maintenance.appending import append_one_by_one, contents, live, records, topic_with


@pytest.fixture
def busy(log) -> LogDir:
    """A log with work for every job."""
    common = {"segment.bytes": 2000, "retention.ms": -1}
    topic_with(log, "orders", {**common, "retention.bytes": 4000}, partitions=2)
    topic_with(log, "latest", {**common, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
    for topic, partition in (("orders", 0), ("orders", 1), ("latest", 0)):
        append_one_by_one(log, topic, records(40, time_ms=log.storage.now_ms()), partition=partition)
    return log


def assert_maintained(log: LogDir, reports: list[dict], before: dict[str, list[dict]]) -> None:
    """What roll, retain, compact and vacuum leave, whoever ran them."""
    assert [report["job"] for report in reports] == ["roll", "retain", "compact", "vacuum"]
    roll, retain, compact, _ = reports
    assert {line["action"] for line in roll["partitions"]} == {"roll"} and len(roll["partitions"]) == 3
    assert roll["records_in"] == roll["records_out"] > 0
    assert retain["dropped"]["retention.bytes"] > 0
    for number in (0, 1):
        start = log.offsets("orders")[number][0]
        left = [one for one in before["orders"] if one["partition"] == number and one["offset"] >= start]
        assert start > 0 and contents(log, "orders", partition=number) == left
    assert_compacted(log, compact, before["latest"])
    assert {segment.state for segment in live(log, "latest")} == {"sealed", "chunk"}


def assert_compacted(log: LogDir, report: dict, before: list[dict]) -> None:
    """Of every key the newest record is left, and older ones only in the active segment, which is not compacted."""
    after = contents(log, "latest")
    newest = {one["key"]: one for one in before}
    assert all(one in after for one in newest.values())
    active = min(segment.base_offset for segment in live(log, "latest") if segment.state == "chunk")
    assert [one for one in after if one["offset"] >= active] == [one for one in before if one["offset"] >= active]
    assert report["dropped"] == {"superseded": len(before) - len(after)} and len(after) < len(before)


def assert_vacuumed(log: LogDir) -> None:
    """With no delete delay, the only segments are those of the log."""
    found = {str(file.relative_to(log.uri)) for file in Path(log.uri).rglob("*.log")}
    partitions = [(topic, number) for topic in log.topics() for number in log.offsets(topic)]
    assert found == {segment.path for topic, number in partitions for segment in live(log, topic, number)}


def run(command: list[str], **environment: str) -> list[dict]:
    """The reports that a process prints, a line each."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=variables | environment, capture_output=True, text=True, timeout=300, cwd="/")
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run_plainly(job: str, *arguments: str) -> list[dict]:
    script = str(ROOT / "jobs" / f"{job}.py")
    return run([sys.executable, script, *arguments, "--output", "json"], PYTHONPATH=str(ROOT))


def submit(master: str, package: Path, job: str, *arguments: str) -> list[dict]:
    """Runs a job on executors that have the package from --py-files."""
    java = java_home()
    return run(
        [
            str(Path(sys.executable).parent / "spark-submit"), "--master", master, "--py-files", str(package),
            "--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1",
            "--conf", "spark.ui.enabled=false", "--conf", "spark.pyspark.python=" + sys.executable,
            str(ROOT / "jobs" / f"{job}.py"), *arguments, "--output", "json",
        ],
        SPARK_CONF_DIR=str(ROOT / "conf"), **({"JAVA_HOME": java} if java else {}),
    )  # fmt: skip


def test_plain_python_runs_maintain(busy, tmp_path):
    before = {topic: contents(busy, topic) for topic in ("orders", "latest")}
    # A setting of topics and one of the jobs alone.
    defaults = tmp_path / "defaults.properties"
    defaults.write_text("log.segment.delete.delay.ms=0\nlog.cleaner.threads=2\n")
    assert_maintained(busy, run_plainly("maintain", busy.uri, "--defaults", str(defaults)), before)
    assert_vacuumed(busy)


@pytest.mark.parametrize("job", ["roll", "retain", "vacuum"])
def test_each_job_has_a_script_with_a_dry_run(busy, job):
    version = busy.snapshot("orders").version
    (report,) = run_plainly(job, busy.uri, "orders", "--dry-run")
    assert (report["job"], report["dry_run"]) == (job, True)
    assert busy.snapshot("orders").version == version


def test_spark_submit_runs_maintain_on_two_executors(busy, package_zip):
    before = {topic: contents(busy, topic) for topic in ("orders", "latest")}
    assert_maintained(busy, submit("local-cluster[2,1,1024]", package_zip, "maintain", busy.uri), before)


def test_spark_submit_compacts_on_two_executors(busy, package_zip):
    roll(busy)
    before = contents(busy, "latest")
    (report,) = submit("local-cluster[2,1,2048]", package_zip, "compact", busy.uri)
    assert_compacted(busy, report, before)
