"""A writer that breaks one rule in silence is found, with the rule's number; one that breaks none is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from spark_segments import LogDir
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
    assert FAULTS[fault] in rules and rules <= {FAULTS[fault], "W23"}  # a commit without an id has no note, too


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
