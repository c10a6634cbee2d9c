"""The cleaner against a plain model of Kafka's rules: logs of all that a partition may hold, for several rounds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.decoding import record_sections
from spark_segments.format.sidecars.producer_state import ProducerState
from spark_segments.format.window import Window
from tests.format import plain_cleaner
from tests.format.directory_cleaner import clean_log
from tests.format.plain_decode import PlainBatch, plain_batches
from tests.format.written_log import Log
from verification.world.kafka_bytes.twin_encode import ABORT, COMMIT, Record
from verification.world.small_limits import small_limits

START_MS = 1_700_000_000_000
RETENTION_MS = 1000
CODECS = ["none", "none", "none", "gzip", "snappy", "lz4", "zstd"]

# Of every length that the hash treats in its own way, and those of the markers.
keys = st.one_of(
    st.none(),
    st.binary(max_size=1),
    st.sampled_from([b"\0\0\0\0", b"\0\0\0\1", *(b"k" * size for size in (4, 9, 17, 130, 300))]),
)
values = st.one_of(st.none(), st.binary(max_size=40))
headers = st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=2)


@st.composite
def batches_of_a_round(draw) -> list[tuple]:
    """What is appended between two cleanings: ("data", …), ("end", …) and ("roll",)."""
    steps: list[tuple] = []
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["data"] * 5 + ["end", "end", "roll"]))
        producer_id = draw(st.sampled_from([-1, -1, 7, 8, 9]))
        if kind == "data":
            records = draw(
                st.lists(
                    st.builds(Record, values, keys, st.sampled_from([-1, 0, 1, 70, 5_000]), headers),
                    min_size=1,
                    max_size=6,
                )
            )
            steps.append((kind, producer_id, records, draw(st.sampled_from([0, 0, 0, 1])),
                          draw(st.sampled_from(CODECS)), draw(st.booleans()) and draw(st.booleans())))  # fmt: skip
        elif kind == "end":
            steps.append(
                (kind, draw(st.sampled_from([7, 8])), draw(st.sampled_from([ABORT, COMMIT])), draw(st.booleans()))
            )
        else:
            steps.append((kind,))
    return steps


def extend(log: Log, steps: list[tuple], now_ms: int) -> None:
    for step in steps:
        if step[0] == "roll":
            log.roll()
        elif step[0] == "end":
            log.end(step[1], step[2], now_ms, fences=step[3])
        else:
            _, producer_id, records, gap, codec, log_append_time = step
            records = [
                Record(r.value, r.key, r.timestamp if r.timestamp < 0 else now_ms + r.timestamp, r.headers)
                for r in records
            ]
            options = (
                {"log_append_time": True, "base_timestamp": now_ms - 77, "max_timestamp": now_ms}
                if log_append_time
                else {}
            )
            log.append(
                records, producer_id=producer_id, transactional=producer_id in (7, 8), gap=gap, codec=codec, **options
            )
    # All transactions end before the active segment begins: what is cleanable ends at the last stable offset.
    for producer_id in list(log.under_way):
        log.end(producer_id, COMMIT, now_ms)
    log.roll()


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("value", [b"v", None])
def test_a_batch_whose_timestamps_lie_further_apart_than_an_int32_of_ms(value, codec):
    """2**31 ms are 24.8 days; a delete horizon as the base timestamp lies as far from what is kept."""
    years_ms = (0, 30 * 86_400_000, -START_MS, 2**42)
    records = [Record(value, key, at) for key, at in zip((b"a", b"b", b"c", b"a"), years_ms, strict=True)]
    data = ("data", -1, [*records, Record(b"v", b"d", -1)], 0, codec, False)
    check_rounds([([data], 0), ([], RETENTION_MS)], max_keys=100, batches_a_call=1000, live=False, codec=None)


@settings(deadline=None)
@given(
    rounds=st.lists(
        st.tuples(batches_of_a_round(), st.sampled_from([0, 1, RETENTION_MS, 5 * RETENTION_MS])), min_size=1, max_size=4
    ),
    max_keys=st.sampled_from([1, 2, 3, 100]),
    batches_a_call=st.sampled_from([1, 2, 3, 1000]),
    live=st.booleans(),
    codec=st.sampled_from([None, None, 0, 4]),
    part_bytes=st.sampled_from([1, 100, record_sections.TARGET_BYTES]),
)
def test_every_round_leaves_what_the_rules_say(rounds, max_keys, batches_a_call, live, codec, part_bytes):
    with small_limits(SECTION_BYTES=part_bytes):
        check_rounds(rounds, max_keys=max_keys, batches_a_call=batches_a_call, live=live, codec=codec)


@pytest.mark.cases(6)
@pytest.mark.parametrize("seed", range(30))
def test_long_logs_with_many_transactions(seed):
    rng = random.Random(seed)
    rounds = []
    for _ in range(8):
        # Producers fall silent, so that what is kept for them grows old.
        producer_ids = rng.choice([[-1], [-1, 7], [-1, 7, 8, 9]])
        steps = [random_step(rng, producer_ids) for _ in range(rng.choice([3, 60]))]
        rounds.append((steps, rng.choice([0, 1, RETENTION_MS, RETENTION_MS])))
    check_rounds(
        rounds,
        max_keys=rng.choice([20, 100]),
        batches_a_call=rng.choice([3, 1000]),
        live=rng.random() < 0.5,
        codec=rng.choice([None, 0]),
    )


def random_step(rng: random.Random, producer_ids: list[int]) -> tuple:
    kind = rng.choices(["data", "end", "roll"], [6, 4, 1])[0]
    if kind == "roll":
        return (kind,)
    if kind == "end":
        return (kind, rng.choice(producer_ids), rng.choice([ABORT, COMMIT, COMMIT]), rng.random() < 0.4)
    records = [
        Record(rng.choice([None, b"v", b"value"]), b"%d" % rng.randrange(60), rng.choice([0, 1, 70, 5000]))
        for _ in range(rng.randint(1, 3))
    ]
    return (kind, rng.choice(producer_ids), records, rng.choice([0, 0, 1]), rng.choice(CODECS), rng.random() < 0.1)


def check_rounds(
    rounds: list[tuple[list[tuple], int]], *, max_keys: int, batches_a_call: int, live: bool, codec: int | None
) -> None:
    log = Log()
    now_ms = START_MS
    dirty_offset = 0
    for steps, later_ms in rounds:
        now_ms += later_ms
        extend(log, steps, now_ms)
        before = [list(plain_batches(segment.data)) for segment in log.segments]
        all_batches = [batch for segment in before for batch in segment]
        aborted = {
            b.base_offset
            for b, is_undone in zip(all_batches, plain_cleaner.undone(all_batches), strict=True)
            if is_undone
        }
        end_offset = log.segments[-1].base_offset

        state = ProducerState()
        for segment in log.segments if live else ():
            state.add(Window(segment.data, segment.batches))
        entries = [entry for entry in state.entries() if entry.producer_id != 9]

        cleaned = clean_log(
            log.segments,
            first_dirty_offset=dirty_offset,
            now_ms=now_ms,
            producers=ActiveProducers.of(entries),
            delete_retention_ms=RETENTION_MS,
            map_bytes=24 * (max_keys + 1),
            load_factor=1.0,
            codec=codec,
            batches_a_call=batches_a_call,
        )

        latest, map_end = plain_cleaner.latest_offsets(before[:-1], aborted, dirty_offset, end_offset, max_keys)
        cleaning = plain_cleaner.PlainRound(
            latest,
            map_end,
            end_offset,
            now_ms,
            RETENTION_MS,
            {entry.producer_id: (entry.last_offset, entry.producer_epoch) for entry in entries},
            codec,
        )
        reached = sum(segment.base_offset < map_end for segment in log.segments[:-1])
        head = [batch for segment in before[:reached] for batch in segment]
        tail = [batch for segment in before[reached:] for batch in segment]
        assert cleaned.first_dirty_offset == map_end
        assert list(plain_batches(cleaned.data)) == plain_cleaner.clean(head, aborted, cleaning) + tail
        assert_nothing_new_is_lost(all_batches, list(plain_batches(cleaned.data)), aborted)

        log.segments = cleaned.segments
        dirty_offset = cleaned.first_dirty_offset


def assert_nothing_new_is_lost(before: list[PlainBatch], after: list[PlainBatch], aborted: set[int]) -> None:
    """The newest committed record of every key stays as it is, unless it is a tombstone past its horizon."""
    newest = {
        record.key: (record, batch)
        for batch in before
        if not batch.control and batch.base_offset not in aborted
        for record in batch.records
        if record.key is not None
    }
    left = {record for batch in after for record in batch.records}
    for record, batch in newest.values():
        assert record in left or (record.value is None and batch.delete_horizon_ms is not None)
