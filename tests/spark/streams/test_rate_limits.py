"""How many offsets a batch takes: shares in proportion, and waiting for enough. No files, no Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_segments.spark.streams.limited_stream_reader import BatchDelay, split_in_proportion

BACKLOGS = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**20)), min_size=1, max_size=8)


def ends_of(backlogs, most):
    begins = {("t", number): 0 for number in range(len(backlogs))}
    found = split_in_proportion(begins, {("t", number): size for number, size in enumerate(backlogs)}, most)
    return [found["t", number] for number in range(len(backlogs))]


def test_each_partition_gets_its_share_and_none_starves():
    assert ends_of([101, 11, 1], 10) == [8, 1, 1]
    assert ends_of([93, 10, 0], 10) == [9, 1, 0]
    assert ends_of([10, 0], 100) == [10, 0]


def test_case_6_a_limit_of_the_largest_number_does_not_overflow():
    assert split_in_proportion({("t", 0): 5}, {("t", 0): 9}, 2**63 - 1) == {("t", 0): 9}


@given(BACKLOGS, st.integers(1, 2**63 - 1))
def test_a_share_moves_on_and_stays_below_the_end(backlogs, most):
    begins = {("t", number): begin for number, (begin, _) in enumerate(backlogs)}
    ends = {("t", number): begin + size for number, (begin, size) in enumerate(backlogs)}
    found = split_in_proportion(begins, ends, most)
    taken = {one: found[one] - begins[one] for one in found}
    assert all(0 <= taken[one] <= ends[one] - begins[one] for one in taken)
    assert all(taken[one] > 0 for one in taken if ends[one] > begins[one])
    # floats have 53 bits, and a partition whose share is below 1 gets 1
    assert sum(taken.values()) <= most * (1 + 1e-9) + len(backlogs)


def test_a_batch_waits_for_enough_offsets_or_for_the_delay():
    now = [1000]
    delay = BatchDelay(15, 5000, lambda: now[0])
    begins = {("t", 0): 0, ("t", 1): 0}

    def held(first, second):
        return delay.holds_back(begins, {("t", 0): first, ("t", 1): second})

    assert not held(0, 1)  # the first
    assert held(10, 4)
    assert not held(10, 5)
    now[0] += 4999
    assert held(14, 0)
    now[0] += 1
    assert not held(14, 0)
    assert held(14, 0)  # the delay begins anew
