"""Transactions and idempotent producers over several cleanings of one log: the logs and outcomes of Kafka's own
LogCleanerTest, as far as they take more than one cleaning or more than one segment.
"""

from __future__ import annotations

from spark_segments.format.batches import scan_batches
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.sidecars.producer_state import ProducerEntry, ProducerState
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window
from tests.format.directory_cleaner import clean_log
from tests.format.plain_decode import PlainBatch, plain_batches
from tests.format.written_log import Log
from verification.world.kafka_bytes.twin_encode import ABORT, COMMIT, Record, marker_batch

NOW_MS = 1_700_000_000_000
RETENTION_MS = 600_000
MUCH_LATER_MS = NOW_MS + 10 * RETENTION_MS


class CleanedAgain(Log):
    """A log that grows between two cleanings, each of which begins where the one before ended.

    `state` is what a broker that keeps running knows of its producers, whatever is cleaned away.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dirty_offset = 0
        self.state = ProducerState()

    def data(self, producer_id: int, *keys: int, sequence: int | None = None) -> None:
        """A transaction's batch."""
        if sequence is not None:
            self.sequence = sequence
        self._add(producer_id, keys, transactional=True)

    def plain(self, *keys: int, producer_id: int = -1, sequence: int = 0) -> None:
        """A batch of no transaction; `sequence` counts where it has a producer."""
        self.sequence = sequence
        self._add(producer_id, keys, transactional=False)

    def _add(self, producer_id: int, keys: tuple[int, ...], *, transactional: bool) -> None:
        records = [Record(b"value", b"%d" % key, NOW_MS) for key in keys]
        self.append(records, producer_id=producer_id, transactional=transactional, gap=0)

    def _append(self, data: bytes, last_offset: int, aborted: AbortedTransactions | None = None) -> None:
        super()._append(data, last_offset, aborted)
        self.state.add(Window(data, scan_batches(data).batches))

    def lone_marker(self, producer_id: int) -> None:
        """The end of a transaction in which nothing was written here."""
        marker = marker_batch(COMMIT, base_offset=self.next_offset, producer_id=producer_id, timestamp=NOW_MS)
        self._append(marker, self.next_offset)

    def commit(self, producer_id: int) -> None:
        self.end(producer_id, COMMIT, NOW_MS)

    def abort(self, producer_id: int) -> None:
        self.end(producer_id, ABORT, NOW_MS)

    def producers(self) -> list[ProducerEntry]:
        """What a broker that has just loaded the log knows of its producers."""
        state = ProducerState()
        for segment in self.segments:
            state.add(Window(segment.data, segment.batches))
        return state.entries()

    def clean(self, now_ms: int = NOW_MS, *, from_offset: int | None = None, max_keys: int = 1000) -> None:
        cleaned = clean_log(
            self.segments,
            first_dirty_offset=self.dirty_offset if from_offset is None else from_offset,
            now_ms=now_ms,
            producers=ActiveProducers.of(self.state.entries()),
            delete_retention_ms=RETENTION_MS,
            map_bytes=24 * (max_keys + 1),
            load_factor=1.0,
        )
        self.segments, self.dirty_offset = cleaned.segments, cleaned.first_dirty_offset

    def batches(self) -> list[PlainBatch]:
        return [batch for segment in self.segments for batch in plain_batches(segment.data)]

    def keys(self) -> list[int]:
        return [int(one.key) for batch in self.batches() if not batch.control for one in batch.records]

    def offsets(self) -> list[int]:
        """Of all records, those of markers too."""
        return [one.offset for batch in self.batches() for one in batch.records]

    def ends(self) -> list[int]:
        """The last offset of every batch, empty ones included."""
        return [batch.last_offset for batch in self.batches()]

    def aborted(self) -> list[tuple[int, int, int]]:
        """(producer, first offset, last offset) of what the transaction indexes name."""
        index = AbortedTransactions.concatenate(segment.aborted for segment in self.segments)
        columns = (index.producer_id, index.first_offset, index.last_offset)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def sequences(self) -> dict[int, int]:
        """{producer: last sequence}, from the log alone."""
        return {entry.producer_id: entry.last_sequence for entry in self.producers()}


def test_aborted_records_go_and_the_index_goes_on_naming_them():
    log = CleanedAgain()
    for producer_id, keys in ((1, (1, 2)), (2, (2, 3)), (1, (3, 4))):
        log.data(producer_id, *keys)
    log.abort(1)
    log.commit(2)
    log.roll()
    before = log.aborted()
    log.clean()
    assert (log.keys(), log.offsets(), log.aborted()) == ([2, 3], [2, 3, 6, 7], before)


def test_a_transaction_is_cleaned_by_the_marker_that_ends_it_in_a_later_segment():
    log = CleanedAgain()
    for producer_id, keys in ((1, (1, 2)), (3, (2, 3)), (2, (3, 4))):
        log.data(producer_id, *keys)
    log.roll()
    for producer_id, keys in ((2, (5, 6)), (3, (6, 7)), (1, (7, 8))):
        log.data(producer_id, *keys)
    log.abort(2)
    log.data(3, 8, 9)
    log.commit(3)
    log.data(1, 9, 10)
    log.abort(1)
    log.roll()
    log.data(2, 11)
    log.data(1, 12)
    log.clean()
    assert log.keys() == [2, 3, 6, 7, 8, 9, 11, 12], "of what is decided only the committed producer's are left"


def test_a_map_that_holds_a_part_of_a_segment_takes_aborted_records_of_all_of_it():
    log = CleanedAgain()
    log.data(1, 1, 2)
    log.data(2, 2, 3)
    log.data(1, 3, 4)
    log.abort(1)
    log.commit(2)
    log.data(1, 2)
    log.commit(1)
    log.plain(3)
    log.roll()
    rounds = []
    while log.dirty_offset < log.segments[-1].base_offset:
        log.clean(max_keys=1)
        rounds.append(log.dirty_offset)
        assert not set(log.offsets()) & {0, 1, 4, 5}, "no pass brings aborted records back"
        assert 6 in log.offsets(), "the marker gets its horizon once a pass has met no data before it"
    assert len(rounds) > 1
    assert (log.keys(), log.offsets()) == ([2, 3], [6, 7, 8, 9, 10])


def test_a_commit_marker_stays_as_long_as_a_record_of_its_transaction_and_goes_a_horizon_later():
    log = CleanedAgain()
    log.data(1, 1)
    log.data(1, 2, 3)
    log.commit(1)
    log.data(1, 2)
    log.commit(1)
    log.roll()
    log.clean()
    assert (log.keys(), log.offsets()) == ([1, 3, 2], [0, 2, 3, 4, 5])
    log.data(1, 1, 3)
    log.commit(1)
    log.roll()
    for now_ms in (NOW_MS, NOW_MS, MUCH_LATER_MS):  # the records go, the marker gets its horizon, and reaches it
        if now_ms == MUCH_LATER_MS:
            assert log.offsets() == [3, 4, 5, 6, 7, 8]
        log.clean(now_ms)
        assert log.keys() == [2, 1, 3]
    assert log.offsets() == [4, 5, 6, 7, 8]


def test_an_abort_marker_outlives_its_records_by_a_horizon():
    log = CleanedAgain()
    log.data(1, 1)
    log.data(1, 2, 3)
    log.abort(1)
    log.data(1, 3)
    log.commit(1)
    log.roll()
    for now_ms, left in ((NOW_MS, [3, 4, 5]), (NOW_MS, [3, 4, 5]), (MUCH_LATER_MS, [4, 5])):
        log.clean(now_ms)
        assert (log.keys(), log.offsets()) == ([3], left)


def test_the_empty_batch_of_a_silent_producer_keeps_its_commit_marker():
    log = CleanedAgain()
    log.data(1, 2, 3)
    log.roll()
    log.data(2, 2, 3)
    log.commit(2)
    log.roll()
    log.plain(2)
    log.plain(3)
    log.commit(1)
    log.roll()
    for now_ms in (NOW_MS, MUCH_LATER_MS):
        log.clean(now_ms)
        assert (log.offsets(), log.ends()) == ([4, 5, 6, 7], [1, 3, 4, 5, 6, 7])
    log.data(2, 1)
    log.commit(2)
    log.roll()
    log.clean(MUCH_LATER_MS)
    assert (log.offsets(), log.ends()) == ([4, 5, 6, 7, 8, 9], [1, 4, 5, 6, 7, 8, 9])
    for now_ms in (MUCH_LATER_MS, 2 * MUCH_LATER_MS):
        log.clean(now_ms)
    assert (log.keys(), log.offsets(), log.ends()) == ([2, 3, 1], [5, 6, 7, 8, 9], [1, 5, 6, 7, 8, 9])


def test_the_empty_batch_of_a_silent_producer_keeps_its_abort_marker():
    log = CleanedAgain()
    log.data(1, 2, 3)
    log.abort(1)
    log.roll()
    for now_ms in (NOW_MS, MUCH_LATER_MS):
        log.clean(now_ms)
        assert (log.offsets(), log.ends(), log.aborted()) == ([2], [1, 2], [(1, 0, 2)])
    log.data(1, 1)
    log.roll()
    log.clean(MUCH_LATER_MS)
    assert (log.offsets(), log.ends(), log.aborted()) == ([2, 3], [2, 3], [(1, 0, 2)])
    for now_ms in (MUCH_LATER_MS, 2 * MUCH_LATER_MS):
        log.clean(now_ms)
    assert (log.keys(), log.offsets(), log.ends(), log.aborted()) == ([1], [3], [3], [])


def test_a_marker_that_was_emptied_is_read_again_as_a_marker():
    log = CleanedAgain()
    log.lone_marker(1)
    log.plain(2)
    log.plain(3)
    log.roll()
    for now_ms in (NOW_MS, MUCH_LATER_MS, MUCH_LATER_MS):
        log.clean(now_ms)
    assert (log.offsets(), log.ends()) == ([1, 2], [0, 1, 2])
    emptied = log.batches()[0]
    assert emptied.control and emptied.records == ()
    log.data(1, 7)
    log.commit(1)
    log.roll()
    log.clean(MUCH_LATER_MS)
    assert log.ends() == [1, 2, 3, 4], "the producer has written again: nothing keeps it"


def test_a_committed_record_and_its_marker_stay_in_two_segments():
    log = CleanedAgain()
    log.data(1, 1)
    log.roll()
    log.commit(1)
    log.roll()
    for now_ms in (NOW_MS, MUCH_LATER_MS):
        log.clean(now_ms)
        assert (log.offsets(), log.ends()) == ([0, 1], [0, 1])


def test_an_aborted_batch_and_its_marker_stay_in_two_segments_while_they_are_the_producers_last():
    log = CleanedAgain()
    log.data(1, 1)
    log.roll()
    log.abort(1)
    log.roll()
    for now_ms in (NOW_MS, MUCH_LATER_MS):
        log.clean(now_ms)
        assert (log.offsets(), log.ends()) == ([1], [0, 1])


def test_a_producer_that_begins_at_sequence_0_each_time_keeps_one_empty_batch():
    """As Kafka's group coordinator writes: the offset tells its last batch, the sequence does not."""
    log = CleanedAgain()
    for key in (1, 2):
        log.data(1, key, sequence=0)
        log.commit(1)
    log.plain(1)
    log.plain(2)
    log.roll()
    log.clean()
    assert (log.offsets(), log.ends()) == ([1, 3, 4, 5], [1, 2, 3, 4, 5])
    for now_ms in (NOW_MS, MUCH_LATER_MS):
        log.clean(now_ms)
    assert (log.offsets(), log.ends()) == ([3, 4, 5], [2, 3, 4, 5])


def test_each_producers_last_sequence_is_in_the_cleaned_log():
    log = CleanedAgain()
    log.plain(0)
    for producer_id in (1, 2, 3):
        log.plain(0, producer_id=producer_id, sequence=0)
    log.plain(1, producer_id=2, sequence=1)
    log.roll()
    log.clean()
    assert (log.keys(), log.offsets(), log.ends()) == ([0, 1], [3, 4], [1, 3, 4])
    assert log.sequences() == {1: 0, 2: 1, 3: 0}


def test_the_last_sequence_outlives_an_aborted_transaction():
    log = CleanedAgain()
    log.data(1, 1)
    log.data(1, 2, 3)
    log.abort(1)
    log.roll()
    log.clean()
    assert (log.offsets(), log.ends(), log.sequences()) == ([3], [2, 3], {1: 2})
    log.data(1, 1, 5)
    log.roll()
    log.clean()
    assert (log.keys(), log.offsets(), log.ends()) == ([1, 5], [3, 4, 5], [3, 5])
    assert log.sequences() == {1: 4}


def test_a_walk_over_the_cleaned_log_knows_of_producers_what_one_over_the_whole_log_did():
    """So a broker that reads the cleaned log goes on to refuse duplicates."""
    log = CleanedAgain()
    for sequence in range(6):
        log.plain(sequence % 2, producer_id=1 + sequence % 3, sequence=sequence)
    log.plain(0, 1)
    log.roll()
    before = {entry.producer_id: (entry.producer_epoch, entry.last_sequence, entry.last_offset)
              for entry in log.producers()}  # fmt: skip
    log.clean()
    assert log.keys() == [0, 1]
    assert before == {
        entry.producer_id: (entry.producer_epoch, entry.last_sequence, entry.last_offset) for entry in log.producers()
    }


def test_a_map_of_one_key_cleans_a_log_key_by_key():
    log = CleanedAgain()
    for key in (0, 1, 0, 1, 0):
        log.plain(key)
    log.roll()
    for first_dirty, left in ((2, [1, 2, 3, 4]), (3, [2, 3, 4]), (4, [3, 4])):
        log.clean(from_offset=first_dirty, max_keys=1)
        assert log.offsets() == left


def test_a_run_of_batches_that_all_go_does_not_end_the_cleaning():
    log = CleanedAgain()
    for _ in range(50):
        log.data(1, 1)
    log.abort(1)
    log.plain(2)
    log.roll()
    cleaned = clean_log(log.segments, first_dirty_offset=0, now_ms=NOW_MS, batches_a_call=10)
    assert [batch.last_offset for batch in plain_batches(cleaned.data)] == [50, 51]
    assert cleaned.first_dirty_offset == 52
