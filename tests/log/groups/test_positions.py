"""Positions of groups: swapped against what was read, bounded in files, and never of another log than the one read."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir, Position
from spark_segments.errors import (
    CommitConflictError,
    InvalidOptionError,
    LogDirError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from spark_segments.log.groups.group_files import GroupCommit
from verification.world.group_readers import check_position, group_at_store, lost_reply, moved
from verification.world.manifest_rows import Change

AT = Position(5, "id")
"""A position for groups whose topics are not there."""


@pytest.fixture
def orders(log):
    log.create_topic("orders", partitions=2)
    for partition in (0, 1):
        rows = {"value": [str(number) for number in range(10)], "partition": pa.array([partition] * 10, pa.int32())}
        log.topic("orders").append(pa.table(rows))
    return log


@pytest.fixture
def store(tmp_path, monkeypatch, limits):
    """A directory that plays an object store."""
    monkeypatch.chdir(tmp_path)
    limits(GROUP_PAUSE_SECONDS=0)
    return tmp_path / "bucket" / "log" / "_groups" / "audit"


def test_a_group_begins_without_positions_and_keeps_what_is_committed(orders):
    group = orders.group("audit")
    assert (dict(group.positions()), orders.groups()) == ({}, [])
    positions = group.commit(group.positions(), {"orders": {0: 3}})
    group.commit(positions, {"orders": {1: 7}})
    there = LogDir.open(orders.uri)
    assert there.group("audit").positions().offsets == {"orders": {0: 3, 1: 7}}
    assert there.groups() == ["audit"]
    assert dict(there.group("other").positions()) == {}


def test_a_position_keeps_the_metadata_of_its_reader_and_when_it_was_committed(orders):
    snapshot = orders.topic("orders").snapshot
    done = orders.group("audit").commit(
        orders.group("audit").positions(), {"orders": {0: Position.at(snapshot, 0, 3, "host-7 é")}}
    )
    found = orders.group("audit").positions()["orders", 0]
    assert found == done["orders", 0] and (found.metadata, found.topic_id) == ("host-7 é", snapshot.topic_id)
    assert abs(found.committed_ms - orders.storage.now_ms()) < 60_000
    with pytest.raises(InvalidOptionError, match=r"metadata.*at most 4096 bytes, found 4098"):
        orders.group("audit").commit(done, {"orders": {0: Position.at(snapshot, 0, 3, "é" * 2049)}})


@pytest.mark.rule("G4")
def test_of_two_readers_from_one_position_the_second_cannot_commit(orders):
    first, second = orders.group("audit"), LogDir.open(orders.uri).group("audit")
    began = [reader.positions() for reader in (first, second)]
    done = first.commit(began[0], {"orders": {0: 5}})
    with pytest.raises(CommitConflictError, match=r"Another reader.*audit in orders-0.*no position, found offset 5"):
        second.commit(began[1], {"orders": {0: 5, 1: 5}})
    assert first.positions().offsets == {"orders": {0: 5}}
    done = first.commit(done, {"orders": {0: 6}})
    second.commit(second.positions(), {"orders": {0: 8}})
    with pytest.raises(CommitConflictError, match=r"expected offset 6, found offset 8"):
        first.commit(done, {"orders": {0: 7}})


def test_readers_of_different_partitions_share_a_group(orders):
    first, second = orders.group("audit"), LogDir.open(orders.uri).group("audit")
    one, other = first.positions(), second.positions()
    one = first.commit(one, {"orders": {0: 5}})
    second.commit(other, {"orders": {1: 6}})
    first.commit(one, {"orders": {0: 8}})
    assert orders.group("audit").positions().offsets == {"orders": {0: 8, 1: 6}}


def test_what_is_committed_follows_on_what_was_read_and_on_nothing_else(orders):
    group = orders.group("audit")
    began = group.positions()
    done = group.commit(began, {"orders": {0: 5}})
    with pytest.raises(CommitConflictError):
        group.commit(began, {"orders": {0: 6}})
    group.commit(done, {"orders": {0: 6}})
    with pytest.raises(InvalidOptionError, match="another group"):
        orders.group("billing").commit(done, {"orders": {0: 6}})


def test_racing_readers_never_both_commit_from_one_position(orders):
    """Of 4 threads that each move the position by one from where they saw it, each success moved it by one."""
    won = []

    def move():
        group = LogDir.open(orders.uri).group("audit")
        for _ in range(20):
            began = group.positions()
            try:
                group.commit(began, {"orders": {0: began.offsets.get("orders", {}).get(0, 0) + 1}})
            except (CommitConflictError, OffsetOutOfRangeError):
                continue
            won.append(1)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert orders.group("audit").positions().offsets == {"orders": {0: len(won)}}
    assert len(won) == 10


@pytest.mark.rule("G2")
def test_a_commit_whose_reply_was_lost_is_found(store):
    group = group_at_store(lost_reply, lambda create: create(), lost_reply)
    positions = group.positions()
    for offset in (3, 4, 5):
        positions = group.commit(positions, {"orders": {0: Position(offset, "id")}})
    assert positions.offsets == group.positions().offsets == {"orders": {0: 5}}
    assert len(list(store.iterdir())) == positions.number == 3


def test_a_commit_whose_reply_was_lost_knows_nothing_of_what_others_committed_since(store):
    """Else its reader would go on from its own position as if nobody had read from there."""
    other = group_at_store()

    def lost(create):
        create()
        other.commit(other.positions(), {"orders": {0: Position(8, "id")}})
        raise OSError("the reply was lost")

    group = group_at_store(lost)
    done = group.commit(group.positions(), {"orders": {0: AT}})
    assert done.offsets == {"orders": {0: 5}}
    with pytest.raises(CommitConflictError, match="expected offset 5, found offset 8"):
        group.commit(done, {"orders": {0: Position(9, "id")}})


def test_the_last_try_is_looked_for_too(store, limits):
    limits(GROUP_TRIES=1)
    group = group_at_store(lost_reply)
    assert group.commit(group.positions(), {"orders": {0: AT}}).offsets == {"orders": {0: 5}}


def test_a_commit_that_may_still_come_is_told_to_be_unknown_and_comes_once(store, limits):
    limits(GROUP_TRIES=3)
    late = []

    def sent(create):
        late.append(create)
        raise OSError("timed out")

    group = group_at_store(sent, sent, sent)
    with pytest.raises(UnknownOutcomeError, match=r"may have been committed.*timed out"):
        group.commit(group.positions(), {"orders": {0: AT}})
    late[1]()
    assert group.positions().offsets == {"orders": {0: 5}}
    with pytest.raises(FileExistsError):
        late[0]()


def test_a_plan_with_nothing_to_do_while_a_try_may_still_happen_is_not_believed(store, limits):
    """The plan was to change something when it was first called, and what that try does is there sooner or later."""
    late = []

    def sent(create):
        late.append(create)
        raise OSError("timed out")

    limits(GROUP_TRIES=3)
    first = group_at_store()
    first.commit(first.positions(), {"orders": {0: AT}})
    plans = iter([{}, None, None, None])
    with pytest.raises(UnknownOutcomeError):
        group_at_store(sent).update(lambda _: next(plans))
    [lands] = late
    lands()
    assert dict(first.positions()) == {}


@pytest.mark.rule("G3")
def test_a_number_whose_file_is_gone_is_given_to_nobody_again(store):
    """A reader stood still while others committed so often that the files after its own were deleted."""
    group = group_at_store()
    began = group.commit(group.positions(), {"orders": {0: AT}})
    positions = began
    for offset in range(6, 6 + GroupCommit.KEPT + GroupCommit.TRIM_EVERY):
        positions = group.commit(positions, {"orders": {0: Position(offset, "id")}})
    assert not (store / f"{began.number + 1:020d}.json").exists()
    with pytest.raises(CommitConflictError, match="expected offset 5, found offset 53"):
        group.commit(began, {"orders": {0: Position(6, "id")}})
    assert group.positions().offsets == positions.offsets == {"orders": {0: 53}}
    assert group.commit(positions, {"orders": {1: AT}}).number == positions.number + 1


def test_a_commit_that_others_went_on_from_stands_though_the_file_before_it_is_gone(store):
    """Others committed so often before it looked that the file which it went on from was deleted."""
    other = group_at_store()
    positions = other.positions()
    for offset in range(GroupCommit.TRIM_EVERY):
        positions = other.commit(positions, {"orders": {0: Position(offset, "id")}})

    def sent(create):
        create()
        after = other.positions()
        while after.number < GroupCommit.TRIM_EVERY + GroupCommit.KEPT:
            after = other.commit(after, {"orders": {0: Position(100 + after.number, "id")}})

    group = group_at_store(sent)
    made = group.commit(group.positions(), {"orders": {0: Position(99, "id")}})
    assert made.number == GroupCommit.TRIM_EVERY + 1
    assert not (store / f"{made.number - 1:020d}.json").exists()
    assert (store / f"{made.number + 1:020d}.json").exists()


def test_a_late_creation_of_a_number_that_is_gone_changes_nothing(store, limits):
    """A write that a store carries out hours late, when all that tells of its number is gone."""
    late = []

    def sent(create):
        late.append(create)
        raise OSError("timed out")

    limits(GROUP_TRIES=1)
    with pytest.raises(UnknownOutcomeError):
        group = group_at_store(sent)
        group.commit(group.positions(), {"orders": {0: AT}})
    group = group_at_store()
    positions = group.positions()
    for offset in range(GroupCommit.KEPT + GroupCommit.TRIM_EVERY):
        positions = group.commit(positions, {"orders": {1: Position(offset, "id")}})
    late[0]()
    assert group.positions().offsets == {"orders": {1: GroupCommit.KEPT + GroupCommit.TRIM_EVERY - 1}}


@pytest.mark.rule("G8")
def test_a_group_that_was_deleted_long_ago_leaves_no_file_and_its_readers_cannot_commit(store):
    group = group_at_store()
    began = group.commit(group.positions(), {"orders": {0: AT}})
    group.delete()
    assert group.expired_files() == []
    for path in store.iterdir():
        os.utime(path, (0, 0))
    for left in (2, 1, 0):
        assert len(list(store.iterdir())) == left
        for info in group.expired_files():
            Path(store, Path(info.path).name).unlink()
    with pytest.raises(CommitConflictError):
        group.commit(began, {"orders": {0: Position(6, "id")}})
    assert not group.positions()
    assert group.commit(group.positions(), {"orders": {0: AT}}).number == 1


def test_a_local_disk_that_fails_has_committed_nothing(orders):
    group = orders.group("audit")
    began = group.positions()
    Path(orders.uri, "_groups").write_bytes(b"a file where the directory is to be")
    with pytest.raises(StorageError, match="nothing was committed"):
        group.commit(began, {"orders": {0: 3}})


def test_positions_are_in_the_log_of_partitions_that_are_there(orders):
    group = orders.group("audit")
    for offset in (-1, 11):
        with pytest.raises(OffsetOutOfRangeError, match=r"orders-0.*0 to 10"):
            group.commit(group.positions(), {"orders": {0: offset}})
    for topic, partition in (("orders", 2), ("nothere", 0)):
        with pytest.raises(UnknownTopicError):
            group.commit(group.positions(), {topic: {partition: 0}})
    assert orders.groups() == []


def test_a_reset_moves_positions_whatever_they_are_and_only_to_offsets_in_the_log(orders):
    group = orders.group("audit")
    began = group.commit(group.positions(), {"orders": {0: 5, 1: 6}})
    orders.topic("orders").delete_records({0: 2})
    assert group.reset({"orders": {0: 3}}).offsets == {"orders": {0: 3, 1: 6}}
    for offset, text in ((1, "below the log start: expected 2 to 10, found 1"), (11, "0 to 10")):
        with pytest.raises(OffsetOutOfRangeError, match=text):
            group.reset({"orders": {0: offset}})
    with pytest.raises(CommitConflictError, match="expected offset 5, found offset 3"):
        group.commit(began, {"orders": {0: 7}})


NAMES = ["a", "x" * 249, "naïve", "a b", "a/b", "..", ".", "=41", "==", "%2F", "🙂" * 100, "y" * 250, "z" * 9999, "a\n"]


def test_any_text_is_the_id_of_a_group(orders):
    for number, name in enumerate(NAMES):
        moved(orders, name, {"orders": {0: number % 10}})
    there = LogDir.open(orders.uri)
    assert there.groups() == sorted(NAMES)
    for number, name in enumerate(NAMES):
        assert there.group(name).positions().offsets == {"orders": {0: number % 10}}
    directories = [path.name for path in Path(orders.uri, "_groups").iterdir()]
    assert len(directories) == len(NAMES) and all(len(name.encode()) <= 255 for name in directories)


@pytest.mark.parametrize("name", ["", "\ud800", "x" * 32_768])
def test_what_kafka_takes_for_no_group_is_none(orders, name):
    with pytest.raises(InvalidOptionError, match="1 to 32,767 bytes"):
        orders.group(name)


def test_a_directory_that_kafka_wrote_has_no_groups(tmp_path):
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "00000000000000000000.log").touch()
    log = LogDir.open(str(tmp_path))
    for use in (lambda: log.group("audit").positions(), lambda: log.group("audit").reset({"orders": {0: 0}})):
        with pytest.raises(LogDirError, match=r"no groups.*segments import"):
            use()
    assert log.groups() == []


@pytest.mark.rule("G5")
def test_a_position_is_not_used_where_records_would_be_missed(orders):
    position = moved(orders, "audit", {"orders": {0: 5}})["orders", 0]
    check_position(orders.topic("orders").snapshot, 0, position, "audit")
    orders.topic("orders").delete_records({0: 5})
    check_position(orders.topic("orders").snapshot, 0, position, "audit")
    orders.topic("orders").delete_records({0: 6})
    with pytest.raises(
        OffsetOutOfRangeError, match=r"orders-0 were deleted.*offsets 5 to 5 are gone.*reset.*--to earliest"
    ):
        check_position(orders.topic("orders").snapshot, 0, position, "audit")
    orders.delete_topic("orders")
    orders.create_topic("orders")
    with pytest.raises(OffsetOutOfRangeError, match="deleted and made again"):
        check_position(orders.topic("orders").snapshot, 0, position, "audit")


def lead_anew(orders: LogDir, *epochs: tuple[int, int]) -> None:
    """Gives partition 0 of the topic this history of leaders."""
    row = orders.topic("orders").snapshot.partition(0)
    row = dataclasses.replace(row, leader_epoch=epochs[-1][0], leader_epochs=epochs)
    orders.topic("orders").manifest.commit(lambda _: Change("promote", partitions=[row]))


def test_a_position_ahead_of_a_leader_that_was_promoted_by_force_is_not_used(orders):
    """The new leader's log is longer by now than the reader's position, so that only its epoch tells."""
    lead_anew(orders, (0, 0), (1, 6))
    of_the_former = Position(8, orders.topic("orders").snapshot.topic_id)
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"orders-0 is another one from offset 6 on than the log that group audit read.*expected offset 8 of "
        r"leader epoch 0, found leader epoch 1 from offset 6 on.*--to 6",
    ):
        check_position(orders.topic("orders").snapshot, 0, of_the_former, "audit")
    check_position(orders.topic("orders").snapshot, 0, dataclasses.replace(of_the_former, offset=6), "audit")


def test_a_position_in_a_log_that_was_cut_is_not_used(orders):
    """The reader read a leader of epoch 1, whose records were cut in favour of the one that leads since."""
    lead_anew(orders, (0, 0), (2, 9))
    cut = Position(8, orders.topic("orders").snapshot.topic_id, 1)
    with pytest.raises(OffsetOutOfRangeError, match=r"that log's last records were cut.*offset 8 of leader epoch 1"):
        check_position(orders.topic("orders").snapshot, 0, cut, "audit")


def test_a_position_has_the_epoch_of_the_last_record_that_was_read(orders):
    """Of the partition's own epoch it would say nothing about what was read."""
    lead_anew(orders, (0, 0), (3, 6))
    positions = moved(orders, "audit", {"orders": {0: 6, 1: 6}})
    assert [positions["orders", number].leader_epoch for number in (0, 1)] == [0, 0]
    assert moved(orders, "audit", {"orders": {0: 7}})["orders", 0].leader_epoch == 3


def test_a_deleted_group_has_no_positions_and_its_reader_cannot_commit(orders):
    reader = LogDir.open(orders.uri).group("audit")
    positions = reader.commit(reader.positions(), {"orders": {0: 5}})
    orders.group("audit").delete()
    assert (orders.groups(), dict(orders.group("audit").positions())) == ([], {})
    with pytest.raises(CommitConflictError, match="expected offset 5, found no position"):
        reader.commit(positions, {"orders": {0: 6}})


def test_files_of_a_group_are_bounded_and_it_is_opened_by_two_of_them(store):
    group, counts = group_at_store(), set()
    positions = group.positions()
    for offset in range(200):
        positions = group.commit(positions, {"orders": {0: Position(offset, "id")}})
        counts.add(len(list(store.iterdir())))
    assert max(counts) <= GroupCommit.KEPT + GroupCommit.TRIM_EVERY
    assert group.positions().offsets == {"orders": {0: 199}}


def newest_file(orders: LogDir) -> Path:
    """The newest file of group audit."""
    return max(Path(orders.uri, "_groups", "audit").glob("*.json"))


def signed(body: bytes) -> bytes:
    """The bytes of a file with this line: its CRC is right."""
    return body + b'\n{"crc32":%d}\n' % zlib.crc32(body)


@pytest.mark.parametrize("damage", ["cut", "a byte", "another group", "twice", "no number", "newer", "empty"])
def test_a_file_of_positions_that_is_damaged_is_an_error_that_names_it(orders, damage):
    moved(orders, "audit", {"orders": {0: 5, 1: 6}})
    file = newest_file(orders)
    data = file.read_bytes()
    said = json.loads(data.splitlines()[0])
    [log] = said["positions"]
    content = {
        "cut": lambda: data[: len(data) // 2],
        "a byte": lambda: data.replace(b'"offset":[5', b'"offset":[4'),
        "another group": lambda: signed(json.dumps(said | {"group": "other"}).encode()),
        "twice": lambda: signed(json.dumps(said | {"positions": [log | {"partition": [0, 0]}]}).encode()),
        "no number": lambda: signed(json.dumps(said | {"positions": [log | {"offset": [True, 6]}]}).encode()),
        "newer": lambda: signed(json.dumps(said | {"format.version": 2}).encode()),
        "empty": lambda: b"",
    }[damage]()
    file.write_bytes(content)
    with pytest.raises(StorageError, match=rf"positions of group audit are damaged.*{file.name}"):
        orders.group("audit").positions()
    assert orders.groups() == ["audit"]
    orders.group("audit").delete()
    assert orders.groups() == []
    assert moved(orders, "audit", {"orders": {0: 5}}).offsets == {"orders": {0: 5}}


def test_positions_that_are_kept_as_a_table_are_refused(orders):
    """As before the first release: to begin at nothing would read everything again."""
    table = Path(orders.uri, "_groups", "audit")
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / f"{0:020d}.json").write_text('{"add": {"path": "part-0.parquet"}}')
    (table / "part-0.parquet").write_bytes(b"PAR1")
    group = orders.group("audit")
    for asks in (group.positions, group.delete, lambda: group.reset({"orders": {0: 5}})):
        with pytest.raises(LogDirError, match=r"group audit are kept as a table.*_groups/audit"):
            asks()
    assert orders.groups() == ["audit"]


@pytest.mark.rule("G1")
def test_the_file_of_a_group_is_what_its_specification_says(orders):
    moved(orders, "audit", {"orders": {1: 6, 0: 5}})
    body, check, *rest = newest_file(orders).read_bytes().split(b"\n")
    assert rest == [b""] and json.loads(check) == {"crc32": zlib.crc32(body)}
    said, positions = json.loads(body), orders.group("audit").positions()
    assert {name: said[name] for name in ("format.version", "group", "number", "after")} == {
        "format.version": 1,
        "group": "audit",
        "number": 1,
        "after": "",
    }
    assert said["positions"] == [
        {
            "topic": "orders",
            "topic_id": orders.topic("orders").snapshot.topic_id,
            "partition": [0, 1],
            "offset": [5, 6],
            "leader_epoch": [0, 0],
            "committed_ms": [positions["orders", number].committed_ms for number in (0, 1)],
            "metadata": ["", ""],
        }
    ]
