"""`consume --key` prints what a full scan's filter leaves, with an index of keys or without."""

from __future__ import annotations

import pytest

from spark_segments import LogDir
from spark_segments.keys.job import index
from spark_segments.maintenance import erase, restore
from verification.world.kafka_bytes.golden_files import golden_dir


@pytest.fixture
def log(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("users", 3)
    for number in range(4):
        rows = [{"key": f"user-{row % 5}", "value": f"{number}.{row}", "partition": row % 3} for row in range(30)]
        log.topic("users").append(rows)
    return log


def values(log, key):
    rows = log.topic("users").scan(columns=["key", "value"]).to_table().to_pylist()
    return [row["value"].decode() for row in rows if row["key"] == key.encode()]


def found(segments, log, key, *more):
    ran = segments("consume", log.uri, "users", "--key", key, "-f", "%v;", *more)
    return ran.text.split(";")[:-1], ran.error


@pytest.mark.parametrize("state", ["none", "fresh", "stale", "damaged", "missing", "restored", "erased"])
def test_the_records_of_a_key_are_those_of_a_full_scan(segments, log, tmp_path, state):
    version = log.topic("users").version
    if state != "none":
        index(log)
    if state == "stale":
        log.topic("users").append([{"key": "user-3", "value": "new", "partition": number} for number in range(3)])
    if state == "restored":
        log.topic("users").append([{"key": "user-3", "value": "later"}])
        index(log)
        restore(log, topics=["users"], version=version)
    if state == "erased":
        erase(log, topics=["users"], keys=[b"user-1"])
    for path in tmp_path.glob("log/_keys/users/key/runs/*.run"):
        if state == "damaged":
            path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
        if state == "missing":
            path.unlink()
    for key in ("user-3", "user-1", "nobody"):
        assert found(segments, log, key)[0] == values(log, key)
        assert segments("consume", log.uri, "users", "--key", key, "--count").text == f"{len(values(log, key))}\n"


def test_a_line_on_standard_error_says_what_was_looked_at(segments, log):
    assert "120 offsets scanned" in found(segments, log, "user-3")[1]
    index(log)
    log.topic("users").append([{"key": "user-3", "value": "new"}])
    error = found(segments, log, "user-3")[1]
    assert "answered for 120 offsets (3 runs, " in error and "; 1 offset scanned" in error
    assert found(segments, log, "user-3", "--quiet")[1] == ""
    assert found(segments, log, "user-3", "--tail", "2")[1] == ""


def test_records_of_transactions_are_those_of_a_scan(segments, tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.import_kafka(str(golden_dir("txn-0")), "txn")
    index(log)
    for level in ("read_uncommitted", "read_committed"):
        table = log.topic("txn").scan(columns=["key"], isolation=level).to_table()
        for key in set(table.column("key").to_pylist()) - {None}:
            expected = table.column("key").to_pylist().count(key)
            command = ("consume", log.uri, "txn", "--key", key.decode(), "--count", "--isolation-level", level)
            assert segments(*command).text == f"{expected}\n"


def test_the_newest_record_of_a_key_is_printed_alone(segments, run, log):
    log.topic("users").append([{"key": "user-9", "value": "old"}, {"key": "user-9", "value": "newest"}])
    index(log)
    assert found(segments, log, "user-9", "--latest")[0] == ["newest"]
    log.topic("users").append([{"key": "user-9", "value": "after the index"}])
    assert found(segments, log, "user-9", "--latest")[0] == ["after the index"]
    ran = run("consume", log.uri, "users", "--latest")
    assert ran.code != 0 and "--key" in ran.error
