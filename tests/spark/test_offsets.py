"""From options to offsets and pieces, over snapshots made by hand: no Spark and no files."""

from __future__ import annotations

import itertools

import pytest

from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError, UnknownTopicError
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.spark.offsets import split
from spark_segments.spark.options import read_options
from spark_segments.spark.options.topics import Topics
from spark_segments.spark.reader import Reader
from verification.world.manifest_rows import Partition, Segment, SegmentRows, Snapshot

# {(topic, partition): [(offset, timestamp)]}
TIMES = {("orders", 0): [(10, 1000), (20, 2000)], ("orders", 1): [(0, 1500)]}


def snapshot(topic="orders", bounds=((10, 30), (0, 5)), stable=None):
    partitions = [
        Partition("id", number, start, end, last_stable_offset=(stable or {}).get(number, end))
        for number, (start, end) in enumerate(bounds)
    ]
    return Snapshot(topic, 3, "id", {}, 0, Partition.table(partitions), SegmentRows(Segment.table([])))


def lookup(of, targets):
    def first(partition, target):
        return next((found for found in TIMES[of.topic, partition] if found[1] >= target), None)

    return {partition: first(partition, target) for partition, target in targets.items()}


def read_by(options, snapshots, lookup):
    """[(topic, partition, start, end)]: the offsets of the scans that a read with these options makes."""
    scans = Reader(options, snapshots, RECORD_SCHEMA).scans(lookup)
    return flat({scan.snapshot.topic: scan.offsets for scan in scans})


def flat(offsets):
    return [
        (topic, partition, start, end)
        for topic, partitions in offsets.items()
        for partition, ranges in partitions.items()
        for start, end in ranges
        if start < end
    ]


def ranges(snapshots=None, **options):
    given = read_options({"path": "/log"} | ({"subscribe": "orders"} if "assign" not in options else {}) | options)
    return [found[1:] for found in read_by(given, snapshots or {"orders": snapshot()}, lookup)]


def test_everything_is_read_by_default():
    assert ranges() == [(0, 10, 30), (1, 0, 5)]


def test_several_topics_come_in_order():
    found = read_by(
        read_options({"path": "/log", "subscribe": "b,a"}),
        {"b": snapshot("b", [(0, 1)]), "a": snapshot("a", [(2, 3)])},
        lookup,
    )
    assert found == [("a", 0, 2, 3), ("b", 0, 0, 1)]


def test_partitions_without_records_are_left_out():
    assert ranges({"orders": snapshot(bounds=[(5, 5), (0, 1)])}) == [(1, 0, 1)]


def test_assigned_partitions_only_are_read():
    assert ranges(assign='{"orders":[1]}') == [(1, 0, 5)]


def test_an_assigned_partition_that_is_not_there_is_an_error():
    with pytest.raises(UnknownTopicError, match="0 to 1"):
        ranges(assign='{"orders":[2]}')


def test_offsets_by_partition_with_earliest_and_latest():
    chosen = ranges(startingOffsets='{"orders":{"0":12,"1":-2}}', endingOffsets='{"orders":{"0":14,"1":-1}}')
    assert chosen == [(0, 12, 14), (1, 0, 5)]


def test_offsets_by_partition_must_name_all_partitions_and_no_others():
    with pytest.raises(InvalidOptionError, match="orders-1 left out"):
        ranges(startingOffsets='{"orders":{"0":12}}')
    with pytest.raises(InvalidOptionError, match="orders-2 not being read"):
        ranges(endingOffsets='{"orders":{"0":12,"1":1,"2":3}}')
    assert ranges(assign='{"orders":[0]}', startingOffsets='{"orders":{"0":12}}') == [(0, 12, 30)]


@pytest.mark.parametrize(
    ("offset", "why"), [(9, "lost to retention; set failOnDataLoss"), (31, "No such record is written yet")]
)
def test_a_start_outside_the_log_fails_unless_data_loss_is_allowed(offset, why):
    assigned = {"assign": '{"orders":[0]}', "startingOffsets": f'{{"orders":{{"0":{offset}}}}}'}
    with pytest.raises(OffsetOutOfRangeError, match=f"10 to 30, found {offset}.*{why}"):
        ranges(**assigned)
    assert ranges(**assigned, failOnDataLoss="false") == ([(0, 10, 30)] if offset == 9 else [])


def test_an_end_above_the_log_fails_unless_data_loss_is_allowed():
    assigned = {"assign": '{"orders":[0]}', "endingOffsets": '{"orders":{"0":31}}'}
    with pytest.raises(OffsetOutOfRangeError, match="endingOffsets"):
        ranges(**assigned)
    assert ranges(**assigned, failOnDataLoss="false") == [(0, 10, 30)]


def test_times_become_the_first_offsets_that_are_not_older():
    assert ranges(startingTimestamp="1200", endingTimestamp="2000") == [(1, 0, 5)]
    assert ranges(endingTimestamp="1200") == [(0, 10, 20)]


def test_times_by_partition():
    chosen = ranges(
        startingOffsetsByTimestamp='{"orders":{"0":1001,"1":0}}',
        endingOffsetsByTimestamp='{"orders":{"0":9999,"1":1501}}',
    )
    assert chosen == [(0, 20, 30), (1, 0, 5)]


def test_a_start_later_than_every_record_fails_or_is_the_end():
    with pytest.raises(OffsetOutOfRangeError, match="startingOffsetsByTimestampStrategy"):
        ranges(startingTimestamp="2001")
    assert ranges(startingTimestamp="1501", startingOffsetsByTimestampStrategy="latest") == [(0, 20, 30)]


def test_an_end_later_than_every_record_is_the_end():
    assert ranges(endingTimestamp="9999") == [(0, 10, 30), (1, 0, 5)]


def test_read_committed_ends_at_the_last_stable_offset():
    committed = {"isolation.level": "read_committed"}
    assert ranges({"orders": snapshot(stable={0: 25})}, **committed) == [(0, 10, 25), (1, 0, 5)]
    assert ranges({"orders": snapshot(stable={0: 25})}) == [(0, 10, 30), (1, 0, 5)]
    explicit = {"assign": '{"orders":[0]}', "endingOffsets": '{"orders":{"0":28}}'}
    assert ranges({"orders": snapshot(stable={0: 25})}, **explicit, **committed) == [(0, 10, 25)]


def test_a_pattern_matches_whole_names_and_none_of_kafkas_own_topics():
    names = ["__consumer_offsets", "orders", "orders2", "old_orders", "__mine"]
    assert Topics(pattern="orders.?").chosen(lambda: names) == ["orders", "orders2"]
    assert Topics(pattern=".*").chosen(lambda: names) == ["__mine", "old_orders", "orders", "orders2"]


def test_names_do_not_need_a_list_of_topics():
    assert Topics(names=("b", "a")).chosen(pytest.fail) == ["a", "b"]


def pieces(bounds, least, most):
    """[(partition, start, end)] of the pieces of partitions with these bounds."""
    offsets = {"t": {partition: (ends,) for partition, ends in enumerate(bounds)}}
    return [piece[1:] for piece in flat(split(offsets, least, most))]


def sizes(found):
    return [(partition, end - start) for partition, start, end in found]


def test_enough_partitions_are_not_split():
    assert pieces([(0, 5), (0, 7)], 2, None) == [(0, 0, 5), (1, 0, 7)]
    assert pieces([(0, 5), (0, 7)], None, None) == [(0, 0, 5), (1, 0, 7)]
    assert pieces([(0, 5), (0, 0)], 1, None) == [(0, 0, 5)]


def test_one_partition_is_split_into_as_many_pieces_as_asked_for():
    assert pieces([(0, 5)], 3, None) == [(0, 0, 1), (0, 1, 3), (0, 3, 5)]


def test_large_partitions_are_split_and_small_ones_are_not():
    # The cases of Spark's own KafkaOffsetRangeCalculatorSuite for skewed partitions.
    assert sizes(pieces([(0, 10000), (0, 1)], 3, None)) == [(0, 5000), (0, 5000), (1, 1)]
    assert sizes(pieces([(0, 1), (0, 1), (0, 50), (0, 50)], 6, None)) == [
        (0, 1),
        (1, 1),
        (2, 25),
        (2, 25),
        (3, 25),
        (3, 25),
    ]


def test_no_piece_has_more_records_than_allowed():
    assert sizes(pieces([(0, 50), (0, 10)], None, 20)) == [(0, 16), (0, 17), (0, 17), (1, 10)]


def test_too_few_pieces_after_the_limit_of_records_are_split_again():
    found = pieces([(0, 40)], 8, 20)
    assert sizes(found) == [(0, 5)] * 8
    assert [start for _, start, _ in found] == list(range(0, 40, 5))


def test_pieces_cover_what_was_asked_for_without_overlap():
    found = pieces([(17, 1017), (5, 8)], 13, 99)
    assert found[0][1] == 17 and found[-1][2] == 8
    for before, after in itertools.pairwise(found[:-1]):
        assert before[2] == after[1]
