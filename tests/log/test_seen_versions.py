"""A handle that has seen a version of a topic looks what came since, and never takes another log for the one it saw."""

from __future__ import annotations

import gc
import shutil
import weakref
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import UnknownTopicError

ROWS = [{"value": b"v"}]


def made(uri: str, appends: int) -> LogDir:
    log = LogDir.create(uri)
    log.create_topic("orders")
    for _ in range(appends):
        log.topic("orders").append(ROWS)
    return log


def end(log: LogDir) -> int:
    return log.topic("orders").offsets()[0][1]


def test_each_look_sees_what_another_handle_has_committed(log):
    other = made(log.uri, 0)
    for appends in range(1, 31):  # more than are followed without opening the table
        other.topic("orders").append(ROWS)
        if appends in (1, 2, 30):
            assert end(log) == appends


def test_a_log_that_was_made_anew_with_as_many_versions_is_another(tmp_path):
    log = made(str(tmp_path / "log"), 1)
    seen = LogDir.open(log.uri)
    assert end(seen) == 1
    before = seen.topic("orders").snapshot
    shutil.rmtree(log.uri)
    made(log.uri, 1).topic("orders")
    assert seen.topic("orders").snapshot.version == before.version
    assert seen.topic("orders").snapshot.topic_id != before.topic_id


def test_a_topic_that_this_handle_made_in_place_of_another_is_its_own(tmp_path):
    """The snapshot of the topic before has the same number, and somebody still reads it."""
    log = made(str(tmp_path / "log"), 0)
    before = log.topic("orders").snapshot
    shutil.rmtree(log.uri)
    LogDir.create(log.uri)
    log.create_topic("orders", partitions=3)
    assert log.topic("orders").snapshot.version == before.version
    assert log.topic("orders").snapshot.topic_id != before.topic_id
    log.topic("orders").append(ROWS)
    assert LogDir.open(log.uri).topic("orders").scan().to_table().num_rows == len(ROWS)


def test_a_topic_that_was_deleted_meanwhile_is_unknown(log):
    seen = LogDir.open(made(log.uri, 1).uri)
    assert end(seen) == 1
    log.delete_topic("orders")
    with pytest.raises(UnknownTopicError):
        end(seen)


def test_a_version_that_is_lost_is_not_shown_any_more(log):
    """As where a log directory was put back from a copy."""
    seen = LogDir.open(made(log.uri, 2).uri)
    assert end(seen) == 2
    Path(log.uri, "_manifest/orders/_delta_log", f"{2:020d}.json").unlink()
    assert end(seen) == 1


def test_a_version_that_is_seen_again_is_the_same_snapshot_while_somebody_has_it(log):
    other = made(log.uri, 1)
    snapshot = log.topic("orders").snapshot
    assert log.topic("orders").snapshot is snapshot
    other.topic("orders").append(ROWS)
    newer = log.topic("orders").snapshot
    assert (snapshot.offset_bounds(), newer.offset_bounds()) == ({0: (0, 1)}, {0: (0, 2)})
    alive = weakref.ref(newer)
    del newer
    gc.collect()
    assert alive() is None
