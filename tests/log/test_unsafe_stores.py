"""Stores where a commit would not be safe: writing there is refused in one sentence, and nothing is changed."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import StorageError
from spark_segments.log.marker import MARKER, OVERWRITES
from spark_segments.maintenance import verify
from spark_segments.storage import CLOCK_PROBE, FileInfo, Storage
from verification.world.stores.s3_server import BUCKET
from verification.world.stores.store_proxy import store_proxy

VALUES = pa.table({"value": [b"tea"]})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}/log"


def test_a_store_that_ignores_conditions_is_found_when_a_log_directory_is_made(uri, s3_options):
    with store_proxy(s3_options) as proxy:
        proxy.ignores_conditions = True
        with pytest.raises(StorageError, match="ignores If-None-Match"):
            LogDir.create(uri, proxy.options)
        log = LogDir.create(uri, proxy.options)  # it is remembered: two requests, and no probe
        assert proxy.counts()["PUT"] == 2
        assert log.topics() == []
        with pytest.raises(StorageError, match=OVERWRITES):
            log.create_topic("orders")
        assert [info.path for info in log.storage.list(recursive=True)] == [MARKER]


def files(log: LogDir) -> list[FileInfo]:
    """The files that are there, with the marks of commits, which come after an append has returned."""
    for thread in threading.enumerate():
        if thread.name.startswith("commit-mark"):
            thread.join()
    return [info for info in log.storage.list(recursive=True) if info.path != CLOCK_PROBE]


def test_what_is_there_can_be_read_and_not_changed(uri, s3_options):
    log = LogDir.create(uri, s3_options)
    log.create_topic("orders")
    log.topic("orders").append(VALUES)
    log.storage.replace(MARKER, b'{"format.version": 1, "conditional.writes": "ignored"}')
    before = files(log)
    log = LogDir.open(uri, s3_options)
    with pytest.raises(StorageError, match=OVERWRITES):
        log.topic("orders").append(VALUES)
    for change in (log.storage.write, log.storage.create, log.storage.replace):
        with pytest.raises(StorageError, match=OVERWRITES):
            change("a", b"x")
    for change in (log.storage.stream, log.storage.delete):
        with pytest.raises(StorageError, match=OVERWRITES):
            change("a")
    assert files(log) == before
    assert pa.Table.from_batches(log.topic("orders").scan().batches())["value"].to_pylist() == [b"tea"]
    assert verify(log, deep=True).findings == []


def test_a_store_that_keeps_conditions_is_probed_once(uri, s3_options):
    with store_proxy(s3_options) as proxy:
        LogDir.create(uri, proxy.options)
        assert proxy.counts()["PUT"] == 2
        LogDir.create(uri, proxy.options).create_topic("orders")
        before = len(proxy.requests)
        LogDir.open(uri, proxy.options)
        asked = [(one.operation, one.key) for one in proxy.requests[before:]]
    # The mark of the new topic's note is waited for by nobody.
    assert [operation for operation, key in asked if not key.endswith(".made")] == ["GET"]
    assert Storage(uri, s3_options).read(MARKER).to_pybytes() == b'{"format.version": 1}'


def no_links(*_: object) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


def test_a_mount_without_links_and_renames_is_refused_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr("os.link", no_links)
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: None)  # a system without renameat2
    with pytest.raises(StorageError, match=r"neither link nor rename .*s3://"):
        LogDir.create(str(tmp_path / "log"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_mount_without_links_that_renames_to_free_names_keeps_a_log(tmp_path, monkeypatch):
    monkeypatch.setattr("os.link", no_links)
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", config={"flush.messages": "1"})
    for turn in range(3):
        assert log.topic("orders").append(VALUES) == {0: (turn, turn)}
    log.storage.create("a", b"first")
    with pytest.raises(FileExistsError):
        log.storage.create("a", b"second")
    assert log.storage.read("a").to_pybytes() == b"first"
    assert verify(log, deep=True).findings == []
    assert list(tmp_path.rglob("*.tmp")) == []


def test_a_link_whose_reply_is_lost_is_known_for_ones_own(tmp_path, monkeypatch):
    """NFS sends a request again, and the second one finds what the first one made."""
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr("os.link", twice)
    storage = Storage(str(tmp_path))
    storage.create("a", b"mine")
    with pytest.raises(FileExistsError):
        storage.create("a", b"mine")
