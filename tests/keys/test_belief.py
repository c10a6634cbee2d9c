"""For which versions of a topic a run of its index is believed."""

from __future__ import annotations

import shutil

import pytest

from spark_segments import LogDir
from spark_segments.keys.job import index
from spark_segments.log import Operation
from spark_segments.maintenance import compact, mirror, restore, roll
from tests.keys.test_races import KEYS, check


@pytest.fixture
def log(tmp_path):
    """A compacted topic, whose records are all still there."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 1, {"cleanup.policy": "compact", "segment.ms": "1"})
    for number in range(3):
        log.topic("t").append([{"key": key, "value": b"%d" % number} for key in KEYS * 3])
    roll(log)
    return log


def test_what_a_restore_brings_back_is_found(log):
    version = log.topic("t").version
    compact(log, force=True)
    index(log)
    assert log.topic("t").scan(keys="a").coverage.scanned_offsets == 0
    restore(log, topics=["t"], version=version)
    assert log.topic("t").scan(keys="a").coverage.indexed_offsets == 0
    check(log.uri)
    assert log.topic("t").scan(keys="a").to_table().num_rows == 9


def test_a_restore_of_other_offsets_leaves_the_runs_of_the_others(log):
    index(log)
    version = log.topic("t").version
    log.topic("t").append([{"key": b"a", "value": b"later"}])
    restore(log, topics=["t"], version=version)
    coverage = log.topic("t").scan(keys="a").coverage
    assert coverage.indexed_offsets == 27
    check(log.uri)


def test_what_an_earlier_version_still_has_is_found(log):
    version = log.topic("t").version
    compact(log, force=True)
    index(log)
    scan = log.topic("t", version=version).scan(keys="a")
    assert scan.coverage.indexed_offsets == 0
    assert scan.to_table().num_rows == 9


def test_the_index_of_a_manifest_that_a_backup_replaced_is_not_believed(log, tmp_path):
    for name in ("_manifest", "_recovery"):
        shutil.copytree(tmp_path / "log" / name, tmp_path / "backup" / name)
    log.topic("t").append([{"key": b"z", "value": b"v"}] * 4)
    index(log)
    for name in ("_manifest", "_recovery"):
        shutil.rmtree(tmp_path / "log" / name)
        shutil.copytree(tmp_path / "backup" / name, tmp_path / "log" / name)
    log = LogDir.open(log.uri)
    log.topic("t").append([{"key": b"a", "value": b"in their place"}] * 4)
    assert log.topic("t").scan(keys="a").coverage.indexed_offsets == 0
    check(log.uri)


def test_a_mirror_has_no_index_and_its_own_is_not_believed_after_a_pass_over_its_offsets(log, tmp_path):
    index(log)
    copy = LogDir.create(str(tmp_path / "copy"))
    mirror(copy, leader=log)
    assert copy.topic("t").scan(keys="a").coverage.indexed_offsets == 0
    index(copy)
    assert copy.topic("t").scan(keys="a").coverage.scanned_offsets == 0
    log.topic("t").append([{"key": b"a", "value": b"more"}])
    mirror(copy, leader=log)
    check(copy.uri)


def test_every_operation_is_known_or_ends_the_belief():
    words = {word for name, word in vars(Operation).items() if name.isupper() and isinstance(word, str)}
    ending = {"capture", "create", "delete", "import", "mirror", "restore"}
    assert words - Operation.LEAVING_OFFSETS == ending
    assert ending >= Operation.BRINGING_BACK
