"""The second pass of a compaction reads only what has live records, and what it passes over was checked before."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.maintenance import compact, roll
from spark_segments.maintenance.compaction.noted_batches import LEAST_STORE_GAP_BYTES
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles
from verification.world.topics import contents

NOW_MS = 1_700_000_000_000
LATER_MS = 10 * 24 * 3_600_000
VALUE_BYTES = 1000
ROWS = 4 * LEAST_STORE_GAP_BYTES // VALUE_BYTES


def _append(log: LogDir, keys: list[str]) -> None:
    values = np.random.default_rng(len(keys)).bytes(len(keys) * VALUE_BYTES)
    rows = [values[at : at + VALUE_BYTES] for at in range(0, len(values), VALUE_BYTES)]
    log.topic("t").append(pa.table({"key": keys, "value": pa.array(rows, pa.binary())}))


@pytest.fixture
def log(tmp_path) -> LogDir:
    """A sealed segment whose records but for its first and its last 100 are superseded within it."""
    log = LogDir.create(str(tmp_path / "log"), defaults={"log.cleaner.threads": "1"})
    log.create_topic("t", 1, {"cleanup.policy": "compact", "compression.type": "uncompressed"})
    _append(log, [f"first {number}" for number in range(100)] + ["busy"] * ROWS)
    _append(log, [f"last {number}" for number in range(100)] + ["busy"])
    roll(log, now_ms=log.storage.now_ms() + LATER_MS)
    _append(log, ["active"])
    return log


def _segment(log: LogDir):
    return log.topic("t").snapshot.live_of(0)[0]


def test_bytes_without_a_live_record_are_read_once(log):
    segment, read_bytes = _segment(log), 0

    def counted(path, go):
        nonlocal read_bytes
        found = go()
        read_bytes += found.size if path.endswith(segment.path) else 0
        return found

    report = compact(opened(log, PlayedFiles(read=counted))).to_dict()
    assert segment.log_bytes < read_bytes < 1.5 * segment.log_bytes
    assert (report["records_in"], report["records_out"]) == (ROWS + 201, 201)
    assert report["dropped"] == {"superseded": ROWS}
    assert report["bytes_in"] == segment.log_bytes
    kept = [row["key"] for row in contents(log, "t", columns=["key"])]
    assert kept[:100] == [b"first %d" % number for number in range(100)]
    assert kept[-2:] == [b"busy", b"active"]


def test_a_damaged_batch_that_would_be_passed_over_stops_the_compaction(log, tmp_path):
    segment = _segment(log)
    path = tmp_path / "log" / segment.path
    with open(path, "r+b") as file:
        file.seek(segment.log_bytes // 2)
        byte = file.read(1)[0]
        file.seek(segment.log_bytes // 2)
        file.write(bytes([byte ^ 1]))
    report = compact(log)
    assert "CRC-32C" in str(report.failed)
    assert _segment(log) == segment


@pytest.mark.proof
def test_a_byte_that_a_single_read_gets_wrong_is_never_written(log, tmp_path):
    segment, before = _segment(log), _kept(log)
    reads = wrong = 0

    def flipped(path, go):
        nonlocal reads
        found = go()
        reads += path.endswith(segment.path)
        if not path.endswith(segment.path) or reads != wrong:
            return found
        data = bytearray(found)
        data[-VALUE_BYTES // 2] ^= 1  # of the last value that was read
        return pa.py_buffer(data)

    noticed = 0
    while reads >= wrong:
        wrong += 1
        reads = 0
        shutil.copytree(tmp_path / "log", tmp_path / str(wrong))
        copy = opened(tmp_path / str(wrong), PlayedFiles(read=flipped), defaults={"log.cleaner.threads": "1"})
        failed = compact(copy).failed
        noticed += bool(failed)
        assert "CRC" in str(failed) if failed else len(_kept(copy)) == 202
        assert _kept(copy).items() <= before.items()
    assert noticed >= 2, "both passes"


def _kept(log: LogDir) -> dict[int, tuple[bytes, bytes]]:
    rows = contents(log, "t", columns=["offset", "key", "value"])
    return {row["offset"]: (row["key"], row["value"]) for row in rows}
