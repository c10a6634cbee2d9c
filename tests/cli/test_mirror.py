from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_segments import LogDir
from verification.world.clock import PATIENCE_SECONDS
from verification.world.kafka_bytes.golden_files import GOLDEN


@pytest.fixture
def places(segments, tmp_path: Path) -> tuple[str, str]:
    """A leader with a record in each of two topics, and a place for the followers."""
    leader, follower = str(tmp_path / "log"), str(tmp_path / "copy")
    for topic in ("orders", "prices"):
        segments("topic", "create", leader, topic)
        segments("append", leader, topic, stdin=b"one\n")
    return leader, follower


def test_a_run_reports_what_it_mirrored_and_the_lag_as_json_and_as_text(segments, places):
    report = segments("mirror", *places, "--once", "--output", "json").json
    assert (report["job"], report["details"]["commits"], report["records_out"], report["failed"]) == ("mirror", 2, 2, 0)
    assert {line["topic"]: line["lag_commits"] for line in report["partitions"]} == {"orders": 0, "prices": 0}
    ran = segments("mirror", *places, "--once")
    assert ran.lines[0].split()[:3] == ["topic", "action", "commits"]
    assert ran.error.startswith("mirror: 2 topics (0 failed), 0 commits, 0 records, 0 B")


def test_the_lag_is_shown_without_mirroring(segments, places):
    segments("mirror", *places, "--once", "--topic", "ord*")
    segments("append", places[0], "orders", stdin=b"two\nthree\n")
    [lag, new] = segments("mirror", *places, "--dry-run", "--output", "json").json["partitions"]
    names = ("topic", "action", "leader_version", "source_version", "lag_commits", "lag_records")
    assert [lag[name] for name in names] == ["orders", "behind", 2, 1, 1, 2]
    assert new["action"] == "not mirrored yet"
    assert segments("mirror", *places, "--dry-run").lines[1].split()[:2] == ["orders", "behind"]
    assert LogDir.open(places[1]).topic("orders").offsets() == {0: (0, 1)}


def test_a_follower_is_described_with_its_leader(segments, places):
    segments("mirror", *places, "--once")
    assert segments("describe", places[1], "orders").lines[1] == f"Follower of {places[0]}, at its version 1"
    assert segments("describe", places[1], "orders", "--output", "json").json["states"]["role"] == "follower"
    assert "states" not in segments("describe", places[0], "orders", "--output", "json").json


def test_a_follower_refuses_records_and_jobs_by_exit_code_1(run, segments, places):
    segments("mirror", *places, "--once")
    for arguments in (
        ["append", places[1], "orders"],
        ["roll", places[1], "orders"],
        ["maintain", places[1], "prices"],
    ):
        ran = run(*arguments, stdin=b"x\n")
        assert ran.code == 1 and "it is no leader" in ran.error and places[0] in ran.error
    segments("vacuum", places[1])


def test_a_topic_that_fails_is_an_error_and_the_others_are_mirrored(run, segments, places):
    segments("topic", "create", places[1], "orders")
    ran = run("mirror", *places, "--once")
    assert ran.code == 1 and ran.error.startswith("error: orders: ") and "follows no other" in ran.error
    assert LogDir.open(places[1]).topic("prices").offsets() == {0: (0, 1)}


def test_the_metrics_have_the_lag_of_each_topic(segments, places, tmp_path):
    segments("mirror", *places, "--once", "--metrics", tmp_path / "mirror.prom")
    text = (tmp_path / "mirror.prom").read_text()
    for name in ("commits", "records", "seconds"):
        assert f'segments_mirror_lag_{name}{{log_dir="{places[1]}",topic="orders"}} 0' in text
    assert "segments_job_failed_partitions{" in text


@pytest.mark.proof
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_without_once_it_follows_until_it_is_ended(places, python_environment, ending):
    command = [sys.executable, "-m", "spark_segments", "mirror", *places, "--interval", "50ms"]
    with subprocess.Popen(command, env=python_environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "until it is ended" in process.stderr.readline()
        while not process.stderr.readline().startswith("mirror: 2 topics"):
            pass
        leader = LogDir.open(places[0])
        leader.topic("orders").append([{"value": b"two"}])
        follower, deadline = LogDir.open(places[1]), time.monotonic() + PATIENCE_SECONDS
        while follower.topic("orders").offsets() != {0: (0, 2)}:
            assert time.monotonic() < deadline
        os.kill(process.pid, ending)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0


def test_a_brokers_disk_is_nothing_to_follow(run, tmp_path):
    ran = run("mirror", GOLDEN / "broker-data", tmp_path / "copy", "--once")
    assert ran.code == 1 and "segments import --replicated" in ran.error and not (tmp_path / "copy").exists()


def test_a_list_of_checksums_is_written_and_verified(run, segments, places, tmp_path):
    segments("mirror", *places, "--once", "--checksums", tmp_path / "list")
    assert segments("verify", places[1], "--against", tmp_path / "list").lines[-1].startswith("verify: 2 topics")
    next(Path(places[1]).glob("orders-0/*.timeindex")).write_bytes(b"0123456789ab")
    assert run("verify", places[1], "--against", tmp_path / "list").code == 3
    assert run("mirror", *places, "--checksums", tmp_path / "list").code == 1
