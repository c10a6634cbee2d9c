"""The storage interface: the same behaviour on local files and on an object store, and what happens when one fails."""

from __future__ import annotations

import os
import pickle
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import spark_segments.storage.storage as storage_module
from spark_segments import LogDir
from spark_segments.cli.metrics import job_metrics, write_metrics
from spark_segments.errors import InvalidOptionError, StorageError
from spark_segments.maintenance import table
from spark_segments.storage import CLOCK_PROBE, FileInfo, Storage, WriteStream, objects
from verification.world.stores.s3_server import BUCKET
from verification.world.stores.store_proxy import (
    HALF_REPLY,
    HANG_UP,
    INTERNAL_ERROR,
    LOSE_REPLY,
    NO_UPLOAD,
    REFUSE,
    SLOW_DOWN,
    Request,
    StoreProxy,
    store_proxy,
)

S3_OPTIONS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}


@pytest.fixture(params=["local", "s3"])
def storage(request, tmp_path):
    if request.param == "local":
        return Storage(tmp_path / "log")
    # One server for all tests, a prefix of its own for each.
    return Storage(f"s3a://{BUCKET}/{tmp_path.name}", request.getfixturevalue("s3_options"))


@pytest.fixture
def proxy(s3_options) -> Iterator[StoreProxy]:
    """A proxy before the store, which plays its failures."""
    with store_proxy(s3_options) as made:
        yield made


@pytest.fixture
def remote(proxy, tmp_path) -> Storage:
    """A storage of objects behind the proxy."""
    return Storage(f"s3://{BUCKET}/{tmp_path.name}", proxy.options)


def first(count: int, failure: str, operation: str) -> Callable[[Request], str | None]:
    """A failure of the first requests of an operation."""
    left = [count]

    def play(request: Request) -> str | None:
        if request.operation != operation or not left[0]:
            return None
        left[0] -= 1
        return failure

    return play


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
    with storage.stream("deep/er/file") as stream:
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
        storage.stream("orders-0/0.log")
    assert storage.read("orders-0/0.log").to_pybytes() == b"first"


def test_an_empty_object_that_stands_for_a_directory_is_no_file(remote, s3_options):
    """pyarrow.fs, which this package once used, left such objects behind where it deleted a file."""
    import boto3

    keys = {f"aws_{name}": s3_options[f"AWS_{name}".upper()] for name in ("access_key_id", "secret_access_key")}
    client = boto3.client("s3", endpoint_url=s3_options["AWS_ENDPOINT_URL"], region_name="us-east-1", **keys)
    key = remote.uri.partition(f"{BUCKET}/")[2]
    for name in ("orders-0/", "orders-0/inside/", "orders-0/0.index", "orders-0/empty"):
        client.put_object(Bucket=BUCKET, Key=f"{key}/{name}")
    assert remote.directories() == ["orders-0"]
    assert remote.list() == []
    for recursive in (False, True):
        assert [info.path for info in remote.list("orders-0", recursive)] == ["orders-0/0.index", "orders-0/empty"]
    assert remote.directories("orders-0") == ["inside"]


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
    with pytest.raises(RuntimeError, match="encoder"), storage.stream("orders-0/0.log") as stream:
        stream.write(b"half")
        raise RuntimeError("encoder")
    assert stream.closed
    assert [info.path for info in storage.list("orders-0")] == (["orders-0/0.log"] if storage.is_local else [])


def test_a_failed_stream_takes_no_place_of_what_another_has_made(s3_options, tmp_path):
    storage = Storage(f"s3://{BUCKET}/{tmp_path.name}", s3_options)
    for size in (10, 20 << 20):
        with pytest.raises(RuntimeError), storage.stream(f"{size}") as stream:
            stream.write(bytes(size))
            storage.write(f"{size}", b"whole")
            raise RuntimeError("encoder")
        assert storage.read(f"{size}").to_pybytes() == b"whole"


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
        for ask in (storage.read, storage.delete, storage.list, storage.stream):
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


@pytest.mark.cases(1)
@pytest.mark.rule("W22")
def test_one_of_sixteen_creators_wins(storage):
    for turn in range(10):
        path, barrier = f"a/b/{turn}", threading.Barrier(16)

        def create(number: int, path: str = path, barrier: threading.Barrier = barrier) -> int:
            barrier.wait()
            try:
                storage.create(path, b"%d" % number)
            except FileExistsError as error:
                assert error.filename == storage.location(path)
                return -1
            return number

        with ThreadPoolExecutor(16) as pool:
            *losers, winner = sorted(pool.map(create, range(16)))
        assert losers == [-1] * 15
        assert storage.read(path).to_pybytes() == b"%d" % winner
    assert len(storage.list("a/b")) == 10, "nothing else is left"


# Local files


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
        storage.stream("a-file/below")


# Object stores


@pytest.mark.cases(1)
@pytest.mark.parametrize("failure", [SLOW_DOWN, INTERNAL_ERROR, HANG_UP])
def test_transient_failures_are_tried_again(remote, proxy, failure):
    remote.write("a", b"x")
    for operation, ask in (("GET", remote.read), ("HEAD", remote.size), ("HEAD", remote.exists)):
        proxy.play(first(2, failure, operation))
        ask("a")
    for operation, ask in (("LIST", remote.list), ("LIST", remote.directories)):
        proxy.play(first(2, failure, operation))
        ask()
    proxy.play(first(1, failure, "DELETE MANY"))
    remote.delete("a")
    assert proxy.played[failure] == 11
    assert not remote.exists("a")


def test_an_answer_that_ends_half_way_is_fetched_again(remote, proxy):
    data = os.urandom(100_000)
    remote.write("a", data)
    proxy.play(first(1, HALF_REPLY, "GET"))
    assert remote.read("a").to_pybytes() == data
    assert proxy.played == {HALF_REPLY: 1}


def test_retries_are_bounded(remote, proxy, monkeypatch):
    monkeypatch.setitem(objects.RETRIES, "max_retries", 2)
    proxy.play(lambda request: SLOW_DOWN)
    with pytest.raises(StorageError, match=r"SlowDown.*nothing was committed") as raised:
        remote.read("a")
    assert raised.value.path == f"{remote.uri}/a"
    assert "Debug source" not in str(raised.value)
    assert "<" not in str(raised.value) and "\n" not in str(raised.value), "no XML"
    assert str(raised.value).count("SlowDown") == 1
    assert len(proxy.requests) == 3


def test_a_bucket_that_does_not_exist_is_named_as_the_cause(proxy):
    nowhere = Storage("s3://no-such-bucket/log", proxy.options)
    for ask in (nowhere.list, nowhere.directories):
        with pytest.raises(StorageError, match="NoSuchBucket") as raised:
            ask()
        assert raised.value.hint == "Correct the name of the bucket or container, or create it first"


def test_what_the_store_refuses_is_told_at_once(remote, proxy):
    proxy.play(lambda request: REFUSE)
    for ask in (remote.read, remote.size, remote.exists, remote.list, remote.directories, remote.delete):
        with pytest.raises(StorageError, match="permissions or the credentials"):
            ask("a")
    for change in (remote.write, remote.create, remote.replace):
        with pytest.raises(StorageError, match="permissions or the credentials"):
            change("a", b"x")
    assert len(proxy.requests) == 9


def test_a_refusal_is_never_taken_for_the_end_of_a_file(remote, proxy):
    """The text of an error has signatures in it, and they have any digits."""
    remote.write("a-416-InvalidRange", b"x")
    proxy.play(lambda request: REFUSE)
    with pytest.raises(StorageError):
        remote.read("a-416-InvalidRange", 0, 1)


@pytest.mark.cases(2)
@pytest.mark.parametrize("failure", [LOSE_REPLY, INTERNAL_ERROR, HANG_UP, SLOW_DOWN])
def test_a_creation_whose_reply_is_lost_is_known_for_ones_own(remote, proxy, failure):
    proxy.play(first(2, failure, "PUT"))
    remote.create("a", b"mine")
    with pytest.raises(FileExistsError):
        remote.create("a", b"another's")
    proxy.play(first(1, LOSE_REPLY, "PUT"))
    with pytest.raises(FileExistsError):
        remote.create("a", b"a third's")
    assert remote.read("a").to_pybytes() == b"mine"


def test_a_creation_without_any_reply_is_looked_for(remote, proxy, monkeypatch):
    monkeypatch.setitem(objects.RETRIES, "max_retries", 1)
    proxy.play(lambda request: LOSE_REPLY if request.operation == "PUT" else None)
    remote.create("a", b"mine")
    proxy.play(lambda request: HANG_UP if request.operation == "PUT" else None)
    with pytest.raises(FileExistsError):
        remote.create("a", b"another's")
    with pytest.raises(StorageError):
        remote.create("b", b"nobody knows")
    assert remote.read("a").to_pybytes() == b"mine"


def streamed(storage: Storage, path: str, data: bytes) -> None:
    with storage.stream(path, unique=True) as stream:
        stream.write(data)


@pytest.mark.cases(1)
@pytest.mark.parametrize("put", [streamed, Storage.replace, Storage.write], ids=["stream", "replace", "write"])
def test_an_upload_whose_last_reply_is_lost_has_ended(remote, proxy, put):
    """Asked again, the store knows no such upload."""
    answers = iter([LOSE_REPLY, NO_UPLOAD])
    data = os.urandom(20 << 20)
    proxy.play(lambda request: next(answers, None) if request.operation == "COMPLETE" else None)
    put(remote, "a", data)
    assert proxy.played == {LOSE_REPLY: 1, NO_UPLOAD: 1}
    assert remote.read("a").to_pybytes() == data


def test_an_upload_that_never_ended_is_an_error_though_an_older_object_has_as_many_bytes(remote, proxy):
    older = os.urandom(20 << 20)
    remote.replace("a", older)
    for failure in (NO_UPLOAD, REFUSE):
        proxy.play(lambda request, failure=failure: failure if request.operation == "COMPLETE" else None)
        with pytest.raises(StorageError):
            remote.replace("a", os.urandom(20 << 20))
        assert remote.read("a").to_pybytes() == older


def test_a_range_is_one_request(remote, proxy):
    remote.write("a", bytes(1000))
    with proxy.counted() as counts:
        for offset in range(0, 1000, 100):
            remote.read("a", offset, 10)
        remote.read("a")
    assert counts == {"GET": 11}


def test_many_files_go_by_one_request(remote, proxy):
    paths = [f"a/{number}" for number in range(30)]
    remote.at_once(lambda path: remote.write(path, b"x"), paths)
    with proxy.counted() as counts:
        remote.delete(paths)
    assert counts == {"DELETE MANY": 1}
    assert remote.list("a") == []


def test_an_object_that_grew_shows_its_new_bytes(remote):
    remote.write("a", b"abc")
    assert remote.read("a", 0, 100).to_pybytes() == b"abc"
    remote.replace("a", b"abcdef")
    assert remote.read("a", 0, 100).to_pybytes() == b"abcdef"


def test_the_clock_of_an_object_store_is_its_own_and_read_once_a_minute(remote, proxy, monkeypatch):
    seconds = [time.monotonic()]
    monkeypatch.setattr(objects.time, "monotonic", lambda: seconds[0])
    first_ms = remote.now_ms()
    with proxy.counted() as counts:
        seconds[0] += 59
        assert remote.now_ms() - first_ms < 60_000
    assert counts == {}
    with proxy.counted() as counts:
        seconds[0] += 2
        monkeypatch.setattr(objects.time, "time_ns", lambda: 7_200_000_000_000)
        assert abs(remote.now_ms() - first_ms) < 3_600_000, "this machine's clock is wrong, the store's is not"
    assert counts == {"PUT": 1, "HEAD": 1}


def test_nothing_is_opened_before_the_first_use(monkeypatch):
    monkeypatch.setattr(storage_module, "ObjectStore", lambda location: pytest.fail("opened"))
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


@pytest.mark.parametrize("umask", [0o027, 0o002])
def test_whatever_is_made_on_a_local_disk_has_the_mode_that_the_umask_says(tmp_path, umask):
    before = os.umask(umask)
    try:
        log = LogDir.create(str(tmp_path / "log"))
        log.create_topic("orders", config={"cleanup.policy": "compact", "segment.ms": "1"})
        for number in range(2):
            log.topic("orders").append([{"key": "a", "value": str(number)}])
        log.maintain()
        table(log, topics=["orders"], table_uri=str(tmp_path / "table"))
        group = log.group("billing")
        group.commit(group.positions(), {"orders": {0: 1}})
        log.export_kafka(str(tmp_path / "kafka"))
        LogDir.create(str(tmp_path / "imported")).import_kafka(str(tmp_path / "kafka"))
        write_metrics(tmp_path / "metrics", job_metrics(log.uri, []))
    finally:
        os.umask(before)
    made = [*tmp_path.rglob("*")]
    assert {path.relative_to(tmp_path).parts[0] for path in made} == {"log", "table", "kafka", "imported", "metrics"}
    for path in made:
        expected = (0o777 if path.is_dir() else 0o666) & ~umask
        assert stat.S_IMODE(path.stat().st_mode) == expected, path
