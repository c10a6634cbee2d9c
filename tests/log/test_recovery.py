"""After an unclean stop: damaged and half-cleaned partitions open as Kafka recovers them with recovery point 0."""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from spark_segments import LogDir
from spark_segments.format.batches import scan_batches
from spark_segments.format.layout import HEADER_STRUCT
from spark_segments.format.sidecars.index import rebuild
from spark_segments.format.sidecars.producer_state import (
    ProducerEntry,
    parse_producer_snapshot,
    producer_snapshot_bytes,
)
from spark_segments.log.kafka import segment_scan
from spark_segments.log.kafka.recovery import next_offset_of
from spark_segments.log.reading.plan import offset_bounds, read_ranges
from spark_segments.log.segment import walk
from spark_segments.storage import FileInfo, Storage
from tests.format.twin_encode import Record, batch_bytes
from tests.golden_files import GOLDEN, damaged_dir, expected_records, golden_dir
from tests.log.golden_reads import as_records, read_ranges_one_by_one, records_of, tree

DAMAGES = [
    "torn-tail",
    "torn-header",
    "zero-tail",
    "flipped-byte",
    "missing-index",
    "corrupt-index",
    "missing-snapshot",
]
LEFTOVERS = ["cleaned-left", "swap-left", "swap-half", "swap-and-cleaned", "deleted-left"]
LAST = "00000000000000004885"


def sections(path: Path) -> dict[str, str]:
    """{heading: text} of a README of kafka-golden."""
    parts = re.split(r"^## (.*)$", path.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def after_damage(name: str) -> dict[str, object]:
    """What the README says Kafka makes of damaged/<name> with an unclean stop and recovery point 0."""
    said = sections(GOLDEN / "damaged" / "README.md")[f"damaged/{name}/plain-0"]
    outcome, _, rest = said.partition("unclean shutdown, recovery point 0:")[2].partition("\n")
    files = re.findall(r"^ {6}(\S+) (\d+) ([0-9a-f]{16})$", rest.partition("\n  - ")[0], flags=re.MULTILINE)
    return {
        "log_end_offset": int(re.search(r"logEndOffset=(\d+)", outcome)[1]),
        "segments": int(re.search(r"segments=(\d+)", outcome)[1]),
        "batches": int(re.search(r"\((\d+) batches\)", outcome)[1]),
        "epochs": tuple(
            (int(epoch), int(start))
            for epoch, start in re.findall(r"EpochEntry\(epoch=(\d+), startOffset=(\d+)\)", outcome)
        ),
        "files": {file: (int(size), digest) for file, size, digest in files},
    }


def after_crash(name: str) -> dict[str, object]:
    """What the README says Kafka makes of cleaner-crash/<name>."""
    said = sections(GOLDEN / "cleaner-crash" / "README.md")[name]
    outcome = re.search(r"logStartOffset=(\d+) logEndOffset=(\d+) segments=\[(.*)\]", said)
    return {
        "bounds": (int(outcome[1]), int(outcome[2])),
        "segments": [tuple(map(int, pair)) for pair in re.findall(r"(\d+):(\d+)B", outcome[3])],
    }


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_cut_where_kafka_cuts_it(name, tmp_path):
    directory = damaged_dir(name, tmp_path)
    before = tree(directory)
    said = after_damage(name)
    log = LogDir.open(str(directory))
    rows = log.snapshot("plain").live_of(0)
    assert log.offsets("plain") == {0: (0, said["log_end_offset"])}
    assert log.snapshot("plain").partition(0).leader_epochs == said["epochs"]
    assert len(rows) == said["segments"]
    assert sum(row.batches for row in rows) == said["batches"]
    for row in rows:
        size, digest = said["files"][row.path]
        assert row.log_bytes == size
        assert hashlib.sha256((directory / row.path).read_bytes()[:size]).hexdigest()[:16] == digest
    expected = as_records(expected_records("plain-0"), where=lambda line: line["offset"] < said["log_end_offset"])
    assert records_of(log.read("plain")) == expected
    assert tree(directory) == before


@pytest.mark.parametrize("name", DAMAGES)
def test_of_a_damaged_directory_only_true_index_entries_are_used(name, tmp_path):
    directory = damaged_dir(name, tmp_path)
    files = after_damage(name)["files"]
    for row in LogDir.open(str(directory)).snapshot("plain").live_of(0):
        for path, used in ((row.index_path, row.index_bytes), (row.time_index_path, row.time_index_bytes)):
            size, digest = files[path]  # as Kafka's recovery rebuilt it
            batches = scan_batches((directory / row.path).read_bytes()[: row.log_bytes]).batches
            rebuilt = rebuild(batches, row.base_offset)[path.endswith(".timeindex")]
            assert (len(rebuilt), hashlib.sha256(rebuilt).hexdigest()[:16]) == (size, digest)
            if used:
                assert (directory / path).read_bytes()[:used] == rebuilt[:used]


@pytest.mark.parametrize(
    ("name", "path", "position", "size", "reason"),
    [
        ("torn-tail", f"{LAST}.log", 9790, 685, "the last record batch is cut"),
        ("torn-header", f"{LAST}.log", 9790, 10, "the last record batch is cut"),
        ("zero-tail", f"{LAST}.log", 11160, 4096, "zeros"),
        ("flipped-byte", "00000000000000002773.log", 31654, 32793, "CRC-32C"),
    ],
)
def test_what_is_cut_is_reported_with_its_place(name, path, position, size, reason, tmp_path, caplog):
    log = LogDir.open(str(damaged_dir(name, tmp_path)))
    with caplog.at_level(logging.WARNING, logger="spark_segments"):
        [cut] = log.snapshot("plain").report.cuts
    assert (cut.topic, cut.partition, cut.path, cut.position, cut.bytes) == ("plain", 0, path, position, size)
    assert reason in cut.reason
    later = {"00000000000000003464.log", "00000000000000004184.log", f"{LAST}.log"} if name == "flipped-byte" else set()
    assert set(cut.dropped) == later
    assert cut.dropped_bytes == sum((golden_dir("plain-0") / file).stat().st_size for file in later)
    assert [record.getMessage() for record in caplog.records] == [str(cut)]
    assert f"{size} bytes from position {position}" in str(cut)


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("missing-index", {"00000000000000002773.index", "00000000000000002773.timeindex", f"{LAST}.timeindex"}),
        ("corrupt-index", {"00000000000000002773.index"}),
        ("missing-snapshot", set()),
    ],
)
def test_sidecars_that_cannot_be_used_are_noted(name, paths, tmp_path):
    report = LogDir.open(str(damaged_dir(name, tmp_path))).snapshot("plain").report
    assert report.cuts == ()
    assert {note.path for note in report.notes} == paths


@pytest.mark.parametrize("name", LEFTOVERS)
def test_a_cleaner_crash_is_undone_or_finished_as_kafka_does(name):
    directory = golden_dir(f"cleaner-crash/{name}")
    said = after_crash(name)
    log = LogDir.open(str(directory))
    rows = log.snapshot("latest-price").live_of(0)
    assert log.offsets("latest-price") == {0: said["bounds"]}
    assert [(row.base_offset, row.log_bytes) for row in rows] == said["segments"]
    state = "after-clean-1" if len(rows) == 2 else "before-clean"
    expected = expected_records(f"latest-price/{state}/latest-price-0")
    assert records_of(log.read("latest-price")) == as_records(expected)
    assert log.snapshot("latest-price").report.cuts == ()


def test_the_indexes_of_a_swap_file_are_used(tmp_path):
    directory = tmp_path / "plain-0"
    shutil.copytree(golden_dir("plain-0"), directory)
    for suffix in ("log", "index", "timeindex"):
        file = directory / f"00000000000000000690.{suffix}"
        file.rename(f"{file}.swap")
    log = LogDir.open(str(directory))
    row = log.snapshot("plain").live_of(0)[1]
    assert (row.path, row.index_bytes) == ("00000000000000000690.log.swap", 104)
    assert records_of(log.read("plain")) == as_records(expected_records("plain-0"))
    assert log.offsets_for_times("plain", row.max_timestamp_ms)[0] is not None


def test_without_an_index_a_range_begins_where_the_scan_has_seen_a_batch(tmp_path, monkeypatch):
    directory = damaged_dir("missing-index", tmp_path)
    monkeypatch.setattr(segment_scan, "STAND_IN_INTERVAL_BYTES", 5000)
    log = LogDir.open(str(directory))
    snapshot = log.snapshot("plain")
    ranges = read_ranges(snapshot, offset_bounds(snapshot), max_partition_bytes=7000)
    without = [one for one in ranges if one.segment.path == "00000000000000002773.log"]
    assert len(without) > 5
    assert all(one.start_position - one.begin_position < 7000 for one in without)
    assert [one.begin_position > 0 for one in without] == [False] + [True] * (len(without) - 1)
    assert read_ranges_one_by_one(log, ranges) == as_records(expected_records("plain-0"))
    found = records_of(log.read("plain", start_offset=3300, end_offset=3310))
    assert [record[1] for record in found] == list(range(3300, 3310))


def damage(directory: Path, file: str, position: int, data: bytes) -> None:
    path = directory / file
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


@pytest.fixture
def plain(tmp_path) -> Path:
    directory = tmp_path / "plain-0"
    shutil.copytree(golden_dir("plain-0"), directory)
    return directory


def test_a_first_segment_that_is_damaged_from_its_first_byte_leaves_an_empty_log(plain):
    damage(plain, "00000000000000000000.log", 16, b"\x09")
    log = LogDir.open(str(plain))
    [cut] = log.snapshot("plain").report.cuts
    assert log.offsets("plain") == {0: (0, 0)}
    assert (cut.position, len(cut.dropped)) == (0, 7)
    assert list(log.read("plain")) == []


def test_offsets_that_fall_end_the_log(plain):
    """The base offset lies outside the CRC, so that only its neighbours show that it is wrong."""
    batches = scan_batches((plain / "00000000000000001392.log").read_bytes()).batches
    damage(plain, "00000000000000001392.log", int(batches.position[3]), int(batches.base_offset[1]).to_bytes(8, "big"))
    log = LogDir.open(str(plain))
    [cut] = log.snapshot("plain").report.cuts
    assert cut.position == int(batches.position[3])
    assert "offsets do not rise" in cut.reason
    assert log.offsets("plain") == {0: (0, int(batches.base_offset[3]))}


def test_an_offset_below_the_name_of_its_file_ends_the_log(plain):
    damage(plain, "00000000000000001392.log", 0, (1391).to_bytes(8, "big"))
    log = LogDir.open(str(plain))
    assert log.offsets("plain") == {0: (0, 1392)}
    assert len(log.snapshot("plain").report.cuts) == 1


def test_a_segment_that_overlaps_the_one_before_is_read_from_where_that_one_ends(plain):
    content = (plain / "00000000000000000690.log").read_bytes()
    batches = scan_batches(content).batches
    twice = int(batches.position[4])
    with open(plain / "00000000000000000000.log", "ab") as file:
        file.write(content[:twice])
    log = LogDir.open(str(plain))
    report = log.snapshot("plain").report
    assert report.cuts == ()
    [overlap] = report.overlaps
    assert (overlap.path, overlap.served) == ("00000000000000000690.log", "00000000000000000000.log")
    assert (overlap.first_offset, overlap.last_offset) == (690, int(batches.last_offset[3]))
    assert records_of(log.read("plain")) == as_records(expected_records("plain-0"))


def test_a_log_that_ends_before_its_log_start_begins_anew_there(tmp_path):
    shutil.copytree(golden_dir("plain-0"), tmp_path / "plain-0")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nplain 0 6000\n")
    log = LogDir.open(str(tmp_path))
    [cut] = log.snapshot("plain").report.cuts
    assert log.offsets("plain") == {0: (6000, 6000)}
    assert log.snapshot("plain").partition(0).leader_epochs == ()
    assert "log start offset 6000" in cut.reason
    assert list(log.read("plain")) == []


def test_checkpoints_that_do_not_parse_are_left_aside_and_noted(tmp_path):
    shutil.copytree(golden_dir("plain-0"), tmp_path / "plain-0")
    for file in ("log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
        (tmp_path / file).write_text("0\n2\nplain 0 6000\n")
    (tmp_path / "plain-0" / "leader-epoch-checkpoint").write_bytes(b"\x00\x00")
    (tmp_path / "plain-0" / "partition.metadata").write_text("version: 7\n")
    log = LogDir.open(str(tmp_path))
    snapshot = log.snapshot("plain")
    assert log.offsets("plain") == {0: (0, 5000)}
    assert snapshot.topic_id == "AAAAAAAAAAAAAAAAAAAAAA"
    assert snapshot.partition(0).leader_epochs == ((0, 0), (3, 2001), (5, 4009))  # from the batches
    assert {Path(note.path).name for note in snapshot.report.notes} == {
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "leader-epoch-checkpoint",
        "partition.metadata",
    }


def test_what_lies_after_the_cut_leaves_the_leader_epochs(plain):
    damage(plain, "00000000000000001392.log", 500, b"\xff" * 50)
    assert LogDir.open(str(plain)).snapshot("plain").partition(0).leader_epochs == ((0, 0),)


@pytest.mark.parametrize("name", ["txn-0", "broker-data/orders-0", "broker-data/payments-0"])
def test_the_producer_state_of_the_scan_is_that_of_the_snapshot_at_the_log_end(name, tmp_path):
    directory = tmp_path / Path(name).name
    shutil.copytree(golden_dir(name), directory)
    topic, _, partition = directory.name.rpartition("-")
    [*_, last] = sorted(directory.glob("*.snapshot"))
    expected = parse_producer_snapshot(last.read_bytes())
    kept = LogDir.open(str(directory)).snapshot(topic).partition(int(partition)).producer_snapshot
    assert kept == last.read_bytes()
    for file in directory.glob("*.snapshot"):
        file.unlink()
    found = LogDir.open(str(directory)).snapshot(topic).partition(int(partition)).producer_snapshot
    key = lambda entry: entry.producer_id  # noqa: E731
    assert parse_producer_snapshot(found) == sorted(expected, key=key)


def test_a_file_that_goes_away_while_it_is_read_is_looked_for_again(tmp_path):
    """A running broker deletes its oldest segment between the listing and the read."""
    shutil.copytree(golden_dir("broker-data/retention-0"), tmp_path / "retention-0")
    log = LogDir.open(str(tmp_path))
    read = log.storage.read

    def vanish(path, offset=0, length=None):
        if path.endswith("450.log"):
            for file in (tmp_path / "retention-0").glob("00000000000000000450.*"):
                file.unlink()
        return read(path, offset, length)

    log.storage.read = vanish
    assert log.offsets("retention") == {0: (598, 800)}


def test_a_batch_larger_than_the_window_is_scanned_whole(plain, monkeypatch):
    monkeypatch.setattr(walk, "WINDOW_BYTES", 100)
    log = LogDir.open(str(plain))
    assert log.snapshot("plain").report.cuts == ()
    assert log.snapshot("plain").report.notes == ()
    assert log.offsets("plain") == {0: (0, 5000)}
    assert sum(row.batches for row in log.snapshot("plain").live_of(0)) == 471


def test_a_length_that_no_file_holds_is_not_read(plain, monkeypatch):
    """A flipped bit in a batch's length must not make the scan read, or ask memory for, two gigabytes."""
    with open(plain / f"{LAST}.log", "ab") as file:
        file.write(HEADER_STRUCT.pack(5000, 2**31 - 100, 5, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1))
    storage = Storage(str(plain))
    read, sizes = storage.read, []
    monkeypatch.setattr(storage, "read", lambda path, *rest: sizes.append(rest[1]) or read(path, *rest))
    size = (plain / f"{LAST}.log").stat().st_size
    assert next_offset_of(storage, FileInfo(f"{LAST}.log", size, 0), 4885) == 5000
    assert max(sizes) == size
    assert LogDir.open(str(plain)).offsets("plain") == {0: (0, 5000)}


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_makes_anything_but_a_shorter_log(plain, seed):
    """Wherever bytes of a .log are overwritten, what is left is what was there before, up to the first damage."""
    random = np.random.default_rng(seed)
    files = sorted(plain.glob("*.log"))
    chosen = files[random.integers(len(files))]
    position = int(random.integers(chosen.stat().st_size - 40))
    damage(plain, chosen.name, position, random.bytes(40))
    log = LogDir.open(str(plain))
    snapshot = log.snapshot("plain")
    [cut] = snapshot.report.cuts
    assert cut.path == chosen.name
    assert cut.position <= position
    expected = as_records(expected_records("plain-0"))
    found = records_of(log.read("plain"))
    assert found == expected[: len(found)]
    assert log.offsets("plain") == {0: (0, len(found))}


@pytest.mark.parametrize("name", ["legacy-v0-0", "legacy-v1-0"])
@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages_of_the_old_magics_end_the_log_too(name, seed, tmp_path):
    directory = tmp_path / name
    shutil.copytree(golden_dir(name), directory)
    chosen = sorted(directory.glob("*.log"))[seed % 2]
    batches = scan_batches(chosen.read_bytes()).batches
    bad = 5 + 11 * seed
    damage(directory, chosen.name, int(batches.position[bad] + batches.size[bad] - 2), b"\xa5")
    topic = name.rpartition("-")[0]
    log = LogDir.open(str(directory))
    [cut] = log.snapshot(topic).report.cuts
    assert (cut.path, cut.position) == (chosen.name, int(batches.position[bad]))
    end = log.offsets(topic)[0][1]
    assert end == int(batches.last_offset[bad - 1]) + 1
    expected = expected_records(name)
    assert records_of(log.read(topic)) == as_records(expected, where=lambda line: line["offset"] < end)


@pytest.mark.parametrize(("suffix", "entry_bytes"), [("index", 8), ("timeindex", 12)])
@pytest.mark.parametrize("base", ["00000000000000000690", LAST])
def test_entries_for_what_lies_behind_the_end_of_a_log_are_lies(base, suffix, entry_bytes, plain):
    path = plain / f"{base}.{suffix}"
    entry = struct.pack(">ii", 2**30, 2**30) if entry_bytes == 8 else struct.pack(">qi", 2**60, 2**30)
    damage(plain, path.name, path.stat().st_size - entry_bytes, entry)
    report = LogDir.open(str(plain)).snapshot("plain").report
    assert [note.path for note in report.notes] == [path.name]


def test_entries_for_what_a_broker_has_just_written_are_none(plain):
    """The directory is listed before the indexes are read: a broker that runs goes on writing to both."""
    file = plain / f"{LAST}.log"
    content = file.read_bytes()
    last = int(scan_batches(content).batches.position[-1])
    file.write_bytes(content[:last])
    log = LogDir.open(str(plain))
    list_files = log.storage.list

    def written_to(path="", recursive=False):
        listing = list_files(path, recursive)
        file.write_bytes(content)
        return listing

    log.storage.list = written_to
    snapshot = log.snapshot("plain")
    assert snapshot.report.notes == ()
    assert snapshot.partition(0).log_end_offset == 4986
    assert snapshot.live_of(0)[-1].index_bytes == 8


def test_an_index_without_its_log_is_no_segment(plain):
    for base in (500, 1393, 9000):
        for suffix in ("index", "timeindex"):
            (plain / f"{base:020d}.{suffix}").write_bytes(b"\0" * 24)
    log = LogDir.open(str(plain))
    assert log.offsets("plain") == {0: (0, 5000)}
    assert {row.base_offset for row in log.snapshot("plain").live_of(0)} == {
        int(path.stem) for path in golden_dir("plain-0").glob("*.log")
    }
    assert records_of(log.read("plain")) == as_records(expected_records("plain-0"))


# What lies there when the broker is killed while it splits the segment 690: suffixes of the old file, of the first new
# one and of the second, and whether the new ones are the log.
SPLITS = {
    "both are being made": ("", ".cleaned", ".cleaned", False),
    "one is renamed": ("", ".cleaned", ".swap", False),
    "both are renamed": ("", ".swap", ".swap", True),
    "the old one is deleted": (".deleted", ".swap", ".swap", True),
    "one is in its place": (".deleted", ".swap", "", True),
}


@pytest.mark.parametrize("phase", SPLITS)
def test_a_split_that_was_cut_short_is_undone_or_finished(plain, phase):
    of_old, of_first, of_second, is_split = SPLITS[phase]
    old = plain / f"{690:020d}.log"
    content = old.read_bytes()
    batches = scan_batches(content).batches
    middle = len(batches) // 2
    cut, second_base = int(batches.position[middle]), int(batches.base_offset[middle])
    for path in plain.glob(f"{690:020d}.*index"):
        path.unlink()
    old.unlink()
    parts = [(690, of_first, content[:cut]), (second_base, of_second, content[cut:])]
    for base, suffix, data in [(690, of_old, content), *parts]:
        (plain / f"{base:020d}.log{suffix}").write_bytes(data)
    log = LogDir.open(str(plain))
    assert records_of(log.read("plain")) == as_records(expected_records("plain-0"))
    assert log.snapshot("plain").report.cuts == log.snapshot("plain").report.overlaps == ()
    bases = [row.base_offset for row in log.snapshot("plain").live_of(0)]
    assert (second_base in bases) == is_split and bases.count(690) == 1


def test_an_empty_active_segment_is_where_the_log_ends(plain):
    (plain / f"{5000:020d}.log").write_bytes(b"")
    log = LogDir.open(str(plain))
    *_, before, last = log.snapshot("plain").live_of(0)
    assert (last.base_offset, last.next_offset, last.log_bytes, last.state) == (5000, 5000, 0, "chunk")
    assert (before.next_offset, before.state) == (5000, "sealed")
    assert log.offsets("plain") == {0: (0, 5000)}
    assert records_of(log.read("plain")) == as_records(expected_records("plain-0"))
    assert list(log.read("plain", start_offset=5000)) == []


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
        kept = LogDir.open(str(tmp_path)).snapshot("prices").partition(0).producer_snapshot
        return [entry.producer_id for entry in parse_producer_snapshot(kept)]

    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nprices 0 1\n")
    assert producers() == [10, 11, 12]
    (directory / f"{0:020d}.log").unlink()
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nprices 0 2\n")
    assert producers() == [12]


def test_a_snapshot_beyond_the_log_end_is_not_used(tmp_path):
    directory = tmp_path / "txn-0"
    shutil.copytree(golden_dir("txn-0"), directory)
    expected = LogDir.open(str(directory)).snapshot("txn").partition(0).producer_snapshot
    for path in directory.glob("*.snapshot"):
        stray = producer_snapshot_bytes([ProducerEntry(424242, 1, 7, last_offset=10**6)])
        (directory / f"{10**6 + int(path.stem):020d}.snapshot").write_bytes(stray)
    assert LogDir.open(str(directory)).snapshot("txn").partition(0).producer_snapshot == expected


def test_a_clean_shutdown_spares_nobody_the_scan(plain):
    (plain.parent / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    damage(plain, "00000000000000001392.log", 500, b"\xff" * 50)
    assert len(LogDir.open(str(plain)).snapshot("plain").report.cuts) == 1
    assert len(LogDir.open(str(plain.parent)).snapshot("plain").report.cuts) == 1
