"""What the report of verify holds, and what is an error instead."""

from __future__ import annotations

import dataclasses

import pytest

from spark_segments import LogDir
from spark_segments.errors import UnknownTopicError
from spark_segments.log.findings import Finding
from spark_segments.maintenance import verify
from tests.maintenance.verification.topics import segment
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.manifest_rows import Partition


def test_an_unknown_topic_is_an_error_and_no_finding(log):
    with pytest.raises(UnknownTopicError):
        verify(log, topics=["order"])
    with pytest.raises(UnknownTopicError):
        verify(LogDir.open(str(golden_dir("plain-0"))), topics=["order"])


def test_the_report_has_plain_values(log, directory):
    (directory / segment(log, "orders").index_path).unlink()
    said = verify(log, deep=True).to_dict()
    [finding] = said["findings"]
    assert (said["job"], said["ok"], said["errors"], said["details"]["deep"]) == ("verify", False, 1, True)
    assert finding == {
        "severity": "error",
        "topic": "orders",
        "partition": 0,
        "path": segment(log, "orders").index_path,
        "byte_position": None,
        "expected": f"{segment(log, 'orders').index_bytes} bytes",
        "found": "no file",
        "message": "A segment's .index is missing",
        "rule": "I8",
    }


def test_findings_of_one_kind_are_kept_up_to_a_number(log, monkeypatch):
    snapshot = log.topic("txn").snapshot
    batches = sum(row.batches for row in snapshot.live_of(0))
    lying = dataclasses.replace(
        snapshot,
        partitions=Partition.table(
            [dataclasses.replace(Partition.of_table(snapshot.partitions)[0], leader_epochs=((7, 0),), leader_epoch=7)]
        ),
    )
    monkeypatch.setattr(log, "snapshot", lambda topic, *at: lying)
    report = verify(log, topics=["txn"], deep=True)
    assert len(report.findings) == 20 * 5 + 5  # 20 a segment, all of the last one's
    assert len(report.findings) + report.details["findings_left_out"] == batches


@pytest.mark.parametrize(
    "facts, text", [({"found": "3"}, ": found 3"), ({"expected": "2"}, ": expected 2"), ({}, ": It is not so")]
)
def test_a_finding_names_the_facts_that_it_has(facts, text):
    finding = Finding(severity="error", topic="orders", partition=0, path=None, message="It is not so", **facts)
    assert str(finding).endswith(text) and "None" not in str(finding)
