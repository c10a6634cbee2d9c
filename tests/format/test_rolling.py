from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.rolling import OpenSegment, Rolls, segment_jitter_ms
from spark_segments.format.rolling import roll_points as points_to_roll
from spark_segments.format.sidecars.index import DEFAULT_INDEX_BYTES, DEFAULT_INTERVAL_BYTES, IndexBuilder
from tests.format.test_index import appends_of, index_files, segments, table
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, log_files

WEEK_MS = 7 * 86_400_000
KNOWN_DIGEST = 0x232F8C7D9438B7D3
DEFAULTS = {
    "segment_bytes": 65536,
    "segment_ms": WEEK_MS,
    "index_interval_bytes": DEFAULT_INTERVAL_BYTES,
    "index_bytes": DEFAULT_INDEX_BYTES,
}
CONFIGS = {
    "canary-0": {"segment_bytes": 16384},
    "canary300-0": {"segment_bytes": 16384, "index_bytes": 300},
    "canary300full-0": {"segment_bytes": 1 << 20, "index_bytes": 300},
    "canary300dense-0": {"segment_bytes": 1 << 20, "index_bytes": 300, "index_interval_bytes": 100},
    "multiappend-0": {"index_interval_bytes": 1024},
    "outoforder-0": {"segment_bytes": 32768, "index_interval_bytes": 1024},
    "logappend-0": {"segment_bytes": 32768},
    "txn-0": {"segment_bytes": 32768},
    "latest-price/before-clean/latest-price-0": {"segment_bytes": 1 << 30, "segment_ms": 100},
    "bigcompact-none/dirty/bigcompact-0": {"segment_bytes": 131072},
    "bigcompact-zstd/dirty/bigcompact-0": {"segment_bytes": 131072},
    "broker-data/retention-0": {"segment_bytes": 16384},
}
# Not cleaned and not rolled by hand, so that every segment is there because of the rule.
ROLLED_BY_THE_RULE = [
    name
    for name in CLEAN_DIRECTORIES
    if not any(part in name for part in ("clean-", "dirty-", "latest-0", "txnc", "before-clean-", "multiappend"))
]
CHECKED = ["canary-0", "canary300-0", "canary300full-0", "canary300dense-0", "plain-0", "outoforder-0"]


def roll_points(
    batches: BatchTable, *, segment_ms: int, jitter_ms: Callable[[int], int] = lambda base_offset: 0, **rest: Any
) -> Rolls:
    """With segment.ms and its jitter apart."""
    return points_to_roll(batches, roll_ms=lambda base_offset: segment_ms - jitter_ms(base_offset), **rest)


def config(name: str) -> dict[str, int]:
    return {**DEFAULTS, **CONFIGS.get(name, {})}


def whole_log(name: str) -> tuple[list[int], BatchTable]:
    parts = list(segments(name))
    return [base for base, _, _ in parts], BatchTable.concatenate([batches for _, _, batches in parts])


def bases(batches: BatchTable, rows: np.ndarray) -> list[int]:
    return [int(batches.base_offset[0]), *map(int, batches.base_offset[rows])]


@pytest.mark.parametrize("name", ROLLED_BY_THE_RULE)
def test_batches_appended_one_by_one_roll_where_kafka_rolled(name):
    kafka_bases, batches = whole_log(name)
    if len(batches):
        assert bases(batches, roll_points(batches, **config(name)).rows) == kafka_bases


def test_txn_compact_rolls_where_kafka_rolled_by_itself():
    kafka_bases, batches = whole_log("txn-compact/dirty/txnc-0")
    rolls = roll_points(batches, **{**DEFAULTS, "segment_bytes": 16384})
    assert bases(batches, rolls.rows) == kafka_bases[:-1]  # the last was rolled by hand, to be the active one


@pytest.mark.parametrize("name", CHECKED)
def test_segments_rolled_here_have_kafkas_index_bytes(name):
    _, batches = whole_log(name)
    rows = roll_points(batches, **config(name)).rows
    for path, part in zip(log_files(name), np.split(np.arange(len(batches)), rows), strict=True):
        segment = batches.take(part)
        segment.byte_position[:] = np.cumsum(segment.size) - segment.size
        builder = IndexBuilder(
            int(segment.base_offset[0]), config(name)["index_interval_bytes"], config(name)["index_bytes"]
        )
        builder.add(segment)
        assert builder.finish() == index_files(path)


def test_known_segments_of_the_canaries():
    _, batches = whole_log("canary-0")
    assert bases(batches, roll_points(batches, **config("canary-0")).rows)[:4] == [0, 109, 218, 327]
    _, batches = whole_log("canary300full-0")
    assert bases(batches, roll_points(batches, **config("canary300full-0")).rows)[1] == 673
    _, batches = whole_log("canary300dense-0")
    assert bases(batches, roll_points(batches, **config("canary300dense-0")).rows) == list(range(0, 200, 25))


def test_appends_of_several_batches_roll_as_one():
    appends: list[BatchTable] = []
    for base_offset, path, batches in segments("multiappend-0"):
        appends.append(appends_of(batches, base_offset, index_files(path)[0]))
    together = BatchTable.concatenate(appends)
    assert bases(together, roll_points(together, **config("multiappend-0")).rows) == [0, 557, 1142, 1728]


@pytest.mark.parametrize("name", ["canary300full-0", "plain-0", "latest-price/before-clean/latest-price-0"])
def test_a_log_in_pieces_rolls_as_a_whole(name):
    _, batches = whole_log(name)
    rows: list[int] = []
    segment = None
    for start in range(0, len(batches), 7):
        rolls = roll_points(batches.take(slice(start, start + 7)), open_segment=segment, **config(name))
        rows += [start + int(row) for row in rolls.rows]
        segment = rolls.open
    assert rows == list(roll_points(batches, **config(name)).rows)


def test_bytes_that_fit_exactly_do_not_roll():
    batches = table(sizes=[50, 50, 1], base_offsets=range(3), last_offsets=range(3), max_timestamps=[0] * 3)
    assert list(roll_points(batches, **{**DEFAULTS, "segment_bytes": 100}).rows) == [2]


def test_a_batch_larger_than_a_segment_gets_one_of_its_own():
    batches = table(sizes=[500, 500], base_offsets=range(2), last_offsets=range(2), max_timestamps=[0] * 2)
    assert list(roll_points(batches, **{**DEFAULTS, "segment_bytes": 100}).rows) == [1]


def test_record_time_counts_from_the_first_batch_and_jitter_shortens_it():
    batches = table(sizes=[1] * 4, base_offsets=range(4), last_offsets=range(4), max_timestamps=[1000, 5, 1100, 1101])
    times = {**DEFAULTS, "segment_ms": 100}
    assert list(roll_points(batches, **times).rows) == [3]
    assert list(roll_points(batches, jitter_ms=lambda base_offset: 1, **times).rows) == [2]
    asked: list[int] = []
    roll_points(batches, jitter_ms=lambda base_offset: asked.append(base_offset) or 0, offset_shift=40, **times)
    assert asked == [40, 43]


def test_without_a_first_timestamp_the_time_that_the_segment_was_open_counts():
    batches = table(sizes=[1] * 2, base_offsets=[7, 8], last_offsets=[7, 8], max_timestamps=[-1, 10**15])
    segment = OpenSegment(base_offset=5, size_bytes=10)
    times = {**DEFAULTS, "segment_ms": 100}
    assert list(roll_points(batches, open_segment=segment, waited_ms=100, **times).rows) == []
    assert list(roll_points(batches, open_segment=segment, waited_ms=101, **times).rows) == [0]


def test_an_offset_that_the_index_cannot_hold_rolls():
    offsets = [10, 10 + 2**31 - 1, 10 + 2**31]
    batches = table(sizes=[1] * 3, base_offsets=offsets, last_offsets=offsets, max_timestamps=[0] * 3)
    assert list(roll_points(batches, **DEFAULTS).rows) == [2]
    segment = OpenSegment(0, size_bytes=1)
    rolls = roll_points(batches.take(slice(2, 3)), open_segment=segment, offset_shift=-9, **DEFAULTS)
    assert list(rolls.rows) == [0] and rolls.open.base_offset == 1 + 2**31


class PlainSegment:
    """Kafka's LogSegment as far as `shouldRoll` and `append` need it."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.size = self.since_entry = self.entries = self.time_entries = 0
        self.first_ms = self.newest_ms = self.entry_ms = -1

    def is_full_for(
        self, size: int, last_offset: int, max_ms: int, waited_ms: int, bytes_: int, ms: int, index: int
    ) -> bool:
        waited_ms = max_ms - self.first_ms if self.first_ms >= 0 else waited_ms
        return (
            self.size > bytes_ - size
            or waited_ms > ms
            or self.entries >= index // 8
            or self.time_entries >= index // 12 - 1
            or last_offset - self.base_offset > 2**31 - 1
        )

    def append(self, size: int, max_ms: int, interval: int) -> None:
        if self.size == 0:
            self.first_ms = max_ms
        self.newest_ms = max(self.newest_ms, max_ms)
        if self.since_entry > interval:
            self.entries += 1
            if self.newest_ms > self.entry_ms:
                self.time_entries += 1
                self.entry_ms = self.newest_ms
            self.since_entry = 0
        self.size += size
        self.since_entry += size


@pytest.mark.parametrize("length", [2, *(pytest.param(length, marks=pytest.mark.proof) for length in (3, 4))])
def test_every_small_log_rolls_where_kafkas_rule_says(length):
    """Batches small and large, without a timestamp, old and new, near and far; each limit reached and just not."""
    limits = list(itertools.product((3, 4, 6), (4, 5), (0, 2), (24, 36, 48), (0, 5)))
    for found in itertools.product(itertools.product((1, 3), (-1, 0, 5), (1, 2**31 - 1)), repeat=length):
        sizes, times, steps = zip(*found, strict=True)
        offsets = list(itertools.accumulate(steps, initial=0))[:-1]
        batches = table(sizes=list(sizes), base_offsets=offsets, last_offsets=offsets, max_timestamps=list(times))
        for segment_bytes, segment_ms, interval, index, waited_ms in limits:
            settings = dict(zip(DEFAULTS, (segment_bytes, segment_ms, interval, index), strict=True))
            rolls = roll_points(batches, waited_ms=waited_ms, **settings)
            assert rolls.rows.tolist() == plain_rolls(sizes, offsets, times, waited_ms, **settings), (found, settings)


def plain_rolls(
    sizes: Sequence[int],
    offsets: Sequence[int],
    times: Sequence[int],
    waited_ms: int,
    *,
    segment_bytes: int,
    segment_ms: int,
    index_interval_bytes: int,
    index_bytes: int,
) -> list[int]:
    rows, segment = [], PlainSegment(0)
    for row, (size, offset, max_ms) in enumerate(zip(sizes, offsets, times, strict=True)):
        limits = (0 if rows else waited_ms, segment_bytes, segment_ms, index_bytes)
        if segment.size and segment.is_full_for(size, offset, max_ms, *limits):
            rows.append(row)
            segment = PlainSegment(offset)
        segment.append(size, max_ms, index_interval_bytes)
    return rows


def test_no_batches_no_rolls():
    rolls = roll_points(scan_batches(b"").batches, **DEFAULTS)
    assert len(rolls.rows) == 0 and rolls.open.size_bytes == 0


def test_jitter_is_stable_spread_and_below_its_bound():
    def jitter(base_offset: int, bound: int = 1000) -> int:
        return segment_jitter_ms("id", 3, base_offset, WEEK_MS, bound)

    # BLAKE2b of "id/3/0": computed with `b2sum -l 64`.
    assert jitter(0, 2**62) == KNOWN_DIGEST % min(2**62, WEEK_MS)
    values = [jitter(base_offset) for base_offset in range(0, 100_000, 100)]
    assert min(values) >= 0 and max(values) < 1000
    assert 400 < np.mean(values) < 600 and len(set(values)) > 550
    assert segment_jitter_ms("id", 3, 0, 10, 10**9) < 10
    assert segment_jitter_ms("id", 3, 0, 10, 0) == 0
    assert len({segment_jitter_ms("id", n, 0, WEEK_MS, WEEK_MS) for n in range(50)}) == 50
