"""The examples run as their pages say, from an empty directory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_segments import LogDir
from tests.conftest import ROOT
from tests.maintenance.upkeep import all_records, assert_maintained, assert_vacuumed, busy_log


@pytest.fixture
def run(tmp_path, python_environment):
    """Runs an example; what it printed."""

    def run(example: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / example), *arguments],
            cwd=tmp_path,
            env=python_environment | dict(environment or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        return done.stdout

    return run


@pytest.mark.spark
@pytest.mark.slow
def test_the_quickstart_leaves_the_log_that_it_speaks_of(run, tmp_path: Path) -> None:
    uri = str(tmp_path / "log")
    printed = run("quickstart.py", uri)
    assert sum(end for _, end in LogDir.open(uri).offsets("orders").values()) == 100_000
    kafka = LogDir.open(str(ROOT / "tests" / "golden" / "broker-data"))
    records = sum(batch.num_rows for batch in kafka.read("orders"))
    assert f"{records:,} records, CRC of every batch checked" in printed


@pytest.mark.spark
@pytest.mark.slow
def test_a_standalone_cluster_appends_and_maintains(run, tmp_path: Path) -> None:
    printed = run("cluster/run.py", str(tmp_path / "log"), "append", "maintain")
    reports = {report["job"]: report for report in map(json.loads, printed.splitlines())}
    assert list(reports) == ["append", "roll", "retain", "compact", "vacuum"]
    assert sum(line["log_end_offset"] for line in reports["append"]["partitions"]) == 20_000
    log = LogDir.open(str(tmp_path / "log"))
    left = all_records(log)["orders"]
    dropped = {reason: count for report in reports.values() for reason, count in report.get("dropped", {}).items()}
    assert dropped.keys() == {"retention.bytes", "superseded"} and sum(dropped.values()) == 20_000 - len(left)
    assert {record["key"] for record in left} == {b"customer-%d" % number for number in range(100)}


@pytest.mark.network
@pytest.mark.slow
def test_airflow_runs_the_dag(run, log: LogDir, tmp_path: Path) -> None:
    before = all_records(busy_log(log))
    defaults = tmp_path / "defaults.properties"
    defaults.write_text("log.retention.check.interval.ms=3600000\nlog.segment.delete.delay.ms=0\n")
    printed = run("airflow/run.py", log.uri, environment={"SEGMENTS_DEFAULTS": str(defaults)})
    found = re.findall(r'(\{"job": .*\}) +\[airflow', printed)  # a task's output, among Airflow's lines
    reports = {report["job"]: report for report in map(json.loads, found)}
    assert list(reports) in (["roll", *both, "vacuum"] for both in (["retain", "compact"], ["compact", "retain"]))
    assert_maintained(log, [reports[job] for job in ("roll", "retain", "compact", "vacuum")], before)
    assert_vacuumed(log)


def test_a_topic_is_archived_and_replayed_by_formats_and_options_alone(run, tmp_path: Path) -> None:
    """What a broker wrote, into a log directory and on into another: every record, in its place."""
    kafka = ROOT / "tests" / "golden" / "broker-data"
    archive, replay = (LogDir.create(str(tmp_path / name)) for name in ("archive", "replay"))
    for log in (archive, replay):
        log.create_topic("orders", partitions=2, config={"retention.ms": "-1"})
    run("move_topic.py", "--from", "segments", f"path={kafka}", "subscribe=orders", "--to", "segments",
        f"path={archive.uri}", "topic=orders")  # fmt: skip
    run("move_topic.py", "--from", "segments", f"path={archive.uri}", "subscribe=orders", "--to", "segments",
        f"path={replay.uri}", "topic=orders")  # fmt: skip
    columns = ["partition", "key", "value", "headers", "timestamp"]
    records = [
        [row for batch in log.read("orders", columns=columns) for row in batch.to_pylist()]
        for log in (LogDir.open(str(kafka)), archive, replay)
    ]
    assert records[0] == records[1] == records[2] != []


def test_a_move_without_kafkas_package_says_which_it_takes(run, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="Kafka's connector is a package"):
        run("move_topic.py", "--from", "kafka", "subscribe=a", "--to", "segments", f"path={tmp_path}", "topic=a")


def test_a_changelog_becomes_a_table(run, tmp_path: Path) -> None:
    for flags in ([], ["--spark"]):
        directory = tmp_path / str(len(flags))
        printed = run(
            "changelog_to_table.py", str(directory / "log"), str(directory / "table"), "--rounds", "3", *flags
        )
        expected = [
            row["value"]
            for batch in LogDir.open(str(directory / "log")).read(
                "accounts", columns=["value"], view="latest", include_tombstones=False
            )
            for row in batch.to_pylist()
        ]
        assert f"{{'accounts': {len(expected)}, 'total': {sum(map(int, expected))}}}" in printed
        engine = "delta-spark" if "by delta-spark" in printed else "delta-rs"
        assert printed.count(f"by {engine}") == 3
        assert flags == [] or engine == "delta-spark" or "Spark does not start with Delta" in printed
