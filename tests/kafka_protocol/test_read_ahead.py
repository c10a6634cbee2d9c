"""What a server gives of batches that it has read before, against a read of the files for each fetch."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import CorruptBatchError
from spark_segments.kafka_protocol.serving.read_ahead import (
    BLOCK_BYTES,
    CHECKED_SECONDS,
    UNUSED_SECONDS,
    FileRange,
    ReadAhead,
)
from spark_segments.kafka_protocol.serving.views import ServedTopic
from spark_segments.log.reading.verbatim import PartitionLog
from spark_segments.maintenance import roll
from verification.kafka_protocol.serving import records, serving

MIB = 1 << 20


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    """A topic of two rolled segments and chunks, of 7 MiB in all."""
    made = LogDir.create(str(tmp_path / "log"))
    made.create_topic("t", config={"segment.bytes": str(3 * MIB), "compression.type": "uncompressed"})
    value = np.random.default_rng(1).bytes(1000)
    for _ in range(7):
        made.topic("t").append(pa.table({"value": pa.array([value] * 1000, pa.binary())}))
    roll(made)
    return made


def view(log: LogDir, ahead: ReadAhead) -> ServedTopic:
    return ServedTopic(log, log.topic("t").snapshot, ahead)


def in_bytes(pieces: Sequence[Any]) -> bytes:
    return b"".join(_bytes(one) for one in pieces)


def _bytes(piece: Any) -> bytes:
    if not isinstance(piece, FileRange):
        return bytes(piece)
    data = bytearray(os.pread(piece.file.descriptor, piece.nbytes, piece.position))
    for position, first in zip(piece.positions, piece.heads, strict=True):
        data[position : position + len(first)] = first
    return bytes(data)


def read_on(shown: ServedTopic, size: int, offset: int = 0, *, from_files: bool = True) -> list[Any]:
    """All that a reader gets who fetches `size` bytes a time from `offset` on."""
    found: list[Any] = []
    end = shown.end_offset(0, committed=False)
    while offset < end:
        pieces, offset = shown.read(0, offset, size, committed=False, at_least_one=True, from_files=from_files)
        found += pieces
        shown.read_ahead(0, offset, size, from_files=from_files)
    return found


def test_any_fetch_gives_what_a_read_of_the_files_gives(log):
    ahead = ReadAhead(64 * MIB, sends_files=True)
    shown = view(log, ahead)
    plain = PartitionLog(log.storage, shown.snapshot, 0)
    chance = random.Random(1)
    files = 0
    for _ in range(12):
        offset = chance.randrange(7000)
        size = chance.choice([1, 100_000, MIB, 5 * MIB])
        for _ in range(6):
            pieces, behind = shown.read(0, offset, size, committed=False, at_least_one=True, from_files=True)
            read = plain.read(offset, behind, 1 << 40)
            assert (in_bytes(pieces), behind) == (in_bytes(read.data), read.next_offset)
            got = sum(len(one) for one in pieces)
            first = plain.read(offset, 7000, 0)
            assert got <= max(size, first.size_bytes)
            files += sum(isinstance(one, FileRange) for one in pieces)
            if behind >= 7000:
                break
            shown.read_ahead(0, behind, size, from_files=True)
            offset = behind
    assert files


def test_later_readers_get_ranges_of_files_as_long_as_the_check_counts(log):
    clock = Clock()
    ahead = ReadAhead(64 * MIB, sends_files=True, seconds=clock)
    first = read_on(view(log, ahead), MIB)
    assert not any(isinstance(one, FileRange) for one in first)
    later = read_on(view(log, ahead), MIB)
    assert in_bytes(later) == in_bytes(first)
    assert sum(len(one) for one in later if isinstance(one, FileRange)) > 4 * MIB
    encrypted = read_on(view(log, ahead), MIB, from_files=False)
    assert not any(isinstance(one, FileRange) for one in encrypted)
    assert in_bytes(encrypted) == in_bytes(first)

    clock.seconds = CHECKED_SECONDS * 2
    for file in Path(log.uri).glob("t-0/*.log"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with pytest.raises(CorruptBatchError, match="CRC"):
        read_on(view(log, ahead), MIB)


def test_what_lies_before_damage_is_given_and_who_goes_on_is_told(log):
    shown = view(log, ReadAhead(64 * MIB))
    segment = PartitionLog(log.storage, shown.snapshot, 0).segment_at(0)
    assert segment is not None
    file = Path(log.uri, segment.path)
    data = bytearray(file.read_bytes())
    data[2 * MIB] ^= 1
    file.write_bytes(data)
    pieces, behind = shown.read(0, 0, 5 * MIB, committed=False, at_least_one=True)
    assert MIB < sum(len(one) for one in pieces) < 2 * MIB
    with pytest.raises(CorruptBatchError, match="CRC"):
        shown.read(0, behind, 5 * MIB, committed=False, at_least_one=True)


def test_no_block_outlives_the_file_it_was_read_from(log):
    ahead = ReadAhead(64 * MIB, sends_files=True)
    before = in_bytes(read_on(view(log, ahead), MIB))
    log.topic("t").delete_records({0: 1500})
    assert in_bytes(read_on(view(log, ahead), MIB, 1500)) == in_bytes(
        PartitionLog(log.storage, log.topic("t").snapshot, 0).read(1500, 7000, 1 << 40).data
    )
    log.delete_topic("t")
    log.create_topic("t", config={"compression.type": "uncompressed"})
    log.topic("t").append([{"value": "another"}] * 7000)
    after = in_bytes(read_on(view(log, ahead), MIB))
    assert b"another" in after
    assert before[:1000] not in after


def test_a_reader_gets_no_more_than_it_asked_for_where_there_is_no_room(log):
    clock = Clock()
    ahead = ReadAhead(BLOCK_BYTES, sends_files=True, seconds=clock)
    shown = view(log, ahead)
    _, behind = shown.read(0, 0, 100_000, committed=False, at_least_one=True)
    shown.read_ahead(0, behind, 100_000)  # takes the room
    held = ahead.find((shown.topic_id, 0), behind)
    assert held is not None and held.size_bytes > BLOCK_BYTES // 2
    assert not ahead.has_room(BLOCK_BYTES)
    assert len(read_on(shown, 100_000, 4000)) > 20
    assert held.data is not None
    clock.seconds = UNUSED_SECONDS * 2
    assert ahead.has_room(BLOCK_BYTES)
    assert held.data is None


@pytest.mark.proof
def test_clients_read_a_topic_twice_and_get_the_same(log):
    with serving(log) as server:
        first = records(server, "t", 0)
        assert [row[0] for row in first] == list(range(7000))
        assert records(server, "t", 0) == first
        assert server.state["fetched_bytes"] > 14_000_000
