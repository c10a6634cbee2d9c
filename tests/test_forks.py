"""Processes that are forked after an object store was used: one clear error, and no hang."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from spark_segments import LogDir
from spark_segments.errors import StorageError
from spark_segments.storage import Storage
from spark_segments.storage.native import native
from verification.world.clock import PATIENCE_SECONDS
from verification.world.stores.s3_server import BUCKET


def _read(storage: Storage) -> bytes | str:
    try:
        return storage.read("a").to_pybytes()
    except StorageError as error:
        return str(error)


def _send(storage: Storage, sender: Connection) -> None:
    sender.send(_read(storage))


def _read_in_another_process(storage: Storage, method: str) -> bytes | str:
    return _in_another_process(_send, storage, method)


def _in_another_process(work: Callable[[Any, Connection], None], given: object, method: str) -> Any:
    context: Any = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(given, sender))
    process.start()
    try:
        assert receiver.poll(PATIENCE_SECONDS), "the child hangs"
        return receiver.recv()
    finally:
        process.kill()
        process.join()


def _fork_and_read(storage: Storage) -> bytes | str:
    return _read_in_another_process(storage, "fork")


@pytest.fixture
def storage(s3_options: Mapping[str, str], tmp_path: Path) -> Storage:
    return Storage(f"s3://{BUCKET}/{tmp_path.name}", s3_options)


def test_a_forked_child_of_a_process_that_used_an_object_store_gets_an_error(storage):
    storage.create("a", b"x")
    found = _read_in_another_process(storage, "fork")
    assert isinstance(found, str) and "was forked" in found and "spawn" in found
    assert storage.read("a").to_pybytes() == b"x"


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_begin_anew_use_it(storage, method):
    storage.create("a", b"x")
    assert _read_in_another_process(storage, method) == b"x"


def test_a_forked_child_uses_local_files(tmp_path, storage):
    storage.create("a", b"remote")
    local = Storage(str(tmp_path))
    local.create("a", b"local")
    assert _read_in_another_process(local, "fork") == b"local"


@pytest.mark.proof
def test_a_child_that_was_forked_before_the_first_use_uses_it(storage):
    """As Spark's daemon forks its workers: it has used no store itself."""
    storage.create("a", b"x")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        assert pool.submit(_fork_and_read, storage).result(PATIENCE_SECONDS) == b"x"


def _open(uri: str, sender: Connection) -> None:
    try:
        sender.send(LogDir.open(uri).topic("orders").snapshot.version)
    except StorageError as error:
        sender.send(str(error))


def test_a_forked_child_of_a_process_that_opened_a_local_topic_gets_an_error(tmp_path):
    """delta-rs would panic there."""
    LogDir.create(str(tmp_path)).create_topic("orders")
    assert LogDir.open(str(tmp_path)).topic("orders").snapshot.version == 0
    found = _in_another_process(_open, str(tmp_path), "fork")
    assert "was forked" in found and "delta-rs" in found
    assert _in_another_process(_open, str(tmp_path), "spawn") == 0


def test_a_panic_is_an_error_like_others():
    from obstore.store import S3Store

    store = S3Store("bucket", config={"aws_allow_http": "true"})
    with pytest.raises(OSError, match="obstore panicked: Expected config prefix"), native("obstore"):
        _ = store.config
