"""flush.messages and flush.ms: what an append, or a job, has forced to disk when it returns."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError, StorageError, UnknownOutcomeError
from spark_segments.log.appending.append import append_target, commit_chunks
from spark_segments.maintenance import mirror, roll
from spark_segments.storage import Storage
from verification.world.kafka_side import KafkaSide
from verification.world.opened import DeltaLog, LocalFiles, opened
from verification.world.stores.played_log import (
    CommitNote,
    FileChange,
    Play,
    VersionTakenError,
    committed_but_reply_lost,
)
from verification.world.topics import Appender, rows

FORCED = {"flush.messages": "1"}
MONTH_MS = 30 * 24 * 3_600_000


class WatchedDisk(LocalFiles):
    """Local files that note what is forced. `fails`: the call, counted from 1, at which the disk fails."""

    def __init__(self) -> None:
        super().__init__()
        self.forced: list[str] = []
        self.calls = 0
        self.fails = 0

    def force(self, paths: Iterable[str], root: str) -> None:
        self.calls += 1
        if self.calls == self.fails:
            raise OSError(errno.EIO, "Input/output error")
        paths = list(paths)
        super().force(paths, root)
        self.forced += [os.path.relpath(path, root) for path in paths]


def open_watched(root: Path, play: Play | None = None) -> tuple[LogDir, WatchedDisk]:
    disk = WatchedDisk()
    storage = Storage(str(root), filesystem=disk)
    return (opened(storage) if play is None else opened(storage, open_delta_log=play)), disk


@pytest.fixture
def root(tmp_path) -> Path:
    LogDir.create(str(tmp_path / "log"))
    return tmp_path / "log"


def files_of(root: Path) -> set[str]:
    """All files but those that no reader needs."""
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    return {path for path in found if not path.startswith("_recovery/")}


@pytest.mark.parametrize("config", [{"flush.messages": "1"}, {"flush.ms": "1000"}], ids=str)
def test_an_append_has_forced_every_file_when_it_returns(root, config):
    log, disk = open_watched(root)
    log.create_topic("orders", 1, config)
    log.topic("orders").append(rows("a"))
    assert files_of(root) - {"_manifest/log-directory.json"} <= set(disk.forced)


def test_a_task_has_forced_its_chunks_when_it_hands_them_over(root):
    """Its machine is another than that of the commit, which cannot force what waits in the memory of the first."""
    log, disk = open_watched(root)
    log.create_topic("orders", 1, FORCED)
    target = append_target(log, "orders")
    with Appender(log.storage, lambda _: target, topic="orders") as appender:
        appender.write(pa.record_batch({"value": ["a"]}))
        appender.close()
        chunk = {path for path in files_of(root) if path.startswith("orders-0/")}
        assert chunk and chunk <= set(disk.forced)


def test_chunks_that_were_written_before_the_setting_are_forced_by_their_commit(root):
    log, disk = open_watched(root)
    log.create_topic("orders", 1)
    target = append_target(log, "orders")
    with Appender(log.storage, lambda _: target, topic="orders") as appender:
        appender.write(pa.record_batch({"value": ["a"]}))
        written = appender.close()
    log.topic("orders").alter(FORCED)
    commit_chunks(log, "orders", written)
    assert {path for path in files_of(root) if path.startswith("orders-0/")} <= set(disk.forced)


def test_without_the_setting_nothing_is_forced(root):
    log, disk = open_watched(root)
    log.create_topic("orders", 1)
    log.topic("orders").append(rows("a"))
    roll(log, now_ms=log.storage.now_ms() + MONTH_MS)
    assert disk.calls == 0


def test_a_file_of_defaults_sets_it_for_its_processes(root):
    disk = WatchedDisk()
    log = opened(root, disk, defaults={"flush.messages": "1"})
    log.create_topic("orders", 1)
    log.topic("orders").append(rows("a"))
    assert [path for path in disk.forced if path.endswith("00000000000000000001.json")]


def test_what_a_job_writes_is_forced_before_the_log_consists_of_it(root):
    log, disk = open_watched(root)
    log.create_topic("orders", 1, FORCED)
    for value in "abc":
        log.topic("orders").append(rows(value))
    before = files_of(root)
    roll(log, now_ms=log.storage.now_ms() + MONTH_MS)
    written = files_of(root) - before
    assert any(path.endswith(".log") for path in written)
    assert written <= set(disk.forced)


def test_a_checkpoint_of_a_forced_topic_is_forced_before_its_pointer(root, limits):
    limits(CHECKPOINT_VERSIONS=3)
    log, disk = open_watched(root)
    log.create_topic("orders", 1, FORCED)
    for value in "abcdefg":
        log.topic("orders").append(rows(value))
    names = [os.path.basename(path) for path in disk.forced if "checkpoint" in path]
    assert names[:2] == ["00000000000000000003.checkpoint.parquet", "_last_checkpoint"]
    assert sum(batch.num_rows for batch in LogDir.open(str(root)).topic("orders").scan().batches()) == 7


@pytest.mark.rule("W7")
def test_a_version_that_another_process_committed_is_forced_before_a_commit_on_top_of_it(root):
    LogDir.open(str(root)).create_topic("orders", 1, FORCED)
    LogDir.open(str(root)).topic("orders").append(rows("a"))
    log, disk = open_watched(root)
    log.topic("orders").append(rows("b"))
    commits = [os.path.basename(path) for path in disk.forced if "_delta_log" in path]
    assert commits == [f"{version:020d}.json" for version in (0, 1, 2)]


def test_a_repeated_transaction_is_on_disk_when_its_repeat_is_answered(root):
    LogDir.open(str(root)).create_topic("orders", 1, FORCED)
    LogDir.open(str(root)).topic("orders").append(rows("a"), txn=("app", 1))
    log, disk = open_watched(root)
    assert log.topic("orders").append(rows("a"), txn=("app", 1)) == {}
    assert [path for path in disk.forced if path.endswith("00000000000000000001.json")]


def test_a_commit_whose_reply_is_lost_is_on_disk_when_it_is_found(root):
    play = Play()
    log, _ = open_watched(root, play)
    log.create_topic("orders", 1, FORCED)
    play.commits(committed_but_reply_lost)
    assert log.topic("orders").append(rows("a")) == {0: (0, 0)}
    assert play.calls["force"] == 2  # before the commit, and once it is found


def test_the_alter_that_sets_it_is_forced_with_all_before_it(root):
    log, disk = open_watched(root)
    log.create_topic("orders", 1)
    log.topic("orders").append(rows("a"))
    assert not disk.forced
    log.topic("orders").alter(FORCED)
    assert {f"_manifest/orders/_delta_log/{version:020d}.json" for version in (0, 1, 2)} <= set(disk.forced)


def test_a_disk_that_fails_before_the_commit_adds_nothing(root):
    log, disk = open_watched(root)
    log.create_topic("orders", 1, FORCED)
    for call in (1, 2, 3, 4):  # the chunk, twice; the rows of the base, the new rows
        disk.calls, disk.fails = 0, call
        with pytest.raises(StorageError, match="disk failed"):
            log.topic("orders").append(rows("a"))
        assert log.topic("orders").offsets() == {0: (0, 0)}


def test_a_disk_that_fails_after_the_commit_is_no_success(root):
    log, disk = open_watched(root)
    log.create_topic("orders", 1, FORCED)
    disk.calls, disk.fails = 0, 6
    with pytest.raises(UnknownOutcomeError, match="nobody knows whether it has reached the disk"):
        log.topic("orders").append(rows("a"))
    assert log.topic("orders").offsets() == {0: (0, 1)}


def test_forced_and_unforced_commits_swap_on_the_same_versions(root):
    log, _ = open_watched(root)
    log.create_topic("orders", 1, FORCED)
    topic = log.topic("orders").manifest.log
    base, empty = topic.open(), FileChange([], [])
    note = CommitNote("id", 0, "append")
    plain = DeltaLog(log.storage, "orders")
    plain.durable(True).commit_on(base, empty, note, {})
    for delta in (plain, plain.durable(True)):
        with pytest.raises(VersionTakenError):
            delta.commit_on(base, empty, note, {})
    assert topic.open().version == 1
    assert sorted(path.name for path in (root / "_manifest/orders/_delta_log").iterdir()) == [
        f"{version:020d}.json" for version in (0, 1)
    ]


@pytest.mark.parametrize("empty", [3, 2])
def test_an_empty_commit_file_is_no_commit_without_actions(root, empty):
    log = LogDir.open(str(root))
    log.create_topic("orders", 1)
    for value in "abc":
        log.topic("orders").append(rows(value))
    (root / f"_manifest/orders/_delta_log/{empty:020d}.json").write_bytes(b"")
    for use in (lambda: log.topic("orders").offsets(), lambda: log.topic("orders").append(rows("d"))):
        with pytest.raises(
            LogDirError, match=f"{empty:020d}.json: expected the actions of a commit, found 0 bytes"
        ) as raised:
            use()
        assert "segments verify --repair" in raised.value.hint


def test_an_import_has_forced_every_file_when_it_returns(root, tmp_path):
    kafka = KafkaSide(tmp_path / "kafka")
    kafka.append([(b"a", b"1")])
    log, disk = open_watched(root)
    log.import_kafka(kafka.write(), config=FORCED)
    assert files_of(root) - {"_manifest/log-directory.json"} <= set(disk.forced)


def test_a_mirror_has_forced_every_file_when_it_returns(root, tmp_path):
    log, disk = open_watched(root)
    leader = LogDir.create(str(tmp_path / "leader"))
    leader.create_topic("orders", 1, FORCED)
    leader.topic("orders").append(rows("a"))
    assert not mirror(log, leader=leader).failed
    assert files_of(root) - {"_manifest/log-directory.json"} <= set(disk.forced)


def test_a_disk_that_fails_once_a_commit_is_found_is_no_success(root):
    play = Play()
    log, disk = open_watched(root, play)
    log.create_topic("orders", 1, FORCED)

    def made_but_reply_lost_and_disk_failed(go) -> None:
        disk.fails = disk.calls + 2  # the commit forces itself first
        committed_but_reply_lost(go)

    play.commits(made_but_reply_lost_and_disk_failed)
    with pytest.raises(UnknownOutcomeError, match="nobody knows whether it has reached the disk"):
        log.topic("orders").append(rows("a"))
