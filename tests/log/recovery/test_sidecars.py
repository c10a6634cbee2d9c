"""Which indexes, checkpoints and snapshots recovery believes."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import StorageError
from spark_segments.format.sidecars.producer_state import (
    ProducerEntry,
    parse_producer_snapshot,
    producer_snapshot_bytes,
)
from tests.log.golden_reads import as_records, read_one_by_one, records_of
from tests.log.recovery.damage import LAST, damage
from verification.world.kafka_bytes.golden_files import damaged_dir, expected_records, golden_dir
from verification.world.kafka_bytes.segment_bytes import batches_of
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes


def test_the_indexes_of_a_swap_file_are_used(tmp_path):
    directory = tmp_path / "plain-0"
    shutil.copytree(golden_dir("plain-0"), directory)
    for suffix in ("log", "index", "timeindex"):
        file = directory / f"00000000000000000690.{suffix}"
        file.rename(f"{file}.swap")
    log = LogDir.open(str(directory))
    row = log.topic("plain").snapshot.live_of(0)[1]
    assert (row.path, row.index_bytes) == ("00000000000000000690.log.swap", 104)
    assert records_of(log.topic("plain").scan().batches()) == as_records(expected_records("plain-0"))
    assert log.topic("plain").offsets_for_times(row.max_timestamp_ms)[0] is not None


def test_without_an_index_a_range_begins_where_the_scan_has_seen_a_batch(tmp_path, limits):
    directory = damaged_dir("missing-index", tmp_path)
    limits(STAND_IN_INTERVAL_BYTES=5000)
    log = LogDir.open(str(directory))
    parts = list(log.topic("plain").scan().parts(7000))
    without = [one for one in parts if one.segment.path == "00000000000000002773.log"]
    assert len(without) > 5
    assert all(one.start_position - one.look_up.byte_position < 7000 for one in without)
    assert [one.look_up.byte_position > 0 for one in without] == [False] + [True] * (len(without) - 1)
    assert read_one_by_one(log, parts) == as_records(expected_records("plain-0"))
    found = records_of(log.topic("plain").scan(offsets=(3300, 3310)).batches())
    assert [record[1] for record in found] == list(range(3300, 3310))


def test_checkpoints_that_do_not_parse_are_left_aside_and_noted(tmp_path):
    shutil.copytree(golden_dir("plain-0"), tmp_path / "plain-0")
    for file in ("log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
        (tmp_path / file).write_text("0\n2\nplain 0 6000\n")
    (tmp_path / "plain-0" / "leader-epoch-checkpoint").write_bytes(b"\x00\x00")
    (tmp_path / "plain-0" / "partition.metadata").write_text("version: 7\n")
    log = LogDir.open(str(tmp_path))
    snapshot = log.topic("plain").snapshot
    assert log.topic("plain").offsets() == {0: (0, 5000)}
    assert snapshot.topic_id == "AAAAAAAAAAAAAAAAAAAAAA"
    assert snapshot.partition(0).leader_epochs == ((0, 0), (3, 2001), (5, 4009))  # from the batches
    assert {Path(note.path).name for note in snapshot.report.notes} == {
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "leader-epoch-checkpoint",
        "partition.metadata",
    }


@pytest.mark.parametrize("file", ["log-start-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_checkpoints_that_cannot_be_read_are_an_error_of_the_store(file, tmp_path):
    """Without them, records below Kafka's log start would be in the log."""
    shutil.copytree(golden_dir("plain-0"), tmp_path / "kafka" / "plain-0")
    log = LogDir.open(str(tmp_path / "kafka"))
    (tmp_path / "kafka" / file).mkdir()  # a file that is there and cannot be read, whoever reads
    with pytest.raises(StorageError, match=f"file system failed.*{file}"):
        log.topic("plain").offsets()
    target = LogDir.create(str(tmp_path / "log"))
    with pytest.raises(StorageError, match="file system failed"):
        target.import_kafka(str(tmp_path / "kafka"))
    assert target.topics() == []


def test_what_lies_after_the_cut_leaves_the_leader_epochs(plain):
    damage(plain, "00000000000000001392.log", 500, b"\xff" * 50)
    assert LogDir.open(str(plain)).topic("plain").snapshot.partition(0).leader_epochs == ((0, 0),)


@pytest.mark.parametrize("name", ["txn-0", "broker-data/orders-0", "broker-data/payments-0"])
def test_the_producer_state_of_the_scan_is_that_of_the_snapshot_at_the_log_end(name, tmp_path):
    directory = tmp_path / Path(name).name
    shutil.copytree(golden_dir(name), directory)
    topic, _, partition = directory.name.rpartition("-")
    [*_, last] = sorted(directory.glob("*.snapshot"))
    expected = parse_producer_snapshot(last.read_bytes())
    kept = LogDir.open(str(directory)).topic(topic).snapshot.partition(int(partition)).producer_snapshot
    assert kept == last.read_bytes()
    for file in directory.glob("*.snapshot"):
        file.unlink()
    found = LogDir.open(str(directory)).topic(topic).snapshot.partition(int(partition)).producer_snapshot
    key = lambda entry: entry.producer_id  # noqa: E731
    assert parse_producer_snapshot(found) == sorted(expected, key=key)


@pytest.mark.parametrize(("suffix", "entry_bytes"), [("index", 8), ("timeindex", 12)])
@pytest.mark.parametrize("base", ["00000000000000000690", LAST])
def test_entries_for_what_lies_behind_the_end_of_a_log_are_lies(base, suffix, entry_bytes, plain):
    path = plain / f"{base}.{suffix}"
    entry = struct.pack(">ii", 2**30, 2**30) if entry_bytes == 8 else struct.pack(">qi", 2**60, 2**30)
    damage(plain, path.name, path.stat().st_size - entry_bytes, entry)
    report = LogDir.open(str(plain)).topic("plain").snapshot.report
    assert [note.path for note in report.notes] == [path.name]


def test_entries_for_what_a_broker_has_just_written_are_none(plain):
    """The directory is listed before the indexes are read: a broker that runs goes on writing to both."""
    file = plain / f"{LAST}.log"
    content = file.read_bytes()
    last = int(batches_of(content).byte_position[-1])
    file.write_bytes(content[:last])
    log = LogDir.open(str(plain))
    list_files = log.storage.list

    def written_to(path="", recursive=False):
        listing = list_files(path, recursive)
        file.write_bytes(content)
        return listing

    log.storage.list = written_to
    snapshot = log.topic("plain").snapshot
    assert snapshot.report.notes == ()
    assert snapshot.partition(0).log_end_offset == 4986
    assert snapshot.live_of(0)[-1].index_bytes == 8


def test_an_index_without_its_log_is_no_segment(plain):
    for base in (500, 1393, 9000):
        for suffix in ("index", "timeindex"):
            (plain / f"{base:020d}.{suffix}").write_bytes(b"\0" * 24)
    log = LogDir.open(str(plain))
    assert log.topic("plain").offsets() == {0: (0, 5000)}
    assert {row.base_offset for row in log.topic("plain").snapshot.live_of(0)} == {
        int(path.stem) for path in golden_dir("plain-0").glob("*.log")
    }
    assert records_of(log.topic("plain").scan().batches()) == as_records(expected_records("plain-0"))


def test_deleted_records_take_their_producers_along_when_their_segment_goes(tmp_path):
    """A log start inside a segment leaves its producers known; without the segment only the later ones are."""
    directory = tmp_path / "prices-0"
    directory.mkdir()
    for number in range(3):
        data = batch_bytes(
            [Record(b"v")], base_offset=number, producer_id=10 + number, producer_epoch=0, base_sequence=0
        )
        with open(directory / f"{2 * (number // 2):020d}.log", "ab") as file:
            file.write(data)

    def producers() -> list[int]:
        kept = LogDir.open(str(tmp_path)).topic("prices").snapshot.partition(0).producer_snapshot
        return [entry.producer_id for entry in parse_producer_snapshot(kept)]

    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nprices 0 1\n")
    assert producers() == [10, 11, 12]
    (directory / f"{0:020d}.log").unlink()
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nprices 0 2\n")
    assert producers() == [12]


def test_a_snapshot_beyond_the_log_end_is_not_used(tmp_path):
    directory = tmp_path / "txn-0"
    shutil.copytree(golden_dir("txn-0"), directory)
    expected = LogDir.open(str(directory)).topic("txn").snapshot.partition(0).producer_snapshot
    for path in directory.glob("*.snapshot"):
        stray = producer_snapshot_bytes([ProducerEntry(424242, 1, 7, last_offset=10**6)])
        (directory / f"{10**6 + int(path.stem):020d}.snapshot").write_bytes(stray)
    assert LogDir.open(str(directory)).topic("txn").snapshot.partition(0).producer_snapshot == expected


def test_a_clean_shutdown_spares_nobody_the_scan(plain):
    (plain.parent / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    damage(plain, "00000000000000001392.log", 500, b"\xff" * 50)
    assert len(LogDir.open(str(plain)).topic("plain").snapshot.report.cuts) == 1
    assert len(LogDir.open(str(plain.parent)).topic("plain").snapshot.report.cuts) == 1
