"""Captures of a served log directory that erases keys: what they go on with, and what they still refuse."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

import pytest

from spark_segments import LogDir
from spark_segments.kafka_protocol import capture
from spark_segments.kafka_protocol.serving.views import Views
from spark_segments.log import Change, Snapshot
from spark_segments.log.manifest.state.states import rewritten_offsets
from spark_segments.log.report import Report
from spark_segments.maintenance import compact, erase, mirror, restore, roll, verify
from verification.kafka_protocol.played import playing
from verification.world.stores.memory_store import memory_log
from verification.world.topics import DAY_MS

ADA, BOB, EVE = ({"key": key, "value": key, "timestamp": 1_700_000_000_000} for key in ("ada", "bob", "eve"))


@pytest.fixture
def log() -> LogDir:
    return memory_log("/captured")


def made(*appends: list[dict[str, Any]]) -> LogDir:
    source = memory_log("/source")
    source.create_topic("plain", config={"retention.ms": "-1"})
    for rows in appends:
        source.topic("plain").append(rows)
    return source


def captured(log: LogDir, source: LogDir) -> Report:
    with playing(Views(source, interval_seconds=0)) as address:
        return capture(log, address)


def keys(log: LogDir) -> list[str]:
    return [key.decode() for key in log.topic("plain").scan(columns=["key"]).to_table().column("key").to_pylist()]


def erased(log: LogDir, *names: str) -> None:
    for name in names:
        erase(log, topics=["plain"], keys=[name.encode()])


@pytest.mark.parametrize("there", [["ada"], ["bob"], ["ada", "bob"], ["eve"], ["ada", "eve"]])
@pytest.mark.parametrize("here", [[], ["ada"], ["bob"], ["ada", "bob"]])
def test_a_capture_goes_on_after_erasures_there_and_here(log, there, here):
    source = made([EVE], [ADA, BOB])
    assert captured(log, source).failed == []
    erased(source, *there)
    erased(log, *here)
    source.topic("plain").append([EVE, ADA])
    assert captured(log, source).failed == []
    assert keys(log) == [*(name for name in ("eve", "ada", "bob") if name not in here), "eve", "ada"]
    assert captured(log, source).failed == []
    assert verify(log, deep=True).findings == []


@pytest.mark.parametrize("erased_there", [["ada"], ["eve"]])
def test_a_batch_of_another_log_is_refused_though_an_erasure_was_there(log, tmp_path, erased_there):
    """The log of a copy of the directory that went another way: same topic, same offsets, another record."""
    source = LogDir.create(str(tmp_path / "source"))
    source.create_topic("plain", config={"retention.ms": "-1"})
    source.topic("plain").append([EVE])
    shutil.copytree(tmp_path / "source", tmp_path / "other")
    other = LogDir.open(str(tmp_path / "other"))
    source.topic("plain").append([ADA, BOB])
    other.topic("plain").append([ADA, {**BOB, "value": "another"}])
    assert captured(log, source).failed == []
    erased(other, *erased_there)
    other.topic("plain").append([EVE])
    [line] = captured(log, other).failed
    assert "the last batch that is here is another there" in line["error"]
    assert keys(log) == ["eve", "ada", "bob"]


def test_an_erasure_of_an_earlier_batch_explains_no_other_last_batch(log):
    source = made([ADA], [BOB])
    assert captured(log, source).failed == []
    erased(source, "ada")
    assert captured(log, source).failed == []
    erased(source, "bob")
    roll(source, now_ms=source.storage.now_ms() + 30 * 86_400_000)
    source.topic("plain").append([EVE])
    assert captured(log, source).failed == []
    assert keys(log) == ["ada", "bob", "eve"]


def test_a_follower_that_is_served_knows_what_its_leader_erased(log, tmp_path):
    source = LogDir.create(str(tmp_path / "leader"))
    source.create_topic("plain")
    source.topic("plain").append([ADA, BOB])
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=source)
    assert captured(log, follower).failed == []
    erased(source, "ada")
    source.topic("plain").append([EVE])
    mirror(follower, leader=source)
    assert captured(log, follower).failed == []
    assert keys(log) == ["ada", "bob", "eve"]


def test_a_restore_of_what_was_erased_is_gone_on_with(log):
    source = made([ADA, BOB])
    version = source.topic("plain").snapshot.version
    erased(source, "ada")
    assert captured(log, source).failed == []
    restore(source, topics=["plain"], version=version, including_erased=True)
    source.topic("plain").append([EVE])
    assert captured(log, source).failed == []


def test_an_erasure_of_the_compacted_copy_and_of_its_source(log):
    source = made([ADA, BOB], [ADA, BOB])
    assert captured(log, source).failed == []
    log.topic("plain").alter({"cleanup.policy": "compact"})
    roll(log, now_ms=log.storage.now_ms() + 30 * 86_400_000)
    compact(log, force=True)
    log.topic("plain").alter({"cleanup.policy": "delete"})
    erased(log, "bob")
    erased(source, "ada")
    source.topic("plain").append([EVE])
    assert captured(log, source).failed == []
    assert verify(log, deep=True).findings == []


def test_an_erasure_notes_the_offsets_that_it_rewrote(log):
    source = made([EVE], [ADA], [BOB], [ADA, BOB])
    erased(source, "ada")
    assert rewritten_offsets(source.topic("plain").snapshot.states) == {0: [(1, 2), (3, 5)]}
    erased(source, "bob")
    assert rewritten_offsets(source.topic("plain").snapshot.states) == {0: [(1, 5)]}
    assert captured(log, source).failed == []


def test_what_an_erasure_of_an_earlier_version_rewrote_is_compared_wherever_it_is(log):
    """Version 0.3.0 noted that there was an erasure, and not where."""
    source = made([EVE], [ADA, BOB])
    assert captured(log, source).failed == []
    erased(source, "ada")

    def plan(current: Snapshot) -> Change:
        states = {name: value for name, value in current.states.items() if not name.startswith("erased_offsets.")}
        return Change("alter", topic=dataclasses.replace(current.topic_row, states=states))

    source.topic("plain").manifest.commit(plan)
    assert captured(log, source).failed == []


@pytest.mark.parametrize("is_compacted_away", [False, True])
def test_a_capture_stops_at_the_tombstone_of_an_erasure_here(log, is_compacted_away):
    """It has the offset that the cluster gives to its next record."""
    source = memory_log("/source")
    source.create_topic("plain", config={"cleanup.policy": "compact", "delete.retention.ms": "0"})
    source.topic("plain").append([ADA, BOB])
    assert captured(log, source).failed == []
    erased(log, "ada")
    if is_compacted_away:
        for days in (30, 60):
            roll(log, now_ms=log.storage.now_ms() + days * DAY_MS)
            compact(log, force=True, now_ms=log.storage.now_ms() + days * DAY_MS)
        assert keys(log) == ["bob"]
    source.topic("plain").append([EVE])
    source.topic("plain").append([BOB])
    [line] = captured(log, source).failed
    assert "plain-0 has tombstones that an erasure appended here, from offset 2 on" in line["error"]


def test_a_capture_goes_on_after_an_erasure_behind_a_tombstone_of_the_cluster(log):
    source = memory_log("/source")
    source.create_topic("plain", config={"cleanup.policy": "compact"})
    source.topic("plain").append([ADA, BOB])
    source.topic("plain").append([{**ADA, "value": None}])
    assert captured(log, source).failed == []
    erased(log, "ada")
    source.topic("plain").append([EVE])
    assert captured(log, source).failed == []
    assert keys(log) == ["bob", "ada", "eve"]


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize(("here", "there"), [(1, 2), (1, 1), (2, 1), (2, 5)])
def test_records_that_a_writer_appended_here_stop_the_capture(log, policy, here, there):
    """Their offsets are those of other records there, which the next fetch would pass over."""
    source = made([EVE], [ADA, BOB])
    source.topic("plain").alter({"cleanup.policy": policy})
    assert captured(log, source).failed == []
    log.topic("plain").append([{**EVE, "value": "here"}] * here)
    for _ in range(there):
        source.topic("plain").append([ADA])
    before = keys(log)
    [line] = captured(log, source).failed
    assert "records that were appended here" in line["error"] or "lacks records" in line["error"]
    assert keys(log) == before
