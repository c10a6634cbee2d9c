"""Appends with an idempotency key: each key once, in any order, for as long as the topic remembers it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError
from verification.world.clock import store_clock
from verification.world.opened import opened
from verification.world.stores.played_log import Play, committed_but_reply_lost, store_failed

DAY_MS = 24 * 60 * 60 * 1000
ROWS = pa.table({"value": ["a", "b"]})


@pytest.fixture
def orders(log) -> LogDir:
    log.create_topic("orders")
    return log


def adds(log: LogDir, key: str, rows: pa.Table = ROWS) -> bool:
    """Whether an append of two rows added them."""
    return bool(log.topic("orders").append(rows, once=key))


def remembered(log: LogDir) -> list[str]:
    rows = log.topic("orders").manifest.state().last_transactions()
    return sorted(row.key for row in rows if row.key is not None)


def test_a_backfill_in_reverse_order_is_appended_whole_and_each_day_once(orders):
    days = [f"landing/2026-01-0{day}" for day in (3, 2, 1)]
    assert [adds(orders, day) for day in days] == [True, True, True]
    assert [adds(orders, day) for day in (*days, *reversed(days))] == [False] * 6
    assert orders.topic("orders").offsets() == {0: (0, 6)}


def test_a_key_is_remembered_for_seven_days_and_then_taken_again(orders):
    begin_ms = orders.storage.now_ms() - 8 * DAY_MS  # files are not older than the clock says
    with store_clock(begin_ms):
        assert adds(orders, "landing/1")
    with store_clock(begin_ms + 7 * DAY_MS):
        assert not adds(orders, "landing/1")
    with store_clock(begin_ms + 7 * DAY_MS + 1):
        assert adds(orders, "landing/1")
        assert not adds(orders, "landing/1")


@pytest.mark.parametrize("of", ["the topic", "the log directory"])
def test_the_time_is_a_setting_of_the_topic(log, of):
    setting = {"transactional.id.expiration.ms": str(DAY_MS)}
    log = opened(log, defaults={} if of == "the topic" else setting)
    log.create_topic("orders", config=setting if of == "the topic" else {})
    begin_ms = log.storage.now_ms()
    with store_clock(begin_ms):
        adds(log, "landing/1")
    with store_clock(begin_ms + DAY_MS):
        assert not adds(log, "landing/1")
    with store_clock(begin_ms + DAY_MS + 1):
        assert adds(log, "landing/1")


@pytest.mark.proof
def test_expired_keys_leave_the_manifest_and_a_key_is_written_few_times(orders, limits):
    limits(TRANSACTION_ROWS_A_FILE=50)
    begin_ms = orders.storage.now_ms()
    orders.topic("orders").append(ROWS, txn=("nightly", 7))
    for hour in range(24 * 16):
        with store_clock(begin_ms + hour * 60 * 60 * 1000):
            adds(orders, f"hour {hour}", ROWS.slice(0, 0))
    assert remembered(orders)[-1] == "hour 383"
    files = [file for file in orders.topic("orders").manifest.state().files if file.kind == "transaction"]
    assert 24 * 7 <= len(remembered(orders)) <= sum(file.rows for file in files) <= 24 * 14 and len(files) <= 8
    assert orders.topic("orders").append(ROWS, txn=("nightly", 7)) == {}


def test_keys_leave_nothing_in_deltas_own_log(orders):
    adds(orders, "landing/1")
    manifest = orders.topic("orders").manifest
    assert not any("txn" in action for action in manifest.log.delta.actions(manifest.snapshot().version))


def test_of_two_runs_at_once_one_appends(log):
    play = Play()
    log = opened(log, open_delta_log=play)
    log.create_topic("orders")
    other = LogDir.open(log.uri)
    answers = []
    play.before_commits(lambda: answers.append(adds(other, "landing/1")))
    answers.append(adds(log, "landing/1"))
    assert answers == [True, False]
    assert log.topic("orders").offsets() == {0: (0, 2)}


def test_of_runs_in_many_threads_one_appends_each_key(orders):
    barrier = threading.Barrier(4)

    def run(_: int) -> list[bool]:
        log = LogDir.open(orders.uri)
        barrier.wait()
        return [adds(log, f"landing/{day}") for day in range(3)]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(run, range(4)))
    assert [sum(answer[day] for answer in answers) for day in range(3)] == [1, 1, 1]
    assert orders.topic("orders").offsets() == {0: (0, 6)}


def test_a_run_whose_reply_was_lost_is_a_repeat(log):
    play = Play()
    log = opened(log, open_delta_log=play)
    log.create_topic("orders")
    play.commits(committed_but_reply_lost)
    assert adds(log, "landing/1")
    play.commits(store_failed)
    assert adds(log, "landing/2")
    assert not adds(log, "landing/1") and not adds(log, "landing/2")
    assert log.topic("orders").offsets() == {0: (0, 4)}


def test_an_append_of_no_rows_is_remembered(orders):
    assert not adds(orders, "landing/1", ROWS.slice(0, 0))
    assert not adds(orders, "landing/1")
    assert remembered(orders) == ["landing/1"]


def test_a_topic_that_is_made_again_remembers_no_key(orders):
    adds(orders, "landing/1")
    orders.delete_topic("orders")
    orders.create_topic("orders")
    assert adds(orders, "landing/1")


def test_keys_outlive_a_checkpoint(orders):
    adds(orders, "landing/1")
    orders.topic("orders").manifest.merge_files()
    assert not adds(LogDir.open(orders.uri), "landing/1")


@pytest.mark.parametrize(("once", "txn"), [("", None), (7, None), ("landing/1", ("app", 1)), (None, ("@once/app", 1))])
def test_what_is_no_key_is_refused_and_so_is_a_key_beside_a_transaction(orders, once, txn):
    with pytest.raises(InvalidOptionError, match=r"idempotency key|may not begin with @once/"):
        orders.topic("orders").append(ROWS, once=once, txn=txn)
    assert orders.topic("orders").offsets() == {0: (0, 0)}
