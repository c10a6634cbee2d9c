"""Verify finds planted faults, of files and of rows, with their places, and changes nothing."""

from __future__ import annotations

import dataclasses

import pytest

from spark_segments import LogDir
from spark_segments.log.findings import Finding
from spark_segments.maintenance import Report, verify
from spark_segments.maintenance.verification.keys import KeysTask, verify_keys
from tests.log.golden_reads import as_records, tree
from tests.maintenance.verification.file_faults import FILE_FAULTS
from tests.maintenance.verification.row_faults import ROW_FAULTS
from tests.maintenance.verification.topics import has
from verification.world.kafka_bytes.golden_files import expected_records, golden_dir
from verification.world.kafka_bytes.segment_bytes import AbortedTransactions
from verification.world.manifest_rows import Partition, Segment, SegmentRows


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", FILE_FAULTS)
def test_a_fault_in_a_file_is_found_with_its_place(name, directory):
    fault, deep = FILE_FAULTS[name]
    place = fault(LogDir.open(str(directory)), directory)
    before = tree(directory)
    log = LogDir.open(str(directory))
    report = verify(log, deep=True)
    assert has(report, place), [str(finding) for finding in report.findings]
    assert has(verify(log), place) != deep
    assert tree(directory) == before


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", ROW_FAULTS)
def test_a_row_that_lies_is_found(name, log, monkeypatch):
    topic, fault, deep = ROW_FAULTS[name]
    snapshot = log.topic(topic).snapshot
    segments, partitions = Segment.of_table(snapshot.live), Partition.of_table(snapshot.partitions)
    path, partition = fault(segments, partitions)
    lying = dataclasses.replace(
        snapshot, partitions=Partition.table(partitions), source=SegmentRows(Segment.table(segments))
    )
    monkeypatch.setattr(log, "snapshot", lambda topic, *at: lying)

    def found(report: Report) -> list[Finding]:
        return [one for one in report.findings if one.partition == partition and (path is None or one.path == path)]

    assert found(verify(log, topics=[topic], deep=True)), name
    assert bool(found(verify(log, topics=[topic]))) != deep


def test_there_are_many_faults():
    assert len(FILE_FAULTS) + len(ROW_FAULTS) >= 70


def test_a_configuration_that_is_not_valid_is_found(log, monkeypatch):
    lying = dataclasses.replace(log.topic("orders").snapshot, config={"segment.bytes": "-1"})
    monkeypatch.setattr(log, "snapshot", lambda topic, *at: lying)
    assert any("configuration" in finding.message for finding in verify(log, topics=["orders"]).findings)


def test_keys_of_more_than_one_map_are_looked_at_in_parts():
    log = LogDir.open(str(golden_dir("bigcompact-zstd/clean-1/bigcompact-0")))
    snapshot = log.topic("bigcompact").snapshot
    row, live = snapshot.partition(0), tuple(snapshot.live_of(0))
    assert (row.log_start_offset, row.first_dirty_offset) == (0, 41633)
    task = KeysTask("bigcompact", 0, live, 0, row.first_dirty_offset, AbortedTransactions.of(), map_bytes=24 * 300)
    assert verify_keys(log.storage, task) == []
    found = verify_keys(log.storage, dataclasses.replace(task, end_offset=row.log_end_offset, map_bytes=1 << 20))
    assert found
    keys = {record[1]: record[4] for record in as_records(expected_records("bigcompact-zstd/clean-1/bigcompact-0"))}
    for finding in found:
        offset, latest = map(int, finding.found.removeprefix("offset ").split(", and again "))
        assert keys[offset] == keys[latest]
