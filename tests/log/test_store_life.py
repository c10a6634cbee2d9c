"""The life of a topic on a store that delays, throttles, fails and loses replies: nothing is lost, nothing is twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import StorageError
from spark_segments.maintenance import vacuum, verify
from spark_segments.storage import Storage
from verification.stores.life import Life
from verification.world.stores.s3_server import BUCKET
from verification.world.stores.store_proxy import (
    HALF_REPLY,
    HANG_UP,
    INTERNAL_ERROR,
    LOSE_REPLY,
    SLOW_DOWN,
    Request,
    StoreProxy,
    store_proxy,
)

FAILURES = (SLOW_DOWN, INTERNAL_ERROR, LOSE_REPLY, HANG_UP, HALF_REPLY)
KEY = "AKIAPLANTED7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYSECRET"
TOKEN = "FwoGZXIvYXdzEJr//SESSION+TOKEN="


PLANTED = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}


@pytest.fixture
def proxy(s3_options: Mapping[str, str]) -> Iterator[StoreProxy]:
    with store_proxy({**s3_options, **PLANTED}) as made:
        yield made


def assert_without_secrets(text: str) -> None:
    for secret in PLANTED.values():
        for spelling in (secret, quote(secret, safe="")):
            assert spelling not in text
    assert not re.search(r"(?:Credential|Signature)=(?!\*)", text)


def everything_below(uri: str, options: Mapping[str, str]) -> str:
    """The names and the bytes of all objects whose names begin with an address."""
    storage = Storage(uri.rpartition("/")[0], dict(options))
    files = storage.list(recursive=True)
    assert len(files) > 50
    return "".join(file.path + storage.read(file.path).to_pybytes().decode("latin-1") for file in files)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"s3a://{BUCKET}/{tmp_path.name}/log"


def every(nth: int, action: str):
    """Fails the first request of each operation, and every nth after it."""
    seen: Counter[str] = Counter()

    def play(request: Request) -> str | None:
        seen[request.operation] += 1
        return action if seen[request.operation] % nth == 1 else None

    return play


@pytest.mark.proof
def test_a_whole_life_on_a_store_that_fails_in_every_step_shows_no_credentials(uri, proxy, caplog):
    caplog.set_level("INFO")
    caplog.set_level("DEBUG", "spark_segments")
    life = Life(uri, proxy.options, tries=5, partitions=4)
    for number, (_, step) in enumerate(life.steps()):
        proxy.play(every(100, FAILURES[number % len(FAILURES)]))
        life.do(step)
        proxy.play(None)
        if number % 3 == 2:  # what a step leaves wrong stays so
            life.check()
    life.check()
    assert set(proxy.played) == set(FAILURES)
    for text in (
        *life.errors,
        repr(life.log),
        repr(life.log.storage),
        caplog.text,
        everything_below(uri, proxy.options),
    ):
        assert_without_secrets(text)


def commits(request: Request) -> bool:
    return request.operation == "PUT" and "/_delta_log/" in request.path and request.path.endswith(".json")


def test_a_commit_whose_every_reply_is_lost_is_made_once(uri, proxy):
    log = LogDir.create(uri, proxy.options)
    log.create_topic("orders")
    left = [3]

    def play(request: Request) -> str | None:
        if commits(request) and left[0]:
            left[0] -= 1
            return LOSE_REPLY
        return None

    proxy.play(play)
    assert log.topic("orders").append(pa.table({"value": [b"tea", b"rice"]})) == {0: (0, 1)}
    proxy.play(None)
    assert left == [0]  # the commit was sent again, until a reply came
    assert log.topic("orders").offsets() == {0: (0, 2)}
    assert verify(log, deep=True).findings == []


@pytest.mark.parametrize("recursive", [False, True])
def test_a_listing_whose_reply_is_cut_is_asked_for_again(uri, proxy, recursive):
    storage = Storage(uri, proxy.options)
    for number in range(3):
        storage.write(f"a/{number}", b"tea")
    left = [1]
    proxy.play(lambda request: HALF_REPLY if request.operation == "LIST" and left and left.pop() else None)
    assert [one.path for one in storage.list("a", recursive=recursive)] == ["a/0", "a/1", "a/2"]
    assert left == [] and proxy.played[HALF_REPLY] == 1


@pytest.mark.proof
def test_a_store_that_throttles_all_along_is_one_clear_error_and_changes_nothing(uri, proxy, limits):
    limits(STORE_ATTEMPTS=1)
    log = LogDir.create(uri, proxy.options)
    log.create_topic("orders")
    log.topic("orders").append(pa.table({"value": [b"tea"]}))
    proxy.play(lambda request: SLOW_DOWN if request.operation == "PUT" and "/orders-" in request.path else None)
    with pytest.raises(StorageError, match=r"SLOW_DOWN|reduce your request rate") as raised:
        log.topic("orders").append(pa.table({"value": [b"rice"]}))
    assert f"s3://{BUCKET}" in str(raised.value)
    proxy.play(None)
    assert log.topic("orders").offsets() == {0: (0, 1)}
    assert verify(log, deep=True).findings == []
    assert log.topic("orders").append(pa.table({"value": [b"rice"]})) == {0: (1, 1)}


def large_rows(count: int) -> pa.Table:
    random = np.random.default_rng(1)
    return pa.table({"value": [random.bytes(1 << 20) for _ in range(count)]})


@pytest.mark.proof
def test_an_upload_that_is_cut_off_half_way_changes_nothing(uri, proxy):
    log = LogDir.create(uri, proxy.options)
    log.create_topic("orders", config={"compression.type": "uncompressed", "max.message.bytes": str(2 << 20)})
    log.topic("orders").append(pa.table({"value": [b"tea"]}))
    parts = []

    def cut_off(request: Request) -> str | None:
        if request.operation == "PART":
            parts.append(request)
        is_beyond = request.operation in ("PART", "COMPLETE", "ABORT") and len(parts) > 1
        return HANG_UP if is_beyond else None

    proxy.play(cut_off)
    with pytest.raises(StorageError):
        log.topic("orders").append(large_rows(40))
    proxy.play(None)
    assert log.topic("orders").offsets() == {0: (0, 1)}
    assert verify(log, deep=True).findings == []


@pytest.mark.proof
def test_a_dry_vacuum_on_s3_names_the_lifecycle_rule_for_uploads_that_never_ended(uri, proxy, tmp_path):
    log = LogDir.create(uri, proxy.options)
    log.create_topic("orders")
    [warning] = vacuum(log, dry_run=True).warnings
    assert "lifecycle rule" in warning
    assert vacuum(log).warnings == []  # a schedule would repeat it
    assert vacuum(LogDir.create(str(tmp_path / "local")), dry_run=True).warnings == []
