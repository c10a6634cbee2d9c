from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.sidecars.producer_state import (
    ProducerEntry,
    ProducerState,
    parse_producer_snapshot,
    producer_snapshot_bytes,
    sequence_after,
    sequence_before,
)
from spark_segments.format.window import Window
from tests.examples import examples
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, expected_records, golden_dir, log_files
from verification.world.kafka_bytes.twin_encode import ABORT, COMMIT, Record, batch_bytes, marker_batch

# The cleaner drops the last batches of producers that it knows to be gone, and markers with their epochs: what Kafka
# still held in memory then cannot be had from the log.
UNCLEANED = [name for name in CLEAN_DIRECTORIES if not ("clean-" in name or "dirty-" in name)]


def snapshots(name: str) -> dict[int, list[ProducerEntry]]:
    """The entries of all snapshot files of a directory by their offset, each by producer id."""
    return {
        int(path.stem): sorted(parse_producer_snapshot(path.read_bytes()), key=lambda entry: entry.producer_id)
        for path in sorted(golden_dir(name).glob("*.snapshot"))
    }


def batches_of(name: str):
    for path in log_files(name):
        buffer = path.read_bytes()
        yield int(path.stem), buffer, scan_batches(buffer).batches


@pytest.mark.rule("I10")
@pytest.mark.parametrize("name", UNCLEANED)
def test_state_rebuilt_from_the_log_equals_kafkas_snapshots(name):
    expected = snapshots(name)
    state, end_offset = ProducerState(), 0
    for base_offset, buffer, batches in batches_of(name):
        if base_offset in expected:
            assert state.entries() == expected.pop(base_offset)
        state.add(Window(buffer, batches))
        end_offset = int(batches.last_offset[-1]) + 1 if len(batches) else end_offset
    if end_offset:
        assert state.entries() == expected.pop(end_offset)
    assert expected == {}


@pytest.mark.parametrize("name", ["txn-0", "broker-data/payments-0"])
def test_walking_on_from_any_snapshot_gives_the_later_ones(name):
    every = snapshots(name)
    for start, entries in every.items():
        state = ProducerState(entries)
        for base_offset, buffer, batches in batches_of(name):
            if base_offset >= start:
                state.add(Window(buffer, batches))
        assert state.entries() == every[max(every)]


@examples(30)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_batches_may_come_in_pieces_of_any_size(sizes):
    _, buffer, batches = next(batches_of("txn-0"))
    whole, pieces = ProducerState(), ProducerState()
    completed = whole.add(Window(buffer, batches))
    in_pieces = []
    start = 0
    for size in [*sizes, len(batches)]:
        in_pieces += pieces.add(Window(buffer, batches.take(slice(start, start + size))))
        start += size
    assert (pieces.entries(), in_pieces) == (whole.entries(), completed)


def test_offsets_of_the_log_are_those_of_the_file_shifted():
    _, buffer, batches = next(batches_of("txn-0"))
    plain, shifted = ProducerState(), ProducerState()
    completed = plain.add(Window(buffer, batches))
    for one, other in zip(completed, shifted.add(Window(buffer, batches, offset_shift=1000)), strict=True):
        assert (one.first_offset + 1000, one.last_offset + 1000) == (other.first_offset, other.last_offset)
        assert one.last_stable_offset + 1000 == other.last_stable_offset
    assert [entry.last_offset + 1000 for entry in plain.entries()] == [entry.last_offset for entry in shifted.entries()]


def test_last_stable_offset_of_an_open_transaction():
    state = ProducerState()
    for _, buffer, batches in batches_of("txn-0"):
        state.add(Window(buffer, batches))
    assert state.last_stable_offset(3168) == 3138
    assert ProducerState().last_stable_offset(7) == 7


def test_the_first_of_several_open_transactions_holds_the_last_stable_offset():
    state, offset = ProducerState(), 0

    def append(data: bytes) -> int:
        nonlocal offset
        batches = scan_batches(data).batches
        state.add(Window(data, batches))
        offset = int(batches.last_offset[-1]) + 1
        return state.last_stable_offset(offset)

    def records(producer_id: int) -> bytes:
        return batch_bytes([Record(), Record()], base_offset=offset, producer_id=producer_id, producer_epoch=0,
                           base_sequence=0, transactional=producer_id > 0)  # fmt: skip

    assert [append(records(producer_id)) for producer_id in (1, -1, 2, -1)] == [0, 0, 0, 0]
    assert append(marker_batch(COMMIT, base_offset=offset, producer_id=1)) == 4
    assert append(records(-1)) == 4
    assert append(marker_batch(ABORT, base_offset=offset, producer_id=2)) == offset == 12


def test_the_commit_and_abort_markers_are_those_that_kafka_reads():
    completed = []
    state = ProducerState()
    for _, buffer, batches in batches_of("txn-0"):
        completed += state.add(Window(buffer, batches))
    markers = {record["offset"]: record for record in expected_records("txn-0") if record["isControl"]}
    # Markers without data end no transaction.
    assert {txn.last_offset for txn in completed} <= markers.keys()
    assert len(completed) > 100
    for txn in completed:
        marker = markers[txn.last_offset]
        assert (marker["producerId"], marker["controlType"] == "ABORT") == (txn.producer_id, txn.aborted)


def test_a_coordinator_epoch_that_goes_back_is_taken_as_it_is_written():
    """As KAFKA-9144 let it be written."""
    state = ProducerState()
    for offset, epoch in enumerate((5, 3)):
        data = marker_batch(COMMIT, base_offset=offset, producer_id=7, coordinator_epoch=epoch)
        state.add(Window(data, scan_batches(data).batches))
        assert [entry.coordinator_epoch for entry in state.entries()] == [epoch]


def test_an_emptied_control_batch_makes_its_producer_known():
    state = ProducerState()
    for _, buffer, batches in batches_of("txn-compact/clean-3/txnc-0"):
        state.add(Window(buffer, batches))
    assert ProducerEntry(2003) in state.entries()


def test_producers_expire_after_a_day_unless_in_a_transaction():
    idle, busy = ProducerEntry(1, timestamp=1000), ProducerEntry(2, timestamp=1000, current_txn_first_offset=5)
    state = ProducerState([busy, idle])
    state.expire(86_400_000 + 999)
    assert state.entries() == [idle, busy]
    state.expire(86_400_000 + 1000)
    assert state.entries() == [busy]


def test_sequences_wrap_from_the_largest_int32_to_zero():
    assert sequence_after(2**31 - 3, 5) == 2
    assert sequence_before(2, 5) == 2**31 - 3
    assert (sequence_after(-1, 4), sequence_before(-1, 4)) == (-1, -1)


def test_snapshot_bytes_come_back():
    path = golden_dir("txn-0") / "00000000000000003168.snapshot"
    entries = parse_producer_snapshot(path.read_bytes())
    assert len(entries) == 8
    assert producer_snapshot_bytes(entries) == path.read_bytes()
    empty = golden_dir("plain-0") / "00000000000000000690.snapshot"
    assert producer_snapshot_bytes([]) == empty.read_bytes()


@given(st.data())
def test_any_damage_to_a_snapshot_is_found(data):
    content = bytearray((golden_dir("txn-0") / "00000000000000003168.snapshot").read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptBatchError):
        parse_producer_snapshot(content, path="x.snapshot")


def test_a_count_that_lies_is_an_error():
    content = bytearray(producer_snapshot_bytes([ProducerEntry(7)]))
    content[6:10] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptBatchError):
        parse_producer_snapshot(content)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 255)), min_size=1, max_size=4), st.booleans())
def test_a_control_batch_of_any_bytes_is_read_or_refused(changes, compressed):
    _, buffer, batches = next(batches_of("txn-0"))
    row = int(np.flatnonzero(batches.is_control)[0])
    batch = bytearray(buffer[int(batches.byte_position[row]) :][: int(batches.size[row])])
    for at, value in changes:
        batch[61 + at] = value
    scan = scan_batches(batch, check_crc=False)
    table: BatchTable = scan.batches
    if compressed:
        table.attributes[:] |= 1
    try:
        ProducerState().add(Window(bytes(batch), table))
    except CorruptBatchError as error:
        assert error.byte_position == 0
