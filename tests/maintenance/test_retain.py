"""Retention against a plain model of UnifiedLog.deleteOldSegments, and against what a broker left."""

from __future__ import annotations

import base64
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import LogDirError, UnknownTopicError
from spark_segments.maintenance import retain, roll
from spark_segments.maintenance.job import Job
from spark_segments.maintenance.retention.retention_plan import plan_retention
from tests.examples import examples
from tests.maintenance.rows import chunk, row, run, table
from verification.world.kafka_bytes.golden_files import expected_records, golden_dir, log_files
from verification.world.manifest_rows import Segment, commit_append
from verification.world.topics import (
    DAY_MS,
    GOLDEN_MS,
    append_in_batches,
    append_one_by_one,
    batch_headers,
    contents,
    live,
    records,
    topic_with,
    under_policy,
)

NOW_MS = 1000
REASONS = ["log_start_offset", "retention.bytes", "retention.ms"]

segments = st.tuples(
    st.integers(0, 100) | st.just(0),  # bytes
    st.integers(0, 2 * NOW_MS) | st.just(-1),  # largest timestamp
    st.integers(0, NOW_MS),  # created
    st.integers(0, 3),  # offsets
)
partitions = st.tuples(st.lists(segments, max_size=8), st.lists(segments, max_size=3), st.integers(0, 20))
configs = st.fixed_dictionaries(
    {
        "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete"]),
        "retention.ms": st.integers(0, NOW_MS) | st.just(-1),
        "retention.bytes": st.integers(0, 300) | st.just(-1),
    }
)


def rows_of(number: int, sealed: Sequence[tuple], chunks: Sequence[tuple]) -> list[Segment]:
    rows, offset = [], 0
    for state, found in (("sealed", sealed), ("chunk", chunks)):
        for at, (size, largest, created, offsets) in enumerate(found):
            values = {"log_bytes": size, "max_timestamp_ms": largest, "created_ms": created, "records": offsets}
            path = f"orders-{number}/{offset:020d}.{state}-{at}.log"
            rows.append(row(offset, offset + offsets, partition=number, state=state, path=path, **values))
            offset += offsets
    return rows


def model(rows: list[Segment], log_start: int, config: TopicConfig, now_ms: int) -> list[tuple[str, str]]:
    """(path, reason) of what goes, as Kafka's loops have it: one rule after the other, oldest segment first."""
    left, gone = list(rows), []

    def delete_while(should_go, reason: str) -> None:
        while left and left[0].state == Segment.SEALED and should_go(left[0]):
            gone.append((left.pop(0).path, reason))

    delete_while(lambda one: one.next_offset <= log_start, REASONS[0])
    if "delete" in config.cleanup_policy:
        if config.retention_bytes >= 0:
            excess = sum(one.log_bytes for one in left) - config.retention_bytes

            def is_in_excess(one: Segment) -> bool:
                nonlocal excess
                if excess - one.log_bytes < 0:
                    return False
                excess -= one.log_bytes
                return True

            delete_while(is_in_excess, REASONS[1])
        if config.retention_ms >= 0:

            def is_old(one: Segment) -> bool:
                timestamp = one.max_timestamp_ms if one.max_timestamp_ms >= 0 else one.created_ms
                return now_ms - timestamp > config.retention_ms

            delete_while(is_old, REASONS[2])
    return gone


@examples(500)
@given(found=st.lists(partitions, min_size=1, max_size=4), overrides=configs)
def test_what_goes_is_what_kafkas_loops_take(found, overrides):
    check_retention(found, [overrides])


@pytest.mark.parametrize("most", [2, pytest.param(3, marks=pytest.mark.proof)])
def test_every_small_partition_loses_what_kafkas_loops_take(most):
    """Up to so many segments with and without bytes, offsets and timestamps, old and new, and log starts in each."""
    times = [(-1, 0), (-1, NOW_MS), (0, NOW_MS), (NOW_MS, 0)]
    segment = [(size, *time, offsets) for size, time, offsets in itertools.product((0, 1), times, (0, 1))]
    sealed = [found for length in range(most + 1) for found in itertools.product(segment, repeat=length)]
    found = list(itertools.product(sealed, ([], [(1, 0, 0, 1)]), range(most + 1)))
    policies = itertools.product(("delete", "compact", "compact,delete"), (-1, NOW_MS - 1, NOW_MS), (-1, 0, 1))
    names = ("cleanup.policy", "retention.ms", "retention.bytes")
    check_retention(found, [dict(zip(names, values, strict=True)) for values in policies])


def check_retention(found: Sequence[tuple], configs: Sequence[dict]) -> None:
    """Whether each plan takes what the model does, of partitions of (sealed segments, chunks, log start)."""
    rows = [rows_of(number, sealed, chunks) for number, (sealed, chunks, _) in enumerate(found)]
    starts = np.array([start for _, _, start in found])
    there = table(one for part in rows for one in part)
    paths = there.column("path").to_pylist()
    for overrides in configs:
        config = topic_config(overrides)
        expired = plan_retention(there, starts, config, NOW_MS)
        taken = [(paths[at], REASONS[why]) for at, why in zip(expired.rows, expired.reason, strict=True)]
        expected = [one for part, start in zip(rows, starts, strict=True) for one in model(part, start, config, NOW_MS)]
        assert sorted(taken) == sorted(expected), overrides
        gone_paths = {path for path, _ in taken}
        for part in rows:  # a prefix, and never a chunk
            gone = [one.path in gone_paths for one in part]
            assert gone == sorted(gone, reverse=True)
            assert not any(flag and one.state != Segment.SEALED for flag, one in zip(gone, part, strict=True))


@pytest.mark.rule("W16")
@examples(30)
@given(
    found=st.lists(partitions, min_size=2, max_size=2),
    overrides=configs,
    clocks=st.lists(st.integers(0, 2 * NOW_MS), min_size=1, max_size=4),
)
def test_log_start_and_end_never_go_back(tmp_path_factory, found, overrides, clocks):
    log = LogDir.create(str(tmp_path_factory.mktemp("log")))
    log.create_topic("orders", 2, overrides)
    topic_id = log.topic("orders").snapshot.topic_id
    for number, (sealed, chunks, start) in enumerate(found):
        rows = [one for one in rows_of(number, sealed, chunks) if one.records]
        rows = [dataclasses.replace(one, topic_id=topic_id, created_ms=log.storage.now_ms()) for one in rows]
        commit_append(log.topic("orders").manifest, rows)
        end = log.topic("orders").offsets()[number][1]
        with under_policy(log, "orders", "delete"):
            log.topic("orders").delete_records({number: min(start, end)})
    before = log.topic("orders").offsets()
    for now_ms in clocks:
        retain(log, topics=["orders"], now_ms=now_ms)
        after = log.topic("orders").offsets()
        for number in (0, 1):
            assert after[number][0] >= before[number][0] and after[number][1] == before[number][1]
            rows = live(log, "orders", number)
            if rows:
                assert rows[0].next_offset > after[number][0] or rows[0].state != Segment.SEALED
        before = after


def expired(
    rows: list[Segment], now_ms: int = NOW_MS, log_start: int = 0, **overrides: object
) -> list[tuple[int, str]]:
    config = topic_config({name.replace("_", "."): value for name, value in overrides.items()})
    found = plan_retention(table(rows), np.array([log_start]), config, now_ms)
    return [(rows[at].base_offset, REASONS[why]) for at, why in zip(found.rows, found.reason, strict=True)]


def test_a_segment_goes_once_all_of_it_is_older_than_retention_ms():
    rows = [row(0, 10, max_timestamp_ms=500), row(10, 20, max_timestamp_ms=501), chunk(20, 30)]
    assert expired(rows, retention_ms=500) == []
    assert expired(rows, retention_ms=499) == [(0, "retention.ms")]
    assert expired(rows, retention_ms=498) == [(0, "retention.ms"), (10, "retention.ms")]


def test_a_young_segment_protects_older_ones_behind_it():
    rows = [row(0, 10, max_timestamp_ms=900), row(10, 20, max_timestamp_ms=1), chunk(20, 30)]
    assert expired(rows, retention_ms=500) == []


def test_a_segment_without_timestamps_is_as_old_as_its_file():
    rows = [row(0, 10, max_timestamp_ms=-1, created_ms=400), chunk(10, 20)]
    assert expired(rows, retention_ms=600) == []
    assert expired(rows, retention_ms=599) == [(0, "retention.ms")]


def test_retention_bytes_stay():
    rows = [*run([100, 100, 100]), *run([50], state="chunk", start=30)]
    assert expired(rows, retention_ms=-1, retention_bytes=251) == []
    assert expired(rows, retention_ms=-1, retention_bytes=250) == [(0, "retention.bytes")]
    everything = expired(rows, retention_ms=-1, retention_bytes=0)
    assert [base for base, _ in everything] == [0, 10, 20]


def test_a_compacted_topic_loses_only_what_lies_below_its_log_start():
    rows = [row(0, 10), row(10, 20), chunk(20, 30)]
    assert expired(rows, log_start=15, cleanup_policy="compact", retention_ms=1, retention_bytes=1) == [
        (0, "log_start_offset")
    ]
    assert len(expired(rows, cleanup_policy="compact,delete", retention_ms=1)) == 2


def test_what_a_broker_left_of_800_records(log):
    """Records as they reached the broker: batches of 16384 bytes at most, after a first one of six records."""
    name = "broker-data/retention-0"
    topic_with(
        log,
        "retention",
        {"segment.bytes": 16384, "retention.bytes": 32768, "retention.ms": -1},
    )
    left = expected_records(name)
    table_of_all = pa.concat_tables(
        [
            records(450).drop(["key"]),
            pa.table(
                {
                    "value": pa.array([base64.b64decode(one["value"]) for one in left], pa.binary()),
                    "timestamp": pa.array([one["timestamp"] for one in left], pa.timestamp("ms")),
                }
            ),
        ]
    )
    append_in_batches(log, "retention", table_of_all.slice(0, 6), 16384)
    append_in_batches(log, "retention", table_of_all.slice(6), 16384)
    roll(log, now_ms=GOLDEN_MS)
    retain(log, now_ms=GOLDEN_MS)
    assert log.topic("retention").offsets() == {0: (450, 800)}
    assert [segment.base_offset for segment in live(log, "retention")] == [int(path.stem) for path in log_files(name)]
    written = [log.storage.read(segment.path).to_pybytes() for segment in live(log, "retention")]
    kafka = [path.read_bytes() for path in sorted(golden_dir(name).glob("*.log"))]
    # From the CRC on: base offset and leader epoch of the active segment are still to be written.
    assert [data[17:] for data in written] == [data[17:] for data in kafka]
    assert [one["value"] for one in contents(log, "retention")] == [base64.b64decode(one["value"]) for one in left]


def test_what_expires_in_the_active_segment_goes_once_it_is_rolled(log):
    topic_with(log, "orders", {"retention.ms": DAY_MS, "segment.ms": DAY_MS})
    now_ms = log.storage.now_ms()
    append_one_by_one(log, "orders", records(5, time_ms=now_ms))
    later_ms = now_ms + 2 * DAY_MS
    assert retain(log, now_ms=later_ms).partitions == []
    roll(log, now_ms=later_ms)
    (line,) = retain(log, now_ms=later_ms).partitions
    assert (line["dropped"], line["records_in"], line["records_out"]) == ({"retention.ms": 5}, 5, 0)
    assert log.topic("orders").offsets() == {0: (5, 5)} and live(log, "orders") == []
    assert contents(log, "orders") == []
    log.topic("orders").append(records(1))
    assert log.topic("orders").offsets() == {0: (5, 6)}


def test_the_log_start_of_deleted_records_takes_whole_segments(log):
    topic_with(log, "orders", {"segment.bytes": 2000, "retention.ms": -1, "cleanup.policy": "compact"})
    append_one_by_one(log, "orders", records(40))
    roll(log, now_ms=GOLDEN_MS)
    bases = [segment.base_offset for segment in live(log, "orders")]
    with under_policy(log, "orders", "compact,delete"):
        log.topic("orders").delete_records({0: bases[2] + 1})
    (line,) = retain(log, now_ms=GOLDEN_MS).partitions
    assert line["segments"] == 2 and set(line["dropped"]) == {"log_start_offset"}
    assert [segment.base_offset for segment in live(log, "orders")] == bases[2:]
    assert log.topic("orders").offsets() == {0: (bases[2] + 1, 40)}
    assert [one["offset"] for one in contents(log, "orders")] == list(range(bases[2] + 1, 40))


def test_a_dry_run_says_what_would_go_and_changes_nothing(log):
    topic_with(log, "orders", {"segment.bytes": 2000, "retention.bytes": 4000, "retention.ms": -1})
    append_one_by_one(log, "orders", records(40))
    roll(log, now_ms=GOLDEN_MS)
    before = log.topic("orders").snapshot.version
    dry = retain(log, now_ms=GOLDEN_MS, dry_run=True).to_dict()
    assert log.topic("orders").snapshot.version == before
    done = retain(log, now_ms=GOLDEN_MS).to_dict()
    assert done["dropped"]["retention.bytes"] > 0
    assert {**dry, "seconds": 0, "dry_run": False} == {**done, "seconds": 0}
    assert retain(log, now_ms=GOLDEN_MS).partitions == []
    assert done["records_in"] == done["records_out"] + sum(done["dropped"].values())


def test_a_topic_altered_meanwhile_keeps_what_it_is_to_keep(log, monkeypatch):
    topic_with(log, "orders", {"segment.bytes": 2000, "retention.ms": DAY_MS})
    append_one_by_one(log, "orders", records(40))
    roll(log, now_ms=GOLDEN_MS)
    kept = contents(log, "orders")
    snapshot = log.topic("orders").snapshot
    monkeypatch.setattr(Job, "snapshots", lambda *_, **__: iter([(snapshot, topic_config(snapshot.config))]))
    log.topic("orders").alter({"retention.ms": "-1"})
    retain(log, now_ms=GOLDEN_MS + 2 * DAY_MS)
    assert contents(log, "orders") == kept


def test_all_topics_or_the_one_that_is_named(log):
    for name in ("orders", "payments"):
        topic_with(log, name, {"segment.bytes": 2000, "retention.bytes": 2000, "retention.ms": -1})
        append_one_by_one(log, name, records(40))
    roll(log, now_ms=GOLDEN_MS)
    assert {line["topic"] for line in retain(log, topics=["orders"], now_ms=GOLDEN_MS).partitions} == {"orders"}
    assert {line["topic"] for line in retain(log, now_ms=GOLDEN_MS).partitions} == {"payments"}
    with pytest.raises(UnknownTopicError, match="orers"):
        retain(log, topics=["orers"])


def test_a_directory_of_kafkas_is_not_touched():
    with pytest.raises(LogDirError, match="Import it"):
        retain(LogDir.open(str(golden_dir("broker-data"))))


def test_batches_that_stay_are_not_touched(log):
    topic_with(log, "orders", {"segment.bytes": 2000, "retention.bytes": 4000, "retention.ms": -1})
    append_one_by_one(log, "orders", records(40))
    roll(log, now_ms=GOLDEN_MS)
    before = batch_headers(log, live(log, "orders"))
    retain(log, now_ms=GOLDEN_MS)
    after = batch_headers(log, live(log, "orders"))
    assert 0 < len(after) < len(before) and before[-len(after) :] == after


def test_without_a_policy_nothing_goes_but_what_lies_below_the_log_start():
    rows = [row(0, 10), row(10, 20), chunk(20, 30)]
    assert expired(rows, cleanup_policy="", retention_ms=1, retention_bytes=1) == []
    assert expired(rows, log_start=10, cleanup_policy="", retention_ms=1) == [(0, "log_start_offset")]


def test_retention_a_second_time_finds_nothing(log):
    topic_with(log, "orders", {"segment.bytes": 2000, "retention.ms": DAY_MS})
    append_one_by_one(log, "orders", records(40))
    roll(log, now_ms=GOLDEN_MS)
    assert retain(log, now_ms=GOLDEN_MS + 2 * DAY_MS).partitions != []
    after = log.topic("orders").offsets(), log.topic("orders").snapshot.version
    assert retain(log, now_ms=GOLDEN_MS + 2 * DAY_MS).partitions == []
    assert (log.topic("orders").offsets(), log.topic("orders").snapshot.version) == after


def test_a_clock_that_goes_on_takes_one_segment_after_the_other_and_never_what_is_active():
    rows = [row(10 * n, 10 * n + 10, max_timestamp_ms=100 * n) for n in range(4)]
    rows.append(chunk(40, 50, max_timestamp_ms=0))
    taken = [[base for base, _ in expired(rows, now_ms=now_ms, retention_ms=50)] for now_ms in range(0, 600, 100)]
    assert taken == [[], [0], [0, 10], [0, 10, 20], [0, 10, 20, 30], [0, 10, 20, 30]]


@pytest.mark.parametrize("by", ["retention", "delete_records"])
def test_leader_epochs_begin_at_the_log_start_for_who_opens_what_is_exported(log, tmp_path, by):
    """plain-0 has the epochs 0 from 0, 3 from 2001 and 5 from 4009."""
    log.import_kafka(str(golden_dir("plain-0")), config={"segment.bytes": "65536", "retention.ms": "-1"})
    bases = [segment.base_offset for segment in live(log, "plain")]
    start = next(base for base in bases if 2001 < base < 4009) + (by == "delete_records")
    log.topic("plain").delete_records({0: start})
    if by == "retention":
        retain(log, now_ms=GOLDEN_MS)
        assert live(log, "plain")[0].base_offset == start
    log.export_kafka(str(tmp_path / "out"))
    partition = LogDir.open(str(tmp_path / "out")).topic("plain").snapshot.partition(0)
    assert partition.log_start_offset == start
    assert partition.leader_epochs == ((3, start), (5, 4009))
