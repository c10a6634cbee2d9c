"""Where a partition ends after an unclean stop: all before the first damage is kept."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from spark_segments import LogDir
from spark_segments.kafka.segment_scan import span_of
from spark_segments.storage import FileInfo, Storage
from tests.log.golden_reads import as_records, records_of
from tests.log.recovery.damage import LAST, damage
from verification.world.kafka_bytes.golden_files import expected_records, golden_dir
from verification.world.kafka_bytes.segment_bytes import HEADER_STRUCT, batches_of


def test_a_first_segment_that_is_damaged_from_its_first_byte_leaves_an_empty_log(plain):
    damage(plain, "00000000000000000000.log", 16, b"\x09")
    log = LogDir.open(str(plain))
    [cut] = log.topic("plain").snapshot.report.cuts
    assert log.topic("plain").offsets() == {0: (0, 0)}
    assert (cut.byte_position, len(cut.dropped)) == (0, 7)
    assert list(log.topic("plain").scan().batches()) == []


def test_offsets_that_fall_end_the_log(plain):
    """The base offset lies outside the CRC, so that only its neighbours show that it is wrong."""
    batches = batches_of((plain / "00000000000000001392.log").read_bytes())
    damage(
        plain, "00000000000000001392.log", int(batches.byte_position[3]), int(batches.base_offset[1]).to_bytes(8, "big")
    )
    log = LogDir.open(str(plain))
    [cut] = log.topic("plain").snapshot.report.cuts
    assert cut.byte_position == int(batches.byte_position[3])
    assert "offsets do not rise" in cut.reason
    assert log.topic("plain").offsets() == {0: (0, int(batches.base_offset[3]))}


def test_an_offset_below_the_name_of_its_file_ends_the_log(plain):
    damage(plain, "00000000000000001392.log", 0, (1391).to_bytes(8, "big"))
    log = LogDir.open(str(plain))
    assert log.topic("plain").offsets() == {0: (0, 1392)}
    assert len(log.topic("plain").snapshot.report.cuts) == 1


def test_a_segment_that_overlaps_the_one_before_is_read_from_where_that_one_ends(plain):
    content = (plain / "00000000000000000690.log").read_bytes()
    batches = batches_of(content)
    twice = int(batches.byte_position[4])
    with open(plain / "00000000000000000000.log", "ab") as file:
        file.write(content[:twice])
    log = LogDir.open(str(plain))
    report = log.topic("plain").snapshot.report
    assert report.cuts == ()
    [overlap] = report.overlaps
    assert (overlap.path, overlap.served) == ("00000000000000000690.log", "00000000000000000000.log")
    assert (overlap.first_offset, overlap.last_offset) == (690, int(batches.last_offset[3]))
    assert records_of(log.topic("plain").scan().batches()) == as_records(expected_records("plain-0"))


def test_a_log_that_ends_before_its_log_start_begins_anew_there(tmp_path):
    shutil.copytree(golden_dir("plain-0"), tmp_path / "plain-0")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nplain 0 6000\n")
    log = LogDir.open(str(tmp_path))
    [cut] = log.topic("plain").snapshot.report.cuts
    assert log.topic("plain").offsets() == {0: (6000, 6000)}
    assert log.topic("plain").snapshot.partition(0).leader_epochs == ()
    assert "log start offset 6000" in cut.reason
    assert list(log.topic("plain").scan().batches()) == []


def test_a_batch_larger_than_the_window_is_scanned_whole(plain, limits):
    limits(WINDOW_BYTES=100)
    log = LogDir.open(str(plain))
    assert log.topic("plain").snapshot.report.cuts == ()
    assert log.topic("plain").snapshot.report.notes == ()
    assert log.topic("plain").offsets() == {0: (0, 5000)}
    assert sum(row.batches for row in log.topic("plain").snapshot.live_of(0)) == 471


def test_a_length_that_no_file_holds_is_not_read(plain, monkeypatch):
    """A flipped bit in a batch's length must not make the scan read, or ask memory for, two gigabytes."""
    with open(plain / f"{LAST}.log", "ab") as file:
        file.write(HEADER_STRUCT.pack(5000, 2**31 - 100, 5, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1))
    storage = Storage(str(plain))
    read, sizes = storage.read, []

    def noted(path, offset, length, **given):
        sizes.append(length)
        return read(path, offset, length, **given)

    monkeypatch.setattr(storage, "read", noted)
    size = (plain / f"{LAST}.log").stat().st_size
    assert span_of(storage, FileInfo(f"{LAST}.log", size, 0), 4885)[1] == 5000
    assert max(sizes) == size
    assert LogDir.open(str(plain)).topic("plain").offsets() == {0: (0, 5000)}


@pytest.mark.cases(4)
@pytest.mark.parametrize("seed", range(12))
def test_no_damage_makes_anything_but_a_shorter_log(plain, seed):
    """Wherever bytes of a .log are overwritten, what is left is what was there before, up to the first damage."""
    random = np.random.default_rng(seed)
    files = sorted(plain.glob("*.log"))
    chosen = files[random.integers(len(files))]
    position = int(random.integers(chosen.stat().st_size - 40))
    damage(plain, chosen.name, position, random.bytes(40))
    log = LogDir.open(str(plain))
    snapshot = log.topic("plain").snapshot
    [cut] = snapshot.report.cuts
    assert cut.path == chosen.name
    assert cut.byte_position <= position
    expected = as_records(expected_records("plain-0"))
    found = records_of(log.topic("plain").scan().batches())
    assert found == expected[: len(found)]
    assert log.topic("plain").offsets() == {0: (0, len(found))}


@pytest.mark.parametrize("name", ["legacy-v0-0", "legacy-v1-0"])
@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages_of_the_old_magics_end_the_log_too(name, seed, tmp_path):
    directory = tmp_path / name
    shutil.copytree(golden_dir(name), directory)
    chosen = sorted(directory.glob("*.log"))[seed % 2]
    batches = batches_of(chosen.read_bytes())
    bad = 5 + 11 * seed
    damage(directory, chosen.name, int(batches.byte_position[bad] + batches.size[bad] - 2), b"\xa5")
    topic = name.rpartition("-")[0]
    log = LogDir.open(str(directory))
    [cut] = log.topic(topic).snapshot.report.cuts
    assert (cut.path, cut.byte_position) == (chosen.name, int(batches.byte_position[bad]))
    end = log.topic(topic).offsets()[0][1]
    assert end == int(batches.last_offset[bad - 1]) + 1
    expected = expected_records(name)
    assert records_of(log.topic(topic).scan().batches()) == as_records(
        expected, where=lambda line: line["offset"] < end
    )


def test_an_empty_active_segment_is_where_the_log_ends(plain):
    (plain / f"{5000:020d}.log").write_bytes(b"")
    log = LogDir.open(str(plain))
    *_, before, last = log.topic("plain").snapshot.live_of(0)
    assert (last.base_offset, last.next_offset, last.log_bytes, last.state) == (5000, 5000, 0, "chunk")
    assert (before.next_offset, before.state) == (5000, "sealed")
    assert log.topic("plain").offsets() == {0: (0, 5000)}
    assert records_of(log.topic("plain").scan().batches()) == as_records(expected_records("plain-0"))
    assert list(log.topic("plain").scan(offsets=(5000, None)).batches()) == []
