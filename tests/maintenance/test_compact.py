"""Compaction of topics of our own: what the user of a compacted topic counts on, whatever comes in which order."""

from __future__ import annotations

import tempfile
import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.config import topic_config
from spark_segments.maintenance import compact, retain, roll
from tests.examples import examples
from verification.world.manifest_rows import Partition, Segment
from verification.world.rounds import CleanerSettings, RoundTasks, clean_partition, groups, plan_compaction
from verification.world.small_limits import small_limits
from verification.world.topics import append, append_even_without_key, contents, under_policy

START_MS = 1_700_000_000_000
RETENTION_MS = 1000
CONFIG = {
    "cleanup.policy": "compact",
    "delete.retention.ms": str(RETENTION_MS),
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0",
}


def records(log: LogDir) -> dict[int, tuple[bytes | None, bytes | None]]:
    rows = contents(log, "orders", columns=["offset", "key", "value"])
    found = {row["offset"]: (row["key"], row["value"]) for row in rows}
    assert len(found) == len(rows)
    return found


def seal(log: LogDir) -> None:
    """Everything but what comes next is sealed: the file's age is that of this machine's clock."""
    roll(log, now_ms=log.storage.now_ms() + 10_000)


def compacted(log: LogDir, now_ms: int, map_bytes: int, tasks: int = 1) -> None:
    snapshot = log.topic("orders").snapshot
    sealing = CleanerSettings("orders", snapshot.topic_id, log.defaults, now_ms, map_bytes, 0.9)
    slice_bytes = 48 if map_bytes < 4096 else map_bytes // 2
    clean_round = RoundTasks(tasks, slice_bytes, max(slice_bytes, map_bytes // 2))
    with small_limits(MIN_SLICE_BYTES=1):
        result = clean_partition(log.storage, sealing, 0, log.topic("orders").offsets()[0][1], clean_round=clean_round)
    assert result.error is None


def test_the_latest_price_of_each_product_stays_but_for_the_active_segment(log):
    log.create_topic("orders", config=CONFIG | {"segment.ms": "100"})
    prices = ("p3:10", "p5:7", "p3:11", "p6:25", "p6:12", "p5:14", "p5:17")
    for number, price in enumerate(prices):
        append(log, tuple(price.split(":")), time_ms=START_MS + number * 200)
    roll(log, now_ms=START_MS + 1300)
    compact(log, now_ms=START_MS + 1300)
    assert [f"{k.decode()}:{v.decode()}" for k, v in records(log).values()] == ["p3:11", "p6:12", "p5:14", "p5:17"]


def test_records_without_a_key_that_were_there_already_are_cleaned_away_with_one_warning_a_topic(log, caplog):
    log.create_topic("other", 2, config=CONFIG | {"cleanup.policy": "delete"})
    log.create_topic("orders", config=CONFIG | {"cleanup.policy": "delete"})
    both = pa.table({"key": ["a", None] * 4, "value": ["1", "2"] * 4, "partition": [0, 0, 1, 1] * 2})
    log.topic("other").append(both)
    append(log, ("a", "1"), (None, "2"), ("b", "3"), (None, None), time_ms=START_MS)
    seal(log)
    for topic in ("other", "orders"):
        log.topic(topic).alter({"cleanup.policy": "compact"})
    report = compact(log)
    assert report.dropped["no_key"] == 6
    assert [warning.split(":")[0] for warning in report.warnings] == [
        "Topic other is compacted and held 4 records without a key, appended before it was or imported",
        "Topic orders is compacted and held 2 records without a key, appended before it was or imported",
    ]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == report.warnings
    assert report.to_dict()["warnings"] == report.warnings
    assert list(records(log).values()) == [(b"a", b"1"), (b"b", b"3")]
    assert compact(log, force=True).warnings == []


actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(
                st.tuples(
                    st.sampled_from([None, "a", "b", "c", "d", "e", "f"]), st.sampled_from([None, "1", "2", "3"])
                ),
                min_size=1,
                max_size=8,
            ),
        ),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("compact"), st.tuples(st.sampled_from([72, 96, 4096]), st.sampled_from([1, 2, 5]))),
        st.tuples(st.just("wait"), st.sampled_from([10, 600, 2000])),
        st.tuples(st.just("delete-records"), st.integers(0, 3)),
    ),
    min_size=3,
    max_size=16,
)


@pytest.mark.proof
@examples(20)
@given(actions=actions, tasks=st.sampled_from([1, 3]))
def test_random_work_keeps_the_newest_of_each_key_and_tombstones_for_their_time(actions, tasks):
    with tempfile.TemporaryDirectory() as directory:
        log = LogDir.create(directory + "/log")
        log.create_topic("orders", config=CONFIG)
        written: list[tuple[str | None, str | None]] = []
        cleanings: dict[int, int] = {}  # offset of a tombstone → when a cleaning first read it
        now_ms = START_MS
        for action, value in [*actions, ("roll", None), ("compact", (4096, tasks))]:
            before = records(log)
            if action == "append":
                append_even_without_key(log, *value, time_ms=now_ms)
                written += value
            elif action == "roll":
                seal(log)
                assert records(log) == before
            elif action == "wait":
                now_ms += value
            elif action == "delete-records":
                start, end = log.topic("orders").offsets()[0]
                with under_policy(log, "orders", "compact,delete"):
                    log.topic("orders").delete_records({0: min(start + value, end)})
                retain(log, now_ms=now_ms)
            else:
                compacted(log, now_ms, *value)
                _check(log, before, written, cleanings, now_ms)
        assert log.topic("orders").offsets()[0][1] == len(written)


def _check(log, before, written, cleanings, now_ms) -> None:
    after = records(log)
    (described,) = log.topic("orders").describe()["partitions"]
    start, dirty = described["log_start_offset"], described["first_dirty_offset"]
    assert described["log_end_offset"] == len(written)
    assert after.items() <= before.items(), "nothing is changed, nothing comes back"
    newest = {key: offset for offset, (key, _) in enumerate(written) if offset < dirty and key is not None}
    for offset, (key, value) in enumerate(written):
        if offset < start or offset not in before:
            continue
        if offset >= dirty:
            assert offset in after, "the dirty head is left alone"
        elif key is None or newest[key] != offset:
            assert offset not in after, "there is a newer one, or no key"
        elif value is not None:
            assert offset in after, "the newest value of a key stays"
        else:
            first = cleanings.setdefault(offset, now_ms)
            if now_ms < first + RETENTION_MS:
                assert offset in after, "a tombstone outlives delete.retention.ms"


def test_a_tombstone_goes_after_its_time_and_not_before(log):
    log.create_topic("orders", config=CONFIG)
    append(log, ("a", "1"), ("b", "1"), ("a", None), time_ms=START_MS)
    for wait_ms, left in ((0, {1, 2}), (RETENTION_MS - 1, {1, 2}), (RETENTION_MS, {1})):
        seal(log)
        compact(log, now_ms=START_MS + wait_ms)
        assert {offset for offset in records(log) if offset <= 2} == left
        append(log, ("c", str(wait_ms)), time_ms=START_MS + wait_ms)


def test_a_forced_run_has_no_line_of_a_partition_whose_due_tombstone_stays_for_a_value_elsewhere(log):
    """The rows say that a tombstone is due. Reading says that it stays: partition 0 has an older value of the key."""
    log.create_topic("orders", config=CONFIG)
    append(log, ("a", "1"), time_ms=START_MS)
    log.topic("orders").alter(partitions=2)
    append(log, ("a", None), time_ms=START_MS, partitions=[1])
    for _ in range(2):
        seal(log)
        compact(log, now_ms=START_MS)
        append(log, ("b", "1"), time_ms=START_MS, partitions=[1])
    plan = compact(log, now_ms=START_MS + RETENTION_MS, force=True, dry_run=True)
    assert (1, "compact") in {(line["partition"], line["action"]) for line in plan.partitions}
    version = log.topic("orders").snapshot.version
    assert compact(log, now_ms=START_MS + RETENTION_MS, force=True).partitions == []
    assert log.topic("orders").snapshot.version == version


def test_two_cleaners_at_once_leave_what_one_would(log):
    log.create_topic("orders", config=CONFIG)
    for number in range(20):
        append(log, *[(f"k{n % 5}", f"{number}-{n}") for n in range(50)], time_ms=START_MS + number)
    seal(log)
    threads = [threading.Thread(target=compact, args=(log,), kwargs={"now_ms": START_MS}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key: value for key, value in records(log).values()} == {
        f"k{n}".encode(): f"19-{45 + n}".encode() for n in range(5)
    }
    assert log.topic("orders").offsets() == {0: (0, 1000)}


def test_batches_get_the_codec_that_the_topic_asks_for(log):
    log.create_topic("orders", config=CONFIG | {"compression.type": "lz4"})
    append(log, ("a", "1"), ("b", "x" * 100), ("a", "2"), time_ms=START_MS)
    log.topic("orders").alter({"compression.type": "gzip"})
    seal(log)
    compact(log, now_ms=START_MS)
    assert set(records(log)) == {1, 2}


def test_a_dry_run_says_why_each_partition_is_picked_or_not(log):
    log.create_topic("orders", partitions=3, config=CONFIG | {"min.cleanable.dirty.ratio": "0.5"})
    log.topic("orders").append(pa.table({"key": [f"k{n}" for n in range(99)], "value": ["v"] * 99}))
    seal(log)
    version = log.topic("orders").describe()["version"]
    plan = compact(log, dry_run=True, max_partitions=2).to_dict()
    assert [line["action"] for line in plan["partitions"]] == ["compact", "compact", "leave"]
    assert plan["partitions"][2]["reason"] == "above --max-partitions"
    assert {line["dirty_ratio"] for line in plan["partitions"]} == {1.0}
    assert log.topic("orders").describe()["version"] == version


def test_a_topic_that_is_not_compacted_is_not_in_the_plan(log):
    for topic, policy in (("orders", "compact"), ("both", "compact,delete"), ("clicks", "delete"), ("kept", "")):
        log.create_topic(topic, config=CONFIG | {"cleanup.policy": policy})
        log.topic(topic).append(pa.table({"key": ["a", "a"], "value": ["1", "2"]}))
    seal(log)
    before = log.topic("clicks").snapshot.version, log.topic("kept").snapshot.version
    assert {line["topic"] for line in compact(log, dry_run=True, force=True).partitions} == {"orders", "both"}
    assert {line["topic"] for line in compact(log, force=True).partitions} == {"orders", "both"}
    assert (log.topic("clicks").snapshot.version, log.topic("kept").snapshot.version) == before


def row(base: int, end: int, size: int, *, state: str = Segment.SEALED, time_ms: int = START_MS) -> Segment:
    return Segment(
        "id", 0, base, end, f"orders-0/{base:020d}.x.log", base, size, 8, 12, 0, end - base, 1, time_ms, time_ms,
        base, 0, None, time_ms, state,
    )  # fmt: skip


def plan(
    rows: list[Segment],
    *,
    dirty: int = 0,
    now_ms: int = START_MS,
    force: bool = False,
    stable: int | None = None,
    **config,
):
    end = rows[-1].next_offset
    partition = Partition("id", 0, 0, end, dirty, end if stable is None else stable)
    overrides = {"cleanup.policy": "compact"} | {name.replace("_", "."): str(value) for name, value in config.items()}
    (found,) = plan_compaction(
        Segment.table(rows), Partition.table([partition]), topic_config(overrides), now_ms, force=force
    )
    return found


def test_the_ratio_must_be_strictly_above_the_limit():
    rows = [row(0, 10, 500), row(10, 20, 500), row(20, 30, 100, state=Segment.CHUNK)]
    assert (plan(rows, dirty=10).ratio, plan(rows, dirty=10).picked) == (0.5, False)
    assert plan(rows, dirty=10, min_cleanable_dirty_ratio=0.49).picked
    assert plan(rows, dirty=10, force=True).picked
    assert not plan(rows, dirty=20, force=True).picked


def test_the_active_segment_the_lag_and_open_transactions_bound_what_is_cleanable():
    rows = [row(0, 10, 500), row(10, 20, 500, time_ms=START_MS + 50), row(20, 30, 100, state=Segment.CHUNK)]
    assert plan(rows).first_uncleanable_offset == 20
    assert plan(rows, now_ms=START_MS + 100, min_compaction_lag_ms=80).first_uncleanable_offset == 10
    assert plan(rows, stable=4).first_uncleanable_offset == 4


def test_a_dirty_segment_that_has_waited_too_long_is_picked_whatever_the_ratio():
    rows = [row(0, 10, 10_000), row(10, 20, 10), row(20, 30, 100, state=Segment.CHUNK)]
    assert not plan(rows, dirty=10, now_ms=START_MS + 1000, max_compaction_lag_ms=1000).picked
    late = plan(rows, dirty=10, now_ms=START_MS + 1001, max_compaction_lag_ms=1000)
    assert (late.picked, late.reason) == (True, "max.compaction.lag.ms")


@pytest.mark.parametrize(
    ("segment_bytes", "sizes"), [(1000, [3]), (90, [3]), (89, [2, 1]), (60, [2, 1]), (59, [1, 1, 1])]
)
def test_groups_are_neighbours_within_segment_bytes(segment_bytes, sizes):
    rows = [row(0, 10, 30), row(10, 20, 30), row(20, 30, 30)]
    config = topic_config({"segment.bytes": str(segment_bytes)})
    found = [len(group) for group in groups(rows, 30, 30, config)]
    assert found == sizes
