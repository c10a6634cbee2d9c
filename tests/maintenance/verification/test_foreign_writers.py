"""A writer that breaks one rule in silence is found, with the rule's number; one that breaks none is not."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.log import Change, Snapshot
from spark_segments.maintenance import verify
from verification.specification.specification_appender import CHECKPOINT_VERSIONS, FAULTS, Appender
from verification.specification.specification_writer import Record

CONFIG = {"segment.bytes": "100000", "max.message.bytes": "20000", "cleanup.policy": "compact"}


def written(root: Path, fault: str | None) -> LogDir:
    """A topic that this package made, and to which another writer has appended."""
    log = LogDir.create(str(root))
    log.create_topic("orders", partitions=2, config=CONFIG)
    appender = Appender(root, "orders", fault)
    records = [Record(0, b"v" * 3000, b"k%d" % number) for number in range(40)]
    if fault == "no key":
        records[7] = dataclasses.replace(records[7], key=None)
    if fault == "no checkpoint":
        for number in range(2 * CHECKPOINT_VERSIONS + 1):
            appender.append({0: records[number % 40 :][:1]})
    else:
        appender.append({0: records, 1: records[:1]}, ("feed", 1))
    return LogDir.open(str(root))


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_writer_does_wrong_is_found_with_its_rule(fault, tmp_path):
    log = written(tmp_path, fault)
    rules = {finding.rule for finding in verify(log, deep=True).findings}
    assert rules == {FAULTS[fault]}


def test_partitions_that_were_added_later_excuse_no_missing_epochs(tmp_path):
    """The entry of their addition is that of a topic made here: an import has one that says nothing of the time."""
    log = written(tmp_path, None)
    log.topic("orders").alter(partitions=3)
    Appender(tmp_path, "orders", "no epochs").append({0: [Record(0, b"v", b"k")], 2: [Record(0, b"v", b"k")]})
    findings = verify(log, deep=True).findings
    assert [(finding.rule, finding.partition) for finding in findings] == [("M13", 0), ("M13", 2)]


def as_imported_by_an_earlier_version(at: Snapshot) -> Change:
    """Files of old magics, without a producer snapshot: no epochs, and no note of where the copy ended."""
    partitions = [dataclasses.replace(row, leader_epochs=()) for row in at.partition_rows]
    topic = dataclasses.replace(at.topic_row, states={"partitions_added": "[]"})
    return Change("import", partitions=partitions, topic=topic)


def test_partitions_that_an_earlier_version_imported_need_no_epochs_when_others_are_added(tmp_path):
    log = written(tmp_path, None)
    topic = log.topic("orders")
    topic.manifest.commit(as_imported_by_an_earlier_version)
    assert verify(log).findings == []
    topic.alter(partitions=3)
    assert topic.snapshot.states == {"partitions_added": "[[40,1]]"}
    assert verify(log).findings == []
    Appender(tmp_path, "orders", "no epochs").append({2: [Record(0, b"v", b"k")]})
    assert [(finding.rule, finding.partition) for finding in verify(log).findings] == [("M13", 2)]


def test_a_writer_that_does_nothing_wrong_has_no_finding(tmp_path):
    log = written(tmp_path, None)
    report = verify(log, deep=True)
    assert report.findings == [] and report.warnings == []


def test_records_are_judged_by_the_settings_at_their_commit(tmp_path):
    """Not by those of today: a topic that was altered since has no fault, and what came after the change has."""
    log = written(tmp_path, None)
    topic = log.topic("orders")
    topic.alter({"max.message.bytes": "5000", "segment.bytes": "6000"})
    assert verify(log, deep=True).findings == []
    topic.alter({"max.message.bytes": "4000"})
    Appender(tmp_path, "orders", "large batch").append({0: [Record(0, b"v" * 3000, b"k")] * 2})
    findings = verify(log, deep=True).findings
    assert {finding.rule for finding in findings} == {"M30"} and len(findings) == 1


def test_settings_of_a_commit_that_cannot_be_read_are_a_warning(tmp_path):
    """Another writer set a value that is none. What came while it was set is held against nothing."""
    log = written(tmp_path, None)
    appender = Appender(tmp_path, "orders", "large batch")
    appender.alter({"retention.ms": "soon"})
    appender.append({0: [Record(0, b"v" * 3000, b"k")] * 9})
    log.topic("orders").alter({"retention.ms": "-1"})
    report = verify(log, deep=True)
    assert report.findings == []
    [warning] = report.warnings
    assert "settings" in warning and "version 2" in warning and "soon" in warning
    appender.append({0: [Record(0, b"v" * 3000, b"k")] * 9})
    assert {finding.rule for finding in verify(log, deep=True).findings} == {"M30"}


def altered(root: Path) -> tuple[LogDir, Path]:
    """A topic whose settings were changed, then appended to with a batch that is too large, in a directory that nobody
    has read. And the file of rows that has the settings of before.
    """
    log = written(root / "read", None)
    [path] = Path(root, "read/_manifest/orders/kind=topic").glob("*.parquet")
    log.topic("orders").alter({"max.message.bytes": "4000"})
    log.topic("orders").alter({"max.message.bytes": "5000"})
    Appender(root / "read", "orders", "large batch").append({0: [Record(0, b"v" * 3000, b"k")] * 2})
    copy = shutil.copytree(root / "read", root / "copy")
    return LogDir.open(str(copy)), copy / path.relative_to(root / "read")


def test_a_damaged_file_of_earlier_settings_is_a_warning(tmp_path):
    log, path = altered(tmp_path)
    path.write_bytes(path.read_bytes()[:40])
    report = verify(log, deep=True)
    assert {finding.rule for finding in report.findings} == {"M30"}
    [warning] = report.warnings
    assert "settings" in warning and path.name in warning


def test_settings_that_vacuum_took_are_no_warning(tmp_path):
    log, path = altered(tmp_path)
    path.unlink()
    report = verify(log, deep=True)
    assert {finding.rule for finding in report.findings} == {"M30"} and report.warnings == []


@pytest.mark.parametrize("damage", ["bounds", "list", "commit"])
def test_an_early_commit_that_cannot_be_read_is_a_warning(tmp_path, limits, damage):
    """A checkpoint has what it said: the latest version is read without it."""
    limits(CHECKPOINT_VERSIONS=3, FEWEST_RUNS=2)
    log = LogDir.create(str(tmp_path))
    log.create_topic("orders", partitions=2)
    for _ in range(8):
        log.topic("orders").append([{"partition": number, "value": b"v"} for number in range(2)])
    assert log.topic("orders").snapshot.live_of(0)[-1].is_shared
    for version in (2, 3):
        path = tmp_path / f"_manifest/orders/_delta_log/{version:020d}.json"
        actions = [json.loads(line) for line in path.read_bytes().splitlines()]
        for action in actions:
            if "add" in action:
                action["add"]["stats"] = "{" if damage == "bounds" else "[1]"
        path.write_text("{" if damage == "commit" else "\n".join(map(json.dumps, actions)))
    for deep in (False, True):
        report = verify(LogDir.open(str(tmp_path)), deep=deep)
        warnings = [text for text in report.warnings if text.startswith("The commit of")]
        assert report.findings == [] and len(warnings) == deep
        assert all("version 2 of topic orders cannot be read" in text for text in warnings)
