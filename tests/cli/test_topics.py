from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.maintenance import roll


@pytest.fixture
def uri(tmp_path) -> str:
    return str(tmp_path / "log")


def test_create_makes_the_log_directory_and_the_topic(segments, uri):
    ran = segments(
        "topic",
        "create",
        uri,
        "orders",
        "--partitions",
        6,
        "--config",
        "retention.ms=1000,cleanup.policy=[compact,delete]",
    )
    assert ran.text == "Created topic orders.\n"
    described = LogDir.open(uri).topic("orders").describe()
    assert len(described["partitions"]) == 6
    assert (described["config"]["retention.ms"], described["config"]["cleanup.policy"]) == ("1000", "compact,delete")


def test_create_again_is_an_error_unless_if_not_exists(run, segments, uri):
    segments("topic", "create", uri, "orders")
    assert "orders" in run("topic", "create", uri, "orders").error
    segments("topic", "create", uri, "orders", "--if-not-exists")


def test_list(segments, uri):
    for name in ("orders", "prices"):
        segments("topic", "create", uri, name)
    assert segments("topic", "list", uri).lines == ["orders", "prices"]
    listed = segments("topic", "list", uri, "--output", "json").json
    sizes = {"partitions": 1, "segments": 0, "records": 0, "bytes": 0, "removed_bytes": 0}
    assert listed == [{"topic": name} | sizes for name in ("orders", "prices")]


def test_sizes_have_what_waits_for_vacuum(segments, uri):
    """Together they are what `du` says of the .log files."""
    segments("topic", "create", uri, "orders")
    for _ in range(2):
        LogDir.open(uri).topic("orders").append([{"key": "a", "value": "1" * 1000}])
    roll(LogDir.open(uri), now_ms=2**41)
    size = sum(file.stat().st_size for file in Path(uri).rglob("*.log"))
    [listed] = segments("topic", "list", uri, "--output", "json").json
    assert listed["removed_bytes"] > 100 and listed["bytes"] + listed["removed_bytes"] == size
    wide = segments("topic", "list", uri, "--output", "wide")
    assert wide.lines[1].split("\t")[-2:] == [str(listed["bytes"]), str(listed["removed_bytes"])]
    assert "wait for vacuum" in wide.error


def test_list_of_no_topics_is_empty(segments, uri):
    LogDir.create(uri)
    assert segments("topic", "list", uri).text == ""


def test_describe_shows_own_settings_and_partitions(segments, uri):
    segments("topic", "create", uri, "orders", "--partitions", 2, "--config", "segment.bytes=65536")
    segments("append", uri, "orders", "--partition", 1, stdin=b"a\nb\n")
    lines = segments("describe", uri, "orders").lines
    assert lines[0].startswith("Topic: orders  TopicId: ")
    assert lines[0].endswith("Configs: segment.bytes=65536")
    assert lines[1].split()[:3] == ["partition", "log_start_offset", "log_end_offset"]
    assert [line.split()[:3] for line in lines[2:]] == [["0", "0", "0"], ["1", "0", "2"]]


def test_describe_as_json_is_what_logdir_describes(segments, uri):
    segments("topic", "create", uri, "orders")
    described = LogDir.open(uri).topic("orders").describe()
    assert segments("describe", uri, "orders", "--output", "json").json == described
    assert segments("describe", uri, "--output", "json").json == [described]


def test_describe_takes_the_defaults_file_for_what_the_topic_does_not_set(segments, uri, tmp_path):
    (tmp_path / "server.properties").write_text("log.retention.hours=1\n")
    segments("topic", "create", uri, "orders")
    described = segments("describe", uri, "orders", "--defaults", tmp_path / "server.properties", "--output", "json")
    assert described.json["config"]["retention.ms"] == "3600000"


def test_alter_sets_and_takes_away_settings_and_adds_partitions(segments, uri):
    segments("topic", "create", uri, "orders", "--config", "retention.ms=1000")
    segments(
        "topic",
        "alter",
        uri,
        "orders",
        "--config",
        "cleanup.policy=compact",
        "--delete-config",
        "retention.ms",
        "--partitions",
        3,
    )
    log = LogDir.open(uri)
    assert log.topic("orders").snapshot.config == {"cleanup.policy": "compact"}
    assert list(log.topic("orders").offsets()) == [0, 1, 2]


def test_partitions_are_never_taken_away(run, segments, uri):
    segments("topic", "create", uri, "orders", "--partitions", 3)
    assert run("topic", "alter", uri, "orders", "--partitions", 2).code == 1


def test_delete(run, segments, uri):
    segments("topic", "create", uri, "orders")
    assert segments("topic", "delete", uri, "orders").text == "Deleted topic orders.\n"
    assert LogDir.open(uri).topics() == []
    assert run("topic", "delete", uri, "orders").code == 1
    segments("topic", "delete", uri, "orders", "--if-exists")


def test_restore_brings_back_what_delete_records_took(segments, uri):
    segments("topic", "create", uri, "orders")
    segments("append", uri, "orders", stdin=b"a\nb\nc\n")
    version = LogDir.open(uri).topic("orders").snapshot.version
    segments("delete-records", uri, "orders", "--before-offset", 2)
    restored = segments("topic", "restore", uri, "orders", "--version", version, "--output", "json").json
    [line] = restored["partitions"]
    assert (line["partition"], line["log_start_offset"], line["log_end_offset"]) == (0, 0, 3)
    assert segments("consume", uri, "orders").lines == ["a", "b", "c"]


def test_an_unreadable_topic_is_reported_and_deleted_by_force(run, segments, uri, tmp_path):
    for name in ("bad", "good"):
        segments("topic", "create", uri, name)
    (tmp_path / "log" / "_manifest" / "bad" / "_delta_log" / f"{0:020d}.json").write_text("not JSON")
    assert segments("topic", "list", uri).lines == ["bad", "good"]
    described = run("describe", uri, "--output", "json")
    assert (described.code, [one["topic"] for one in described.json]) == (1, ["good"])
    assert described.error.startswith("error: bad: ")
    assert run("topic", "delete", uri, "bad").code == 1
    assert "by force" in run("topic", "delete", uri, "bad").error
    assert segments("topic", "delete", uri, "bad", "--force").text == "Deleted topic bad.\n"
    assert segments("topic", "list", uri).lines == ["good"]
    assert segments("describe", uri, "--output", "json").json[0]["topic"] == "good"


def test_vacuum_reports_an_unreadable_topic_with_or_without_its_name(run, segments, uri, tmp_path):
    segments("topic", "create", uri, "bad")
    (tmp_path / "log" / "_manifest" / "bad" / "_delta_log" / f"{0:020d}.json").write_text("not JSON")
    for arguments in ((), ("bad",)):
        ran = run("vacuum", uri, "--output", "json", *arguments)
        assert (ran.code, ran.json["failed"]) == (1, 1)
        assert ran.error.startswith("error: bad: ")


def test_restore_names_the_transactions_that_it_takes_back_and_forgets_them_on_request(segments, uri):
    segments("topic", "create", uri, "orders")
    log = LogDir.open(uri)
    wanted = log.topic("orders").snapshot.version
    for version in (3, 4, 5, 9):
        log.topic("orders").append(pa.table({"value": ["a"]}), ("loader", version))
    command = ("topic", "restore", uri, "orders", "--version", wanted)
    lines = segments(*command).lines
    at = lines.index(f"Transactions above version {wanted}, which add nothing if repeated (--forget-transactions):")
    assert lines[at + 1].split() == ["app_id", "versions", "kept_version"]
    assert lines[at + 2].split()[:3] == ["loader", "3-5,", "9"]
    assert log.topic("orders").append(pa.table({"value": ["a"]}), ("loader", 9)) == {}
    restored = segments(*command, "--forget-transactions", "--output", "json").json
    assert restored["details"]["transactions"] == [{"app_id": "loader", "versions": [3, 4, 5, 9], "kept_version": None}]
    assert restored["details"]["transactions_forgotten"] is True
    assert log.topic("orders").append(pa.table({"value": ["a"]}), ("loader", 3)) == {0: (4, 4)}
    latest = log.topic("orders").snapshot.version
    assert "Transactions" not in segments("topic", "restore", uri, "orders", "--version", latest).text


def test_an_alteration_says_what_retention_takes_by_it(run, segments, tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", config={"segment.bytes": "1000", "retention.ms": "-1"})
    for _ in range(5):
        log.topic("orders").append([{"value": random.Random(1).randbytes(900)}])
    roll(log, now_ms=log.storage.now_ms() + 8 * 86_400_000)
    before = log.topic("orders").snapshot
    ran = segments("topic", "alter", log.uri, "orders", "--config", "retention.bytes=2000", "--dry-run")
    assert "take 2 records" in ran.error and ran.text == "Would alter topic orders.\n"
    assert log.topic("orders").snapshot == before
    assert "take" not in segments("topic", "alter", log.uri, "orders", "--config", "retention.bytes=100000").error
    assert "Nothing to alter" in run("topic", "alter", log.uri, "orders").error
    for wrong in (["--partitions", 0], ["--config", "retention.ms=soon"], ["--config", "cleanup.policy=none"]):
        assert run("topic", "alter", log.uri, "orders", *wrong, "--dry-run").code == 1
    assert log.topic("orders").snapshot.config == before.config | {"retention.bytes": "100000"}
