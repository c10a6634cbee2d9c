"""How many requests each operation makes of a store: the figures of docs/how-to/object-store.md."""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_segments import LogDir
from spark_segments.format import walk
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from tests.conftest import ROOT
from verification.world.clock import PATIENCE_SECONDS
from verification.world.manifest_rows import forget_rows
from verification.world.stores.s3_server import BUCKET
from verification.world.stores.store_proxy import Request, StoreProxy, store_proxy
from verification.world.topics import DAY_MS, records

PARTITIONS = 20


@pytest.fixture
def proxy(s3_options: Mapping[str, str]) -> Iterator[StoreProxy]:
    with store_proxy(s3_options) as made:
        yield made


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}/log"


class Requests:
    """What a fresh process asks of the store: of the files of the log, and of the manifest."""

    def __init__(self, uri: str, proxy: StoreProxy) -> None:
        self.uri, self.proxy = uri, proxy
        self.log: Counter[str] = Counter()
        self.manifest: Counter[str] = Counter()

    def of(self, work: Callable[[LogDir], object]) -> Requests:
        forget_rows()
        log = LogDir.open(self.uri, self.proxy.options)
        log.storage.now_ms()  # read once a minute
        before = len(self.proxy.requests)
        work(log)
        self.log, self.manifest = Counter(), Counter()
        for one in self.proxy.requests[before:]:
            where = one.query.get("prefix", [one.key])[0]
            if one.key.endswith(".made"):  # the mark of a note, which nobody waits for
                continue
            is_manifest = "/_manifest/" in where or "/_recovery/" in where
            (self.manifest if is_manifest else self.log)[one.operation] += 1
        return self


@pytest.fixture
def requests(uri: str, proxy: StoreProxy) -> Requests:
    LogDir.create(uri, proxy.options).create_topic("orders", PARTITIONS, {"compression.type": "uncompressed"})
    return Requests(uri, proxy)


def requests_of_append(requests: Requests, partitions: int, count: int = 40, size: int = 10) -> Requests:
    """Records of now, which no retention takes."""
    table = records(count, size=size, partitions=range(partitions)).drop_columns(["timestamp"])
    return requests.of(lambda log: log.topic("orders").append(table))


def test_an_append_into_many_partitions_is_a_request_and_its_commit(requests):
    assert requests_of_append(requests, PARTITIONS).log == {"PUT": 1}
    # Two files of rows, and the commit; its note is beside them. delta-rs lists its log to open it. While the files are
    # written, marks are listed: see the next test.
    assert requests.manifest["PUT"] == 4
    assert requests.manifest["LIST"] == 2


def test_a_look_for_lost_commits_is_made_while_the_files_of_a_commit_are_written(proxy, requests):
    """A fresh process lists the marks of commits before its first commit, and waits for no round trip more."""
    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def meet(request: Request) -> None:
        is_look = request.operation == "LIST" and "/_recovery/" in request.query.get("prefix", [""])[0]
        if is_look or request.key.endswith(".note"):
            both.wait()

    proxy.meet = meet
    requests_of_append(requests, PARTITIONS)


def test_an_append_to_an_open_topic_is_its_files_and_one_conditional_put(uri, proxy):
    log = LogDir.create(uri, proxy.options)
    log.create_topic("orders", PARTITIONS)
    log.storage.now_ms()  # read once a minute
    for _ in range(3):
        before = len(proxy.requests)
        log.topic("orders").append(records(40, partitions=range(PARTITIONS)))
        every = [(one.operation, one.key) for one in proxy.requests[before:]]
        asked = [one for one in every if "/_recovery/" not in one[1]]  # notes are beside them
        assert [operation for operation, _ in asked] == ["PUT"] * 4  # records; rows of partitions and of segments
        assert "_delta_log" in asked[-1][1]


def test_an_append_into_few_partitions_is_three_requests_for_each(requests):
    assert requests_of_append(requests, 3).log == {"PUT": 9}
    assert requests.manifest["PUT"] == 4


def test_a_plan_reads_the_manifest_alone(requests):
    requests_of_append(requests, PARTITIONS)
    requests.of(lambda log: log.topic("orders").snapshot.live)
    assert requests.log == {}
    # Rows of the topic, of partitions and of segments; commits 0 and 1, twice each; _last_checkpoint.
    assert requests.manifest == {"LIST": 1, "GET": 3 + 4 + 1}


def test_a_seek_and_a_read_of_ten_records_is_a_look_into_the_index_and_a_range(requests):
    requests_of_append(requests, 1, count=3000, size=1000)
    assert requests.of(lambda log: list(log.topic("orders").scan(partition=0, offsets=(2000, 2010)).batches())).log == {
        "GET": 2
    }
    read = requests.proxy.requests[-1].range.removeprefix("bytes=").split("-")
    assert int(read[1]) - int(read[0]) < 512 << 10


def test_a_scan_reads_by_large_ranges_and_lists_nothing(requests, limits):
    limits(PIECE_BYTES=700_000)
    requests_of_append(requests, 1, count=3000, size=1000)
    requests.of(lambda log: log.topic("orders").scan().to_reader(threads=4).read_all())
    # The .index, and the .log's 3.0 MB in five pieces, the first in three ranges: so first records come soon.
    assert requests.log == {"GET": 1 + 5 + 2}


def test_a_scan_by_one_thread_fetches_ahead(requests, limits):
    limits(WINDOW_BYTES=1 << 20, BLOCK_BYTES=1 << 20)
    requests_of_append(requests, 1, count=3000, size=1000)
    requests.of(lambda log: list(log.topic("orders").scan().batches()))
    assert requests.log["GET"] <= 6
    assert walk.WINDOW_BYTES == 1 << 20


def job(run: Callable[..., object], days: int = 0) -> Callable[[LogDir], object]:
    return lambda log: run(log, now_ms=log.storage.now_ms() + days * DAY_MS)


@pytest.mark.proof
def test_jobs_ask_for_what_they_change(requests):
    requests_of_append(requests, PARTITIONS)
    requests_of_append(requests, PARTITIONS)
    # The runs of an object are read one by one; a segment is three files.
    requests.of(job(roll, days=8))
    assert requests.log == {"GET": 2 * PARTITIONS, "PUT": 3 * PARTITIONS}
    assert requests.of(job(retain)).log == {}
    assert requests.of(job(compact)).log == {}
    requests.of(partial(verify, topics=["orders"], deep=True))
    # Each segment's .log and .timeindex are read, the size of the empty .index is asked; each directory is listed, and
    # that of an index of keys.
    assert requests.log == {"HEAD": PARTITIONS, "GET": 2 * PARTITIONS, "LIST": PARTITIONS + 2}
    requests.of(job(vacuum, days=20))
    # The log directory, each directory in it and that of groups are listed. What rows named goes by one request, notes
    # that a copy stands for by another, files of old rows by a third.
    assert requests.log == {"LIST": PARTITIONS + 3, "DELETE MANY": 3}


@pytest.mark.proof
@pytest.mark.parametrize("partitions", [3, PARTITIONS])
def test_the_calculator_is_right_about_a_day(requests, partitions):
    """docs/capacity.md: it counts no less than a topic asks, and no more than a half on top."""
    [code] = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "capacity.md").read_text(), re.MULTILINE | re.DOTALL
    )
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)
    counted = names["day"](gb=1e-6, partitions=partitions, commits=24, runs=2, keep_days=1)
    LogDir.open(requests.uri, requests.proxy.options).create_topic("day", partitions)
    asked: Counter[str] = Counter()
    rows = records(40, partitions=range(partitions)).drop_columns(["timestamp"])
    for number in range(24):
        for work in [lambda log: log.topic("day").append(rows)] + [lambda log: log.maintain(["day"])] * (
            number % 12 == 11
        ):
            requests.of(work)
            asked += requests.log + requests.manifest
    writes = asked["PUT"] + asked["LIST"]
    assert writes <= counted["writes"] <= 1.5 * writes, asked
    reads = asked["GET"] + asked["HEAD"]
    assert reads <= counted["reads"] <= 1.5 * reads, asked
