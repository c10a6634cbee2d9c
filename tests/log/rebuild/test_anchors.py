"""Where a chunk stood in the log, by segments that were made of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from spark_segments.log.manifest.rows import SEALED
from spark_segments.log.rebuild.anchors import Anchors, Batches
from tests.log.rebuild.plain_log import Batch, row_of

CHUNK_PATH = f"orders-0/{0:020d}.{'a' * 32}.log"


def batches(*places: tuple[int, int, int], times: tuple[int, int] = (1, 9)) -> Batches:
    """Of (key, first offset, offset behind the last)."""
    keys, starts, ends = (np.array(column) for column in zip(*places, strict=True))
    first_ms, last_ms = (np.full(len(places), time) for time in times)
    return Batches(keys.astype(np.uint64), starts, ends, first_ms, last_ms)


def segment(base: int, found: Batches):
    path = f"orders-0/{base:020d}.{'b' * 32}.log"
    end = int(found.ends[-1])
    return row_of(path, [Batch(0, base, end - base)], base, state=SEALED), found


def chunk(found: Batches):
    return row_of(CHUNK_PATH, [Batch(0, 0, int(found.ends[-1]))], 0), found


def always(*_: object) -> bool:
    return True


def never(*_: object) -> bool:
    return False


def test_a_copied_batch_says_where_its_chunk_stood():
    found = batches((7, 0, 5), (8, 5, 9))
    segments = [segment(0, batches((1, 0, 30))), segment(30, batches((2, 30, 40), (8, 45, 49)))]
    assert Anchors(segments, never).find(*chunk(found)) == 40


def test_a_known_row_at_other_offsets_than_its_bytes_says_so_too():
    row, found = segment(0, batches((7, 0, 5)))
    moved = dataclasses.replace(row, base_offset=100, next_offset=105)
    assert Anchors([(moved, found)], never).find(*chunk(found)) == 100


def test_a_chunk_that_may_have_stood_in_two_places_has_none():
    found = batches((7, 0, 5))
    segments = [segment(0, batches((7, 0, 5))), segment(10, batches((7, 10, 15)))]
    assert Anchors(segments, always).find(*chunk(found)) is None


def test_without_segments_a_chunk_has_no_place():
    assert Anchors([], always).find(*chunk(batches((7, 0, 5)))) is None


def test_a_batch_that_was_made_anew_has_its_offsets_and_its_records_decide():
    found = batches((7, 0, 5), (8, 5, 9))
    cleaned = [segment(40, batches((70, 40, 45), (80, 45, 49), times=(0, 8)))]
    assert Anchors(cleaned, always).find(*chunk(found)) == 40
    assert Anchors(cleaned, never).find(*chunk(found)) is None


@pytest.mark.parametrize(
    "other",
    [
        batches((70, 40, 45), (80, 45, 48), times=(0, 8)),  # the second batch ends elsewhere
        batches((70, 40, 45), (80, 46, 49), times=(0, 8)),  # or begins elsewhere
        batches((70, 40, 45), (80, 45, 49), times=(0, 10)),  # a record is younger than the chunk's
        batches((70, 40, 45), (80, 45, 49), times=(0, 0)),  # or older
    ],
)
def test_batches_of_another_chunk_do_not_fit(other):
    assert Anchors([segment(40, other)], always).find(*chunk(batches((7, 0, 5), (8, 5, 9)))) is None


def test_a_chunk_with_many_places_to_try_is_given_none():
    places = [(number, 5 * number, 5 * number + 5) for number in range(20)]
    assert Anchors([segment(0, batches(*places))], always).find(*chunk(batches((99, 0, 5)))) is None
