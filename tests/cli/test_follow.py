"""`segments consume --follow` and `--group`, `segments offsets --group`: what they print, and positions."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest

from spark_segments import LogDir
from spark_segments.cli import interrupts
from spark_segments.cli.records.follow import Follower, GroupReader, consume_rounds
from spark_segments.errors import CommitConflictError, LogDirError, MissingFileError, OffsetOutOfRangeError
from spark_segments.maintenance import compact, retain, roll, vacuum
from verification.world.clock import PATIENCE_SECONDS
from verification.world.manifest_rows import Change
from verification.world.topics import append


@pytest.fixture
def orders(log):
    log.create_topic("orders", config={"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"})
    append(log, "a", "b", "c")
    return log


def follower(log, start=0, *, every=True, committed=False):
    def read(offsets, version):
        return log.topic("orders", version=version).scan(offsets=offsets).batches()

    return Follower(log, "orders", {0: start}, read, all_partitions=every, committed=committed)


def taken(rounds, most=None):
    return [value.decode() for batch in rounds.round(most) for value in batch.column("value").to_pylist()]


def follower_that_read(log, most):
    reader = follower(log)
    taken(reader, most)
    return reader


def test_each_round_has_what_was_appended_since(orders):
    reader = follower(orders)
    assert taken(reader) == ["a", "b", "c"]
    assert taken(reader) == []
    append(orders, "d")
    assert (taken(reader), reader.positions) == (["d"], {0: 4})


def test_a_limit_ends_a_round_and_the_next_goes_on_there(orders):
    reader = follower(orders)
    assert (taken(reader, 2), reader.positions) == (["a", "b"], {0: 2})
    assert taken(reader) == ["c"]


def test_jobs_between_and_within_rounds_change_nothing_for_a_follower(orders):
    """A compaction takes what is behind the reader, retention what it has read, and a vacuum their files."""
    reader = follower(orders)
    assert taken(reader) == ["a", "b", "c"]
    append(orders, "a", "e")
    rounds = reader.round()
    roll(orders, now_ms=10**15)
    compact(orders, now_ms=10**15)
    assert [value for batch in rounds for value in batch.column("value").to_pylist()] == [b"a", b"e"]
    orders.topic("orders").delete_records({0: 5})
    retain(orders)
    vacuum(orders)
    assert taken(reader) == []
    append(orders, "f")
    assert taken(reader) == ["f"]


def test_a_round_that_vacuum_overtakes_goes_on_in_the_newest_version(orders):
    orders.topic("orders").alter({"file.delete.delay.ms": "0"}, partitions=2)
    append(orders, "x", partitions=[1])
    append(orders, "y", partitions=[1])
    reader = follower(orders)
    batches = reader.round()
    found = next(batches).column("value").to_pylist()
    roll(orders, now_ms=10**15)
    vacuum(orders, now_ms=10**15)
    append(orders, "d", partitions=[0])
    found += [value for batch in batches for value in batch.column("value").to_pylist()]
    assert found == [b"a", b"b", b"c", b"d", b"x", b"y"]
    assert reader.positions == {0: 4, 1: 2} and taken(reader) == []


def test_a_file_that_is_lost_is_an_error_of_the_round(orders):
    reader = follower(orders)
    os.remove(f"{orders.uri}/{orders.topic('orders').snapshot.live_of(0)[0].path}")
    with pytest.raises(MissingFileError):
        taken(reader)
    append(orders, "d")
    with pytest.raises(MissingFileError):
        taken(reader)


def test_compacted_away_records_are_no_loss(orders):
    append(orders, "a", "b", "c", "d")
    reader = follower(orders)
    roll(orders, now_ms=10**15)
    append(orders, "e")
    compact(orders, now_ms=10**15)
    assert taken(reader) == ["a", "b", "c", "d", "e"]


def test_partitions_that_are_added_are_read_from_their_start(orders):
    reader, one = follower(orders), follower(orders, every=False)
    taken(reader), taken(one)
    orders.topic("orders").alter(partitions=2)
    append(orders, "x", partitions=[1])
    assert (taken(reader), taken(one)) == (["x"], [])


def test_records_that_were_deleted_before_they_were_read_end_the_follower(orders):
    reader = follower(orders, start=1)
    orders.topic("orders").delete_records({0: 3})
    with pytest.raises(OffsetOutOfRangeError, match=r"orders-0 were deleted.*offsets 1 to 2 are gone"):
        taken(reader)


def test_a_topic_made_again_ends_the_follower(orders):
    reader = follower(orders)
    taken(reader)
    orders.delete_topic("orders")
    orders.create_topic("orders")
    with pytest.raises(OffsetOutOfRangeError, match="deleted and made again"):
        taken(reader)


def test_a_log_that_another_leader_replaced_below_the_position_ends_the_follower(orders):
    """A round that began at the position would miss what the new leader has below it."""
    reader = follower_that_read(orders, 3)
    row = orders.topic("orders").snapshot.partition(0)
    row = dataclasses.replace(row, leader_epoch=1, leader_epochs=((0, 0), (1, 2)))
    orders.topic("orders").manifest.commit(lambda _: Change("promote", partitions=[row]))
    append(orders, "d")
    with pytest.raises(OffsetOutOfRangeError, match=r"another one from offset 2 on.*Begin again at --offset 2"):
        taken(reader)


def test_a_directory_that_kafka_wrote_is_not_followed(tmp_path):
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "00000000000000000000.log").touch()
    with pytest.raises(LogDirError, match="cannot be followed"):
        follower(LogDir.open(str(tmp_path)))


def test_positions_are_committed_after_what_they_cover_was_written(orders):
    written, looks = [], []

    def write(batches):
        looks.append(LogDir.open(orders.uri).group("audit").positions().offsets)
        values = [value for batch in batches for value in batch.column("value").to_pylist()]
        written.extend(values)
        return len(values)

    def sleep(_):
        if len(looks) == 2:
            raise KeyboardInterrupt
        append(orders, "d")

    consume_rounds(follower(orders), write, group=GroupReader(orders, "orders", "audit"), poll_seconds=1, sleep=sleep)
    assert written == [b"a", b"b", b"c", b"d"]
    assert looks == [{}, {"orders": {0: 3}}]
    assert orders.group("audit").positions().offsets == {"orders": {0: 4}}  # Ctrl-C commits what was written


def test_the_second_reader_of_a_group_cannot_commit(orders):
    first, second = GroupReader(orders, "orders", "audit"), GroupReader(LogDir.open(orders.uri), "orders", "audit")
    first.commit(follower_that_read(orders, 3), now=True)
    with pytest.raises(CommitConflictError, match="Another reader"):
        second.commit(follower_that_read(orders, 2), now=True)


def test_a_position_is_one_in_the_log_that_was_read(orders):
    """The topic is made again, and is as long as the one that was read, before the position is committed."""
    reader, rounds = GroupReader(orders, "orders", "audit"), follower_that_read(orders, 3)
    was_read = rounds.snapshot
    orders.delete_topic("orders")
    orders.create_topic("orders")
    append(orders, "x", "y", "z", "z")
    reader.commit(rounds, now=True)
    [position] = orders.group("audit").positions().values()
    assert (position.offset, position.topic_id) == (3, was_read.topic_id)
    with pytest.raises(OffsetOutOfRangeError, match="deleted and made again since group audit read it"):
        GroupReader(orders, "orders", "audit").starts(orders.topic("orders").snapshot, [0])


def test_a_group_goes_on_where_its_last_reader_ended(segments, run, orders):
    def consume(*options):
        return segments("consume", orders.uri, "orders", "--group", "audit", *options).lines

    assert consume("-n", "2") == ["a", "b"]
    assert consume() == ["c"]
    append(orders, "d")
    assert consume("-o", "end") == ["d"]
    assert consume() == []
    found = segments("groups", "show", orders.uri, "audit", "--output", "json").json
    (row,) = found["positions"]
    assert (found["group"], row["topic"], row["position"], row["log_end"], row["lag"]) == ("audit", "orders", 4, 4, 0)
    segments("groups", "reset", orders.uri, "audit", "orders", "--to", "3")
    assert consume("-o", "end") == ["d"]


def test_what_a_group_missed_is_an_error_with_the_way_out(segments, run, orders):
    segments("consume", orders.uri, "orders", "--group", "audit", "-n", "1")
    orders.topic("orders").delete_records({0: 2})
    ran = run("consume", orders.uri, "orders", "--group", "audit")
    assert ran.code == 1 and "offsets 1 to 1 are gone" in ran.error and "--to earliest" in ran.error
    segments("groups", "reset", orders.uri, "audit", "orders", "--to", "earliest")
    assert segments("consume", orders.uri, "orders", "--group", "audit").lines == ["c"]


def test_options_that_go_together_are_checked(run, orders):
    assert "log end" in run("consume", orders.uri, "orders", "--follow", "--end-offset", "3").error
    assert "no --tail" in run("consume", orders.uri, "orders", "--group", "audit", "--tail", "3").error
    assert "--key" in run("consume", orders.uri, "orders", "--all-partitions").error


@pytest.mark.proof
def test_a_reader_follows_behind_the_tail(segments, orders, python_environment):
    values = segments("consume", orders.uri, "orders").lines
    assert segments("consume", orders.uri, "orders", "--tail", "2", "--follow", "-n", "2").lines == values[-2:]
    command = [
        sys.executable,
        "-m",
        "spark_segments",
        "consume",
        orders.uri,
        "orders",
        "--tail",
        "1",
        "--follow",
        "-n",
        "3",
    ]
    with subprocess.Popen(command, env=python_environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().rstrip() == values[-1]
        append(orders, "next", "last", "more")
        assert process.stdout.read().split() == ["next", "last"]


@pytest.mark.cases(1)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_a_follower_cleanly(orders, python_environment, sent):
    command = [sys.executable, "-m", "spark_segments", "consume", orders.uri, "orders", "--follow", "--group", "audit"]
    process = subprocess.Popen(
        [*command, "--poll-interval", "20ms"], env=python_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    append(orders, "d")
    assert process.stdout.readline() == b"d\n"
    os.kill(process.pid, sent)
    _, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, error) == (0, b"")
    # The signal may come between the last line and the note that it was written: it is printed again then.
    assert orders.group("audit").positions().offsets in ({"orders": {0: 3}}, {"orders": {0: 4}})


def _wait_for_an_interrupt() -> None:
    """As a follower waits: by calls that end. A signal that came just before signal.pause, or while Python looked for
    signals, is looked for only once the interpreter's lock is given away.
    """
    while True:
        time.sleep(0)


def test_a_signal_that_other_code_swallowed_is_raised_again(limits):
    limits(SIGNAL_AGAIN_SECONDS=0.01)
    swallowed = 0
    with interrupts.until_interrupted():
        with contextlib.suppress(KeyboardInterrupt):  # as native code does that calls Python and drops its error
            signal.raise_signal(signal.SIGTERM)
        swallowed += 1
        _wait_for_an_interrupt()
    assert swallowed == 1


def test_a_signal_within_a_finalizer_ends_the_block_without_a_word(capfd):
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with interrupts.until_interrupted():
        Finalized()
        _wait_for_an_interrupt()
    assert capfd.readouterr().err == ""
