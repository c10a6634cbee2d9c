"""Segments that overlap, as a broker killed while it swapped files leaves them: the log is what a broker serves to a
reader from the log start, wherever a read begins, and so are copies of it.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.log.findings import Findings
from spark_segments.maintenance import verify
from tests.examples import examples
from tests.log.golden_reads import Record, as_records, read_one_by_one, records_of, tree
from tests.log.overlapping import TOPIC, Batch, SegmentOf, crashed_in_swap, served, write_partition
from verification.world.kafka_bytes.golden_files import LEGACY_DIRECTORIES, expected_records, golden_dir
from verification.world.kafka_bytes.segment_bytes import batches_of

CRASHES = [
    ("latest-price/before-clean/latest-price-0", "latest-price/after-clean-1/latest-price-0"),
    ("latest-price/before-clean-2/latest-price-0", "latest-price/after-clean-2/latest-price-0"),
    ("latest-price/before-clean-3/latest-price-0", "latest-price/after-clean-3/latest-price-0"),
    ("bigcompact-none/dirty/bigcompact-0", "bigcompact-none/clean-2/bigcompact-0"),
    ("txn-compact/dirty-2/txnc-0", "txn-compact/clean-2/txnc-0"),
]
# The last batches of a group are gone, so that its cleaned segment ends before the last source does.
ENDS_EARLY = ("bigcompact-zstd/dirty/bigcompact-0", "bigcompact-zstd/clean-2/bigcompact-0")


def record(offset: int, source: object, timestamp: int = 1, magic: int = 2, key: bytes | None = None) -> Record:
    """A record whose value says which segment it is from, as it is read back."""
    key = key or b"key %d" % offset
    return (0, offset, timestamp if magic else -1, 0 if magic else -1, key, f"{source}:{offset}".encode(), [])


def batch(first: int, last: int, source: object, **options: int) -> Batch:
    return Batch(first, last, tuple(record(offset, source) for offset in range(first, last + 1)), **options)


def each(source: int, offsets: Sequence[int]) -> SegmentOf:
    """A segment whose records are a batch each, as they are where a producer sends one at a time."""
    return SegmentOf(source, tuple(batch(offset, offset, source) for offset in offsets))


SEEN = [each(0, [153, 369, 408, 473]), each(63, range(63, 474)), each(474, range(474, 520))]


def assert_copies_are_equal(directory: Path, topic: str, records: list[Record], end: int) -> LogDir:
    """Imports a Kafka directory, and exports that again: both hold `records` and nothing is wrong with either."""
    before = tree(directory)
    with tempfile.TemporaryDirectory() as root:
        copy = LogDir.create(f"{root}/log")
        copy.import_kafka(str(directory))
        assert copy.topic(topic).offsets()[0][1] == end
        assert records_of(copy.topic(topic).scan().batches()) == records
        assert verify(copy, deep=True).findings == []
        for row in copy.topic(topic).snapshot.live_of(0):
            assert row.base_offset == row.name_offset
        assert copy.import_kafka(str(directory)).records_in == 0
        copy.export_kafka(f"{root}/exported")
        exported = LogDir.open(f"{root}/exported")
        assert records_of(exported.topic(topic).scan().batches()) == records
        assert exported.topic(topic).offsets() == copy.topic(topic).offsets()
        assert exported.topic(topic).snapshot.report.overlaps == ()
        assert not [finding for finding in verify(exported, deep=True).findings if "missing" not in finding.message]
    assert tree(directory) == before


@pytest.mark.rule("K3")
def test_a_segment_is_read_to_its_end_and_then_the_one_that_holds_the_next_offset(tmp_path, caplog):
    write_partition(tmp_path, SEEN, cleaned=474)
    log = LogDir.open(str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="spark_segments"):
        found = records_of(log.topic(TOPIC).scan().batches())
    assert [one[1] for one in found] == [153, 369, 408, 473, *range(474, 520)]
    assert [one[1] for one in records_of(log.topic(TOPIC).scan(offsets=(200, None)).batches())][:3] == [369, 408, 473]
    assert log.topic(TOPIC).offsets() == {0: (0, 520)}
    assert sum(one["records"] for one in log.topic(TOPIC).describe()["partitions"]) == len(found)
    [overlap] = log.topic(TOPIC).snapshot.report.overlaps
    assert (overlap.path, overlap.first_offset, overlap.last_offset) == (f"{TOPIC}-0/{63:020d}.log", 63, 473)
    assert overlap.served == f"{TOPIC}-0/{0:020d}.log"
    assert [message.getMessage() for message in caplog.records] == [str(overlap)]
    [finding] = verify(log, deep=True).findings
    assert (finding.severity, finding.partition, finding.path) == (Findings.WARNING, 0, overlap.path)
    assert finding.found == f"offsets 63 to 473, for which {overlap.served} is read instead"
    assert_copies_are_equal(tmp_path, TOPIC, found, 520)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("before", "after"), CRASHES)
def test_a_cleaned_segment_hides_the_sources_that_a_crash_left(before, after, tmp_path):
    directory, segments = crashed_in_swap(before, after, tmp_path)
    topic = directory.name.rpartition("-")[0]
    records, end = served(segments, 0)
    assert records == as_records(expected_records(after), where=lambda line: not line["isControl"])
    log = LogDir.open(str(tmp_path))
    assert log.topic(topic).offsets() == {0: (0, end)}
    assert records_of(log.topic(topic).scan().batches()) == records
    for start in range(0, end, max(1, end // 40)):
        found = log.topic(topic).scan(offsets=(start, None)).batches()
        assert records_of(found) == [one for one in records if one[1] >= start]
    committed = LogDir.open(str(golden_dir(after))).topic(topic).scan(isolation="read_committed").batches()
    assert records_of(log.topic(topic).scan(isolation="read_committed").batches()) == records_of(committed)
    hidden = {f"{directory.name}/{one.base:020d}.log" for one in segments if one.batches}
    hidden -= {f"{directory.name}/{path.name}" for path in golden_dir(after).glob("*.log")}
    assert {overlap.path for overlap in log.topic(topic).snapshot.report.overlaps} == hidden != set()
    findings = verify(log, deep=True).findings
    assert {one.path for one in findings if "overlaps" in one.message} == hidden
    assert not [one for one in findings if one.severity != Findings.WARNING]
    assert_copies_are_equal(tmp_path, topic, records, end)


@pytest.mark.proof
def test_behind_a_cleaned_segment_that_ends_early_the_source_is_read_on(tmp_path):
    _, segments = crashed_in_swap(*ENDS_EARLY, tmp_path)
    records, end = served(segments, 0)
    cleaned = as_records(expected_records(ENDS_EARLY[1]))
    assert {one[1] for one in records} - {one[1] for one in cleaned} == {41632}
    log = LogDir.open(str(tmp_path))
    assert records_of(log.topic("bigcompact").scan().batches()) == records
    assert [one[1] for one in records_of(log.topic("bigcompact").scan(offsets=(35000, 41633)).batches())] == [
        one[1] for one in records if 35000 <= one[1] < 41633
    ]
    assert log.topic("bigcompact").snapshot.partition(0).first_dirty_offset < 41633
    assert not [one for one in verify(log, deep=True).findings if one.severity != Findings.WARNING]
    assert len(log.topic("bigcompact").snapshot.report.overlaps) == 4
    assert_copies_are_equal(tmp_path, "bigcompact", records, end)


@pytest.mark.parametrize("leftover", [".cleaned", ".deleted"])
def test_leftovers_of_the_cleaner_beside_an_overlap_are_no_segments(leftover, tmp_path):
    directory = write_partition(tmp_path, SEEN)
    for path in directory.glob(f"{63:020d}.*"):
        shutil.copy(path, f"{directory}/{7:020d}{path.suffix}{leftover}")
    assert records_of(LogDir.open(str(tmp_path)).topic(TOPIC).scan().batches()) == served(SEEN, 0)[0]


def test_a_swap_file_takes_the_place_of_an_overlap_before_anything_is_read(tmp_path):
    directory = write_partition(tmp_path, [*SEEN, each(520, [520, 521])])
    for path in write_partition(tmp_path / "new", [each(63, [70, 473])]).iterdir():
        shutil.copy(path, f"{directory}/{path.name}.swap")
    whole = [SEEN[0], each(63, [70, 473]), SEEN[2], each(520, [520, 521])]
    log = LogDir.open(str(directory))
    assert records_of(log.topic(TOPIC).scan().batches()) == served(whole, 0)[0]
    assert {row.path for row in log.topic(TOPIC).snapshot.live_of(0)} & {f"{63:020d}.log"} == set()


def test_the_walk_begins_at_the_log_start(tmp_path):
    write_partition(tmp_path, SEEN, log_start=100)
    log = LogDir.open(str(tmp_path))
    records = records_of(log.topic(TOPIC).scan().batches())
    assert records == served(SEEN, 100)[0]
    assert [one[1] for one in records] == list(range(100, 520))
    [overlap] = log.topic(TOPIC).snapshot.report.overlaps
    assert (overlap.first_offset, overlap.last_offset) == (153, 473)
    assert_copies_are_equal(tmp_path, TOPIC, records, 520)


def test_damage_in_a_segment_that_no_read_comes_to_cuts_nothing(tmp_path):
    directory = write_partition(tmp_path, SEEN)
    path = directory / f"{63:020d}.log"
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(content)
    log = LogDir.open(str(tmp_path))
    assert records_of(log.topic(TOPIC).scan().batches()) == served(SEEN, 0)[0]
    assert log.topic(TOPIC).snapshot.report.cuts == ()
    [overlap] = log.topic(TOPIC).snapshot.report.overlaps
    assert "CRC-32C" in (overlap.problem or "")
    assert any("damaged" in str(finding.found) for finding in verify(log, deep=True).findings)


def test_damage_in_a_segment_of_which_a_part_is_read_cuts_the_log_there(tmp_path):
    segments = [each(0, range(0, 100)), each(63, range(63, 200)), each(200, range(200, 220))]
    directory = write_partition(tmp_path, segments)
    path = directory / f"{63:020d}.log"
    content = bytearray(path.read_bytes())
    content[-50] ^= 0xFF
    path.write_bytes(content)
    log = LogDir.open(str(tmp_path))
    assert records_of(log.topic(TOPIC).scan().batches()) == served(segments, 0)[0][:199]
    [cut] = log.topic(TOPIC).snapshot.report.cuts
    assert (cut.path, len(cut.dropped)) == (f"{TOPIC}-0/{path.name}", 1)


def test_what_lies_behind_an_overlap_is_dirty_whatever_the_cleaner_said(tmp_path):
    write_partition(tmp_path, [each(0, [3, 60, 99]), each(63, range(63, 200)), each(200, [200])], cleaned=200)
    assert LogDir.open(str(tmp_path)).topic(TOPIC).snapshot.partition(0).first_dirty_offset == 100


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_batch_that_begins_below_the_offset_reads_go_on_from_gives_its_later_records(magic, tmp_path):
    codecs = {0: 1, 1: 1, 2: 1}
    one, two = (
        SegmentOf(base, (Batch(first, last, tuple(record(o, base, 5, magic) for o in range(first, last + 1)), magic,
                               codecs[magic]),))
        for base, first, last in ((0, 0, 10), (5, 5, 20))
    )  # fmt: skip
    write_partition(tmp_path, [one, two])
    records, end = served([one, two], 0)
    assert [(one[1], one[5]) for one in records][10:12] == [(10, b"0:10"), (11, b"5:11")]
    assert records_of(LogDir.open(str(tmp_path)).topic(TOPIC).scan().batches()) == records
    if magic:  # converted, a record without a timestamp counts as CreateTime
        assert_copies_are_equal(tmp_path, TOPIC, records, end)


def test_a_partition_that_grows_behind_an_overlap_is_followed(log, tmp_path):
    part = each(63, range(63, 150))
    write_partition(tmp_path / "first", [each(0, [3, 99]), part])
    log.import_kafka(str(tmp_path / "first"))
    grown = [each(0, [3, 99]), each(63, range(63, 180)), each(180, range(180, 190))]
    write_partition(tmp_path / "grown", grown)
    log.import_kafka(str(tmp_path / "grown"))
    assert records_of(log.topic(TOPIC).scan().batches()) == served(grown, 0)[0]
    assert verify(log, deep=True).findings == []


@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_segments_of_the_old_magics_that_overlap_are_imported_once(name, log, tmp_path):
    directory = tmp_path / name
    shutil.copytree(golden_dir(name), directory)
    first, second = sorted(directory.glob("*.log"))[:2]
    with open(first, "ab") as file:
        file.write(second.read_bytes())
    topic = name.removesuffix("-0")
    records = as_records(expected_records(name))
    kafka = LogDir.open(str(directory))
    assert records_of(kafka.topic(topic).scan().batches()) == records
    assert len(kafka.topic(topic).snapshot.report.overlaps) == 1
    log.import_kafka(str(directory))
    assert [one[1] for one in records_of(log.topic(topic).scan().batches())] == [one[1] for one in records]
    assert verify(log, deep=True).findings == []


@st.composite
def segments_of(draw: st.DrawFn, magics: Sequence[int]) -> list[SegmentOf]:
    """Segments with any bases and any batches at or above them; a record's value says where it is from."""
    found = []
    for base in sorted(draw(st.sets(st.integers(0, 40), min_size=1, max_size=5))):
        magic = draw(st.sampled_from(magics))
        offset, batches = base, []
        for _ in range(draw(st.integers(0, 4))):
            first = offset + draw(st.integers(0, 6))
            deltas = draw(st.sets(st.integers(0, 9), min_size=0 if magic == 2 else 1, max_size=6))
            codec = draw(st.integers(0, 1)) if deltas else 0
            if magic < 2 and not codec:
                deltas = {0}
            last = first + max(deltas, default=0)
            if magic == 2:
                last += draw(st.integers(0, 3))
            records = tuple(
                record(first + delta, base, draw(st.integers(1, 20)), magic, b"%d" % draw(st.integers(0, 5)))
                for delta in sorted(deltas)
            )
            batches.append(Batch(first, last, records, magic, codec))
            offset = last + 1
        found.append(SegmentOf(base, tuple(batches)))
    return found


def last_end(segments: Sequence[SegmentOf]) -> int:
    """The end of the last segment: a log that ends before its log start begins anew there, empty."""
    return max([segments[-1].base, *(one.last + 1 for one in segments[-1].batches)])


@pytest.mark.proof
@examples(100)
@given(segments=segments_of([2, 2, 1, 0]), log_start=st.just(0) | st.integers(0, 60), indexes=st.booleans())
def test_wherever_a_read_begins_it_gives_what_the_walk_from_the_log_start_gives(segments, log_start, indexes):
    records, end = served(segments, log_start)
    assume(log_start <= last_end(segments))
    with tempfile.TemporaryDirectory() as root:
        write_partition(Path(root), segments, log_start=log_start, indexes=indexes)
        log = LogDir.open(root)
        start = max(log_start, segments[0].base)
        assert log.topic(TOPIC).offsets() == {0: (start, max(end, start))}
        for begin in {0, *(one.base for one in segments), *range(start, end, 5)}:
            expected = [one for one in records if one[1] >= begin]
            assert records_of(log.topic(TOPIC).scan(offsets=(begin, None)).batches()) == expected
            committed = log.topic(TOPIC).scan(offsets=(begin, None), isolation="read_committed").batches()
            assert records_of(committed) == expected
        assert read_one_by_one(log, log.topic(TOPIC).scan().parts(150)) == records
        for target_ms in (0, 7, 14, 20):
            first = next(((one[1], one[2]) for one in records if one[2] >= target_ms), None)
            assert log.topic(TOPIC).offsets_for_times(target_ms) == {0: first}
        findings = verify(log, deep=True).findings
        assert not [one for one in findings if one.severity != Findings.WARNING]


@examples(25)
@given(segments=segments_of([2]), log_start=st.just(0) | st.integers(0, 60), indexes=st.booleans())
def test_a_copy_of_segments_that_overlap_is_the_walk(segments, log_start, indexes):
    records, end = served(segments, log_start)
    assume(log_start <= last_end(segments))
    with tempfile.TemporaryDirectory() as root:
        write_partition(Path(root), segments, log_start=log_start, indexes=indexes)
        assert_copies_are_equal(Path(root), TOPIC, records, max(end, log_start, segments[0].base))


@pytest.mark.cases(1)
@pytest.mark.parametrize("batches", [1, 7, 30, 10**6])
def test_committed_reads_pass_an_overlap_of_transactional_segments(batches, log, tmp_path):
    """The second segment's .txnindex speaks of transactions that end in the part that no read comes to."""
    directory = tmp_path / "txn-0"
    shutil.copytree(golden_dir("txn-0"), directory)
    first, second, *_ = sorted(directory.glob("*.log"))
    content = second.read_bytes()
    table = batches_of(content)
    end = int(table.byte_position[batches]) if batches < len(table) else len(content)
    with open(first, "ab") as file:
        file.write(content[:end])
    expected = expected_records("txn-0")
    kafka = LogDir.open(str(directory))
    log.import_kafka(str(directory))
    for one in (kafka, log):
        committed = records_of(one.topic("txn").scan(isolation="read_committed").batches())
        assert committed == as_records(expected, where=lambda line: line["committed"])
        assert records_of(one.topic("txn").scan().batches()) == as_records(
            expected, where=lambda line: not line["isControl"]
        )
    assert (
        kafka.topic("txn").snapshot.partition(0).last_stable_offset
        == log.topic("txn").snapshot.partition(0).last_stable_offset
    )
    assert verify(log, deep=True).findings == []
    assert not [one for one in verify(kafka, deep=True).findings if one.severity != Findings.WARNING]
