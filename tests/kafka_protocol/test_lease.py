"""One server at a time holds the groups of a log directory."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.serving.lease import DIRECTORY, LEASE_SECONDS, MARGIN_SECONDS, Lease
from spark_segments.storage import Storage
from verification.world.stores.memory_store import MemoryFiles


def _storage(files: MemoryFiles) -> Storage:
    return Storage("/played", filesystem=files)


def _grow_old(files: MemoryFiles, seconds: float) -> None:
    for path, (data, ms) in files.files.items():
        files.files[path] = data, ms - int(seconds * 1000)


def test_of_many_servers_that_begin_at_once_one_holds_the_groups():
    files = MemoryFiles()
    leases = [Lease(_storage(files)) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda one: one.take(), leases))
    assert taken.count(True) == 1
    assert [one.is_held() for one in leases] == taken


def test_a_server_that_ends_gives_the_groups_to_the_next():
    files = MemoryFiles()
    first, second = Lease(_storage(files)), Lease(_storage(files))
    assert first.take()
    assert not second.take()
    first.end()
    assert not first.is_held()
    assert second.take()
    assert not first.take()


def test_a_server_that_died_holds_the_groups_until_its_time_is_over():
    files = MemoryFiles()
    first, second = Lease(_storage(files)), Lease(_storage(files))
    assert first.take()
    _grow_old(files, LEASE_SECONDS + MARGIN_SECONDS - 1)
    assert not second.take()
    _grow_old(files, 2)
    assert second.take()
    assert not first.take()  # it was asleep, and finds that another has them
    assert not first.is_held()


def test_what_is_renewed_stays_and_leaves_few_files():
    files = MemoryFiles()
    first, second = Lease(_storage(files)), Lease(_storage(files))
    for _ in range(100):
        assert first.take()
        _grow_old(files, LEASE_SECONDS)
        assert not second.take()
    assert len(files.files) < 40


def test_a_number_that_is_free_again_takes_nothing():
    """A server that listed long ago makes a file whose number was given, and deleted, since."""
    files = MemoryFiles()
    first = Lease(_storage(files))
    assert first.take()

    class Slow(MemoryFiles):
        """Shows a listing that was made before everything that follows."""

        def list(self, path: str, recursive: bool) -> list[tuple[str, int, int, str]]:
            listed = super().list(path, recursive)
            for _ in range(40 if not self.is_passed else 0):
                first.take()
            self.is_passed = True
            return listed

        is_passed = False

    late = Slow(files.files)
    second = Lease(_storage(late))
    _grow_old(files, 100)
    assert not second.take()
    assert first.take()


def test_a_store_that_cannot_be_written_gives_no_groups_and_says_why(caplog):
    storage = _storage(MemoryFiles())
    storage.refuse_writing("it is read-only")
    lease = Lease(storage)
    with pytest.raises(SegmentsError):
        lease.take()
    with caplog.at_level(logging.WARNING):
        assert not lease.keep()
    assert "read-only" in caplog.text


def test_a_damaged_file_counts_until_its_time_is_over():
    files = MemoryFiles()
    _storage(files).create(f"{DIRECTORY}/{1:020d}.json", b"{")
    lease = Lease(_storage(files))
    assert not lease.take()
    _grow_old(files, 100)
    assert lease.take()
