"""What Delta's log promises: as delta-rs reads it, and as the reader does that simulations stand on."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import create_table_with_add_actions

from spark_segments.errors import TopicExistsError
from spark_segments.log.manifest.files.delta.delta_log import FENCED
from spark_segments.log.manifest.files.row_files import RowFile, RowFiles
from spark_segments.log.manifest.schemas import TABLE_SCHEMA
from spark_segments.maintenance import compact, retain, roll, vacuum
from spark_segments.storage import Storage
from spark_segments.storage.delta import commit_info
from verification.world.manifest_rows import TopicRow, topic_table, write_rows
from verification.world.opened import DeltaLog, OpenDeltaLog, opened
from verification.world.stores.memory_store import replayed
from verification.world.stores.played_log import (
    CommitFailedError,
    CommitNote,
    FileChange,
    VersionTakenError,
    no_table,
    open_table,
)
from verification.world.stores.s3_server import BUCKET
from verification.world.stores.store_proxy import Request, store_proxy
from verification.world.topics import contents

NOTE = CommitNote("id-0", 0, "create")
DAY_MS = 86_400_000


@pytest.fixture(params=[open_table, replayed], ids=["delta-rs", "replayed"])
def open_delta_log(request) -> OpenDeltaLog:
    return partial(DeltaLog, open_table=request.param)


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(str(tmp_path))


@pytest.fixture
def delta(storage, open_delta_log) -> DeltaLog:
    return open_delta_log(storage, "orders")


@pytest.fixture
def file(storage) -> RowFile:
    return write_rows(RowFiles(storage, "_manifest/orders"), "topic", topic_table(TopicRow("id", {})))


def test_a_table_that_is_not_there_is_a_missing_file(delta):
    for version in (None, 0):
        with pytest.raises(FileNotFoundError):
            delta.open(version)
    assert delta.log_files().commits == {}


def test_a_table_is_made_once(delta, file):
    delta.commit_on(no_table(), FileChange([file], []), NOTE, {})
    with pytest.raises(CommitFailedError):
        delta.commit_on(no_table(), FileChange([file], []), NOTE, {})
    assert delta.open().version == 0
    assert [(one.path, one.kind, one.rows) for one in delta.open().files] == [(file.path, "topic", 1)]


def test_a_version_is_not_followed_whose_commit_does_not_tell_it_from_that_of_another_table(delta, file):
    """The names of files are given once, so a commit tells by what it adds. One that adds nothing is of any table."""
    delta.commit_on(no_table(), FileChange([file], []), NOTE, {})
    opened = delta.open()
    assert [one.version for one in delta.following(opened)] == [0]
    delta.commit_on(opened, FileChange([], [file]), NOTE, {})
    assert [one.version for one in delta.following(opened)] == [0, 1]
    with pytest.raises(FileNotFoundError):
        delta.following(delta.open())


def test_of_two_commits_on_a_version_the_first_counts(delta, file):
    delta.commit_on(no_table(), FileChange([file], []), NOTE, {})
    base = delta.open()
    delta.commit_on(base, FileChange([], []), CommitNote("id-1", 2, "first"), {"app": 7})
    with pytest.raises(VersionTakenError):
        delta.commit_on(base, FileChange([], [file]), CommitNote("id-2", 0, "second"), {"app": 8})
    latest = delta.open()
    assert latest.version == 1
    assert [one.path for one in latest.files] == [file.path]
    info = commit_info(delta.actions(1))
    assert (info["commitId"], int(info["attempt"]), info["change"]) == ("id-1", 2, "first")
    with pytest.raises(FileNotFoundError):
        delta.actions(2)


def test_an_earlier_version_stays_as_it_was_until_its_files_are_deleted(delta, file):
    delta.commit_on(no_table(), FileChange([file], []), NOTE, {})
    delta.commit_on(delta.open(), FileChange([], [file]), CommitNote("id-1", 0, "drop"), {})
    assert (delta.open(1).files, [one.path for one in delta.open(0).files]) == ([], [file.path])
    delta.checkpoint()
    found = delta.log_files()
    assert (sorted(found.commits), sorted(found.checkpoints)) == ([0, 1], [1])
    delta.delete([found.commits[0]])
    assert delta.open().version == 1
    with pytest.raises(FileNotFoundError):
        delta.actions(0)


@pytest.mark.cases(1)
def test_a_log_directory_lives_on_any_of_them(storage, open_delta_log):
    log = opened(storage, open_delta_log=open_delta_log)
    log.create_topic("orders", config={"cleanup.policy": "compact", "segment.bytes": "2000"})
    with pytest.raises(TopicExistsError):
        log.create_topic("orders")
    for number in range(120):  # checkpoints and merges of the manifest come on the way
        log.topic("orders").append(pa.table({"key": [b"a", b"b"], "value": [b"%d" % number] * 2}), txn=("app", number))
    assert log.topic("orders").append(pa.table({"key": [b"a"], "value": [b"again"]}), txn=("app", 119)) == {}
    now_ms = storage.now_ms() + 8 * DAY_MS
    for job in (roll, retain, compact, vacuum):
        assert not job(log, now_ms=now_ms).failed
    rows = contents(log, "orders")
    assert {row["key"]: row["value"] for row in rows} == {b"a": b"119", b"b": b"119"}
    assert len(rows) < 240
    assert log.topic("orders").offsets() == {0: (0, 240)}


@pytest.fixture
def local(storage, file) -> DeltaLog:
    """A table on a local disk, at version 0."""
    log = DeltaLog(storage, "orders")
    log.commit_on(no_table(), FileChange([file], []), NOTE, {})
    return log


def add_file(storage: Storage) -> RowFile:
    topic = topic_table(TopicRow("id", {"retention.ms": "7"}))
    return write_rows(RowFiles(storage, "_manifest/orders"), "topic", topic)


def test_a_committed_version_is_what_is_opened_and_what_is_followed(storage, delta, file):
    first = delta.commit_on(no_table(), FileChange([file], []), NOTE, {"other": 1})
    added = add_file(storage)
    made = delta.commit_on(first, FileChange([added], [file]), CommitNote("id", 3, "alter"), {"app": 7})
    for table in (made, delta.open(), delta.following(first)[-1]):
        assert (table.version, table.files) == (1, [added])
        assert (table.protocol["minReaderVersion"], table.protocol["minWriterVersion"]) == (1, 2)
    assert [action["txn"] for action in delta.actions(1) if "txn" in action] == [{"appId": "app", "version": 7}]
    assert [one.version for one in delta.following(made)] == [1]


def test_a_table_is_the_one_that_delta_rs_would_make(storage, delta, file, tmp_path):
    """The protocol, the columns and the properties of the table."""
    delta.commit_on(no_table(), FileChange([file], []), NOTE, {})
    there = tmp_path / "by delta-rs"
    create_table_with_add_actions(
        str(there), Schema.from_arrow(TABLE_SCHEMA), [], mode="error", partition_by=["kind"], name="orders"
    )
    mine, theirs = DeltaTable(str(tmp_path / "_manifest/orders")), DeltaTable(str(there))
    assert mine.schema() == theirs.schema() and mine.protocol() == theirs.protocol()
    assert mine.metadata().partition_columns == theirs.metadata().partition_columns
    assert mine.metadata().name == theirs.metadata().name


def test_the_loser_of_a_commit_leaves_nothing(storage, local):
    made = local.commit_on(local.open(), FileChange([], []), CommitNote("id-1", 0, "first"), {})
    made = local.commit_on(made, FileChange([], []), CommitNote("id-2", 0, "second"), {})
    assert (made.version, made.files) == (2, local.open().files)
    with pytest.raises(VersionTakenError):
        local.commit_on(local.open(1), FileChange([], []), CommitNote("id-3", 0, "third"), {})
    names = [info.path for info in storage.list("_manifest/orders/_delta_log")]
    assert len(names) == 3


def test_a_version_that_was_cut_from_the_log_is_not_made_again(storage, local):
    stale = local.open()
    for number in range(3):
        local.commit_on(local.open(), FileChange([], []), CommitNote(f"id-{number}", 0, "first"), {})
    local.checkpoint()
    commits = local.log_files().commits
    local.delete([commits[0], commits[1]])
    with pytest.raises(CommitFailedError):
        local.commit_on(stale, FileChange([], []), CommitNote("late", 0, "late"), {})
    assert local.open().version == 3 and sorted(local.log_files().commits) == [2, 3]


def test_a_version_of_another_table_is_not_followed(storage, local, file):
    """The log directory was deleted and made anew while a process had it open."""
    stale = local.commit_on(local.open(), FileChange([], []), CommitNote("id-1", 0, "first"), {})
    local.delete(local.log_files().commits.values())
    other = DeltaLog(storage, "orders")
    at = other.commit_on(no_table(), FileChange([file], []), CommitNote("other", 0, "create"), {})
    for number in range(2):
        at = other.commit_on(at, FileChange([], []), CommitNote(f"other-{number}", 0, "append"), {})
        with pytest.raises(FileNotFoundError):
            local.following(stale)


def test_a_commit_that_comes_just_before_a_fence_on_an_object_store_is_not_overwritten(s3_options, tmp_path):
    """A writer had opened the table before it was lost. Its commit lands after a rebuild has listed the log."""
    uri = f"s3://{BUCKET}/{tmp_path.name}"
    storage = Storage(uri, s3_options)
    writer = DeltaLog(storage, "orders")
    file = write_rows(RowFiles(storage, "_manifest/orders"), "topic", topic_table(TopicRow("id", {})))
    writer.commit_on(no_table(), FileChange([file], []), NOTE, {})
    base = writer.open()

    def play(request: Request) -> None:
        if request.operation == "PUT" and request.key.endswith(f"{1:020d}.json") and not late:
            late.append(request)
            writer.commit_on(base, FileChange([], []), CommitNote("late", 0, "append"), {})

    late: list[Request] = []
    with store_proxy(s3_options) as proxy:
        rebuild = DeltaLog(Storage(uri, proxy.options), "orders")
        proxy.play(play)
        with pytest.raises(VersionTakenError):
            rebuild.make_anew(FENCED + 2, 0, FileChange([file], []), CommitNote("rebuild", 0, "rebuild"), {})
    assert late
    assert commit_info(writer.actions(1))["commitId"] == "late"
    with pytest.raises(FileNotFoundError):
        writer.actions(FENCED + 2)
