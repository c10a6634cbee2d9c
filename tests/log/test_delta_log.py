"""What every `DeltaLog` promises: the real one by delta-rs, and the one in memory that simulations stand on."""

from __future__ import annotations

import errno
import os

import pyarrow as pa
import pytest
from deltalake import TableFeatures

from spark_segments import LogDir
from spark_segments.errors import TopicExistsError
from spark_segments.log.manifest.delta.delta_log import (
    FENCED,
    CommitFailedError,
    CommitNote,
    DeltaLog,
    OpenDeltaLog,
    VersionTakenError,
    commit_info,
)
from spark_segments.log.manifest.delta.delta_rs import DeltaRsLog
from spark_segments.log.manifest.row_files import FileChange, RowFile, RowFiles
from spark_segments.log.manifest.topic_row import Topic, topic_table
from spark_segments.maintenance import compact, retain, roll, vacuum
from spark_segments.storage import Storage
from tests.log.memory_log import MemoryLogs
from tests.s3_server import BUCKET
from tests.store_proxy import Request, store_proxy

NOTE = CommitNote("id-0", 0, "create")
DAY_MS = 86_400_000


@pytest.fixture(params=[DeltaRsLog, MemoryLogs], ids=["delta-rs", "memory"])
def open_delta_log(request) -> OpenDeltaLog:
    return request.param if request.param is DeltaRsLog else request.param()


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(str(tmp_path))


@pytest.fixture
def delta(storage, open_delta_log) -> DeltaLog:
    return open_delta_log(storage, "orders")


@pytest.fixture
def file(storage) -> RowFile:
    return RowFiles(storage, "_manifest/orders").write_all("topic", topic_table(Topic("id", {})), 2)[0]


def test_a_table_that_is_not_there_is_a_missing_file(delta):
    for version in (None, 0):
        with pytest.raises(FileNotFoundError):
            delta.open(version)
    assert delta.log_files().commits == {}


def test_a_table_is_made_once(delta, file):
    delta.create(FileChange([file], [], 2), NOTE)
    with pytest.raises(CommitFailedError):
        delta.create(FileChange([file], [], 2), NOTE)
    assert delta.open().version == 0
    assert [(one.path, one.kind, one.rows) for one in delta.open().files] == [(file.path, "topic", 1)]


def test_of_two_commits_on_a_version_the_first_counts(delta, file):
    delta.create(FileChange([file], [], 2), NOTE)
    base = delta.open()
    delta.commit_on(base, FileChange([], [], 2), CommitNote("id-1", 2, "first"), {"app": 7})
    with pytest.raises(VersionTakenError):
        delta.commit_on(base, FileChange([], [file], 2), CommitNote("id-2", 0, "second"), {"app": 8})
    latest = delta.open()
    assert (latest.version, latest.last_transaction("app"), latest.last_transaction("other")) == (1, 7, None)
    assert [one.path for one in latest.files] == [file.path]
    info = commit_info(delta.actions(1))
    assert (info["commitId"], int(info["attempt"]), info["change"]) == ("id-1", 2, "first")
    with pytest.raises(FileNotFoundError):
        delta.actions(2)


def test_an_earlier_version_stays_as_it_was_until_its_files_are_deleted(delta, file):
    delta.create(FileChange([file], [], 2), NOTE)
    delta.commit_on(delta.open(), FileChange([], [file], 2), CommitNote("id-1", 0, "drop"), {})
    assert (delta.open(1).files, [one.path for one in delta.open(0).files]) == ([], [file.path])
    delta.checkpoint()
    found = delta.log_files()
    assert (sorted(found.commits), sorted(found.checkpoints)) == ([0, 1], [1])
    delta.delete([found.commits[0]])
    assert delta.open().version == 1
    with pytest.raises(FileNotFoundError):
        delta.actions(0)


@pytest.mark.slow
def test_a_log_directory_lives_on_any_of_them(storage, open_delta_log):
    log = LogDir(storage, open_delta_log=open_delta_log)
    log.create_topic("orders", config={"cleanup.policy": "compact", "segment.bytes": "2000"})
    with pytest.raises(TopicExistsError):
        log.create_topic("orders")
    for number in range(120):  # checkpoints and merges of the manifest come on the way
        log.append("orders", pa.table({"key": [b"a", b"b"], "value": [b"%d" % number] * 2}), txn=("app", number))
    assert log.append("orders", pa.table({"key": [b"a"], "value": [b"again"]}), txn=("app", 119)) == {}
    now_ms = storage.now_ms() + 8 * DAY_MS
    for job in (roll, retain, compact, vacuum):
        assert not job(log, now_ms=now_ms).failed
    rows = [row for batch in log.read("orders") for row in batch.to_pylist()]
    assert {row["key"]: row["value"] for row in rows} == {b"a": b"119", b"b": b"119"}
    assert len(rows) < 240
    assert log.offsets("orders") == {0: (0, 240)}


# Commits that are written without delta-rs


@pytest.fixture
def local(storage, file) -> DeltaRsLog:
    """A table on a local disk, at version 0."""
    log = DeltaRsLog(storage, "orders")
    log.create(FileChange([file], [], 2), NOTE)
    return log


def add_file(storage: Storage) -> RowFile:
    return RowFiles(storage, "_manifest/orders").write_all("topic", topic_table(Topic("id", {"retention.ms": "7"})), 2)[
        0
    ]


def test_a_local_commit_says_what_a_commit_of_delta_rs_says(storage, file, local, monkeypatch):
    change = FileChange([add_file(storage)], [file], 2)
    made = local.commit_on(local.open(), change, CommitNote("id", 3, "alter"), {"app": 7}, data_change=False)
    mine, opened = local.actions(1), local.open()
    assert made is not None and (made.version, made.files) == (opened.version, opened.files)
    assert made.last_transaction("app") == 7 and made.last_transactions() == {"app": 7}
    local.delete([local.log_files().commits[1]])
    monkeypatch.setattr(os, "link", no_links)
    assert local.commit_on(local.open(), change, CommitNote("id", 3, "alter"), {"app": 7}, data_change=False) is None
    theirs = local.actions(1)
    assert [sorted(action) for action in mine] == [sorted(action) for action in theirs]
    for one, other in zip(mine, theirs, strict=True):
        ((kind, my_fields),) = one.items()
        for name, value in my_fields.items():
            if name not in ("timestamp", "deletionTimestamp", "engineInfo"):
                assert other[kind][name] == value, (kind, name)
        assert all(value is None for name, value in other[kind].items() if name not in {*my_fields, "clientVersion"})


def no_links(*_: object) -> None:
    raise PermissionError(errno.EPERM, "no links on this file system")


def test_of_two_commits_by_delta_rs_the_first_counts(local, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    base = local.open()
    local.commit_on(base, FileChange([], [], 2), CommitNote("id-1", 0, "first"), {})
    with pytest.raises(VersionTakenError):
        local.commit_on(base, FileChange([], [], 2), CommitNote("id-2", 0, "second"), {})
    assert local.open().version == 1 and commit_info(local.actions(1))["commitId"] == "id-1"


def test_a_commit_on_a_committed_version_counts_without_opening_it(storage, local):
    made = local.commit_on(local.open(), FileChange([], [], 2), CommitNote("id-1", 0, "first"), {})
    made = local.commit_on(made, FileChange([], [], 2), CommitNote("id-2", 0, "second"), {})
    assert (made.version, made.files) == (2, local.open().files)
    with pytest.raises(VersionTakenError):
        local.commit_on(local.open(1), FileChange([], [], 2), CommitNote("id-3", 0, "third"), {})
    names = [info.path for info in storage.list("_manifest/orders/_delta_log")]
    assert len(names) == 3  # nothing is left of the commit that lost


def test_a_version_that_was_cut_from_the_log_is_not_made_again(storage, local):
    stale = local.open()
    for number in range(3):
        local.commit_on(local.open(), FileChange([], [], 2), CommitNote(f"id-{number}", 0, "first"), {})
    local.checkpoint()
    commits = local.log_files().commits
    local.delete([commits[0], commits[1]])
    with pytest.raises(CommitFailedError):
        local.commit_on(stale, FileChange([], [], 2), CommitNote("late", 0, "late"), {})
    assert local.open().version == 3 and sorted(local.log_files().commits) == [2, 3]


def test_a_table_with_features_of_others_is_left_to_delta_rs(storage, local):
    local.open().table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    local.open().table.alter.add_feature(TableFeatures.AppendOnly, allow_protocol_versions_increase=True)
    version = local.open().version
    assert not local.open().has_known_protocol
    assert local.commit_on(local.open(), FileChange([], [], 2), CommitNote("id", 0, "alter"), {}) is None
    assert local.open().version == version + 1


def test_a_commit_that_comes_just_before_a_fence_on_an_object_store_is_not_overwritten(s3_options, tmp_path):
    """A writer had opened the table before it was lost. Its commit lands after a rebuild has listed the log."""
    uri = f"s3://{BUCKET}/{tmp_path.name}"
    storage = Storage(uri, s3_options)
    writer = DeltaRsLog(storage, "orders")
    file = RowFiles(storage, "_manifest/orders").write_all("topic", topic_table(Topic("id", {})), 2)[0]
    writer.create(FileChange([file], [], 2), NOTE)
    base = writer.open()

    def play(request: Request) -> None:
        if request.operation == "PUT" and request.key.endswith(f"{1:020d}.json") and not late:
            late.append(request)
            writer.commit_on(base, FileChange([], [], 2), CommitNote("late", 0, "append"), {})

    late: list[Request] = []
    with store_proxy(s3_options) as proxy:
        rebuild = DeltaRsLog(Storage(uri, proxy.options), "orders")
        proxy.play(play)
        with pytest.raises(VersionTakenError):
            rebuild.make_anew(FENCED + 2, FileChange([file], [], 2), CommitNote("rebuild", 0, "rebuild"), {})
    assert late
    assert commit_info(writer.actions(1))["commitId"] == "late"
    with pytest.raises(FileNotFoundError):
        writer.actions(FENCED + 2)
