"""A topic whose manifest cannot be read stands in nobody's way, and goes when that is asked for by name."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_segments import LogDir
from spark_segments.errors import (
    InvalidOptionError,
    LogDirError,
    SegmentsError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_segments.log.appending.append import append_target
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from verification.world.manifest_rows import Change, forget_rows, live_rows, of_format, of_version_1
from verification.world.opened import opened
from verification.world.stores.played_log import Play
from verification.world.topics import DAY_MS, later, records, values


def directory(log: LogDir, topic: str = "bad") -> Path:
    return Path(log.uri.removeprefix("file://")) / "_manifest" / topic


def garble_log(log: LogDir) -> None:
    (directory(log) / "_delta_log" / f"{0:020d}.json").write_text("not JSON")


def lose_commit(log: LogDir) -> None:
    (directory(log) / "_delta_log" / f"{0:020d}.json").unlink()


def garble_topic_row(log: LogDir) -> None:
    for path in directory(log).glob("kind=topic/*"):
        path.write_bytes(b"not Parquet")


def lose_partition_rows(log: LogDir) -> None:
    shutil.rmtree(directory(log) / "kind=partition")


def write_other_columns(log: LogDir) -> None:
    for path in directory(log).glob("kind=topic/*"):
        pq.write_table(pa.table({"other": [1]}), path)


def write_newer_format(log: LogDir) -> None:
    with of_format(99):
        log.topic("bad").manifest.commit(lambda at: Change("alter", topic=at.topic_row))


def write_version_1(log: LogDir) -> None:
    of_version_1(log.topic("bad").manifest)


DAMAGES = [garble_log, lose_commit, garble_topic_row, lose_partition_rows, write_other_columns]
DAMAGES += [write_newer_format, write_version_1]


@pytest.fixture(params=DAMAGES, ids=lambda damage: damage.__name__)
def damaged(request, log) -> LogDir:
    """A log directory with the topics bad, which is damaged, and good."""
    for topic in ("bad", "good"):
        log.create_topic(topic)
        log.topic(topic).append(records(3))
    request.param(log)
    forget_rows()
    return LogDir.open(log.uri)  # a handle that has seen it goes on from what it saw


def files(log: LogDir) -> set[str]:
    return {info.path for info in log.storage.list(recursive=True)}


@pytest.mark.cases(3)
def test_it_is_listed_and_others_are_made_and_read(damaged):
    assert damaged.topics() == ["bad", "good"]
    damaged.create_topic("new")
    assert values(damaged, "good") == records(3)["value"].to_pylist()
    with pytest.raises(UnknownTopicError, match="There are: bad, good, new"):
        damaged.topic("prices").offsets()
    with pytest.raises(UnknownTopicError, match=r"Did you mean good\?"):
        damaged.topic("godo").offsets()
    with pytest.raises(SegmentsError):
        damaged.topic("bad").offsets()


def test_a_name_that_collides_with_it_is_refused(log):
    log.create_topic("a.b")
    log.delete_topic("a.b")
    log.create_topic("a_b")  # a deleted topic, whose table lives on, is in nobody's way
    log.delete_topic("a_b")
    log.create_topic("a.b")
    for path in directory(log, "a.b").glob("kind=topic/*"):
        path.write_bytes(b"not Parquet")
    forget_rows()
    with pytest.raises(InvalidOptionError, match=r"collides with the topic a\.b"):
        log.create_topic("a_b")


@pytest.mark.cases(3)
def test_an_export_of_all_topics_exports_the_others_and_names_it(damaged, tmp_path):
    with pytest.raises(LogDirError, match=r"could not be exported: bad.*others were exported: good"):
        damaged.export_kafka(str(tmp_path / "out"))
    assert values(LogDir.open(str(tmp_path / "out")), "good") == values(damaged, "good")


@pytest.mark.cases(3)
def test_jobs_do_the_others_and_report_it(damaged):
    for job in (roll, retain, compact, vacuum):
        assert [line["topic"] for line in job(damaged).failed] == ["bad"]
        assert [line["topic"] for line in job(damaged, topics=["bad"]).failed] == ["bad"]
        assert job(damaged, topics=["good"]).failed == []


@pytest.mark.cases(3)
def test_only_force_deletes_it(damaged):
    before = files(damaged)
    with pytest.raises(SegmentsError):
        damaged.delete_topic("bad")
    assert damaged.topics() == ["bad", "good"]
    damaged.delete_topic("bad", force=True)
    assert damaged.topics() == ["good"]
    assert files(damaged) >= before
    for call in (damaged.topic("bad").offsets, lambda: damaged.delete_topic("bad")):
        with pytest.raises(UnknownTopicError, match="deleted by force"):
            call()
    with pytest.raises(UnknownTopicError):
        damaged.delete_topic("bad", force=True)


@pytest.mark.cases(2)
def test_vacuum_takes_all_of_it_after_the_delay_and_the_name_is_free_then(damaged):
    damaged.delete_topic("bad", force=True)
    now_ms, before = damaged.storage.now_ms(), files(damaged)
    assert vacuum(damaged, now_ms=now_ms + DAY_MS // 2).failed == []
    assert {path for path in before if "/bad" in f"/{path}"} <= files(damaged)
    with pytest.raises(TopicExistsError, match="deleted by force"):
        damaged.create_topic("bad")
    dry = vacuum(damaged, now_ms=now_ms + 2 * DAY_MS, dry_run=True)
    done = vacuum(damaged, now_ms=now_ms + 2 * DAY_MS)
    assert dry.partitions == done.partitions and done.failed == []
    assert not [path for path in files(damaged) if path.startswith(("bad-", "_manifest/bad/"))]
    assert values(damaged, "good") == records(3)["value"].to_pylist()
    damaged.create_topic("bad")
    damaged.topic("bad").append(records(1))
    assert values(damaged, "bad") == records(1)["value"].to_pylist()


def test_a_manifest_that_is_repaired_brings_the_topic_back(log):
    log.create_topic("bad")
    log.topic("bad").append(records(3))
    commit = directory(log) / "_delta_log" / f"{0:020d}.json"
    content = commit.read_bytes()
    commit.write_text("not JSON")
    log.delete_topic("bad", force=True)
    assert log.topics() == []
    commit.write_bytes(content)
    assert log.topics() == ["bad"]
    vacuum(log, now_ms=later(log, 2))
    assert values(log, "bad") == records(3)["value"].to_pylist()


def test_damage_after_a_repair_is_no_deletion(log):
    """A deletion by force holds for the log that was damaged then, not for all damage to come."""
    log.create_topic("bad")
    log.topic("bad").append(records(3))
    commit = directory(log) / "_delta_log" / f"{0:020d}.json"
    content = commit.read_bytes()
    commit.write_text("not JSON")
    log.delete_topic("bad", force=True)
    commit.write_bytes(content)
    log.topic("bad").append(records(3))
    commit.write_text("not JSON")
    before = files(log)
    assert log.topics() == ["bad"]
    assert [line["topic"] for line in vacuum(log, now_ms=later(log, 2)).failed] == ["bad"]
    assert files(log) == before


def test_a_topic_whose_segment_rows_are_damaged_is_deleted_by_force(log):
    log.create_topic("bad")
    log.topic("bad").append(records(3))
    for path in directory(log).glob("kind=segment/*"):
        path.write_bytes(b"not Parquet")
    forget_rows()
    with pytest.raises(LogDirError):
        log.delete_topic("bad")
    assert log.topics() == ["bad"]
    log.delete_topic("bad", force=True)
    assert log.topics() == []
    assert vacuum(log, now_ms=later(log, 2)).failed == []
    assert not [path for path in files(log) if path.startswith(("bad-", "_manifest/bad/"))]


def test_an_import_of_all_topics_does_the_readable_ones_and_then_raises(log, tmp_path):
    source = LogDir.create(str(tmp_path / "source"))
    for name in ("aaa", "bad", "zzz"):
        source.create_topic(name)
        source.topic(name).append(records(3))
    source.export_kafka(str(tmp_path / "kafka"))
    log.create_topic("bad")
    garble_log(log)
    with pytest.raises(LogDirError, match="A commit of the manifest is damaged"):  # the handle has seen it whole
        log.import_kafka(str(tmp_path / "kafka"), "bad")
    log = LogDir.open(log.uri)
    for _ in range(2):  # the second run finds the good ones imported
        with pytest.raises(LogDirError, match=r"could not be imported: bad .*others were imported: aaa, zzz"):
            log.import_kafka(str(tmp_path / "kafka"))
        assert log.topic("aaa").offsets() == log.topic("zzz").offsets() == {0: (0, 3)}
    with pytest.raises(StorageError, match="The manifest cannot be opened"):
        log.import_kafka(str(tmp_path / "kafka"), "bad")


@pytest.mark.cases(6)
@pytest.mark.parametrize(
    "name",
    [
        "holes.0",
        "undecided.0",
        "erased_tombstones.1",
        "captured.0",
        "captured_batch.x",
        "copied_end.x",
        "erasures",
        "partitions_added",
    ],
)
@pytest.mark.parametrize("value", ["[{", "3", '[{"end": 1}]'])
def test_a_state_that_is_damaged_is_one_error_and_verify_finds_the_rest(log, name, value):
    log.create_topic("bad", partitions=2)
    log.topic("bad").append(records(5))
    log.topic("bad").manifest.commit(
        lambda at: Change("alter", topic=dataclasses.replace(at.topic_row, states={name: value}))
    )
    (Path(log.uri) / live_rows(log, "bad")[0].path).write_bytes(b"?")
    messages = [finding.message for finding in verify(log, topics=["bad"], deep=True).findings]
    assert "A state of a topic cannot be read" in messages and len(messages) > 1
    if name.endswith(".0"):  # nobody describes the others
        with pytest.raises(LogDirError, match=f"A state of a topic cannot be read.*found {name}"):
            log.topic("bad").describe()


def test_force_deletes_a_good_topic_as_ever(log):
    log.create_topic("orders")
    log.topic("orders").append(records(3))
    log.delete_topic("orders", force=True)
    assert log.topics() == []
    assert log.topic("orders").manifest.snapshot(deleted=True).deleted_ms is not None


# How often tables are opened


def test_a_topic_is_made_without_a_look_at_the_manifests_of_others(log):
    play = Play()
    log = opened(log, open_delta_log=play)
    for number in range(5):
        log.create_topic(f"topic-{number}")
    assert [play.opened.count(f"topic-{number}") for number in range(5)] == [1] * 5


def test_no_access_opens_a_table_that_the_handle_has_seen(log):
    play = Play()
    log = opened(log, open_delta_log=play)
    log.create_topic("orders")
    log.topic("orders").append(records(3))
    another = opened(log, open_delta_log=play)
    play.opened.clear()
    assert another.topic("orders").offsets() == {0: (0, 3)}
    assert play.opened == ["orders"]
    for access in (
        lambda: list(another.topic("orders").scan().batches()),
        lambda: another.topic("orders").offsets(),
        lambda: another.topic("orders").offsets_for_times(0),
        lambda: another.topic("orders").describe(),
        lambda: another.topic("orders").config,
        lambda: append_target(another, "orders"),
        lambda: another.topic("orders").alter({"retention.ms": "5"}),
        lambda: another.delete_topic("orders"),
    ):
        play.opened.clear()
        access()
        assert play.opened == []


def test_an_append_after_an_append_opens_no_table_unless_another_commit_came_between(log):
    play = Play()
    log, other = opened(log, open_delta_log=play), opened(log)
    log.create_topic("orders")
    log.topic("orders").append(records(1))
    play.opened.clear()
    assert log.topic("orders").append(records(2), ("app", 1)) == {0: (1, 2)}
    assert log.topic("orders").append(records(2), ("app", 1)) == {}
    assert log.topic("orders").append(records(1)) == {0: (3, 3)}
    assert play.opened == []
    other.topic("orders").append(records(3), ("app", 2))
    assert log.topic("orders").append(records(3), ("app", 2)) == {}
    assert log.topic("orders").append(records(1)) == {0: (7, 7)}
    assert play.calls["commit_on"] == 4  # none of them was tried in vain
    other.delete_topic("orders")
    with pytest.raises(UnknownTopicError):
        log.topic("orders").append(records(1))
    other.create_topic("orders")
    assert log.topic("orders").append(records(1)) == {0: (0, 0)}


def test_an_append_into_a_log_directory_that_was_made_anew_knows_nothing_of_the_old_one(log):
    log.create_topic("orders")
    for _ in range(3):
        log.topic("orders").append(records(1))
    shutil.rmtree(log.uri)
    other = LogDir.create(log.uri)
    other.create_topic("orders")
    for _ in range(3):
        other.topic("orders").append(records(2))
    assert log.topic("orders").append(records(1)) == {0: (6, 6)}


def test_an_append_that_began_on_an_older_version_comes_after_the_others(log):
    log.create_topic("orders")

    def then_append():
        yield from records(2).to_batches()
        assert log.topic("orders").append(records(1), ("app", 1)) == {0: (0, 0)}

    assert log.topic("orders").append(then_append()) == {0: (1, 2)}

    def then_the_same():
        yield from records(2).to_batches()
        log.topic("orders").append(records(1), ("app", 2))

    assert log.topic("orders").append(then_the_same(), ("app", 2)) == {}
    assert log.topic("orders").offsets() == {0: (0, 4)}
