"""Ranges of a segment give the batches in them, at their positions, and nothing else is read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import CorruptBatchError
from spark_segments.log.segment.file import SegmentFile
from spark_segments.log.segment.ranges import Ranges
from spark_segments.storage import Storage
from verification.world.kafka_bytes.segment_bytes import Window
from verification.world.manifest_rows import Segment
from verification.world.opened import LocalFiles


class StoreFiles(LocalFiles):
    """A local file in the place of an object, which notes what is read of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.reads = path, list[tuple[int, int]]()

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        assert length is not None
        self.reads.append((offset, offset + length))
        return super().read(str(self.path), offset, length)


@pytest.fixture
def log(tmp_path) -> LogDir:
    """A segment of 40 batches."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    log.topic("t").append(pa.table({"value": ["v" * 50] * 400}), options=ProducerOptions("none", 600))
    return log


def parts(windows_of_segment) -> list[tuple[int, bytes]]:
    """(position, bytes) of each batch."""
    return [
        (position, bytes(memoryview(window.data)[start : start + size]))
        for window in windows_of_segment
        for position, start, size in zip(
            window.batches.byte_position.tolist(), window.starts.tolist(), window.batches.size.tolist(), strict=True
        )
    ]


def every_third(storage: Storage, segment: Segment) -> tuple[Ranges, list[tuple[int, bytes]]]:
    """The ranges of two of each three batches, and these batches."""
    batches = parts(SegmentFile(storage, segment).windows())
    rows = [row for row in range(len(batches)) if row % 3]
    wanted = [batches[row] for row in rows]
    firsts = [batches[row] for row in rows if (row - 1) % 3 == 0]
    lasts = [batches[row] for row in rows if row % 3 == 2 or row == rows[-1]]
    starts = np.array([position for position, _ in firsts])
    return Ranges(starts, np.array([position + len(data) for position, data in lasts])), wanted


def one_segment(log: LogDir) -> Segment:
    (segment,) = log.topic("t").snapshot.live_of(0)
    return segment


@pytest.mark.parametrize("window_bytes", [1, 700, 2000, 1 << 20])
def test_the_batches_in_ranges_are_those_of_the_segment(log, limits, window_bytes):
    segment = one_segment(log)
    ranges, wanted = every_third(log.storage, segment)
    limits(WINDOW_BYTES=window_bytes)
    assert len(wanted) > 20
    assert parts(SegmentFile(log.storage, segment).windows_in(ranges)) == wanted


def test_a_window_of_ranges_can_be_taken_apart(log):
    segment = one_segment(log)
    ranges, wanted = every_third(log.storage, segment)
    (window,) = SegmentFile(log.storage, segment).windows_in(ranges)
    rows = np.arange(len(wanted)) % 2 == 1
    assert parts([window.take(rows)]) == wanted[1::2]
    assert parts([window.with_batches(window.batches.take(rows))]) == wanted[1::2]


def test_a_store_is_asked_for_no_byte_between_ranges(log):
    segment = one_segment(log)
    ranges, wanted = every_third(log.storage, segment)
    files = StoreFiles(Path(log.uri) / segment.path)
    storage = Storage("s3://bucket/log", filesystem=files)
    assert parts(SegmentFile(storage, segment).windows_in(ranges)) == wanted
    edges = list(zip(ranges.starts.tolist(), ranges.ends.tolist(), strict=True))
    assert files.reads
    assert all(any(low <= start and end <= high for low, high in edges) for start, end in files.reads)


def test_a_file_that_became_shorter_is_one_clear_error(log):
    segment = one_segment(log)
    ranges, wanted = every_third(log.storage, segment)
    path = Path(log.uri) / segment.path
    size = wanted[-1][0] + 10
    os.truncate(path, size)
    with pytest.raises(CorruptBatchError, match="shorter than the log says") as raised:
        list(SegmentFile(log.storage, segment).windows_in(ranges))
    assert raised.value.byte_position == size
    assert (raised.value.expected, raised.value.found) == (f"{segment.log_bytes} bytes", f"{size} bytes")


def test_a_shorter_file_is_the_same_error_behind_batches_that_are_left_out(log, limits):
    segment = one_segment(log)
    batches = parts(SegmentFile(log.storage, segment).windows())
    size = batches[-1][0] + 10
    os.truncate(Path(log.uri) / segment.path, size)
    limits(WINDOW_BYTES=700)
    with pytest.raises(CorruptBatchError, match="shorter than the log says") as raised:
        list(SegmentFile(log.storage, segment).windows(wanted_position=batches[1][0]))
    assert (raised.value.expected, raised.value.found) == (f"{segment.log_bytes} bytes", f"{size} bytes")


def test_an_error_says_the_position_in_the_file(log):
    segment = one_segment(log)
    ranges, wanted = every_third(log.storage, segment)
    position, data = wanted[9]
    with open(Path(log.uri) / segment.path, "r+b") as file:
        file.seek(position + len(data) - 5)
        file.write(b"\0")
    found: list[Window] = []
    with pytest.raises(CorruptBatchError, match="CRC-32C") as raised:
        found.extend(SegmentFile(log.storage, segment).windows_in(ranges))
    assert raised.value.byte_position == position
    assert raised.value.path == segment.path


def test_damage_between_ranges_is_nobodys_business(log):
    segment = one_segment(log)
    ranges, wanted = every_third(log.storage, segment)
    with open(Path(log.uri) / segment.path, "r+b") as file:
        file.seek(int(ranges.ends[3]) + 80)
        file.write(b"\0\0\0")
    assert parts(SegmentFile(log.storage, segment).windows_in(ranges)) == wanted
