"""Damaged and half-cleaned partitions open as Kafka recovers them with recovery point 0."""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from pathlib import Path

import pytest

from spark_segments import LogDir
from tests.log.golden_reads import as_records, records_of, tree
from tests.log.recovery.damage import LAST
from verification.world.kafka_bytes.golden_files import GOLDEN, damaged_dir, expected_records, golden_dir
from verification.world.kafka_bytes.segment_bytes import batches_of, rebuild

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
    rows = log.topic("plain").snapshot.live_of(0)
    assert log.topic("plain").offsets() == {0: (0, said["log_end_offset"])}
    assert log.topic("plain").snapshot.partition(0).leader_epochs == said["epochs"]
    assert len(rows) == said["segments"]
    assert sum(row.batches for row in rows) == said["batches"]
    for row in rows:
        size, digest = said["files"][row.path]
        assert row.log_bytes == size
        assert hashlib.sha256((directory / row.path).read_bytes()[:size]).hexdigest()[:16] == digest
    expected = as_records(expected_records("plain-0"), where=lambda line: line["offset"] < said["log_end_offset"])
    assert records_of(log.topic("plain").scan().batches()) == expected
    assert tree(directory) == before


@pytest.mark.parametrize("name", DAMAGES)
def test_of_a_damaged_directory_only_true_index_entries_are_used(name, tmp_path):
    directory = damaged_dir(name, tmp_path)
    files = after_damage(name)["files"]
    for row in LogDir.open(str(directory)).topic("plain").snapshot.live_of(0):
        for path, used in ((row.index_path, row.index_bytes), (row.time_index_path, row.time_index_bytes)):
            size, digest = files[path]  # as Kafka's recovery rebuilt it
            batches = batches_of((directory / row.path).read_bytes()[: row.log_bytes])
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
        [cut] = log.topic("plain").snapshot.report.cuts
    assert (cut.topic, cut.partition, cut.path, cut.byte_position, cut.bytes) == ("plain", 0, path, position, size)
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
    report = LogDir.open(str(damaged_dir(name, tmp_path))).topic("plain").snapshot.report
    assert report.cuts == ()
    assert {note.path for note in report.notes} == paths


@pytest.mark.parametrize("name", LEFTOVERS)
def test_a_cleaner_crash_is_undone_or_finished_as_kafka_does(name):
    directory = golden_dir(f"cleaner-crash/{name}")
    said = after_crash(name)
    log = LogDir.open(str(directory))
    rows = log.topic("latest-price").snapshot.live_of(0)
    assert log.topic("latest-price").offsets() == {0: said["bounds"]}
    assert [(row.base_offset, row.log_bytes) for row in rows] == said["segments"]
    state = "after-clean-1" if len(rows) == 2 else "before-clean"
    expected = expected_records(f"latest-price/{state}/latest-price-0")
    assert records_of(log.topic("latest-price").scan().batches()) == as_records(expected)
    assert log.topic("latest-price").snapshot.report.cuts == ()


def test_a_file_that_goes_away_while_it_is_read_is_looked_for_again(tmp_path):
    """A running broker deletes its oldest segment between the listing and the read."""
    shutil.copytree(golden_dir("broker-data/retention-0"), tmp_path / "retention-0")
    log = LogDir.open(str(tmp_path))
    read = log.storage.read

    def vanish(path, offset=0, length=None, **given):
        if path.endswith("450.log"):
            for file in (tmp_path / "retention-0").glob("00000000000000000450.*"):
                file.unlink()
        return read(path, offset, length, **given)

    log.storage.read = vanish
    assert log.topic("retention").offsets() == {0: (598, 800)}


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
    batches = batches_of(content)
    middle = len(batches) // 2
    cut, second_base = int(batches.byte_position[middle]), int(batches.base_offset[middle])
    for path in plain.glob(f"{690:020d}.*index"):
        path.unlink()
    old.unlink()
    parts = [(690, of_first, content[:cut]), (second_base, of_second, content[cut:])]
    for base, suffix, data in [(690, of_old, content), *parts]:
        (plain / f"{base:020d}.log{suffix}").write_bytes(data)
    log = LogDir.open(str(plain))
    assert records_of(log.topic("plain").scan().batches()) == as_records(expected_records("plain-0"))
    assert log.topic("plain").snapshot.report.cuts == log.topic("plain").snapshot.report.overlaps == ()
    bases = [row.base_offset for row in log.topic("plain").snapshot.live_of(0)]
    assert (second_base in bases) == is_split and bases.count(690) == 1
