"""The storage interface: the same behaviour on local files and on an object store, and what happens when one fails."""

from __future__ import annotations

import os
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.fs import FileType, LocalFileSystem, SubTreeFileSystem

import spark_segments.storage.storage as storage_module
from spark_segments.errors import InvalidOptionError, StorageError
from spark_segments.storage import CLOCK_PROBE, OPEN_FILES, FileInfo, Storage, WriteStream
from spark_segments.storage.objects import ObjectStore
from tests.s3_server import BUCKET

S3_OPTIONS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}


@pytest.fixture(params=["local", "s3"])
def storage(request, tmp_path):
    if request.param == "local":
        return Storage(tmp_path / "log")
    # One server for all tests, a prefix of its own for each.
    return Storage(f"s3a://{BUCKET}/{tmp_path.name}", request.getfixturevalue("s3_options"))


class FlakyFileSystem:
    """A pyarrow file system in a local directory that fails as often as told, and notes what it is asked."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.inner = SubTreeFileSystem(str(root), LocalFileSystem())
        self.failures: list[Exception] = []
        self.calls: list[tuple[str, object]] = []

    def __getattr__(self, name: str):
        def call(*arguments, **keywords):
            self.calls.append((name, arguments[0]))
            if self.failures:
                raise self.failures.pop(0)
            return getattr(self.inner, name)(*arguments, **keywords)

        return call


class WithoutDirectories(FlakyFileSystem):
    """As pyarrow shows Google Cloud Storage: a directory is there only where an object has its name."""

    type_name = "gcs"

    def get_file_info(self, asked):
        found = self.inner.get_file_info(asked)
        return [info for info in found if info.is_file] if isinstance(found, list) else found


@pytest.fixture
def flaky(tmp_path, monkeypatch):
    (tmp_path / "bucket/log").mkdir(parents=True)  # an object store needs no parents
    monkeypatch.setattr(Storage, "retry_backoff_seconds", 0)
    return FlakyFileSystem(tmp_path)


def objects(flaky: FlakyFileSystem) -> Storage:
    """An object store's storage over the file system that fails as told."""
    return Storage("s3://bucket/log", S3_OPTIONS, filesystem=ObjectStore(flaky))


# On every store


def test_written_bytes_are_read_back_by_range(storage):
    data = os.urandom(3_000_000)
    storage.write("orders-0/0.log", data)
    assert storage.read("orders-0/0.log").to_pybytes() == data
    assert storage.read("orders-0/0.log", 1_000_000, 77).to_pybytes() == data[1_000_000:1_000_077]
    assert storage.size("orders-0/0.log") == len(data)


def test_a_read_past_the_end_is_short_and_no_error(storage):
    storage.write("a", b"0123456789")
    assert storage.read("a", 7, 100).to_pybytes() == b"789"
    assert storage.read("a", 10, 5).to_pybytes() == b""
    assert storage.read("a", 999).to_pybytes() == b""
    assert storage.read("a", 3, 0).to_pybytes() == b""
    assert not storage.read("a").is_mutable


def test_memory_to_write_to_is_asked_for_and_is_nobody_elses(storage):
    storage.write("a", b"0123456789")
    data = storage.read("a", 2, 5, writable=True)
    memoryview(data).cast("B")[0] = ord("x")
    assert data.to_pybytes() == b"x3456"
    assert storage.read("a", 2, 5, writable=True).to_pybytes() == storage.read("a", 2, 5).to_pybytes() == b"23456"


def test_an_empty_file_is_a_file(storage):
    storage.write("orders-0/empty.log", b"")
    assert storage.size("orders-0/empty.log") == 0
    assert storage.read("orders-0/empty.log").to_pybytes() == b""
    assert [info.path for info in storage.list("orders-0")] == ["orders-0/empty.log"]


def test_a_stream_takes_any_buffer_and_counts(storage):
    with storage.create("deep/er/file") as stream:
        stream.write(b"ab")
        stream.write(pa.py_buffer(b"cd"))
        stream.write(memoryview(b"efg").toreadonly())
        assert stream.bytes_written == 7
    assert stream.closed
    assert storage.read("deep/er/file").to_pybytes() == b"abcdefg"


def test_a_file_of_a_fixed_name_is_replaced_whole(storage):
    for content in (b"first", b"second, which is longer", b"3"):
        storage.replace("deep/er/checkpoint", content)
        assert storage.read("deep/er/checkpoint").to_pybytes() == content
        assert [info.path for info in storage.list("deep", recursive=True)] == ["deep/er/checkpoint"]


def test_an_existing_file_is_never_replaced(storage):
    storage.write("orders-0/0.log", b"first")
    with pytest.raises(FileExistsError, match=re.escape(storage.location("orders-0/0.log"))):
        storage.create("orders-0/0.log")
    assert storage.read("orders-0/0.log").to_pybytes() == b"first"


def test_directories_are_seen_where_the_store_shows_files_alone(tmp_path):
    (tmp_path / "bucket/log").mkdir(parents=True)
    files = Storage("gs://bucket/log", filesystem=ObjectStore(WithoutDirectories(tmp_path)))
    for directory in ("_manifest/orders/_delta_log", "_manifest/payments", "orders-0"):
        (tmp_path / "bucket/log" / directory).mkdir(parents=True)
        (tmp_path / "bucket/log" / directory / "file").write_bytes(b"x")
    assert files.directories() == ["_manifest", "orders-0"]
    assert files.directories("_manifest") == ["orders", "payments"]
    assert files.directories("none") == []


def test_a_missing_file_is_pythons_own_error_and_names_it(storage):
    for ask in (storage.read, storage.size):
        with pytest.raises(FileNotFoundError, match=r"orders-0/none\.log"):
            ask("orders-0/none.log")
    storage.write("orders-0/0.log", b"x")
    with pytest.raises(FileNotFoundError):
        storage.size("orders-0")
    assert storage.exists("orders-0/0.log")
    assert storage.exists("orders-0")
    assert not storage.exists("orders-1")


def test_listing_shows_paths_from_the_root_in_order(storage):
    before_ms = storage.now_ms()
    for path in ("b-0/2.log", "b-0/1.index", "a-0/1.log", "b-0/sub/3.log", "_marker"):
        storage.write(path, path.encode())
    names = [info.path for info in storage.list() if info.path != CLOCK_PROBE]
    assert names == ["_marker"]
    assert [info.path for info in storage.list("b-0")] == ["b-0/1.index", "b-0/2.log"]
    everything = storage.list(recursive=True)
    assert [info.path for info in everything if info.path != CLOCK_PROBE] == [
        "_marker",
        "a-0/1.log",
        "b-0/1.index",
        "b-0/2.log",
        "b-0/sub/3.log",
    ]
    assert storage.directories() == ["a-0", "b-0"]
    assert storage.directories("b-0") == ["sub"]
    found = next(info for info in everything if info.path == "a-0/1.log")
    assert found == FileInfo("a-0/1.log", 9, found.mtime_ms, found.version)
    assert abs(found.mtime_ms - before_ms) < 60_000


def test_a_missing_directory_lists_nothing(storage):
    assert storage.list("nowhere") == []
    assert storage.list("nowhere", recursive=True) == []
    assert storage.directories("nowhere") == []


def test_delete_takes_what_is_there(storage):
    for path in ("a/1", "a/2", "a/3"):
        storage.write(path, b"x")
    assert storage.read("a/1").to_pybytes() == b"x"
    storage.delete(["a/1", "a/2", "a/never-was"])
    assert [info.path for info in storage.list("a")] == ["a/3"]
    with pytest.raises(FileNotFoundError):
        storage.read("a/1")
    storage.delete("a/3")
    storage.delete([])
    assert storage.list("a") == []


def test_a_failed_stream_leaves_its_bytes_for_vacuum_and_shows_its_own_error(storage):
    with pytest.raises(RuntimeError, match="encoder"), storage.create("orders-0/0.log") as stream:
        stream.write(b"half")
        raise RuntimeError("encoder")
    assert stream.closed
    assert [info.path for info in storage.list("orders-0")] == ["orders-0/0.log"]


def test_a_pickled_storage_reads_the_same_files(storage):
    storage.write("a", b"x")
    storage.read("a")
    storage.now_ms()
    again = pickle.loads(pickle.dumps(storage))
    assert (again.uri, again.storage_options) == (storage.uri, storage.storage_options)
    assert again.read("a").to_pybytes() == b"x"


def test_the_stores_clock_runs(storage):
    first = storage.now_ms()
    assert first <= storage.now_ms() < first + 10_000


def test_paths_cannot_leave_the_root(storage):
    for path in ("../other", "a/../../b", "/etc/passwd", "a\0b"):
        for ask in (storage.read, storage.delete, storage.list, storage.create):
            with pytest.raises(InvalidOptionError, match="inside the log directory"):
                ask(path)


def test_negative_ranges_are_refused(storage):
    with pytest.raises(InvalidOptionError):
        storage.read("a", -1)
    with pytest.raises(InvalidOptionError):
        storage.read("a", 0, -1)


def test_delta_rs_finds_its_tables_where_the_storage_lists_them(storage):
    from deltalake import CommitProperties, DeltaTable, write_deltalake
    from deltalake.exceptions import CommitFailedError

    uri, options = storage.delta_uri("_manifest/orders")
    write_deltalake(uri, pa.table({"a": [1]}), storage_options=options)
    names = [info.path for info in storage.list("_manifest/orders/_delta_log")]
    assert names == ["_manifest/orders/_delta_log/00000000000000000000.json"]

    # A commit is a compare-and-swap there: of two writers that saw version 0, one wins.
    stale = DeltaTable(uri, storage_options=options)
    write_deltalake(uri, pa.table({"a": [2]}), mode="append", storage_options=options)
    with pytest.raises(CommitFailedError):
        write_deltalake(
            stale, pa.table({"a": [3]}), mode="append", commit_properties=CommitProperties(max_commit_retries=0)
        )
    assert DeltaTable(uri, storage_options=options).version() == 1


# Local files


def test_one_of_many_creators_wins(tmp_path):
    storage, barrier = Storage(tmp_path), threading.Barrier(8)

    def create(number: int) -> int:
        barrier.wait()
        try:
            storage.write("a/b/contended", bytes([number]))
        except FileExistsError:
            return -1
        return number

    with ThreadPoolExecutor(8) as pool:
        results = sorted(pool.map(create, range(8)))
    assert results[:7] == [-1] * 7
    assert storage.read("a/b/contended").to_pybytes() == bytes([results[7]])


def test_a_growing_file_shows_its_new_bytes(tmp_path):
    storage = Storage(tmp_path)
    (tmp_path / "0.log").write_bytes(b"abc")
    assert storage.read("0.log", 0, 100).to_pybytes() == b"abc"
    with (tmp_path / "0.log").open("ab") as file:
        file.write(b"def")
    assert storage.size("0.log") == 6
    assert storage.read("0.log", 0, 100).to_pybytes() == b"abcdef"
    (tmp_path / "0.log.swap").write_bytes(b"cleaned")  # as Kafka's cleaner swaps a segment in
    (tmp_path / "0.log.swap").rename(tmp_path / "0.log")
    assert storage.read("0.log").to_pybytes() == b"cleaned"


def test_relative_paths_hold_after_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = Storage("log")
    storage.write("a", b"x")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert storage.uri == str(tmp_path / "log")
    assert storage.read("a").to_pybytes() == b"x"


def test_a_full_disk_is_told_with_the_way_out():
    stream = WriteStream(open("/dev/full", "wb", buffering=0), "log/orders-0/0.log")  # noqa: SIM115
    with pytest.raises(StorageError, match=r"No space left .* in log/orders-0/0\.log\. Free space"):
        stream.write(b"x")
    stream.close()


def test_a_local_failure_is_not_tried_again(tmp_path):
    (tmp_path / "a-file").write_bytes(b"")
    storage = Storage(tmp_path)
    with pytest.raises(StorageError, match="Not a directory") as raised:
        storage.read("a-file/below")
    assert raised.value.path == str(tmp_path / "a-file/below")
    with pytest.raises(StorageError):
        storage.create("a-file/below")


# Object stores


def test_transient_failures_are_tried_again(flaky):
    storage = objects(flaky)
    storage.write("a", b"x")
    flaky.failures = [
        OSError("AWS Error SLOW_DOWN during GetObject"),
        OSError("HTTP status 503"),
        OSError("curlCode: 7"),
    ]
    assert storage.read("a").to_pybytes() == b"x"
    for ask in (storage.list, storage.directories, storage.exists, storage.size, storage.delete):
        flaky.failures = [OSError("HTTP status 429")]
        ask("a" if ask not in (storage.list, storage.directories) else "")
        assert flaky.failures == []


def test_retries_are_bounded(flaky):
    storage = objects(flaky)
    flaky.failures = [OSError("AWS Error SLOW_DOWN")] * 100
    with pytest.raises(StorageError, match=r"SLOW_DOWN.*s3://bucket/log/a.*nothing was committed") as raised:
        storage.size("a")
    assert raised.value.path == "s3://bucket/log/a"
    assert len(flaky.calls) == storage_module.ATTEMPTS


@pytest.mark.parametrize(
    "error",
    [
        OSError("AWS Error ACCESS_DENIED during HeadObject operation"),
        OSError("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body."),
        OSError("AWS Error NO_SUCH_BUCKET during PutObject operation"),
        PermissionError("no"),
        pa.ArrowInvalid("Cannot parse URI"),
    ],
    ids=str,
)
def test_lasting_failures_are_told_at_once(flaky, error):
    flaky.failures = [error]
    with pytest.raises(StorageError):
        objects(flaky).size("a")
    assert len(flaky.calls) == 1


def test_a_write_is_not_tried_again(flaky):
    storage = objects(flaky)
    flaky.failures = [OSError("AWS Error SLOW_DOWN")]
    with pytest.raises(StorageError):
        storage.write("a", b"x")
    assert len(flaky.calls) == 1


def test_range_reads_of_one_object_open_it_once(flaky):
    storage = objects(flaky)
    storage.write("a", bytes(1000))
    flaky.calls.clear()
    for offset in range(0, 1000, 10):
        storage.read("a", offset, 10)
    assert [name for name, _ in flaky.calls] == ["open_input_file"]


def test_few_objects_are_kept_open(flaky):
    storage = objects(flaky)
    for number in range(OPEN_FILES + 5):
        storage.write(f"f{number}", b"x")
        storage.read(f"f{number}", 0, 1)
    flaky.calls.clear()
    storage.read(f"f{OPEN_FILES + 4}", 0, 1)
    assert flaky.calls == []
    storage.read("f0", 0, 1)
    assert [name for name, _ in flaky.calls] == ["open_input_file"]


def test_an_object_that_grew_shows_its_new_bytes(flaky, tmp_path):
    storage = objects(flaky)
    storage.write("a", b"abc")
    assert storage.read("a", 0, 100).to_pybytes() == b"abc"
    (tmp_path / "bucket/log/a").write_bytes(b"abcdef")
    assert storage.read("a", 0, 100).to_pybytes() == b"abcdef"


def test_the_clock_of_an_object_store_is_its_own_and_read_once_a_minute(flaky, monkeypatch, tmp_path):
    storage = objects(flaky)
    monkeypatch.setattr(storage_module.time, "time_ns", lambda: 1_700_000_000_000 * 1_000_000)
    seconds = [100.0]
    monkeypatch.setattr(storage_module.time, "monotonic", lambda: seconds[0])
    skews_ms = [7_200_000, 3_600_000]

    class Info:
        type = FileType.File

        @property
        def mtime_ns(self):
            return (1_700_000_000_000 + skews_ms.pop(0)) * 1_000_000

    monkeypatch.setattr(FlakyFileSystem, "get_file_info", lambda self, path: Info(), raising=False)
    assert storage.now_ms() == 1_700_007_200_000
    seconds[0] += 59
    assert storage.now_ms() == 1_700_007_200_000
    seconds[0] += 2
    assert storage.now_ms() == 1_700_003_600_000


def test_nothing_is_opened_before_the_first_use(monkeypatch):
    monkeypatch.setattr(storage_module, "open_filesystem", lambda location: pytest.fail("opened"))
    storage = Storage("s3://bucket/log", S3_OPTIONS)
    assert pickle.loads(pickle.dumps(storage)).location("a/b") == "s3://bucket/log/a/b"
    assert "secret" not in repr(storage)


def test_a_file_that_takes_a_name_over_has_another_version(tmp_path):
    storage = Storage(str(tmp_path))
    storage.write("a", b"one")
    [first] = storage.list()
    with (tmp_path / "a").open("ab") as file:
        file.write(b", two")
    [grown] = storage.list()
    (tmp_path / "b").write_bytes(b"one, two")
    (tmp_path / "b").rename(tmp_path / "a")
    [other] = storage.list()
    assert first.version == grown.version != other.version
