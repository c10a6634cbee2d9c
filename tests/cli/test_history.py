"""`topic history` and `topic restore`: what each commit did, and going back."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import subprocess
import sys

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_segments import LogDir, ProducerOptions, maintenance
from spark_segments.cli import main
from spark_segments.errors import InvalidOptionError, UnknownTopicError

DAY_MS = 86_400_000


@pytest.fixture
def log(tmp_path, segments) -> LogDir:
    """Version 0 create, 1 append of 100 records, 2 roll, 3 retain of all but the last segment, 4 append of 5."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", config={"segment.bytes": "1000", "retention.bytes": "1"})
    log.topic("orders").append(
        pa.table({"value": [f"{number:04d}" * 5 for number in range(100)]}), options=ProducerOptions("none", 200)
    )
    segments("roll", log.uri)
    segments("retain", log.uri)
    log.topic("orders").append(pa.table({"value": ["late"] * 5}))
    return log


def test_history_says_what_each_commit_added_and_took(log, segments):
    commits = log.topic("orders").history()

    assert [commit["version"] for commit in commits] == [4, 3, 2, 1, 0]
    assert [commit["job"] for commit in commits] == ["append", "retain", "roll", "append", "create"]
    start = log.topic("orders").offsets()[0][0]
    assert 0 < start < 100
    assert [(commit["records_in"], commit["records_out"]) for commit in commits] == [
        (5, 0),
        (0, start),
        (0, 0),  # chunks of full size are sealed by their rows alone
        (100, 0),
        (0, 0),
    ]
    assert [commit["partitions"] for commit in commits] == [
        {0: (start, 105)},
        {0: (start, 100)},
        {0: (0, 100)},
        {0: (0, 100)},
        {0: (0, 0)},
    ]
    assert commits[3]["bytes_in"] == sum(log.topic("orders", 2).snapshot.live.column("log_bytes").to_pylist()) > 0
    times = [commit["committed_ms"] for commit in commits]
    assert times == sorted(times, reverse=True)

    shown = segments("topic", "history", log.uri, "orders", "-n", 2).lines
    assert [line.split()[0] for line in shown] == ["version", "4", "3"]
    assert shown[1].split()[2:5] == ["append", "5", "0"]
    in_json = segments("topic", "history", log.uri, "orders", "-n", 0, "--output", "json").json
    assert in_json[1] == commits[1] | {
        "partitions": [{"partition": 0, "log_start_offset": start, "log_end_offset": 100}]
    }


def test_what_a_job_rewrites_is_records_out_and_in(tmp_path, segments):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", config={"segment.ms": "1000"})
    for value in ("a", "b"):
        log.topic("orders").append(pa.table({"value": [value]}))
    segments("roll", log.uri, "--now-ms", log.storage.now_ms() + DAY_MS)
    commit = log.topic("orders").history(1)[0]
    assert (commit["job"], commit["records_in"], commit["records_out"]) == ("roll", 2, 2)


def test_deltas_own_history_names_our_operations(log):
    history = DeltaTable(f"{log.uri}/_manifest/orders").history()
    assert [commit["userMetadata"] for commit in history] == ["append", "retain", "roll", "append", "create"]


def test_a_deleted_topic_has_its_history(log):
    log.delete_topic("orders")
    assert log.topic("orders").history(1)[0]["job"] == "delete"
    with pytest.raises(UnknownTopicError):
        log.topic("prices").history()


@pytest.mark.proof
def test_figures_that_vacuum_has_taken_are_none(log, segments):
    log.topic("orders").manifest.drop_old_versions(0, log.storage.now_ms() + 30 * DAY_MS, orphan_age_ms=0)
    log.topic("orders").append(pa.table({"value": ["later"]}))
    command = [sys.executable, "-m", "spark_segments", "topic", "history", log.uri, "orders", "--output", "json"]
    commits = json.loads(
        subprocess.run(command, check=True, capture_output=True).stdout
    )  # this process has rows cached
    assert (commits[0]["job"], commits[0]["records_in"]) == ("append", 1)
    assert (commits[-2]["version"], commits[-2]["job"]) == (1, "append")
    assert commits[-2]["records_in"] is None and commits[-2]["partitions"] is None


def test_a_dry_run_says_what_leaves_and_what_returns_and_changes_nothing(log, segments):
    start, version = log.topic("orders").offsets()[0][0], log.topic("orders").describe()["version"]

    found = segments("topic", "restore", log.uri, "orders", "--version", 2, "--dry-run", "--output", "json").json

    [line] = found["partitions"]
    assert found["dry_run"] and (line["log_start_offset"], line["log_end_offset"]) == (0, 105)
    assert (line["leaving"], line["returning"]) == ([100, 105], [0, start])
    assert log.topic("orders").describe()["version"] == version
    text = segments("topic", "restore", log.uri, "orders", "--version", 2, "--dry-run").text
    assert "5 offsets were given out after that version" in text

    done = segments("topic", "restore", log.uri, "orders", "--version", 2, "--output", "json").json
    assert done | {"seconds": 0} == found | {"dry_run": False, "seconds": 0}
    assert log.topic("orders").offsets() == {0: (0, 105)}


def test_a_time_names_the_last_version_that_was_there(log, segments):
    at = {commit["version"]: commit["committed_ms"] for commit in log.topic("orders").history()}
    last = max(version for version, committed_ms in at.items() if committed_ms <= at[2])
    found = segments("topic", "restore", log.uri, "orders", "--time", at[2], "--dry-run", "--output", "json").json
    assert found["details"]["version"] == last


def test_version_and_time_are_one_choice(run, log):
    assert run("topic", "restore", log.uri, "orders").code == 2
    assert run("topic", "restore", log.uri, "orders", "--version", 1, "--time", "now").code == 2
    refused = run("topic", "restore", log.uri, "orders", "--time", "3 days ago")
    shown = r"has no version of that time \(any more\) .*: expected a time from 20\S+T\S+Z on, found 20\S+T\S+Z\n"
    assert refused.code == 1 and re.search(shown, refused.error)


def test_python_takes_the_command_lines_words_for_times_and_durations(log):
    topic, hour_ms = log.topic("orders"), 3_600_000
    now = dt.datetime.now(dt.UTC)
    assert log.topic("orders", timestamp="in 1 hour").version == topic.version
    assert log.topic("orders", timestamp=now + dt.timedelta(hours=1)).version == topic.version
    with pytest.raises(InvalidOptionError, match="no version of that time"):
        log.topic("orders", timestamp="yesterday").offsets()

    first = topic.offsets_for_times(0)
    assert topic.offsets_for_times("yesterday") == topic.offsets_for_times(now - dt.timedelta(hours=1)) == first
    assert topic.offsets_for_times("tomorrow") == {0: None}
    said = topic.explain(0, timestamp_ms="2 days ago", every_ms="90m", now_ms="2100-01-01T00:00:00Z")
    assert said == topic.explain(0, timestamp_ms=0, every_ms=dt.timedelta(minutes=90), now_ms=dt.datetime(2100, 1, 1))
    assert said.every_ms == 1.5 * hour_ms and said.offset == first[0][0]

    at = log.storage.now_ms() + 8 * 24 * hour_ms
    for job in (maintenance.roll, maintenance.retain, maintenance.compact, maintenance.vacuum):
        by_words, by_number = (job(log, dry_run=True, now_ms=now_ms) for now_ms in ("in 8 days", at))
        assert by_words.partitions == by_number.partitions
    assert maintenance.roll(log, dry_run=True, now_ms="in 8 days").partitions != maintenance.roll(log).partitions
    with pytest.raises(InvalidOptionError, match="A duration needs a unit"):
        maintenance.retain(log, max_bytes=1, min_retention_ms="3")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer, expected", [("n\n", (1, 4)), ("y\n", (0, 5))])
def test_a_terminal_asks_before_records_leave_the_log(log, monkeypatch, capsysbinary, answer, expected):
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with pytest.raises(SystemExit) as ended:
        main(["topic", "restore", log.uri, "orders", "--version", "2"])
    assert "Their records leave the log (partition 0: 100 to 104)" in capsysbinary.readouterr().err.decode()
    assert (ended.value.code, log.topic("orders").describe()["version"]) == expected


def test_a_terminal_does_not_ask_with_yes(log, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal(""))
    with pytest.raises(SystemExit) as ended:
        main(["topic", "restore", log.uri, "orders", "--version", "2", "--yes"])
    assert ended.value.code == 0


def test_a_restore_warns_of_records_that_the_next_retain_takes(tmp_path, segments):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", config={"retention.ms": str(DAY_MS)})
    old = pa.array([(log.storage.now_ms() - 2 * DAY_MS) * 1000] * 3, pa.timestamp("us", tz="UTC"))
    log.topic("orders").append(pa.table({"value": ["a", "b", "c"], "timestamp": old}))
    log.topic("orders").append(pa.table({"value": ["d"]}))
    log.topic("orders").delete_records({0: 3})

    ran = segments("topic", "restore", log.uri, "orders", "--version", 2)

    assert "warning: 3 of 4 records are older than retention.ms" in ran.error
