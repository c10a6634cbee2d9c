from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.layout import CONTROL_MASK, TRANSACTIONAL_MASK
from spark_segments.format.sidecars.producer_state import ProducerState, aborted_transactions
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index, txn_index_bytes
from spark_segments.format.window import Window
from verification.world.kafka_bytes.golden_files import GOLDEN, expected_records, golden_dir, log_files

TXN_COMPACT = [f"txn-compact/{when}{n}/txnc-0" for n in ("", "-2", "-3", "-4") for when in ("dirty", "clean")]
TRANSACTIONAL = ["txn-0", *(name.replace("clean/", "clean-1/") for name in TXN_COMPACT)]
UNCLEANED = ["txn-0", "txn-compact/dirty/txnc-0", "broker-data/payments-0"]
LAST_STABLE_OFFSETS = {"txn-0": 3138}


def kafka_index(name: str) -> AbortedTransactions:
    parts = (parse_txn_index(path.read_bytes()) for path in sorted(golden_dir(name).glob("*.txnindex")))
    return AbortedTransactions.concatenate(parts)


def whole_log(name: str) -> tuple[BatchTable, AbortedTransactions, int]:
    """(all batches, what was aborted as a scan finds it, the last stable offset as a scan finds it)"""
    state, tables, completed = ProducerState(), [], []
    for path in log_files(name):
        buffer = path.read_bytes()
        tables.append(scan_batches(buffer).batches)
        completed += state.add(Window(buffer, tables[-1]))
    batches = BatchTable.concatenate(tables)
    end_offset = int(batches.last_offset[-1]) + 1
    return batches, aborted_transactions(completed), state.last_stable_offset(end_offset)


@pytest.mark.parametrize("by_scan", [False, True])
@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_committed_records_are_those_that_kafkas_consumer_gets(name, by_scan):
    batches, scanned, last_stable_offset = whole_log(name)
    aborted = scanned if by_scan else kafka_index(name)
    undone = aborted.mask(batches)
    undone_of = dict(zip(batches.base_offset.tolist(), undone.tolist(), strict=True))
    if name in LAST_STABLE_OFFSETS:
        assert last_stable_offset == LAST_STABLE_OFFSETS[name]
    for record in expected_records(name):
        hidden = record["isControl"] or undone_of[record["batchBaseOffset"]] or record["offset"] >= last_stable_offset
        assert record["committed"] == (not hidden), record["offset"]
    if name in UNCLEANED:
        assert undone.any()


@pytest.mark.parametrize("name", UNCLEANED)
def test_indexes_rebuilt_from_the_log_are_kafkas_bytes(name):
    state = ProducerState()
    for path in log_files(name):
        buffer = path.read_bytes()
        rebuilt = txn_index_bytes(aborted_transactions(state.add(Window(buffer, scan_batches(buffer).batches))))
        index = path.with_suffix(".txnindex")
        assert rebuilt == (index.read_bytes() if index.exists() else b"")


def test_tiered_storage_has_the_same_index():
    (tiered,) = (GOLDEN / "tiered").glob("*/*/00000000000000000000-*.txnindex")
    aborted = parse_txn_index(tiered.read_bytes())
    assert txn_index_bytes(aborted) == (golden_dir("txn-0") / "00000000000000000000.txnindex").read_bytes()


def test_overlapping_leaves_out_what_a_range_does_not_touch():
    aborted = AbortedTransactions.of([(1, 10, 20, 10), (2, 15, 30, 15), (1, 25, 40, 25)])
    assert list(aborted.overlapping(0, 10).first_offset) == []
    assert list(aborted.overlapping(20, 25).first_offset) == [10, 15]
    assert list(aborted.overlapping(21, 26).first_offset) == [15, 25]


transactions = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 9)), max_size=12)


@settings(deadline=None)
@given(transactions, st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 1)), max_size=40),
       st.integers(-5, 5))  # fmt: skip
def test_the_mask_equals_a_plain_search(spans, rows, shift):
    next_offset, entries = dict.fromkeys((1, 2, 3), 0), []
    for producer_id, gap, length in spans:  # of one producer they do not overlap
        first = next_offset[producer_id] + gap
        entries.append((producer_id, first, first + length, 0))
        next_offset[producer_id] = first + length + 1
    aborted = AbortedTransactions.of(entries)
    batches = BatchTable.empty(len(rows))
    offset = 0
    for row, (producer_id, delta, control) in enumerate(rows):
        batches.producer_id[row], batches.base_offset[row], batches.last_offset[row] = (
            producer_id,
            offset,
            offset + delta,
        )
        batches.attributes[row] = (CONTROL_MASK * control) | (TRANSACTIONAL_MASK if (producer_id + row) % 4 else 0)
        offset += delta + 1
    expected = [
        any(
            producer == batches.producer_id[row]
            and first <= batches.last_offset[row] + shift
            and last >= batches.base_offset[row] + shift
            for producer, first, last, _ in entries
        )
        and bool(batches.is_transactional[row])
        and not batches.is_control[row]
        for row in range(len(rows))
    ]
    assert aborted.mask(batches, shift).tolist() == expected


def test_index_bytes_come_back_and_an_empty_index_is_empty():
    aborted = AbortedTransactions.of([(1, 10, 20, 10), (2, 15, 30, 15)])
    data = txn_index_bytes(aborted)
    assert len(data) == 68 and data[:2] == b"\x00\x00"
    assert all(
        np.array_equal(getattr(parse_txn_index(data), name), getattr(aborted, name)) for name in aborted.__slots__
    )
    assert txn_index_bytes(AbortedTransactions.of()) == b"" and len(parse_txn_index(b"")) == 0


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (txn_index_bytes(AbortedTransactions.of([(1, 10, 20, 10)]))[:-1], 0),
        (txn_index_bytes(AbortedTransactions.of([(1, 10, 20, 10)])) + b"\x00", 34),
        (b"\x00\x01" + txn_index_bytes(AbortedTransactions.of([(1, 10, 20, 10)]))[2:], 0),
        (txn_index_bytes(AbortedTransactions.of([(1, 10, 20, 10), (2, 15, 20, 15)])), 34),
        (txn_index_bytes(AbortedTransactions.of([(1, 30, 20, 10)])), 0),
        (txn_index_bytes(AbortedTransactions.of([(-1, 10, 20, 10)])), 0),
        (bytes(34), None),
    ],
)
def test_an_index_that_kafka_does_not_write_is_refused(data, position):
    if position is None:  # zeros are a legal entry: producer 0, offset 0
        assert len(parse_txn_index(data)) == 1
        return
    with pytest.raises(CorruptBatchError) as caught:
        parse_txn_index(data, path="x.txnindex")
    assert (caught.value.path, caught.value.byte_position) == ("x.txnindex", position)
