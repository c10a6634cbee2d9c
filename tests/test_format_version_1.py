"""A log directory of format version 1 stays readable for ever: tests/golden/format-1 and the records it was given."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from tests.golden_files import GOLDEN, expected_records
from tests.witness import Witness, newest, read

WITNESS = Witness(GOLDEN / "format-1")
EXPECTED = WITNESS.expected
TOPICS = sorted(EXPECTED["topics"])
LATER_MS = 2_000_000_000_000


@pytest.fixture
def witness(tmp_path: Path) -> LogDir:
    """A copy of the directory: the one in tests/golden is never written to."""
    return LogDir.open(str(shutil.copytree(WITNESS.directory / "log", tmp_path / "log")))


def test_transactions_are_those_that_kafka_wrote(witness: LogDir) -> None:
    kafka = [record["offset"] for record in expected_records("txn-0") if record.get("committed")]

    assert [record["offset"] for record in read(witness, "txn", "read_committed")] == kafka


@pytest.mark.parametrize("topic", TOPICS)
def test_description_is_the_same(witness: LogDir, topic: str) -> None:
    found, expected = witness.topic(topic).describe(), EXPECTED["topics"][topic]

    assert found.pop("shared") == {"objects": 0, "size_bytes": 0}  # what format version 2 has besides
    assert found.pop("holes") == found.pop("captured") == []
    # A later release may know more settings: those of then keep their values.
    config, expected_config = found.pop("config"), dict(expected)["config"]
    assert {key: config[key] for key in expected_config} == expected_config
    assert found == {key: value for key, value in expected.items() if key != "config"}


@pytest.mark.slow
def test_it_verifies(witness: LogDir) -> None:
    assert verify(witness, deep=True).errors == 0


def test_appended_transactions_are_still_known(witness: LogDir) -> None:
    row = pa.table({"value": [b"again"]})

    for application, version in EXPECTED["transactions"]["codecs"].items():
        assert witness.topic("codecs").append(row, txn=(application, version)) == {}
    assert witness.topic("codecs").append(row, txn=("even", 26)) != {}


@pytest.mark.slow
def test_it_is_rolled_and_compacted_on(witness: LogDir) -> None:
    before = WITNESS.records("read_uncommitted")

    roll(witness, now_ms=LATER_MS)
    compact(witness, now_ms=LATER_MS)

    for topic in TOPICS:
        if topic == "compacted":
            after = read(witness, topic)
            assert all(record in before[topic] for record in after)
            assert newest(after) == newest(before[topic])
        else:
            assert read(witness, topic) == before[topic], topic
        assert all(partition["chunks"] == 0 for partition in witness.topic(topic).describe()["partitions"])
    assert verify(witness, deep=True).errors == 0


@pytest.mark.slow
def test_retention_and_vacuum_leave_what_no_policy_takes(witness: LogDir) -> None:
    before = WITNESS.records("read_uncommitted")

    roll(witness, topics=["trimmed"], now_ms=LATER_MS)
    retain(witness, topics=["trimmed"], now_ms=LATER_MS)
    vacuum(witness, now_ms=LATER_MS)

    assert read(witness, "trimmed") == []
    for topic in TOPICS:
        if topic != "trimmed":
            assert read(witness, topic) == before[topic], topic


@pytest.mark.slow
def test_it_is_upgraded_in_one_commit_and_goes_on(witness: LogDir) -> None:
    before = WITNESS.records("read_uncommitted")
    row = pa.table({"value": [b"again"]})

    for topic in TOPICS:
        version = witness.topic(topic).snapshot.version
        assert witness.topic(topic).upgrade(dry_run=True) == witness.topic(topic).upgrade()
        assert (witness.topic(topic).snapshot.version, witness.topic(topic).snapshot.format_version) == (version + 1, 2)
        assert read(witness, topic) == before[topic], topic
    for application, version in EXPECTED["transactions"]["codecs"].items():
        assert witness.topic("codecs").append(row, txn=(application, version)) == {}
    roll(witness, now_ms=LATER_MS)
    compact(witness, now_ms=LATER_MS)
    vacuum(witness, now_ms=LATER_MS)
    assert verify(witness, deep=True).errors == 0
