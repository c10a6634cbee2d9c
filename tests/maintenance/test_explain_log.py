"""Why a record is still here and when it goes: on a log, moments that come true under any schedule."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, LogDirError, UnknownTopicError
from spark_segments.maintenance import compact, retain, roll, vacuum
from spark_segments.maintenance.explanation.record_explanation import RecordState
from tests.examples import examples
from tests.maintenance.explained import NOW_MS
from tests.maintenance.schedule import JOBS, START_MS, TOPIC, Written, scheduled
from verification.world.clock import store_clock
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.topics import append_one_by_one, records, topic_with


def test_one_is_found_by_its_time(log):
    topic_with(log, TOPIC, {"retention.ms": 1000}, partitions=2)
    append_one_by_one(log, TOPIC, records(5, time_ms=NOW_MS, step_ms=10), partition=1)
    one = log.topic(TOPIC).explain(1, timestamp_ms=NOW_MS + 15, now_ms=NOW_MS)
    assert (one.partition, one.offset, one.timestamp_ms, one.state) == (1, 2, NOW_MS + 20, RecordState.ACTIVE)
    late = log.topic(TOPIC).explain(1, timestamp_ms=NOW_MS + 41, now_ms=NOW_MS)
    assert (late.offset, late.timestamp_ms, late.state) == (5, None, RecordState.NOT_WRITTEN)
    assert log.topic(TOPIC).explain(0, timestamp_ms=0, now_ms=NOW_MS).state == RecordState.NOT_WRITTEN
    assert log.topic(TOPIC).explain(1, 2, now_ms=NOW_MS).to_dict()["settings"]["retention.ms"] == "1000"


def test_what_is_asked_has_to_be_one_record(log):
    topic_with(log, TOPIC, {})
    for wrong in ({}, {"offset": 1, "timestamp_ms": 1}, {"offset": -1}):
        with pytest.raises(InvalidOptionError, match="Which record"):
            log.topic(TOPIC).explain(0, **wrong)
    with pytest.raises(UnknownTopicError):
        log.topic(TOPIC).explain(1, 0)
    with pytest.raises(UnknownTopicError):
        log.topic("prices").explain(0, 0)
    with pytest.raises(LogDirError, match="Import it"):
        LogDir.open(str(golden_dir("broker-data"))).topic("canary").explain(0, 0)


def test_a_schedule_that_comes_as_late_as_it_may_meets_the_latest_moments(log):
    """To the ms of each job: one that ran a ms before it was due is as late as it can be."""
    settings = {"segment.ms": 100, "retention.ms": 30, "file.delete.delay.ms": 70}
    with scheduled(log, settings, 60) as schedule:
        schedule.append([Written()])
        schedule.explain()
        rolled_ms = START_MS + 100 + 60
        retained_ms = rolled_ms - 1 + 60
        deleted_ms = retained_ms + 70 + 60
        for job, ran_ms, runs_ms in (
            ("roll", START_MS + 100, rolled_ms),
            ("retain", rolled_ms - 1, retained_ms),
            ("vacuum", retained_ms + 70, deleted_ms),
        ):
            for at_ms in (ran_ms, runs_ms):
                schedule.ran_ms = dict.fromkeys(schedule.ran_ms, at_ms)
                schedule.wait(at_ms)
                schedule.run(job)
        assert schedule.in_files == set()
        assert (schedule.leaves[0].latest_ms, schedule.deleted[0].latest_ms) == (retained_ms + 2, deleted_ms + 3)


def test_jobs_that_run_all_the_time_meet_the_earliest_moments(log):
    topic_with(log, TOPIC, {"segment.bytes": 300, "retention.ms": 1000, "file.delete.delay.ms": 50})
    append_one_by_one(log, TOPIC, records(5, time_ms=NOW_MS, size=150))
    one = log.topic(TOPIC).explain(0, 0, every_ms=0, now_ms=NOW_MS)
    leaves_ms, deleted_ms = one.leaves_log.earliest_ms, one.files_deleted.earliest_ms
    assert leaves_ms == NOW_MS + 1001
    for at_ms, starts in ((leaves_ms - 1, 0), (leaves_ms, 1)):
        for job in (roll, retain, compact, vacuum):
            with store_clock(at_ms):
                job(log, now_ms=at_ms)
        assert log.topic(TOPIC).offsets()[0][0] == starts
    for at_ms, state in ((deleted_ms - 1, RecordState.REMOVED), (deleted_ms, RecordState.GONE)):
        vacuum(log, now_ms=at_ms)
        assert log.topic(TOPIC).explain(0, 0, now_ms=at_ms).state == state


configs = st.fixed_dictionaries(
    {
        "cleanup.policy": st.sampled_from(["delete", "delete", "delete", "compact", "compact,delete"]),
        "segment.bytes": st.sampled_from([100_000, 300, 1500, 4000]),
        "segment.ms": st.integers(1, 150),
        "segment.jitter.ms": st.just(0) | st.integers(0, 50),
        "segment.index.bytes": st.sampled_from([10 << 20, 10 << 20, 48]),
        "index.interval.bytes": st.just(100),
        "retention.ms": st.integers(0, 100) | st.just(-1),
        "retention.bytes": st.sampled_from([-1, -1, -1, 0, 1000]),
        "file.delete.delay.ms": st.integers(0, 50),
        "delete.retention.ms": st.integers(0, 50),
        "min.cleanable.dirty.ratio": st.sampled_from([0.01, 0.5]),
        "min.compaction.lag.ms": st.just(0) | st.integers(0, 50),
        "max.compaction.lag.ms": st.integers(50, 200) | st.just(2**63 - 1),
    }
)
written = st.builds(
    Written,
    st.sampled_from([None, "a", "b", "c"]),
    st.booleans(),
    st.sampled_from([0, 10, 150]),
    st.just(0) | st.integers(-100, 80),
)
events = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.lists(written, min_size=1, max_size=10) | st.sampled_from(sorted(JOBS)),
    ),
    min_size=2,
    max_size=8,
)


@pytest.mark.proof
@examples(8)
@given(
    config=configs,
    every_ms=st.integers(15, 60),
    ago=st.fixed_dictionaries({job: st.floats(0, 1) for job in JOBS}),
    timed=st.sampled_from([True, True, True, False]),
    happens=events,
)
def test_what_is_told_comes_true_whatever_is_appended_and_whenever_the_jobs_run(config, every_ms, ago, timed, happens):
    ago_ms = {job: int(share * every_ms) for job, share in ago.items()}
    with (
        tempfile.TemporaryDirectory() as directory,
        scheduled(LogDir.create(directory + "/log"), config, every_ms, ago_ms) as schedule,
    ):
        for wait_ms, what in happens:
            schedule.wait(schedule.now_ms + wait_ms)
            if isinstance(what, str):
                schedule.run(what)
            else:
                schedule.append(what if timed else [Written(one.key, one.tombstone, one.size, None) for one in what])
            schedule.explain()
        schedule.wait_for_all()
        delete_only = config["cleanup.policy"] == "delete" and config["retention.ms"] >= 0 and timed
        assert not (delete_only and schedule.in_files), "all of it was told of"
