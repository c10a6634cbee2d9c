"""Fetching ahead: the same bytes as by direct reads, few bytes for a reader that stops, nothing left behind."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import MissingFileError, StorageError
from spark_segments.storage import Storage, fetch
from spark_segments.storage.fetch import fetch_ahead
from tests.examples import examples
from verification.world.opened import LocalFiles
from verification.world.small_limits import small_limits

CONTENT = bytes(number % 251 for number in range(10_000))


class StoreFiles(LocalFiles):
    """Local files in the place of an object store, which note what is read of them."""

    def __init__(self, root: Path) -> None:
        self.root, self.reads = root, []
        self.failure: Exception | None = None

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        self.reads.append((offset, length))
        if self.failure is not None:
            raise self.failure
        return super().read(str(self.root / path.rpartition("/")[2]), offset, length)


class AtOnce:
    """A pool that does its work as it is submitted, so that a test can say what was asked for by when."""

    def submit(self, work, *arguments) -> Future:
        done: Future = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done


@pytest.fixture
def files(tmp_path, monkeypatch, limits) -> StoreFiles:
    limits(BLOCK_BYTES=1000)
    monkeypatch.setattr(fetch, "_pool", AtOnce)
    monkeypatch.setattr(Storage, "retry_backoff_seconds", 0)
    (tmp_path / "0.log").write_bytes(CONTENT)
    return StoreFiles(tmp_path)


def storage(files: StoreFiles) -> Storage:
    return Storage("s3://bucket/log", filesystem=files)


@examples(200)
@given(
    steps=st.lists(st.tuples(st.integers(-300, 700), st.integers(0, 1500), st.booleans()), max_size=25),
    end=st.integers(0, 12_000),
)
def test_any_reads_give_the_bytes_of_the_file(tmp_path_factory, steps, end):
    directory = tmp_path_factory.mktemp("files")
    (directory / "0.log").write_bytes(CONTENT)
    with small_limits(BLOCK_BYTES=1000), fetch_ahead(storage(StoreFiles(directory)), "0.log", end) as read:
        position = 0
        for move, length, writable in steps:
            position = max(0, position + move)
            data = read(position, length, writable=writable)
            assert data.to_pybytes() == CONTENT[position : position + length]
            assert not writable or data.is_mutable
            assert writable or not data.is_mutable
            position += length if move % 2 else 0


def test_what_is_written_into_memory_to_write_to_is_not_read_by_another(files):
    with fetch_ahead(storage(files), "0.log", len(CONTENT)) as read:
        for position in range(0, 4000, 500):
            memoryview(read(position, 600, writable=True)).cast("B")[:] = bytes(600)
        assert read(4000, 500).to_pybytes() == CONTENT[4000:4500]


def test_a_single_read_fetches_what_it_asks_for_alone(files):
    with fetch_ahead(storage(files), "0.log", len(CONTENT)) as read:
        read(100, 50)
    assert files.reads == [(100, 50)]


def test_a_reader_that_stops_early_has_fetched_a_few_times_what_it_read(files):
    with fetch_ahead(storage(files), "0.log", len(CONTENT)) as read:
        read(0, 100)
        read(100, 100)
    assert sum(length for _, length in files.reads) <= 400


def test_a_file_is_fetched_once_by_a_reader_that_goes_through_it(files):
    with fetch_ahead(storage(files), "0.log", len(CONTENT)) as read:
        assert b"".join(read(at, 1000).to_pybytes() for at in range(0, len(CONTENT), 1000)) == CONTENT
    assert sum(length for _, length in files.reads) == len(CONTENT)
    assert len(files.reads) <= 11


def test_blocks_are_asked_for_before_they_are_needed(files):
    with fetch_ahead(storage(files), "0.log", len(CONTENT)) as read:
        for position in range(0, 4000, 1000):
            read(position, 1000)
        assert max(offset for offset, _ in files.reads) >= 4000 + 1000 * (fetch.MOST_BLOCKS - 2)


def test_an_error_comes_with_the_read_that_needs_the_bytes(files):
    with fetch_ahead(storage(files), "0.log", len(CONTENT)) as read:
        read(0, 100)
        files.failure = OSError("connection reset")
        with pytest.raises(StorageError, match="connection reset"):
            read(100, 100)
    files.failure = FileNotFoundError("0.log")
    with fetch_ahead(storage(files), "0.log", len(CONTENT)) as read, pytest.raises(MissingFileError):
        read(0, 100)


def test_local_files_are_not_fetched_ahead(tmp_path):
    (tmp_path / "0.log").write_bytes(CONTENT)
    with fetch_ahead(Storage(tmp_path), "0.log", len(CONTENT)) as read:
        assert read(10, 10, writable=True).is_mutable
        assert read(20, 10).to_pybytes() == CONTENT[20:30]
