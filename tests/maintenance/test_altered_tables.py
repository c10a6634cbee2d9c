"""Latest tables of topics to which partitions were added, run before and after, against the view itself and a dict."""

from __future__ import annotations

from itertools import count

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.lake.table_plan import Reason
from spark_segments.maintenance import compact, roll
from tests.examples import examples
from tests.log.test_latest_across import CONFIG, KEYS
from verification.kills.table_rows import content, readable, update
from verification.world.topics import DAY_MS, append


def cleaned(log):
    later_ms = log.storage.now_ms() + 30 * DAY_MS
    roll(log, now_ms=later_ms)
    compact(log, now_ms=later_ms)


def followed(log, uri):
    """What a run says; the table is the view then."""
    details = update(log, uri, "orders", view="latest")
    assert content(uri) == readable(log, "orders", "latest")
    return details


def values(uri):
    rows = DeltaTable(uri).to_pyarrow_table(columns=["key", "value"]).to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row["value"] for row in rows}


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "table")


@pytest.fixture
def grown(log, uri):
    """A table of eight keys in two partitions, of which there are five then."""
    log.create_topic("orders", partitions=2, config=CONFIG)
    append(log, *[(key, b"old") for key in KEYS])
    followed(log, uri)
    log.topic("orders").alter(partitions=5)
    return log


def test_tombstones_and_new_values_take_old_rows_of_other_partitions(grown, uri):
    append(grown, *[(key, None) for key in KEYS[:6]])
    assert followed(grown, uri)["why"] == Reason.SPREAD
    assert values(uri) == dict.fromkeys(KEYS[6:], b"old")
    append(grown, *[(key, b"new") for key in KEYS])
    assert followed(grown, uri)["why"] is None
    assert values(uri) == dict.fromkeys(KEYS, b"new")
    grown.topic("orders").alter(partitions=7)
    append(grown, *[(key, None) for key in KEYS[:6]])
    assert followed(grown, uri)["why"] is None
    assert values(uri) == dict.fromkeys(KEYS[6:], b"new")


def test_a_run_without_new_records_makes_the_table_anew_once(grown, uri):
    assert followed(grown, uri)["why"] == Reason.SPREAD
    version = DeltaTable(uri).version()
    assert followed(grown, uri)["why"] is None
    assert DeltaTable(uri).version() == version


def test_a_late_record_does_not_take_the_row_of_another_partition(grown, uri):
    append(grown, (b"x", b"1"), partitions=[3], time_ms=50)
    followed(grown, uri)
    append(grown, (b"x", b"late"), (b"y", b"1"), partitions=[4], time_ms=10)
    followed(grown, uri)
    assert (values(uri)[b"x"], values(uri)[b"y"]) == (b"1", b"1")
    append(grown, (b"x", None), partitions=[2], time_ms=60)
    append(grown, (b"x", b"later"), partitions=[4], time_ms=55)
    followed(grown, uri)
    append(grown, (b"x", b"too late"), partitions=[4], time_ms=59)
    followed(grown, uri)
    assert b"x" not in values(uri)
    append(grown, (b"x", b"new"), partitions=[3], time_ms=70)
    followed(grown, uri)
    assert values(uri)[b"x"] == b"new"


def test_a_row_that_was_hidden_comes_back_where_its_rival_was_replaced_by_an_older_record(grown, uri):
    append(grown, (b"x", b"1"), partitions=[3], time_ms=50)
    append(grown, (b"x", b"2"), partitions=[4], time_ms=100)
    followed(grown, uri)
    assert values(uri)[b"x"] == b"2"
    append(grown, (b"x", b"3"), partitions=[4], time_ms=10)
    followed(grown, uri)
    assert values(uri)[b"x"] == b"1"


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([None, b"v"])), min_size=1, max_size=6),
            st.integers(1, 3),
            st.sampled_from(["clean", "run"]),
        ),
        max_size=10,
    )
)
def test_a_table_is_the_dict_of_all_commits(tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("log")
    log, uri = LogDir.create(str(directory / "log")), str(directory / "table")
    log.create_topic("orders", partitions=2, config=CONFIG)
    partitions, newest, number = 2, {}, count()
    for step in [*steps, "run"]:
        if isinstance(step, list):
            pairs = [(key, value and b"%d" % next(number)) for key, value in step]
            append(log, *pairs)
            newest |= dict(pairs)
        elif isinstance(step, int):
            partitions += step
            log.topic("orders").alter(partitions=partitions)
        elif step == "clean":
            cleaned(log)
        else:
            followed(log, uri)
            assert values(uri) == {key: value for key, value in newest.items() if value}


@pytest.mark.proof
@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.lists(
                st.tuples(st.sampled_from(KEYS[:3]), st.booleans(), st.integers(0, 2), st.integers(0, 3)),
                min_size=1,
                max_size=5,
            ),
            st.sampled_from(["alter", "clean"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_table_follows_partitions_and_times_that_writers_choose(tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("log")
    log, uri = LogDir.create(str(directory / "log")), str(directory / "table")
    log.create_topic("orders", partitions=2, config=CONFIG)
    append(log, (b"first", b"1"))
    log.topic("orders").alter(partitions=3)
    for step in steps:
        if isinstance(step, list):
            pairs = [(key, b"v" if has_value else None) for key, has_value, _, _ in step]
            append(log, *pairs, partitions=[row[2] for row in step], time_ms=[row[3] for row in step])
        elif step == "alter":
            log.topic("orders").alter(partitions=len(log.topic("orders").offsets()) + 1)
        else:
            cleaned(log)
        followed(log, uri)
