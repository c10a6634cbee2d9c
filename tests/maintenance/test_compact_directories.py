"""Compaction of directories as brokers leave them: old formats, gaps, room that was never used, odd checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.log.segment import file as reader
from spark_segments.maintenance import compact, retain, roll, verify
from tests.log.golden_reads import records_of
from tests.log.overlapping import TOPIC, Batch, SegmentOf, write_partition
from tests.log.test_overlaps import each, record
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.kafka_bytes.segment_bytes import batches_of
from verification.world.topics import GOLDEN_MS, contents, later, live, topic_with

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def imported(log: LogDir, directory: Path, **config: str) -> LogDir:
    log.import_kafka(str(directory), config=CONFIG | {name.replace("_", "."): value for name, value in config.items()})
    return log


def keyed(base: int, keys: str, magic: int, codec: int) -> Batch:
    records = tuple(record(base + n, f"magic {magic}", base + n, magic, key.encode()) for n, key in enumerate(keys))
    return Batch(base, base + len(keys) - 1, records, magic, codec)


@pytest.mark.parametrize("codec", [0, 1], ids=["plain", "nested"])
def test_segments_of_all_three_magics_are_cleaned_as_one_log(log, tmp_path, codec):
    parts = ((0, "abca", 0), (4, "bdde", 0), (8, "efga", 1), (12, "ghhb", 1), (16, "hij", 2), (19, "jk", 2))
    batches = [keyed(base, keys, magic, codec) for base, keys, magic in parts]
    segments = [SegmentOf(one.first, (one,)) for one in batches]
    write_partition(tmp_path / "kafka", [*segments, each(21, [21])])
    newest = {one[4]: one for one in (one for batch in batches for one in batch.records)}
    imported(log, tmp_path / "kafka")
    before = {one[1]: one for one in records_of(log.topic(TOPIC).scan().batches())}
    compact(log)
    after = records_of(log.topic(TOPIC).scan().batches())
    assert after == [before[one[1]] for one in sorted(newest.values(), key=lambda one: one[1])] + [before[21]]
    assert [(one[4], one[5]) for one in after[:-1]] == [
        (one[4], one[5]) for one in sorted(newest.values(), key=lambda one: one[1])
    ]
    assert {int(magic) for row in live(log, TOPIC) for magic in batches_of(log.storage.read(row.path)).magic} == {2}
    assert verify(log, deep=True).findings == []


def test_the_dirty_offset_passes_offsets_that_are_missing(log, tmp_path):
    """Else the same gap would be dirty for ever, and cleaned in each run."""
    write_partition(tmp_path / "kafka", [each(0, [0, 1]), each(100, [100, 101]), each(300, [300])], cleaned=2)
    imported(log, tmp_path / "kafka")
    assert log.topic(TOPIC).snapshot.partition(0).first_dirty_offset == 2
    compact(log)
    assert log.topic(TOPIC).snapshot.partition(0).first_dirty_offset == 300
    assert compact(log, force=True).partitions == []
    write_partition(tmp_path / "behind", [each(0, [0]), each(50, [])], cleaned=1)
    other = imported(LogDir.create(str(tmp_path / "other")), tmp_path / "behind")
    compact(other)
    version = other.topic(TOPIC).describe()["version"]
    assert compact(other, force=True).partitions == []
    assert other.topic(TOPIC).describe()["version"] == version


@pytest.mark.parametrize("cleaned", [5, 1000], ids=["below the log start", "above the log end"])
def test_a_cleaner_checkpoint_outside_the_log_counts_from_the_log_start(log, tmp_path, cleaned):
    write_partition(tmp_path / "kafka", [each(0, range(10)), each(10, range(10, 20)), each(20, [20])],
                    log_start=10, cleaned=cleaned)  # fmt: skip
    imported(log, tmp_path / "kafka")
    assert log.topic(TOPIC).snapshot.partition(0).first_dirty_offset == 10
    compact(log)
    assert log.topic(TOPIC).snapshot.partition(0).first_dirty_offset == 20


def test_a_log_start_in_the_active_segment_leaves_nothing_to_clean(log, tmp_path):
    write_partition(tmp_path / "kafka", [each(0, range(10)), each(10, range(10, 20))], log_start=15)
    imported(log, tmp_path / "kafka")
    before = contents(log, TOPIC)
    assert [line["action"] for line in compact(log, force=True).partitions if line["action"] == "compact"] == []
    assert contents(log, TOPIC) == before and [one["offset"] for one in before] == list(range(15, 20))


def test_cleaned_files_are_as_large_as_what_is_in_them_where_the_source_was_allocated_in_full(log, tmp_path):
    directory = write_partition(tmp_path / "kafka", [SegmentOf(0, (keyed(0, "aab", 2, 0),)), each(3, [3])])
    with open(directory / f"{3:020d}.log", "ab") as file:
        file.write(bytes(1 << 20))
    imported(log, tmp_path / "kafka")
    log.topic(TOPIC).append(pa.table({"key": ["a"], "value": ["x"]}))
    roll(log, now_ms=later(log, 30))
    log.topic(TOPIC).append(pa.table({"key": ["z"], "value": ["x"]}))
    compact(log)
    rows = live(log, TOPIC)
    assert [one["offset"] for one in contents(log, TOPIC)] == [2, 3, 4, 5]
    for one in rows:
        batches = batches_of(log.storage.read(one.path))
        assert Path(log.storage.location(one.path)).stat().st_size == int(batches.size.sum()) < 1000


def test_a_record_larger_than_a_window_and_than_todays_limit_is_cleaned(log):
    topic_with(log, "t", CONFIG | {"max.message.bytes": 4 << 20})
    large = b"x" * (2 * reader.FIRST_WINDOW_BYTES)
    values = [b"1", large, large[:-1], b"2"]
    log.topic("t").append(pa.table({"key": [b"a", b"b", b"a", b"c"], "value": values}))
    roll(log, now_ms=later(log, 30))
    log.topic("t").append(pa.table({"key": [b"d"], "value": [b"3"]}))
    log.topic("t").alter({"max.message.bytes": "1000"})
    compact(log)
    assert [one["value"] for one in contents(log, "t")] == [large, large[:-1], b"2", b"3"]


def test_an_import_takes_records_above_max_message_bytes(log, tmp_path):
    large = tuple(record(offset, "x" * 5000) for offset in range(3))
    write_partition(tmp_path / "kafka", [SegmentOf(0, (Batch(0, 2, large),)), each(3, [3])])
    imported(log, tmp_path / "kafka", max_message_bytes="1000")
    compact(log)
    assert [one[5] for one in records_of(log.topic(TOPIC).scan().batches())] == [one[5] for one in large] + [b"3:3"]


@pytest.mark.parametrize("damage", ["magic", "length", "cut"])
def test_a_damaged_header_or_a_length_beyond_the_file_replaces_nothing(log, damage):
    topic_with(log, "t", CONFIG)
    log.topic("t").append(pa.table({"key": [b"a", b"b"], "value": [b"x" * 100_000, b"y"]}))
    log.topic("t").append(pa.table({"key": [b"a"], "value": [b"z"]}))
    roll(log, now_ms=later(log, 30))
    log.topic("t").append(pa.table({"key": [b"d"], "value": [b"3"]}))
    sealed = live(log, "t")[0]
    path = Path(log.storage.location(sealed.path))
    content = bytearray(path.read_bytes())
    if damage == "magic":
        content[16] = 0xFF
    elif damage == "length":
        content[8:12] = (2**31 - 100).to_bytes(4, "big")
    path.write_bytes(content[:1024] if damage == "cut" else content)
    before, files = live(log, "t"), sorted(path.parent.iterdir())
    (line,) = compact(log).partitions
    assert line["action"] == "failed" and sealed.path in line["error"]
    assert live(log, "t") == before
    assert sorted(path.parent.iterdir()) == files


def test_reads_that_hold_only_what_goes_are_passed(log, limits):
    limits(WINDOW_BYTES=200, FIRST_WINDOW_BYTES=200)
    topic_with(log, "t", CONFIG)
    for number in range(30):
        log.topic("t").append(pa.table({"key": [b"a"], "value": [b"%d" % number * 20]}))
    log.topic("t").append(pa.table({"key": [b"b"], "value": [b"last"]}))
    roll(log, now_ms=later(log, 30))
    log.topic("t").append(pa.table({"key": [b"c"], "value": [b"active"]}))
    compact(log)
    assert [one["offset"] for one in contents(log, "t")] == [29, 30, 31]


def test_a_topic_of_both_policies_is_compacted_and_loses_what_is_old(log, tmp_path):
    batches = [keyed(0, "aabb", 2, 0), keyed(4, "accd", 2, 0)]
    write_partition(tmp_path / "kafka", [*(SegmentOf(one.first, (one,)) for one in batches), each(8, [8])])
    imported(log, tmp_path / "kafka", cleanup_policy="compact,delete")
    log.topic(TOPIC).alter({"retention.ms": str(GOLDEN_MS - 5), "segment.bytes": "100"})
    compact(log, now_ms=GOLDEN_MS)
    assert [one["offset"] for one in contents(log, TOPIC)] == [3, 4, 6, 7, 8]
    retain(log, now_ms=GOLDEN_MS)  # times count from 0: the first segment's newest record is older, the second's is not
    assert [one["offset"] for one in contents(log, TOPIC)] == [4, 6, 7, 8]
    assert log.topic(TOPIC).offsets() == {0: (4, 9)}


def test_a_cleaned_golden_directory_is_exported_with_its_cleaner_checkpoint(log, tmp_path):
    source = tmp_path / "latest-price-0"
    shutil.copytree(golden_dir("latest-price/before-clean/latest-price-0"), source)
    imported(log, source)
    compact(log, now_ms=GOLDEN_MS)
    dirty = log.topic("latest-price").snapshot.partition(0).first_dirty_offset
    log.export_kafka(str(tmp_path / "out"))
    assert (tmp_path / "out" / "cleaner-offset-checkpoint").read_text() == f"0\n1\nlatest-price 0 {dirty}\n"
    log.delete_topic("latest-price")
    shutil.rmtree(tmp_path / "out" / "latest-price-0")
    topic_with(log, "latest-price", {})
    log.export_kafka(str(tmp_path / "out"))
    assert "latest-price" not in (tmp_path / "out" / "cleaner-offset-checkpoint").read_text()
