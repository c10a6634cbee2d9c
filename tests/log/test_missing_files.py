"""A reader that keeps a snapshot for longer than file.delete.delay.ms is told so, whatever it is about to do."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import MissingFileError, SegmentsError
from spark_segments.kafka import segment_copier
from spark_segments.log.directory import LogDirectory
from spark_segments.maintenance import roll, vacuum, verify
from spark_segments.storage import Storage
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.manifest_rows import Snapshot
from verification.world.topics import GOLDEN_MS, append_one_by_one, records, topic_with

DELAY_MS = 60_000


@pytest.fixture
def orders(log) -> LogDir:
    topic_with(log, "orders", {"segment.bytes": 2000, "file.delete.delay.ms": DELAY_MS})
    append_one_by_one(log, "orders", records(40))
    return log


def vacuum_too_early(log: LogDir) -> None:
    roll(log, now_ms=GOLDEN_MS)
    vacuum(log, now_ms=log.storage.now_ms() + 2 * DELAY_MS)


def pinned(monkeypatch, log: LogDir) -> None:
    """Whoever loads the topic from now on gets the snapshot of this moment, as if it had loaded it long ago."""
    snapshot = log.topic("orders").snapshot
    _ = snapshot.segments
    vacuum_too_early(log)
    monkeypatch.setattr(LogDirectory, "snapshot", lambda self, topic, version=None, timestamp_ms=None: snapshot)


def exhaust(batches: Iterator[pa.RecordBatch]) -> None:
    for _ in batches:
        pass


READERS: dict[str, Callable[[LogDir, Path], object]] = {
    "read": lambda log, out: exhaust(log.topic("orders").scan().batches()),
    "read from an offset": lambda log, out: exhaust(log.topic("orders").scan(offsets=(5, None)).batches()),
    "offsets_for_times": lambda log, out: log.topic("orders").offsets_for_times(GOLDEN_MS + 5),
    "export": lambda log, out: log.export_kafka(str(out), "orders"),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_whose_files_are_gone_is_told_why(orders, tmp_path, monkeypatch, name):
    pinned(monkeypatch, orders)
    with pytest.raises(
        MissingFileError, match=r"is gone in .*/orders-0/.*file\.delete\.delay\.ms .*\. Load the topic again"
    ):
        READERS[name](orders, tmp_path / "out")


def test_the_error_is_one_of_ours_and_of_pythons_and_travels_by_pickle(orders):
    batches = orders.topic("orders").scan().batches()
    vacuum_too_early(orders)
    with pytest.raises(FileNotFoundError) as caught:
        exhaust(batches)
    assert isinstance(caught.value, SegmentsError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is MissingFileError and str(again) == str(caught.value)
    assert sum(batch.num_rows for batch in orders.topic("orders").scan().batches()) == 40


def test_an_import_whose_source_loses_a_file_says_so(log, tmp_path, monkeypatch):
    copy_file = segment_copier.copy_file

    def after_the_broker_deleted_it(source: Storage, path: str, *arguments, **options):
        return copy_file(source, path.replace("0.", "1."), *arguments, **options)

    monkeypatch.setattr(segment_copier, "copy_file", after_the_broker_deleted_it)
    with pytest.raises(MissingFileError, match="Load the topic again"):
        log.import_kafka(str(golden_dir("plain-0")))


@pytest.mark.parametrize("deep", [False, True])
def test_verify_finds_no_fault_in_what_left_the_log_meanwhile(orders, monkeypatch, deep):
    snapshot, taken = LogDirectory.snapshot, []

    def then_vacuum(self: LogDirectory, topic: str, *at: int | None) -> Snapshot:
        found = snapshot(self, topic, *at)
        if not taken:
            taken.append(found)
            _ = found.segments
            monkeypatch.setattr(LogDirectory, "snapshot", snapshot)
            vacuum_too_early(orders)
        return found

    monkeypatch.setattr(LogDirectory, "snapshot", then_vacuum)
    report = verify(orders, deep=deep)
    assert [(one.severity, one.message) for one in report.findings] == [
        ("warning", "Segments left the log while they were verified, and vacuum took their files")
    ]
    assert verify(orders, deep=deep).ok


def test_verify_finds_a_file_missing_that_is_in_the_log_still(orders):
    orders.storage.delete(orders.topic("orders").snapshot.live.column("path")[3].as_py())
    assert "error" in {finding.severity for finding in verify(orders).findings}
