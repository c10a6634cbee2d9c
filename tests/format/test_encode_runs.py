"""Runs of several partitions encoded in one go, against each run encoded by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import RecordTooLargeError
from spark_segments.format.encoding.arrow_buffers import RecordColumns
from spark_segments.format.encoding.encode import Runs, encode_runs
from spark_segments.format.layout import CODECS, CREATE_TIME, LOG_APPEND_TIME
from tests.examples import examples
from tests.format.encoded import assorted, columns, encoded
from verification.world.kafka_bytes.twin_encode import Record

runs_of_rows = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**40)), min_size=1, max_size=12)


@given(
    counts=runs_of_rows,
    codec=st.sampled_from(sorted(CODECS)),
    batch_bytes=st.sampled_from([100, 700, 131072]),
    timestamp_type=st.sampled_from([CREATE_TIME, LOG_APPEND_TIME]),
    seed=st.integers(0, 2**32 - 1),
)
@examples(60)
def test_runs_are_encoded_as_each_alone(counts, codec, batch_bytes, timestamp_type, seed):
    records = columns(assorted(200))
    total = sum(count for count, _ in counts)
    rows = np.random.default_rng(seed).integers(0, records.num_rows, total)
    starts = np.cumsum([0, *(count for count, _ in counts)])
    runs = Runs(starts, np.array([offset for _, offset in counts]))
    together = encode_runs(
        RecordColumns.of(records),
        rows,
        runs,
        codec=CODECS[codec],
        level=None,
        batch_bytes=batch_bytes,
        max_message_bytes=1 << 30,
        leader_epoch=3,
        timestamp_type=timestamp_type,
    )
    for number, (count, offset) in enumerate(counts):
        own = rows[starts[number] : starts[number] + count]
        options = {"base_offset": offset, "leader_epoch": 3, "timestamp_type": timestamp_type}
        alone = encoded(records, own, codec=codec, batch_bytes=batch_bytes, **options)
        assert together[number].buffer.equals(alone.buffer)
        assert together[number].tombstones == alone.tombstones
        for name in alone.batches.__slots__:
            assert getattr(together[number].batches, name).tolist() == getattr(alone.batches, name).tolist()


def test_a_record_that_is_too_large_is_named_by_its_row():
    records = columns([Record(value=b"x" * size, key=None, timestamp=1, headers=[]) for size in (5, 6, 900, 7)])
    rows, runs = np.array([3, 1, 2, 0]), Runs(np.array([0, 2, 4]), np.array([0, 0]))
    with pytest.raises(RecordTooLargeError, match="row 2 "):
        encode_runs(RecordColumns.of(records), rows, runs, codec=0, level=None, batch_bytes=500, max_message_bytes=500)
