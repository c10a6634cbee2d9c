"""A log directory of format version 1 stays readable for ever: tests/golden/format-1 and the records it was given."""

from __future__ import annotations

import base64
import json
import lzma
import shutil
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.log.verification.verify import verify
from spark_segments.maintenance import compact, retain, roll, vacuum
from tests.golden_files import GOLDEN, expected_records

WITNESS = GOLDEN / "format-1"
EXPECTED = json.loads((WITNESS / "expected.json").read_text())
TOPICS = sorted(EXPECTED["topics"])
LATER_MS = 2_000_000_000_000


@pytest.fixture
def witness(tmp_path: Path) -> LogDir:
    """A copy of the directory: the one in tests/golden is never written to."""
    return LogDir.open(str(shutil.copytree(WITNESS / "log", tmp_path / "log")))


def _expected(isolation_level: str) -> dict[str, list[dict]]:
    records: dict[str, list[dict]] = defaultdict(list)
    for line in lzma.decompress((WITNESS / "records.jsonl.xz").read_bytes()).decode().splitlines():
        record = json.loads(line)
        if record.pop("isolation") == isolation_level:
            records[record.pop("topic")].append(record)
    return records


def _read(log: LogDir, topic: str, isolation_level: str = "read_uncommitted") -> list[dict]:
    records = []
    for batch in log.read(topic, isolation_level=isolation_level):
        timestamps_us = batch.column("timestamp").cast(pa.int64()).to_pylist()
        rows = batch.drop_columns(["timestamp", "topic"]).to_pylist()
        for row, timestamp_us in zip(rows, timestamps_us, strict=True):
            headers = [[header["key"], _base64(header["value"])] for header in row["headers"]]
            key, value = _base64(row["key"]), _base64(row["value"])
            records.append({**row, "key": key, "value": value, "headers": headers, "timestamp": timestamp_us // 1000})
    return records


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _newest(records: list[dict]) -> dict[tuple[int, str], tuple[int, str]]:
    """{(partition, key): (offset, value)} of the keys whose newest record is no tombstone."""
    newest = {(record["partition"], record["key"]): (record["offset"], record["value"]) for record in records}
    return {key: found for key, found in newest.items() if found[1] is not None}


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_every_record_reads_as_it_was_written(witness: LogDir, isolation_level: str) -> None:
    expected = _expected(isolation_level)

    assert witness.topics() == TOPICS
    for topic in TOPICS:
        assert _read(witness, topic, isolation_level) == expected[topic], topic


def test_transactions_are_those_that_kafka_wrote(witness: LogDir) -> None:
    kafka = [record["offset"] for record in expected_records("txn-0") if record.get("committed")]

    assert [record["offset"] for record in _read(witness, "txn", "read_committed")] == kafka


@pytest.mark.parametrize("topic", TOPICS)
def test_description_is_the_same(witness: LogDir, topic: str) -> None:
    found, expected = witness.describe(topic), EXPECTED["topics"][topic]

    assert found.pop("shared") == {"objects": 0, "size_bytes": 0}  # what format version 2 has besides
    # A later release may know more settings: those of then keep their values.
    config, expected_config = found.pop("config"), dict(expected)["config"]
    assert {key: config[key] for key in expected_config} == expected_config
    assert found == {key: value for key, value in expected.items() if key != "config"}


def test_it_verifies(witness: LogDir) -> None:
    assert verify(witness, deep=True).errors == 0


def test_appended_transactions_are_still_known(witness: LogDir) -> None:
    row = pa.table({"value": [b"again"]})

    for application, version in EXPECTED["transactions"]["codecs"].items():
        assert witness.append("codecs", row, txn=(application, version)) == {}
    assert witness.append("codecs", row, txn=("even", 26)) != {}


def test_it_is_rolled_and_compacted_on(witness: LogDir) -> None:
    before = _expected("read_uncommitted")

    roll(witness, now_ms=LATER_MS)
    compact(witness, now_ms=LATER_MS)

    for topic in TOPICS:
        if topic == "compacted":
            after = _read(witness, topic)
            assert all(record in before[topic] for record in after)
            assert _newest(after) == _newest(before[topic])
        else:
            assert _read(witness, topic) == before[topic], topic
        assert all(partition["chunks"] == 0 for partition in witness.describe(topic)["partitions"])
    assert verify(witness, deep=True).errors == 0


def test_retention_and_vacuum_leave_what_no_policy_takes(witness: LogDir) -> None:
    before = _expected("read_uncommitted")

    roll(witness, topic="trimmed", now_ms=LATER_MS)
    retain(witness, topic="trimmed", now_ms=LATER_MS)
    vacuum(witness, now_ms=LATER_MS)

    assert _read(witness, "trimmed") == []
    for topic in TOPICS:
        if topic != "trimmed":
            assert _read(witness, topic) == before[topic], topic


def test_it_is_upgraded_in_one_commit_and_goes_on(witness: LogDir) -> None:
    before = _expected("read_uncommitted")
    row = pa.table({"value": [b"again"]})

    for topic in TOPICS:
        version = witness.snapshot(topic).version
        assert witness.upgrade_topic(topic, dry_run=True) == witness.upgrade_topic(topic)
        assert (witness.snapshot(topic).version, witness.snapshot(topic).format_version) == (version + 1, 2)
        assert _read(witness, topic) == before[topic], topic
    for application, version in EXPECTED["transactions"]["codecs"].items():
        assert witness.append("codecs", row, txn=(application, version)) == {}
    roll(witness, now_ms=LATER_MS)
    compact(witness, now_ms=LATER_MS)
    vacuum(witness, now_ms=LATER_MS)
    assert verify(witness, deep=True).errors == 0
