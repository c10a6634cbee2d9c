"""The Kafka connector's KafkaOffsetRangeCalculatorSuite, and what KafkaOffsetReaderSuite says of ranges, case by case.

Numbers are those of docs/design/kafka-connector-cases.md. No Spark and no files.
"""

from __future__ import annotations

import pytest

from spark_segments.spark.offsets import split
from spark_segments.spark.options import read_options
from tests.spark.test_offsets import flat, lookup, pieces, read_by, snapshot

# (case, ranges by partition, minPartitions, maxRecordsPerPartition, what comes out: (partition, start, end))
CASES = [
    ("151 N to N", [(1, 2), (1, 3)], None, None, [(0, 1, 2), (1, 1, 3)]),
    ("152 empty ranges are ignored", [(1, 2), (1, 1)], None, None, [(0, 1, 2)]),
    ("153 minPartitions 3, N to N", [(1, 2), (1, 3), (1, 4)], 3, None, [(0, 1, 2), (1, 1, 3), (2, 1, 4)]),
    ("155 minPartitions 4, 1 to N", [(1, 5)], 4, None, [(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 5)]),
    ("156 N skewed to M", [(1, 5), (1, 21)], 4, None, [(0, 1, 5), (1, 1, 7), (1, 7, 14), (1, 14, 21)]),
    ("157 the rest is split", [(1, 1), (1, 21)], 4, None, [(1, 1, 6), (1, 6, 11), (1, 11, 16), (1, 16, 21)]),
    ("158 N very skewed", [(1, 2), (1, 1001)], 4, None, [(0, 1, 2), (1, 1, 334), (1, 334, 667), (1, 667, 1001)]),
    ("159 fewer than there are", [(1, 5), (1, 5), (1, 5)], 1, None, [(0, 1, 5), (1, 1, 5), (2, 1, 5)]),
    ("160 inexact multiple", [(1, 11)], 3, None, [(0, 1, 4), (0, 4, 7), (0, 7, 11)]),
    ("161 empty ranges are ignored", [(5, 5), (1, 21)], 4, None, [(1, 1, 6), (1, 6, 11), (1, 11, 16), (1, 16, 21)]),
    ("166 maxRecords 4, as many", [(1, 5)], None, 4, [(0, 1, 5)]),
    ("166 maxRecords 4, one more", [(1, 6)], None, 4, [(0, 1, 3), (0, 3, 6)]),
    (
        "167 maxRecords 20, N to N",
        [(1, 40), (1, 50), (1, 60)],
        None,
        20,
        [(0, 1, 20), (0, 20, 40), (1, 1, 17), (1, 17, 33), (1, 33, 50), (2, 1, 20), (2, 20, 40), (2, 40, 60)],
    ),
    ("168 minPartitions 1, maxRecords 20", [(1, 40)], 1, 20, [(0, 1, 20), (0, 20, 40)]),
    ("169 minPartitions 4, maxRecords 20", [(1, 40)], 4, 20, [(0, 1, 10), (0, 10, 20), (0, 20, 30), (0, 30, 40)]),
    ("174 specific offsets", [(1, 4)], 3, None, [(0, 1, 2), (0, 2, 3), (0, 3, 4)]),
    ("175 special offsets", [(0, 4)], 3, None, [(0, 0, 1), (0, 1, 2), (0, 2, 4)]),
    ("177 several partitions", [(0, 100), (0, 3)], 4, None, [(0, 0, 33), (0, 33, 66), (0, 66, 100), (1, 0, 3)]),
    ("178 resolved offsets", [(0, 100), (0, 3)], 4, None, [(0, 0, 33), (0, 33, 66), (0, 66, 100), (1, 0, 3)]),
]


@pytest.mark.parametrize(("case", "given", "at_least", "at_most", "expected"), CASES, ids=[case[0] for case in CASES])
def test_ranges_are_those_of_the_calculator(case, given, at_least, at_most, expected):
    assert pieces(given, at_least, at_most) == expected


@pytest.mark.parametrize(
    ("case", "sizes", "at_least", "counts"),
    [
        ("162 SPARK-28489 no offset is dropped", [10, 10, 1], 6, [3, 3, 1]),
        ("163 SPARK-36576 no small, three large", [10_000, 15_000, 20_000], 9, [2, 3, 4]),
        ("164 one small, two large", [500, 12_000, 15_001], 6, [1, 2, 3]),
        ("165 two small, one large", [1, 1, 10_000], 6, [1, 1, 4]),
    ],
)
def test_skewed_partitions_are_split_by_their_share_and_covered(case, sizes, at_least, counts):
    found = pieces([(1, 1 + size) for size in sizes], at_least, None)
    assert [sum(partition == number for partition, _, _ in found) for number in range(3)] == counts
    for number, size in enumerate(sizes):
        offsets = [offset for partition, start, end in found if partition == number for offset in range(start, end)]
        assert offsets == list(range(1, 1 + size))


@pytest.mark.parametrize(("given", "tasks"), [(None, 1), ("1", 1), ("4", 4)])
def test_case_32_min_partitions_is_supported(given, tasks):
    options = {"path": "/log", "subscribe": "t"} | ({} if given is None else {"minPartitions": given})
    chosen = read_options(options)
    [(_, _, start, end)] = read_by(chosen, {"t": snapshot("t", [(0, 100)])}, lookup)
    found = split({"t": {0: ((start, end),)}}, chosen.min_partitions, chosen.max_records_per_partition)
    assert len(flat(found)) == tasks


@pytest.mark.parametrize("given", ["a", "1.0", "0", "-1"])
def test_case_32_min_partitions_is_a_positive_whole_number(given):
    with pytest.raises(ValueError, match="minPartitions"):
        read_options({"path": "/log", "subscribe": "t", "minPartitions": given})
