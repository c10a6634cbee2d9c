"""A log directory of format version 2 stays readable for ever: tests/golden/format-2 and the records it was given."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import TransactionOrderError
from spark_segments.log.appending.append import append_target
from spark_segments.log.manifest.state.recovery_copy import read_recovery_copy
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from verification.specification.specification_reader import KafkaPartition, ManagedLog
from verification.specification.witness import Witness, newest, read
from verification.world.kafka_bytes.golden_files import GOLDEN, golden_dir
from verification.world.manifest_rows import Segment, Transaction, every_row

WITNESS = Witness(GOLDEN / "format-2")
EXPECTED = WITNESS.expected
TOPICS = sorted(EXPECTED["topics"])
LATER_MS = 2_000_000_000_000


@pytest.fixture
def witness(tmp_path: Path) -> LogDir:
    """A copy of the directory: the one in tests/golden is never written to."""
    return LogDir.open(str(shutil.copytree(WITNESS.directory / "log", tmp_path / "log")))


def _rows(log: LogDir, topic: str) -> list[Segment]:
    """All rows, also those of a deleted topic of the same name."""
    return every_row(log, topic)


def test_it_holds_what_format_2_has(witness):
    """What the directory is for: were it written anew without some of this, the tests below would show less."""
    kinds = Counter((row.state, row.is_shared) for topic in [*TOPICS, "gone"] for row in _rows(witness, topic))
    shared = {row.path for row in _rows(witness, "shared") if row.is_shared and row.state == "chunk"}

    every_kind = {(state, is_shared) for state in ("chunk", "removed") for is_shared in (False, True)}
    assert set(kinds) == every_kind | {("sealed", False), ("deleting", True)}
    assert len(shared) == 2 and all(path.startswith("shared-shared/") for path in shared)
    assert witness.topic("codecs").snapshot.states["role"] == "leader"
    assert witness.topic("prices").snapshot.partition(0).leader_epochs == ((0, 0), (1, 9))
    assert len(witness.topic("trimmed").snapshot.deleted_topics) == 1
    queries = {one.application: one.query_id for one in witness.topic("codecs").manifest.state().last_transactions()}
    assert queries == {"even": None, "odd": None, "stream": "query-1"}


def test_the_reader_of_the_specification_knows_the_transactions_of_writers():
    log = ManagedLog(WITNESS.directory / "log")

    for topic in TOPICS:
        transactions = {name.partition("@")[0]: at for name, at in log.snapshot(topic).transactions.items()}
        assert transactions == EXPECTED["transactions"][topic]


def test_transactions_are_those_that_kafka_wrote(witness):
    kafka = KafkaPartition(golden_dir("broker-data/payments-0"))
    committed = [record.offset for _, record in kafka.records(committed=True)]

    assert [record["offset"] for record in read(witness, "payments", "read_committed")] == committed
    assert len(committed) < len(read(witness, "payments"))


@pytest.mark.parametrize("topic", TOPICS)
def test_description_is_the_same(witness, topic):
    found, expected = witness.topic(topic).describe(), dict(EXPECTED["topics"][topic])

    # A later release may know more settings and say more: those of then keep their values.
    expected_config = expected.pop("config")
    assert {key: found["config"][key] for key in expected_config} == expected_config
    lines, expected_lines = found["partitions"], expected.pop("partitions")
    assert [
        {key: line[key] for key in known} for line, known in zip(lines, expected_lines, strict=True)
    ] == expected_lines
    assert {key: found[key] for key in expected} == expected


def test_it_verifies_without_findings(witness):
    report = verify(witness, deep=True)
    assert report.ok and not report.findings, report.findings


def test_appended_transactions_are_still_known(witness):
    row = pa.table({"value": [b"again"]})

    for application in ("even", "odd"):
        last = EXPECTED["transactions"]["codecs"][application]
        assert witness.topic("codecs").append(row, txn=(application, last)) == {}
        assert witness.topic("codecs").append(row, txn=(application, last + 1)) != {}
    assert append_target(witness, "codecs", Transaction("stream", 5, "query-1")).repeated
    with pytest.raises(TransactionOrderError, match="query-1"):
        append_target(witness, "codecs", Transaction("stream", 5, "query-2"))


def test_it_is_appended_to_rolled_and_compacted_on(witness):
    before = WITNESS.records("read_uncommitted")
    row = pa.table({"key": [b"k"] * 8, "value": [b"new"] * 8, "partition": pa.array(range(8), pa.int32())})

    ends = {number: end for number, (_, end) in witness.topic("shared").offsets().items()}
    assert witness.topic("shared").append(row) == {number: (ends[number], ends[number]) for number in range(8)}
    roll(witness, now_ms=LATER_MS)
    compact(witness, now_ms=LATER_MS)

    for topic in TOPICS:
        after = [record for record in read(witness, topic) if record["value"] != "bmV3"]
        if topic == "compacted":
            assert all(record in before[topic] for record in after)
            assert newest(after) == newest(before[topic])
        else:
            assert after == before[topic], topic
        assert all(partition["chunks"] == 0 for partition in witness.topic(topic).describe()["partitions"])
    assert verify(witness, deep=True).ok


def test_an_export_stamps_the_epochs_of_both_leaders(witness, tmp_path):
    witness.export_kafka(str(tmp_path / "kafka"))

    kafka = KafkaPartition(tmp_path / "kafka" / "prices-0")
    epochs = {batch.base_offset: batch.leader_epoch for batch in kafka.batches}
    assert epochs == {0: 0, 3: 0, 6: 0, 9: 1, 12: 1, 15: 1}


@pytest.mark.proof
def test_retention_and_vacuum_leave_what_no_policy_takes(witness):
    before = WITNESS.records("read_uncommitted")

    roll(witness, topics=["trimmed"], now_ms=LATER_MS)
    retain(witness, topics=["trimmed"], now_ms=LATER_MS)
    vacuum(witness, now_ms=LATER_MS)

    assert read(witness, "trimmed") == []
    for topic in TOPICS:
        if topic != "trimmed":
            assert read(witness, topic) == before[topic], topic
    left = {topic: {row.state for row in _rows(witness, topic)} for topic in [*TOPICS, "gone"]}
    assert all(states <= {"chunk", "sealed"} for states in left.values())
    assert not witness.storage.list("trimmed-shared") and not witness.storage.list("gone-0")
    report = verify(witness, deep=True)
    assert report.ok and not report.findings, report.findings


def test_a_recovery_copy_says_what_its_version_held(witness):
    copy = read_recovery_copy(witness.storage, "codecs")

    said = witness.topic("codecs", copy.snapshot.version).snapshot
    assert copy.snapshot.partitions.equals(said.partitions)
    assert copy.snapshot.source.read(None).equals(said.source.read(None))
    assert {one.application: one.version for one in copy.transactions} == {"even": 18, "odd": 16}


def test_recovery_copies_and_their_files_are_as_the_specification_says():
    log = WITNESS.directory / "log"
    indexes = sorted((log / "_recovery").glob("*/*.json"))

    assert [path.parent.name for path in indexes] == ["codecs", "trimmed"]
    for path in indexes:
        index = json.loads(path.read_text())
        manifest = log / "_manifest" / index["topic"]
        assert (index["format.version"], "transactions" in index) == (1, False)
        assert f"{index['version']:020d}" == path.stem
        there = {file["path"] for file in index["files"] if (manifest / file["path"]).exists()}
        assert there and all((path.parent / file["path"]).exists() for file in index["files"])
        assert all((manifest / one).read_bytes() == (path.parent / one).read_bytes() for one in there)
