from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.sidecars.check import OffsetIndexCheck, TimeIndexCheck
from spark_segments.format.sidecars.index import (
    OFFSET_ENTRY,
    IndexBuilder,
    offset_index_bytes,
    parse_offset_index,
    parse_time_index,
    position_for_offset,
    raw_entries,
    time_index_bytes,
)
from tests.examples import examples
from verification.world.kafka_bytes.golden_files import (
    CLEAN_DIRECTORIES,
    GOLDEN,
    LEGACY_DIRECTORIES,
    golden_dir,
    log_files,
)
from verification.world.kafka_bytes.segment_bytes import rebuild

# Kafka appended several batches a call here: on purpose, in the message sets of old magics, and in the cleaner's
# buffers. Where a log was closed and opened again between two appends, its time index has the first run's maximum too.
SEVERAL_BATCHES_AN_APPEND = ["multiappend-0", *LEGACY_DIRECTORIES]
CLEANED_OR_REOPENED = [
    *(
        f"bigcompact-{codec}/{when}/bigcompact-0"
        for codec in ("none", "zstd")
        for when in ("clean-1", "dirty-2", "clean-2")
    ),
    *(f"txn-compact/{when}/txnc-0" for when in ("clean-1", "dirty-2", "clean-2", "dirty-3", "dirty-4")),
]
ONE_BATCH_AN_APPEND = [
    name for name in CLEAN_DIRECTORIES if name not in SEVERAL_BATCHES_AN_APPEND and name not in CLEANED_OR_REOPENED
]


def interval_bytes(name: str) -> int:
    return 100 if name == "canary300dense-0" else 1024 if name in ("multiappend-0", "outoforder-0") else 4096


def segments(name: str):
    for path in log_files(name):
        yield int(path.name.split(".")[0]), path, scan_batches(path.read_bytes()).batches


def index_files(log_path: Path) -> tuple[bytes, bytes]:
    return log_path.with_suffix(".index").read_bytes(), log_path.with_suffix(".timeindex").read_bytes()


def table(*, sizes, base_offsets, last_offsets, max_timestamps) -> BatchTable:
    batches = BatchTable.empty(len(sizes))
    batches.size[:] = sizes
    batches.byte_position[:] = np.cumsum(batches.size) - batches.size
    batches.base_offset[:] = base_offsets
    batches.last_offset[:] = last_offsets
    batches.max_timestamp[:] = max_timestamps
    return batches


def appends_of(batches: BatchTable, base_offset: int, index: bytes) -> BatchTable:
    """Each append call as one batch, as far as Kafka's index tells: what lies between entries counts as one."""
    relative_offset, position = parse_offset_index(index)
    starts = np.searchsorted(batches.byte_position, position)
    ends = np.searchsorted(batches.last_offset, relative_offset + np.int64(base_offset)) + 1
    bounds = np.unique(np.concatenate(([0], starts, ends, [len(batches)])))
    first = bounds[:-1]
    merged = batches.take(first)
    merged.size[:] = np.add.reduceat(batches.size, first)
    merged.last_offset[:] = batches.last_offset[bounds[1:] - 1]
    merged.max_timestamp[:] = np.maximum.reduceat(batches.max_timestamp, first)
    return merged


def with_offsets_of_largest(appends: BatchTable, batches: BatchTable) -> BatchTable:
    """The appends, each ending with its first batch that has its largest timestamp: what a time index says of it."""
    bounds = [*np.searchsorted(batches.byte_position, appends.byte_position), len(batches)]
    largest = [start + int(batches.max_timestamp[start:end].argmax()) for start, end in itertools.pairwise(bounds)]
    named = appends.take(np.arange(len(appends)))
    named.last_offset[:] = batches.last_offset[largest]
    return named


@pytest.mark.parametrize("name", ONE_BATCH_AN_APPEND)
def test_rebuilt_indexes_are_kafkas_bytes_where_it_appended_one_batch_a_call(name):
    for base_offset, path, batches in segments(name):
        assert rebuild(batches, base_offset, interval_bytes=interval_bytes(name)) == index_files(path), path.name


@pytest.mark.parametrize("name", SEVERAL_BATCHES_AN_APPEND)
def test_appends_of_several_batches_give_one_entry_each(name):
    for base_offset, path, batches in segments(name):
        appends = appends_of(batches, base_offset, index_files(path)[0])
        kafka_index, kafka_time_index = index_files(path)
        limits = {"interval_bytes": interval_bytes(name)}
        assert rebuild(appends, base_offset, **limits)[0] == kafka_index, path.name
        assert rebuild(with_offsets_of_largest(appends, batches), base_offset, **limits)[1] == kafka_time_index, (
            path.name
        )
        assert rebuild(batches, base_offset, **limits)[0] != kafka_index


def untrue(check: type[OffsetIndexCheck | TimeIndexCheck], entries, batches, base_offset: int) -> np.ndarray:
    """The numbers of the entries that do not hold, for a scan by windows of three batches."""
    checked = check(entries, base_offset)
    for first in range(0, len(batches), 3):
        checked.add(batches.take(slice(first, first + 3)))
    return checked.untrue()


@pytest.mark.parametrize("name", CLEAN_DIRECTORIES + LEGACY_DIRECTORIES)
def test_every_entry_that_kafka_wrote_holds(name):
    for base_offset, path, batches in segments(name):
        index, time_index = index_files(path)
        offset_entries, time_entries = parse_offset_index(index, path=path.name), parse_time_index(time_index)
        assert offset_index_bytes(*offset_entries) == index
        assert time_index_bytes(*time_entries) == time_index
        assert list(untrue(OffsetIndexCheck, offset_entries, batches, base_offset)) == []
        assert list(untrue(TimeIndexCheck, time_entries, batches, base_offset)) == []


def test_canary_entries():
    (base_offset, _, batches), *_ = segments("canary-0")
    index, _ = rebuild(batches, base_offset)
    entries = [(int(offset), int(position)) for offset, position in zip(*parse_offset_index(index), strict=True)]
    assert entries == [(28, 4162), (56, 8334), (84, 12506)]
    assert len(batches) == 109


@examples(50)
@given(cuts=st.lists(st.integers(0, 471), max_size=6))
def test_batches_may_come_in_pieces(cuts):
    _, path, batches = next(segments("plain-0"))
    builder = IndexBuilder(0)
    bounds = [0, *sorted(cut % len(batches) for cut in cuts), len(batches)]
    for start, end in itertools.pairwise(bounds):
        builder.add(batches.take(slice(start, end)))
    assert builder.finish() == index_files(path)
    assert builder.finish() == index_files(path)  # it may be looked at before more is added
    assert builder.max_timestamp == batches.max_timestamp.max()
    assert builder.offset_of_max_timestamp == batches.last_offset[batches.max_timestamp.argmax()]


def test_no_entry_of_either_kind_before_the_interval_is_exceeded():
    batches = table(sizes=[100] * 4, base_offsets=range(4), last_offsets=range(4), max_timestamps=[5, 6, 7, 8])
    assert rebuild(batches, 0, interval_bytes=200) == (offset_index_bytes([3], [300]), time_index_bytes([8], [3]))
    assert rebuild(batches, 0, interval_bytes=300) == (b"", time_index_bytes([8], [3]))


def test_records_without_timestamp_make_no_time_entry():
    batches = table(sizes=[100] * 4, base_offsets=range(4), last_offsets=range(4), max_timestamps=[-1] * 4)
    builder = IndexBuilder(0, interval_bytes=10)
    builder.add(batches)
    assert builder.finish() == (offset_index_bytes([1, 2, 3], [100, 200, 300]), b"")
    assert (builder.max_timestamp, builder.offset_of_max_timestamp) == (-1, -1)


def test_a_full_index_takes_no_more_entries_but_the_final_maximum():
    batches = table(sizes=[100] * 9, base_offsets=range(9), last_offsets=range(9), max_timestamps=range(9))
    index, time_index = rebuild(batches, 0, interval_bytes=10, index_bytes=36)
    assert index == offset_index_bytes([1, 2, 3, 4], [100, 200, 300, 400])
    assert time_index == time_index_bytes([1, 2, 8], [1, 2, 8])


@pytest.mark.parametrize("last_offset", [99, 100 + 2**31])
def test_an_offset_that_no_entry_can_hold_is_refused(last_offset):
    batches = table(sizes=[100], base_offsets=[last_offset], last_offsets=[last_offset], max_timestamps=[0])
    with pytest.raises(CorruptBatchError, match="does not fit"):
        IndexBuilder(100).add(batches)


@pytest.mark.parametrize("name", ["plain-0", "multiappend-0", "txn-compact/clean-2/txnc-0"])
def test_a_scan_from_the_position_of_an_offset_finds_it(name):
    for base_offset, path, batches in segments(name):
        index = parse_offset_index(index_files(path)[0])
        for offset in range(base_offset, int(batches.last_offset[-1]) + 2):
            position = position_for_offset(index, offset - base_offset)
            first = np.searchsorted(batches.byte_position, position)
            assert batches.byte_position[first] == position
            assert first == 0 or batches.last_offset[first - 1] < offset


def position_for_time(time_index, offset_index, timestamp: int) -> int:
    """Where a look-up by time begins: at the offset of the last entry that is not younger."""
    entry = int(np.searchsorted(time_index[0], timestamp, side="right")) - 1
    return position_for_offset(offset_index, int(time_index[1][entry])) if entry >= 0 else 0


@pytest.mark.parametrize(
    "name", ["outoforder-0", "multiappend-0", "logappend-0", "bigcompact-none/clean-1/bigcompact-0"]
)
def test_no_record_before_the_position_of_a_time_has_that_time(name):
    for _, path, batches in segments(name):
        index, time_index = index_files(path)
        offset_entries, time_entries = parse_offset_index(index), parse_time_index(time_index)
        targets = np.unique(np.concatenate((batches.max_timestamp, batches.max_timestamp + 1, [-1, 0])))
        for target in targets:
            position = position_for_time(time_entries, offset_entries, int(target))
            before = batches.take(batches.byte_position < position)
            assert np.all(before.max_timestamp < target)
        largest = int(batches.max_timestamp.max(initial=-1))
        if len(offset_entries[0]) > 2 and name != "outoforder-0":
            assert position_for_time(time_entries, offset_entries, largest + 1) > 0


def test_the_zero_tail_of_a_preallocated_index_is_cut():
    *_, (base_offset, path, batches) = segments("live-0")
    index, time_index = index_files(path)
    assert (len(index), len(time_index)) == (8192, 8184)
    kept = (offset_index_bytes(*parse_offset_index(index)), time_index_bytes(*parse_time_index(time_index)))
    assert kept == rebuild(batches, base_offset)  # the last batch got an entry, so nothing is left for the close to add
    assert len(parse_offset_index(bytes(8192))[0]) == len(parse_time_index(bytes(8184))[0]) == 0


def test_a_cut_last_entry_is_left_out():
    index, time_index = index_files(golden_dir("plain-0") / "00000000000000000690.log")
    assert offset_index_bytes(*parse_offset_index(index[:13])) == index[:8]
    assert time_index_bytes(*parse_time_index(time_index[:35])) == time_index[:24]


@pytest.mark.parametrize(
    ("parse", "data", "position"),
    [
        (parse_offset_index, offset_index_bytes([5, 5], [100, 200]), 8),
        (parse_offset_index, offset_index_bytes([5, 6, 7], [100, 200, 150]), 16),
        (parse_offset_index, offset_index_bytes([-1], [100]), 0),
        (parse_time_index, time_index_bytes([10, 9], [1, 2]), 12),
        (parse_time_index, time_index_bytes([10, 11], [2, 1]), 12),
        (parse_time_index, time_index_bytes([-1], [1]), 0),
    ],
)
def test_entries_that_do_not_rise_are_an_error_with_their_place(parse, data, position):
    with pytest.raises(CorruptBatchError) as caught:
        parse(data, path="orders-0/x.index")
    assert (caught.value.path, caught.value.byte_position) == ("orders-0/x.index", position)


def test_an_index_of_garbage_is_an_error():
    damaged = GOLDEN / "damaged" / "corrupt-index" / "plain-0" / "00000000000000002773.index"
    with pytest.raises(CorruptBatchError, match="rebuild the index"):
        parse_offset_index(damaged.read_bytes(), path=damaged.name)
    assert len(raw_entries(damaged.read_bytes(), OFFSET_ENTRY)) == damaged.stat().st_size // 8


def test_entries_that_do_not_hold_are_told():
    base_offset, path, batches = next(segments("plain-0"))
    index, time_index = index_files(path)
    relative_offset, position = parse_offset_index(index)
    timestamp, time_offset = parse_time_index(time_index)

    def changed(array: np.ndarray, entry: int, by: int) -> np.ndarray:
        return np.array([value + by * (row == entry) for row, value in enumerate(array)], array.dtype)

    for false in ((relative_offset, changed(position, 3, 1)), (changed(relative_offset, 3, 5000), position)):
        assert 3 in untrue(OffsetIndexCheck, false, batches, base_offset)
    # The offset of the batch before the position.
    start = int(batches.base_offset[batches.byte_position == position[3]][0])
    before = changed(relative_offset, 3, start - 1 - relative_offset[3])
    assert 3 in untrue(OffsetIndexCheck, (before, position), batches, base_offset)
    for false in (
        (changed(timestamp, 2, 1), time_offset),
        (timestamp, changed(time_offset, 2, int(time_offset[3] - time_offset[2]) - 1)),
    ):
        assert list(untrue(TimeIndexCheck, false, batches, base_offset)) == [2]
