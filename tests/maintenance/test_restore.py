"""Restoring a topic as an earlier version had it."""

from __future__ import annotations

import dataclasses
import sys

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import (
    ErasedRecordsError,
    InvalidOptionError,
    LogDirError,
    StorageError,
    TransactionOrderError,
    UnknownTopicError,
)
from spark_segments.maintenance import Report, compact, erase, restore, retain, roll, vacuum
from spark_segments.storage import Storage
from verification.world.clock import store_clock
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.manifest_rows import Change, forget_rows
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.played_log import Play
from verification.world.topics import (
    GOLDEN_MS,
    append_one_by_one,
    assert_sound,
    contents,
    later,
    live,
    records,
    topic_with,
)

RESTORE = sys.modules["spark_segments.maintenance.removal.restore"]
VACUUM = sys.modules["spark_segments.maintenance.removal.vacuum"]
DELAY_MS = 60_000


def version(log: LogDir) -> int:
    return log.topic("orders").snapshot.version


def bounds(report: Report) -> dict[int, tuple[int, int]]:
    """{partition: (log start offset, log end offset)} after a restore."""
    return {line["partition"]: (line["log_start_offset"], line["log_end_offset"]) for line in report.partitions}


@pytest.fixture
def orders(log) -> LogDir:
    topic_with(log, "orders", {"segment.bytes": 2000, "retention.ms": -1, "file.delete.delay.ms": DELAY_MS})
    append_one_by_one(log, "orders", records(40))
    return log


def test_records_that_retention_took_are_there_again(orders):
    roll(orders, now_ms=GOLDEN_MS)
    before, wanted = contents(orders, "orders"), version(orders)
    orders.topic("orders").alter({"retention.bytes": "0"})
    retain(orders, now_ms=GOLDEN_MS)
    assert orders.topic("orders").offsets()[0][0] > 0
    assert bounds(restore(orders, topics=["orders"], version=wanted)) == {0: (0, 40)}
    assert contents(orders, "orders") == before
    assert orders.topic("orders").config.retention_bytes == 0  # settings are not brought back
    assert_sound(orders)


def test_a_clock_that_fails_after_the_commit_is_no_error_of_a_restore(orders, monkeypatch):
    before, wanted = contents(orders, "orders"), version(orders)
    append_one_by_one(orders, "orders", records(20, first=40))
    play = Play()

    def failed(storage: Storage) -> int:
        raise StorageError("The file system failed", path=storage.location("_clock"))

    play.commits(lambda go: (go(), monkeypatch.setattr(Storage, "now_ms", failed))[0])
    restored = restore(opened(orders.uri, open_delta_log=play), topics=["orders"], version=wanted)
    assert bounds(restored) == {0: (0, 60)} and restored.partitions[0]["leaving"] == [40, 60]
    monkeypatch.undo()
    assert contents(orders, "orders") == before


def test_rolling_is_undone_and_can_be_done_again(orders):
    before, wanted = contents(orders, "orders"), version(orders)
    roll(orders, now_ms=GOLDEN_MS)
    rolled = [segment.base_offset for segment in live(orders, "orders")]
    restore(orders, topics=["orders"], version=wanted)
    assert [segment.state for segment in live(orders, "orders")] == ["chunk"] * 40
    assert contents(orders, "orders") == before
    assert_sound(orders)
    roll(orders, now_ms=GOLDEN_MS)
    assert [segment.base_offset for segment in live(orders, "orders")] == rolled
    assert contents(orders, "orders") == before
    assert_sound(orders)


@pytest.mark.rule("W17")
def test_later_records_go_and_their_offsets_are_not_given_out_again(orders):
    before, wanted = contents(orders, "orders"), version(orders)
    append_one_by_one(orders, "orders", records(20, first=40))
    assert bounds(restore(orders, topics=["orders"], version=wanted)) == {0: (0, 60)}
    assert contents(orders, "orders") == before
    assert orders.topic("orders").append(records(1, first=99)) == {0: (60, 60)}
    assert [one["offset"] for one in contents(orders, "orders")] == [*range(40), 60]
    assert_sound(orders)
    roll(orders, now_ms=later(orders))
    assert [one["offset"] for one in contents(orders, "orders")] == [*range(40), 60]
    assert_sound(orders)


def test_the_empty_batch_in_their_place_can_be_compacted_and_exported(orders, tmp_path):
    wanted = version(orders)
    append_one_by_one(orders, "orders", records(20, first=40))
    restore(orders, topics=["orders"], version=wanted)
    orders.export_kafka(str(tmp_path / "kafka"))
    broker = LogDir.open(str(tmp_path / "kafka"))
    assert broker.topic("orders").offsets() == {0: (0, 60)}
    assert contents(broker, "orders") == contents(orders, "orders")
    append_one_by_one(orders, "orders", records(40, first=60))
    assert_sound(orders)  # no offset is missing
    orders.topic("orders").alter({"cleanup.policy": "compact"})
    before = {one["key"]: one["value"] for one in contents(orders, "orders")}
    roll(orders, now_ms=later(orders))
    compact(orders, now_ms=GOLDEN_MS, force=True)
    assert {one["key"]: one["value"] for one in contents(orders, "orders")} == before
    assert orders.topic("orders").offsets() == {0: (0, 100)}
    assert_sound(orders)


def test_a_compacted_topic_is_cleaned_again(orders):
    orders.topic("orders").alter({"cleanup.policy": "compact"})
    roll(orders, now_ms=later(orders))
    before, wanted = contents(orders, "orders"), version(orders)
    compact(orders, now_ms=GOLDEN_MS)
    cleaned = contents(orders, "orders")
    assert len(cleaned) < len(before)
    restore(orders, topics=["orders"], version=wanted)
    assert contents(orders, "orders") == before
    assert orders.topic("orders").snapshot.partition(0).first_dirty_offset == 0
    compact(orders, now_ms=GOLDEN_MS)
    assert contents(orders, "orders") == cleaned
    assert_sound(orders)


def test_a_deleted_topic_is_there_again(orders):
    before, wanted = contents(orders, "orders"), version(orders)
    orders.delete_topic("orders")
    assert orders.topics() == []
    restore(orders, topics=["orders"], version=wanted)
    assert orders.topics() == ["orders"]
    assert contents(orders, "orders") == before
    assert_sound(orders)


def test_an_empty_version_and_a_partition_that_came_later_are_empty(log):
    topic_with(log, "orders", {})
    empty = version(log)
    log.topic("orders").alter(partitions=2)
    append_one_by_one(log, "orders", records(5), partition=0)
    append_one_by_one(log, "orders", records(7), partition=1)
    assert bounds(restore(log, topics=["orders"], version=empty)) == {0: (5, 5), 1: (7, 7)}
    assert contents(log, "orders") == []
    assert_sound(log)


def test_what_vacuum_has_taken_cannot_be_restored(orders):
    wanted = version(orders)
    with store_clock(GOLDEN_MS):
        roll(orders, now_ms=GOLDEN_MS)
    before = contents(orders, "orders")
    vacuum(orders, now_ms=GOLDEN_MS + DELAY_MS + 1)
    with pytest.raises(LogDirError, match="vacuum has deleted 33 of its files"):
        restore(orders, topics=["orders"], version=wanted)
    assert contents(orders, "orders") == before


def test_what_vacuum_is_about_to_take_cannot_be_restored(orders):
    """A restore between the mark and the deletion would bring back rows whose files are about to go."""
    wanted = version(orders)
    with store_clock(GOLDEN_MS):
        roll(orders, now_ms=GOLDEN_MS)
    tried = []

    def restore_first(*_):
        with pytest.raises(LogDirError, match="vacuum has deleted"):
            restore(orders, topics=["orders"], version=wanted)
        tried.append(True)

    vacuum(opened(orders, PlayedFiles(delete=restore_first)), now_ms=GOLDEN_MS + DELAY_MS + 1)
    assert tried


def test_what_was_restored_is_not_vacuums_any_more(orders):
    before, wanted = contents(orders, "orders"), version(orders)
    roll(orders, now_ms=GOLDEN_MS)
    restore(orders, topics=["orders"], version=wanted)
    vacuum(orders, now_ms=orders.storage.now_ms() + DELAY_MS + 60_000)
    assert contents(orders, "orders") == before
    assert_sound(orders)


def test_wrong_versions_and_topics_are_named(orders):
    with pytest.raises(InvalidOptionError, match="99"):
        restore(orders, topics=["orders"], version=99)
    with pytest.raises(UnknownTopicError, match="orers"):
        restore(orders, topics=["orers"], version=0)
    old = version(orders)
    orders.delete_topic("orders")
    topic_with(orders, "orders", {})
    with pytest.raises(LogDirError, match="another topic of the name"):
        restore(orders, topics=["orders"], version=old)
    with pytest.raises(LogDirError, match="Import it"):
        restore(LogDir.open(str(golden_dir("broker-data"))), topics=["orders"], version=0)


REFUSED = "below the last"


def send(log: LogDir, app_id: str, *versions: int) -> list[bool | str]:
    """Sends transactions of ten records each: which of them added any, and which were refused."""

    def sent(number: int) -> bool | str:
        try:
            return bool(log.topic("orders").append(records(10, first=100 * number), (app_id, number)))
        except TransactionOrderError:
            return REFUSED

    return [sent(number) for number in versions]


def values(log: LogDir) -> list[int]:
    return [int(one["value"].split()[0]) for one in contents(log, "orders")]


@pytest.fixture
def sent(log) -> tuple[LogDir, int]:
    """A topic that two applications sent to, and the version that holds the first transaction of the one."""
    topic_with(log, "orders", {})
    send(log, "loader", 1)
    wanted = version(log)
    send(log, "loader", 2, 5)
    send(log, "other", 0)
    return log, wanted


TAKEN_BACK = [
    {"app_id": "loader", "versions": (2, 5), "kept_version": 1},
    {"app_id": "other", "versions": (0,), "kept_version": None},
]


def test_transactions_that_a_restore_takes_back_are_named_and_stay_remembered(sent):
    log, wanted = sent
    restored = restore(log, topics=["orders"], version=wanted)
    assert bounds(restored) == {0: (0, 40)} and restored.details["transactions"] == TAKEN_BACK
    assert send(log, "loader", 1, 2, 5, 6) == [REFUSED, REFUSED, False, True]
    assert send(log, "other", 0) == [False]


@pytest.mark.parametrize("asked", ["at once", "by a second restore"])
def test_transactions_that_are_forgotten_can_be_sent_again_once(sent, asked):
    log, wanted = sent
    if asked == "by a second restore":
        restore(log, topics=["orders"], version=wanted)
    assert (
        restore(log, topics=["orders"], version=wanted, forget_transactions=True).details["transactions"] == TAKEN_BACK
    )
    assert send(log, "loader", 1, 2, 5, 5) == [False, True, True, False]
    assert send(log, "other", 0, 0) == [True, False]
    assert values(log) == [first + number for first in (100, 200, 500, 0) for number in range(10)]
    assert_sound(log)


def test_what_is_forgotten_stays_so_after_a_checkpoint(sent):
    log, wanted = sent
    restore(log, topics=["orders"], version=wanted, forget_transactions=True)
    log.topic("orders").manifest.merge_files()
    assert send(log, "loader", 1, 2) == [False, True]
    assert send(log, "other", 0) == [True]


def test_records_that_come_back_bring_their_transactions_back(sent):
    log, wanted = sent
    latest = version(log)
    restore(log, topics=["orders"], version=wanted, forget_transactions=True)
    assert restore(log, topics=["orders"], version=latest).details["transactions"] == []
    assert send(log, "loader", 2, 5) == [REFUSED, False]
    assert send(log, "other", 0) == [False]
    assert len(contents(log, "orders")) == 40


def test_idempotency_keys_that_a_restore_takes_back_stay_remembered_until_they_are_forgotten(log):
    topic_with(log, "orders", {})

    def send_once(*days: int) -> list[bool]:
        return [bool(log.topic("orders").append(records(10, first=100 * day), once=f"day {day}")) for day in days]

    assert send_once(2) == [True]
    wanted = version(log)
    assert send_once(3, 1) == [True, True]
    latest = version(log)
    assert restore(log, topics=["orders"], version=wanted).details["once"] == ["day 1", "day 3"]
    assert send_once(3, 2, 1) == [False, False, False]
    forgetting = restore(log, topics=["orders"], version=wanted, forget_transactions=True)
    assert (forgetting.details["once"], forgetting.details["transactions"]) == (["day 1", "day 3"], [])
    assert send_once(3, 2, 3) == [True, False, False]
    assert values(log) == [first + number for first in (200, 300) for number in range(10)]
    assert restore(log, topics=["orders"], version=latest).details["once"] == ["day 3"]
    assert send_once(1, 2, 3) == [False, False, False]
    assert_sound(log)


def test_what_was_forgotten_before_is_not_named_again(sent):
    log, wanted = sent
    restore(log, topics=["orders"], version=wanted, forget_transactions=True)
    send(log, "loader", 2)
    assert restore(log, topics=["orders"], version=wanted).details["transactions"] == [
        {"app_id": "loader", "versions": (2,), "kept_version": 1}
    ]
    assert send(log, "loader", 2, 5) == [False, True]


def test_a_version_whose_transactions_vacuum_takes_meanwhile_is_not_restored(sent, monkeypatch):
    log, wanted = sent
    manifest, check = log.topic("orders").manifest, RESTORE._check_files

    def vacuumed(*arguments: object) -> None:
        check(*arguments)
        there = {file.path for file in manifest.log.open().files}
        gone = [file.path for file in manifest.log.open(wanted).files if file.path not in there]
        log.storage.delete(f"{manifest.log.directory}/{path}" for path in gone if path.startswith("kind=transaction"))
        forget_rows()

    monkeypatch.setattr(RESTORE, "_check_files", vacuumed)
    before = version(log)
    with pytest.raises(InvalidOptionError, match=r"rows of this version.*not there any more.*Vacuum has taken them"):
        restore(log, topics=["orders"], version=wanted)
    assert version(log) == before


def test_no_restore_brings_erased_records_back_unless_it_is_told_to(orders):
    wanted = version(orders)
    before = contents(orders, "orders")
    erase(orders, topics=["orders"], keys=[b"1", b"2", b"no key of a record"])
    last = version(orders)
    left = contents(orders, "orders")
    append_one_by_one(orders, "orders", records(3, first=40))
    with pytest.raises(
        ErasedRecordsError, match=rf"version {last} of 20\d\d-.*Z \(3 keys\).*including-erased"
    ) as found:
        restore(orders, topics=["orders"], version=wanted)
    assert "no key" not in str(found.value)
    with pytest.raises(ErasedRecordsError):
        restore(orders, topics=["orders"], version=wanted, dry_run=True)

    restore(orders, topics=["orders"], version=last)  # of after the erasure
    assert contents(orders, "orders") == left
    restored = restore(orders, topics=["orders"], version=wanted, including_erased=True)
    assert [(one["version"], one["keys"]) for one in restored.details["erasures"]] == [(last, 3)]
    assert contents(orders, "orders") == before
    assert_sound(orders)


def test_an_erasure_is_known_after_vacuum_and_after_the_topic_was_deleted(orders):
    wanted = version(orders)
    erase(orders, topics=["orders"], keys=[b"1"])
    for number in range(25):  # checkpoints
        append_one_by_one(orders, "orders", records(1, first=40 + number))
    vacuum(orders)
    orders.delete_topic("orders")
    with pytest.raises(ErasedRecordsError):
        restore(orders, topics=["orders"], version=wanted)


def test_an_erasure_that_its_program_did_not_note_is_told_by_its_commit(orders):
    wanted = version(orders)
    erase(orders, topics=["orders"], keys=[b"1"])
    last = version(orders)
    manifest = orders.topic("orders").manifest
    manifest.commit(lambda at: Change("alter", topic=dataclasses.replace(at.topic_row, states={})))
    with pytest.raises(ErasedRecordsError, match=rf"version {last} of .*Z \(unknown keys\)"):
        restore(orders, topics=["orders"], version=wanted)


def test_a_restore_that_brings_no_file_back_may_go_beyond_an_erasure(orders):
    wanted = version(orders)
    before = contents(orders, "orders")
    append_one_by_one(
        orders, "orders", pa.table({"key": pa.array([b"ada"], pa.binary()), "value": pa.array([b"1"], pa.binary())})
    )
    erase(orders, topics=["orders"], keys=[b"ada"])
    restore(orders, topics=["orders"], version=wanted)
    assert contents(orders, "orders") == before


def test_a_topic_remembers_that_it_erased_however_often_it_did(orders, limits):
    limits(MOST_ERASURES=2)
    wanted = version(orders)
    for number in range(5):
        erase(orders, topics=["orders"], keys=[b"%d" % number])
    restored = restore(orders, topics=["orders"], version=wanted, including_erased=True, dry_run=True)
    assert [(one["version"], one["keys"]) for one in restored.details["erasures"]] == [(wanted + 4, 4), (wanted + 5, 1)]
