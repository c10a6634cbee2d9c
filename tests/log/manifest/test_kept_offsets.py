"""What rows that leave the log hold is in the rows in their place, or the commit is refused."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import SegmentsError
from spark_segments.log.manifest.commit.kept_offsets import check_kept_offsets
from tests.examples import examples
from verification.world.chunk_rows import TOPIC, new_chunk
from verification.world.manifest_rows import Change, Partition, Segment, commit_append


def row(base: int, following: int, records: int | None = None, partition: int = 0) -> Segment:
    chunk = new_chunk(partition, following - base if records is None else records)
    return dataclasses.replace(chunk, base_offset=base, next_offset=following)


def check(
    leaving: list[Segment],
    arriving: list[Segment],
    starts: dict[int, int] | None = None,
    thinned: dict[int, int] | None = None,
) -> None:
    check_kept_offsets("orders", "roll", Segment.table(leaving), Segment.table(arriving), starts or {}, thinned or {})


@pytest.mark.parametrize(
    ("leaving", "arriving"),
    [
        ([], []),
        ([(0, 31)], [(0, 31)]),
        ([(0, 31)], [(0, 20), (20, 40)]),
        ([(0, 10), (10, 31)], [(0, 31)]),
        ([(0, 31, 4)], [(0, 12, 3), (12, 31, 1)]),
        ([(9, 9)], []),
    ],
)
def test_rows_that_hold_as_much_take_the_place_of_others(leaving, arriving):
    check([row(*one) for one in leaving], [row(*one) for one in arriving])


@pytest.mark.parametrize(
    ("leaving", "arriving", "message"),
    [
        ([(0, 31)], [(0, 1)], "orders-0 .* offsets 1 to 30"),
        ([(0, 31)], [(0, 10), (20, 31)], "offsets 10 to 19"),
        ([(0, 31)], [(1, 31)], "offsets 0 to 0"),
        ([(0, 5), (5, 31)], [(0, 5)], "offsets 5 to 30"),
        ([(0, 31)], [], "offsets 0 to 30"),
        ([(0, 31)], [(0, 31, 30)], "31 records at the offsets 0 to 30, found 30 records"),
        ([(0, 31), (31, 40)], [(0, 31, 30), (31, 50)], "31 records at the offsets 0 to 30, found 30 records"),
        ([(0, 31, 31, 1)], [(0, 31)], "orders-1 .* offsets 0 to 30"),
    ],
)
def test_rows_that_hold_less_are_refused(leaving, arriving, message):
    with pytest.raises(SegmentsError, match=message):
        check([row(*one) for one in leaving], [row(*one) for one in arriving])


def test_offsets_below_the_log_start_may_go():
    check([row(0, 31)], [row(20, 31)], {0: 20})
    check([row(0, 31)], [], {0: 31})
    with pytest.raises(SegmentsError, match="offsets 20 to 20"):
        check([row(0, 31)], [row(21, 31)], {0: 20})


def test_a_cleaner_takes_records_and_leaves_their_offsets():
    check([row(0, 31)], [row(0, 31, 2)], thinned={0: 31})
    with pytest.raises(SegmentsError, match="31 records"):
        check([row(0, 31)], [row(0, 31, 2)], thinned={1: 31})
    with pytest.raises(SegmentsError, match="offsets 30 to 30"):
        check([row(0, 31)], [row(0, 30, 2)], thinned={0: 31})


BOUNDS = st.lists(st.integers(0, 30), min_size=2, max_size=12, unique=True).map(sorted)
ROWS = st.tuples(st.integers(0, 2), BOUNDS, st.integers(0, 4000))


def rows_of(choice: tuple[int, list[int], int]) -> list[Segment]:
    """Full rows of a partition, without overlaps: some of the ranges between the bounds."""
    partition, bounds, bits = choice
    pairs = itertools.pairwise(bounds)
    return [row(*pair, partition=partition) for number, pair in enumerate(pairs) if not bits >> number & 1]


def held(rows: list[Segment]) -> set[tuple[int, int]]:
    return {(one.partition, offset) for one in rows for offset in range(one.base_offset, one.next_offset)}


@examples(300)
@given(
    leaving=st.lists(ROWS, max_size=3, unique_by=lambda choice: choice[0]),
    arriving=st.lists(ROWS, max_size=3, unique_by=lambda choice: choice[0]),
    starts=st.dictionaries(st.integers(0, 2), st.integers(0, 30)),
)
def test_the_check_equals_sets_of_offsets(leaving, arriving, starts):
    gone, come = ([one for choice in choices for one in rows_of(choice)] for choices in (leaving, arriving))
    lost = {at for at in held(gone) - held(come) if at[1] >= starts.get(at[0], 0)}
    if not lost:
        check(gone, come, starts)
        return
    with pytest.raises(SegmentsError, match="would lose records"):
        check(gone, come, starts)


@pytest.mark.parametrize("operation", ["import", "capture", "roll", "compact", "erase", "retain"])
def test_a_commit_that_would_lose_records_changes_nothing(manifest, operation):
    commit_append(manifest, [new_chunk(0, 31)])
    [chunk] = manifest.snapshot().live_of(0)
    before = manifest.snapshot().version
    with pytest.raises(SegmentsError, match=f"\\({operation}\\) would lose records of {TOPIC}-0"):
        manifest.commit(lambda _: Change(operation, add=[row(0, 1)], replace=[chunk.removed(1)], thinned={0: 31}))
    with pytest.raises(SegmentsError, match="would lose records"):
        manifest.commit(lambda _: Change(operation, replace=[dataclasses.replace(chunk, next_offset=30)]))
    assert manifest.snapshot().version == before
    assert manifest.snapshot().live_of(0) == [chunk]


def test_retention_removes_what_lies_below_the_log_start_alone(manifest):
    commit_append(manifest, [new_chunk(0, 10)])
    commit_append(manifest, [new_chunk(0, 10)])
    rows = manifest.snapshot().live_of(0)
    moved = Partition(rows[0].topic_id, 0, log_start_offset=10, log_end_offset=20)
    with pytest.raises(SegmentsError, match="offsets 10 to 19"):
        manifest.commit(lambda _: Change("retain", replace=[one.removed(1) for one in rows], partitions=[moved]))
    manifest.commit(lambda _: Change("retain", replace=[rows[0].removed(1)], partitions=[moved]))
    assert manifest.snapshot().live_of(0) == rows[1:]


def test_a_follower_holds_what_its_leader_holds(manifest):
    commit_append(manifest, [new_chunk(0, 10)])
    commit_append(manifest, [new_chunk(0, 10)])
    leader = manifest.snapshot()
    Change.check_mirrored(leader, leader.live, leader.live)
    with pytest.raises(SegmentsError, match=r"\(mirror\) would lose records of orders-0 .* offsets 10 to 19"):
        Change.check_mirrored(leader, leader.live, leader.live.slice(0, 1))
