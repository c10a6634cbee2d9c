"""Where files that no known row names stand in a log: compared with a log of plain batches."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from spark_segments.log.manifest.rows import CHUNK, SEALED
from spark_segments.log.rebuild.placing import BELOW_START, OTHER_RECORDS, TOO_OLD, place
from tests.log.rebuild.plain_log import (
    Batch,
    PlainFiles,
    PlainPartition,
    check_sound,
    known_now,
    log_of,
    place_all,
    row_of,
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
        st.tuples(st.just("append"), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
        st.tuples(st.just("roll"), st.lists(st.integers(0, 20), max_size=3)),
        st.tuples(st.just("merge"), st.just([])),
        st.tuples(st.just("vacuum"), st.just([])),
    ),
    max_size=12,
)


def play(log: PlainPartition, steps: list[tuple[str, list[int]]]) -> None:
    for name, numbers in steps:
        if name == "append":
            log.append(numbers)
        elif name == "vacuum":
            log.vacuum()
        else:
            log.roll(numbers, sealed=name == "roll")


@given(STEPS, STEPS)
def test_whatever_jobs_did_later_the_log_is_what_it_was(first, second):
    """All that was appended is there once, at its offset: no file is lost, or in the wrong place."""
    log = PlainPartition()
    play(log, first)
    before = known_now(log)
    play(log, second)
    placed = place_all(log, before)
    assert log.files.read(placed.rows) == log.log
    assert (placed.log_start_offset, placed.log_end_offset) == (0, log.end)
    assert placed.missing == placed.passed_over == []


@given(STEPS, STEPS, st.data())
def test_of_lost_files_all_records_that_other_files_have_are_at_their_offsets(first, second, data):
    log = PlainPartition()
    play(log, first)
    before = known_now(log)
    play(log, second)
    files = log.files
    lost = data.draw(st.sets(st.sampled_from(sorted(files.there)))) if files.there else set()
    files.there -= lost
    placed = place_all(log, before)
    found = dict(files.read(placed.rows))
    true = {offset: number for offset, number in log.log if offset < before.end}
    named_out = {row.path for row in before.out}  # known to be out of the log: only whole copies of rows return
    with_offsets = {number for path in files.there - files.chunks - named_out for number in files.keys(path)}
    with_offsets |= {number for row in before.rows if row.path in files.there for number in files.keys(row.path)}
    for offset, number in true.items():
        if number in with_offsets:
            assert found[offset] == number
        else:
            assert found.get(offset) in (None, number)
    unread = {
        offset
        for row in [*placed.missing, *placed.passed_over]
        for offset in range(row.base_offset, row.next_offset)
    }  # fmt: skip
    assert all(offset in found or offset in unread or offset < placed.log_start_offset for offset in true), (
        "what is missing is not said"
    )


@given(STEPS, STEPS)
def test_without_files_to_add_the_log_is_what_is_known(first, second):
    log = PlainPartition()
    play(log, first)
    before = known_now(log)
    play(log, second)
    placed = place(log.files.known(before.rows, 0, before.end, before.out), [], lambda file: False)
    check_sound(placed, log.files)
    assert placed.log_end_offset == before.end
    found = dict(log.files.read(placed.rows))
    there = dict(log.files.read(before.rows))
    assert there.items() <= found.items() <= dict(before.log).items()


def test_a_cut_file_at_the_beginning_stays_and_the_log_start_too():
    log = log_of(10, 10)
    first = log.rows[0]
    known = dataclasses.replace(
        log.files.known(log.rows, 0, 20), is_there=lambda row: row != first, is_gone=lambda row: False
    )
    placed = place(known, [], lambda file: False)
    assert (placed.rows, placed.log_start_offset, placed.missing) == (log.rows, 0, [first])


def test_files_that_are_gone_move_the_log_start_up_to_a_cut_file():
    log = log_of(10, 10, 10)
    gone, cut, _ = log.rows
    known = dataclasses.replace(
        log.files.known(log.rows, 0, 30), is_there=lambda row: row not in (gone, cut), is_gone=lambda row: row == gone
    )
    placed = place(known, [], lambda file: False)
    assert (placed.rows, placed.log_start_offset, placed.missing) == (log.rows[1:], 10, [cut])


def test_segments_that_a_roll_cut_inside_a_chunk_stand_in_for_the_chunk():
    log = PlainPartition()
    log.append([10, 10, 10])
    log.append([10])
    before = known_now(log)
    log.roll([0, 1])
    log.vacuum()
    placed = place_all(log, before)
    assert [(row.base_offset, row.next_offset) for row in placed.rows] == [(0, 10), (10, 20), (20, 40)]
    assert len(placed.added) == 3 and placed.missing == []


def test_what_a_chain_lacks_is_missing_and_the_rest_is_there():
    log = PlainPartition()
    log.append([10])
    log.append([10, 10, 10])
    before = known_now(log)
    log.roll([0, 1, 2])
    lost = log.rows[2].path
    log.vacuum()
    log.files.there.discard(lost)
    placed = place_all(log, before)
    assert [offset for offset, _ in log.files.read(placed.rows)] == [0, 10, 30]
    [missing] = placed.missing
    assert (missing.base_offset, missing.next_offset, missing.path) == (20, 30, before.rows[1].path)


def test_of_a_row_with_two_parts_missing_both_are_reported():
    log = PlainPartition()
    log.append([1])
    log.append([10, 10, 10])
    log.append([1])
    before = known_now(log)
    log.roll([0, 1, 2, 3])
    lost = {log.rows[1].path, log.rows[3].path}
    log.vacuum()
    log.files.there -= lost
    placed = place_all(log, before)
    assert [(row.base_offset, row.next_offset) for row in placed.missing] == [(1, 11), (21, 31)]
    assert [offset for offset, _ in log.files.read(placed.rows)] == [0, 11, 31]


def test_a_row_that_left_the_log_comes_back_for_a_copy_that_is_gone():
    """A restore has taken the chunks back after the last known version, and vacuum their copy."""
    log = log_of(5, 7)
    log.roll([])
    [copy] = log.rows
    log.files.there.discard(copy.path)
    placed = place_all(log, log)
    assert log.files.read(placed.rows) == log.log
    assert [row.path for row in placed.returned] == [row.path for row in log.out]
    assert placed.missing == placed.replaced == []


def test_rows_that_left_the_log_with_more_records_stay_out():
    """Cleaning took some of their records: these would come back."""
    log = log_of(5, 7)
    log.roll([])
    log.files.there.discard(log.rows[0].path)
    log.rows[0] = dataclasses.replace(log.rows[0], records=11)
    placed = place_all(log, log)
    assert placed.rows == placed.returned == [] and placed.log_start_offset == 12


def test_a_cleaned_file_stands_in_for_the_segments_that_it_was_made_of():
    """Its last batch may end before they did: the log goes on there without a gap, and that is said."""
    files = PlainFiles()
    old = [files.write(base, [Batch(base, base, 10)]) for base in (0, 10, 20)]
    rows = [row_of(path, files.batches[path], 10 * at, state=SEALED) for at, path in enumerate(old)]
    files.there -= set(old[:2])
    cleaned = files.write(0, [Batch(100, 0, 4), Batch(101, 12, 3)])
    later = dataclasses.replace(files.later(cleaned), row=row_of(cleaned, files.batches[cleaned], 0, records=5))
    placed = place(files.known(rows, 0, 30), [later], lambda file: False)
    check_sound(placed, files)
    assert [(row.path, row.base_offset, row.next_offset) for row in placed.rows] == [(cleaned, 0, 20), (old[2], 20, 30)]
    assert [(row.base_offset, row.next_offset) for row in placed.passed_over] == [(15, 20)]


def test_files_below_the_log_start_stay_out():
    log = log_of(10, 10)
    log.roll([0])
    path = log.files.write(0, log.files.batches[log.rows[0].path])
    placed = place(log.files.known(log.rows[1:], 10, 20), [log.files.later(path)], lambda file: False)
    assert placed.left_out == {(path, 0): BELOW_START} and placed.log_start_offset == 10


def test_files_of_a_topic_that_was_made_again_stay_out():
    """They have offsets of another log. Neither the time nor the batches are those of this log."""
    log = log_of(10)
    known = log.files.known([dataclasses.replace(log.rows[0], created_ms=10**9)], 0, 10)
    other = log.files.write(0, [Batch(100, 0, 10), Batch(101, 10, 10)])
    log.files.chunks.discard(other)
    old = dataclasses.replace(log.files.later(other), is_chunk=False)
    assert place(known, [old], lambda file: False).left_out == {(other, 0): TOO_OLD}
    young = dataclasses.replace(old, written_ms=10**10)
    assert place(known, [young], lambda file: False).left_out == {(other, 0): OTHER_RECORDS}
    across = log.files.write(0, [Batch(100, 0, 7), Batch(101, 7, 9)])
    young = dataclasses.replace(log.files.later(across), is_chunk=False, written_ms=10**10)
    agreeing = dataclasses.replace(known, same_records=lambda *_: True)
    assert place(agreeing, [young], lambda file: False).left_out == {(across, 0): OTHER_RECORDS}


def test_rows_before_a_sealed_segment_are_sealed():
    log = log_of(10, 10)
    rows = [log.rows[0], dataclasses.replace(log.rows[1], state=SEALED)]
    placed = place(log.files.known(rows, 0, 20), [], lambda file: False)
    assert [row.state for row in placed.rows] == [SEALED, SEALED]
    assert [row.state for row in place(log.files.known(log.rows, 0, 20), [], lambda file: False).rows] == [CHUNK] * 2
