"""Positions of groups: swapped against what was read, bounded in files, and never of another log than the one read."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_segments import LogDir
from spark_segments.errors import (
    CommitConflictError,
    InvalidOptionError,
    LogDirError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from spark_segments.log.groups import group_table
from spark_segments.log.groups.group_log import DeltaRsGroupLog
from spark_segments.log.groups.positions import POSITION_SCHEMA, Position, check_position
from spark_segments.log.manifest.change import Change
from spark_segments.log.manifest.delta.delta_log import CommitFailedError


@pytest.fixture
def orders(log):
    log.create_topic("orders", partitions=2)
    for partition in (0, 1):
        rows = {"value": [str(number) for number in range(10)], "partition": pa.array([partition] * 10, pa.int32())}
        log.append("orders", pa.table(rows))
    return log


def test_a_group_begins_without_positions_and_keeps_what_is_committed(orders):
    assert orders.committed("audit") == {}
    assert orders.groups() == []
    orders.commit_offsets("audit", {"orders": {0: 3}})
    orders.commit_offsets("audit", {"orders": {1: 7}})
    there = LogDir.open(orders.uri)
    assert there.committed("audit") == {"orders": {0: 3, 1: 7}}
    assert there.groups() == ["audit"]
    assert there.committed("other") == {}


def test_of_two_readers_from_one_position_the_second_cannot_commit(orders):
    first, second = LogDir.open(orders.uri), LogDir.open(orders.uri)
    for reader in (first, second):
        assert reader.committed("audit") == {}
    first.commit_offsets("audit", {"orders": {0: 5}})
    with pytest.raises(CommitConflictError, match=r"Another reader.*audit in orders-0.*no position, found offset 5"):
        second.commit_offsets("audit", {"orders": {0: 5, 1: 5}})
    assert orders.committed("audit") == {"orders": {0: 5}}
    first.commit_offsets("audit", {"orders": {0: 6}})
    second.committed("audit")
    second.commit_offsets("audit", {"orders": {0: 8}})
    with pytest.raises(CommitConflictError, match=r"expected offset 6, found offset 8"):
        first.commit_offsets("audit", {"orders": {0: 7}})


def test_a_reader_that_never_looked_does_not_overwrite(orders):
    orders.commit_offsets("audit", {"orders": {0: 5}})
    with pytest.raises(CommitConflictError):
        LogDir.open(orders.uri).commit_offsets("audit", {"orders": {0: 1}})


def test_readers_of_different_partitions_share_a_group(orders):
    first, second = LogDir.open(orders.uri), LogDir.open(orders.uri)
    first.committed("audit"), second.committed("audit")
    first.commit_offsets("audit", {"orders": {0: 5}})
    second.commit_offsets("audit", {"orders": {1: 6}})
    first.commit_offsets("audit", {"orders": {0: 8}})
    assert orders.committed("audit") == {"orders": {0: 8, 1: 6}}


def test_threads_name_the_positions_that_they_began_at(orders):
    began = orders.committed("audit")
    done = orders.commit_offsets("audit", {"orders": {0: 5}}, after=began)
    with pytest.raises(CommitConflictError):
        orders.commit_offsets("audit", {"orders": {0: 6}}, after=began)
    orders.commit_offsets("audit", {"orders": {0: 6}}, after=done)
    with pytest.raises(InvalidOptionError, match="another group"):
        orders.commit_offsets("billing", {"orders": {0: 6}}, after=done)


@pytest.mark.slow
def test_racing_readers_never_both_commit_from_one_position(orders):
    """Of 4 threads that each move the position by one from where they saw it, each success moved it by one."""
    won = []

    def move():
        log = LogDir.open(orders.uri)
        for _ in range(5):
            began = log.committed("audit")
            try:
                log.commit_offsets("audit", {"orders": {0: began.get("orders", {}).get(0, 0) + 1}}, after=began)
            except (CommitConflictError, OffsetOutOfRangeError):
                continue
            won.append(1)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert orders.committed("audit") == {"orders": {0: len(won)}}
    assert len(won) >= 5


def test_a_commit_whose_reply_was_lost_is_found(orders, monkeypatch):
    commit_on = DeltaRsGroupLog.commit_on
    calls = []

    def lost(self, base, file, commit_id):
        commit_on(self, base, file, commit_id)
        calls.append(-1 if base is None else base.version)
        if len(calls) in (1, 3):
            raise CommitFailedError("the reply was lost")

    monkeypatch.setattr(DeltaRsGroupLog, "commit_on", lost)
    for offset in (3, 4, 5):
        orders.commit_offsets("audit", {"orders": {0: offset}})
    assert calls == [-1, 0, 1]
    assert orders.committed("audit") == {"orders": {0: 5}}


def test_a_commit_whose_reply_was_lost_knows_nothing_of_what_others_committed_since(orders, monkeypatch):
    """Else its reader would go on from its own position as if nobody had read from there."""
    commit_on = DeltaRsGroupLog.commit_on
    other = LogDir.open(orders.uri)

    def lost(self, base, file, commit_id):
        commit_on(self, base, file, commit_id)
        if base is None:
            other.committed("audit")
            other.commit_offsets("audit", {"orders": {0: 8}})
            raise CommitFailedError("the reply was lost")

    monkeypatch.setattr(DeltaRsGroupLog, "commit_on", lost)
    assert orders.commit_offsets("audit", {"orders": {0: 5}}) == {"orders": {0: 5}}
    with pytest.raises(CommitConflictError, match="expected offset 5, found offset 8"):
        orders.commit_offsets("audit", {"orders": {0: 9}})


def test_the_last_try_is_looked_for_too(orders, monkeypatch):
    commit_on = DeltaRsGroupLog.commit_on

    def lost(self, base, file, commit_id):
        commit_on(self, base, file, commit_id)
        raise CommitFailedError("the reply was lost")

    monkeypatch.setattr(group_table, "_TRIES", 1)
    monkeypatch.setattr(DeltaRsGroupLog, "commit_on", lost)
    assert orders.commit_offsets("audit", {"orders": {0: 3}}) == {"orders": {0: 3}}


def test_a_plan_with_nothing_to_do_while_a_try_may_still_happen_is_not_believed(orders, monkeypatch):
    """The plan was to change something when it was first called, and what that try does is there sooner or later."""
    late = []
    commit_on = DeltaRsGroupLog.commit_on

    def sent(self, base, file, commit_id):
        late.append(lambda: commit_on(self, base, file, commit_id))
        raise CommitFailedError("timed out")

    orders.commit_offsets("audit", {"orders": {0: 3}})
    monkeypatch.setattr(group_table, "_TRIES", 3)
    monkeypatch.setattr(group_table, "_LONGEST_PAUSE_SECONDS", 0)
    monkeypatch.setattr(DeltaRsGroupLog, "commit_on", sent)
    plans = iter([{}, None, None, None])
    with pytest.raises(UnknownOutcomeError):
        orders.group_table("audit").commit(lambda _: next(plans))
    [lands] = late
    lands()
    assert orders.committed("audit") == {}


def test_positions_are_in_the_log_of_partitions_that_are_there(orders):
    for offset in (-1, 11):
        with pytest.raises(OffsetOutOfRangeError, match=r"orders-0.*0 to 10"):
            orders.commit_offsets("audit", {"orders": {0: offset}})
    with pytest.raises(UnknownTopicError):
        orders.commit_offsets("audit", {"orders": {2: 0}})
    with pytest.raises(UnknownTopicError):
        orders.commit_offsets("audit", {"nothere": {0: 0}})
    assert orders.groups() == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 250, "naïve", "a b"])
def test_names_of_groups_are_bounded(orders, name):
    with pytest.raises(InvalidOptionError, match="1 to 249"):
        orders.committed(name)


def test_a_directory_that_kafka_wrote_has_no_groups(tmp_path):
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "00000000000000000000.log").touch()
    log = LogDir.open(str(tmp_path))
    for use in (lambda: log.committed("audit"), lambda: log.commit_offsets("audit", {"orders": {0: 0}})):
        with pytest.raises(LogDirError, match=r"no groups.*segments import"):
            use()
    assert log.groups() == []


def test_a_position_is_not_used_where_records_would_be_missed(orders):
    position = orders.commit_offsets("audit", {"orders": {0: 5}}).positions["orders", 0]
    check_position(orders.snapshot("orders"), 0, position, "audit")
    orders.delete_records("orders", {0: 5})
    check_position(orders.snapshot("orders"), 0, position, "audit")
    orders.delete_records("orders", {0: 6})
    with pytest.raises(
        OffsetOutOfRangeError, match=r"orders-0 were deleted.*offsets 5 to 5 are gone.*--reset-to earliest"
    ):
        check_position(orders.snapshot("orders"), 0, position, "audit")
    orders.delete_topic("orders")
    orders.create_topic("orders")
    with pytest.raises(OffsetOutOfRangeError, match="deleted and made again"):
        check_position(orders.snapshot("orders"), 0, position, "audit")


def lead_anew(orders: LogDir, *epochs: tuple[int, int]) -> None:
    """Gives partition 0 of the topic this history of leaders."""
    row = orders.snapshot("orders").partition(0)
    row = dataclasses.replace(row, leader_epoch=epochs[-1][0], leader_epochs=epochs)
    orders.manifest("orders").commit(lambda _: Change("promote", partitions=[row]))


def test_a_position_ahead_of_a_leader_that_was_promoted_by_force_is_not_used(orders):
    """The new leader's log is longer by now than the reader's position, so that only its epoch tells."""
    lead_anew(orders, (0, 0), (1, 6))
    of_the_former = Position(8, orders.snapshot("orders").topic_id, 0, 0)
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"orders-0 is another one from offset 6 on than the log that group audit read.*expected offset 8 of "
        r"leader epoch 0, found leader epoch 1 from offset 6 on.*--reset-to 6",
    ):
        check_position(orders.snapshot("orders"), 0, of_the_former, "audit")
    check_position(orders.snapshot("orders"), 0, dataclasses.replace(of_the_former, offset=6), "audit")


def test_a_position_in_a_log_that_was_cut_is_not_used(orders):
    """The reader read a leader of epoch 1, whose records were cut in favour of the one that leads since."""
    lead_anew(orders, (0, 0), (2, 9))
    cut = Position(8, orders.snapshot("orders").topic_id, 1, 0)
    with pytest.raises(OffsetOutOfRangeError, match=r"that log's last records were cut.*offset 8 of leader epoch 1"):
        check_position(orders.snapshot("orders"), 0, cut, "audit")


def test_a_position_has_the_epoch_of_the_last_record_that_was_read(orders):
    """Of the partition's own epoch it would say nothing about what was read."""
    lead_anew(orders, (0, 0), (3, 6))
    positions = orders.commit_offsets("audit", {"orders": {0: 6, 1: 6}}).positions
    assert [positions["orders", number].leader_epoch for number in (0, 1)] == [0, 0]
    assert orders.commit_offsets("audit", {"orders": {0: 7}}).positions["orders", 0].leader_epoch == 3


def test_a_deleted_group_has_no_positions_and_its_reader_cannot_commit(orders):
    reader = LogDir.open(orders.uri)
    reader.commit_offsets("audit", {"orders": {0: 5}})
    orders.delete_group("audit")
    assert (orders.groups(), orders.committed("audit")) == ([], {})
    with pytest.raises(CommitConflictError, match="expected offset 5, found no position"):
        reader.commit_offsets("audit", {"orders": {0: 6}})


@pytest.mark.slow
def test_files_of_a_group_are_bounded(orders, monkeypatch):
    monkeypatch.setattr(group_table, "KEPT_MS", -1)
    for number in range(70):
        orders.commit_offsets("audit", {"orders": {0: number % 10}})
    assert len(orders.storage.list("_groups", recursive=True)) < 3 * group_table.CHECKPOINT_VERSIONS
    assert orders.committed("audit") == {"orders": {0: 9}}


def test_a_file_whose_commit_is_still_to_come_stays(orders, monkeypatch):
    """Its writer stood still for hours after it had written the file, and so did the run that deletes old files."""
    monkeypatch.setattr(group_table, "KEPT_MS", -1)
    monkeypatch.setattr(group_table, "CHECKPOINT_VERSIONS", 1)
    table = orders.group_table("audit")
    orders.commit_offsets("audit", {"orders": {0: 3}})
    base = table._read()
    file = table._write(base.rows)
    table._keep_small(base.version)
    table._log.commit_on(base.latest, file, "late")
    assert orders.committed("audit") == {"orders": {0: 3}}


def test_a_file_that_no_version_names_goes_once_its_commit_cannot_come_any_more(orders, monkeypatch):
    table = orders.group_table("audit")
    orders.commit_offsets("audit", {"orders": {0: 3}})
    stray = table._write({})
    monkeypatch.setattr(group_table, "CHECKPOINT_VERSIONS", 1)
    orders.commit_offsets("audit", {"orders": {0: 4}})
    assert stray.path in os.listdir(f"{orders.uri}/_groups/audit")
    monkeypatch.setattr(group_table, "ORPHANS_KEPT_MS", -60_000)
    orders.commit_offsets("audit", {"orders": {0: 5}})
    assert stray.path not in os.listdir(f"{orders.uri}/_groups/audit")
    assert orders.committed("audit") == {"orders": {0: 5}}


@pytest.mark.parametrize("damage", ["no UTF-8", "no offset"])
def test_a_file_of_positions_that_is_damaged_is_an_error(orders, damage):
    position = orders.commit_offsets("audit", {"orders": {0: 5}}).positions["orders", 0]
    columns = [pa.array([value]) for value in ("orders", 0, *dataclasses.astuple(position))]
    if damage == "no UTF-8":
        offsets, text = columns[0].buffers()[1:]
        columns[0] = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xcf" * len(text))])
    else:
        columns[2] = pa.nulls(1, pa.int64())
    [file] = Path(orders.uri, "_groups", "audit").glob("*.parquet")
    pq.write_table(pa.table(columns, POSITION_SCHEMA.names), file)
    with pytest.raises(StorageError, match="A file of positions is damaged"):
        orders.committed("audit")


def test_any_reader_of_delta_tables_reads_positions(orders):
    orders.commit_offsets("audit", {"orders": {0: 5, 1: 6}})
    table = DeltaTable(f"{orders.uri}/_groups/audit").to_pyarrow_table()
    rows = [(row["topic"], row["partition"], row["offset"], row["topic_id"]) for row in table.to_pylist()]
    topic_id = orders.snapshot("orders").topic_id
    assert sorted(rows) == [("orders", 0, 5, topic_id), ("orders", 1, 6, topic_id)]


def test_a_damaged_file_of_positions_is_named(orders):
    orders.commit_offsets("audit", {"orders": {0: 5}})
    (path,) = [info.path for info in orders.storage.list("_groups/audit")]
    orders.storage.replace(path, json.dumps({}).encode())
    with pytest.raises(StorageError, match=r"damaged.*_groups/audit"):
        orders.committed("audit")
