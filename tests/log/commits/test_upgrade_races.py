"""An upgrade to format version 2 that comes between the snapshot of another commit and the commit itself."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_segments import LogDir
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from spark_segments.storage import Storage
from tests.log.chunk_rows import new_chunk, new_manifest
from tests.log.commits.whole_log import assert_log_is_whole
from tests.log.played_log import Play, committed_but_reply_lost
from tests.manifest_rows import Manifest, Partition, commit_append
from tests.opened import opened

CONFIG = {"segment.bytes": "2000", "file.delete.delay.ms": "0", "retention.ms": "-1", "cleanup.policy": "compact"}
LATER_MS = 2_000_000_000_000
SHARED = f"orders-shared/{0:020d}.5e0c.log"


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def log(tmp_path, play) -> LogDir:
    """A log directory with topic orders of version 1: chunks of records whose keys repeat."""
    LogDir.create(str(tmp_path))
    log = opened(tmp_path, open_delta_log=play)
    partitions = [Partition("AAAAAAAAAAAAAAAAAAAAAQ", number) for number in range(2)]
    log.topic("orders").manifest.create("AAAAAAAAAAAAAAAAAAAAAQ", CONFIG, partitions, format_version=1)
    for number in range(30):
        rows = pa.table(
            {"key": [b"a", b"b"], "value": [b"%d" % number * 20] * 2, "partition": pa.array([0, 1], pa.int32())}
        )
        log.topic("orders").append(rows, txn=("app", number))
    return log


def upgraded(log: LogDir):
    """What happens at a commit: the upgrade comes first, once."""
    other = LogDir.open(log.uri)

    def happening(go) -> None:
        other.topic("orders").upgrade()
        go()  # delta-rs itself refuses it

    return happening


def newest(log: LogDir) -> dict:
    return {
        (row["partition"], row["key"]): (row["offset"], row["value"])
        for batch in log.topic("orders").scan().batches()
        for row in batch.to_pylist()
    }


@pytest.mark.slow
@pytest.mark.parametrize("job", [roll, retain, compact, vacuum])
def test_a_job_that_an_upgrade_overtakes_loses_nothing(log, play, job):
    if job is not roll:
        roll(log, now_ms=LATER_MS)
    if job is vacuum:
        compact(log, now_ms=LATER_MS)
    if job is retain:
        log.topic("orders").alter({"retention.bytes": "500", "cleanup.policy": "delete"})
    before, ends = newest(log), log.topic("orders").offsets()
    play.commits(upgraded(log))
    report = job(log, now_ms=LATER_MS)
    assert report.partitions and not report.failed, "the job had something to do"
    assert log.topic("orders").snapshot.format_version == 2
    after = newest(log)
    assert {key: end for key, (_, end) in log.topic("orders").offsets().items()} == {
        key: end for key, (_, end) in ends.items()
    }
    assert after.keys() == before.keys() and after == before
    assert verify(log, deep=True).errors == 0
    assert log.topic("orders").append(pa.table({"key": [b"a"], "value": [b"x"]}), txn=("app", 29)) == {}


def test_an_append_that_an_upgrade_overtakes_is_added_once_with_its_transaction_as_a_row(log, play):
    play.commits(upgraded(log))
    rows = pa.table({"key": [b"c"], "value": [b"x"], "partition": pa.array([0], pa.int32())})
    assert log.topic("orders").append(rows, txn=("app", 30)) == {0: (30, 30)}
    assert log.topic("orders").append(rows, txn=("app", 30)) == {}
    state = log.topic("orders").manifest.state()
    assert (state.snapshot.format_version, state.last_transaction("app").version) == (2, 30)


def test_an_append_whose_reply_is_lost_before_the_upgrade_is_not_added_again(log, play):
    rows = pa.table({"key": [b"c"], "value": [b"x"], "partition": pa.array([0], pa.int32())})
    other = LogDir.open(log.uri)

    def then_upgraded(go) -> None:
        try:
            committed_but_reply_lost(go)
        finally:
            other.topic("orders").upgrade()

    play.commits(then_upgraded)
    assert log.topic("orders").append(rows, txn=("app", 30)) == {0: (30, 30)}
    assert log.topic("orders").append(rows, txn=("app", 30)) == {}
    assert log.topic("orders").offsets()[0] == (0, 31)


def test_an_upgrade_that_an_append_overtakes_takes_its_transaction_along(log, play):
    other = LogDir.open(log.uri)
    rows = pa.table({"key": [b"c"], "value": [b"x"], "partition": pa.array([0], pa.int32())})

    def overtaken(go) -> None:
        other.topic("orders").append(rows, txn=("late", 4))
        go()

    play.commits(overtaken)
    assert log.topic("orders").upgrade().transactions == 2
    assert log.topic("orders").append(rows, txn=("late", 4)) == {}
    assert log.topic("orders").append(rows, txn=("app", 29)) == {}


def test_an_upgrade_whose_reply_is_lost_happened_once(log, play):
    version = log.topic("orders").snapshot.version
    play.commits(committed_but_reply_lost)
    assert log.topic("orders").upgrade().from_version == 1
    assert (log.topic("orders").snapshot.version, log.topic("orders").snapshot.format_version) == (version + 1, 2)


@pytest.mark.parametrize("appended", [False, True], ids=["upgrade alone", "upgrade and append"])
def test_a_merge_of_row_files_that_an_upgrade_overtakes_keeps_the_table_as_version_2(tmp_path, play, appended):
    manifest = new_manifest(tmp_path, open_delta_log=play, format_version=1)
    shared = dataclasses.replace(
        new_chunk(0), path=f"orders-shared/{0:020d}.5e0c.log", byte_position=7, index_position=5000
    )
    for number in range(3):
        commit_append(manifest, [new_chunk(number)])
    rival = new_manifest_of(tmp_path)

    def overtaken(go) -> None:
        rival.upgrade()
        if appended:
            commit_append(rival, [shared])
        go()

    play.commits(overtaken)
    assert manifest.merge_files()
    if not appended:
        commit_append(rival, [shared])
    for _ in range(2):
        assert [row.byte_position for row in assert_log_is_whole(manifest)[0]] == [0, 7]
        assert manifest.snapshot().format_version == 2
        uri, _ = manifest.storage.delta_uri("_manifest/orders")
        assert "index_position" in DeltaTable(uri).to_pyarrow_table().column_names
        manifest.merge_files()


def new_manifest_of(root) -> Manifest:
    """The same manifest by delta-rs alone, as another process sees it."""
    return Manifest(Storage(str(root)), "orders")
