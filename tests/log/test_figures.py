"""The figures and indexes of many runs at once, against those that are gathered run by run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.log.segment.figures import SegmentBuilder, SegmentFigures, figures_of_runs
from tests.examples import examples
from verification.world.kafka_bytes.segment_bytes import BatchTable
from verification.world.topics import SegmentLimits

DELETE_HORIZON = 0x40

batches = st.tuples(
    st.integers(61, 3000),  # size
    st.integers(1, 50),  # offsets
    st.integers(-1, 20),  # largest timestamp
    st.sampled_from([0, DELETE_HORIZON]),
)
runs = st.lists(st.lists(st.lists(batches, max_size=6), max_size=3), min_size=1, max_size=6)


def table(rows, next_offset):
    """The batches of a table of a run, and the offset behind them."""
    found = BatchTable.empty(len(rows))
    last = next_offset + np.cumsum([row[1] for row in rows], dtype=np.int64) - 1
    return dataclasses.replace(
        found,
        size=np.array([row[0] for row in rows], np.int64),
        base_offset=last - [row[1] - 1 for row in rows],
        last_offset=last,
        max_timestamp=np.array([row[2] for row in rows], np.int64),
        base_timestamp=np.array([row[2] + 7 for row in rows], np.int64),
        attributes=np.array([row[3] for row in rows], np.int16),
        count=np.array([min(max(1, row[1] - 1), 1000) for row in rows], np.int32),
    )


def tables(run):
    found, next_offset = [], 0
    for rows in run:
        found.append(table(rows, next_offset))
        next_offset += sum(row[1] for row in rows)
    return found


@given(runs, st.sampled_from([SegmentLimits(1 << 30, 4096, 10 << 20), SegmentLimits(1 << 30, 100, 48)]))
@examples(100)
def test_figures_of_runs_are_those_of_each_alone(given_runs, limits):
    some = [tables(run) for run in given_runs]
    figures, indexes = figures_of_runs(some, limits)
    for run, found, index in zip(some, figures, indexes, strict=True):
        alone = SegmentBuilder(0, limits)
        for one in run:
            if len(one):
                alone.add(one)
        assert found == alone.figures
        assert index == alone.finish()


def test_an_offset_that_no_index_holds_is_refused():
    with pytest.raises(CorruptBatchError, match="does not fit the index"):
        figures_of_runs([[table([(61, 2**31 + 1, 0, 0)], 0)]], SegmentLimits(1 << 30, 4096, 10 << 20))


def test_a_run_without_batches_has_empty_figures():
    figures, indexes = figures_of_runs([[], [table([(61, 1, 5, 0)], 0)]], SegmentLimits(1 << 30, 4096, 10 << 20))
    assert figures[0] == SegmentFigures(0, 0)
    assert indexes[0] == (b"", b"")
    assert figures[1].records == 1
