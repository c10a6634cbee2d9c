"""Cleaning removes aborted data at once, and markers once nothing needs them."""

from __future__ import annotations

import pickle
import struct

import pytest

from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window
from tests.format.cleaned import NOW_MS, RETENTION_MS, clean, left, offsets, scanned
from verification.world.kafka_bytes.twin_encode import ABORT, COMMIT, Record, batch_bytes, marker_batch


def transaction(kind: int, *, base_offset: int = 0, producer_id: int = 7, key: bytes = b"a") -> bytes:
    """A data batch and its marker."""
    data = batch_bytes([Record(b"1", key)], base_offset=base_offset, producer_id=producer_id, producer_epoch=0,
                       base_sequence=0, transactional=True)  # fmt: skip
    return data + marker_batch(kind, base_offset=base_offset + 1, producer_id=producer_id)


def with_aborted(*rows: tuple[int, int, int, int]) -> CleanedTransactions:
    transactions = CleanedTransactions()
    transactions.add_aborted(AbortedTransactions.of(rows))
    return transactions


def test_aborted_data_go_at_once_and_their_marker_stays():
    cleaned = clean(transaction(ABORT), transactions=with_aborted((7, 0, 1, 2)))
    (marker,) = left(cleaned)
    assert marker.control and marker.delete_horizon_ms is None
    assert cleaned.stats.aborted == 1
    assert cleaned.aborted.last_offset.tolist() == [1]


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_marker_gets_its_horizon_once_its_data_are_gone_and_then_goes(kind):
    marker = marker_batch(kind, base_offset=1, producer_id=7, timestamp=1000)
    marked = clean(marker)
    (batch,) = left(marked)
    assert (batch.delete_horizon_ms, batch.records[0].timestamp) == (NOW_MS + RETENTION_MS, 1000)
    data = marked.data.tobytes()
    assert not clean(data, now_ms=NOW_MS + RETENTION_MS - 1).changed
    gone = clean(data, now_ms=NOW_MS + RETENTION_MS)
    assert len(gone.data) == 0
    assert gone.stats.control == 1


def test_a_commit_marker_stays_while_there_are_data_of_its_own_transaction():
    first, second = transaction(COMMIT), transaction(COMMIT, base_offset=2, key=b"b")
    lone = marker_batch(COMMIT, base_offset=4, producer_id=7)
    horizons = [batch.delete_horizon_ms for batch in left(clean(first + second + lone)) if batch.control]
    assert horizons == [None, None, NOW_MS + RETENTION_MS]


def test_a_transaction_index_entry_goes_with_the_data():
    marker = marker_batch(ABORT, base_offset=1, producer_id=7)
    assert len(clean(marker, transactions=with_aborted((7, 0, 1, 2))).aborted) == 0


def test_an_aborted_transaction_without_its_marker_does_not_undo_the_next_one():
    data = transaction(COMMIT, base_offset=10)
    assert offsets(clean(data, transactions=with_aborted((7, 0, 5, 6)))) == [10, 11]


def test_other_control_records_stay():
    snapshot_header = marker_batch(3, base_offset=0, producer_id=-1)
    assert not clean(snapshot_header).changed


def test_a_key_like_that_of_a_marker_is_none():
    marker_key = struct.pack(">hh", 0, COMMIT)
    data = transaction(COMMIT) + batch_bytes([Record(b"2", marker_key)], base_offset=2)
    assert offsets(clean(data)) == [0, 1, 2]


def test_transactions_go_on_from_a_pickled_state():
    data = transaction(ABORT)
    batches = scanned(data)
    transactions = with_aborted((7, 0, 1, 2))
    first, _ = transactions.read(Window(data, batches.take([0])))
    second, aborted = pickle.loads(pickle.dumps(transactions)).read(Window(data, batches.take([1])))
    assert (first.tolist(), second.tolist(), len(aborted)) == ([True], [False], 1)
